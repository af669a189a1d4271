from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bgad.data.layouts import Dataset
from bgad.data.sample_io import ImageCache, validate_images
from bgad.errors import DataError
from bgad.io import images
from bgad.types import Sample
from tests.data.strips import tiled


def test_unreadable_files_are_counted_once(tmp_path: Path) -> None:
    dataset, shapes = validate_images(tiled(tmp_path), 1, ImageCache(32))
    assert len(dataset.samples) == 6
    assert {sample.name for sample in dataset.samples} == set(shapes)
    assert sum(note.startswith("skipped: ") for note in dataset.notes) == 1
    assert any(note.startswith("1 unreadable images skipped: cut.png#0") for note in dataset.notes)
    with pytest.raises(DataError, match=r"1 images of .* cannot be read"):
        validate_images(tiled(tmp_path), 0, ImageCache(32))


def test_an_image_that_is_too_thin_to_be_resized_is_skipped_by_name(tmp_path: Path) -> None:
    Image.new("L", (400, 1)).save(tmp_path / "thin.png")
    Image.new("L", (640, 10)).save(tmp_path / "strip.png")
    samples = [Sample(tmp_path / name, name, 0) for name in ("thin.png", "strip.png")]
    dataset = Dataset("strips", tmp_path, samples, "plain")
    kept, _ = validate_images(dataset, 1, ImageCache(32))
    assert [sample.name for sample in kept.samples] == ["strip.png"]
    assert "thin.png: 400 x 1 pixels are too thin to be resized" in kept.notes[0]
    kept, _ = validate_images(dataset, 1, ImageCache(32, tiled=True))
    assert len(kept.samples) == 2


def test_tiles_of_one_image_share_one_decoding(
    tmp_path: Path, decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where two threads need it at the same moment."""
    decode = images.decode

    def slow(path: Path) -> images.Decoded:
        time.sleep(0.05)
        return decode(path)

    monkeypatch.setattr(images, "decode", slow)
    validate_images(tiled(tmp_path), 1, ImageCache(32))
    assert sorted(path.name for path in decoded if path.name != "cut.png") == ["bad.png", "bad_mask.png", "good.png"]


def test_validation_gives_the_cache_its_bit_depth(tmp_path: Path, decoded: list[Path]) -> None:
    """It is that of the images which are used, outside of the test set."""
    ignore = tmp_path / "ignore.png"
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(ignore)
    samples = []
    for name, top, split, left_out in (
        ("a", 255, "train", None),
        ("b", 1000, "train", None),
        ("c", 4000, "train", ignore),
        ("d", 60000, "test", None),
    ):
        Image.fromarray(np.full((8, 8), top, np.uint16)).save(tmp_path / f"{name}.png")
        samples.append(Sample(tmp_path / f"{name}.png", name, 0, split=split, ignore=left_out))
    cache = ImageCache(32)
    dataset, _ = validate_images(Dataset("deep", tmp_path, samples, "plain"), 1, cache)
    assert [sample.name for sample in dataset.samples] == ["a", "b", "d"]  # the region of c has another size
    assert cache.bits == 10
    assert sorted(path.name for path in decoded) == ["a.png", "b.png", "c.png", "d.png", "ignore.png"]
