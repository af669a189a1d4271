"""Reads the pixels, the mask and the content hash of a sample: of its image, or of the tile that the sample is."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from bgad.data.layouts import hash_file
from bgad.errors import DataError, ImageError
from bgad.geometry.roi import mask_outside
from bgad.io import images
from bgad.types import AnyArray, BoolArray, Box, Sample


def read(sample: Sample, bits: int | None = None) -> AnyArray:
    """Read the pixels of a sample as `images.read` does; pixels outside of its region of interest are blanked."""
    if sample.box is None:
        pixels = images.read(sample.path, bits=bits)
    else:
        pixels = _crop(_cached_image(sample.path, _file_version(sample.path), bits), sample.box, sample.path)
    inside = region(sample)
    return pixels if inside is None else mask_outside(pixels, inside, sample.path)


def read_mask(sample: Sample) -> BoolArray | None:
    """Read the mask of the defect, in the pixel grid of the sample; None where the sample has no mask."""
    if sample.mask is None:
        return None
    mask = _read_mask_file(sample.mask, sample.box)
    for path in sample.more_masks:
        other = _read_mask_file(path, sample.box)
        if other.shape != mask.shape:
            raise DataError(f"{path}: has another size than {sample.mask.name}, the other mask of {sample.name}")
        mask = mask | other
    excluded = ignored(sample)
    for inside in (region(sample), None if excluded is None else ~excluded):
        if inside is not None and inside.shape != mask.shape:
            mask = images.resize_mask(mask, (inside.shape[0], inside.shape[1]))
        mask = mask if inside is None else mask & inside
    return mask


def digest(sample: Sample) -> str:
    """Return the sha256 that identifies the sample: of the file, and of the box in it if the sample is a tile."""
    return hash_file(sample.path, "" if sample.box is None else " ".join(map(str, sample.box)))


def region(sample: Sample) -> BoolArray | None:
    """Read the region of interest, in the pixel grid of the sample; None where it is the complete image."""
    return None if sample.roi is None else _read_painted(sample.roi, sample.box)


def ignored(sample: Sample) -> BoolArray | None:
    """Read the pixels that training ignores, in the pixel grid of the sample; None where there are none."""
    return None if sample.ignore is None else _read_painted(sample.ignore, sample.box)


@lru_cache(maxsize=8)  # the tiles of one image are read one after the other: decode it once
def _cached_image(path: Path, version: tuple[int, int], bits: int | None) -> AnyArray:
    return images.read(path, bits=bits)


@lru_cache(maxsize=8)
def _cached_mask(path: Path, version: tuple[int, int]) -> BoolArray:
    return images.read_mask(path)


def _read_mask_file(path: Path, box: Box | None) -> BoolArray:
    return images.read_mask(path) if box is None else _crop(_cached_mask(path, _file_version(path)), box, path)


def _read_painted(path: Path, box: Box | None) -> BoolArray:
    """Read a mask file that many samples share."""
    painted = _cached_mask(path, _file_version(path))
    return painted if box is None else _crop(painted, box, path)


def _file_version(path: Path) -> tuple[int, int]:
    """Return time and size of a file; they are part of the cache key, so that a changed file is read again."""
    try:
        status = path.stat()
    except OSError as error:
        raise ImageError(f"{path}: cannot be read: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size


def _crop(pixels: AnyArray, box: Box, path: Path) -> AnyArray:
    left, top, right, bottom = box
    height, width = pixels.shape[:2]
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ImageError(f"{path}: is {width}x{height} and does not hold the tile {box}")
    return pixels[top:bottom, left:right].copy()
