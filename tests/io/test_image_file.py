"""Images in their own form: equal pixels at the model's input, and little memory for large ones."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, WebPImagePlugin

from benchmarks.decoding import INPUT, Preparing, save_deep
from bgad.errors import ImageError
from bgad.io import image_file, images
from bgad.types import AnyArray

SHAPE = (37, 29)
SIZES = [(16, 16), (37, 12), (20, 29), SHAPE, (64, 50)]  # also: one side or none is resized, and both grow


def write(path: Path, kind: str) -> Path:
    rng = np.random.default_rng(0)
    if kind in ("LA;16", "RGB;16", "RGBA;16"):
        save_deep(path, rng.integers(0, 2**12, (*SHAPE, {"LA": 2, "RGB": 3, "RGBA": 4}[kind[:-3]]), np.uint16))
        return path
    colour = Image.fromarray(rng.integers(0, 256, (*SHAPE, 4), np.uint8))
    image = {
        "I;16": lambda: Image.fromarray(rng.integers(0, 2**14, SHAPE, np.uint16)),
        "F": lambda: Image.fromarray(rng.random(SHAPE, np.float32)),
    }.get(kind, lambda: colour.convert(kind))()
    image.save(path := path.with_suffix(".tif") if kind in ("F", "CMYK") else path)
    return path


@pytest.mark.parametrize(
    "kind", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "I;16", "F", "LA;16", "RGB;16", "RGBA;16"]
)
def test_what_is_resized_in_bands_is_what_is_resized_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of an image are the same, bit by bit, however large its bands are."""
    path = write(tmp_path / "image.png", kind)
    complete = images.read(path, bits=13)
    expected = [images.fit(complete, size) for size in SIZES]
    monkeypatch.setattr(image_file, "BAND_PIXELS", 100)  # three rows
    loaded = images.load(path)
    assert loaded.shape == SHAPE
    for size, fitted in zip(SIZES, expected, strict=True):
        assert np.array_equal(loaded.fit(size, 13), fitted)
    assert np.array_equal(loaded.rgb((3, 5, 20, 30), 13), complete[5:30, 3:20])
    assert np.array_equal(loaded.uint8(13), images.to_uint8(complete))
    assert np.array_equal(images.read(path, bits=13), complete)


@pytest.mark.parametrize("shape", [(120, 29), (29, 120), (300, 5), (5, 300), (9, 11), (1, 40), (40, 1)])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("long", [2**14, 7])  # 7: sides are shortened as those of very long images are
def test_bands_are_the_same_for_tall_wide_narrow_and_low_images(
    shape: tuple[int, int], deep: bool, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_LONG", long)
    values = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    pixels = values / np.float32(255) if deep else values
    for size in [(16, 16), (1, 1), (2, 9), (64, 12), (12, 64)]:
        monkeypatch.setattr(image_file, "BAND_PIXELS", 2**20)
        expected = images.fit(pixels, size)
        assert expected.shape == (*size, 3)
        for band_pixels in (1, 64, 100, 333):
            monkeypatch.setattr(image_file, "BAND_PIXELS", band_pixels)
            assert np.array_equal(images.load(pixels).fit(size), expected)
            assert np.array_equal(images.fit(pixels, size), expected)


@pytest.mark.parametrize("shape", [(37, 29), (120, 29), (29, 120), (9, 11)])
def test_rows_are_resized_before_columns_whatever_the_order_of_pillow(shape: tuple[int, int]) -> None:
    """A score must not depend on the version of Pillow, nor on whether an image is resized in bands."""
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    rows = Image.fromarray(pixels).resize((16, shape[0]), Image.Resampling.BILINEAR)
    expected = np.asarray(rows.resize((16, 16), Image.Resampling.BILINEAR), np.float32) / np.float32(255)
    assert np.array_equal(images.fit(pixels, (16, 16)), expected)


@pytest.mark.parametrize("shape", [(100_000, 3), (3, 100_000)])
def test_a_very_long_side_is_resized_nearly_as_at_once(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    at_once = np.asarray(Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR), np.float32) / 255
    np.testing.assert_allclose(images.fit(pixels, (32, 32)), at_once, atol=2 / 255)


def test_an_array_is_loaded_as_a_file_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 2**10, (*SHAPE, 4), np.uint16)
    assert np.array_equal(images.load(pixels).fit((16, 16)), images.fit(images.read(pixels), (16, 16)))


MEASURED = """
import sys
from pathlib import Path
from bgad.io import images

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

size = int(sys.argv[3]), int(sys.argv[3])
images.load(Path(sys.argv[1])).fit(size)
before = peak()
images.load(Path(sys.argv[2])).fit(size)
print((peak() - before) / 1e6)
"""


def growth(small: Path, large: Path, side: int) -> float:
    """The megabytes that a large image takes beyond a small one until both are the model's input."""
    command = [sys.executable, "-c", MEASURED, str(small), str(large), str(side)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


tells_peak = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")


@tells_peak
@pytest.mark.parametrize(
    ("kind", "byte_count"),  # of a pixel in memory; converted at once, it took 7 to 52
    [("1", 1), ("I;16", 2), ("LA;16", 4), ("RGB;16", 7), ("RGBA;16", 8)],
)
def test_a_large_image_takes_its_own_size_and_a_few_bands(kind: str, byte_count: int, tmp_path: Path) -> None:
    def save(name: str, side: int) -> Path:
        path = tmp_path / name
        if kind.endswith(";16") and kind != "I;16":
            save_deep(path, np.zeros((side, side, {"LA": 2, "RGB": 3, "RGBA": 4}[kind[:-3]]), np.uint16))
        else:
            Image.new(kind, (side, side)).save(path, compress_level=1)
        return path

    grown = growth(save("small.png", 64), save("large.png", 4000), 64)
    assert grown < 16 * byte_count + 80  # 16 megapixels, and bands of one megapixel in float32


@tells_peak
@pytest.mark.parametrize("kind", ["L", "I;16"])
@pytest.mark.parametrize("size", [(4, 300_000), (300_000, 4), (300, 30_000)])
def test_a_long_and_narrow_image_takes_little_memory(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Its rows were widened to the model's input before its columns were shortened: 634 MB for 4 x 300,000 pixels."""
    Image.new(kind, (64, 64)).save(small := tmp_path / "small.png")
    Image.new(kind, size).save(large := tmp_path / "large.png")
    assert growth(small, large, 448) < 120


def test_the_benchmark_of_memory_prepares_an_image(tmp_path: Path) -> None:
    Image.new("RGB", (20, 30), "red").save(path := tmp_path / "small.png")
    pixels, shape = Preparing().prepare(path)
    assert (pixels.shape, shape) == ((INPUT, INPUT, 3), (30, 20))


def test_a_wide_image_has_bands_of_one_row() -> None:
    assert list(image_file.bands((0, 0, 2**21, 3))) == [(0, row, 2**21, row + 1) for row in range(3)]


def test_the_ends_of_the_scale_are_those_of_the_image_not_of_a_band(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels: AnyArray = np.zeros((9, 5), np.uint16)
    pixels[8, 4] = 4095  # twelve bits, in the last band
    Image.fromarray(pixels).save(path := tmp_path / "a.png")
    monkeypatch.setattr(image_file, "BAND_PIXELS", 5)
    assert images.load(path).rgb((4, 8, 5, 9)).tolist() == [[[1.0, 1.0, 1.0]]]


@pytest.mark.parametrize(("suffix", "mode"), [(".tif", "L"), (".tif", "RGB"), (".bmp", "L"), (".tif", "I;16")])
def test_a_loaded_image_does_not_depend_on_its_file(suffix: str, mode: str, tmp_path: Path) -> None:
    """Pillow maps uncompressed pixels into memory: another content changed them, and a shorter file was SIGBUS."""
    path = tmp_path / f"image{suffix}"
    Image.new(mode, (64, 64), 0).save(path)
    loaded = images.load(path)
    before = loaded.rgb((0, 0, 64, 64)).copy()
    with path.open("r+b") as file:  # the same file, as another program overwrites it
        size = file.seek(0, 2)
        file.seek(0)
        file.write(b"\xff" * size)
    assert np.array_equal(loaded.rgb((0, 0, 64, 64)), before)
    os.truncate(path, 0)
    assert np.array_equal(loaded.rgb((0, 0, 64, 64)), before)


def test_a_loaded_webp_does_not_keep_its_decoder(tmp_path: Path) -> None:
    """A decoder of WebP has two canvases of the image's size."""
    Image.new("RGB", (64, 64), "red").save(path := tmp_path / "image.webp", lossless=True)
    loaded = images.load(path)
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is WebPImagePlugin.WebPImageFile]
    assert loaded.rgb((0, 0, 1, 1)).tolist() == [[[255, 0, 0]]]


@pytest.mark.parametrize("error", [MemoryError(), OSError("no conversion")])
def test_what_fails_when_a_part_is_converted_names_the_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(*_: object) -> Image.Image:
        raise error

    Image.new("L", (8, 8)).save(path := tmp_path / "image.png")
    loaded = images.load(path)
    monkeypatch.setattr(Image.Image, "convert", convert)
    with pytest.raises(ImageError, match=r"image\.png: cannot be read: "):
        loaded.rgb((0, 0, 8, 8))
