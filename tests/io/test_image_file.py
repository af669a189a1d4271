"""Images in their own form: equal pixels at the model's input, and little memory for large ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.decoding import save_deep
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


def test_an_array_is_loaded_as_a_file_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 2**10, (*SHAPE, 4), np.uint16)
    assert np.array_equal(images.load(pixels).fit((16, 16)), images.fit(images.read(pixels), (16, 16)))


MEASURED = """
import sys
from pathlib import Path
from bgad.io import images

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

images.load(Path(sys.argv[1])).fit((64, 64))
before = peak()
images.load(Path(sys.argv[2])).fit((64, 64))
print((peak() - before) / 1e6)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
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

    command = [sys.executable, "-c", MEASURED, str(save("small.png", 64)), str(save("large.png", 4000))]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 16 * byte_count + 80  # 16 megapixels, and bands of one megapixel in float32


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
