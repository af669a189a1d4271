"""Any image file or array -> one pixel convention: RGB (H, W, 3), uint8 0..255, or float32 0..1 if deeper."""

from __future__ import annotations

import glob
import io
import logging
import os
import re
import stat
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError

from bgad.errors import BgadError, DataError, ImageError
from bgad.io.files import write_whole
from bgad.types import BoolArray, FloatArray, ImageLike

logger = logging.getLogger(__name__)

MAX_PIXELS = 200_000_000
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_OTHERS = "arw avif cr2 cr3 dcm dib dng exr gif heic heif hif j2k jfif jp2 jpe jxl nef pbm pgm pnm ppm psd raw tga"
OTHER_SUFFIXES = frozenset(f".{name}" for name in _OTHERS.split())  # pictures too, but not looked for

_DEPTHS = (8, 10, 12, 14, 16)
_GREY_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_DEEP_RAW = re.compile(r"(LA|RGB|RGBA|RGBa|RGBX);16([BLN])")
_BITS_PER_SAMPLE, _PLANAR = 258, 284  # TIFF tags
# Yellow to dark red; the lightness falls evenly, so that hotter also reads as darker in grey print.
_RAMP = np.array([[255, 237, 130], [254, 178, 76], [240, 90, 40], [165, 0, 38]], np.float32)
_HAZE, _HEAT = 255, 1023  # steps of the heat table up to the boundary, and beyond it
_STRIP = 64  # rows of a picture that are drawn at a time
# How files of other kinds begin, some of them after a length of 4 bytes.
_MAGIC = {b"GIF8": "GIF", b"ftyphei": "HEIC", b"ftypmif1": "HEIF", b"ftypavif": "AVIF", b"jP  ": "JPEG 2000"}

AnyArray = npt.NDArray[Any]


def read(source: ImageLike, *, max_pixels: int = MAX_PIXELS, bits: int | None = None) -> AnyArray:
    """A file or an array as RGB (H, W, 3): uint8, or float32 in 0..1 where the source has more than 8 bits.

    Orientation is applied and transparency is laid over white. 16-bit values are scaled by the range that
    holds the largest of them (8, 10, 12, 14 or 16 bits), or by `bits` if that is wider, so that a dark frame
    of a 12-bit camera stays dark. An array may be returned as it is, without a copy.
    """
    raw, where = _raw(source, max_pixels)
    if raw.dtype == np.uint8:
        return _rgb8(raw)
    if raw.dtype == np.uint16:
        depth = max(_depth(raw), bits or 0)
        colour = raw[..., :3] / np.float32(2**depth - 1)
        if raw.shape[2] < 4:
            return _three(colour)
        return _on_white(colour, raw[..., 3:] / np.float32(2 ** _depth(raw[..., 3:]) - 1))
    low, high = float(raw.min()), float(raw.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError(f"{where}: has NaN or infinite values; replace them first")
    if low < 0 or high > 1:
        raise ImageError(f"{where}: float values must lie in 0..1 but span {low:g}..{high:g}; divide by the full scale")
    raw = raw.astype(np.float32, copy=False)
    return _on_white(raw[..., :3], raw[..., 3:]) if raw.shape[2] == 4 else _three(raw)


def bit_depth(source: ImageLike) -> int:
    """The bits that the values of one image need: 8, 10, 12, 14 or 16; only deep files are decoded for it."""
    if isinstance(source, str | Path):
        with _open(Path(source), MAX_PIXELS) as image:
            if image.mode not in _GREY_DEEP and not _deep_raw(image, source):
                return 8
    raw, _ = _raw(source, MAX_PIXELS)
    return _depth(raw) if raw.dtype == np.uint16 else 8


def check_bytes(content: bytes, *, max_pixels: int = MAX_PIXELS) -> None:
    """ImageError where the bytes are no image that `read` would take; only their header is looked at."""
    with _opened(io.BytesIO(content), "picture", max_pixels):
        pass


def read_mask(path: str | Path) -> BoolArray:
    """Where a mask marks a defect (H, W): all but black, 0/1 and 0/255 alike; transparent means unmarked.

    JPEG leaves faint noise around edges, so a JPEG mask counts from half brightness.
    """
    raw, _ = _raw(path, MAX_PIXELS)
    if raw.shape[2] == 4:
        raw = raw[..., :3] * (raw[..., 3:] > 0)
    with _open(Path(path), MAX_PIXELS) as image:
        floor = 127 if image.format in ("JPEG", "MPO") else 0
    return np.asarray(np.any(raw > floor, axis=2))  # (H, W)


def mask_from_png(content: bytes) -> BoolArray:
    """A mask of our own (H, W): all but black; transparent means unmarked."""
    with _LIMIT_OFF, Image.open(io.BytesIO(content), formats=("PNG",)) as image:
        marked = np.asarray(image.convert("L")) > 0
        if image.has_transparency_data:
            marked &= np.asarray(image.convert("RGBA").getchannel("A")) > 0
        return marked


def fit(image: AnyArray, size: tuple[int, int]) -> FloatArray:
    """An RGB image stretched to (height, width) with antialiasing, float32 in 0..1, (h, w, 3)."""
    if image.dtype == np.uint8:
        small = Image.fromarray(np.ascontiguousarray(image)).resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(small, np.float32) / np.float32(255)
    return np.stack([resize_map(image[..., c], size) for c in range(3)], axis=-1)  # (h, w, 3)


def resize_map(map: FloatArray, size: tuple[int, int]) -> FloatArray:
    """A map (h, w) resized bilinearly to (height, width)."""
    picture = Image.fromarray(np.ascontiguousarray(map, np.float32))
    return np.array(picture.resize(size[::-1], Image.Resampling.BILINEAR))


def resize_mask(mask: BoolArray, size: tuple[int, int]) -> BoolArray:
    """A mask (h, w) resized to (height, width) by the nearest pixel."""
    picture = Image.fromarray(np.ascontiguousarray(mask, np.uint8))
    return np.asarray(picture.resize(size[::-1], Image.Resampling.NEAREST)) > 0


def overlay(image: AnyArray, map: FloatArray, boundary: float, low: float | None = None) -> npt.NDArray[np.uint8]:
    """The picture with its map as heat: almost clear up to the boundary, then yellow to dark red.

    The distance from `low` (where the faint haze begins; by default the map's minimum) to the boundary is the
    unit of heat, not the map's maximum: a quiet picture stays quiet.
    """
    low = float(map.min()) if low is None else low
    unit = boundary - low if boundary > low else 1.0
    keep, add = _heat_table()
    drawn = np.empty(image.shape, np.uint8)
    for top in range(0, len(map), _STRIP):
        rows = slice(top, top + _STRIP)
        some = map[rows]
        haze = _HAZE * np.clip((some - low) / unit, 0, 1)
        heat = _HAZE + 1 + _HEAT * (1 - np.exp(-np.maximum(some - boundary, 0) / unit))
        step = np.rint(np.where(some > boundary, heat, haze)).astype(np.intp)  # (h, W)
        drawn[rows] = np.rint(to_uint8(image[rows]) * keep.take(step, 0, mode="clip") + add.take(step, 0, mode="clip"))
    return drawn


@cache
def _heat_table() -> tuple[FloatArray, FloatArray]:
    """For each step of heat, the share of the picture that stays and the colour that is added, both (n, 3)."""
    heat = np.concatenate([np.zeros(_HAZE + 1), np.linspace(0, 1, _HEAT + 1)])
    alpha = np.concatenate([np.linspace(0, 0.1, _HAZE + 1), 0.35 + 0.4 * heat[_HAZE + 1 :]])[:, None]
    stops = np.linspace(0, 1, len(_RAMP))
    colour = np.stack([np.interp(heat, stops, _RAMP[:, c]) for c in range(3)], axis=-1)
    return np.repeat(1 - alpha, 3, axis=1).astype(np.float32), (colour * alpha).astype(np.float32)


def outline(image: AnyArray, mask: BoolArray, colour: tuple[int, int, int] = (255, 0, 0)) -> npt.NDArray[np.uint8]:
    """The picture with the inner edge of a mask drawn in a colour; the line grows with the picture."""
    inner = mask
    for _ in range(max(1, round(max(mask.shape) / 512))):
        around = np.pad(inner, 1)  # outside counts as unmarked: a mask at the rim keeps its line there
        inner = inner & around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    drawn = to_uint8(image).copy()
    drawn[mask & ~inner] = colour
    return drawn


def save_png(array: AnyArray, path: str | Path) -> None:
    """Write an 8-bit picture as PNG; the file appears whole or not at all."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", compress_level=1)  # 4 times as fast, hardly larger
    write_whole(Path(path), buffer.getvalue())


def save_map(map: FloatArray, path: str | Path) -> None:
    """Write a map as 32-bit float TIFF: every image tool reads it, and nothing is rounded."""
    buffer = io.BytesIO()  # not straight to the file: libtiff refuses some of the names that a file can have
    Image.fromarray(np.ascontiguousarray(map)).save(buffer, "TIFF", compression="tiff_adobe_deflate")
    write_whole(Path(path), buffer.getvalue())


def natural_key(path: Path) -> tuple[list[str | int], str]:
    """Sorts img2 before img10."""
    text = path.as_posix()
    parts = re.split(r"(\d+)", text.casefold())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], text


def walk(folder: Path, unused: Counter[str] | None = None) -> list[Path]:
    """Every image below a folder, natural-sorted; hidden names are skipped and no folder is entered twice.

    `unused` counts what a person would take for a picture but is none that is read.
    """
    found = []
    for path in (path for sub in _folders(folder) for path in _children(sub)):
        if _is_image(path):
            found.append(path)
        elif unused is not None:
            _count(path, unused)
    return sorted(found, key=natural_key)


def tally(unused: Counter[str]) -> str:
    """What `walk` counted, for a message.

    >>> tally(Counter({".heic": 4, "broken link": 1, ".gif": 2}))
    '2 .gif, 4 .heic, 1 broken link'
    """
    return ", ".join(
        f"{count} {what}{'s' if what[0] != '.' and count > 1 else ''}" for what, count in sorted(unused.items())
    )


def _count(path: Path, unused: Counter[str]) -> None:
    if path.suffix.lower() in OTHER_SUFFIXES and path.is_file():
        unused[path.suffix.lower()] += 1
    elif path.is_symlink() and not path.exists():
        unused["broken link"] += 1


def expand(paths: Sequence[str | Path], *, missing_ok: bool = False) -> list[Path]:
    """Files, folders and glob patterns (with **) as a list of images, each once, in the order given.

    With `missing_ok` a file that does not exist stays in the list, for its reader to complain of. What a folder or a
    pattern holds of pictures that are not read is told in one warning.
    """
    images: dict[Path, Path] = {}
    unused: Counter[str] = Counter()
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = walk(path, unused)
        elif path.exists():
            found = [path]
        elif glob.has_magic(str(given)):
            found = []
            for match in sorted(_glob(Path(given).as_posix()), key=natural_key):
                if match.is_dir():
                    found += walk(match, unused)
                elif _is_image(match):
                    found.append(match)
                else:
                    _count(match, unused)
        elif missing_ok:
            found = [path]
        else:
            raise DataError(f"{given}: no such file or folder")
        if not found:
            others = f"; {tally(unused)} not used" if unused else ""
            raise DataError(f"{given}: no image found ({', '.join(sorted(IMAGE_SUFFIXES))}){others}")
        for one in found:
            images.setdefault(Path(os.path.realpath(one)), one)  # unlike resolve, takes a circle of links
    if unused:
        logger.warning(f"{tally(unused)} not used")
    return list(images.values())


def _raw(source: ImageLike, max_pixels: int) -> tuple[AnyArray, str]:
    """Stored values (H, W, 1|3|4) as uint8, uint16 or float, and the name to use in messages."""
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


def _decode(path: Path, max_pixels: int) -> AnyArray:
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


def _deep_raw(image: ImageFile.ImageFile, path: str | Path) -> str | None:
    """The raw mode of a file with 16-bit colour or alpha, of which Pillow decodes only the high bytes."""
    tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
    args = image.tile[0].args if image.tile else None
    raw = args[0] if isinstance(args, tuple) and args else args
    deep = raw if isinstance(raw, str) and _DEEP_RAW.fullmatch(raw) else None
    many = max(tags.get(_BITS_PER_SAMPLE, (1,))) > 8 and image.mode not in (*_GREY_DEEP, "F")
    if many and (deep is None or tags.get(_PLANAR) == 2):
        raise ImageError(f"{path}: this kind of 16-bit TIFF is not supported; save it as RGB, chunky (not planar)")
    return deep


def _join_bytes(path: Path, max_pixels: int, raw: str) -> AnyArray:
    """All 16 bits of a colour image: decode once as it is and once with the bytes swapped."""
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


def _load_as(path: Path, max_pixels: int, raw: str) -> AnyArray:
    with _open(path, max_pixels) as image:
        image.tile = [
            tile._replace(args=raw if isinstance(tile.args, str) else (raw, *(tile.args or ())[1:]))
            for tile in image.tile
        ]
        return np.asarray(ImageOps.exif_transpose(image))


def _cut_out(pixels: AnyArray, key: int | tuple[int, ...]) -> AnyArray:
    """A PNG may name one colour as transparent: give the pixels an alpha channel that says so."""
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
    """A picture as `read` gives it, with 8 bits."""
    return image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)


def _check_size(width: int, height: int, max_pixels: int, where: object) -> None:
    if width * height > max_pixels:
        raise ImageError(f"{where}: {width} x {height} pixels exceed the limit of {max_pixels}; scale it or cut tiles")


class _PillowLimitOff:
    """Pillow's own size limit is lifted while we have an image open (in any thread): ours holds instead."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._saved: int | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._saved, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                Image.MAX_IMAGE_PIXELS = self._saved


_LIMIT_OFF = _PillowLimitOff()


@contextmanager
def _open(path: Path, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    """An image file with its header checked; what a decoder throws on broken data becomes one ImageError."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{path}: is a folder, not an image")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path}: is not a regular file")
        if status.st_size == 0:
            raise ImageError(f"{path}: is empty (0 bytes)")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ImageError(f"{path}: cannot be read: {_cause(error)}") from error
    with _opened(path, path, max_pixels) as image:
        yield image


@contextmanager
def _opened(source: Path | io.BytesIO, where: object, max_pixels: int) -> Iterator[ImageFile.ImageFile]:
    try:
        with _LIMIT_OFF, Image.open(source, formats=FORMATS) as image:
            _check_size(*image.size, max_pixels, where)
            frames = getattr(image, "n_frames", 1)
            # The further pictures of an MPO (a JPEG of a phone) are previews and depth maps, not frames.
            if frames > 1 and image.format != "MPO":
                raise ImageError(f"{where}: has {frames} frames; save the one to inspect as a single image")
            yield image
    except BgadError:
        raise
    except UnidentifiedImageError as error:
        kind, known = _other_kind(source), ", ".join(FORMATS)
        if kind:
            raise ImageError(
                f"{where}: {kind} is not an image format that is read: save it as one of {known}"
            ) from error
        raise ImageError(f"{where}: not an image, or its header is broken (formats: {known})") from error
    except Exception as error:
        raise ImageError(f"{where}: cannot be read: {_cause(error)}") from error


def _other_kind(source: Path | io.BytesIO) -> str | None:
    """The name of a kind of picture that is not read."""
    if isinstance(source, Path) and source.suffix.lower() in OTHER_SUFFIXES:
        return source.suffix[1:].upper()
    start = b""
    with suppress(OSError), source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
        file.seek(0)
        start = file.read(16)
    return next((kind for magic, kind in _MAGIC.items() if start.startswith((magic, start[:4] + magic))), None)


def _cause(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _children(folder: Path) -> Iterable[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {_cause(error)}") from error


def _folders(top: Path) -> Iterator[Path]:
    """A folder and all below it; links come last, and never lead to a folder seen before or above the top."""
    seen = set(top.resolve().parents)
    real, links = [top], deque[Path]()
    while real or links:
        folder = real.pop() if real else links.popleft()
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        yield folder
        for path in sorted(_children(folder), key=natural_key):
            if path.is_dir():
                (links if path.is_symlink() else real).append(path)


def _glob(pattern: str) -> Iterator[Path]:
    """Like glob.glob with recursion, but ** walks each folder once, however links are laid."""
    if pattern.endswith("**"):
        pattern += "/*"
    deep = re.search(r"(?:^|(?<=/))\*\*/", pattern)
    if not deep:
        yield from map(Path, glob.glob(pattern))  # noqa: PTH207 - the pattern may be absolute
        return
    head, tail = pattern[: deep.start()], pattern[deep.end() :]
    for top in glob.glob(head) if head else [os.curdir]:  # noqa: PTH207
        for folder in _folders(Path(top)) if Path(top).is_dir() else ():
            matches = _glob(f"{glob.escape(folder.as_posix())}/{tail}")
            yield from (path for path in matches if not (path.is_symlink() and path.is_dir()))
