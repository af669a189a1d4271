"""Writes a small copy of every public data set, in the layout of its download."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from bgad.data.datasets import expected as contents
from bgad.data.datasets.registry import DATASETS
from bgad.data.layouts import Dataset
from bgad.types import Sample

Size = tuple[int, int]


@dataclass
class Expected:
    """What a made set must give."""

    category: str
    counts: dict[tuple[str, str], int]  # (class, split) -> number
    masked: int = 0


def write_image(path: Path, size: Size = (20, 16)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (90, 120, 150)).save(path)
    return path


def write_mask(path: Path, spot: tuple[int, int, int, int] | None = (2, 3, 6, 9), size: Size = (20, 16)) -> Path:
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
        write_image(home / category / f"train/{good}/{i:03}.png")
    write_image(home / category / f"test/{good}/000.png")
    for defect in classes:
        write_image(home / category / f"test/{defect}/000.png")
        write_mask(home / category / f"ground_truth/{defect}/000{mask}")


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
            write_image(home / name)
            rows.append(f"{category},{split},normal,{name},")
        for i in range(2):
            name, mask = f"{category}/Data/Images/Anomaly/{i:03}.JPG", f"{category}/Data/Masks/Anomaly/{i:03}.png"
            write_image(home / name)
            write_mask(home / mask)
            rows.append(f"{category},test,anomaly,{name},{mask}")
        (home / category / "image_anno.csv").write_text("image,label,mask\n")
    (home / "split_csv").mkdir()
    (home / "split_csv/1cls.csv").write_text("\n".join(rows) + "\n")
    return Expected("pcb4", {("good", "train"): 2, ("good", "test"): 1, ("bad", "test"): 2}, 2)


def make_ksdd2(root: Path) -> Expected:
    for split, numbers in (("train", range(10000, 10004)), ("test", range(20000, 20005))):
        for number in numbers:
            write_image(root / "KolektorSDD2" / split / f"{number}.png")
            write_mask(root / "KolektorSDD2" / split / f"{number}_GT.png", (2, 3, 6, 9) if number % 10 < 2 else None)
    wanted = {("bad", "train"): 2, ("good", "train"): 2, ("bad", "test"): 2, ("good", "test"): 3}
    return Expected("ksdd2", wanted, 4)


def make_magnetic_tile(root: Path) -> Expected:
    home = root / "Magnetic-tile-defect-datasets.-master"
    kinds = ("Free", "Blowhole", "Break", "Crack", "Fray", "Uneven")
    for i, kind in enumerate(kinds):
        for number in range(1 + i):
            size = (20 + number, 16 + i)
            write_image(home / f"MT_{kind}/Imgs/exp1_num_{number}.jpg", size)
            write_mask(home / f"MT_{kind}/Imgs/exp1_num_{number}.png", None if kind == "Free" else (2, 3, 6, 9), size)
    (home / "README.md").write_text("cite us")
    wanted = {("good" if kind == "Free" else kind, ""): 1 + i for i, kind in enumerate(kinds)}
    return Expected("magnetic-tile", wanted, 2 + 3 + 4 + 5 + 6)


def make_aitex(root: Path) -> Expected:
    home, size = root / "aitex", (1024, 256)
    for fabric in ("2306881-210020u", "2311517-195063u"):
        write_image(home / f"NODefect_images/{fabric}/0001_000_05.png", size)
    write_image(home / "Defect_images/0001_002_00.png", size)
    write_mask(home / "Mask_images/0001_002_00_mask.png", (250, 10, 260, 20), size)  # over the edge of two tiles
    write_image(home / "Defect_images/0044_019_04.png", size)
    write_mask(home / "Mask_images/0044_019_04_mask1.png", (0, 0, 4, 4), size)
    write_mask(home / "Mask_images/0044_019_04_mask2.png", (1000, 0, 1024, 8), size)
    write_image(home / "Defect_images/0100_025_08.png", size)
    return Expected("aitex", {("good", ""): 8, ("Broken_end", ""): 2, ("Fuzzyball", ""): 2}, 4)


def make_elpv(root: Path) -> Expected:
    home = root / "elpv-dataset-master/src/elpv_dataset/data"
    lines = []
    for number, (chance, kind) in enumerate(
        [(0, "mono"), (0, "poly"), (1, "mono"), (1, "poly"), (1, "poly"), (1 / 3, "mono"), (2 / 3, "poly")], start=1
    ):
        write_image(home / f"images/cell{number:04}.png")
        lines.append(f"images/cell{number:04}.png  {float(chance):<19} {kind}")
    (home / "labels.csv").write_text("\n".join(lines) + "\n")
    return Expected("elpv", {("good", ""): 2, ("mono", ""): 1, ("poly", ""): 2})


def make_brainmri(root: Path) -> Expected:
    for place in ("brainmri", "brainmri/brain_tumor_dataset"):  # the download has everything twice
        for i in range(3):
            write_image(root / place / f"no/{i} no.jpeg")
            write_image(root / place / f"yes/Y{i}.JPG")
        write_image(root / place / "yes/Y9.jpg")
    return Expected("brainmri", {("good", ""): 3, ("tumor", ""): 4})


def make_headct(root: Path) -> Expected:
    for i in range(6):
        write_image(root / f"headct/head_ct/head_ct/{i:03}.png")
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
