"""`bgad figures`: what the figures show, and what the data cannot give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bgad.benchmark import figure_plots, figures
from bgad.benchmark.figures import KNOWN, NORMAL, SEEN, UNSEEN, FigureData, FigureOptions
from bgad.cli.main import main
from bgad.data import layouts
from bgad.data.protocols import PROTOCOLS, Case
from bgad.evaluation.measure import level_values
from bgad.io import images
from bgad.types import RunControl
from tests.benchmark.runs import CONFIG, TINY, category
from tests.conftest import save, write_set

ALL = ("histogram", "qualitative", "tsne", "curve", "rpag")


@pytest.fixture(scope="module")
def cable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("figures") / "cable"
    category(root, ("bent_wire", "cable_swap", "cut_outer_insulation"), 0)
    return root


def collected(cable: Path, work: Path, *, with_curve: bool = True) -> FigureData:
    options = FigureOptions(protocol="one-class", case=Case("bent_wire"), known=3, device="cpu")
    pools = figures.new_pools([CONFIG], work / "pools", options)
    dataset, split = figures.make_split(layouts.load(cable), pools.images, options)
    return figures.collect(dataset, split, [CONFIG], pools, work, RunControl(), with_curve=with_curve)


@pytest.fixture(scope="module")
def data(cable: Path, tmp_path_factory: pytest.TempPathFactory) -> FigureData:
    return collected(cable, tmp_path_factory.mktemp("work"))


def test_likelihoods_of_anomalies_come_from_their_masks(data: FigureData) -> None:
    (result,) = data.results
    for level in range(3):
        log_p = [output.levels[level] for output in result.outputs]
        normal, anomalous = level_values(data.split.test, log_p, data.masks)
        cells = result.outputs[0].levels[level].size
        assert len(normal) == cells * sum(not s.label for s in data.split.test)
        assert 0 < len(anomalous) < cells * sum(s.label for s in data.split.test)


def test_the_curve_follows_the_training_and_ends_with_the_model(data: FigureData) -> None:
    (result,) = data.results
    assert [point.phase for point in result.curve] == [1, 1, 2]
    epochs = [point.epoch for point in result.curve]
    assert epochs == sorted(set(epochs))
    labels = [s.label for s in data.split.test]
    scores = np.array([output.score for output in result.outputs])
    above = np.mean([[a > n for n in scores[np.equal(labels, 0)]] for a in scores[np.equal(labels, 1)]])
    assert result.curve[-1].image_auroc == pytest.approx(above)


def test_the_other_figures_are_the_same_without_the_curve(data: FigureData, cable: Path, tmp_path: Path) -> None:
    (whole,), (result,) = data.results, collected(cable, tmp_path, with_curve=False).results
    assert result.curve == []
    assert [output.score for output in result.outputs] == [output.score for output in whole.outputs]
    for group, same in zip(result.groups, whole.groups, strict=True):
        assert np.array_equal(group.before, same.before)
        assert np.array_equal(group.after, same.after)


def test_a_histogram_shows_the_normals_however_far_features_are_pushed() -> None:
    normals = np.linspace(-3, 0, 900, dtype=np.float32)
    edges = figure_plots.histogram_bins(np.concatenate([normals, np.full(100, -50.0, np.float32)]), boundary=-2.5)
    assert (edges[0], edges[-1]) == (-7.5, 0)
    near = figure_plots.histogram_bins(normals, boundary=-2.5)
    assert near[0] == pytest.approx(-3, abs=0.01)


def test_groups_of_features_tell_known_from_unseen_classes(data: FigureData) -> None:
    (result,) = data.results
    names = [group.name for group in result.groups]
    assert names == [NORMAL, KNOWN, UNSEEN]
    assert SEEN not in names  # one-class tests no anomaly of the known class
    for group in result.groups:
        assert group.features.shape == group.before.shape == group.after.shape
        assert np.abs(group.before - group.after).max() > 0  # phase 2 moves the latents


def test_images_are_spread_over_the_classes(data: FigureData) -> None:
    chosen = figures.qualitative_samples(data, 2)
    assert {data.split.test[i].defect for i in chosen} == {"cable_swap", "cut_outer_insulation"}


def test_every_figure_is_written_as_vector_and_bitmap(cable: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    command = ["figures", str(cable), "--methods", "bgad-plus", "--known", "3", "--out", str(out), *TINY]
    assert main(command) == 0
    assert sorted(p.name for p in out.iterdir()) == sorted(f"cable-{n}{s}" for n in ALL for s in (".png", ".svg"))
    assert all(p.stat().st_size > 1000 for p in out.iterdir())


def test_deep_images_are_scaled_by_the_bit_depth_of_the_set(
    cable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[Path]
) -> None:
    root = shutil.copytree(cable, tmp_path / "deep")
    image_files = sorted([*root.glob("train/*/*.png"), *root.glob("test/*/*.png")])
    for path in image_files:
        save(path, np.asarray(Image.open(path))[..., 0].astype(np.uint16) * 20)  # a 12-bit camera
    drawn: list[FigureData] = []

    def draw(_: str, data: FigureData, __: Path) -> list[Path]:
        drawn.append(data)
        return []

    monkeypatch.setattr(figure_plots, "draw", draw)
    command = ["figures", str(root), "--methods", "bgad-plus", "--known", "3", "--figures", "curve", *TINY]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert sorted(path for path in decoded if path in image_files) == image_files  # each once
    (data,) = drawn
    assert data.images.bits == 12
    sample = data.split.test[0]
    np.testing.assert_array_equal(data.images.read(sample), images.fit(images.read(sample.path, bits=12), (64, 64)))


def test_what_the_data_cannot_give_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_set(tmp_path / "plate", masks=False, bad=8)
    common = ["--methods", "bgad-plus", "--known", "2", "--out", str(tmp_path / "out"), *TINY]
    for figure, text in (
        ("qualitative", "no tested anomaly has a mask"),
        ("rpag", "known anomalies with masks"),
        ("tsne", "one class of anomalies"),
        ("heat", "unknown figure 'heat'"),
    ):
        assert main(["figures", str(root), "--figures", figure, *common]) == 2
        assert text in capsys.readouterr().err
    few = write_set(tmp_path / "few", bad=4)
    assert main(["figures", str(few), "--figures", "histogram", *common]) == 2
    assert "at least 5 anomalies to test" in capsys.readouterr().err


def test_without_a_name_the_others_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_set(tmp_path / "plate", masks=False, bad=8)
    out = tmp_path / "out"
    assert main(["figures", str(root), "--methods", "bgad-plus", "--known", "2", "--out", str(out), *TINY]) == 0
    assert sorted({p.stem for p in out.iterdir()}) == ["plate-curve", "plate-histogram"]
    assert capsys.readouterr().err.count("left out:") == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_that_need_a_subset_are_not_offered(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["figures", "--protocol", protocol])  # refused either way: there is no DATA
    error = capsys.readouterr().err
    assert ("invalid choice" if protocol in ("hard", "unseen") else "give DATA, or --results") in error


def test_the_bar_chart_needs_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.json"
    cell = {"data": "elpv", "protocol": "general", "known": 1, "method": "bgad-plus", "metrics": {"image_auroc": 0.9}}
    results.write_text(json.dumps({"cells": [cell, {**cell, "data": "headct"}]}))
    assert main(["figures", "--results", str(results), "--out", str(tmp_path)]) == 0
    assert all((tmp_path / f"bars.{suffix}").stat().st_size > 1000 for suffix in ("svg", "png"))
    results.write_text("[]")
    assert main(["figures", "--results", str(results), "--out", str(tmp_path)]) == 2
    assert "is not the results.json of a benchmark" in capsys.readouterr().err
    assert main(["figures", "--out", str(tmp_path)]) == 2
    assert "give DATA, or --results" in capsys.readouterr().err
