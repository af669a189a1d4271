from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bgad.data.sample_io import digest, read, read_mask
from bgad.errors import DataError, ImageError
from bgad.io import images
from bgad.types import Sample
from tests.conftest import SIZE
from tests.data.strips import tiled


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
    from bgad.pseudo.generate import generate

    samples = tiled(tmp_path).samples
    image, mask, _ = next(generate(samples[:3], [samples[4]], 1, seed=0, size=(SIZE, SIZE)))
    assert image.shape == (SIZE, SIZE, 3)
    assert 0 < mask.sum() < SIZE * SIZE / 4
