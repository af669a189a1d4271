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

from bgad.backbone import Backbone
from bgad.device import Workers
from bgad.types import FloatArray

HALF_MAX = 65_000.0  # float16 ends at 65,504
BATCH = 8
AHEAD = 16  # batches that may be computed before they are stored

HalfArray = npt.NDArray[np.float16]


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


class FeatureStore:
    """Features of `count` images: per level an array (images, positions, channels)."""

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
        self.grids, self.count, self.done = grids, count, 0
        shapes = [(count, h * w, c) for (h, w), c in zip(grids, channels, strict=True)]
        size = sum(2 * int(np.prod(shape)) for shape in shapes)
        self.on_disk = not budget.take(size)
        self.levels: list[HalfArray]
        if not self.on_disk:
            self.levels = [np.zeros(shape, np.float16) for shape in shapes]
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
        self.levels = [_mapped(folder / f"level{i}.npy", shape, new=not again) for i, shape in enumerate(shapes)]

    def fill(
        self,
        backbone: Backbone,
        pictures: Callable[[int], FloatArray],
        device: torch.device,
        advance: Callable[[int], None],
    ) -> None:
        """Compute what is missing; `pictures(i)` gives image i at the model's size."""

        def batch(part: slice) -> tuple[slice, list[HalfArray]]:
            return part, extract(backbone, [pictures(i) for i in range(part.start, part.stop)], device)

        advance(self.done)
        workers = Workers(os.cpu_count() or 1, device)
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

    def moments(self, level: int) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of each channel over all images and positions."""
        data = self.levels[level]
        total = np.zeros(data.shape[2], np.float64)
        square = np.zeros(data.shape[2], np.float64)
        for start in range(0, self.count, 64):
            x = data[start : start + 64].reshape(-1, data.shape[2]).astype(np.float32)
            total += x.sum(0, dtype=np.float64)
            square += np.einsum("nc,nc->c", x, x, dtype=np.float64)
        n = self.count * data.shape[1]
        mean = total / n
        std = np.sqrt(np.maximum(square / n - mean**2, 1e-12))
        std = np.maximum(std, 1e-3 * std.mean())  # a channel that is constant on normals must not decide alone
        return mean.astype(np.float32), std.astype(np.float32)


def extract(backbone: Backbone, batch: list[FloatArray], device: torch.device) -> list[HalfArray]:
    """Feature rows (images, positions, channels) of each level."""
    with torch.inference_mode():
        maps = backbone(torch.from_numpy(np.stack(batch)).to(device))
        rows = [m.flatten(2).transpose(1, 2).clamp(-HALF_MAX, HALF_MAX) for m in maps]  # (B, h * w, C)
        return [r.half().cpu().numpy() for r in rows]


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
