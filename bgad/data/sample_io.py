"""A sample -> its pixels, its mask and its hash: the whole picture, or the tile of it that the sample is."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from bgad.data.layouts import hash_file
from bgad.errors import DataError, ImageError
from bgad.geometry.roi import mask_outside
from bgad.io import images
from bgad.types import AnyArray, BoolArray, Box, Sample


def read(sample: Sample, bits: int | None = None) -> AnyArray:
    """The pixels of a sample, as `images.read` gives them."""
    if sample.box is None:
        pixels = images.read(sample.path, bits=bits)
    else:
        pixels = _crop(_whole(sample.path, _stamp(sample.path), bits), sample.box, sample.path)
    inside = region(sample)
    return pixels if inside is None else mask_outside(pixels, inside, sample.path)


def read_mask(sample: Sample) -> BoolArray | None:
    """Where the defect is, in the pixel grid of the sample; None where nobody marked it."""
    if sample.mask is None:
        return None
    mask = _marked(sample.mask, sample.box)
    for path in sample.more_masks:
        more = _marked(path, sample.box)
        if more.shape != mask.shape:
            raise DataError(f"{path}: has another size than {sample.mask.name}, the other mask of {sample.name}")
        mask = mask | more
    without = ignored(sample)
    for inside in (region(sample), None if without is None else ~without):
        if inside is not None and inside.shape != mask.shape:
            mask = images.resize_mask(mask, (inside.shape[0], inside.shape[1]))
        mask = mask if inside is None else mask & inside
    return mask


def digest(sample: Sample) -> str:
    """The sha256 that recognises the sample: of the file, and of the place in it if the sample is a tile."""
    return hash_file(sample.path, "" if sample.box is None else " ".join(map(str, sample.box)))


@lru_cache(maxsize=8)  # the tiles of one picture are read one after the other: decode it once
def _whole(path: Path, stamp: tuple[int, int], bits: int | None) -> AnyArray:
    return images.read(path, bits=bits)


@lru_cache(maxsize=8)
def _whole_mask(path: Path, stamp: tuple[int, int]) -> BoolArray:
    return images.read_mask(path)


def _marked(path: Path, box: Box | None) -> BoolArray:
    return images.read_mask(path) if box is None else _crop(_whole_mask(path, _stamp(path)), box, path)


def region(sample: Sample) -> BoolArray | None:
    """Where to look, in the pixel grid of the sample; None: everywhere."""
    return None if sample.roi is None else _painted(sample.roi, sample.box)


def ignored(sample: Sample) -> BoolArray | None:
    """What is not learnt from, in the pixel grid of the sample; None: nothing."""
    return None if sample.ignore is None else _painted(sample.ignore, sample.box)


def _painted(path: Path, box: Box | None) -> BoolArray:
    whole = _whole_mask(path, _stamp(path))
    return whole if box is None else _crop(whole, box, path)


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does, so that a cached picture is never an old one."""
    try:
        found = path.stat()
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size


def _crop(pixels: AnyArray, box: Box, path: Path) -> AnyArray:
    left, top, right, bottom = box
    height, width = pixels.shape[:2]
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ImageError(f"{path}: is {width}x{height} and does not hold the tile {box}")
    return pixels[top:bottom, left:right].copy()
