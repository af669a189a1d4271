"""Decodes every image and mask of a data set before the work begins, so that unreadable files are reported early."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from bgad.data.layouts import Dataset
from bgad.data.sample_io import ImageCache, decode, ignored, read_mask, shape_of
from bgad.errors import BgadError, DataError
from bgad.types import Progress, ProgressTask, Sample, Shape

MAX_UNREADABLE = 10  # unreadable images that are skipped before validation fails


@dataclass(frozen=True)
class _Checked:
    """One validated sample: None where it is skipped; notes say why, or what is changed."""

    sample: Sample | None
    shape: Shape | None = None
    notes: list[str] = field(default_factory=list)


def validate_images(
    dataset: Dataset, max_unreadable: int, cache: ImageCache, progress: Progress | None = None
) -> tuple[Dataset, dict[str, Shape]]:
    """Decode every image and mask once; return the data set without unreadable images, and height and width by name.

    Notes of the returned data set name each unreadable file. More than `max_unreadable` of them are a DataError. The
    decoded images and their bit depth go into `cache`.
    """
    kept: list[Sample] = []
    skipped: list[str] = []
    notes = list(dataset.notes)
    shapes: dict[str, Shape] = {}
    task = ProgressTask(progress, "reading", len(dataset.samples))
    with ThreadPoolExecutor(2) as pool:
        for sample, checked in zip(
            dataset.samples, pool.map(partial(_check, cache=cache), dataset.samples), strict=True
        ):
            if checked.shape is not None:
                shapes[sample.name] = checked.shape
            notes += checked.notes
            if checked.sample is None:
                skipped.append(sample.name)
            else:
                kept.append(checked.sample)
            task.advance()
    unreadable = {s.path for s in dataset.samples} - {s.path for s in kept}  # one file may hold many tiles
    if len(unreadable) > max_unreadable:
        raise DataError(
            f"{len(unreadable)} images of {dataset.root} cannot be read (more than --max-unreadable {max_unreadable}), "
            f"the first: {next(n for n in notes if n.startswith('skipped'))[9:]}"
        )
    if skipped:
        notes.append(f"{len(unreadable)} unreadable images skipped: {', '.join(skipped[:5])}")
    return replace(dataset, samples=kept, notes=list(dict.fromkeys(notes))), shapes


def _check(sample: Sample, cache: ImageCache) -> _Checked:
    """Decode the image and the mask of one sample."""
    shape = None
    try:
        decoded = decode(sample)
        shape = shape_of(sample, decoded)
        excluded = ignored(sample)
        if excluded is not None and excluded.shape != shape:
            sizes = f"{_size(excluded.shape)}, the image {_size(shape)}"
            raise DataError(f"{sample.ignore}: the region to ignore is {sizes}: make them equal")
        cache.add(sample, decoded)
    except BgadError as error:
        return _Checked(None, shape, [f"skipped: {error}"])
    try:
        mask = read_mask(sample)
    except BgadError as error:
        return _Checked(replace(sample, mask=None), shape, [f"mask not used: {error}"])
    if mask is None:
        return _Checked(sample, shape)
    if excluded is not None and not mask.any():
        note = f"skipped: {sample.path}: all of its defect lies in the region to ignore"
        return _Checked(None, shape, [note])
    notes = []
    if mask.shape != shape:
        notes.append(f"{sample.mask} is {_size(mask.shape)} instead of {_size(shape)}: it is resized to its image")
    if not mask.any():
        notes.append(f"{sample.mask} marks no pixel: {sample.name} is used as an anomaly without a mask")
        sample = replace(sample, mask=None)
    return _Checked(sample, shape, notes)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"
