"""Image files: opens them, checks their headers, and decodes them into memory in their own, compact form.

Pillow's own size limit is a process-wide setting, so this module neither relies on it nor changes it: it opens files
with Pillow's format plugins and checks the size in the header before anything is decoded.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from PIL import (
    BmpImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from bgad.errors import BgadError, ImageError, cause
from bgad.io.discover import UNSUPPORTED_SUFFIXES
from bgad.types import AnyArray, Box, Shape

FORMATS = {  # name -> Pillow's plugin, which registers itself when it is imported
    "PNG": PngImagePlugin,
    "JPEG": JpegImagePlugin,
    "BMP": BmpImagePlugin,
    "TIFF": TiffImagePlugin,
    "WEBP": WebPImagePlugin,
}
BAND_PIXELS = 2**20  # converted at a time, so that a large image is not in memory in several forms
_GREY_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_DEEP_RAW = re.compile(r"(LA|RGB|RGBA|RGBa|RGBX);16([BLN])")
_BITS_PER_SAMPLE, _PLANAR, _TILE_WIDTH, _TILE_HEIGHT = 258, 284, 322, 323  # TIFF tags
# How files of unsupported formats begin, some of them after a length of 4 bytes.
_MAGIC = {b"GIF8": "GIF", b"ftyphei": "HEIC", b"ftypmif1": "HEIF", b"ftypavif": "AVIF", b"jP  ": "JPEG 2000"}


@dataclass(frozen=True)
class Content:
    """An image file in memory."""

    content: bytes
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Stored:
    """A decoded image as it is stored, of which any part can be had as an array; the image is not converted as a whole.

    The values of a part (h, w, C) are uint8 with 3 or 4 channels, uint16 with 1, 3 or 4, or float with 1.
    """

    shape: Shape
    values: Callable[[Box], AnyArray]

    def bands(self) -> Iterator[tuple[slice, AnyArray]]:
        """Yield the values in horizontal bands of about a megapixel, each with its rows."""
        for left, top, right, bottom in bands((0, 0, self.shape[1], self.shape[0])):
            yield slice(top, bottom), self.values((left, top, right, bottom))

    def array(self) -> AnyArray:
        """Return all values (H, W, C)."""
        sample = self.values((0, 0, 1, 1))
        complete = np.empty((*self.shape, sample.shape[2]), sample.dtype)
        for rows, band in self.bands():
            complete[rows] = band
        return complete


def bands(box: Box) -> Iterator[Box]:
    """Divide a box into horizontal bands of about a megapixel, from top to bottom."""
    left, top, right, bottom = box
    rows = max(1, BAND_PIXELS // max(1, right - left))
    for start in range(top, bottom, rows):
        yield left, start, right, min(start + rows, bottom)


def load(path: Path | Content, max_pixels: int, *, keep_alpha: bool = False) -> Stored:
    """Decode a file; transparency of 8 bits is laid over white unless `keep_alpha` is true."""
    stored = _load(path, max_pixels, keep_alpha)

    def values(box: Box) -> AnyArray:
        with _refusing(path):
            return stored.values(box)

    return Stored(stored.shape, values)


def _load(path: Path | Content, max_pixels: int, keep_alpha: bool) -> Stored:
    with open_image(path, max_pixels) as file:
        raw, key = _deep_raw(file, path), file.info.get("transparency")
        if raw:
            return _stored_deep(path, max_pixels, raw, key)
        image = _pixels(file)
        shape = image.height, image.width
        if image.mode in _GREY_DEEP:
            stored = Stored(shape, lambda box: _grey_values(image.crop(box), key))
            if any(lowest < 0 or highest > 0xFFFF for lowest, highest in _grey_ranges(image)):
                raise ImageError(f"{path}: integer values must lie in 0..65535; save it as 16-bit unsigned")
            return stored
        if image.mode == "F":
            return Stored(shape, lambda box: np.asarray(image.crop(box))[..., None])  # (h, w, 1)
        clear = key is not None or image.mode in ("RGBA", "LA", "PA", "RGBa", "La")

        def values(box: Box) -> AnyArray:
            converted = np.asarray(image.crop(box).convert("RGBA" if clear else "RGB"))
            return lay_on_white(converted) if clear and not keep_alpha else converted

        return Stored(shape, values)


def _pixels(file: ImageFile.ImageFile) -> Image.Image:
    """Decode an open file and turn it upright; the result does not hold the decoder, which for WebP has two canvases
    of its own."""
    _allocate(file)
    ImageOps.exif_transpose(file, in_place=True)  # copies the pixels only where it turns them
    file.load()
    return file._new(file.im)


def lay_on_white(pixels: AnyArray) -> AnyArray:
    """Lay 8-bit colour with alpha (H, W, 4) over white."""
    alpha = pixels[..., 3:].astype(np.uint16)
    return ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def three_channels(pixels: AnyArray) -> AnyArray:
    """Repeat the channel of a grey image; others stay as they are."""
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _grey_values(part: Image.Image, key: int | None) -> AnyArray:
    values = np.asarray(part)[..., None].astype(np.uint16, copy=False)  # (h, w, 1)
    return values if key is None else _cut_out(values, key)


def _grey_ranges(image: Image.Image) -> Iterator[tuple[int, int]]:
    """Yield the lowest and the highest value of each band of a 32-bit image; other grey images need no check."""
    if image.mode == "I":
        for box in bands((0, 0, image.width, image.height)):
            values = np.asarray(image.crop(box))
            yield int(values.min()), int(values.max())


def _stored_deep(path: Path | Content, max_pixels: int, raw: str, key: tuple[int, ...] | None) -> Stored:
    """Decode all 16 bits of a colour image: once in its byte order and once with the bytes swapped."""
    kind, order = _DEEP_RAW.fullmatch(raw).groups()  # type: ignore[union-attr]
    if kind == "LA":  # four bytes a pixel, the same as RGBA of 8 bits: grey high, low, alpha high, low
        image = _load_as(path, max_pixels, "RGBA")
        return Stored((image.height, image.width), lambda box: _join_grey(np.asarray(image.crop(box))))
    if order == "N":
        order = "L" if sys.byteorder == "little" else "B"
    layout = "RGBA" if kind == "RGBa" else kind
    # Pillow takes 4 bytes for a pixel of 3 channels: an array of the high bytes is the smaller one of both forms.
    high = _bytes(_load_as(path, max_pixels, f"{layout};16{order}"))
    low = _load_as(path, max_pixels, f"{layout};16{'L' if order == 'B' else 'B'}")

    def values(box: Box) -> AnyArray:
        left, top, right, bottom = box
        pixels = high[top:bottom, left:right].astype(np.uint16)
        pixels <<= 8
        pixels |= np.asarray(low.crop(box))
        if kind == "RGBa":  # colour was stored times alpha
            alpha = np.maximum(pixels[..., 3:], 1).astype(np.uint32)
            pixels[..., :3] = np.minimum((pixels[..., :3] * np.uint32(0xFFFF) + alpha // 2) // alpha, 0xFFFF)
        return pixels if key is None or pixels.shape[2] == 4 else _cut_out(pixels, key)

    return Stored((low.height, low.width), values)


def _join_grey(four: AnyArray) -> AnyArray:
    """Return 16-bit grey with alpha as colour with alpha (h, w, 4), from its bytes."""
    wide = four.astype(np.uint16)
    return (wide[..., 0::2] << 8 | wide[..., 1::2])[..., [0, 0, 0, 1]]


def _bytes(image: Image.Image) -> AnyArray:
    return Stored((image.height, image.width), lambda box: np.asarray(image.crop(box))).array()


def _load_as(path: Path | Content, max_pixels: int, raw: str) -> Image.Image:
    with open_image(path, max_pixels) as file:
        file.tile = [
            tile._replace(args=raw if isinstance(tile.args, str) else (raw, *(tile.args or ())[1:]))
            for tile in file.tile
        ]
        return _pixels(file)


def _deep_raw(image: ImageFile.ImageFile, path: object) -> str | None:
    """Return the raw mode of a file with 16-bit colour or alpha, of which Pillow decodes only the high bytes."""
    tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
    args = image.tile[0].args if image.tile else None
    raw = args[0] if isinstance(args, tuple) and args else args
    deep = raw if isinstance(raw, str) and _DEEP_RAW.fullmatch(raw) else None
    many = max(tags.get(_BITS_PER_SAMPLE, (1,))) > 8 and image.mode not in (*_GREY_DEEP, "F")
    if many and (deep is None or tags.get(_PLANAR) == 2):
        raise ImageError(f"{path}: this kind of 16-bit TIFF is not supported; save it as RGB, chunky (not planar)")
    return deep


def _cut_out(pixels: AnyArray, key: int | tuple[int, ...]) -> AnyArray:
    """Add an alpha channel that makes one colour transparent, as a PNG may declare."""
    alpha = np.where((pixels == np.asarray(key)).all(axis=2, keepdims=True), 0, 0xFFFF).astype(np.uint16)
    return np.concatenate([three_channels(pixels), alpha], axis=2)  # (H, W, 4)


def check_size(width: int, height: int, max_pixels: int, where: object) -> None:
    """Raise ImageError for an image with more pixels than the limit."""
    if width * height > max_pixels:
        raise ImageError(f"{where}: {width} x {height} pixels exceed the limit of {max_pixels}; scale it or cut tiles")


def _check_tiles(image: ImageFile.ImageFile, where: object) -> None:
    """Raise ImageError for a TIFF whose tiles are larger than itself: the decoder holds a tile of any size."""
    tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
    width, height = tags.get(_TILE_WIDTH, 0), tags.get(_TILE_HEIGHT, 0)
    if width * height > max(BAND_PIXELS, 4 * image.width * image.height):
        raise ImageError(f"{where}: its tiles of {width} x {height} pixels are larger than itself; save it in strips")


def identify(file: IO[bytes], formats: Iterable[str]) -> ImageFile.ImageFile:
    """Open a file with the first of Pillow's plugins that recognises it, without Pillow's process-wide size limit.

    Pillow is not told the name: it would map a file with uncompressed pixels into memory instead of reading it, and who
    cuts the file short later would end this process.
    """
    file.seek(0)
    prefix = file.read(16)
    for image_format in formats:
        factory, accepts = Image.OPEN[image_format]
        if accepts is not None and accepts(prefix) is not True:
            continue
        file.seek(0)
        try:
            return factory(file, "")
        except (SyntaxError, IndexError, TypeError, struct.error):  # how a plugin says that the header is not its own
            continue
    raise UnidentifiedImageError("cannot identify the image")


def _allocate(image: ImageFile.ImageFile) -> None:
    """Allocate the pixels of a large TIFF, which its plugin would refuse to do beyond Pillow's size limit."""
    limit, (width, height) = Image.MAX_IMAGE_PIXELS, image.size
    if isinstance(image, TiffImagePlugin.TiffImageFile) and limit is not None and width * height > limit:
        image.im = Image.core.new(image.mode, getattr(image, "_tile_size", image.size))  # type: ignore[attr-defined]


@contextmanager
def open_image(path: Path | Content, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    """Open an image file and check its header; what a decoder raises on broken data becomes one ImageError."""
    if isinstance(path, Content):
        if not path.content:
            raise ImageError(f"{path}: is empty (0 bytes)")
        with open_source(io.BytesIO(path.content), path, max_pixels) as image:
            yield image
        return
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{path}: is a folder, not an image")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path}: is not a regular file")
        if status.st_size == 0:
            raise ImageError(f"{path}: is empty (0 bytes)")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ImageError(f"{path}: cannot be read: {cause(error)}") from error
    with open_source(path, path, max_pixels) as image:
        yield image


@contextmanager
def open_source(source: Path | io.BytesIO, where: object, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    """Open a file or its content as `open_image` does; `where` is its name in messages."""
    with (
        _refusing(where, source),
        source.open("rb") if isinstance(source, Path) else nullcontext(source) as file,
        identify(file, FORMATS) as image,
    ):
        check_size(*image.size, max_pixels, where)
        _check_tiles(image, where)
        # The further images in an MPO (a JPEG of a phone) are previews and depth maps, not frames. Frames are not
        # counted: Pillow takes quadratic time for that in a TIFF.
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise ImageError(f"{where}: has several frames; save the one to inspect as a single image")
        yield image


@contextmanager
def _refusing(where: object, source: Path | io.BytesIO | None = None) -> Iterator[None]:
    """Turn what Pillow raises, and a lack of memory, into an ImageError with the name of the file."""
    try:
        yield
    except BgadError:
        raise
    except UnidentifiedImageError as error:
        kind, known = source and _unsupported_format(source), ", ".join(FORMATS)
        if kind:
            raise ImageError(
                f"{where}: {kind} is not an image format that is read: save it as one of {known}"
            ) from error
        raise ImageError(f"{where}: not an image, or its header is broken (formats: {known})") from error
    except Exception as error:
        raise ImageError(f"{where}: cannot be read: {cause(error)}") from error


def _unsupported_format(source: Path | io.BytesIO) -> str | None:
    """Return the name of an image format that cannot be read, or None where it is not known."""
    if isinstance(source, Path) and source.suffix.lower() in UNSUPPORTED_SUFFIXES:
        return source.suffix[1:].upper()
    start = b""
    with suppress(OSError), source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
        file.seek(0)
        start = file.read(16)
    return next((kind for magic, kind in _MAGIC.items() if start.startswith((magic, start[:4] + magic))), None)
