from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import bgad
from bgad.artifact import folder as model_folder
from bgad.benchmark.paper_tables import TABLES
from bgad.benchmark.runner import run as run_benchmark
from bgad.cli.main import main
from bgad.config import TileConfig, from_dict, preset_for
from bgad.data import tiled_split
from bgad.errors import BgadError, ConfigError, DataError, ImageError
from bgad.geometry.tiles import Blend, boxes
from bgad.inference.torch_engine import Detector
from bgad.training import pipeline as learn
from tests.conftest import SIZE, draw_image, tiny_config

shapes = st.tuples(st.integers(32, 200), st.integers(32, 200))
configs = st.builds(TileConfig, size=st.integers(8, 32), overlap=st.floats(0, 0.75))


@settings(deadline=None)
@given(shape=shapes, config=configs)
def test_tiles_cover_a_image(shape: tuple[int, int], config: TileConfig) -> None:
    covered = np.zeros(shape, int)
    found = boxes(shape, config)
    assert len(set(found)) == len(found)
    for left, top, right, bottom in found:
        assert 0 <= left < right <= shape[1]
        assert 0 <= top < bottom <= shape[0]
        assert right - left == bottom - top == config.size
        covered[top:bottom, left:right] += 1
    assert covered.min() >= 1
    across = sorted({box[0] for box in found})
    shared = [a + config.size - b for a, b in pairwise(across)]
    assert all(overlap >= config.overlap * config.size - 1 for overlap in shared)  # whole pixels


@settings(deadline=None)
@given(shape=shapes, config=configs)
def test_what_tiles_agree_on_is_kept(shape: tuple[int, int], config: TileConfig) -> None:
    """A map that is a property of the image comes out as it went in, at the borders of tiles as inside."""
    rng = np.random.default_rng(0)
    truth = rng.random(shape, np.float32)
    blend = Blend(shape, config)
    for box in boxes(shape, config):
        left, top, right, bottom = box
        blend.add(box, truth[top:bottom, left:right])
    np.testing.assert_allclose(blend.map, truth, rtol=1e-4, atol=1e-6)


def test_no_seam_where_tiles_disagree() -> None:
    """Tiles that say 0 and 1 in turn: the joined map goes from one to the other in small steps."""
    config = TileConfig(size=64, overlap=0.5)
    blend = Blend((64, 256), config)
    for number, box in enumerate(boxes((64, 256), config)):
        blend.add(box, np.full((64, 64), number % 2, np.float32))
    assert blend.map.min() >= 0
    assert blend.map.max() <= 1 + 1e-6
    assert np.ptp(blend.map) > 0.9
    assert np.abs(np.diff(blend.map, axis=1)).max() < 0.04
    assert np.abs(np.diff(blend.map, axis=0)).max() < 1e-5


def test_a_image_that_is_too_small() -> None:
    with pytest.raises(ImageError, match="90x40 pixels are less than a tile of 64x64: use smaller tiles"):
        boxes((40, 90), TileConfig(size=64))
    assert boxes((64, 64), TileConfig(size=64)) == [(0, 0, 64, 64)]


WIDE = 160  # pixels, a plate and a half twice over


def large(seed: int, *, defect: bool) -> tuple[np.ndarray, np.ndarray]:
    """Four plates and a margin in one image; the defect is in the last one."""
    rng = np.random.default_rng(seed)
    image, mask = np.full((WIDE, WIDE, 3), 150, np.uint8), np.zeros((WIDE, WIDE), bool)
    for top in (0, SIZE):
        for left in (0, SIZE):
            bad = defect and top == left == SIZE
            image[top : top + SIZE, left : left + SIZE], mask[top : top + SIZE, left : left + SIZE] = draw_image(
                rng, defect=bad
            )
    return image, mask


@pytest.fixture(scope="module")
def large_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large") / "plates"
    for kind, count in (("good", 10), ("bad", 4)):
        (root / kind).mkdir(parents=True)
        for i in range(count):
            image, mask = large(100 * (kind == "bad") + i, defect=kind == "bad")
            Image.fromarray(image).save(root / kind / f"{i}.png")
            if kind == "bad" and i < 3:  # nobody marked the last one
                (root / "masks").mkdir(exist_ok=True)
                Image.fromarray(mask.astype(np.uint8) * 255).save(root / "masks" / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def tiled(large_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tmp_path_factory.mktemp("config") / "tiny.toml"
    from bgad.config import to_toml

    config.write_text(to_toml(tiny_config()))
    out = config.parent / "plates.bgad"
    assert main(["train", str(large_set), "--config", str(config), "--tile", "--out", str(out)]) == 0
    return out


def test_training_on_tiles(tiled: Path, large_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = model_folder.read(tiled)
    assert card.config.tile == TileConfig(SIZE, 0.25)
    assert {image["role"] for image in card.split["images"]} == {"train", "calibration", "known"}
    assert not any("#" in image["name"] for image in card.split["images"])  # images, not tiles
    assert card.data.known == 4
    assert card.exports["onnx"].parity.images <= learn.PARITY_IMAGES
    aside, names = card.training.validation_normals, {image["name"] for image in card.split["images"]}
    assert set(aside) < names  # images, too
    assert main(["info", str(tiled)]) == 0
    assert "tiles       of 64 pixels" in capsys.readouterr().out
    graph, torch = bgad.load(tiled), bgad.load(tiled, engine="torch")
    for seed, defect in ((7, False), (8, True)):
        image, mask = large(seed, defect=defect)
        found = graph.score(image)
        assert found.map.shape == (WIDE, WIDE)
        assert found.levels == ()
        assert found.is_anomaly is defect
        same = torch.score(image)
        assert found.score == pytest.approx(same.score, abs=1e-3)
        np.testing.assert_allclose(found.map, same.map, atol=1e-3)
        if defect:
            assert mask[np.unravel_index(found.map.argmax(), mask.shape)]
    held_out = [image["name"] for image in card.split["images"] if image["role"] == "calibration"]
    normals = torch.score_many([large_set / name for name in held_out])
    stored = card.calibration_at()
    assert sorted(s.score for s in normals) == pytest.approx(stored.scores, abs=1e-3)  # as images are scored
    assert sorted(float(s.map.max()) for s in normals) == pytest.approx(stored.map_maxima, abs=1e-3)  # joined maps
    again = list(graph.calibrating(large_set / name for name in held_out))  # as another precision is calibrated
    assert sorted(normal.score for normal in again) == pytest.approx(stored.scores, abs=1e-3)
    assert sorted(normal.map_max for normal in again) == pytest.approx(stored.map_maxima, abs=1e-3)


def test_evaluating_with_tiles(tiled: Path, large_set: Path, tmp_path: Path) -> None:
    root = tmp_path / "more"
    for kind, defect in (("good", False), ("bad", True)):
        (root / kind).mkdir(parents=True)
        for i in range(4):
            image, mask = large(50 + i, defect=defect)
            Image.fromarray(image).save(root / kind / f"{i}.png")
            if defect:
                (root / "masks").mkdir(exist_ok=True)
                Image.fromarray(mask.astype(np.uint8) * 255).save(root / "masks" / f"{i}.png")
    assert main(["evaluate", str(tiled), str(root), "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out/results.json").read_text())["cells"][0]["metrics"]
    assert found["image_auroc"] == 1
    assert found["pixel_auroc"] > 0.95
    assert (tmp_path / "out/report.html").exists()


def test_the_score_is_that_of_the_strangest_tile(tiled: Path) -> None:
    scorer = bgad.load(tiled)
    image, _ = large(8, defect=True)
    whole = scorer.score(image)
    parts = [image[top:bottom, left:right] for left, top, right, bottom in boxes(image.shape[:2], scorer.tile)]
    assert whole.score == pytest.approx(max(s.score for s in scorer.score_many(parts)), abs=1e-4)
    shapes_of = [s.map.shape for s in scorer.score_many(parts)]
    assert shapes_of == [(SIZE, SIZE)] * 9


def test_a_defect_is_as_strange_on_a_border_as_inside(tiled: Path) -> None:
    """Moved across the border between two tiles, it is found where it is, about as strange everywhere."""
    scorer = bgad.load(tiled)
    y, x = np.mgrid[:WIDE, :WIDE]
    plain, _ = large(9, defect=False)
    peaks, good = [], float(scorer.score(plain).map.max())
    for centre in range(40, 121, 8):  # tiles begin at 0, 48 and 96 and end at 64, 112 and 160
        image = plain.copy()
        image[(y - 32) ** 2 + (x - centre) ** 2 < 8**2] -= 90
        found = scorer.score(image).map
        row, column = np.unravel_index(found.argmax(), found.shape)
        assert abs(row - 32) < 16
        assert abs(column - centre) < 16
        peaks.append(float(found.max()) - good)
    assert min(peaks) > 0.5 * max(peaks)


def test_small_images_among_large_ones(tiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(large(1, defect=False)[0]).save(tmp_path / "a.png")
    Image.new("L", (100, 20)).save(tmp_path / "b.png")
    assert main(["predict", str(tiled), str(tmp_path)]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["error"] is None
    assert rows[1]["error"] == f"{tmp_path / 'b.png'}: 100x20 pixels are less than a tile of 64x64: use smaller tiles"


def test_tiles_for_a_model_that_was_trained_without(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, mask = large(8, defect=True)
    Image.fromarray(image[: 2 * SIZE, : 2 * SIZE]).save(tmp_path / "a.png")
    assert main(["predict", str(model), str(tmp_path / "a.png"), "--tile", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "the threshold was not calibrated with tiles of 64 pixels" in " ".join(said.err.split())
    assert json.loads(said.out)["is_anomaly"]
    with Image.open(tmp_path / "out/a.map.tif") as opened:
        found = np.asarray(opened)
    assert found.shape == (2 * SIZE, 2 * SIZE)
    assert mask[np.unravel_index(found.argmax(), found.shape)]
    assert main(["predict", str(model), str(tmp_path / "a.png"), "--tile", "31"]) == 2
    assert "'31' must be a whole number, 32 or more" in capsys.readouterr().err


def test_what_cannot_be_cut(tiled: Path, large_set: Path, data_set: Path, tmp_path: Path) -> None:
    config = from_dict({"tile": {"size": 80}, "train": {"steps": 2, "push_steps": 1}}, tiny_config())
    with pytest.raises(DataError, match=r"train/good/000\.png: 64x64 pixels are less than a tile of 80x80.*leave out"):
        bgad.train(data_set, tmp_path / "a.bgad", config=config, options=bgad.TrainOptions(device="cpu"))
    mixed = tmp_path / "mixed"
    shutil.copytree(large_set, mixed)
    split = model_folder.read(tiled).split["images"]
    for name in [image["name"] for image in split if image["role"] == "calibration"]:
        Image.new("L", (70, 70)).save(mixed / name)
    with pytest.raises(DataError, match="70x70 pixels are less than a tile of 80x80"):  # before it trains
        bgad.train(mixed, tmp_path / "c.bgad", config=config, options=bgad.TrainOptions(device="cpu"))
    recipes = {name: replace(preset_for(name, None), tile=config.tile) for name in TABLES["main"].methods}
    with pytest.raises(ConfigError, match=r"a benchmark does not cut tiles"):
        run_benchmark(TABLES["main"], tmp_path / "b", configs=recipes)
    with pytest.raises(ConfigError, match=r"tile\.size must be 0, or at least 32"):
        from_dict({"tile": {"size": 31}})
    with pytest.raises(ConfigError, match=r"tile\.overlap must be 0 to 0\.75"):
        from_dict({"tile": {"overlap": 0.8}})


def test_warnings(
    large_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiled_split, "MAX_TILES", 30)
    short = {"tile": {"size": 64}, "train": {"steps": 2, "push_steps": 1}, "pseudo": {"count": 2}}
    config = from_dict(short, tiny_config())
    detector = bgad.train(
        large_set, tmp_path / "a.bgad", config=config, options=bgad.TrainOptions(device="cpu", export=False)
    )
    assert isinstance(detector, Detector)
    said = " ".join(capsys.readouterr().err.split())
    assert "30 of 72 normal tiles are used for training" in said
    assert "1 known anomalies have no mask and are not used for training" in said
    assert not isinstance(detector.score_many([large(3, defect=False)[0]])[0], BgadError)
