from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, TiffImagePlugin

from bgad.errors import ImageError
from bgad.io import images

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (9, 13, 3), np.uint8)
GREY = RGB[..., 0]
DEEP_RGB = RNG.integers(0, 65536, (9, 13, 3), np.uint16)
DEEP_RGB[0, 0] = 65535


def png16(pixels: np.ndarray[Any, Any], extra: bytes = b"") -> bytes:
    """A 16-bit PNG by hand: Pillow cannot write one in colour."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def trns(*key: int) -> bytes:
    body = b"tRNS" + struct.pack(f">{len(key)}H", *key)
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def tiff16(
    pixels: np.ndarray[Any, Any], order: str = "<", *, packed: bool = False, planar: bool = False, **tags: int
) -> bytes:
    """A 16-bit TIFF of one strip by hand."""
    height, width, channels = pixels.shape
    stored = pixels.transpose(2, 0, 1) if planar else pixels
    data = stored.astype(f"{order}u2").tobytes()
    data = zlib.compress(data) if packed else data
    size, count = len(data), channels if planar else 1
    entries = {
        256: (3, [width]),
        257: (3, [height]),
        258: (3, [16] * channels),
        259: (3, [8 if packed else 1]),
        262: (3, [tags.get("photometric", 2)]),
        273: (4, [8 + i * (size // count) for i in range(count)]),
        277: (3, [channels]),
        278: (3, [height]),
        279: (4, [size // count] * count),
        284: (3, [2 if planar else 1]),
    }
    if "orientation" in tags:
        entries[274] = (3, [tags["orientation"]])
    if "extra" in tags:
        entries[338] = (3, [tags["extra"]])
    start = 8 + size
    tail = start + 2 + 12 * len(entries) + 4
    table, more = struct.pack(f"{order}H", len(entries)), b""
    for tag, (kind, values) in sorted(entries.items()):
        body = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(body) > 4:
            body, more = struct.pack(f"{order}I", tail + len(more)), more + body
        table += struct.pack(f"{order}HHI", tag, kind, len(values)) + body.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, start)
    return head + data + table + b"\0\0\0\0" + more


def saved(path: Path, pixels: np.ndarray[Any, Any], **options: Any) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.webp", "größe 測試.PNG"])
def test_lossless_formats_keep_every_pixel(tmp_path: Path, name: str) -> None:
    options = {"lossless": True} if name.endswith("webp") else {}
    got = images.read(saved(tmp_path / name, RGB, **options))
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, RGB)


def test_jpeg(tmp_path: Path) -> None:
    flat = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    got = images.read(str(saved(tmp_path / "a.jpg", flat, quality=95)))
    assert np.abs(got.astype(int) - flat).max() <= 3


def test_grey_bits_and_palette(tmp_path: Path) -> None:
    np.testing.assert_array_equal(images.read(saved(tmp_path / "l.png", GREY)), np.stack([GREY] * 3, 2))
    bits = GREY > 127
    np.testing.assert_array_equal(images.read(saved(tmp_path / "1.png", bits)), np.stack([bits * np.uint8(255)] * 3, 2))
    palette = Image.fromarray(RGB).quantize(32)
    palette.save(tmp_path / "p.png")
    np.testing.assert_array_equal(images.read(tmp_path / "p.png"), np.asarray(palette.convert("RGB")))


def test_cmyk(tmp_path: Path) -> None:
    cmyk = np.zeros((4, 4, 4), np.uint8)
    cmyk[..., 0] = 255  # full cyan
    Image.fromarray(cmyk, "CMYK").save(tmp_path / "c.tif")
    np.testing.assert_array_equal(images.read(tmp_path / "c.tif")[0, 0], [0, 255, 255])


@pytest.mark.parametrize("source", ["rgba", "la", "palette", "key", "array", "float"])
def test_transparency_is_laid_over_white(tmp_path: Path, source: str) -> None:
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = 255, 128, 0
    picture: Any = tmp_path / "a.png"
    expected: list[float] = [0, 127, 255]
    if source == "rgba":
        Image.fromarray(pixels).save(picture)
    elif source == "la":
        Image.fromarray(pixels).convert("LA").save(picture)
    elif source == "palette":
        indexed = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
        indexed.putpalette([0] * 9)
        indexed.save(picture, transparency=bytes([255, 128, 0]))
    elif source == "key":
        Image.fromarray(np.array([[0, 127, 9]], np.uint8)).save(picture, transparency=9)
    elif source == "array":
        picture = pixels
    else:
        picture = pixels / np.float32(255)
        expected = [0, 127 / 255, 1]
    np.testing.assert_allclose(images.read(picture)[0], np.array([expected] * 3).T, rtol=1e-6)


def test_partly_transparent_colour_rounds_to_nearest() -> None:
    got = images.read(np.array([[[10, 200, 255, 100]]], np.uint8))[0, 0]
    exact = np.array([10, 200, 255]) * 100 / 255 + 155
    np.testing.assert_array_equal(got, np.rint(exact))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
def test_orientation_is_applied(tmp_path: Path, name: str, orientation: int) -> None:
    corner = np.zeros((16, 32, 3), np.uint8)
    corner[:8, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    got = images.read(saved(tmp_path / name, corner, exif=exif))
    turned = {
        1: corner,
        2: corner[:, ::-1],
        3: corner[::-1, ::-1],
        4: corner[::-1],
        5: corner.transpose(1, 0, 2),
        6: np.rot90(corner, -1),
        7: corner[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(corner),
    }[orientation]
    assert got.shape == turned.shape
    assert np.abs(got.astype(int) - turned).max() < 40


WRITERS: dict[str, Callable[[np.ndarray[Any, Any]], bytes]] = {
    "png": png16,
    "tiff little endian": tiff16,
    "tiff big endian": lambda p: tiff16(p, ">"),
    "tiff deflate little endian": lambda p: tiff16(p, packed=True),
    "tiff deflate big endian": lambda p: tiff16(p, ">", packed=True),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_deep_colour_keeps_all_16_bits(tmp_path: Path, writer: str) -> None:
    (tmp_path / "a.img").write_bytes(WRITERS[writer](DEEP_RGB))
    got = images.read(tmp_path / "a.img")
    assert got.dtype == np.float32
    np.testing.assert_array_equal(np.rint(got.astype(float) * 65535), DEEP_RGB)
    assert images.decode(tmp_path / "a.img").bits == 16


@pytest.mark.parametrize("packed", [False, True])
def test_deep_tiff_is_turned_as_its_tag_says(tmp_path: Path, packed: bool) -> None:
    (tmp_path / "a.tif").write_bytes(tiff16(DEEP_RGB, packed=packed, orientation=6))
    got = images.read(tmp_path / "a.tif")
    np.testing.assert_array_equal(np.rint(got.astype(float) * 65535), np.rot90(DEEP_RGB, -1))


@pytest.mark.parametrize("kind", ["png", "tiff", "premultiplied tiff", "padded tiff", "grey png"])
def test_deep_alpha(tmp_path: Path, kind: str) -> None:
    colour = DEEP_RGB if kind != "grey png" else np.repeat(DEEP_RGB[..., :1], 3, axis=2)
    alpha = RNG.integers(0, 65536, (9, 13, 1)).astype(np.uint16)
    alpha[0, 0], alpha[1, 1] = 65535, 0
    a = alpha / 65535
    expected = colour / 65535 * a + 1 - a
    both = np.concatenate([colour, alpha], axis=2)
    if kind == "png":
        data = png16(both)
    elif kind == "grey png":
        data = png16(both[..., 2:])
    elif kind == "tiff":
        data = tiff16(both, extra=2)
    elif kind == "padded tiff":
        data, expected = tiff16(both, extra=0), colour / 65535
    else:
        stored = np.concatenate([np.rint(colour * a).astype(np.uint16), alpha], axis=2)
        data = tiff16(stored, extra=1)
    (tmp_path / "a").write_bytes(data)
    np.testing.assert_allclose(images.read(tmp_path / "a"), expected, atol=2e-5)


def test_deep_colour_key(tmp_path: Path) -> None:
    key = tuple(int(v) for v in DEEP_RGB[3, 4])
    (tmp_path / "rgb.png").write_bytes(png16(DEEP_RGB, trns(*key)))
    (tmp_path / "grey.png").write_bytes(png16(DEEP_RGB[..., :1], trns(key[0])))
    expected = DEEP_RGB / 65535
    expected[3, 4] = 1
    np.testing.assert_allclose(images.read(tmp_path / "rgb.png"), expected, atol=1e-6)
    np.testing.assert_allclose(images.read(tmp_path / "grey.png")[..., 2], expected[..., 0], atol=1e-6)


@pytest.mark.parametrize("data", [tiff16(DEEP_RGB, planar=True), tiff16(DEEP_RGB, planar=True, packed=True)])
def test_deep_planar_tiff_is_refused_not_misread(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(ImageError):
        images.read(tmp_path / "a.tif")


def test_deep_cmyk_tiff_is_refused(tmp_path: Path) -> None:
    four = np.concatenate([DEEP_RGB, DEEP_RGB[..., :1]], axis=2)
    (tmp_path / "a.tif").write_bytes(tiff16(four, photometric=5))
    with pytest.raises(ImageError, match="16-bit TIFF is not supported"):
        images.read(tmp_path / "a.tif")


@pytest.mark.parametrize(("top", "depth"), [(200, 8), (256, 10), (1023, 10), (1024, 12), (4095, 12), (4096, 14)])
@pytest.mark.parametrize("kind", ["png", "tif", "array", "big endian array", "tiff big endian"])
def test_depth_is_the_smallest_that_holds_the_largest_value(tmp_path: Path, kind: str, top: int, depth: int) -> None:
    pixels = np.array([[0, 100, top]], np.uint16)
    source: Any = tmp_path / f"a.{kind}"
    if kind in ("png", "tif"):
        Image.fromarray(pixels).save(source)
    elif kind == "tiff big endian":
        source.write_bytes(tiff16(pixels[..., None], ">", photometric=1))
    else:
        source = pixels.astype(">u2") if "endian" in kind else pixels
    assert images.decode(source).bits == depth
    got = images.read(source)
    assert got.dtype == (np.uint8 if depth == 8 else np.float32)
    np.testing.assert_allclose(got[0, :, 1] / (255 if depth == 8 else 1), pixels[0] / (2**depth - 1), rtol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("factor", "top"), [(1, 255), (257, 255), (257, 63), (257, 15)])
def test_pixels_of_8_bits_in_a_file_of_16_are_the_same_image(
    tmp_path: Path, channels: int, factor: int, top: int
) -> None:
    shallow = RNG.integers(0, top + 1, (40, 30, channels), np.uint8)
    shallow[0, 0] = top
    deep = shallow.astype(np.uint16) * np.uint16(factor)
    sources: list[Any] = [deep]
    if channels != 4 or factor == 257:  # alpha in a file has its full scale
        (tmp_path / "a.tif").write_bytes(tiff16(deep, photometric=1 if channels == 1 else 2))
        sources.append(tmp_path / "a.tif")
    expected = images.fit(images.read(shallow), (16, 16))
    for source in sources:
        np.testing.assert_array_equal(images.read(source), images.read(shallow))
        np.testing.assert_array_equal(images.load(source).fit((16, 16)), expected)


def test_few_values_of_a_camera_of_10_bits_are_not_taken_for_8_bits() -> None:
    dark = np.full((4, 4), 257, np.uint16)
    np.testing.assert_allclose(images.read(dark), 257 / 1023, rtol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("bits", [None, 12])
def test_a_part_has_the_scale_of_its_image(kind: Any, channels: int, bits: int | None) -> None:
    values = RNG.random((6, 8, channels)) * 0.9
    values[:4, :5] *= 0.01  # dark, and alone it would be brighter; hardly opaque, and alone it would be more so
    source = (values * {np.uint8: 255, np.uint16: 1000, np.float32: 1}[kind]).astype(kind)
    part = images.decode(source).rgb(bits, (0, 1, 5, 4))
    np.testing.assert_array_equal(part, images.read(source, bits=bits)[1:4, :5])


def test_bits_of_the_model_keep_a_dark_frame_dark() -> None:
    dark = np.full((2, 2), 90, np.uint16)
    np.testing.assert_allclose(images.read(dark, bits=12), 90 / 4095, rtol=1e-6)
    np.testing.assert_allclose(images.read(dark * 100, bits=12), 9000 / 16383, rtol=1e-6)
    np.testing.assert_array_equal(images.read(dark.astype(np.uint8), bits=12), 90)


def test_float_tiff(tmp_path: Path) -> None:
    pixels = RNG.random((5, 6), np.float32)
    np.testing.assert_array_equal(images.read(saved(tmp_path / "a.tif", pixels))[..., 0], pixels)
    assert images.decode(tmp_path / "a.tif").bits == 8
    with pytest.raises(ImageError, match=r"span 0\.5\.\.255"):
        images.read(saved(tmp_path / "b.tif", np.array([[0.5, 255]], np.float32)))


def test_integer_tiff_beyond_16_bits(tmp_path: Path) -> None:
    fine = np.array([[0, 4095]], np.int32)
    np.testing.assert_allclose(images.read(saved(tmp_path / "a.tif", fine))[0, :, 0], [0, 1])
    for bad in ([[0, 65536]], [[-1, 5]]):
        with pytest.raises(ImageError, match=r"0\.\.65535"):
            images.read(saved(tmp_path / "b.tif", np.array(bad, np.int32)))


@given(
    st.sampled_from([np.bool_, np.uint8, np.uint16, np.float16, np.float32, np.float64]),
    st.sampled_from([(), (1,), (3,), (4,)]),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_arrays_follow_the_convention(dtype: Any, tail: tuple[int, ...], height: int, width: int) -> None:
    values = np.random.default_rng(height).random((height, width, *tail))
    full = 1 if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max if dtype != np.bool_ else 1
    got = images.read((values * full).round(3).astype(dtype))
    assert got.shape == (height, width, 3)
    assert got.dtype == (np.uint8 if dtype in (np.bool_, np.uint8) else np.float32)
    assert 0 <= got.min() <= got.max() <= (255 if got.dtype == np.uint8 else 1)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3,)), r"\(3,\) of float64"),
        (np.zeros((2, 2, 2)), r"expected \(H, W\)"),
        (np.zeros((1, 2, 2, 3), np.uint8), r"expected \(H, W\)"),
        (np.zeros((0, 5), np.uint8), "no pixels"),
        (np.zeros((2, 2), np.int64), "int64"),
        (np.zeros((2, 2), np.complex64), "complex64"),
        (np.full((2, 2), "a"), "expected bool"),
        (np.full((2, 2), np.nan), "NaN"),
        (np.array([[0, np.inf]]), "infinite"),
        (np.array([[0, 128.0]]), r"span 0\.\.128; divide"),
        (np.array([[-0.1, 0.5]]), r"span -0\.1"),
        ([[1, 2]], "not list"),
    ],
)
def test_unfit_arrays_are_refused(array: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        images.read(array)


def bomb(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    idat = b"IDAT" + zlib.compress(b"\0" * 100)
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (head, idat)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"hello", "not an image"),
        (RNG.bytes(5000), "not an image"),
        (b"\x89PNG\r\n\x1a\n" + RNG.bytes(5000), "."),
        (b"\xff\xd8\xff\xe0" + RNG.bytes(5000), "."),
        (b"II*\0" + RNG.bytes(5000), "."),
        (b"RIFF\x00\x10\x00\x00WEBP" + RNG.bytes(5000), "."),
        (b"BM" + RNG.bytes(5000), "."),
        (bomb(100_000, 100_000), "100000 x 100000 pixels exceed the limit of 200000000"),
        (bomb(12_000, 12_000), "truncated|broken"),
        (b"GIF89a" + b"\0" * 100, "not an image"),
        (b"%PDF-1.4" + b"\0" * 100, "not an image"),
    ],
)
def test_broken_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "part.png"
    path.write_bytes(data)
    for reader in (images.read, images.read_mask):
        with pytest.raises(ImageError, match=message) as caught:
            reader(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "WEBP"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6])
def test_truncated_files(tmp_path: Path, kind: str, share: float) -> None:
    data = encoded(kind)
    path = tmp_path / "cut.img"
    path.write_bytes(data[: max(10, int(share * len(data)))])
    with pytest.raises(ImageError, match=r"cut\.img: "):
        images.read(path)


@pytest.mark.parametrize("data", [png16(DEEP_RGB), tiff16(DEEP_RGB), tiff16(DEEP_RGB, packed=True)])
def test_truncated_deep_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageError):
        images.read(tmp_path / "a")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "WEBP"])
def test_damaged_files_are_read_or_refused_cleanly(tmp_path: Path, kind: str) -> None:
    rng, data = np.random.default_rng(7), encoded(kind)
    for _ in range(30):
        damaged = np.frombuffer(data, np.uint8).copy()
        at = rng.integers(0, min(400, len(damaged)), 4)
        damaged[at] = rng.integers(0, 256, 4)
        (tmp_path / "a").write_bytes(damaged.tobytes())
        with suppress(ImageError):
            assert images.read(tmp_path / "a", max_pixels=1_000_000).ndim == 3


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="No such file"):
        images.read(tmp_path / "missing.png")
    with pytest.raises(ImageError, match="is a folder"):
        images.read(tmp_path)
    with pytest.raises(ImageError, match="cannot be read"):
        images.read("a\0b.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="not a regular file"):
        images.read(tmp_path / "pipe.png")


def test_forbidden_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = saved(tmp_path / "a.png", RGB)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ImageError, match=r"a\.png: cannot be read: Permission denied"):
        images.read(path)


@pytest.mark.parametrize(
    "error", [MemoryError(), EOFError("x"), struct.error("y"), OverflowError("z\nz"), zlib.error("w")]
)
def test_whatever_a_decoder_throws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    path = saved(tmp_path / "a.png", RGB)
    monkeypatch.setattr(ImageOps, "exif_transpose", broken)
    with pytest.raises(ImageError, match=r"a\.png: cannot be read: \S+") as caught:
        images.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.tif", "a.png", "a.webp"])
def test_several_frames(tmp_path: Path, name: str) -> None:
    frames = [Image.fromarray(np.roll(RGB, i, 0)) for i in range(3)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with pytest.raises(ImageError, match="has several frames; save the one to inspect as a single image"):
        images.read(tmp_path / name)
    frames[0].save(tmp_path / name, save_all=True)
    assert images.read(tmp_path / name).shape == RGB.shape


def test_phone_jpeg_with_a_preview_gives_the_image(tmp_path: Path) -> None:
    frames = [Image.new("RGB", size, colour) for size, colour in (((32, 16), "red"), ((8, 8), "blue"))]
    frames[0].save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=frames[1:])
    got = images.read(tmp_path / "a.jpg")
    assert got.shape == (16, 32, 3)
    assert got[0, 0, 0] > 200


def test_our_size_limit_replaces_pillows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for name in ("a.png", "a.tif", "a.bmp"):
        np.testing.assert_array_equal(images.read(saved(tmp_path / name, RGB)), RGB)
    with pytest.raises(ImageError, match="13 x 9 pixels exceed the limit of 100"):
        images.read(tmp_path / "a.png", max_pixels=100)
    with pytest.raises(ImageError, match="exceed the limit of 100"):
        images.read(RGB, max_pixels=100)


@pytest.mark.parametrize(
    "data",
    [tiff16(DEEP_RGB), tiff16(DEEP_RGB, packed=True), tiff16(DEEP_RGB, packed=True, orientation=6)],
    ids=["plain", "packed", "turned"],
)
def test_a_deep_tiff_beyond_pillows_limit_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(data)
    expected = images.read(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    np.testing.assert_array_equal(images.read(path), expected)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "F", "I;16"])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_every_kind_of_tiff_beyond_pillows_limit_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, compression: str
) -> None:
    path = tmp_path / "a.tif"
    picture = Image.fromarray(GREY / np.float32(255)) if mode == "F" else Image.fromarray(RGB)
    if mode == "I;16":
        picture = Image.fromarray(DEEP_RGB[..., 0])
    picture.convert(mode).save(path, compression=compression)
    expected = images.read(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    np.testing.assert_array_equal(images.read(path), expected)


def test_pillows_limit_is_not_changed_while_an_image_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is a setting of the process: other threads may rely on it."""
    limits: list[int | None] = []
    turn = ImageOps.exif_transpose

    def watched(image: Image.Image, **options: Any) -> Any:
        limits.append(Image.MAX_IMAGE_PIXELS)
        return turn(image, **options)

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    monkeypatch.setattr(ImageOps, "exif_transpose", watched)
    images.read(saved(tmp_path / "a.png", RGB))
    images.read(saved(tmp_path / "a.tif", RGB))
    assert set(limits) == {10}


def test_masks(tmp_path: Path) -> None:
    truth = np.zeros((16, 24), bool)
    truth[4:12, 8:16] = True
    zero = np.zeros_like(truth, np.uint8)
    forms: dict[str, np.ndarray[Any, Any]] = {
        "255.png": truth * np.uint8(255),
        "1.png": truth * np.uint8(1),
        "deep.png": truth * np.uint16(1),
        "bits.png": truth,
        "blue.png": np.stack([zero, zero, truth * np.uint8(1)], axis=2),
        "clear.png": np.stack([zero + 255] * 3 + [truth * np.uint8(255)], axis=2),
        "lossy.jpg": truth * np.uint8(255),
    }
    for name, pixels in forms.items():
        np.testing.assert_array_equal(images.read_mask(saved(tmp_path / name, pixels)), truth, err_msg=name)
    indexed = Image.fromarray(truth * np.uint8(3), "P")
    indexed.putpalette([0, 0, 0] * 3 + [128, 0, 0])
    indexed.save(tmp_path / "p.png")
    np.testing.assert_array_equal(images.read_mask(tmp_path / "p.png"), truth)


def test_fit_is_the_same_for_8_bit_and_float() -> None:
    big = RNG.integers(0, 256, (60, 80, 3), np.uint8)
    got = images.fit(big, (20, 30))
    assert got.shape == (20, 30, 3)
    assert got.dtype == np.float32
    deep = images.fit(big / np.float32(255), (20, 30))
    assert np.abs(got - deep).max() < 0.51 / 255 + 0.5 / 255
    np.testing.assert_allclose(images.fit(big, (60, 80)), big / 255, atol=1e-6)


def test_fit_antialiases() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    assert np.ptp(images.fit(stripes, (8, 8))[:, 1:-1]) < 0.02


def test_resize_map() -> None:
    ramp = np.tile(np.arange(8, dtype=np.float32), (4, 1))
    up = images.resize_map(ramp, (8, 16))
    assert up.shape == (8, 16)
    np.testing.assert_allclose(up[3, 1:-1], np.arange(14) / 2 + 0.25, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "start", "kind"),
    [
        ("a.gif", b"GIF89a", "GIF"),
        ("a.png", b"GIF87a", "GIF"),
        ("a.jpg", b"\0\0\0\x18ftypheic", "HEIC"),
        ("a.png", b"\0\0\0\x1cftypavif", "AVIF"),
        ("a.tga", b"\0\0\2", "TGA"),
    ],
)
def test_a_kind_that_is_not_read_is_named(tmp_path: Path, name: str, start: bytes, kind: str) -> None:
    content = start + bytes(100)
    (tmp_path / name).write_bytes(content)
    message = f"{kind} is not an image format that is read: save it as one of PNG, JPEG, BMP, TIFF, WEBP"
    with pytest.raises(ImageError, match=rf"{name}: {message}$"):
        images.read(tmp_path / name)
    if name != "a.tga":
        with pytest.raises(ImageError, match=f"^image: {message}$"):
            images.check_bytes(content)


def test_libtiff_is_what_the_packed_files_went_through(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(tiff16(DEEP_RGB, packed=True))
    with Image.open(tmp_path / "a.tif") as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        assert image.tile[0].codec_name == "libtiff"
