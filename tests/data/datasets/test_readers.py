from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bgad.data.datasets import registry
from bgad.errors import DataError
from tests.data.datasets.makers import (
    make_brainmri,
    make_elpv,
    make_headct,
    make_ksdd2,
    make_magnetic_tile,
    make_visa,
    mvtec_layout,
    notes,
    tally,
    write_image,
    write_mask,
)

# VisA


def test_visa_in_the_mvtec_layout(tmp_path: Path) -> None:
    mvtec_layout(tmp_path / "visa_pytorch/1cls", "candle", ("bad",), mask=".png")
    dataset = registry.load("visa", "candle", tmp_path)
    assert tally(dataset.samples) == {("good", "train"): 3, ("good", "test"): 1, ("bad", "test"): 1}
    assert [s.mask is not None for s in dataset.samples if s.label] == [True]


def test_visa_with_gaps(tmp_path: Path) -> None:
    make_visa(tmp_path)
    home = tmp_path / "VisA_20220922"
    (home / "candle/Data/Images/Normal/0000.JPG").unlink()
    (home / "candle/Data/Masks/Anomaly/001.png").unlink()
    write_image(home / "candle/Data/Images/Normal/9999.JPG")
    dataset = registry.load("visa", "candle", tmp_path)
    assert len(dataset.samples) == 4
    assert "listed in 1cls.csv but not there: candle/Data/Images/Normal/0000.JPG" in notes(dataset)
    assert "anomaly without a mask: Data/Images/Anomaly/001.JPG" in notes(dataset)
    assert "not used, not listed in 1cls.csv: candle/Data/Images/Normal/9999.JPG" in notes(dataset)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (None, r"1cls\.csv: cannot be read"),
        ("object,split,image\n", r"1cls\.csv: no column label, mask"),
        ("object,split,label,image,mask\ncandle,train,fine,a.JPG,\n", r"row 2: needs split train or test"),
        ("object,split,label,image,mask\ncandle,train,normal\n", r"row 2: has 3 cells instead of 5"),
        ('object,split,label,image,mask\n"candle"x,train\n', r"1cls\.csv: is not a table"),
        (b"\xff\xfe\x00", r"1cls\.csv: cannot be read"),
        ("", r"1cls\.csv: no column object"),
    ],
)
def test_visa_with_a_broken_table(table: str | bytes | None, said: str, tmp_path: Path) -> None:
    make_visa(tmp_path)
    file = tmp_path / "VisA_20220922/split_csv/1cls.csv"
    if table is None:
        file.unlink()
    else:
        file.write_bytes(table.encode() if isinstance(table, str) else table)
    with pytest.raises(DataError, match=said):
        registry.load("visa", "candle", tmp_path)
    row = next(row for row in registry.inventory(tmp_path) if row.entry.name == "visa")
    assert len(row.categories) == 12


# KolektorSDD2 and magnetic tile


def test_ksdd2_strays(tmp_path: Path) -> None:
    expected = make_ksdd2(tmp_path)
    train = tmp_path / "KolektorSDD2/train"
    write_mask(train / "10000_GT (copy).png")
    write_image(train / "10.png")  # 10 + "_GT" is not there, though 10003 begins with it
    write_mask(train / "555_GT.png")
    (train / "10003_GT.png").write_bytes(b"not an image")
    dataset = registry.load("ksdd2", root=tmp_path)
    assert tally(dataset.samples) == expected.counts | {("good", "train"): 1}
    for said in (
        "not used, stray copies in train: 10000_GT (copy).png",
        "not used, no _GT file states its label, in train: 10.png",
        "mask without an image in train: 555_GT.png",
        "not used, its _GT file is broken: ",
    ):
        assert said in notes(dataset)


def test_magnetic_tile_gaps(tmp_path: Path) -> None:
    make_magnetic_tile(tmp_path)
    home = registry.find("magnetic-tile", tmp_path)
    (home / "MT_Crack/Imgs/exp1_num_0.png").unlink()
    (home / "MT_Fray/Imgs/exp1_num_0.jpg").unlink()
    (home / "MT_Break").rename(home / "MT_Broken")
    dataset = registry.load("magnetic-tile", root=tmp_path)
    assert "anomaly without a mask: MT_Crack/Imgs/exp1_num_0.jpg" in notes(dataset)
    assert "mask without an image: MT_Fray/Imgs/exp1_num_0.png" in notes(dataset)
    assert "classes that the set does not have: Broken\nclasses without an image: Break" in notes(dataset)


# ELPV, BrainMRI and HeadCT


def test_elpv_says_what_it_does_not_use(tmp_path: Path) -> None:
    make_elpv(tmp_path)
    (registry.find("elpv", tmp_path) / "images/cell0005.png").unlink()
    dataset = registry.load("elpv", root=tmp_path)
    assert "2 images are not used: their label is neither 0 nor 1" in notes(dataset)
    assert "listed in labels.csv but not there: images/cell0005.png" in notes(dataset)


@pytest.mark.parametrize(
    "line", ["images/cell0001.png 1.0", "images/cell0001.png yes mono", "a.png 7 mono", "a.png nan mono"]
)
def test_elpv_with_a_broken_table(line: str, tmp_path: Path) -> None:
    make_elpv(tmp_path)
    (registry.find("elpv", tmp_path) / "labels.csv").write_text(line)
    with pytest.raises(DataError, match=r"labels\.csv, row 1: "):
        registry.load("elpv", root=tmp_path)


def test_brainmri_in_its_folder(tmp_path: Path) -> None:
    make_brainmri(tmp_path)
    shutil.rmtree(tmp_path / "brainmri/yes")
    shutil.rmtree(tmp_path / "brainmri/no")
    assert registry.find("brainmri", tmp_path) == tmp_path / "brainmri/brain_tumor_dataset"
    shutil.rmtree(tmp_path / "brainmri/brain_tumor_dataset/yes")
    with pytest.raises(DataError, match=r"is not BrainMRI, or not completely unpacked: expected no/ and yes/"):
        registry.load("brainmri", root=tmp_path)


def test_headct_gaps(tmp_path: Path) -> None:
    make_headct(tmp_path)
    (tmp_path / "headct/head_ct/head_ct/004.png").rename(tmp_path / "headct/head_ct/head_ct/017.png")
    dataset = registry.load("headct", root=tmp_path)
    assert tally(dataset.samples) == {("good", ""): 3, ("hemorrhage", ""): 2}
    assert "listed in labels.csv but not there: 4" in notes(dataset)
    assert "not used, not in labels.csv: 017.png" in notes(dataset)
    (tmp_path / "headct/labels.csv").write_text("id, hemorrhage\n0,maybe\n")
    with pytest.raises(DataError, match=r"labels\.csv, row 2: needs a number"):
        registry.load("headct", root=tmp_path)
