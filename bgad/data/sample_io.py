"""Reads the pixels, the mask and the content hash of samples, and keeps decoded images and masks.

A sample is an image or a tile of one. `validate_images` decodes every sample of a data set before the work begins, so
that unreadable files are reported early.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bgad.data.layouts import Dataset, hash_file
from bgad.errors import BgadError, DataError, ImageError, cause
from bgad.geometry.crop import crop
from bgad.geometry.roi import Roi, mask_outside
from bgad.io import images
from bgad.io.masks import resize_mask
from bgad.types import AnyArray, BoolArray, Box, FloatArray, Progress, ProgressTask, Sample, Shape

logger = logging.getLogger(__name__)

MAX_BYTES = 128 << 20  # of one ImageCache: 680 images of 256 x 256 pixels; the images beyond are decoded again
MAX_MASK_BYTES = 32 << 20  # of all masks that are kept: 250 of 1024 x 1024 pixels
MAX_UNREADABLE = 10  # unreadable images that are skipped before validation fails

_locks = tuple(threading.Lock() for _ in range(16))


def read(sample: Sample, bits: int | None = None) -> AnyArray:
    """Read the pixels of a sample as `images.read` does; pixels outside of its region of interest are blanked."""
    return _pixels(decode(sample), sample, bits)


def decode(sample: Sample) -> images.Decoded:
    """Decode the image that a sample is, or is a tile of; tiles that are read one after the other share one."""
    if sample.box is None:
        return images.decode(sample.path)
    version = _file_version(sample.path)
    with _lock_of(sample.path):
        return _cached_image(sample.path, version)


def shape_of(sample: Sample, decoded: images.Decoded) -> Shape:
    """Return height and width of a sample; ImageError where its image does not hold the tile."""
    height, width = decoded.values.shape[:2]
    return (height, width) if sample.box is None else _box_shape((height, width), sample.box, sample.path)


def marks_all(sample: Sample) -> bool:
    """Whether the masks of a sample mark every pixel, inside and outside of its region of interest."""
    mask = read_mask(replace(sample, roi=None, ignore=None))
    return mask is not None and bool(mask.all())


def read_mask(sample: Sample) -> BoolArray | None:
    """Read the mask of the defect, in the pixel grid of the sample; None where the sample has no mask."""
    if sample.mask is None:
        return None
    mask = _read_mask_part(sample.mask, sample.box)
    for path in sample.more_masks:
        other = _read_mask_part(path, sample.box)
        if other.shape != mask.shape:
            raise DataError(f"{path}: has another size than {sample.mask.name}, the other mask of {sample.name}")
        mask = mask | other
    excluded = ignored(sample)
    for inside in (region(sample), None if excluded is None else ~excluded):
        if inside is not None and inside.shape != mask.shape:
            mask = resize_mask(mask, (inside.shape[0], inside.shape[1]))
        mask = mask if inside is None else mask & inside
    return mask


def read_mask_file(path: Path) -> BoolArray:
    """Read a mask as `images.read_mask` does; the masks read last are not decoded again."""
    return _masks.read(path, _file_version(path))


def digest(sample: Sample) -> str:
    """Return the sha256 that identifies the sample: of the file, and of the box in it if the sample is a tile."""
    return hash_file(sample.path, "" if sample.box is None else " ".join(map(str, sample.box)))


def hash_masks(samples: Sequence[Sample]) -> list[list[str] | None]:
    """Return the sha256 of every mask of each sample; None for a sample without a mask."""
    return [[hash_file(path) for path in (s.mask, *s.more_masks)] if s.mask else None for s in samples]


def region(sample: Sample) -> BoolArray | None:
    """Read the region of interest, in the pixel grid of the sample; None where it is the complete image."""
    return None if sample.roi is None else _read_painted(sample.roi, sample.box)


def ignored(sample: Sample) -> BoolArray | None:
    """Read the pixels that training ignores, in the pixel grid of the sample; None where there are none."""
    return None if sample.ignore is None else _read_painted(sample.ignore, sample.box)


class ImageCache:
    """Reads images at the size of the model's input, and keeps those that validation has decoded.

    An image is kept at that size, blank outside of the region of interest. Where the recipe cuts it into tiles, the
    complete image is kept instead. Images for which the memory does not last are decoded again.
    """

    def __init__(
        self,
        size: int,
        *,
        crop: bool = False,
        tiled: bool = False,
        roi: Roi | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.size, self.crop = (size, size), crop and not tiled
        self.bits = 8  # highest bit depth outside of the test set: the scale of the images with more than 8 bits
        self._tiled, self._roi, self._left = tiled, roi, max_bytes
        self._complete: dict[Path, images.Decoded] = {}
        self._fitted: dict[tuple[Path, Box | None], _Fitted] = {}
        self._shapes: dict[tuple[Path, Box | None], Shape] = {}  # of the samples that validation has decoded
        self._known: set[tuple[Path, Box | None]] = set()  # what is kept so, or will be in a moment
        self._spare: list[tuple[Path, Box | None]] = []  # of these, what is not trained on
        self._lock = threading.Lock()

    def add(self, sample: Sample, decoded: images.Decoded) -> None:
        """Take note of a decoded image, and keep it if it may be needed and the memory lasts."""
        shape = shape_of(sample, decoded)
        if not (self._tiled or self.crop):
            images.check_aspect(shape, sample.path)
        with self._lock:
            self._shapes[sample.path, sample.box] = shape
            if sample.split != "test":
                self.bits = max(self.bits, decoded.bits)
        if self._tiled:
            self._add_complete(sample, decoded)
        elif self._roi is None or (sample.box is None and decoded.values.shape[:2] == self._roi.mask.shape):
            self._add_fitted(sample, decoded)

    def _add_complete(self, sample: Sample, decoded: images.Decoded) -> None:
        if (sample.label and sample.mask is None) or _is_test_normal(sample):  # not cut into tiles
            return
        with self._lock:
            if sample.path not in self._complete and self._take(decoded.values.nbytes):
                self._complete[sample.path] = decoded

    def _add_fitted(self, sample: Sample, decoded: images.Decoded) -> None:
        key, spare = (sample.path, sample.box), _is_test_normal(sample)
        deep = decoded.values.dtype != np.uint8
        channels = 1 if decoded.values.shape[2] == 1 else 3
        with self._lock:
            needed = (4 if deep else 1) * channels * self.size[0] * self.size[1]
            if key in self._known or not self._take(needed, evict=not spare):
                return
            self._known.add(key)
            bits = self.bits
        pixels = _pixels(decoded, sample, bits)
        if self._roi is not None:
            pixels = self._roi.mask_image(pixels, sample.path)
        fitted = self._fit(pixels)
        with self._lock:
            if not deep:
                self._fitted[key] = _Fitted(images.to_uint8(fitted))
            else:
                own = decoded.bits if decoded.values.dtype == np.uint16 else None
                self._fitted[key] = _Fitted(fitted[..., :channels].copy(), own, bits)
            if spare:
                self._spare.append(key)

    def _take(self, size: int, *, evict: bool = True) -> bool:
        """Reserve memory, for which images that are not trained on are dropped; return whether there was enough."""
        while evict and size > self._left and self._spare:
            self._left += self._fitted.pop(self._spare.pop()).pixels.nbytes
        if size > self._left:
            return False
        self._left -= size
        return True

    def read(self, sample: Sample) -> FloatArray:
        """Return a sample at the size of the model's input, float32 in 0..1; cache and file give the same bits."""
        key = (sample.path, sample.box)
        kept = self._fitted.get(key) if (sample.roi is None) == (self._roi is None) else None
        if kept is not None and kept.has_scale(self.bits):
            return kept.image()
        fitted = self._fit(self.read_complete(sample))
        if kept is not None:  # it was kept before the image that needs most bits was read
            self._fitted[key] = _Fitted(fitted[..., : kept.pixels.shape[2]].copy(), kept.own_bits, self.bits)
        return fitted

    def _fit(self, pixels: AnyArray) -> FloatArray:
        return images.fit(crop(pixels) if self.crop else pixels, self.size)

    def read_mask(self, sample: Sample) -> BoolArray | None:
        """Return the mask of a sample's defect, cropped as its image is; None where the sample has no mask."""
        mask = read_mask(sample)
        if mask is None or not self.crop:
            return mask
        shape = self._shapes.get((sample.path, sample.box)) or shape_of(sample, decode(sample))
        return crop(mask if mask.shape == shape else resize_mask(mask, shape))

    def read_ignored(self, sample: Sample) -> BoolArray | None:
        """Return the pixels that training ignores, cropped as the image is; None where there are none."""
        pixels = ignored(sample)
        return crop(pixels) if self.crop and pixels is not None else pixels

    def read_complete(self, sample: Sample) -> AnyArray:
        """Return a sample at its own size, as `read` of this module gives it."""
        return _pixels(self._complete.get(sample.path) or decode(sample), sample, self.bits)


class _Fitted(NamedTuple):
    """An image at the size of the model's input, and the bits by which its values were scaled."""

    pixels: AnyArray  # (S, S, 3): uint8, or float32; of a grey image with more than 8 bits (S, S, 1)
    own_bits: int | None = None  # that its values need; None where they are not scaled
    bits: int = 8

    def has_scale(self, bits: int) -> bool:
        """Tell whether an image that is read with these bits would be scaled in the same way."""
        return self.own_bits is None or max(self.own_bits, self.bits) == max(self.own_bits, bits)

    def image(self) -> FloatArray:
        """Return the image as `images.fit` gives it."""
        if self.pixels.dtype == np.uint8:
            return self.pixels.astype(np.float32) / np.float32(255)
        return np.repeat(self.pixels, 3 // self.pixels.shape[2], axis=2)


class _MaskCache:
    """Keeps the masks that were read last, one bit for each pixel."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._kept: OrderedDict[tuple[Path, tuple[int, ...]], tuple[npt.NDArray[np.uint8], Shape]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, version: tuple[int, ...]) -> BoolArray:
        """Return a mask; the version is that of its file."""
        with _lock_of(path):
            with self._lock:
                kept = self._kept.get((path, version))
                if kept is not None:
                    self._kept.move_to_end((path, version))
            if kept is None:
                mask = images.read_mask(path)
                self._keep((path, version), np.packbits(mask), (mask.shape[0], mask.shape[1]))
                return mask
        bits, shape = kept
        return np.unpackbits(bits, count=shape[0] * shape[1]).reshape(shape).view(np.bool_)

    def _keep(self, key: tuple[Path, tuple[int, ...]], bits: npt.NDArray[np.uint8], shape: Shape) -> None:
        with self._lock:
            self._kept[key] = bits, shape
            self._left -= bits.nbytes
            while self._left < 0:
                self._left += self._kept.popitem(last=False)[1][0].nbytes


_masks = _MaskCache(MAX_MASK_BYTES)


@lru_cache(maxsize=8)
def _cached_image(path: Path, version: tuple[int, ...]) -> images.Decoded:
    return images.decode(path)


@lru_cache(maxsize=8)  # of masks of which many samples use a part
def _cached_mask(path: Path, version: tuple[int, ...]) -> BoolArray:
    return _masks.read(path, version)


def _pixels(decoded: images.Decoded, sample: Sample, bits: int | None) -> AnyArray:
    """Return the pixels of a sample, blank outside of its region of interest."""
    shape_of(sample, decoded)
    pixels = decoded.rgb(bits, sample.box)
    if sample.box is not None and pixels.dtype == np.uint8:
        pixels = pixels.copy()  # the image stays for the other tiles
    inside = region(sample)
    return pixels if inside is None else mask_outside(pixels, inside, sample.path)


def _lock_of(path: Path) -> threading.Lock:
    """Return the lock to hold while a file is decoded: of two threads that need one image, one waits for the other."""
    return _locks[hash(path) % len(_locks)]


def _is_test_normal(sample: Sample) -> bool:
    return sample.split == "test" and not sample.label


def _read_mask_part(path: Path, box: Box | None) -> BoolArray:
    return read_mask_file(path) if box is None else _crop(_cached_mask(path, _file_version(path)), box, path)


def _read_painted(path: Path, box: Box | None) -> BoolArray:
    """Read a mask file that many samples share."""
    painted = _cached_mask(path, _file_version(path))
    return painted if box is None else _crop(painted, box, path)


def _file_version(path: Path) -> tuple[int, ...]:
    """Return what changes with a file; it is part of the cache key, so that a changed file is read again."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ImageError(f"{path}: cannot be read: {cause(error)}") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _crop(mask: BoolArray, box: Box, path: Path) -> BoolArray:
    _box_shape((mask.shape[0], mask.shape[1]), box, path)
    return mask[box[1] : box[3], box[0] : box[2]].copy()


def _box_shape(shape: Shape, box: Box, path: Path) -> Shape:
    """Return height and width of a tile; ImageError where the image does not hold it."""
    left, top, right, bottom = box
    height, width = shape
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise ImageError(f"{path}: is {width}x{height} and does not hold the tile {box}")
    return bottom - top, right - left


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


@dataclass(frozen=True)
class ModelInputs:
    """The model's inputs for samples, read one at a time; a sample that cannot be read is logged and left out."""

    samples: list[Sample]
    images: ImageCache

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[FloatArray]:
        for sample in self.samples:
            try:
                yield self.images.read(sample)
            except BgadError as error:
                logger.warning(str(error))
