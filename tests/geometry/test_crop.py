"""The paper's methods look at the central square of an image alone, in training and in scoring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bgad import TrainOptions, load, train
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.data import layouts
from bgad.data.sample_io import ImageCache, decode, read, read_mask
from bgad.data.split import Split, make_split
from bgad.errors import ConfigError
from bgad.geometry.crop import crop, uncrop_map
from bgad.io import images
from bgad.io.masks import defect_cells, resize_mask, touched_cells
from bgad.model import backbone as backbones
from bgad.model.scoring import LevelModel
from bgad.training.loop import TrainingLoop
from bgad.training.training_set import CacheOptions, TrainingSet, build_training_set, with_visible_defect
from bgad.types import AnyArray, Sample
from tests.conftest import SIZE, draw_image, printed_config, save
from tests.pseudo.scenes import generate

WIDTH, EDGE = 96, 16  # of the wide images, and what is cropped off on either side
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("shape", "square"),
    [((4, 4), np.s_[:, :]), ((4, 7), np.s_[:, 1:5]), ((7, 4, 3), np.s_[1:5, :]), ((2, 9, 3), np.s_[:, 3:5])],
)
def test_the_central_square(shape: tuple[int, ...], square: tuple[slice, slice]) -> None:
    image = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(crop(image), image[square])
    assert crop(image).shape[0] == crop(image).shape[1]


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (6, 6)])
def test_a_map_is_lowest_outside_of_the_square(shape: tuple[int, int]) -> None:
    small = np.random.default_rng(0).uniform(0.2, 1, (3, 3)).astype(np.float32)
    complete = uncrop_map(small, shape)
    assert complete.shape == shape
    np.testing.assert_array_equal(crop(complete), images.resize_map(small, (6, 6)))
    outside = np.ones(shape, bool)
    crop(outside)[:] = False
    assert set(complete[outside].tolist()) <= {float(small.min())}
    assert complete.min() == small.min() or shape == (6, 6)


def wide_image(rng: np.random.Generator, *, defect: bool, hidden: bool = False) -> tuple[AnyArray, AnyArray]:
    """A plate with grain on both sides of it; a hidden defect is in what is cropped off."""
    image, mask = (np.pad(x, ((0, 0), (EDGE, EDGE), (0, 0))[: x.ndim]) for x in draw_image(rng, defect=defect))
    image[:, :EDGE] = image[:, -EDGE:] = rng.integers(90, 140, (SIZE, EDGE, 1))
    if hidden:
        mask[:] = False
        mask[20:40, 2:12] = True
        image[mask] = 0
    return image, mask


@pytest.fixture(scope="module")
def wide_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The defects of the first two anomalies are cropped off."""
    root, rng = tmp_path_factory.mktemp("wide") / "plates", np.random.default_rng(5)
    for i in range(18):
        save(root / f"good/{i:03d}.png", wide_image(rng, defect=False)[0])
    for i in range(6):
        image, mask = wide_image(rng, defect=i >= 2, hidden=i < 2)
        save(root / f"bad/{i:03d}.png", image)
        save(root / f"masks/{i:03d}.png", mask)
    return root


@pytest.fixture(scope="module")
def wide_model(wide_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wide-model") / "plates.bgad"
    train(wide_set, out, config=printed_config(), options=TrainOptions(device="cpu"))
    return out


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_only_the_central_square_is_scored(wide_model: Path, engine: str) -> None:
    scorer = load(wide_model, engine=engine)
    rng = np.random.default_rng(11)
    image, _ = wide_image(rng, defect=False)
    plain = scorer.score(image)
    assert plain.map.shape == (SIZE, WIDTH)
    lowest = plain.map.min()
    assert (plain.map[:, :EDGE] == lowest).all()
    assert (plain.map[:, -EDGE:] == lowest).all()
    assert plain.map[:, EDGE:-EDGE].max() > lowest

    outside, inside = image.copy(), image.copy()
    outside[10:40, :EDGE] = outside[:, -EDGE:] = 0
    inside[20:40, 40:60] = 0
    same, other = scorer.score(outside), scorer.score(inside)
    assert same.score == plain.score
    np.testing.assert_array_equal(same.map, plain.map)
    assert other.score != plain.score

    square = scorer.score(np.ascontiguousarray(crop(image)))
    assert square.score == plain.score
    np.testing.assert_array_equal(square.map, plain.map[:, EDGE:-EDGE])
    tall = scorer.score(np.ascontiguousarray(image.transpose(1, 0, 2)))
    assert tall.map.shape == (WIDTH, SIZE)
    assert (tall.map[:EDGE] == tall.map.min()).all()


def test_our_methods_see_all_of_a_wide_image(model: Path) -> None:
    scorer = load(model, engine="torch")
    image, _ = wide_image(np.random.default_rng(11), defect=False)
    changed = image.copy()
    changed[10:40, :EDGE] = 0
    assert scorer.score(changed).score != scorer.score(image).score


@pytest.mark.parametrize("bits", [8, 12])
def test_images_are_kept_cropped(tmp_path: Path, decoded: list[Path], bits: int) -> None:
    values = np.random.default_rng(2).integers(0, 2**bits, (50, 70)).astype(np.uint8 if bits == 8 else np.uint16)
    values[0, 0] = 2**bits - 1
    sample = Sample(save(tmp_path / "a.png", values), "a.png", 0, split="train")
    expected = images.fit(crop(read(sample, bits)), (32, 32))
    cache = ImageCache(32, crop=True)
    cache.add(sample, decode(sample))
    decoded.clear()
    np.testing.assert_array_equal(cache.read(sample), expected)
    assert decoded == []
    fresh = ImageCache(32, crop=True)
    fresh.bits = bits
    np.testing.assert_array_equal(fresh.read(sample), expected)
    assert not np.array_equal(ImageCache(32).read(sample), expected)
    tiled = ImageCache(32, crop=True, tiled=True)  # tiles are cut from the whole image
    assert not tiled.crop


@pytest.mark.parametrize("validated", [True, False])
def test_a_mask_of_another_size_is_cropped_as_its_image(tmp_path: Path, validated: bool) -> None:
    """A square mask of a wide image is stretched before it is cropped."""
    image, mask = wide_image(np.random.default_rng(3), defect=True)
    small = resize_mask(mask, (SIZE, SIZE))
    path = save(tmp_path / "a.png", image)
    cache = ImageCache(SIZE, crop=True)
    found = []
    for file in (save(tmp_path / "full.png", mask), save(tmp_path / "small.png", small)):
        sample = Sample(path, "a.png", 1, "blot", file)
        if validated:
            cache.add(sample, decode(sample))
        found.append(cache.read_mask(sample))
    assert found[0] is not None
    assert found[1] is not None
    np.testing.assert_array_equal(found[0], mask[:, EDGE:-EDGE])
    assert found[1].shape == (SIZE, SIZE)
    assert (found[0] & found[1]).sum() > 0.9 * found[0].sum()
    assert cache.read_mask(Sample(path, "a.png", 1, "blot")) is None


def prepared(split: Split, work: Path, **values: Any) -> tuple[LevelModel, TrainingSet]:
    config = printed_config(**values)
    model = LevelModel(config, backbones.build(config.backbone))
    cache = ImageCache(SIZE, crop=True)
    return model, build_training_set(model, with_visible_defect(split, cache), cache, CPU, CacheOptions(work, "k", 1.0))


def test_training_takes_cropped_masks_and_regions_to_ignore(wide_set: Path, tmp_path: Path) -> None:
    split = make_split(layouts.load(wide_set), seed=0, known=6, holdout=3)
    split = replace(split, known=sorted(split.known, key=lambda s: s.name))
    model, before = prepared(split, tmp_path / "a")
    (known, made) = before.anomalies
    assert (known.features.count, made.pseudo) == (4, True)  # without the two that are cropped off
    for level, grid in enumerate(model.grids):
        for sample, cells in zip(split.known[2:], known.cells[level], strict=True):
            mask = read_mask(sample)
            assert mask is not None
            np.testing.assert_array_equal(cells, defect_cells(mask[:, EDGE:-EDGE], grid))
    region = np.zeros((SIZE, WIDTH), bool)
    region[:24, : EDGE + 24] = True
    file = save(tmp_path / "ignore.png", region)
    ignoring = replace(split, train=[replace(split.train[0], ignore=file), *split.train[1:]])
    _, after = prepared(ignoring, tmp_path / "b")
    for level, grid in enumerate(model.grids):
        at = touched_cells(region[:, EDGE:-EDGE], grid)
        own, now = before.normals.levels[level], after.normals.levels[level]
        changed = np.flatnonzero((own[0] != now[0]).any(axis=1))
        assert set(changed) <= set(at)
        np.testing.assert_array_equal(now[0, at], own[1, at])


def test_pseudo_anomalies_are_cut_from_the_square(wide_set: Path) -> None:
    split = make_split(layouts.load(wide_set), seed=0, known=6, holdout=3)
    cache = ImageCache(SIZE, crop=True)
    shown = with_visible_defect(split, cache).known
    for image, mask, _ in generate(split.train, shown, 4, cache, seed=0, method="rpag", transforms=0):
        assert image.shape == (SIZE, SIZE, 3)
        assert mask.any()


def test_a_known_anomaly_whose_defect_is_cropped_off_is_left_out(
    wide_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts: list[list[int]] = []
    phase = TrainingLoop.phase

    def recorded(self: TrainingLoop, number: int) -> Any:
        counts.append([group.features.count for group in self.anomalies])
        return phase(self, number)

    monkeypatch.setattr(TrainingLoop, "phase", recorded)
    config = printed_config(train={"steps": 1, "push_steps": 1}, pseudo={"count": 2})
    out = tmp_path / "m.bgad"
    train(wide_set, out, config=config, options=TrainOptions(known=6, device="cpu", export=False))
    said = " ".join(capsys.readouterr().err.split())
    assert "2 known anomalies are left out: their defect lies outside of what the model sees" in said
    assert counts == [[4, 2]] * 2
    assert model_folder.read(out).data.known == 6  # they stay known: they are never tested


def test_a_region_of_interest_does_not_go_with_the_crop(
    wide_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roi = save(tmp_path / "roi.png", np.ones((SIZE, WIDTH), bool))
    with pytest.raises(ConfigError, match=r"nfad crops images \(backbone\.crop\), so it takes no region of interest"):
        train(wide_set, tmp_path / "m.bgad", config=printed_config("nfad"), options=TrainOptions(roi=roi))
    command = ["train", str(wide_set), "--roi", str(roi), "--out", str(tmp_path / "m.bgad")]
    assert main([*command, "--method", "bgad-wo", "--backbone", "lite0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bgad: error: bgad-wo crops images")


def test_the_contact_sheet_of_a_papers_method_shows_the_square(
    wide_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pseudo", str(wide_set), "--count", "2", "--size", "64", "--known", "6"]
    sheets = []
    for method in ("bgad", "bgad-plus"):
        assert main([*command, "--method", method, "--out", str(tmp_path / f"{method}.png")]) == 0
        sheets.append(images.read(tmp_path / f"{method}.png"))
        said = " ".join(capsys.readouterr().err.split())
        assert ("2 known anomalies are left out" in said) == (method == "bgad")
    assert not np.array_equal(sheets[0], sheets[1])
