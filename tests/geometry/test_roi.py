from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bgad
from bgad import metrics
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.config import TileConfig, from_dict, to_toml
from bgad.data import tiled_split
from bgad.data.layouts import Dataset
from bgad.data.sample_io import read_mask
from bgad.data.split import Split
from bgad.errors import DataError, ImageError
from bgad.geometry.roi import Roi
from bgad.training import pipeline as learn
from bgad.types import Sample
from tests.conftest import SIZE, draw_image, save, tiny_config, write_set

LEFT = np.zeros((SIZE, SIZE), bool)
LEFT[:, : SIZE // 2] = True


def test_images_and_polygons(tmp_path: Path) -> None:
    roi = Roi.load(save(tmp_path / "left.png", LEFT))
    assert np.array_equal(roi.mask, LEFT)
    assert roi.polygons is None
    assert np.array_equal(Roi.from_png(roi.png()).mask, LEFT)
    look, ignore = [[[0, 0], [3, 0], [3, 5], [0, 5]]], [[[0, 0], [1, 0], [1, 1], [0, 1]]]
    drawn = {"size": [8, 6], "look": look, "ignore": ignore}
    (tmp_path / "a.json").write_text(json.dumps(drawn))
    roi = Roi.load(tmp_path / "a.json")
    expected = np.zeros((6, 8), bool)
    expected[:, :4] = True
    expected[:2, :2] = False
    assert np.array_equal(roi.mask, expected)
    assert roi.polygons is not None
    assert json.loads(json.dumps(asdict(roi.polygons))) == {"look": look, "ignore": ignore}
    (tmp_path / "b.json").write_text(json.dumps({"size": [8, 6], "ignore": drawn["look"]}))
    assert Roi.load(tmp_path / "b.json").mask.sum() == 6 * 4  # else everywhere


@pytest.mark.parametrize(
    "content",
    ["no json", "[]", '{"size": [8]}', '{"size": [0, 5]}', '{"size": [99999, 99999]}', '{"size": [8, 6], "look": 5}',
     '{"size": [8, 6], "look": [[[0, 0], [1, 1]]]}', '{"size": [8, 6], "look": [[[0], [1], [2]]]}'],
)  # fmt: skip
def test_polygons_that_are_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=r"a\.json: a region of interest in JSON is"):
        Roi.load(tmp_path / "a.json")


def test_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leaves nothing to look at"):
        Roi.load(save(tmp_path / "a.png", np.zeros((5, 5), bool)))
    with pytest.raises(DataError, match=r"gone\.json: cannot be read"):
        Roi.load(tmp_path / "gone.json")
    with pytest.raises(ImageError, match=r"gone\.png"):
        Roi.load(tmp_path / "gone.png")


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_what_is_ignored_is_painted_over(kind: type) -> None:
    image = np.random.default_rng(0).integers(0, 200, (SIZE, SIZE, 3)).astype(kind) / (1 if kind is np.uint8 else 255)
    image = image.astype(kind)
    masked = Roi(LEFT).mask_image(image, "it")
    assert masked.dtype == kind
    assert np.array_equal(masked[LEFT], image[LEFT])
    assert len(np.unique(masked[~LEFT])) == 1
    with pytest.raises(ImageError, match="it: is 64x63, the model's region of interest 64x64"):
        Roi(LEFT).mask_image(image[1:], "it")


def test_pixel_figures_inside(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    maps = [rng.random((12, 16)).astype(np.float32) for _ in range(4)]
    masks = [None, rng.random((12, 16)) > 0.7, rng.random((12, 16)) > 0.9, None]
    inside = np.zeros((12, 16), bool)
    inside[2:11, 3:9] = True
    found = metrics.pixel_metrics(maps, masks, inside=inside)
    cropped = [m[2:11, 3:9] for m in maps], [None if m is None else m[2:11, 3:9] for m in masks]
    assert found.auroc == pytest.approx(metrics.pixel_metrics(*cropped).auroc)
    assert found.ap == pytest.approx(metrics.pixel_metrics(*cropped).ap)
    assert found.pro == pytest.approx(metrics.pixel_metrics(*cropped).pro)
    with pytest.raises(ValueError, match="the region of interest"):
        metrics.pixel_metrics(maps, masks, inside=inside[1:])


@pytest.fixture(scope="module")
def looking_left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A set where the right half is noise that means nothing, and a model that looks at the left one."""
    root = write_set(tmp_path_factory.mktemp("roi") / "plate")
    rng = np.random.default_rng(1)
    for path in sorted(root.rglob("*.png")):
        if "ground_truth" not in path.parts:
            pixels = np.array(Image.open(path))
            pixels[:, SIZE // 2 :] = rng.integers(0, 256, (SIZE, SIZE // 2, 3))
            Image.fromarray(pixels).save(path)
    config = root.parent / "tiny.toml"
    config.write_text(to_toml(tiny_config()))
    out = root.parent / "left.bgad"
    roi = save(root.parent / "left.png", LEFT)
    assert (
        main(["train", str(root), "--config", str(config), "--roi", str(roi), "--known", "4", "--out", str(out)]) == 0
    )
    return out, root


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_what_is_ignored_changes_nothing(looking_left: tuple[Path, Path], engine: str) -> None:
    scorer = bgad.load(looking_left[0], engine=engine)
    rng = np.random.default_rng(2)
    image, _ = draw_image(rng, defect=False)
    first = scorer.score(image)
    for _ in range(3):
        image[:, SIZE // 2 :] = rng.integers(0, 256, (SIZE, SIZE // 2, 3))
        again = scorer.score(image)
        assert again.score == first.score
        assert np.array_equal(again.map, first.map)
    assert np.unique(first.map[~LEFT]).tolist() == [first.map[LEFT].min()]
    anomaly = scorer.run(next(scorer.inputs(image)[1])[1][None]).maps
    assert anomaly[0][~LEFT].max() <= anomaly[0][LEFT].min()  # what is painted over does not make the score
    with pytest.raises(ImageError, match="array: is 60x64, the model's region of interest 64x64"):
        scorer.score(image[:, :60])


def test_the_model_knows_its_region(looking_left: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = looking_left
    card = model_folder.read(model, ("roi.png",))
    assert card.roi is not None
    assert card.roi.share == 0.5
    assert main(["info", str(model)]) == 0
    assert "region      50% of the image, 64x64 pixels" in capsys.readouterr().out
    assert np.array_equal(Roi.load(model / "roi.png").mask, LEFT)


def test_figures_are_of_the_region(
    looking_left: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An anomaly outside of it is not measured, and the noise there disturbs nobody."""
    model, root = looking_left
    assert main(["evaluate", str(model), str(root), "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    left = [p.stem.removesuffix("_mask") for p in sorted((root / "ground_truth/blot").iterdir())
            if (np.array(Image.open(p)) > 0)[LEFT].any()]  # fmt: skip
    known = {i["name"] for i in model_folder.read(model).split["images"] if i["role"] == "known"}
    expected = {f"test/blot/{stem}.png" for stem in left} - known
    assert {row["name"] for row in results["images"] if row["label"]} == expected
    metrics_ = results["cells"][0]["metrics"]
    assert metrics_["image_auroc"] > 0.95
    assert metrics_["pixel_auroc"] > 0.9
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("lies outside of the model's region of interest") == 8 - len(known) - len(expected) > 0


def test_a_region_of_another_size(data_set: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is 64x64, the region of interest .*a\.png 64x10: make them equal"):
        bgad.train(
            data_set,
            tmp_path / "a.bgad",
            config=tiny_config(),
            options=bgad.TrainOptions(roi=save(tmp_path / "a.png", LEFT[:10])),
        )


def test_region_and_tiles(tmp_path: Path) -> None:
    """Tiles outside of the region are not learnt and not scored; what is ignored changes nothing there either."""
    rng = np.random.default_rng(4)
    root, wide = tmp_path / "plates", np.zeros((SIZE, 3 * SIZE), bool)
    wide[:, : SIZE + 10] = True
    (root / "good").mkdir(parents=True)

    def large() -> np.ndarray:
        plates = [draw_image(rng, defect=False)[0] for _ in range(2)]
        return np.concatenate([*plates, rng.integers(0, 256, (SIZE, SIZE, 3), np.uint8)], axis=1)

    for i in range(8):
        Image.fromarray(large()).save(root / "good" / f"{i}.png")
    config = from_dict({"tile": {"size": SIZE, "overlap": 0.0}, "train": {"steps": 5, "push_steps": 2}}, tiny_config())
    roi = save(tmp_path / "roi.png", wide)
    scorer = bgad.train(
        root, tmp_path / "a.bgad", config=config, options=bgad.TrainOptions(roi=roi, device="cpu", export=False)
    )
    seen: list[int] = []
    plain = scorer.run
    scorer.run = lambda pixels: (seen.append(len(pixels)), plain(pixels))[1]  # type: ignore[method-assign, func-returns-value]
    image = large()
    first = scorer.score(image)
    assert sum(seen) == 2  # of three tiles
    held_out = [root / image["name"] for image in scorer.card.split["images"] if image["role"] == "calibration"]
    found = scorer.score_many(held_out)
    stored = scorer.card.calibration_at()
    assert sorted(s.score for s in found) == pytest.approx(stored.scores, abs=1e-3)
    assert sorted(float(s.map.max()) for s in found) == pytest.approx(stored.map_maxima, abs=1e-3)  # inside the region
    calibrating = scorer.calibrating(held_out)
    assert sorted(normal.map_max for normal in calibrating) == pytest.approx(stored.map_maxima, abs=1e-3)
    image[:, SIZE + 10 :] = 0
    again = scorer.score(image)
    assert again.score == first.score
    assert np.array_equal(again.map, first.map)


def test_tiles_outside_are_not_learnt(tmp_path: Path) -> None:
    region = np.zeros((SIZE, 3 * SIZE), bool)
    region[:, : SIZE + 10] = True
    sample = Sample(tmp_path / "a.png", "a.png", 0, roi=save(tmp_path / "roi.png", region))
    held_out = Sample(tmp_path / "b.png", "b.png", 0, roi=sample.roi)
    hashes = {"a.png": "1", "b.png": "2"}
    split = Split([sample], [held_out], [], [], hashes)
    learnt = tiled_split.cut(split, TileConfig(SIZE, 0.0), {"a.png": region.shape, "b.png": region.shape}).train
    assert [tile.box for tile in learnt] == [(0, 0, SIZE, SIZE), (SIZE, 0, 2 * SIZE, SIZE)]


def test_masks_of_another_size_are_brought_to_the_region(tmp_path: Path) -> None:
    mask = np.zeros((2 * SIZE, 2 * SIZE), bool)
    mask[:, SIZE // 2 : 2 * SIZE] = True
    Image.new("L", (SIZE, SIZE)).save(tmp_path / "a.png")
    sample = Sample(
        tmp_path / "a.png", "a.png", 1, "x", save(tmp_path / "mask.png", mask), roi=save(tmp_path / "roi.png", LEFT)
    )
    expected = LEFT.copy()
    expected[:, : SIZE // 4] = False
    found = read_mask(sample)
    assert found is not None
    assert np.array_equal(found, expected)


def test_a_thin_region_stays(tmp_path: Path) -> None:
    mask = np.zeros((1000, 1000), bool)
    mask[501] = True
    fitted = Roi(mask).resized(64)
    assert fitted.any()
    assert not fitted[:31].any()
    assert not fitted[34:].any()


def test_tiles_of_the_data_set_have_no_region(tmp_path: Path) -> None:
    dataset = Dataset("x", tmp_path, [Sample(tmp_path / "a.png", "a.png", 0, box=(0, 0, 9, 9))], "plain")
    with pytest.raises(DataError, match=r"a\.png is a tile of an image"):
        learn._check_roi_size(Roi(LEFT), "roi.png", dataset, {"a.png": (9, 9)})
