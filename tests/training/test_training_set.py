"""Regions to ignore, and the features that training gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bgad.data import layouts
from bgad.data.sample_io import ImageCache, read_mask
from bgad.data.split import Split, make_split
from bgad.errors import DataError
from bgad.io.masks import defect_cells, touched_cells
from bgad.methods.checkpoint import run_key
from bgad.model import backbone as backbones
from bgad.model.scoring import LevelModel
from bgad.pseudo.generate import PseudoAnomaly
from bgad.training.training_set import CacheOptions, PseudoSeries, TrainingSet, build_training_set
from bgad.types import Sample
from tests.conftest import SIZE, save, tiny_config, write_set

CPU = torch.device("cpu")
CORNER = np.zeros((SIZE, SIZE), bool)
CORNER[:24, :24] = True


def glaring(sample: Sample, path: Path) -> Path:
    """The image with black and white stripes in its corner."""
    pixels = np.array(Image.open(sample.path))
    pixels[CORNER] = np.where(np.indices((SIZE, SIZE))[0] % 4 < 2, 255, 0)[CORNER][:, None]
    return save(path, pixels)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    """Of its normals, the first has something glaring in the corner; of its anomalies, the first two."""
    whole = make_split(layouts.load(write_set(tmp_path / "plate")), seed=0, known=4, holdout=4)

    def bad(index: int, mask: Path | None) -> Sample:
        sample = whole.known[index]
        return replace(sample, path=glaring(sample, tmp_path / f"bad{index}.png"), mask=mask)

    everywhere = CORNER.copy()
    everywhere[40:60, 40:60] = True  # somebody marked both
    first = replace(whole.train[0], path=glaring(whole.train[0], tmp_path / "good.png"))
    known = [bad(0, save(tmp_path / "mask.png", everywhere)), bad(1, None), *whole.known[2:]]
    return replace(whole, train=[first, *whole.train[1:]], known=known)


def ignoring(split: Split, file: Path) -> Split:
    train = [replace(split.train[0], ignore=file), *split.train[1:]]
    known = [*(replace(s, ignore=file) for s in split.known[:2]), *split.known[2:]]
    return replace(split, train=train, known=known)


def prepared(split: Split, work: Path, *, memory: float = 1.0, **values: Any) -> tuple[LevelModel, TrainingSet]:
    config = tiny_config(**values)
    model = LevelModel(config, backbones.build(config.backbone))
    return model, build_training_set(model, split, ImageCache(SIZE), CPU, CacheOptions(work, "key", memory))


@pytest.mark.parametrize("memory", [1.0, 0.0])
def test_what_is_ignored_is_neither_learnt_nor_pushed(split: Split, tmp_path: Path, memory: float) -> None:
    file = save(tmp_path / "ignore.png", CORNER)
    model, before = prepared(split, tmp_path / "a", memory=memory)
    for _ in range(2):  # and so it is where the features on the disk are used again
        _, after = prepared(ignoring(split, file), tmp_path / "b", memory=memory)
    was, now = before.anomalies[0], after.anomalies[0]
    assert not now.pseudo
    for level, grid in enumerate(model.grids):
        at = touched_cells(CORNER, grid)
        rest = np.setdiff1d(np.arange(grid[0] * grid[1]), at)
        normals, own = after.normals.levels[level], before.normals.levels[level]
        assert 0 < len(at) < grid[0] * grid[1]
        assert not np.array_equal(own[0, at], own[1, at])
        np.testing.assert_array_equal(normals[0, at], own[1, at])  # of another normal
        np.testing.assert_array_equal(normals[0, rest], own[0, rest])
        np.testing.assert_array_equal(normals[1:], own[1:])
        assert np.isin(at, was.cells[level][0]).any()
        marked = read_mask(ignoring(split, file).known[0])
        assert marked is not None
        np.testing.assert_array_equal(now.cells[level][0], defect_cells(marked, grid))
        assert not np.isin(now.cells[level][0], at).all()
        for number in (0, 1):
            left_out = np.setdiff1d(at, now.cells[level][number]) if number == 0 else at
            kept = np.setdiff1d(np.arange(grid[0] * grid[1]), left_out)
            np.testing.assert_array_equal(now.features.levels[level][number, left_out], own[1 + number, left_out])
            np.testing.assert_array_equal(
                now.features.levels[level][number, kept], was.features.levels[level][number, kept]
            )
        np.testing.assert_array_equal(now.features.levels[level][2:], was.features.levels[level][2:])


@pytest.mark.parametrize("method", ["rpag", "nsa"])
def test_pseudo_anomalies_use_normals_without_a_region_to_ignore(
    split: Split, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    make = PseudoSeries.make

    def watched(self: PseudoSeries, index: int) -> PseudoAnomaly:
        seen.update(s.name for s in self.normals)
        return make(self, index)

    monkeypatch.setattr(PseudoSeries, "make", watched)
    shown = ignoring(split, save(tmp_path / "ignore.png", CORNER))
    prepared(shown, tmp_path / "a", pseudo={"count": 2, "method": method})
    assert seen == {s.name for s in split.train[1:]}


def test_normals_that_all_have_something_to_ignore(split: Split, tmp_path: Path) -> None:
    file = save(tmp_path / "ignore.png", CORNER)
    everyone = replace(split, train=[replace(s, ignore=file) for s in split.train])
    with pytest.raises(DataError, match="every normal has a region to ignore"):
        prepared(everyone, tmp_path / "a")


def test_another_region_is_another_run(split: Split, tmp_path: Path) -> None:
    file = save(tmp_path / "ignore.png", CORNER)
    config = tiny_config()
    first, second = run_key(config, split, CPU), run_key(config, ignoring(split, file), CPU)
    save(file, ~CORNER)
    assert len({first, second, run_key(config, ignoring(split, file), CPU)}) == 3
