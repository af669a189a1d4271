"""The feature cache; features by ONNX Runtime are those of torch, and where they would not be, torch gives them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bgad.config import BackboneConfig
from bgad.features import cache
from bgad.features.cache import AHEAD, BATCH, Budget, Extractor, FeatureStore, HalfArray, by_torch, chunks
from bgad.model import backbone
from bgad.model.device import WorkerPool
from bgad.types import FloatArray

GRIDS, CHANNELS = [(4, 4), (2, 2)], [3, 5]
IMAGE_BYTES = 2 * (16 * 3 + 4 * 5)
CPU = torch.device("cpu")


class Net:
    """Stands in for a backbone: averages pixels to the grids and mixes the colours to more channels."""

    def __call__(self, pixels: Tensor) -> list[Tensor]:
        maps = []
        for (h, w), channels in zip(GRIDS, CHANNELS, strict=True):
            pooled = torch.nn.functional.adaptive_avg_pool2d(pixels.permute(0, 3, 1, 2), (h, w))
            mix = torch.arange(1.0, 3 * channels + 1).view(channels, 3)
            maps.append(torch.einsum("bchw,kc->bkhw", pooled, mix))
        return maps


NET: Any = Net()


def features(batch: list[FloatArray]) -> list[HalfArray]:
    return by_torch(NET, batch, CPU)


def picture(i: int) -> FloatArray:
    return np.random.default_rng(i).random((8, 8, 3), dtype=np.float32)


def store(count: int, folder: Path, budget: float = 0, key: str = "a") -> FeatureStore:
    return FeatureStore(count, GRIDS, CHANNELS, budget=Budget(budget), folder=folder, key=key)


def filled(count: int, folder: Path, budget: float = 0) -> FeatureStore:
    made = store(count, folder, budget)
    made.fill(features, picture, CPU, lambda _: None)
    return made


def test_workers_are_as_many_as_the_cores_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def recorded(pieces: int, device: torch.device) -> WorkerPool:
        asked.append(pieces)
        return WorkerPool(pieces, device)

    monkeypatch.setattr(cache, "WorkerPool", recorded)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    filled(2, tmp_path)
    assert asked == [1]


def test_budget_is_taken_once() -> None:
    budget = Budget(100)
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.take(40)
    assert not budget.take(1)


def test_rows_are_positions_in_reading_order() -> None:
    maps = NET(torch.from_numpy(picture(3)[None]))
    rows = by_torch(NET, [picture(3)], CPU)
    assert [r.shape for r in rows] == [(1, 16, 3), (1, 4, 5)]
    assert rows[0].dtype == np.float16
    expected = maps[0][0, :, 1, 2].numpy()  # row 1, column 2 of a grid that is 4 wide
    np.testing.assert_allclose(rows[0][0, 6], expected, rtol=1e-3)


def test_values_beyond_half_precision_stay_finite() -> None:
    loud: Any = lambda pixels: [pixels.permute(0, 3, 1, 2) * 1e6]  # noqa: E731
    rows = by_torch(loud, [np.array([[[1.0, -1.0, 1e-3]]], np.float32)], CPU)
    np.testing.assert_allclose(rows[0][0, 0].astype(np.float64), [65_000, -65_000, 1000], rtol=1e-3)


def test_beyond_the_budget_on_disk_with_the_same_numbers(tmp_path: Path) -> None:
    budget = Budget(10 * IMAGE_BYTES)
    first = FeatureStore(10, GRIDS, CHANNELS, budget=budget, folder=tmp_path / "first")
    second = FeatureStore(21, GRIDS, CHANNELS, budget=budget, folder=tmp_path / "second")
    assert not first.on_disk
    assert not (tmp_path / "first").exists()
    assert second.on_disk
    assert all(isinstance(level, np.memmap) for level in second.levels)
    second.fill(features, picture, CPU, lambda _: None)
    memory = filled(21, tmp_path / "none", budget=1e9)
    assert not memory.on_disk
    for a, b in zip(memory.levels, second.levels, strict=True):
        assert np.array_equal(a, b)
        assert a.any(axis=(1, 2)).all()
    on_disk = np.load(tmp_path / "second/level1.npy")
    assert np.array_equal(on_disk, memory.levels[1])


def test_progress_adds_up(tmp_path: Path) -> None:
    steps: list[int] = []
    store(21, tmp_path, 1e9).fill(features, picture, CPU, steps.append)
    assert sum(steps) == 21


def test_an_interrupted_fill_goes_on_where_it_stopped(tmp_path: Path) -> None:
    broken = 2 * BATCH + 3

    def failing(i: int) -> FloatArray:
        if i == broken:
            raise KeyboardInterrupt
        return picture(i)

    stopped = store(40, tmp_path / "disk")
    with pytest.raises(KeyboardInterrupt):
        stopped.fill(features, failing, CPU, lambda _: None)
    assert stopped.done == 2 * BATCH
    del stopped

    asked: list[int] = []
    steps: list[int] = []

    def counted(i: int) -> FloatArray:
        asked.append(i)
        return picture(i)

    again = store(40, tmp_path / "disk")
    again.fill(features, counted, CPU, steps.append)
    assert sorted(asked) == list(range(2 * BATCH, 40))
    assert sum(steps) == 40
    for a, b in zip(again.levels, filled(40, tmp_path / "whole").levels, strict=True):
        assert np.array_equal(a, b)
    asked.clear()
    store(40, tmp_path / "disk").fill(features, counted, CPU, lambda _: None)
    assert asked == []


def test_another_run_does_not_take_the_features_over(tmp_path: Path) -> None:
    filled(20, tmp_path)
    assert store(20, tmp_path).done == 20
    assert store(20, tmp_path, key="b").done == 0
    # the files are empty now: the first run must not believe in its old note
    assert store(20, tmp_path).done == 0
    filled(20, tmp_path)
    assert store(19, tmp_path).done == 0


def test_not_much_is_computed_ahead(tmp_path: Path) -> None:
    asked: list[int] = []
    ahead: list[int] = []
    made = store(3 * AHEAD * BATCH, tmp_path, 1e9)

    def counted(i: int) -> FloatArray:
        asked.append(i)
        return picture(i)

    made.fill(features, counted, CPU, lambda _: ahead.append(len(asked) - made.done))
    assert max(ahead) <= AHEAD * BATCH


def test_a_full_disk_is_an_error_before_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        store(20, tmp_path)


def test_moments_are_those_of_numpy(tmp_path: Path) -> None:
    made = filled(70, tmp_path, 1e9)  # more than one piece of 64
    made.levels[0][:, :, 1] += np.float16(100)  # a large mean must not eat the spread
    made.levels[0][:, :, 2] = 0.25
    for level in range(2):
        mean, std = made.moments(level)
        exact = made.levels[level].astype(np.float64)
        np.testing.assert_allclose(mean, exact.mean((0, 1)), rtol=1e-6)
        spread = np.maximum(exact.std((0, 1)), 1e-6)
        np.testing.assert_allclose(std, np.maximum(spread, 1e-3 * spread.mean()), rtol=1e-4)
    some = np.array([0, 3])
    np.testing.assert_allclose(made.moments(1, some)[0], made.levels[1][:, some].mean((0, 1), np.float64), rtol=1e-6)
    assert made.moments(0)[1][2] > 0  # a channel that never moves can still be divided by


@pytest.mark.parametrize("budget", [0, 1e9])
def test_a_selection_reads_what_it_selects_and_copies_nothing(tmp_path: Path, budget: float) -> None:
    made = filled(70, tmp_path, budget)
    chosen = [5, 69, 0, 33, *range(40, 60)]
    some = made.select(chosen)
    assert some.count == 24
    assert all(a is b for a, b in zip(some.levels, made.levels, strict=True))
    image, position = np.array([[1], [3]]), np.array([2, 0])
    np.testing.assert_array_equal(some.rows(1, image, position), made.levels[1][[[69], [33]], position])
    assert some.rows(0, np.array([0, 2])).dtype == np.float32
    np.testing.assert_array_equal(some.select([3, 1]).rows(0, np.arange(2)), made.levels[0][[33, 69]])
    alone = made.levels[0][chosen].astype(np.float64)
    mean, std = some.moments(0)
    np.testing.assert_allclose(mean, alone.mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(std, alone.std((0, 1)), rtol=1e-4)


def test_chunks_cover_everything_once() -> None:
    assert [list(range(20))[part] for part in chunks(20, 8)] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 20)),
    ]
    assert list(chunks(0, 8)) == []


SIZE = 64


@pytest.fixture(scope="module")
def net() -> backbone.Backbone:
    return backbone.build(BackboneConfig(size=SIZE))


def images(count: int) -> list[FloatArray]:
    rng = np.random.default_rng(0)
    return [rng.random((SIZE, SIZE, 3), np.float32) for _ in range(count)]


def test_the_engine_gives_the_features_of_torch(net: backbone.Backbone) -> None:
    fast = Extractor(net, SIZE, CPU)
    assert fast.session is not None
    for count in (1, 3):
        for ours, theirs in zip(fast(images(count)), by_torch(net, images(count), CPU), strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == np.float16
            np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_a_graph_that_says_something_else_is_not_used(net: backbone.Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    class Louder(torch.nn.Module):
        def __init__(self, given: backbone.Backbone, size: int) -> None:
            super().__init__()
            self.given = given

        def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
            return tuple(1.01 * maps for maps in self.given(pixels))

    monkeypatch.setattr(cache, "_Maps", Louder)
    slow = Extractor(net, SIZE, CPU)
    assert slow.session is None
    for ours, theirs in zip(slow(images(2)), by_torch(net, images(2), CPU), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_backbone_without_a_graph_is_run_by_torch(net: backbone.Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(torch.nn.Module):
        def __init__(self, given: backbone.Backbone, size: int) -> None:
            super().__init__()

        def forward(self, pixels: Tensor) -> Any:
            return torch.linalg.eigvals(pixels[..., 0]).real  # ONNX has no such operation

    monkeypatch.setattr(cache, "_Maps", Odd)
    assert Extractor(net, SIZE, CPU).session is None
