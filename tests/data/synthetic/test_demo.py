"""The demo data set: layout, determinism, exact masks, and defects of the intended strength."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from bgad.data.synthetic.demo import GRAIN, LEAST_CHANGE, MARKER, SCENES, confine, draw, grow, write_demo
from bgad.errors import ConfigError, OutputError
from bgad.types import GOOD

CASES = [(category, defect) for category, scene in SCENES.items() for defect in scene.names]
SMALL = {"size": 64, "normals": 3, "test_normals": 2, "per_class": 2}


def rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(list(key))


def hashes(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def pairs(category: str, defect: str, count: int) -> list[tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]]:
    """Return the change that a defect makes to each of `count` scenes, and its mask."""
    return [pair(category, defect, i) for i in range(count)]


@cache  # several tests look at the same scenes
def pair(category: str, defect: str, number: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    anomalous, mask = draw(category, defect, rng(3, number), 256)
    return anomalous.astype(np.int16) - normal(category, number), mask


@cache
def normal(category: str, number: int) -> npt.NDArray[np.uint8]:
    image, mask = draw(category, GOOD, rng(3, number), 256)
    assert not mask.any()
    return image


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo")
    assert write_demo(root, seed=5, **SMALL) == [root / "fabric", root / "washer"]
    return root


def test_layout(small: Path) -> None:
    for category, scene in SCENES.items():
        folder = small / category
        assert len(scene.names) >= 4
        assert sorted(p.name for p in (folder / "test").iterdir()) == sorted([GOOD, *scene.names])
        assert sorted(p.name for p in (folder / "ground_truth").iterdir()) == sorted(scene.names)
        assert sorted(p.name for p in (folder / "train" / GOOD).iterdir()) == [
            "000.png",
            "001.png",
            "002.png",
        ]
        assert len(list((folder / "test" / GOOD).iterdir())) == 2
        for defect in scene.names:
            for i in range(2):
                with Image.open(folder / "test" / defect / f"{i:03d}.png") as image:
                    assert (image.mode, image.size) == ("RGB", (64, 64))
                with Image.open(folder / "ground_truth" / defect / f"{i:03d}_mask.png") as image:
                    values = np.unique(np.asarray(image))
                    assert image.size == (64, 64)
                    assert values.tolist() == [0, 255]
        card = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        assert card["seed"] == 5
        assert "CC0" in card["licence"]
    assert sorted(p.name for p in small.iterdir()) == ["fabric", "washer"]


def test_same_seed_gives_same_bytes_whatever_the_counts(small: Path, tmp_path: Path) -> None:
    write_demo(tmp_path, seed=5, size=64, normals=2, test_normals=1, per_class=1)
    old, new = hashes(small), hashes(tmp_path)
    images = [name for name in new if name.endswith(".png")]
    assert len(images) == 2 * (2 + 1 + 5 * 2)
    assert all(old[name] == new[name] for name in images)


def test_every_image_is_another_one(small: Path, tmp_path: Path) -> None:
    images = {name: digest for name, digest in hashes(small).items() if "ground_truth" not in name}
    assert len(set(images.values())) == len(images)
    write_demo(tmp_path, seed=6, **SMALL)
    assert not set(hashes(tmp_path).values()) & {images[n] for n in images if n.endswith(".png")}


def test_a_complete_set_is_left_alone(small: Path) -> None:
    touched = small / "fabric" / "train" / GOOD / "000.png"
    before = touched.stat().st_mtime_ns
    write_demo(small, seed=5, **SMALL)
    assert touched.stat().st_mtime_ns == before


def test_other_data_is_never_overwritten(small: Path, tmp_path: Path) -> None:
    before = hashes(small)
    with pytest.raises(OutputError, match="fabric holds other data"):
        write_demo(small, seed=6, **SMALL)
    assert hashes(small) == before
    (tmp_path / "washer").mkdir()
    (tmp_path / "washer" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match="washer holds other data"):
        write_demo(tmp_path, **SMALL)
    assert [p.name for p in (tmp_path / "washer").iterdir()] == ["mine.txt"]


def test_an_interrupted_run_is_made_good(small: Path, tmp_path: Path) -> None:
    (tmp_path / ".fabric.partial" / "train").mkdir(parents=True)
    (tmp_path / ".fabric.partial" / "train" / "junk.png").write_bytes(b"half")
    (tmp_path / "washer").mkdir()
    write_demo(tmp_path, seed=5, **SMALL)
    assert hashes(tmp_path) == hashes(small)


@pytest.mark.parametrize("wrong", [{"size": 16}, {"normals": 0}, {"per_class": -1}, {"seed": -1}])
def test_impossible_wishes_are_refused(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        write_demo(tmp_path, **wrong)
    assert not list(tmp_path.iterdir())


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="cannot write"):
        write_demo(tmp_path / "file", **SMALL)


@pytest.mark.parametrize(("category", "defect"), CASES)
def test_masks_hold_the_change_and_nothing_else(category: str, defect: str) -> None:
    for change, mask in pairs(category, defect, 6):
        assert not change[~mask].any()
        assert 30 <= mask.sum() < 0.12 * mask.size
        assert (change[mask] != 0).any(axis=1).mean() > 0.5
        visible = np.abs(change).max(axis=2) > GRAIN[1]
        assert (mask & ~grow(visible, 4)).sum() < 0.02 * mask.sum()  # tight
        assert np.abs(change[mask]).mean() > GRAIN[1]


def test_some_defects_are_subtle_and_some_are_plain() -> None:
    means = {case: [float(np.abs(c[m]).mean()) for c, m in pairs(*case, 6)] for case in CASES}
    values = np.asarray(list(means.values()))
    assert values.min() >= 0.9 * LEAST_CHANGE
    assert np.mean(values < 15) > 0.1
    assert np.mean(values > 25) > 0.2
    assert (values.max(axis=1) / values.min(axis=1) > 1.3).all()  # each class has a range


@pytest.mark.parametrize("category", SCENES)
def test_good_images_vary_in_light_and_grain_but_do_not_saturate(category: str) -> None:
    images = np.stack([draw(category, GOOD, rng(1, i), 128)[0] for i in range(12)]).astype(np.float64)
    assert images.mean(axis=(1, 2, 3)).std() > 1.5
    assert (images[..., 0].mean(axis=(1, 2)) - images[..., 2].mean(axis=(1, 2))).std() > 1
    assert np.mean((images == 0) | (images == 255)) < 0.01
    assert 40 < images.mean() < 180


def test_the_washer_moves_and_turns() -> None:
    scenes = [SCENES["washer"](rng(i), 64) for i in range(20)]
    turns = np.asarray([vars(scene)["turn"] for scene in scenes])
    centres = np.asarray([vars(scene)["centre"] for scene in scenes])
    assert set(np.floor(turns / (np.pi / 2)).astype(int)) == {0, 1, 2, 3}
    assert (centres.std(axis=0) > 1.5).all()


def test_confine_lifts_a_faint_change_and_drops_tails() -> None:
    y, x = np.mgrid[:64, :64]
    spot = 4 * np.exp(-((x - 32) ** 2 + (y - 32) ** 2) / 50)
    change, mask = confine(np.repeat(spot[None], 3, axis=0).astype(np.float32), 2)
    assert np.abs(change[:, mask]).mean() == pytest.approx(LEAST_CHANGE, rel=1e-3)
    assert not change[:, ~mask].any()
    assert mask[32, 32]
    assert not mask[32, 45]


def test_grow_is_a_square_and_closing_joins_neighbours() -> None:
    mask = np.zeros((20, 20), np.bool_)
    mask[5, 5] = mask[5, 9] = True
    assert grow(mask, 0).sum() == 2
    assert grow(mask[:, :8], 1).sum() == 9
    closed = ~grow(~grow(mask, 2), 2)
    assert closed[5, 5:10].all()
    assert closed.sum() == 5
