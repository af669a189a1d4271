from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bgad.data import sample_io
from bgad.data.sample_io import ImageCache, decode, digest, read, read_mask
from bgad.errors import DataError, ImageError
from bgad.geometry.roi import Roi
from bgad.io import images
from bgad.types import Sample
from tests.conftest import SIZE
from tests.data.strips import tiled
from tests.pseudo.scenes import generate


@pytest.fixture(scope="module")
def strip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("strip") / "strip.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 60, 3), np.uint8)).save(path)
    return path


def draw(path: Path, box: tuple[int, int, int, int], size: tuple[int, int] = (60, 24)) -> Path:
    mask = np.zeros(size[::-1], np.uint8)
    mask[box[1] : box[3], box[0] : box[2]] = 255
    Image.fromarray(mask).save(path)
    return path


def test_images_are_read_as_they_are(strip: Path, tmp_path: Path) -> None:
    mask = draw(tmp_path / "m.png", (3, 4, 9, 8))
    sample = Sample(strip, "strip.png", 1, "blot", mask)
    np.testing.assert_array_equal(read(sample), images.read(strip))
    found = read_mask(sample)
    assert found is not None
    np.testing.assert_array_equal(found, images.read_mask(mask))
    assert digest(sample) == hashlib.sha256(strip.read_bytes()).hexdigest()
    assert read_mask(Sample(strip, "strip.png", 1, "blot")) is None


@given(left=st.integers(0, 58), top=st.integers(0, 22), width=st.integers(1, 60), height=st.integers(1, 24))
def test_a_tile_is_a_part_of_its_image(strip: Path, left: int, top: int, width: int, height: int) -> None:
    box = (left, top, left + width, top + height)
    sample = Sample(strip, "strip.png#0", 0, box=box)
    if box[2] > 60 or box[3] > 24:
        with pytest.raises(ImageError, match="does not hold the tile"):
            read(sample)
    else:
        np.testing.assert_array_equal(read(sample), images.read(strip)[top : box[3], left : box[2]])


def test_a_tile_does_not_share_memory(strip: Path) -> None:
    sample = Sample(strip, "strip.png#0", 0, box=(0, 0, 60, 24))
    read(sample)[:] = 0
    np.testing.assert_array_equal(read(sample), images.read(strip))


def test_the_masks_of_a_tile_are_joined_and_cut(strip: Path, tmp_path: Path) -> None:
    first, second = draw(tmp_path / "1.png", (2, 2, 6, 6)), draw(tmp_path / "2.png", (28, 10, 34, 14))
    sample = Sample(strip, "strip.png#0", 1, "nep", first, box=(0, 0, 30, 24), more_masks=(second,))
    found = read_mask(sample)
    assert found is not None
    assert found.shape == (24, 30)
    assert found.sum() == 4 * 4 + 2 * 4
    assert found[10:14, 28:30].all()


def test_masks_that_do_not_fit_are_named(strip: Path, tmp_path: Path) -> None:
    first, small = draw(tmp_path / "1.png", (2, 2, 6, 6)), draw(tmp_path / "2.png", (0, 0, 2, 2), (20, 20))
    with pytest.raises(DataError, match=r"2\.png: has another size than 1\.png"):
        read_mask(Sample(strip, "s", 1, "nep", first, more_masks=(small,)))
    with pytest.raises(ImageError, match=r"2\.png: is 20x20 and does not hold the tile"):
        read_mask(Sample(strip, "s", 1, "nep", small, box=(30, 0, 60, 24)))


def test_tiles_have_their_own_hashes(strip: Path, tmp_path: Path) -> None:
    boxes: list[tuple[int, int, int, int] | None] = [None, (0, 0, 10, 10), (10, 0, 20, 10), (1, 0, 0, 1010)]
    assert len({digest(Sample(strip, "s", 0, box=box)) for box in boxes}) == 4
    copy = tmp_path / "copy.png"
    copy.write_bytes(strip.read_bytes())
    assert digest(Sample(copy, "c", 0, box=boxes[1])) == digest(Sample(strip, "s", 0, box=boxes[1]))


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    sample = Sample(path, "a.png#0", 0, box=(0, 0, 4, 4))
    for value in (10, 20):
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)
        os.utime(path, ns=(value, value))
        assert (read(sample) == value).all()
    path.unlink()
    with pytest.raises(ImageError, match=r"a\.png: cannot be read"):
        read(sample)


def test_deep_tiles_keep_the_scale_of_their_image(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    values = np.zeros((8, 16), np.uint16)
    values[:, 12:] = 4000  # 12 bits; the dark half alone would look like 8
    values[:, :8] = 200
    Image.fromarray(values).save(path)
    tile = read(Sample(path, "t", 0, box=(0, 0, 8, 8)))
    np.testing.assert_allclose(tile, 200 / 4095, rtol=1e-5)
    np.testing.assert_allclose(read(Sample(path, "t", 0, box=(0, 0, 8, 8)), bits=16), 200 / 65535, rtol=1e-5)


def test_pseudo_anomalies_are_cut_from_tiles(tmp_path: Path) -> None:

    samples = tiled(tmp_path).samples
    image, mask, _ = generate(samples[:3], [samples[4]], 1, ImageCache(SIZE), seed=0)[0]
    assert image.shape == (SIZE, SIZE, 3)
    assert 0 < mask.sum() < SIZE * SIZE / 4


# --- what is kept


def write(path: Path, top: int = 255, channels: int = 3, size: tuple[int, int] = (50, 70)) -> Sample:
    """An image of random values up to `top`; with more than 8 bits it is grey."""
    rng = np.random.default_rng(len(path.name))
    values = rng.integers(0, top + 1, (*size, channels), np.uint16)
    values[0, 0] = top
    if top > 255:
        Image.fromarray(values[..., 0]).save(path)
    else:
        Image.fromarray(values.astype(np.uint8)).save(path)
    return Sample(path, path.name, 0, split="train")


def kept(cache: ImageCache, *samples: Sample) -> ImageCache:
    for sample in samples:
        cache.add(sample, decode(sample))
    return cache


def half(path: Path) -> tuple[Roi, Path]:
    """A region of interest: the left part of an image."""
    mask = np.zeros((50, 70), bool)
    mask[:, :33] = True
    Image.fromarray(mask).save(path)
    return Roi(mask), path


@pytest.mark.parametrize("size", [32, 50, 128])
def test_cached_images_have_the_same_bits(tmp_path: Path, decoded: list[Path], size: int) -> None:
    sample = write(tmp_path / "a.png")
    expected = images.fit(read(sample), (size, size))
    cache = ImageCache(size)
    np.testing.assert_array_equal(cache.read(sample), expected)
    kept(cache, sample, write(tmp_path / "deep.png", 4000))
    decoded.clear()
    found = cache.read(sample)
    assert decoded == []
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    found[:] = 0  # the caller may change what it gets
    np.testing.assert_array_equal(cache.read(sample), expected)


@pytest.mark.parametrize("top", [255, 4000])
def test_images_are_kept_blank_outside_of_the_region(tmp_path: Path, decoded: list[Path], top: int) -> None:
    roi, file = half(tmp_path / "roi.png")
    sample = write(tmp_path / "a.png", top)
    blank, whole = (images.fit(read(s, 12), (32, 32)) for s in (replace(sample, roi=file), sample))
    assert not np.array_equal(blank, whole)
    cache = kept(ImageCache(32, roi=roi), sample, write(tmp_path / "small.png", top, size=(40, 70)))
    decoded.clear()
    np.testing.assert_array_equal(cache.read(replace(sample, roi=file)), blank)
    assert decoded == []
    np.testing.assert_array_equal(cache.read(sample), whole)  # not what is asked for
    with pytest.raises(ImageError, match="is 70x40, the model's region of interest 70x50"):
        cache.read(Sample(tmp_path / "small.png", "small", 0, roi=file))
    plain = kept(ImageCache(32), sample)
    np.testing.assert_array_equal(plain.read(replace(sample, roi=file)), blank)


def transparent(path: Path) -> Path:
    """A 16-bit image that gets an alpha channel: one of its values is declared to be transparent."""
    values = np.random.default_rng(0).integers(0, 4000, (50, 70), np.uint16)
    Image.fromarray(values).save(path, transparency=int(values[3, 3]))
    assert images.decode(path).values.shape == (50, 70, 4)
    return path


@pytest.mark.parametrize("kind", ["grey", "dark", "transparent", "float"])
@pytest.mark.parametrize("tiled", [False, True])
def test_deep_images_are_kept_at_the_scale_of_the_data_set(
    tmp_path: Path, decoded: list[Path], kind: str, tiled: bool
) -> None:
    sample = write(tmp_path / "a.png", 900 if kind == "dark" else 4000)
    if kind == "transparent":
        transparent(sample.path)
    elif kind == "float":
        sample = replace(sample, path=tmp_path / "a.tif")
        Image.fromarray(np.random.default_rng(0).random((50, 70), np.float32)).save(sample.path)
    cache = kept(ImageCache(32, tiled=tiled), write(tmp_path / "bright.png", 16000), sample)
    assert cache.bits == 14
    part = replace(sample, box=(5, 7, 48, 50))
    expected = images.fit(images.read(sample.path, bits=14), (32, 32))
    cut = images.fit(images.read(sample.path, bits=14)[7:50, 5:48], (32, 32))
    decoded.clear()
    np.testing.assert_array_equal(cache.read(sample), expected)
    assert decoded == []
    np.testing.assert_array_equal(cache.read(part), cut)
    assert len(decoded) == (0 if tiled else 1)


def test_a_dark_image_that_comes_first_is_decoded_once_more(tmp_path: Path, decoded: list[Path]) -> None:
    """Its scale is not known when it is kept, and pixels that were scaled otherwise are of no use."""
    dark, bright = write(tmp_path / "a.png", 900), write(tmp_path / "bb.png", 4000)
    cache = kept(ImageCache(32), dark, bright)
    expected = images.fit(images.read(dark.path, bits=12), (32, 32))
    decoded.clear()
    for _ in range(3):
        np.testing.assert_array_equal(cache.read(dark), expected)
        cache.read(bright)
    assert decoded == [dark.path]


def test_tiles_are_cut_from_images_that_are_kept(tmp_path: Path, decoded: list[Path]) -> None:
    _, file = half(tmp_path / "roi.png")
    sample = write(tmp_path / "a.png")
    boxes = [(0, 0, 32, 32), (20, 10, 52, 42)]
    tiles = [replace(sample, box=box, roi=file) for box in boxes]
    expected = [images.fit(read(tile), (16, 16)) for tile in tiles]
    cache = kept(ImageCache(16, tiled=True), sample)
    decoded.clear()
    for _ in range(2):
        for tile, wanted in zip(tiles, expected, strict=True):
            np.testing.assert_array_equal(cache.read(tile), wanted)
        np.testing.assert_array_equal(cache.read_complete(sample), images.read(np.array(Image.open(sample.path))))
    assert decoded == []


def test_tiles_of_a_data_set_are_kept_one_by_one(tmp_path: Path, decoded: list[Path]) -> None:
    sample = write(tmp_path / "a.png")
    tiles = [replace(sample, box=box) for box in ((0, 0, 32, 32), (20, 10, 52, 42))]
    expected = [images.fit(read(tile), (16, 16)) for tile in tiles]
    cache = kept(ImageCache(16), *tiles)
    sample_io._cached_image.cache_clear()
    decoded.clear()
    for tile, wanted in zip(tiles, expected, strict=True):
        np.testing.assert_array_equal(cache.read(tile), wanted)
    assert decoded == []


@pytest.mark.parametrize(("tiled", "limit"), [(False, 3 * 32 * 32), (True, 3 * 50 * 70)])
def test_beyond_its_limit_images_are_decoded_again(
    tmp_path: Path, decoded: list[Path], tiled: bool, limit: int
) -> None:
    first, second = write(tmp_path / "a.png"), write(tmp_path / "bb.png")
    cache = kept(ImageCache(32, tiled=tiled, max_bytes=limit), first, first, second)
    decoded.clear()
    for sample in (first, second):
        np.testing.assert_array_equal(cache.read(sample), images.fit(images.read(sample.path), (32, 32)))
    assert decoded == [first.path, second.path, second.path]  # both by this test


def test_test_normals_make_room_for_others(tmp_path: Path, decoded: list[Path]) -> None:
    names = ("a", "bb", "ccc", "dddd")
    a, b, c, d = (write(tmp_path / f"{name}.png") for name in names)
    a, b, d = (replace(sample, split="test") for sample in (a, b, d))
    cache = kept(ImageCache(32, max_bytes=2 * 3 * 32 * 32), a, b, c, d)
    decoded.clear()
    for sample in (a, b, c, d):
        cache.read(sample)
    assert decoded == [b.path, d.path]
    anomaly = replace(d, label=1)
    cache = kept(ImageCache(32, max_bytes=2 * 3 * 32 * 32), a, b, c, anomaly)
    decoded.clear()
    for sample in (c, anomaly):
        cache.read(sample)
    assert decoded == []


def test_masks_are_decoded_once(tmp_path: Path, strip: Path, decoded: list[Path]) -> None:
    mask = draw(tmp_path / "m.png", (3, 4, 9, 8))
    samples: list[Any] = [Sample(strip, "s", 1, "nep", mask), Sample(strip, "s", 1, "nep", mask, box=(2, 3, 33, 24))]
    expected = np.zeros((24, 60), bool)
    expected[4:8, 3:9] = True
    for _ in range(2):
        whole, part = (read_mask(sample) for sample in samples)
        assert whole is not None
        assert part is not None
        assert whole.dtype == part.dtype == np.bool_
        np.testing.assert_array_equal(whole, expected)
        np.testing.assert_array_equal(part, expected[3:24, 2:33])
        whole[:] = True  # the caller may change what it gets
    assert decoded == [mask]
    draw(mask, (0, 0, 1, 1))
    os.utime(mask, ns=(5, 5))
    again = read_mask(samples[0])
    assert again is not None
    assert again.sum() == 1


def test_the_masks_read_last_are_kept(tmp_path: Path, decoded: list[Path]) -> None:
    first, second, third = (draw(tmp_path / f"{i}.png", (i, 0, 9, 8), (16, 8)) for i in range(3))
    masks = sample_io._MaskCache(2 * 16)  # bytes of 16 x 8 bits
    for path in (first, second, first, third, first, third, second):
        masks.read(path, (1,))
    assert decoded == [first, second, third, second]
