"""The feature cache: the frozen backbone runs once per image, and training reads cached features only.

Features are kept in half precision, in memory while the budget lasts and in memory-mapped files beyond it. The
backbone runs on the fastest engine that gives the features of torch. On a CPU that is ONNX Runtime, which takes less
than half of torch's time. Torch runs the backbone on accelerators, and where the graph cannot be exported or gives
other features.

Other processes may compute features before a training, as shards: files with the features of consecutive images. A
training takes the shards of its own fingerprint in place of running the backbone. A shard appears when it is complete,
so that a run that was stopped computes only what is missing.
"""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor, nn

from bgad.errors import DataError, cause
from bgad.export.export import synthetic_images
from bgad.export.onnx import export_graph, fix_padding
from bgad.inference.onnx_engine import CPU, PIXELS, session_options
from bgad.io.cpus import usable_cpus
from bgad.io.files import write_atomic
from bgad.model.backbone import Backbone
from bgad.model.device import WorkerPool
from bgad.types import BoolArray, FloatArray, Index

HALF_MAX = 65_000.0  # the largest finite float16 is 65,504
BATCH = 8  # images that one worker extracts at a time
AHEAD = 16  # batches that may be computed before they are stored; bounds the memory
TOLERANCE = 2.0**-11  # of a map's largest value: the resolution of half precision, in which features are cached

SHARD_FILES = "shards/*.npz"  # in the folder of a store
SHARD_IMAGES = 64 * BATCH  # whole batches: a shard then holds the bits that one machine computes

HalfArray = npt.NDArray[np.float16]


class Extractor:
    """Runs the backbone on images of one size; may be called from many threads, each of which uses one core."""

    def __init__(self, backbone: Backbone, size: int, device: torch.device) -> None:
        self.backbone, self.device = backbone, device
        self.session = _session(backbone, size) if device.type == "cpu" else None

    def __call__(self, batch: list[FloatArray]) -> list[HalfArray]:
        """Return the feature rows (images, positions, channels) of each stride."""
        if self.session is None:
            return by_torch(self.backbone, batch, self.device)
        return [_rows(torch.from_numpy(maps)) for maps in self.session.run(None, {PIXELS: np.stack(batch)})]


def by_torch(backbone: Backbone, batch: list[FloatArray], device: torch.device) -> list[HalfArray]:
    """Return the feature rows (images, positions, channels) of each stride, computed by torch."""
    with torch.inference_mode():
        return [_rows(maps) for maps in backbone(torch.from_numpy(np.stack(batch)).to(device))]


def _rows(maps: Tensor) -> HalfArray:
    rows = maps.flatten(2).transpose(1, 2).clamp(-HALF_MAX, HALF_MAX)  # (B, h * w, C)
    half: HalfArray = rows.half().cpu().numpy()
    return half


class _Maps(nn.Module):
    def __init__(self, backbone: Backbone, size: int) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        fix_padding(self.backbone, size)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(pixels))


def graph(backbone: Backbone, size: int) -> bytes:
    """Export the backbone alone as an ONNX graph for any number of images at a time; ModelError where that fails."""
    return export_graph(_Maps(backbone, size), size, dynamic_axes={PIXELS: {0: "images"}})


def _session(backbone: Backbone, size: int) -> Any:
    """Return a session that gives the features of torch, or None."""
    try:
        session = onnxruntime.InferenceSession(graph(backbone, size), session_options(1), providers=[CPU])
        pixels = np.stack(synthetic_images(size)[::4])
        maps = session.run(None, {PIXELS: pixels})
        with torch.inference_mode():
            expected = [m.numpy() for m in backbone(torch.from_numpy(pixels))]
        same = all(np.abs(a - b).max() <= TOLERANCE * np.abs(b).max() for a, b in zip(maps, expected, strict=True))
    except Exception:  # noqa: BLE001 - errors of the two exporters have no common class, and torch can run the backbone
        return None
    return session if same else None


class Budget:
    """The memory in bytes that the caches of one run share."""

    def __init__(self, total: float) -> None:
        self.left = total

    def take(self, size: int) -> bool:
        """Reserve `size` bytes; return whether they were left."""
        if size > self.left:
            return False
        self.left -= size
        return True


class Features:
    """Cached features of images: one array (images, positions, channels) for each level, and an index into them.

    A selection shares the arrays; features are copied only when they are read.
    """

    def __init__(self, levels: list[HalfArray], index: Index) -> None:
        self.levels, self.index = levels, index

    @property
    def count(self) -> int:
        """Return the number of images."""
        return len(self.index)

    def select(self, images: npt.ArrayLike) -> Features:
        """Return the features of these images, in this order."""
        return Features(self.levels, self.index[np.asarray(images, np.int64)])

    def rows(self, level: int, image: Index, position: Index | slice = slice(None)) -> FloatArray:
        """Return features in float32 at broadcast indices, or at all positions; the last axis is the channels."""
        return self.levels[level][self.index[image], position].astype(np.float32)

    def moments(self, level: int, at: Index | None = None) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of each channel over all images, at all positions or those of `at`."""
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
        std = np.maximum(std, 1e-3 * std.mean())  # a channel that hardly varies on normals must not decide alone
        return mean.astype(np.float32), std.astype(np.float32)


class FeatureStore(Features):
    """Computes and keeps the features of `count` images.

    `key` identifies the images and the backbone: files in `folder` with another key are not reused.
    """

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
        self._identity = {"key": key, "shapes": [list(shape) for shape in shapes]}
        stored = json.loads(self._note.read_text()) if self._note.exists() else {}
        reuse = {k: stored.get(k) for k in self._identity} == self._identity
        self.done = int(stored["done"]) if reuse else 0
        if not reuse:
            self._note.unlink(missing_ok=True)  # before the files that it describes are emptied
        maps = [_mapped(folder / f"level{i}.npy", shape, new=not reuse) for i, shape in enumerate(shapes)]
        super().__init__(maps, np.arange(count))

    def take(self, parts: Iterable[tuple[int, list[HalfArray]]]) -> None:
        """Store features that were computed elsewhere: of consecutive images, from the first that is missing on."""
        for first, maps in parts:
            self._keep(slice(first, first + len(maps[0])), maps)

    def fill(
        self,
        extract: Callable[[list[FloatArray]], list[HalfArray]],
        read_image: Callable[[int], FloatArray],
        device: torch.device,
        advance: Callable[[int], None],
    ) -> None:
        """Compute the features that are missing; `read_image(i)` returns image i at the model's input size."""

        def batch(part: slice) -> tuple[slice, list[HalfArray]]:
            return part, extract([read_image(i) for i in range(part.start, part.stop)])

        advance(self.done)
        workers = WorkerPool(usable_cpus(), device)
        parts = [slice(p.start + self.done, p.stop + self.done) for p in chunks(self.count - self.done, BATCH)]
        for window in chunks(len(parts), AHEAD):
            for part, maps in workers.stream(batch, parts[window]):
                self._keep(part, maps)
                advance(part.stop - part.start)

    def _keep(self, part: slice, maps: list[HalfArray]) -> None:
        for level, values in zip(self.levels, maps, strict=True):
            level[part] = values
        self.done = part.stop
        if self.on_disk:
            self._save_progress()

    def _save_progress(self) -> None:
        """Record how many images are done, after their features are on disk."""
        for level in self.levels:
            level.flush()  # type: ignore[attr-defined]
        fresh = self._note.with_suffix(".new")
        fresh.write_text(json.dumps(self._identity | {"done": self.done}))
        fresh.replace(self._note)


@dataclass
class AnomalyFeatures:
    """Features of known or pseudo anomalies, and the positions of each that show the defect.

    `cells[level][image]` is never empty. `marked[image]` is False for an anomaly without a mask: its cells are all
    positions, until instance selection replaces them by the least likely ones.
    """

    features: Features
    cells: list[list[Index]]
    marked: list[bool]
    pseudo: bool = False

    def only_marked(self) -> list[AnomalyFeatures]:
        """Return the anomalies with a mask, as one group; no group where there are none."""
        images = np.flatnonzero(self.marked)
        cells = [[level[i] for i in images] for level in self.cells]
        marked = AnomalyFeatures(self.features.select(images), cells, [True] * len(images), self.pseudo)
        return [marked] if len(images) else []

    def masks(self, level: int, images: Index) -> BoolArray:
        """Return which positions of a level show the defect of each of these images, (images, positions)."""
        marked = np.zeros((len(images), self.features.levels[level].shape[1]), np.bool_)
        for row, image in zip(marked, images, strict=True):
            row[self.cells[level][image]] = True
        return marked


def _mapped(path: Path, shape: tuple[int, ...], *, new: bool) -> HalfArray:
    """Open a memory-mapped array; a new one allocates its disk space at once: a full disk is an error, not a SIGBUS."""
    array: HalfArray = np.lib.format.open_memmap(path, mode="w+" if new else "r+", dtype=np.float16, shape=shape)
    if new and hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def shard_file(folder: Path, key: str, first: int) -> Path:
    """Return the file with the features of the images from number `first` on."""
    return folder / "shards" / f"{key[:16]}-{first:08d}.npz"


def missing_shards(folder: Path, key: str, count: int) -> Iterator[slice]:
    """Yield the images of each shard that has not been computed."""
    for part in chunks(count, SHARD_IMAGES):
        if not shard_file(folder, key, part.start).exists():
            yield part


def available_shards(folder: Path, key: str, first: int) -> Iterator[tuple[int, list[HalfArray]]]:
    """Yield the first image and the features of consecutive shards, from the one that holds image `first` on."""
    first -= first % SHARD_IMAGES  # images before it have the same features in the shard
    while first % SHARD_IMAGES == 0 and (file := shard_file(folder, key, first)).exists():
        levels = read_shard(file)
        yield first, levels
        first += len(levels[0])


def write_shard(file: Path, levels: list[HalfArray]) -> None:
    """Write a shard in one atomic step."""
    buffer = io.BytesIO()
    np.savez(buffer, *levels)
    write_atomic(file, buffer.getvalue())


def read_shard(file: Path) -> list[HalfArray]:
    """Return the features of a shard, one array (images, positions, channels) for each level."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            return [content[f"arr_{level}"] for level in range(len(content.files))]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read: {cause(error)}; delete it, and it is computed again") from error


def chunks(count: int, size: int) -> Iterable[slice]:
    """Return consecutive slices of at most `size` that cover range(count)."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def even_pick(count: int, most: int) -> Index:
    """Return at most `most` evenly spaced numbers below `count`.

    >>> even_pick(10, 3).tolist(), even_pick(3, 64).tolist()
    ([0, 4, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)
