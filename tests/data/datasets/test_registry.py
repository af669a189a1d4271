from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bgad.cli.main import main
from bgad.data.datasets import expected as contents
from bgad.data.datasets import registry
from bgad.data.datasets.registry import DATASETS
from bgad.data.layouts import Dataset
from bgad.data.sample_io import read, read_mask
from bgad.errors import DataError
from bgad.types import Sample

Size = tuple[int, int]


@pytest.fixture(autouse=True)
def _only_what_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sets of the machine that runs the tests are not looked at."""
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    monkeypatch.delenv("BGAD_DATA", raising=False)


@dataclass
class Expected:
    """What a made set must give."""

    category: str
    counts: dict[tuple[str, str], int]  # (class, split) -> number
    masked: int = 0


def picture(path: Path, size: Size = (20, 16)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 150)).save(path)
    return path


def truth(path: Path, spot: tuple[int, int, int, int] | None = (2, 3, 6, 9), size: Size = (20, 16)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = np.zeros(size[::-1], np.uint8)
    if spot:
        mask[spot[1] : spot[3], spot[0] : spot[2]] = 255
    Image.fromarray(mask).save(path)
    return path


def mvtec_layout(
    home: Path, category: str, classes: tuple[str, ...], good: str = "good", mask: str = "_mask.png"
) -> None:
    for i in range(3):
        picture(home / category / f"train/{good}/{i:03}.png")
    picture(home / category / f"test/{good}/000.png")
    for defect in classes:
        picture(home / category / f"test/{defect}/000.png")
        truth(home / category / f"ground_truth/{defect}/000{mask}")


def make_mvtec(root: Path) -> Expected:
    for category, classes in contents.CLASSES["mvtec"].items():
        mvtec_layout(root / "mvtec_anomaly_detection", category, classes)
    (root / "mvtec_anomaly_detection" / "license.txt").write_text("licence")
    classes = contents.CLASSES["mvtec"]["zipper"]
    wanted = {("good", "train"): 3, ("good", "test"): 1} | {(name, "test"): 1 for name in classes}
    return Expected("zipper", wanted, 7)


def make_btad(root: Path) -> Expected:
    for category, end in (("01", ".png"), ("02", ".png"), ("03", ".bmp")):
        mvtec_layout(root / "BTech_Dataset_transformed", category, ("ko",), "ok", end)
    return Expected("03", {("good", "train"): 3, ("good", "test"): 1, ("ko", "test"): 1}, 1)


def make_mpdd(root: Path) -> Expected:
    for category, classes in contents.CLASSES["mpdd"].items():
        mvtec_layout(root / "MPDD", category, classes)
    wanted = {("good", "train"): 3, ("good", "test"): 1, ("hole", "test"): 1, ("scratches", "test"): 1}
    return Expected("bracket_black", wanted, 2)


def make_visa(root: Path) -> Expected:
    home = root / "VisA_20220922"
    rows = ["object,split,label,image,mask"]
    for category in DATASETS["visa"].categories:
        for i, split in enumerate(("train", "train", "test")):
            name = f"{category}/Data/Images/Normal/{i:04}.JPG"
            picture(home / name)
            rows.append(f"{category},{split},normal,{name},")
        for i in range(2):
            name, mask = f"{category}/Data/Images/Anomaly/{i:03}.JPG", f"{category}/Data/Masks/Anomaly/{i:03}.png"
            picture(home / name)
            truth(home / mask)
            rows.append(f"{category},test,anomaly,{name},{mask}")
        (home / category / "image_anno.csv").write_text("image,label,mask\n")
    (home / "split_csv").mkdir()
    (home / "split_csv/1cls.csv").write_text("\n".join(rows) + "\n")
    return Expected("pcb4", {("good", "train"): 2, ("good", "test"): 1, ("bad", "test"): 2}, 2)


def make_ksdd2(root: Path) -> Expected:
    for split, numbers in (("train", range(10000, 10004)), ("test", range(20000, 20005))):
        for number in numbers:
            picture(root / "KolektorSDD2" / split / f"{number}.png")
            truth(root / "KolektorSDD2" / split / f"{number}_GT.png", (2, 3, 6, 9) if number % 10 < 2 else None)
    wanted = {("bad", "train"): 2, ("good", "train"): 2, ("bad", "test"): 2, ("good", "test"): 3}
    return Expected("ksdd2", wanted, 4)


def make_magnetic_tile(root: Path) -> Expected:
    home = root / "Magnetic-tile-defect-datasets.-master"
    kinds = ("Free", "Blowhole", "Break", "Crack", "Fray", "Uneven")
    for i, kind in enumerate(kinds):
        for number in range(1 + i):
            size = (20 + number, 16 + i)
            picture(home / f"MT_{kind}/Imgs/exp1_num_{number}.jpg", size)
            truth(home / f"MT_{kind}/Imgs/exp1_num_{number}.png", None if kind == "Free" else (2, 3, 6, 9), size)
    (home / "README.md").write_text("cite us")
    wanted = {("good" if kind == "Free" else kind, ""): 1 + i for i, kind in enumerate(kinds)}
    return Expected("magnetic-tile", wanted, 2 + 3 + 4 + 5 + 6)


def make_aitex(root: Path) -> Expected:
    home, size = root / "aitex", (1024, 256)
    for fabric in ("2306881-210020u", "2311517-195063u"):
        picture(home / f"NODefect_images/{fabric}/0001_000_05.png", size)
    picture(home / "Defect_images/0001_002_00.png", size)
    truth(home / "Mask_images/0001_002_00_mask.png", (250, 10, 260, 20), size)  # over the edge of two tiles
    picture(home / "Defect_images/0044_019_04.png", size)
    truth(home / "Mask_images/0044_019_04_mask1.png", (0, 0, 4, 4), size)
    truth(home / "Mask_images/0044_019_04_mask2.png", (1000, 0, 1024, 8), size)
    picture(home / "Defect_images/0100_025_08.png", size)
    return Expected("aitex", {("good", ""): 8, ("Broken_end", ""): 2, ("Fuzzyball", ""): 2}, 4)


def make_elpv(root: Path) -> Expected:
    home = root / "elpv-dataset-master/src/elpv_dataset/data"
    lines = []
    for number, (chance, kind) in enumerate(
        [(0, "mono"), (0, "poly"), (1, "mono"), (1, "poly"), (1, "poly"), (1 / 3, "mono"), (2 / 3, "poly")], start=1
    ):
        picture(home / f"images/cell{number:04}.png")
        lines.append(f"images/cell{number:04}.png  {float(chance):<19} {kind}")
    (home / "labels.csv").write_text("\n".join(lines) + "\n")
    return Expected("elpv", {("good", ""): 2, ("mono", ""): 1, ("poly", ""): 2})


def make_brainmri(root: Path) -> Expected:
    for place in ("brainmri", "brainmri/brain_tumor_dataset"):  # the download has everything twice
        for i in range(3):
            picture(root / place / f"no/{i} no.jpeg")
            picture(root / place / f"yes/Y{i}.JPG")
        picture(root / place / "yes/Y9.jpg")
    return Expected("brainmri", {("good", ""): 3, ("tumor", ""): 4})


def make_headct(root: Path) -> Expected:
    for i in range(6):
        picture(root / f"headct/head_ct/head_ct/{i:03}.png")
    (root / "headct/labels.csv").write_text("id, hemorrhage\n" + "".join(f"{i},{int(i < 2)}\n" for i in range(6)))
    return Expected("headct", {("good", ""): 4, ("hemorrhage", ""): 2})


MAKERS: dict[str, Callable[[Path], Expected]] = {
    "mvtec": make_mvtec,
    "btad": make_btad,
    "aitex": make_aitex,
    "elpv": make_elpv,
    "brainmri": make_brainmri,
    "headct": make_headct,
    "visa": make_visa,
    "mpdd": make_mpdd,
    "ksdd2": make_ksdd2,
    "magnetic-tile": make_magnetic_tile,
}


def tally(samples: list[Sample]) -> Counter[tuple[str, str]]:
    return Counter((sample.defect, sample.split) for sample in samples)


def notes(dataset: Dataset) -> str:
    return "\n".join(dataset.notes)


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_is_read_as_its_download_unpacks(name: str, tmp_path: Path) -> None:
    expected = MAKERS[name](tmp_path)
    entry = DATASETS[name]
    assert registry.categories(name, tmp_path) == list(entry.categories or (name,))
    dataset = registry.load(name, expected.category if entry.categories else "", tmp_path)
    assert tally(dataset.samples) == expected.counts
    assert dataset.name == expected.category
    assert sum(s.mask is not None for s in dataset.samples) == expected.masked
    assert entry.masks == bool(expected.masked)
    assert len({s.name for s in dataset.samples}) == len(dataset.samples)
    for sample in dataset.samples:
        assert (sample.defect != "good") == bool(sample.label)
        assert (dataset.root / sample.name.partition("#")[0]) == sample.path
        mask = read_mask(sample)
        assert mask is None or (mask.any() and mask.shape == read(sample).shape[:2])
    assert "incomplete: " in notes(dataset)


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_says_what_people_must_know(name: str) -> None:
    entry = DATASETS[name]
    assert entry.name == name
    assert entry.source.startswith("https://")
    assert all((entry.title, entry.about, entry.licence, entry.layout))
    assert tuple(contents.SIZES[name]) == (entry.categories or (name,))
    assert set(contents.CLASSES.get(name, {})) <= set(contents.SIZES[name])


@pytest.mark.parametrize("name", DATASETS)
def test_the_root_may_be_the_set_itself(name: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    home = registry.find(name, tmp_path)
    assert registry.find(name, home) == home
    for other in DATASETS:
        if other != name:
            with pytest.raises(DataError, match=rf"does not have it; that looks like {name};"):
                registry.find(other, home)


def test_all_sets_live_in_one_root(tmp_path: Path) -> None:
    for make in MAKERS.values():
        make(tmp_path)
    rows = {row.entry.name: row for row in registry.inventory(tmp_path)}
    assert list(rows) == list(DATASETS)
    for name, row in rows.items():
        assert row.place == registry.find(name, tmp_path)
        assert (row.missing, row.problem) == ([], "")
        assert [found.category for found in row.found] == registry.categories(name, tmp_path)
    assert (rows["mvtec"].found[0].normal, rows["mvtec"].found[0].anomalous) == (4, 3)
    assert (rows["aitex"].found[0].normal, rows["aitex"].found[0].anomalous) == (2, 3)  # strips
    assert (rows["ksdd2"].found[0].normal, rows["ksdd2"].found[0].images) == (None, 9)


def test_published_sizes_add_up() -> None:
    totals = {name: tuple(map(sum, zip(*sizes.values(), strict=True))) for name, sizes in contents.SIZES.items()}
    assert totals["mvtec"] == (4096, 1258)
    assert totals["visa"] == (9621, 1200)
    assert totals["mpdd"] == (1064, 282)
    assert totals["btad"] == (2250, 290)
    assert sum(map(len, contents.CLASSES["mvtec"].values())) == 73


# MVTec and its likes


def test_folder_names_that_people_use(tmp_path: Path) -> None:
    for folder in ("mvtec", "MVTec-AD", "mvtec_ad", "MVTec_Anomaly_Detection"):
        mvtec_layout(tmp_path / folder / folder, "bottle", contents.CLASSES["mvtec"]["bottle"])
        assert registry.find("mvtec", tmp_path) == tmp_path / folder / folder
        shutil.rmtree(tmp_path / folder)


def test_missing_categories_and_renamed_ones_are_named(tmp_path: Path) -> None:
    mvtec_layout(tmp_path / "mvtec", "bottle", contents.CLASSES["mvtec"]["bottle"])
    mvtec_layout(tmp_path / "mvtec", "metalnut", ("bent",))
    assert registry.categories("mvtec", tmp_path) == ["bottle"]
    with pytest.raises(DataError, match=r"metal_nut is missing or not unpacked; found bottle; .*: metalnut$"):
        registry.load("mvtec", "metal_nut", tmp_path)
    with pytest.raises(DataError, match="mvtec has no category 'metalnut'; did you mean metal_nut"):
        registry.load("mvtec", "metalnut", tmp_path)
    with pytest.raises(DataError, match="mvtec has several categories: choose from bottle"):
        registry.load("mvtec", root=tmp_path)
    row = registry.inventory(tmp_path)[0]
    assert row.missing == [name for name in DATASETS["mvtec"].categories if name != "bottle"]


def test_renamed_and_missing_classes_are_named(tmp_path: Path) -> None:
    mvtec_layout(tmp_path / "mvtec", "bottle", ("broken_large", "broken"))
    dataset = registry.load("mvtec", "bottle", tmp_path)
    assert "classes that the set does not have: broken\n" in notes(dataset)
    assert "classes without an image: broken_small, contamination\n" in notes(dataset)


def test_masks_that_are_missing_are_named(tmp_path: Path) -> None:
    mvtec_layout(tmp_path / "mvtec", "bottle", contents.CLASSES["mvtec"]["bottle"])
    (tmp_path / "mvtec/bottle/ground_truth/contamination/000_mask.png").unlink()
    dataset = registry.load("mvtec", "bottle", tmp_path)
    assert "anomaly without a mask: test/contamination/000.png" in notes(dataset)
    shutil.rmtree(tmp_path / "mvtec/bottle/ground_truth")
    dataset = registry.load("mvtec", "bottle", tmp_path)
    assert "no masks found: pixel figures cannot be given" in notes(dataset)
    assert len(dataset.samples) == 7


@pytest.mark.parametrize(
    ("gone", "said"), [("train", "no normal images to learn from"), ("test", "no anomalous images")]
)
def test_half_unpacked_category(gone: str, said: str, tmp_path: Path) -> None:
    mvtec_layout(tmp_path / "mvtec", "bottle", contents.CLASSES["mvtec"]["bottle"])
    shutil.rmtree(tmp_path / "mvtec/bottle" / gone)
    with pytest.raises(DataError, match=rf"bottle: {said}: MVTec AD is only half there.*expected bottle/, cable/"):
        registry.load("mvtec", "bottle", tmp_path)


def test_a_complete_category_has_no_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mvtec_layout(tmp_path / "mvtec", "bottle", contents.CLASSES["mvtec"]["bottle"])
    monkeypatch.setitem(contents.SIZES["mvtec"], "bottle", (4, 3))
    assert registry.load("mvtec", "bottle", tmp_path).notes == []
    monkeypatch.setitem(contents.SIZES["mvtec"], "bottle", (4, 4))
    assert registry.load("mvtec", "bottle", tmp_path).notes == ["incomplete: 4 of 4 normal and 3 of 4 anomalous images"]
    monkeypatch.setitem(contents.SIZES["mvtec"], "bottle", (3, 4))
    assert registry.load("mvtec", "bottle", tmp_path).notes[0].startswith("not the original set: 4 of 3 normal")


# roots


def test_another_set_under_the_name(tmp_path: Path) -> None:
    mvtec_layout(tmp_path / "btad", "bottle", ("broken_small",))
    with pytest.raises(DataError, match=r"btad: is not BTAD.*expected 01/.*found bottle/; that looks like mvtec"):
        registry.load("btad", "01", tmp_path)
    row = registry.inventory(tmp_path)[1]
    assert row.place is None
    assert "that looks like mvtec" in row.problem


def test_a_root_without_the_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"VisA was not found: .* does not have it; get it from https://github"):
        registry.find("visa", tmp_path)
    with pytest.raises(DataError, match="nowhere is no folder"):
        registry.find("visa", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"unknown data set 'mvtek' \(did you mean mvtec\?\): choose from mvtec, btad"):
        registry.load("mvtek", root=tmp_path)


def test_the_root_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_headct(tmp_path)
    monkeypatch.setenv("BGAD_DATA", str(tmp_path))
    assert registry.find("headct") == tmp_path / "headct"
    monkeypatch.delenv("BGAD_DATA")
    assert registry.default_root() == Path("data")


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
    picture(home / "candle/Data/Images/Normal/9999.JPG")
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
    assert len(row.found) == 12


# KolektorSDD2 and magnetic tile


def test_ksdd2_strays(tmp_path: Path) -> None:
    expected = make_ksdd2(tmp_path)
    train = tmp_path / "KolektorSDD2/train"
    truth(train / "10000_GT (copy).png")
    picture(train / "10.png")  # 10 + "_GT" is not there, though 10003 begins with it
    truth(train / "555_GT.png")
    (train / "10003_GT.png").write_bytes(b"not an image")
    dataset = registry.load("ksdd2", root=tmp_path)
    assert tally(dataset.samples) == expected.counts | {("good", "train"): 1}
    for said in (
        "not used, stray copies in train: 10000_GT (copy).png",
        "not used, no _GT file tells what it is, in train: 10.png",
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
    picture(home / "Defect_images/0200_099_01.png", (600, 256))
    truth(home / "Mask_images/0200_099_01_mask.png", (300, 0, 310, 9), (600, 256))
    picture(home / "Defect_images/crease.png", (512, 256))
    picture(home / "Defect_images/0201_023_01.png", (1024, 256))
    truth(home / "Mask_images/0201_023_01_mask.png", (0, 0, 9, 9), (512, 256))
    truth(home / "Mask_images/0094_027_05_mask.png", None, (1024, 256))
    picture(home / "NODefect_images/2306881-210020u/0002_000_05.png", (200, 256))
    (home / "NODefect_images/2306881-210020u/0003_000_05.png").write_bytes(b"cut off")
    (home / "Mask_images/0001_002_00_mask.png").write_bytes(b"cut off")
    dataset = registry.load("aitex", root=tmp_path)
    assert tally(dataset.samples) == {("good", ""): 8, ("Fuzzyball", ""): 2, ("099", ""): 1}
    for said in (
        "unknown defect codes, used as classes: 099",
        "not used, the name tells no defect: crease.png",
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
    with pytest.raises(DataError, match=f"{said}.*AITEX is only half there"):
        registry.load("aitex", root=tmp_path)


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


def test_elpv_from_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        origin = str(tmp_path / "elpv-dataset-master/src/elpv_dataset/__init__.py")

    make_elpv(tmp_path)
    monkeypatch.setattr(registry, "find_spec", lambda name: Spec if name == "elpv_dataset" else None)
    assert registry.find("elpv", tmp_path / "nowhere") == tmp_path / "elpv-dataset-master/src/elpv_dataset/data"


@pytest.mark.parametrize("gone", ["labels.csv", "images"])
def test_half_unpacked_elpv_beside_its_package(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package is not taken for the folder without a word; without a package it is an error."""
    home = tmp_path / "root/elpv"
    make_elpv(tmp_path / "site")
    shutil.copytree(registry.find("elpv", tmp_path / "site"), home)
    shutil.rmtree(home / gone) if gone == "images" else (home / gone).unlink()
    said = "is not ELPV, or not wholly unpacked: expected labels.csv and images/; found"
    with pytest.raises(DataError, match=f"elpv: {said}"):
        registry.load("elpv", root=tmp_path / "root")

    class Spec:
        origin = str(tmp_path / "site/elpv-dataset-master/src/elpv_dataset/__init__.py")

    monkeypatch.setattr(registry, "find_spec", lambda name: Spec if name == "elpv_dataset" else None)
    dataset = registry.load("elpv", root=tmp_path / "root")
    assert dataset.root == tmp_path / "site/elpv-dataset-master/src/elpv_dataset/data"
    assert dataset.notes[0].startswith(f"the installed package is read, because {home}: {said}")
    assert main(["datasets", "--root", str(tmp_path / "root")]) == 0
    assert "installed package" in capsys.readouterr().out
    row = next(row for row in registry.inventory(tmp_path / "root") if row.entry.name == "elpv")
    assert row.where == "installed package"
    assert said in row.found[0].notes[0]


def test_brainmri_in_its_folder(tmp_path: Path) -> None:
    make_brainmri(tmp_path)
    shutil.rmtree(tmp_path / "brainmri/yes")
    shutil.rmtree(tmp_path / "brainmri/no")
    assert registry.find("brainmri", tmp_path) == tmp_path / "brainmri/brain_tumor_dataset"
    shutil.rmtree(tmp_path / "brainmri/brain_tumor_dataset/yes")
    with pytest.raises(DataError, match=r"is not BrainMRI, or not wholly unpacked: expected no/ and yes/"):
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


# the command


def test_datasets_lists_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_headct(tmp_path)
    mvtec_layout(tmp_path / "mvtec", "bottle", ("broken_large",))
    assert main(["datasets", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr()
    for entry in DATASETS.values():
        assert entry.name in said.out
        assert entry.licence in said.out
    assert "1 of 15 categories: 4 normal, 1 anomalous" in said.out
    assert "mvtec/" in said.out
    assert "headct/" in said.out
    assert "missing: cable, capsule" in said.out
    assert "4 normal, 2 anomalous" in said.out
    assert said.out.count("not found") == len(DATASETS) - 2
    assert str(tmp_path) in said.err

    assert main(["datasets", "--root", str(tmp_path), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(DATASETS)
    assert rows["headct"]["found"][0]["anomalous"] == 2
    assert rows["headct"]["place"] == str(tmp_path / "headct")
    assert rows["visa"]["place"] is None
    assert len(rows["mvtec"]["missing"]) == 14


def test_datasets_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--root", str(tmp_path / "nowhere")]) == 0
    assert capsys.readouterr().out.count("not found") == len(DATASETS)


def test_the_catalog_needs_no_torch() -> None:
    code = (
        "import sys; from bgad.data.datasets import registry; registry.inventory('.'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# real data


@pytest.mark.parametrize(
    ("name", "normal", "anomalous"), [("aitex", 60, 105), ("headct", 100, 100), ("brainmri", 98, 155)]
)
def test_real_sets(name: str, normal: int, anomalous: int, real_data: Path) -> None:
    row = next(row for row in registry.inventory(real_data) if row.entry.name == name)
    assert [(found.normal, found.anomalous) for found in row.found] == [(normal, anomalous)]
    if name != "aitex":
        dataset = registry.load(name, root=real_data)
        assert Counter(s.label for s in dataset.samples) == {0: normal, 1: anomalous}


def test_real_aitex_tiles(real_data: Path) -> None:
    dataset = registry.load("aitex", root=real_data)
    assert Counter(s.label for s in dataset.samples) == {0: 16 * 60, 1: 184}
    assert "not used, a strip without a mask: 0100_025_08.png" in notes(dataset)
    assert {s.path.name for s in dataset.samples if s.more_masks} == {"0044_019_04.png", "0097_030_03.png"}


def test_real_elpv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("elpv_dataset")
    monkeypatch.undo()
    dataset = registry.load("elpv", root=tmp_path)
    assert Counter(s.defect for s in dataset.samples) == {"good": 1508, "mono": 313, "poly": 402}
    assert dataset.notes == ["401 images are not used: their label is neither 0 nor 1"]
