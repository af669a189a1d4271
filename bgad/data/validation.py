"""A look at every image of a data set before the work begins: what cannot be read is found now."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from bgad.data.image_cache import ImageCache
from bgad.data.layouts import Dataset
from bgad.data.sample_io import ignored, read, read_mask
from bgad.errors import BgadError, DataError
from bgad.io import images
from bgad.types import Progress, ProgressTask, Sample

MAX_BAD = 10  # broken images that are skipped before training gives up


@dataclass(frozen=True)
class Scan:
    """What a look at every image of a data set tells."""

    bits: int
    skipped: list[str]
    shapes: dict[str, tuple[int, int]]  # name -> height, width


def scan_images(
    dataset: Dataset, max_bad: int, progress: Progress | None = None, cache: ImageCache | None = None
) -> tuple[Dataset, Scan]:
    """Decode every image and mask once: broken ones are named, skipped and counted; `cache` keeps what it decodes."""

    shapes: dict[str, tuple[int, int]] = {}

    def look(sample: Sample) -> tuple[Sample | None, int, list[str]]:
        try:
            picture = read(sample)
            shapes[sample.name] = (picture.shape[0], picture.shape[1])
            if cache is not None:
                cache.add(sample, picture)
            bits = images.bit_depth(sample.path) if picture.dtype != np.uint8 else 8
            without = ignored(sample)
            if without is not None and without.shape != picture.shape[:2]:
                sizes = f"{without.shape[1]}x{without.shape[0]}, the picture {picture.shape[1]}x{picture.shape[0]}"
                raise DataError(f"{sample.ignore}: the region to ignore is {sizes}: make them equal")
        except BgadError as error:
            return None, 8, [f"skipped: {error}"]
        try:
            mask = read_mask(sample)
        except BgadError as error:
            return replace(sample, mask=None), bits, [f"mask not used: {error}"]
        if mask is None:
            return sample, bits, []
        if without is not None and not mask.any():
            return None, bits, [f"skipped: {sample.path}: all of its defect lies in the region to ignore"]
        notes = []
        if mask.shape != picture.shape[:2]:
            sizes = f"{mask.shape[1]}x{mask.shape[0]} instead of {picture.shape[1]}x{picture.shape[0]}"
            notes.append(f"{sample.mask} is {sizes}: it is resized to its image")
        if not mask.any():
            notes.append(f"{sample.mask} marks no pixel: {sample.name} is used as an anomaly without a mask")
            return replace(sample, mask=None), bits, notes
        return sample, bits, notes

    kept, notes, skipped, depth = [], list(dataset.notes), [], 8
    task = ProgressTask(progress, "reading", len(dataset.samples))
    with ThreadPoolExecutor(2) as pool:
        for sample, (seen, bits, said) in zip(dataset.samples, pool.map(look, dataset.samples), strict=True):
            if sample.split != "test":
                depth = max(depth, bits)
            notes += said
            if seen is None:
                skipped.append(sample.name)
            else:
                kept.append(seen)
            task.advance()
    broken = {s.path for s in dataset.samples} - {s.path for s in kept}  # one file may hold many tiles
    if len(broken) > max_bad:
        raise DataError(
            f"{len(broken)} images of {dataset.root} cannot be read (more than --max-bad {max_bad}), the first: "
            f"{next(n for n in notes if n.startswith('skipped'))[9:]}"
        )
    if skipped:
        notes.append(f"{len(broken)} broken images skipped: {', '.join(skipped[:5])}")
    return replace(dataset, samples=kept, notes=list(dict.fromkeys(notes))), Scan(depth, skipped, shapes)
