"""Decoding and resizing: any image file or array becomes RGB (H, W, 3), uint8, or float32 in 0..1 where deeper.

Pillow's own size limit is a process-wide setting, so this module neither relies on it nor changes it: it opens files
with Pillow's format plugins and checks the size in the header before anything is decoded.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
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
from bgad.types import AnyArray, BoolArray, Box, FloatArray, ImageLike, LazyImage, Shape

MAX_PIXELS = 200_000_000
FORMATS = {  # name -> Pillow's plugin, which registers itself when it is imported
    "PNG": PngImagePlugin,
    "JPEG": JpegImagePlugin,
    "BMP": BmpImagePlugin,
    "TIFF": TiffImagePlugin,
    "WEBP": WebPImagePlugin,
}
_DEPTHS = (8, 10, 12, 14, 16)
_GREY_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_DEEP_RAW = re.compile(r"(LA|RGB|RGBA|RGBa|RGBX);16([BLN])")
_BITS_PER_SAMPLE, _PLANAR = 258, 284  # TIFF tags
# How files of unsupported formats begin, some of them after a length of 4 bytes.
_MAGIC = {b"GIF8": "GIF", b"ftyphei": "HEIC", b"ftypmif1": "HEIF", b"ftypavif": "AVIF", b"jP  ": "JPEG 2000"}


@dataclass(frozen=True)
class _Content:
    """An image file in memory."""

    content: bytes
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Decoded:
    """The values of an image as they are stored (H, W, C), and the bits that they need: 8, 10, 12, 14 or 16."""

    values: AnyArray  # uint8 or float in 0..1, or uint16, which is still to be scaled
    bits: int

    def rgb(self, bits: int | None = None, box: Box | None = None) -> AnyArray:
        """Return the image, or the part of it in a box, as `read` does; it may share its memory."""
        left, top, right, bottom = box or (0, 0, *self.values.shape[1::-1])
        values = self.values[top:bottom, left:right]
        if values.dtype == np.uint8:
            return values
        if values.dtype != np.uint16:
            return _on_white(values[..., :3], values[..., 3:]) if values.shape[2] == 4 else _three(values)
        colour = values[..., :3] / np.float32(2 ** max(self.bits, bits or 0) - 1)
        if values.shape[2] < 4:
            return _three(colour)
        return _on_white(colour, values[..., 3:] / np.float32(2 ** _depth(self.values[..., 3:]) - 1))


def read(source: ImageLike, *, max_pixels: int = MAX_PIXELS, bits: int | None = None) -> AnyArray:
    """Return a file or an array as RGB (H, W, 3): uint8, or float32 in 0..1 where the source has more than 8 bits.

    The EXIF orientation is applied and transparency is laid over white. 16-bit values are divided by the full scale of
    8, 10, 12, 14 or 16 bits, whichever holds the largest value, or of `bits` if that is wider; so a dark frame of a
    12-bit camera stays dark. An array may be returned without a copy.
    """
    return decode(source, max_pixels=max_pixels).rgb(bits)


def decode(source: ImageLike, *, max_pixels: int = MAX_PIXELS) -> Decoded:
    """Decode a file, or check an array; the result gives the image at any scale and any part of it."""
    if isinstance(source, LazyImage):
        return source.load()  # type: ignore[no-any-return]
    return _decoded(*_raw(source, max_pixels))


def decode_bytes(content: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Decoded:
    """Decode the content of an image file as `decode` does; `name` is used in messages."""
    return _decoded(_decode(_Content(content, name), max_pixels), name)


def _decoded(raw: AnyArray, where: str) -> Decoded:
    if raw.dtype == np.uint8:
        return Decoded(_rgb8(raw), 8)
    if raw.dtype == np.uint16:
        return Decoded(raw, _depth(raw))
    low, high = float(raw.min()), float(raw.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError(f"{where}: has NaN or infinite values; replace them first")
    if low < 0 or high > 1:
        raise ImageError(f"{where}: float values must lie in 0..1 but span {low:g}..{high:g}; divide by the full scale")
    return Decoded(raw.astype(np.float32, copy=False), 8)


def check_bytes(content: bytes, *, max_pixels: int = MAX_PIXELS, name: str = "image") -> None:
    """Raise ImageError, with `name`, where `read` would refuse these bytes because of their header."""
    with _opened(io.BytesIO(content), name, max_pixels):
        pass


def read_mask(path: str | Path) -> BoolArray:
    """Return where a mask file marks a defect (H, W): all pixels but black and transparent ones.

    JPEG leaves faint noise around edges, so a pixel of a JPEG mask is marked from half brightness on.
    """
    raw, _ = _raw(path, MAX_PIXELS)
    if raw.shape[2] == 4:
        raw = raw[..., :3] * (raw[..., 3:] > 0)
    with _open(Path(path), MAX_PIXELS) as image:
        darkest = 127 if image.format in ("JPEG", "MPO") else 0
    return np.asarray(np.any(raw > darkest, axis=2))  # (H, W)


def mask_from_png(content: bytes) -> BoolArray:
    """Return where a PNG that this package wrote is marked (H, W): all pixels but black and transparent ones."""
    with _identified(io.BytesIO(content), "", ["PNG"]) as image:
        marked = np.asarray(image.convert("L")) > 0
        if image.has_transparency_data:
            marked &= np.asarray(image.convert("RGBA").getchannel("A")) > 0
        return marked


def fit_shape(shape: Sequence[int], max_side: int) -> Shape:
    """Shrink a shape so that its longer side is at most `max_side`.

    >>> fit_shape((300, 600), 200), fit_shape((30, 60), 200)
    ((100, 200), (30, 60))
    """
    scale = min(1.0, max_side / max(shape))
    return max(1, round(shape[0] * scale)), max(1, round(shape[1] * scale))


def fit(image: AnyArray, size: tuple[int, int]) -> FloatArray:
    """Resize an RGB image to (height, width) with antialiasing; returns float32 in 0..1, (h, w, 3)."""
    if image.dtype == np.uint8:
        small = Image.fromarray(np.ascontiguousarray(image)).resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(small, np.float32) / np.float32(255)
    return np.stack([resize_map(image[..., c], size) for c in range(3)], axis=-1)  # (h, w, 3)


def resize_map(map: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Resize an anomaly map (h, w) bilinearly to (height, width)."""
    image = Image.fromarray(np.ascontiguousarray(map, np.float32))
    return np.array(image.resize(size[::-1], Image.Resampling.BILINEAR))


def _raw(source: ImageLike, max_pixels: int) -> tuple[AnyArray, str]:
    """Return stored values (H, W, 1|3|4) as uint8, uint16 or float, and the name to use in messages."""
    if isinstance(source, str | Path):
        return _decode(Path(source), max_pixels), str(source)
    if not isinstance(source, np.ndarray):
        raise ImageError(f"an image is a path or a numpy array, not {type(source).__name__}")
    where = f"array {source.shape} of {source.dtype}"
    raw = source[..., None] if source.ndim == 2 else source
    if raw.ndim != 3 or raw.shape[2] not in (1, 3, 4):
        raise ImageError(f"{where}: expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    if raw.size == 0:
        raise ImageError(f"{where}: has no pixels")
    _check_size(raw.shape[1], raw.shape[0], max_pixels, where)
    if raw.dtype == np.bool_:
        return raw * np.uint8(255), where
    if raw.dtype.kind == "u" and raw.dtype.itemsize == 2:
        return raw.astype(np.uint16, copy=False), where
    if raw.dtype != np.uint8 and raw.dtype.kind != "f":
        raise ImageError(f"{where}: expected bool, uint8, uint16 or float in 0..1")
    return raw, where


def _decode(path: Path | _Content, max_pixels: int) -> AnyArray:
    with _open(path, max_pixels) as image:
        deep = _deep_raw(image, path)
        key = image.info.get("transparency")
        if deep:
            pixels = _join_bytes(path, max_pixels, deep)
            return pixels if key is None or pixels.shape[2] == 4 else _cut_out(pixels, key)
        upright = ImageOps.exif_transpose(image)
        if image.mode in _GREY_DEEP:
            values = np.asarray(upright)[..., None]  # (H, W, 1)
            if values.min() < 0 or values.max() > 0xFFFF:
                raise ImageError(f"{path}: integer values must lie in 0..65535; save it as 16-bit unsigned")
            values = values.astype(np.uint16)
            return values if key is None else _cut_out(values, key)
        if image.mode == "F":
            return np.asarray(upright)[..., None]  # (H, W, 1)
        clear = key is not None or image.mode in ("RGBA", "LA", "PA", "RGBa", "La")
        return np.asarray(upright.convert("RGBA" if clear else "RGB"))


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


def _join_bytes(path: Path | _Content, max_pixels: int, raw: str) -> AnyArray:
    """Decode all 16 bits of a colour image: once in its byte order and once with the bytes swapped."""
    kind, order = _DEEP_RAW.fullmatch(raw).groups()  # type: ignore[union-attr]
    if kind == "LA":  # four bytes a pixel, the same as RGBA of 8 bits: grey high, low, alpha high, low
        four = _load_as(path, max_pixels, "RGBA").astype(np.uint16)
        return (four[..., 0::2] << 8 | four[..., 1::2])[..., [0, 0, 0, 1]]  # (H, W, 4)
    if order == "N":
        order = "L" if sys.byteorder == "little" else "B"
    layout = "RGBA" if kind == "RGBa" else kind
    high = _load_as(path, max_pixels, f"{layout};16{order}").astype(np.uint16)
    low = _load_as(path, max_pixels, f"{layout};16{'L' if order == 'B' else 'B'}")
    pixels: AnyArray = high << 8 | low
    if kind == "RGBa":  # colour was stored times alpha
        alpha = np.maximum(pixels[..., 3:], 1).astype(np.uint32)
        pixels[..., :3] = np.minimum((pixels[..., :3] * np.uint32(0xFFFF) + alpha // 2) // alpha, 0xFFFF)
    return pixels


def _load_as(path: Path | _Content, max_pixels: int, raw: str) -> AnyArray:
    with _open(path, max_pixels) as image:
        image.tile = [
            tile._replace(args=raw if isinstance(tile.args, str) else (raw, *(tile.args or ())[1:]))
            for tile in image.tile
        ]
        return np.asarray(ImageOps.exif_transpose(image))


def _cut_out(pixels: AnyArray, key: int | tuple[int, ...]) -> AnyArray:
    """Add an alpha channel that makes one colour transparent, as a PNG may declare."""
    alpha = np.where((pixels == np.asarray(key)).all(axis=2, keepdims=True), 0, 0xFFFF).astype(np.uint16)
    return np.concatenate([_three(pixels), alpha], axis=2)  # (H, W, 4)


def _depth(raw: AnyArray) -> int:
    top = int(raw[..., :3].max())
    return next(depth for depth in _DEPTHS if top < 2**depth)


def _three(pixels: AnyArray) -> AnyArray:
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _rgb8(raw: AnyArray) -> AnyArray:
    if raw.shape[2] < 4:
        return _three(raw)
    alpha = raw[..., 3:].astype(np.uint16)
    return ((raw[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def _on_white(colour: AnyArray, alpha: AnyArray) -> AnyArray:
    return np.asarray(colour * alpha + (1 - alpha))


def to_uint8(image: AnyArray) -> npt.NDArray[np.uint8]:
    """Convert an image as `read` returns it to 8 bits."""
    return image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)


def _check_size(width: int, height: int, max_pixels: int, where: object) -> None:
    if width * height > max_pixels:
        raise ImageError(f"{where}: {width} x {height} pixels exceed the limit of {max_pixels}; scale it or cut tiles")


def _identified(file: IO[bytes], name: str, formats: Iterable[str]) -> ImageFile.ImageFile:
    """Open a file with the first of Pillow's plugins that recognises it, without Pillow's process-wide size limit."""
    file.seek(0)
    prefix = file.read(16)
    for image_format in formats:
        factory, accepts = Image.OPEN[image_format]
        if accepts is not None and accepts(prefix) is not True:
            continue
        file.seek(0)
        try:
            return factory(file, name)
        except (SyntaxError, IndexError, TypeError, struct.error):  # how a plugin says that the header is not its own
            continue
    raise UnidentifiedImageError(f"cannot identify {name or 'the image'}")


def _allocate(image: ImageFile.ImageFile) -> None:
    """Allocate the pixels of a large TIFF, which its plugin would refuse to do beyond Pillow's size limit."""
    limit, (width, height) = Image.MAX_IMAGE_PIXELS, image.size
    if isinstance(image, TiffImagePlugin.TiffImageFile) and limit is not None and width * height > limit:
        image.im = Image.core.new(image.mode, getattr(image, "_tile_size", image.size))  # type: ignore[attr-defined]


@contextmanager
def _open(path: Path | _Content, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    """Open an image file and check its header; what a decoder raises on broken data becomes one ImageError."""
    if isinstance(path, _Content):
        if not path.content:
            raise ImageError(f"{path}: is empty (0 bytes)")
        with _opened(io.BytesIO(path.content), path, max_pixels) as image:
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
    with _opened(path, path, max_pixels) as image:
        yield image


@contextmanager
def _opened(source: Path | io.BytesIO, where: object, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    try:
        with (
            source.open("rb") if isinstance(source, Path) else nullcontext(source) as file,
            _identified(file, str(source) if isinstance(source, Path) else "", FORMATS) as image,
        ):
            _check_size(*image.size, max_pixels, where)
            _allocate(image)
            frames = getattr(image, "n_frames", 1)
            # The further images in an MPO (a JPEG of a phone) are previews and depth maps, not frames.
            if frames > 1 and image.format != "MPO":
                raise ImageError(f"{where}: has {frames} frames; save the one to inspect as a single image")
            yield image
    except BgadError:
        raise
    except UnidentifiedImageError as error:
        kind, known = _unsupported_format(source), ", ".join(FORMATS)
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
