from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bgad.errors import DataError, OutputError
from bgad.features import cache
from bgad.features.cache import Budget, FeatureStore
from bgad.methods.checkpoint import RUN_FILE, check_work_folder, unfinished, work_folder

GRIDS, CHANNELS = [(2, 2), (1, 1)], [3, 5]


def levels(images: range) -> list[np.ndarray]:
    """Features that say which image, level and channel they belong to."""
    return [
        np.stack([np.full((h * w, c), 10 * i + level, np.float16) for i in images])
        for level, ((h, w), c) in enumerate(zip(GRIDS, CHANNELS, strict=True))
    ]


@pytest.mark.parametrize("memory", [1e9, 0])
def test_a_store_takes_shards_and_computes_the_rest(
    memory: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SHARD_IMAGES", 4)
    for first in (0, 4, 12):  # the third one is missing: what follows it cannot be taken
        cache.write_shard(cache.shard_file(tmp_path, "key", first), levels(range(first, first + 4)))
    cache.write_shard(cache.shard_file(tmp_path, "other", 8), levels(range(8, 12)))
    assert list(cache.missing_shards(tmp_path, "key", 18)) == [slice(8, 12), slice(16, 18)]
    store = FeatureStore(18, GRIDS, CHANNELS, budget=Budget(memory), folder=tmp_path, key="key")
    store.take(cache.available_shards(tmp_path, "key", store.done))
    assert store.done == 8
    computed: list[int] = []

    def extract(batch: list[np.ndarray]) -> list[np.ndarray]:
        numbers = [int(image[0]) for image in batch]
        computed.extend(numbers)
        return levels(range(numbers[0], numbers[-1] + 1))

    advanced: list[int] = []
    store.fill(extract, lambda i: np.array([i], np.float32), torch.device("cpu"), advanced.append)
    assert sorted(computed) == list(range(8, 18))
    assert sum(advanced) == 18
    for stored, expected in zip(store.levels, levels(range(18)), strict=True):
        np.testing.assert_array_equal(stored, expected)


@pytest.mark.parametrize("damage", ["nonsense", "truncated", "empty", "a flipped bit"])
def test_a_damaged_shard_is_named(damage: str, tmp_path: Path) -> None:
    file = cache.shard_file(tmp_path, "key", 0)
    cache.write_shard(file, levels(range(4)))
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[content.index(b"NUMPY") + 130] ^= 1
    damaged = {"nonsense": b"PK nothing", "truncated": content[:-40], "empty": b"", "a flipped bit": bytes(flipped)}
    file.write_bytes(damaged[damage])
    with pytest.raises(DataError, match=r"key-00000000\.npz: cannot be read: .*delete it"):
        next(cache.available_shards(tmp_path, "key", 0))


def test_shards_are_taken_where_a_run_was_stopped_inside_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHARD_IMAGES", 4)
    for first in (0, 4, 8):
        cache.write_shard(cache.shard_file(tmp_path, "key", first), levels(range(first, min(first + 4, 10))))
    store = FeatureStore(10, GRIDS, CHANNELS, budget=Budget(0), folder=tmp_path, key="key")
    store.take([(0, levels(range(6)))])  # a run on one machine was stopped after 6 images
    taken = FeatureStore(10, GRIDS, CHANNELS, budget=Budget(0), folder=tmp_path, key="key")
    assert taken.done == 6
    taken.take(cache.available_shards(tmp_path, "key", taken.done))
    assert taken.done == 10
    for stored, expected in zip(taken.levels, levels(range(10)), strict=True):
        np.testing.assert_array_equal(stored, expected)


def test_a_run_that_left_shards_can_be_resumed(tmp_path: Path) -> None:
    out = tmp_path / "a.bgad"
    work = work_folder(out)
    work.mkdir()
    (work / RUN_FILE).write_text('{"key": "key"}')
    assert not unfinished(out)
    check_work_folder(out, resume=False)
    cache.write_shard(cache.shard_file(work / "normals", "key", 0), levels(range(4)))
    assert unfinished(out)
    with pytest.raises(OutputError, match="go on with --resume"):  # rather than delete what was computed
        check_work_folder(out, resume=False)
    check_work_folder(out, resume=True)
