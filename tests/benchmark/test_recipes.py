"""Methods of both families in one table: each by its own recipe, which stands below the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bgad.benchmark import runner as benchmark
from bgad.benchmark.paper_tables import TABLES, Column, Matrix, PaperTable, methods
from bgad.benchmark.plan import plan
from bgad.benchmark.published import METHOD_OF, printed_mean
from bgad.benchmark.recipes import describe, recipe_lines
from bgad.benchmark.tables import grids
from bgad.cli.main import main
from bgad.config import METHODS, Config, override, preset_for
from bgad.data import layouts
from bgad.data.protocols import Case, protocol_split
from bgad.data.sample_io import ImageCache, read_mask
from bgad.errors import ModelError
from bgad.io.masks import resize_mask
from bgad.model import backbone as backbones
from bgad.training.feature_pool import FeaturePool
from tests.benchmark.outcomes import outcome
from tests.benchmark.runs import CLASSES, PRINTED_TINY, SIZE, category, fast, results, timeless, tiny

WIDTH = 72


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A category with images that the paper's methods crop."""
    category(tmp_path / "data/mvtec/carpet", CLASSES["carpet"], 1, width=WIDTH)
    return tmp_path / "data"


def test_a_recipe_in_one_line() -> None:
    assert describe(Config()) == "default, lite0 at 256 x 256, 800 + 400 steps"
    assert describe(preset_for("nfad", "paper")) == "paper, tf_efficientnet_b6 at 256 x 256, 200 epochs"
    changes = ["backbone.name=lite0", "backbone.size=512", "train.steps=5", "loss.tau=0.2", "pseudo.method=nsa"]
    changed = override(preset_for("bgad", None), changes)
    assert describe(changed) == "paper-fast, lite0 at 512 x 512, 5 + 400 steps; loss.tau=0.2, pseudo.method=nsa"
    changes = ["train.positions_per_image=[8, 8, 8]", "backbone.weights=/home/me/b6.pth", "flow.standardise=true"]
    ours = describe(override(Config(seed=3), changes))
    assert ours.partition("; ")[2] == (
        "backbone.weights=b6.pth, flow.standardise=true, train.positions_per_image=[8, 8, 8]"
    )


def test_methods_with_one_recipe_share_a_line() -> None:
    def lines(*columns: Column) -> list[str]:
        configs = {column.method: preset_for(column.method, None) for column in columns}
        return recipe_lines(Matrix({"mvtec": ()}, "multi-class", columns), configs)

    paper, ours = (
        "paper-fast, tf_efficientnet_b6 at 256 x 256, 800 + 400 steps",
        "default, lite0 at 256 x 256, 800 + 400 steps",
    )
    assert lines(*methods("nfad", "bgad")) == [f"Recipe: {paper}"]
    assert lines(*methods("nfad", "bgad-plus", "bgad")) == [
        f"Recipe of nfad, bgad: {paper}",
        f"Recipe of bgad-plus: {ours}",
    ]
    varied = (Column("tau 1", changes=("loss.tau=1",)), Column("tau 2", changes=("loss.tau=2", "loss.beta=0.1")))
    assert lines(*varied) == [f"Recipe: {paper}; the columns set loss.tau, loss.beta"]


def test_a_table_of_both_families(wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = [
        "benchmark",
        "--data",
        "mvtec",
        "--category",
        "carpet",
        "--known",
        "2",
        "--seeds",
        "1",
        "--root",
        str(wide),
    ]
    assert main([*command, "--methods", "nfad-plus,bgad-plus,nfad,bgad", "--out", str(out), *PRINTED_TINY]) == 0
    assert [cell["method"] for cell in results(out)["cells"]] == ["nfad-plus", "bgad-plus", "nfad", "bgad"]
    said = capsys.readouterr().out
    short = (
        "lite0 at 64 x 64, 2 + 1 steps; pseudo.count=2, train.images_per_step=4, train.positions_per_image=[4, 4, 4]"
    )
    for text in (said, (out / "table.md").read_text(), (out / "benchmark.html").read_text()):
        for line in (f"Recipe of nfad-plus, bgad-plus: default, {short}", f"Recipe of nfad, bgad: paper-fast, {short}"):
            assert text.count(line) == 1
    # each is the cell that its own family gives alone: the images are cropped for the one and stretched for the other
    alone = tmp_path / "alone"
    cells: dict[str, Any] = {}
    for names in ("nfad-plus,bgad-plus", "nfad,bgad"):
        assert main([*command, "--methods", names, "--out", str(alone), *PRINTED_TINY]) == 0
        cells |= {cell["method"]: cell for cell in timeless(alone)["cells"]}
    assert {cell["method"]: cell for cell in timeless(out)["cells"]} == cells


def test_a_second_family_that_is_added_later_gets_its_own_images(wide: Path, tmp_path: Path) -> None:
    """The cells of the first are finished then, so that no features by its backbone are computed."""
    fast(tmp_path / "both", wide, "bgad-plus", "bgad", protocol="multi-class")
    fast(tmp_path / "later", wide, "bgad-plus", protocol="multi-class")
    fast(tmp_path / "later", wide, "bgad-plus", "bgad", protocol="multi-class")
    assert timeless(tmp_path / "later") == timeless(tmp_path / "both")


def test_the_masks_of_a_curve_are_cropped(wide: Path, tmp_path: Path) -> None:
    dataset = layouts.load(wide / "mvtec/carpet")
    split = protocol_split(dataset, "multi-class", Case(), known=2, seed=0)
    backbone = tiny("bgad").backbone
    cache = ImageCache(backbone.size, crop=backbone.crop)
    options = {"device": torch.device("cpu"), "folder": tmp_path / "work", "memory_gb": 1.0}
    pool = FeaturePool(dataset.samples, split.hashes, cache, backbone, **options)  # type: ignore[arg-type]
    edge = (WIDTH - SIZE) // 2
    for sample, found in zip(split.test, benchmark._Curve(pool, split)._masks, strict=True):
        mask = read_mask(sample)
        assert (mask is None) == (found is None)
        if mask is not None and found is not None:
            np.testing.assert_array_equal(found, resize_mask(mask[:, edge:-edge], (64, 64)))


def test_weights_that_cannot_be_downloaded_are_one_error(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a table of the paper, whose backbone timm downloads; without data for it, nothing is downloaded."""

    def offline(config: object) -> None:
        raise ModelError("cannot download the weights of tf_efficientnet_b6: take --backbone lite0")

    monkeypatch.setattr(backbones, "build", offline)
    command = ["benchmark", "--paper", "main", "--out", str(tmp_path / "out"), "--device", "cpu", "--root"]
    assert main([*command, str(root)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "bgad: error: cannot download the weights of tf_efficientnet_b6: take --backbone lite0"
    (tmp_path / "empty").mkdir()
    assert main([*command, str(tmp_path / "empty")]) == 0


# --- names of columns


def of_all_methods() -> PaperTable:
    data: dict[str, tuple[str, ...]] = {"mvtec": (), "btad": (), "elpv": ()}
    return PaperTable("all", (Matrix(data, "multi-class", methods(*METHODS), known=(10, 1)),))


@pytest.mark.parametrize("name", [*TABLES, "all"])
def test_no_column_of_ours_has_a_printed_name(name: str, root: Path) -> None:
    """A printed column names its source; a title of ours is a printed name only where it is that method."""
    table = TABLES.get(name) or of_all_methods()
    configs = {method: tiny(method) for method in table.methods}
    outcomes = [one for group in plan(table.matrices, root) for one in group.impossible]
    for grid in grids(table, outcomes, configs):
        heads = [head.lower() for head in grid.heads()]
        assert len(set(heads)) == len(heads)
        assert grid.recipes
        printed = {column.lower(): METHOD_OF.get(column) for column, _ in grid.printed}
        for matrix in table.matrices:
            for column in matrix.columns:
                assert printed.get(column.title.lower(), column.method) == column.method


def test_our_methods_have_no_printed_figures() -> None:
    assert set(METHOD_OF.values()) == {name for name, method in METHODS.items() if method.is_printed}
    for name in ("bgad-plus", "nfad-plus"):
        assert printed_mean("mvtec", "multi-class", 10, Column(name, name)) == {}
    assert printed_mean("mvtec", "multi-class", 10, Column("bgad", "bgad"))
    plus = PaperTable("x", (Matrix({"mvtec": ()}, "one-class", methods("bgad-plus"), seeds=1),), means=True)
    cell = outcome("screw", plus.matrices[0].columns[0], 0, 0.9, "thread_top")
    means, detail = grids(plus, [cell], {"bgad-plus": Config()})
    assert [entry.text(means.metrics) for entry in means.rows[0].entries][1] == "-"
    assert detail.ours == ["bgad-plus"]
    assert {"BGAD (paper)", "NFAD (paper)"} <= set(detail.heads())
