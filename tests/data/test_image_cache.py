"""The cache gives the bits that decoding gives, keeps only what it may keep, and stays in its bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bgad.data.image_cache import ImageCache
from bgad.data.sample_io import read
from bgad.io import images
from bgad.types import Sample


def write(path: Path, *, dtype: type[np.unsignedinteger] = np.uint8, shape: tuple[int, ...] = (50, 70, 3)) -> Sample:
    rng = np.random.default_rng(len(path.name))
    Image.fromarray(rng.integers(0, np.iinfo(dtype).max, shape, dtype)).save(path)
    return Sample(path, path.name, 0, split="train")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are decoded from now on."""
    paths: list[Path] = []
    decode = images.read

    def recorded(source: Path, **options: int | None) -> np.ndarray:
        paths.append(source)
        return decode(source, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(images, "read", recorded)
    return paths


@pytest.mark.parametrize("size", [32, 50, 128])
def test_cached_images_have_the_same_bits(tmp_path: Path, decoded: list[Path], size: int) -> None:
    sample = write(tmp_path / "a.png")
    expected = images.fit(read(sample), (size, size))
    cache = ImageCache(size)
    np.testing.assert_array_equal(cache.read(sample), expected)
    cache.add(sample, read(sample))
    decoded.clear()
    cached = cache.read(sample, 12)
    assert decoded == []
    assert cached.dtype == np.float32
    np.testing.assert_array_equal(cached, expected)
    cached[:] = 0  # the caller may change what it gets
    np.testing.assert_array_equal(cache.read(sample), expected)


def test_tiles_regions_deep_images_and_test_normals_are_not_kept(tmp_path: Path, decoded: list[Path]) -> None:
    sample = write(tmp_path / "a.png")
    region = tmp_path / "roi.png"
    Image.fromarray(np.full((50, 70), 255, np.uint8)).save(region)
    for other in (
        replace(sample, box=(0, 0, 20, 20)),
        replace(sample, roi=region),
        replace(sample, split="test"),
        write(tmp_path / "deep.png", dtype=np.uint16, shape=(50, 70)),
    ):
        cache = ImageCache(32)
        cache.add(other, read(other))
        decoded.clear()
        cache.read(replace(other, box=None, roi=None))
        assert decoded == [other.path]
    cache = ImageCache(32)
    cache.add(sample, read(sample))
    for other in (replace(sample, box=(0, 0, 20, 20)), replace(sample, roi=region)):
        np.testing.assert_array_equal(cache.read(other), images.fit(read(other), (32, 32)))


def test_beyond_its_limit_images_are_decoded_again(tmp_path: Path, decoded: list[Path]) -> None:
    first, second = write(tmp_path / "a.png"), write(tmp_path / "bb.png")
    cache = ImageCache(32, max_bytes=3 * 32 * 32)
    for sample in (first, first, second):
        cache.add(sample, read(sample))
    decoded.clear()
    for sample in (first, second):
        cache.read(sample)
    assert decoded == [second.path]
