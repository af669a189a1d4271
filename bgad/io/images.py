"""Decoding and resizing: any image file or array becomes RGB (H, W, 3), uint8, or float32 in 0..1 where deeper."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from bgad.errors import ImageError, cause
from bgad.io import image_file
from bgad.io.image_file import Stored, lay_on_white, three_channels
from bgad.types import AnyArray, BoolArray, Box, FloatArray, ImageLike, LazyImage, Shape

MAX_PIXELS = 200_000_000
MAX_ASPECT = 64  # of the sides of an image that is resized to the input of a model
_DEPTHS = (8, 10, 12, 14, 16)
_FEW = 4  # multiples of 257 that are no chance
_LONG = 2**14  # pixels that a side keeps when it is shortened before it is resized


@dataclass(frozen=True)
class Decoded:
    """The values of an image as they are stored (H, W, C), and the bits that they need: 8, 10, 12, 14 or 16."""

    values: AnyArray  # uint8 or float in 0..1, or uint16, which is still to be scaled
    bits: int
    alpha_bits: int = 16

    def rgb(self, bits: int | None = None, box: Box | None = None) -> AnyArray:
        """Return the image, or the part of it in a box, as `read` does; it may share its memory."""
        values = self.values if box is None else cut(self.values, box)
        return _rgb(values, max(self.bits, bits or 0), self.alpha_bits)


@dataclass(frozen=True)
class Loaded:
    """An image in memory in its compact form: parts of it are converted to RGB, never the image as a whole."""

    stored: Stored
    bits: int
    alpha_bits: int

    @property
    def shape(self) -> Shape:
        """Height and width."""
        return self.stored.shape

    def rgb(self, box: Box, bits: int | None = None) -> AnyArray:
        """Return the part in a box as `read` gives it."""
        return _rgb(self.stored.values(box), max(self.bits, bits or 0), self.alpha_bits)

    def fit(self, size: tuple[int, int], bits: int | None = None) -> FloatArray:
        """Resize the image as `fit` does."""
        return fit_parts(lambda box: self.rgb(box, bits), (0, 0, *self.shape[::-1]), size)

    def uint8(self, bits: int | None = None) -> npt.NDArray[np.uint8]:
        """Return the image as RGB of 8 bits (H, W, 3)."""
        return Stored(self.shape, lambda box: to_uint8(self.rgb(box, bits))).array()


def read(source: ImageLike, *, max_pixels: int = MAX_PIXELS, bits: int | None = None) -> AnyArray:
    """Return a file or an array as RGB (H, W, 3): uint8, or float32 in 0..1 where the source has more than 8 bits.

    The EXIF orientation is applied and transparency is laid over white. 16-bit values are divided by the full scale of
    8, 10, 12, 14 or 16 bits, whichever holds the largest value, or of `bits` if that is wider; so a dark frame of a
    12-bit camera stays dark. Values of 8 bits in 16 are returned as uint8: as they are, unless `bits` is wider, or
    times 257, where 4 levels above 0 or one near full scale show that. An array may be returned without a copy.
    """
    return decode(source, max_pixels=max_pixels).rgb(bits)


def decode(source: ImageLike, *, max_pixels: int = MAX_PIXELS) -> Decoded:
    """Decode a file, or check an array; the result gives the image at any scale and any part of it."""
    if isinstance(source, LazyImage):
        return source.load()  # type: ignore[no-any-return]
    return _decoded(*_raw(source, max_pixels))


def decode_bytes(content: bytes, name: str, *, max_pixels: int = MAX_PIXELS) -> Decoded:
    """Decode the content of an image file as `decode` does; `name` is used in messages."""
    return _decoded(image_file.load(image_file.Content(content, name), max_pixels).array(), name)


def load(source: ImageLike, *, max_pixels: int = MAX_PIXELS) -> Loaded:
    """Decode a file, or check an array, as `decode` does, and keep the pixels of a file in its own form."""
    if isinstance(source, str | Path):
        stored = image_file.load(Path(source), max_pixels)
        bits, alpha_bits = _scan(stored, str(source))
        if _is_widened(stored, bits):
            return Loaded(_narrowed(stored), 16, 16)
        return Loaded(stored, bits, alpha_bits)
    decoded = decode(source, max_pixels=max_pixels)
    values = decoded.values
    stored = Stored((values.shape[0], values.shape[1]), partial(cut, values))
    return Loaded(stored, decoded.bits, decoded.alpha_bits)


def _decoded(raw: AnyArray, where: str) -> Decoded:
    if raw.dtype == np.uint8:
        return Decoded(_rgb8(raw), 8)
    stored = Stored((raw.shape[0], raw.shape[1]), partial(cut, raw))
    bits, alpha_bits = _scan(stored, where)
    if _is_widened(stored, bits):
        return Decoded(_narrowed(stored).array(), 16, 16)
    return Decoded(raw if raw.dtype == np.uint16 else raw.astype(np.float32, copy=False), bits, alpha_bits)


def _is_widened(stored: Stored, bits: int) -> bool:
    """Return whether 16-bit values are those of 8 bits times 257; equal pixels are to have equal scores.

    A few values of a camera with less than 16 bits may be multiples of 257 by chance.
    """
    if bits == 8:
        return False
    values: set[int] = set()
    for _, band in stored.bands():
        if (band % 257).any():
            return False
        values.update(np.unique(band).tolist())
    return bits == 16 or len(values - {0}) >= _FEW


def _narrowed(stored: Stored) -> Stored:
    return Stored(stored.shape, lambda box: _rgb8((stored.values(box) // 257).astype(np.uint8)))


def _scan(stored: Stored, where: str) -> tuple[int, int]:
    """Return the bits that the values of an image and of its alpha need; ImageError for floats outside of 0..1."""
    kind = stored.values((0, 0, 1, 1)).dtype
    if kind == np.uint8:
        return 8, 8
    if kind == np.uint16:
        highest = np.max([band.max(axis=(0, 1)) for _, band in stored.bands()], axis=0)  # (C,)
        return _depth(int(highest[:3].max())), _depth(int(highest[-1]))
    ranges = np.array([(band.min(), band.max()) for _, band in stored.bands()])
    low, high = float(ranges[:, 0].min()), float(ranges[:, 1].max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError(f"{where}: has NaN or infinite values; replace them first")
    if low < 0 or high > 1:
        raise ImageError(f"{where}: float values must lie in 0..1 but span {low:g}..{high:g}; divide by the full scale")
    return 8, 8


def check_bytes(content: bytes, *, max_pixels: int = MAX_PIXELS, name: str = "image") -> Shape:
    """Return the height and width that a header states; ImageError, with `name`, where `read` would refuse it."""
    with image_file.open_source(io.BytesIO(content), name, max_pixels) as image:
        return image.height, image.width


def read_shape(path: Path, *, max_pixels: int = MAX_PIXELS) -> Shape:
    """Return the height and width that the header of a file states; ImageError where `read` would refuse it."""
    with image_file.open_image(path, max_pixels) as image:
        return image.height, image.width


def read_mask(path: str | Path) -> BoolArray:
    """Return where a mask file marks a defect (H, W): all pixels but black and transparent ones.

    JPEG leaves faint noise around edges, so a pixel of a JPEG mask is marked from half brightness on.
    """
    raw, _ = _raw(path, MAX_PIXELS, keep_alpha=True)
    if raw.shape[2] == 4:
        raw = raw[..., :3] * (raw[..., 3:] > 0)
    with image_file.open_image(Path(path), MAX_PIXELS) as image:
        darkest = 127 if image.format in ("JPEG", "MPO") else 0
    return np.asarray(np.any(raw > darkest, axis=2))  # (H, W)


def mask_from_png(content: bytes) -> BoolArray:
    """Return where a PNG marks a pixel (H, W): all pixels but black and transparent ones."""
    try:
        with image_file.identify(io.BytesIO(content), ["PNG"]) as image:
            image.load()

            def values(box: Box) -> BoolArray:
                part = image.crop(box)
                part = part.convert("RGBA") if image.has_transparency_data else part
                marked = np.asarray(part.convert("L")) > 0
                if image.has_transparency_data:
                    marked &= np.asarray(part.getchannel("A")) > 0
                return marked[..., None]

            return Stored((image.height, image.width), values).array()[..., 0]
    except Exception as error:  # a decoder may raise anything
        raise ImageError(f"it is not a PNG that can be read: {cause(error)}") from error


def check_aspect(shape: Shape, where: object) -> None:
    """Raise ImageError for an image so thin that nothing in it can be recognised once it has the input's shape."""
    if max(shape) > MAX_ASPECT * min(shape):
        raise ImageError(
            f"{where}: {shape[1]} x {shape[0]} pixels are too thin to be resized (at most {MAX_ASPECT} : 1); cut it "
            "into parts, or train with --tile"
        )


def fit_shape(shape: Sequence[int], max_side: int) -> Shape:
    """Shrink a shape so that its longer side is at most `max_side`.

    >>> fit_shape((300, 600), 200), fit_shape((30, 60), 200)
    ((100, 200), (30, 60))
    """
    scale = min(1.0, max_side / max(shape))
    return max(1, round(shape[0] * scale)), max(1, round(shape[1] * scale))


def fit(image: AnyArray, size: tuple[int, int]) -> FloatArray:
    """Resize an RGB image to (height, width) with antialiasing; returns float32 in 0..1, (h, w, 3)."""
    return fit_parts(partial(cut, image), (0, 0, image.shape[1], image.shape[0]), size)


def fit_parts(part: Callable[[Box], AnyArray], box: Box, size: tuple[int, int]) -> FloatArray:
    """Resize a box of an image as `fit` does, with the same bits; `part` returns the RGB pixels of any box in it.

    Values are rounded between resizing rows and columns, and which of them Pillow resizes first depends on its version.
    Here it is rows, unless they grow and columns shrink: so what is in between is no larger than the image or the
    result. It is made band by band, and only bands are in memory at full resolution.
    """
    part, (height, width) = _shorten(part, box, size)
    columns_first = width < size[1] and height > size[0]

    def resized(piece: Box) -> tuple[Box, AnyArray]:
        left, top, right, bottom = piece
        place = (left, 0, right, size[0]) if columns_first else (0, top, size[1], bottom)
        return place, _resized(part(piece), (place[3] - place[1], place[2] - place[0]))

    complete = (0, 0, width, height)
    pieces = _strips(complete) if columns_first else image_file.bands(complete)
    between = _assemble((size[0], width) if columns_first else (height, size[1]), map(resized, pieces))
    return _scaled(_resized(between, size))


def _shorten(part: Callable[[Box], AnyArray], box: Box, size: Shape) -> tuple[Callable[[Box], AnyArray], Shape]:
    """Return a box of an image as an image of its own, and its height and width.

    A side of 32768 pixels or more is shortened: so many neighbours are averaged that it stays at least 16384 long, and
    eight times as long as in the result. A single row of such an image may be far larger than a band.
    """
    left, top, right, bottom = box
    across = max(1, (right - left) // max(_LONG, 8 * size[1]))
    down = max(1, (bottom - top) // max(_LONG, 8 * size[0]))

    def source(piece: Box) -> AnyArray:
        x, y, x_end, y_end = piece
        end = min(left + x_end * across, right), min(top + y_end * down, bottom)
        pixels = part((left + x * across, top + y * down, *end))
        return pixels if across == down == 1 else _reduced(pixels, (across, down))

    def shortened(outer: Box) -> AnyArray:
        x, y, x_end, y_end = outer
        columns = max(1, min(x_end - x, image_file.BAND_PIXELS // (across * down)))
        rows = max(1, image_file.BAND_PIXELS // (across * down * columns))
        pieces = [
            (i, j, min(i + columns, x_end), min(j + rows, y_end))
            for j in range(y, y_end, rows)
            for i in range(x, x_end, columns)
        ]
        places = ((i - x, j - y, i_end - x, j_end - y) for i, j, i_end, j_end in pieces)
        return _assemble((y_end - y, x_end - x), zip(places, map(source, pieces), strict=True))

    shape = -((top - bottom) // down), -((left - right) // across)  # rounded up
    return (source if across == down == 1 else shortened), shape


def _strips(box: Box) -> Iterator[Box]:
    """Divide a box into vertical strips of about a megapixel, from left to right."""
    left, top, right, bottom = box
    for start, first, end, last in image_file.bands((top, left, bottom, right)):
        yield first, start, last, end


def _assemble(shape: Shape, pieces: Iterable[tuple[Box, AnyArray]]) -> AnyArray:
    """Put an image together from RGB pieces, each with the box that it fills."""
    complete: AnyArray | None = None
    for box, pixels in pieces:
        if pixels.shape[:2] == shape:
            return pixels
        if complete is None:
            complete = np.empty((*shape, 3), pixels.dtype)
        cut(complete, box)[...] = pixels
    assert complete is not None  # noqa: S101 - an image has pixels
    return complete


def cut(image: AnyArray, box: Box) -> AnyArray:
    """Return the part of an image in a box, as a view."""
    left, top, right, bottom = box
    return image[top:bottom, left:right]


def _resized(image: AnyArray, size: tuple[int, int]) -> AnyArray:
    if image.dtype == np.uint8:
        small = Image.fromarray(np.ascontiguousarray(image)).resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(small)
    return np.stack([resize_map(image[..., c], size) for c in range(3)], axis=-1)  # (h, w, 3)


def _reduced(image: AnyArray, factors: tuple[int, int]) -> AnyArray:
    """Average blocks of so many pixels across and down."""
    if image.dtype == np.uint8:
        return np.asarray(Image.fromarray(np.ascontiguousarray(image)).reduce(factors))
    channels = (Image.fromarray(np.ascontiguousarray(image[..., c], np.float32)) for c in range(3))
    return np.stack([np.asarray(channel.reduce(factors)) for channel in channels], axis=-1)  # (h, w, 3)


def _scaled(image: AnyArray) -> FloatArray:
    return image.astype(np.float32) / np.float32(255) if image.dtype == np.uint8 else image


def resize_map(map: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Resize an anomaly map (h, w) bilinearly to (height, width)."""
    image = Image.fromarray(np.ascontiguousarray(map, np.float32))
    return np.array(image.resize(size[::-1], Image.Resampling.BILINEAR))


def shrink_map(map: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Resize an anomaly map (h, w) for a small drawing: a pixel is the maximum of the values that it stands for.

    So the maximum stays, and what exceeds a threshold still does, however small it is. A map that is not larger than
    (height, width) on both sides is resized bilinearly.

    >>> shrink_map(np.array([[0, 1, 2], [3, 9, 4]], np.float32), (1, 2)).tolist()
    [[3.0, 9.0]]
    """
    if size[0] > map.shape[0] or size[1] > map.shape[1]:
        return resize_map(map, size)
    rows, columns = (np.arange(count) * length // count for count, length in zip(size, map.shape, strict=True))
    smaller: FloatArray = np.maximum.reduceat(np.maximum.reduceat(map, rows, axis=0), columns, axis=1)
    return smaller


def _raw(source: ImageLike, max_pixels: int, *, keep_alpha: bool = False) -> tuple[AnyArray, str]:
    """Return stored values (H, W, 1|3|4) as uint8, uint16 or float, and the name to use in messages.

    Transparency of 8 bits in a file is laid over white unless `keep_alpha` is true.
    """
    if isinstance(source, str | Path):
        return image_file.load(Path(source), max_pixels, keep_alpha=keep_alpha).array(), str(source)
    if not isinstance(source, np.ndarray):
        raise ImageError(f"an image is a path or a numpy array, not {type(source).__name__}")
    where = f"array {source.shape} of {source.dtype}"
    raw = source[..., None] if source.ndim == 2 else source
    if raw.ndim != 3 or raw.shape[2] not in (1, 3, 4):
        raise ImageError(f"{where}: expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    if raw.size == 0:
        raise ImageError(f"{where}: has no pixels")
    image_file.check_size(raw.shape[1], raw.shape[0], max_pixels, where)
    if raw.dtype == np.bool_:
        return raw * np.uint8(255), where
    if raw.dtype.kind == "u" and raw.dtype.itemsize == 2:
        return raw.astype(np.uint16, copy=False), where
    if raw.dtype != np.uint8 and raw.dtype.kind != "f":
        raise ImageError(f"{where}: expected bool, uint8, uint16 or float in 0..1")
    return raw, where


def _depth(highest: int) -> int:
    return next(depth for depth in _DEPTHS if highest < 2**depth)


def _rgb(values: AnyArray, bits: int, alpha_bits: int) -> AnyArray:
    """Convert stored values (h, w, C) to RGB; uint16 is divided by the full scale of so many bits."""
    if values.dtype == np.uint8:
        return values
    if values.dtype != np.uint16:
        return _on_white(values[..., :3], values[..., 3:]) if values.shape[2] == 4 else three_channels(values)
    if bits == 8 and (values.shape[2] < 4 or alpha_bits == 8):
        return _rgb8(values.astype(np.uint8))
    colour = values[..., :3] / np.float32(2**bits - 1)
    if values.shape[2] < 4:
        return three_channels(colour)
    return _on_white(colour, values[..., 3:] / np.float32(2**alpha_bits - 1))


def _rgb8(raw: AnyArray) -> AnyArray:
    return lay_on_white(raw) if raw.shape[2] == 4 else three_channels(raw)


def _on_white(colour: AnyArray, alpha: AnyArray) -> AnyArray:
    return np.asarray(colour * alpha + (1 - alpha))


def to_uint8(image: AnyArray) -> npt.NDArray[np.uint8]:
    """Convert an image as `read` returns it to 8 bits."""
    return image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
