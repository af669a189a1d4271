"""The feature cache: the frozen backbone runs once per image, training then reads features only.

Half precision; in memory while the budget lasts, in memory-mapped files beyond it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bgad.io.cpus import usable_cpus
from bgad.model.device import Workers
from bgad.types import FloatArray

HALF_MAX = 65_000.0  # float16 ends at 65,504
BATCH = 8
AHEAD = 16  # batches that may be computed before they are stored

HalfArray = npt.NDArray[np.float16]
Index = npt.NDArray[np.int64]


class Budget:
    """Bytes of memory that the caches of one run may take together."""

    def __init__(self, total: float) -> None:
        self.left = total

    def take(self, size: int) -> bool:
        """True, and the bytes are taken, when they still fit."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Features:
    """Features of some images: per level an array (images, positions, channels), and which of its images they are.

    A selection of a selection shares the arrays; nothing is copied before it is read.
    """

    def __init__(self, levels: list[HalfArray], index: Index) -> None:
        self.levels, self.index = levels, index

    @property
    def count(self) -> int:
        """How many images."""
        return len(self.index)

    def select(self, images: npt.ArrayLike) -> Features:
        """These images of ours, in this order."""
        return Features(self.levels, self.index[np.asarray(images, np.int64)])

    def rows(self, level: int, image: Index, position: Index | slice = slice(None)) -> FloatArray:
        """Features at broadcast indices, or of whole images; the last axis is the channels."""
        return self.levels[level][self.index[image], position].astype(np.float32)

    def moments(self, level: int, at: Index | None = None) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of each channel over all images, at all positions or at some."""
        positions, channels = self.levels[level].shape[1:]
        at = np.arange(positions) if at is None else at
        total, square = np.zeros(channels, np.float64), np.zeros(channels, np.float64)
        for part in chunks(self.count, 64):
            x = self.rows(level, np.arange(part.start, part.stop))[:, at].reshape(-1, channels)
            total += x.sum(0, dtype=np.float64)
            square += np.einsum("nc,nc->c", x, x, dtype=np.float64)
        n = self.count * len(at)
        mean = total / n
        std = np.sqrt(np.maximum(square / n - mean**2, 1e-12))
        std = np.maximum(std, 1e-3 * std.mean())  # a channel that is constant on normals must not decide alone
        return mean.astype(np.float32), std.astype(np.float32)


class FeatureStore(Features):
    """Where the features of `count` images are computed and kept."""

    def __init__(
        self,
        count: int,
        grids: list[tuple[int, int]],
        channels: list[int],
        *,
        budget: Budget,
        folder: Path,
        key: str = "",
    ) -> None:
        self.done = 0
        shapes = [(count, h * w, c) for (h, w), c in zip(grids, channels, strict=True)]
        size = sum(2 * int(np.prod(shape)) for shape in shapes)
        self.on_disk = not budget.take(size)
        if not self.on_disk:
            super().__init__([np.zeros(shape, np.float16) for shape in shapes], np.arange(count))
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._note = folder / "store.json"
        mark = {"key": key, "shapes": [list(shape) for shape in shapes]}
        known = json.loads(self._note.read_text()) if self._note.exists() else {}
        again = {k: known.get(k) for k in mark} == mark
        self._mark = mark
        self.done = int(known["done"]) if again else 0
        if not again:
            self._note.unlink(missing_ok=True)  # before the files that it speaks of are emptied
        maps = [_mapped(folder / f"level{i}.npy", shape, new=not again) for i, shape in enumerate(shapes)]
        super().__init__(maps, np.arange(count))

    def fill(
        self,
        extract: Callable[[list[FloatArray]], list[HalfArray]],
        pictures: Callable[[int], FloatArray],
        device: torch.device,
        advance: Callable[[int], None],
    ) -> None:
        """Compute what is missing; `pictures(i)` gives image i at the model's size, `extract` the features of some."""

        def batch(part: slice) -> tuple[slice, list[HalfArray]]:
            return part, extract([pictures(i) for i in range(part.start, part.stop)])

        advance(self.done)
        workers = Workers(usable_cpus(), device)
        parts = [slice(p.start + self.done, p.stop + self.done) for p in chunks(self.count - self.done, BATCH)]
        for some in chunks(len(parts), AHEAD):
            for part, maps in workers.stream(batch, parts[some]):
                for level, values in zip(self.levels, maps, strict=True):
                    level[part] = values
                self.done = part.stop
                if self.on_disk:
                    self._remember()
                advance(part.stop - part.start)

    def _remember(self) -> None:
        """Write down how far we are, once the features themselves are written."""
        for level in self.levels:
            level.flush()  # type: ignore[attr-defined]
        fresh = self._note.with_suffix(".new")
        fresh.write_text(json.dumps(self._mark | {"done": self.done}))
        fresh.replace(self._note)


def _mapped(path: Path, shape: tuple[int, ...], *, new: bool) -> HalfArray:
    """A memory-mapped array; a new one takes its room on the disk at once, so that a full one is an error, no crash."""
    array: HalfArray = np.lib.format.open_memmap(path, mode="w+" if new else "r+", dtype=np.float16, shape=shape)
    if new and hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def chunks(count: int, size: int) -> Iterable[slice]:
    """Slices that cover range(count)."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def even_pick(count: int, most: int) -> Index:
    """At most so many numbers below `count`, evenly.

    >>> even_pick(10, 3).tolist(), even_pick(3, 64).tolist()
    ([0, 4, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
