from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from bgad.data.datasets import registry
from bgad.data.sample_io import read, read_mask
from bgad.errors import DataError
from tests.data.datasets.makers import make_aitex, notes, tally, write_image, write_mask

# AITEX


def test_aitex_tiles(tmp_path: Path) -> None:
    make_aitex(tmp_path)
    dataset = registry.load("aitex", root=tmp_path)
    bad = {s.name: s for s in dataset.samples if s.label}
    assert list(bad) == [
        "Defect_images/0001_002_00.png#00",
        "Defect_images/0001_002_00.png#01",
        "Defect_images/0044_019_04.png#00",
        "Defect_images/0044_019_04.png#03",
    ]
    assert bad["Defect_images/0001_002_00.png#01"].box == (256, 0, 512, 256)
    sums = []
    for sample in bad.values():
        mask = read_mask(sample)
        assert mask is not None
        sums.append(int(mask.sum()))
    assert sums == [6 * 10, 4 * 10, 4 * 4, 24 * 8]
    assert all(read(s).shape == (256, 256, 3) for s in dataset.samples)
    assert "not used, a strip without a mask: 0100_025_08.png" in notes(dataset)


def test_aitex_strips_that_do_not_fit(tmp_path: Path) -> None:
    make_aitex(tmp_path)
    home = tmp_path / "aitex"
    write_image(home / "Defect_images/0200_099_01.png", (600, 256))
    write_mask(home / "Mask_images/0200_099_01_mask.png", (300, 0, 310, 9), (600, 256))
    write_image(home / "Defect_images/crease.png", (512, 256))
    write_image(home / "Defect_images/0201_023_01.png", (1024, 256))
    write_mask(home / "Mask_images/0201_023_01_mask.png", (0, 0, 9, 9), (512, 256))
    write_mask(home / "Mask_images/0094_027_05_mask.png", None, (1024, 256))
    write_image(home / "NODefect_images/2306881-210020u/0002_000_05.png", (200, 256))
    (home / "NODefect_images/2306881-210020u/0003_000_05.png").write_bytes(b"cut off")
    (home / "Mask_images/0001_002_00_mask.png").write_bytes(b"cut off")
    dataset = registry.load("aitex", root=tmp_path)
    assert tally(dataset.samples) == {("good", ""): 8, ("Fuzzyball", ""): 2, ("099", ""): 1}
    for said in (
        "unknown defect codes, used as classes: 099",
        "not used, the name does not state a defect: crease.png",
        "not used, the mask is smaller than the strip: 0201_023_01.png",
        "mask without an image: 0094_027_05_mask.png",
        "not used, 0002_000_05.png is 200x256: smaller than a tile of 256x256",
        "not used, 0003_000_05.png is not a readable image",
        "not used, the mask of 0001_002_00.png is broken",
    ):
        assert said in notes(dataset)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("Mask_images", "no anomalous images"),
        ("NODefect_images", "no normal images"),
        ("Defect_images", "no anomalous"),
    ],
)
def test_aitex_half_unpacked(gone: str, said: str, tmp_path: Path) -> None:
    make_aitex(tmp_path)
    shutil.rmtree(tmp_path / "aitex" / gone)
    with pytest.raises(DataError, match=f"{said}.*AITEX is incomplete"):
        registry.load("aitex", root=tmp_path)


def test_real_aitex_tiles(real_data: Path) -> None:
    dataset = registry.load("aitex", root=real_data)
    assert Counter(s.label for s in dataset.samples) == {0: 16 * 60, 1: 184}
    assert "not used, a strip without a mask: 0100_025_08.png" in notes(dataset)
    assert {s.path.name for s in dataset.samples if s.more_masks} == {"0044_019_04.png", "0097_030_03.png"}
