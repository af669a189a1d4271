"""Feature shards: files with the features of consecutive images, which other processes compute before a training.

A training reads the shards of its own fingerprint in place of running the backbone. A shard appears when it is
complete, so that a run that was stopped computes only what is missing.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bgad.errors import DataError, cause
from bgad.features.cache import BATCH, HalfArray, chunks
from bgad.io.files import write_atomic

SHARD_IMAGES = 64 * BATCH  # whole batches: a shard then holds the bits that one machine computes


def shard_file(folder: Path, key: str, first: int) -> Path:
    """Return the file with the features of the images from number `first` on."""
    return folder / "shards" / f"{key[:16]}-{first:08d}.npz"


def missing(folder: Path, key: str, count: int) -> Iterator[slice]:
    """Yield the images of each shard that has not been computed."""
    for part in chunks(count, SHARD_IMAGES):
        if not shard_file(folder, key, part.start).exists():
            yield part


def available(folder: Path, key: str, first: int) -> Iterator[tuple[int, list[HalfArray]]]:
    """Yield the first image and the features of consecutive shards, from the one that holds image `first` on."""
    first -= first % SHARD_IMAGES  # images before it have the same features in the shard
    while first % SHARD_IMAGES == 0 and (file := shard_file(folder, key, first)).exists():
        levels = read(file)
        yield first, levels
        first += len(levels[0])


def write(file: Path, levels: list[HalfArray]) -> None:
    """Write a shard in one atomic step."""
    buffer = io.BytesIO()
    np.savez(buffer, *levels)
    write_atomic(file, buffer.getvalue())


def read(file: Path) -> list[HalfArray]:
    """Return the features of a shard, one array (images, positions, channels) for each level."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            return [content[f"arr_{level}"] for level in range(len(content.files))]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read: {cause(error)}; delete it, and it is computed again") from error
