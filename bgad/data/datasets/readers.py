"""Reads the folders that public data sets unpack to; files that do not fit the layout are named in notes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bgad.data.layouts import Dataset, read_mvtec, subfolders
from bgad.data.manifest import UNNAMED_DEFECT
from bgad.data.sample_io import read_mask_file
from bgad.errors import BgadError, DataError, abbreviate
from bgad.io import discover
from bgad.types import GOOD, Sample


def mvtec(home: Path, category: str) -> Dataset:
    """Read a category in the MVTec layout: train/good, test/<class> and ground_truth/<class>."""
    return replace(read_mvtec(home / category), name=category)


def has_categories(home: Path, categories: Iterable[str]) -> list[str]:
    """Return the categories of which a folder in the MVTec layout, or a part of one, exists."""
    return [c for c in categories if any((home / c / inner).is_dir() for inner in ("train", "test"))]


def compare_classes(present: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Return notes on classes that were renamed or are missing."""
    unknown, missing = sorted({*present} - {*expected}), sorted({*expected} - {*present})
    notes = [f"classes that the set does not have: {abbreviate(unknown)}"] if unknown else []
    return notes + ([f"classes without an image: {abbreviate(missing)}"] if missing else [])


def visa(home: Path, category: str) -> Dataset:
    """Read <category>/Data/Images and Data/Masks with split_csv/1cls.csv, or the MVTec layout made of it."""
    if has_categories(home, [category]):
        return mvtec(home, category)
    file = home / "split_csv" / "1cls.csv"
    root = home / category
    paths = {path.relative_to(home).as_posix(): path for path in walk(root / "Data" / "Images")}
    masks = {path.relative_to(home).as_posix(): path for path in walk(root / "Data" / "Masks")}
    samples: list[Sample] = []
    missing: list[str] = []
    listed: set[str] = set()
    for number, row in _table(file, ("object", "split", "label", "image", "mask")):
        if row["object"] != category:
            continue
        if row["split"] not in ("train", "test") or row["label"] not in ("normal", "anomaly"):
            raise DataError(f"{file}, row {number}: needs split train or test, and label normal or anomaly")
        path = paths.get(row["image"])
        if path is None:
            missing.append(row["image"])
            continue
        listed.add(row["image"])
        anomalous = row["label"] == "anomaly"
        mask = masks.get(row["mask"]) if anomalous else None
        defect = UNNAMED_DEFECT if anomalous else GOOD
        samples.append(Sample(path, path.relative_to(root).as_posix(), int(anomalous), defect, mask, row["split"]))
    extra = [name for name in paths if name not in listed]
    notes = [f"listed in {file.name} but not there: {abbreviate(missing)}"] if missing else []
    notes += [f"not used, not listed in {file.name}: {abbreviate(extra)}"] if extra else []
    return Dataset(category, root, samples, "public", notes + _unmasked(samples))


def visa_categories(home: Path, categories: Iterable[str]) -> list[str]:
    """Return the categories that exist, as downloaded or in the MVTec layout."""
    categories = list(categories)
    ready = has_categories(home, categories)
    return [c for c in categories if c in ready or (home / c / "Data").is_dir()]


def ksdd2(home: Path) -> Dataset:
    """Read train/ and test/ with N.png beside N_GT.png; the image of a black GT file is normal."""
    pairs: list[tuple[str, Path, Path]] = []
    notes: list[str] = []
    for split in ("train", "test"):
        paths = walk(home / split)
        copies = [path for path in paths if "(copy)" in path.stem]
        rest = {path.stem: path for path in paths if path not in set(copies)}
        unlabelled = [path.name for stem, path in rest.items() if not stem.endswith("_GT") and f"{stem}_GT" not in rest]
        orphans = [path.name for stem, path in rest.items() if stem.endswith("_GT") and stem[:-3] not in rest]
        pairs += [(split, path, rest[f"{stem}_GT"]) for stem, path in rest.items() if f"{stem}_GT" in rest]
        notes += [f"not used, stray copies in {split}: {abbreviate(path.name for path in copies)}"] if copies else []
        notes += [f"not used, no _GT file states its label, in {split}: {abbreviate(unlabelled)}"] if unlabelled else []
        notes += [f"mask without an image in {split}: {abbreviate(orphans)}"] if orphans else []

    def read(pair: tuple[str, Path, Path]) -> Sample | str:
        split, path, truth = pair
        try:
            anomalous = bool(read_mask_file(truth).any())
        except BgadError as error:
            return f"not used, its _GT file is broken: {error}"
        name = path.relative_to(home).as_posix()
        defect = UNNAMED_DEFECT if anomalous else GOOD
        return Sample(path, name, int(anomalous), defect, truth if anomalous else None, split)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(read, pairs))
    samples = [result for result in results if isinstance(result, Sample)]
    notes += [result for result in results if isinstance(result, str)]
    return Dataset("ksdd2", home, samples, "public", notes)


def ksdd2_size(home: Path) -> int:
    """Count the images with a GT file; whether an image is normal is only known after decoding that file."""
    paths = [path for split in ("train", "test") for path in walk(home / split)]
    return sum(path.stem.endswith("_GT") for path in paths)


def is_ksdd2(folder: Path) -> bool:
    """Tell whether a folder holds the unpacked download."""
    return any(next((folder / split).glob("*_GT.png"), None) for split in ("train", "test"))


def magnetic_tile(home: Path) -> Dataset:
    """Read MT_<class>/Imgs with a .jpg image and a .png mask of the same name; MT_Free is normal."""
    samples: list[Sample] = []
    orphans: list[str] = []
    for folder in subfolders(home):
        if not folder.name.startswith("MT_"):
            continue
        defect = folder.name.removeprefix("MT_")
        paths = walk(folder / "Imgs")
        masks = {path.with_suffix(""): path for path in paths if path.suffix.lower() == ".png"}
        for path in (path for path in paths if path.suffix.lower() in (".jpg", ".jpeg")):
            mask = masks.pop(path.with_suffix(""), None)
            normal = defect == "Free"
            name = path.relative_to(home).as_posix()
            samples.append(Sample(path, name, int(not normal), GOOD if normal else defect, None if normal else mask))
        orphans += [path.relative_to(home).as_posix() for path in masks.values()]
    notes = [f"mask without an image: {abbreviate(orphans)}"] if orphans else []
    return Dataset("magnetic-tile", home, samples, "public", notes + _unmasked(samples))


def elpv(home: Path) -> Dataset:
    """Read labels.csv (path, probability of a defect, kind of cell) and images/; only probabilities 0 and 1 count."""
    file = home / "labels.csv"
    samples: list[Sample] = []
    missing: list[str] = []
    uncertain = 0
    for number, line in enumerate(_text(file).splitlines(), start=1):
        try:
            name, probability, kind = line.split()
            value = float(probability)
        except ValueError as error:
            raise DataError(f"{file}, row {number}: needs a path, a probability and mono or poly") from error
        if not 0 <= value <= 1:
            raise DataError(f"{file}, row {number}: {probability} is not a probability")
        if 0 < value < 1:
            uncertain += 1
        elif not (path := home / "images" / Path(name).name).is_file():
            missing.append(name)
        else:
            samples.append(Sample(path, f"images/{path.name}", int(value), kind if value else GOOD))
    notes = [f"{uncertain} images are not used: their label is neither 0 nor 1"] if uncertain else []
    notes += [f"listed in labels.csv but not there: {abbreviate(missing)}"] if missing else []
    return Dataset("elpv", home, samples, "public", notes)


def brainmri(home: Path) -> Dataset:
    """Read no/ (normal) and yes/ (tumour)."""
    samples = [
        Sample(path, path.relative_to(home).as_posix(), label, defect)
        for folder, label, defect in (("no", 0, GOOD), ("yes", 1, "tumor"))
        for path in walk(home / folder)
    ]
    return Dataset("brainmri", home, samples, "public")


def headct(home: Path) -> Dataset:
    """Read labels.csv (id, hemorrhage) and head_ct/NNN.png; the download nests a second folder head_ct."""
    file = home / "labels.csv"
    paths = {path.stem.lstrip("0") or "0": path for path in walk(home / "head_ct")}
    samples: list[Sample] = []
    missing: list[str] = []
    for number, row in _table(file, ("id", "hemorrhage")):
        if row["hemorrhage"] not in ("0", "1") or not row["id"].isdecimal():
            raise DataError(f"{file}, row {number}: needs a number and, for hemorrhage, 0 or 1")
        path = paths.pop(row["id"].lstrip("0") or "0", None)
        if path is None:
            missing.append(row["id"])
        else:
            label = int(row["hemorrhage"])
            defect = "hemorrhage" if label else GOOD
            samples.append(Sample(path, path.relative_to(home).as_posix(), label, defect))
    notes = [f"listed in labels.csv but not there: {abbreviate(missing)}"] if missing else []
    notes += [f"not used, not in labels.csv: {abbreviate(path.name for path in paths.values())}"] if paths else []
    return Dataset("headct", home, samples, "public", notes)


def _unmasked(samples: list[Sample]) -> list[str]:
    """Return a note on anomalies without a mask, where others have one."""
    unmasked = [sample.name for sample in samples if sample.label and not sample.mask]
    return [f"anomaly without a mask: {abbreviate(unmasked)}"] if unmasked and any(s.mask for s in samples) else []


def walk(folder: Path) -> list[Path]:
    """Return the images at or below a folder; empty where the folder does not exist."""
    return discover.walk(folder) if folder.is_dir() else []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); unpack the download again") from error


def _table(file: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """Return the numbered rows of a CSV table; column names and cells are stripped of surrounding blanks."""
    try:
        lines = list(csv.reader(_text(file).splitlines(), strict=True))
    except csv.Error as error:
        raise DataError(f"{file}: is not a table: {error}") from error
    header = [name.strip().lower() for name in lines[0]] if lines else []
    missing = [column for column in columns if column not in header]
    if missing:
        raise DataError(f"{file}: no column {', '.join(missing)}; unpack the download again")
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        if not cells:
            continue
        if len(cells) != len(header):
            raise DataError(f"{file}, row {number}: has {len(cells)} cells instead of {len(header)}")
        rows.append((number, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
    return rows
