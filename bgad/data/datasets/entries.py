"""DATASETS, the extension point for public data sets: what each one is, where to get it, and how it is read.

To add a data set, write a reader, add its sizes to `expected`, and add an Entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bgad.data.datasets import aitex, readers
from bgad.data.datasets.expected import SIZES
from bgad.data.layouts import Dataset, subfolders

NOT_STATED = "not stated"
Counts = tuple[int | None, int | None, int]  # normal, anomalous (None: not known without decoding), together


@dataclass(frozen=True)
class Entry:
    """One public data set: its description for users, and the functions that recognise and read it."""

    name: str  # in commands
    title: str  # in texts
    categories: tuple[str, ...]  # empty: one category, named like the data set
    licence: str
    source: str
    masks: bool
    about: str
    folders: tuple[str, ...]  # names of its folder, in small letters and digits only
    layout: str  # what the download unpacks to
    present: Callable[[Path], list[str]]  # the categories in a folder; empty where the folder holds something else
    read: Callable[[Path, str], Dataset]
    count: Callable[[Path], Counts] | None = None  # counts without decoding, where `read` is too slow for a listing
    package: str = ""  # an installable package that holds the set


def _mvtec_like(name: str, title: str, licence: str, source: str, about: str, folders: tuple[str, ...]) -> Entry:
    categories = tuple(SIZES[name])
    good = "ok" if name == "btad" else "good"
    layout = f"{categories[0]}/, {categories[1]}/ ... each with train/{good}, test/<class> and ground_truth/<class>"
    present = partial(readers.has_categories, categories=categories)
    return Entry(name, title, categories, licence, source, True, about, folders, layout, present, readers.mvtec)


def _single(
    name: str, is_home: Callable[[Path], bool], read: Callable[[Path], Dataset]
) -> tuple[Callable[[Path], list[str]], Callable[[Path, str], Dataset]]:
    """Return the functions `present` and `read` of a data set with one category."""
    return lambda folder: [name] if is_home(folder) else [], lambda folder, _: read(folder)


def _is_magnetic_tile(folder: Path) -> bool:
    return any(sub.name.startswith("MT_") and (sub / "Imgs").is_dir() for sub in subfolders(folder))


def _is_elpv(folder: Path) -> bool:
    return (folder / "labels.csv").is_file() and (folder / "images").is_dir()


def _is_brainmri(folder: Path) -> bool:
    return (folder / "no").is_dir() and (folder / "yes").is_dir()


def _is_headct(folder: Path) -> bool:
    return (folder / "labels.csv").is_file() and (folder / "head_ct").is_dir()


_ENTRIES = (
    _mvtec_like(
        "mvtec",
        "MVTec AD",
        "CC BY-NC-SA 4.0",
        "https://www.mvtec.com/company/research/datasets/mvtec-ad",
        "15 kinds of industrial objects and textures",
        ("mvtec", "mvtecad", "mvtecanomalydetection"),
    ),
    _mvtec_like(
        "btad",
        "BTAD",
        NOT_STATED,
        "https://avires.dimi.uniud.it/papers/btad/btad.zip",
        "3 industrial products (beanTech)",
        ("btad", "btech", "btechdatasettransformed"),
    ),
    Entry(
        "aitex",
        "AITEX",
        (),
        NOT_STATED,
        "https://www.aitex.es/afid/",
        True,
        "woven fabric, strips cut into 256 x 256 tiles",
        ("aitex", "aitexfabricimagedatabase", "afid"),
        "Defect_images/, Mask_images/ and NODefect_images/",
        *_single("aitex", aitex.is_home, aitex.read),
        count=lambda home: (*aitex.count(home), sum(aitex.count(home))),
    ),
    Entry(
        "elpv",
        "ELPV",
        (),
        "CC BY-NC-SA 4.0",
        "https://github.com/zae-bayern/elpv-dataset (pip install elpv-dataset)",
        False,
        "solar cells in electroluminescence",
        ("elpv", "elpvdataset", "elpvdatasetmaster"),
        "labels.csv and images/",
        *_single("elpv", _is_elpv, readers.elpv),
        package="elpv_dataset",
    ),
    Entry(
        "brainmri",
        "BrainMRI",
        (),
        "see its Kaggle page",
        "https://www.kaggle.com/datasets/navoneel/brain-mri-images-for-brain-tumor-detection",
        False,
        "slices of the head with and without a tumour",
        ("brainmri", "brainmriimagesforbraintumordetection", "braintumordataset"),
        "no/ and yes/",
        *_single("brainmri", _is_brainmri, readers.brainmri),
    ),
    Entry(
        "headct",
        "HeadCT",
        (),
        "see its Kaggle page",
        "https://www.kaggle.com/datasets/felipekitamura/head-ct-hemorrhage",
        False,
        "slices of the head with and without a haemorrhage",
        ("headct", "headcthemorrhage"),
        "labels.csv and head_ct/NNN.png",
        *_single("headct", _is_headct, readers.headct),
    ),
    Entry(
        "visa",
        "VisA",
        tuple(SIZES["visa"]),
        "CC BY 4.0",
        "https://github.com/amazon-science/spot-diff",
        True,
        "12 kinds of boards, food and candles",
        ("visa", "visa20220922", "visapytorch"),
        "candle/Data/Images/{Normal,Anomaly} ... with split_csv/1cls.csv, or candle/train/good ...",
        partial(readers.visa_categories, categories=tuple(SIZES["visa"])),
        readers.visa,
    ),
    _mvtec_like(
        "mpdd",
        "MPDD",
        NOT_STATED,
        "https://github.com/stepanje/MPDD",
        "6 kinds of painted metal parts",
        ("mpdd",),
    ),
    Entry(
        "ksdd2",
        "KolektorSDD2",
        (),
        "CC BY-NC-SA 4.0",
        "https://www.vicos.si/resources/kolektorsdd2/",
        True,
        "one industrial surface, with training anomalies",
        ("ksdd2", "kolektorsdd2"),
        "train/ and test/ with N.png beside N_GT.png",
        *_single("ksdd2", readers.is_ksdd2, readers.ksdd2),
        count=lambda home: (None, None, readers.ksdd2_size(home)),
    ),
    Entry(
        "magnetic-tile",
        "Magnetic tile",
        (),
        NOT_STATED,
        "https://github.com/abin24/Magnetic-tile-defect-datasets.",
        True,
        "magnetic tiles, five kinds of defects",
        ("magnetictile", "magnetictiledefect", "magnetictiledefectdatasets", "magnetictiledefectdatasetsmaster", "mtd"),
        "MT_Free/Imgs, MT_Blowhole/Imgs ... with .jpg images and .png masks",
        *_single("magnetic-tile", _is_magnetic_tile, readers.magnetic_tile),
    ),
)
DATASETS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
