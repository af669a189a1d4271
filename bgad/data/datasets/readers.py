"""The folders that each public data set unpacks to -> samples; what does not fit is said in the notes, by name."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bgad.data.layouts import BAD, Dataset, read_mvtec, some, subfolders
from bgad.errors import BgadError, DataError
from bgad.io import discover, images
from bgad.types import GOOD, Sample


def mvtec(home: Path, category: str) -> Dataset:
    """<category>/train/good, test/<class> and ground_truth/<class>."""
    return replace(read_mvtec(home / category), name=category)


def has_categories(home: Path, categories: Iterable[str]) -> list[str]:
    """Those categories that are there in the MVTec layout, or at least the beginning of one."""
    return [c for c in categories if any((home / c / inner).is_dir() for inner in ("train", "test"))]


def compare_classes(found: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Notes on classes that were renamed or are missing."""
    strange, missing = sorted({*found} - {*expected}), sorted({*expected} - {*found})
    notes = [f"classes that the set does not have: {some(strange)}"] if strange else []
    return notes + ([f"classes without an image: {some(missing)}"] if missing else [])


def visa(home: Path, category: str) -> Dataset:
    """<category>/Data/Images and Data/Masks with split_csv/1cls.csv, or the MVTec layout made of it."""
    if has_categories(home, [category]):
        return mvtec(home, category)
    file = home / "split_csv" / "1cls.csv"
    root = home / category
    pictures = {path.relative_to(home).as_posix(): path for path in walk(root / "Data" / "Images")}
    masks = {path.relative_to(home).as_posix(): path for path in walk(root / "Data" / "Masks")}
    samples: list[Sample] = []
    absent: list[str] = []
    listed: set[str] = set()
    for number, row in _table(file, ("object", "split", "label", "image", "mask")):
        if row["object"] != category:
            continue
        if row["split"] not in ("train", "test") or row["label"] not in ("normal", "anomaly"):
            raise DataError(f"{file}, row {number}: needs split train or test, and label normal or anomaly")
        path = pictures.get(row["image"])
        if path is None:
            absent.append(row["image"])
            continue
        listed.add(row["image"])
        bad = row["label"] == "anomaly"
        mask = masks.get(row["mask"]) if bad else None
        samples.append(
            Sample(path, path.relative_to(root).as_posix(), int(bad), BAD if bad else GOOD, mask, row["split"])
        )
    extra = [name for name in pictures if name not in listed]
    notes = [f"listed in {file.name} but not there: {some(absent)}"] if absent else []
    notes += [f"not used, not listed in {file.name}: {some(extra)}"] if extra else []
    return Dataset(category, root, samples, "catalog", notes + _bare(samples))


def visa_categories(home: Path, categories: Iterable[str]) -> list[str]:
    """Those categories that are there, as downloaded or in the MVTec layout."""
    categories = list(categories)
    ready = has_categories(home, categories)
    return [c for c in categories if c in ready or (home / c / "Data").is_dir()]


def ksdd2(home: Path) -> Dataset:
    """train/ and test/ with N.png beside N_GT.png; a black GT means normal."""
    pairs: list[tuple[str, Path, Path]] = []
    notes: list[str] = []
    for split in ("train", "test"):
        found = walk(home / split)
        copies = [path for path in found if "(copy)" in path.stem]
        rest = {path.stem: path for path in found if path not in set(copies)}
        alone = [path.name for stem, path in rest.items() if not stem.endswith("_GT") and f"{stem}_GT" not in rest]
        orphans = [path.name for stem, path in rest.items() if stem.endswith("_GT") and stem[:-3] not in rest]
        pairs += [(split, path, rest[f"{stem}_GT"]) for stem, path in rest.items() if f"{stem}_GT" in rest]
        notes += [f"not used, stray copies in {split}: {some(path.name for path in copies)}"] if copies else []
        notes += [f"not used, no _GT file tells what it is, in {split}: {some(alone)}"] if alone else []
        notes += [f"mask without an image in {split}: {some(orphans)}"] if orphans else []

    def look(pair: tuple[str, Path, Path]) -> Sample | str:
        split, path, truth = pair
        try:
            bad = bool(images.read_mask(truth).any())
        except BgadError as error:
            return f"not used, its _GT file is broken: {error}"
        name = path.relative_to(home).as_posix()
        return Sample(path, name, int(bad), BAD if bad else GOOD, truth if bad else None, split)

    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(look, pairs))
    samples = [one for one in seen if isinstance(one, Sample)]
    return Dataset("ksdd2", home, samples, "catalog", notes + [one for one in seen if isinstance(one, str)])


def ksdd2_size(home: Path) -> int:
    """How many images have a GT file beside them; which of them are normal is in those files."""
    found = [path for split in ("train", "test") for path in walk(home / split)]
    return sum(path.stem.endswith("_GT") for path in found)


def is_ksdd2(folder: Path) -> bool:
    """Whether the download was unpacked here."""
    return any(next((folder / split).glob("*_GT.png"), None) for split in ("train", "test"))


def magnetic_tile(home: Path) -> Dataset:
    """MT_<class>/Imgs with a .jpg image and a .png mask of the same name; MT_Free is normal."""
    samples: list[Sample] = []
    orphans: list[str] = []
    for folder in subfolders(home):
        if not folder.name.startswith("MT_"):
            continue
        defect = folder.name.removeprefix("MT_")
        found = walk(folder / "Imgs")
        masks = {path.with_suffix(""): path for path in found if path.suffix.lower() == ".png"}
        pictures = [path for path in found if path.suffix.lower() in (".jpg", ".jpeg")]
        for path in pictures:
            mask = masks.pop(path.with_suffix(""), None)
            good = defect == "Free"
            name = path.relative_to(home).as_posix()
            samples.append(Sample(path, name, int(not good), GOOD if good else defect, None if good else mask))
        orphans += [path.relative_to(home).as_posix() for path in masks.values()]
    notes = [f"mask without an image: {some(orphans)}"] if orphans else []
    return Dataset("magnetic-tile", home, samples, "catalog", notes + _bare(samples))


def elpv(home: Path) -> Dataset:
    """labels.csv (path, probability of a defect, kind of cell) and images/; only 0 and 1 are sure enough to be used."""
    file = home / "labels.csv"
    samples: list[Sample] = []
    absent: list[str] = []
    unsure = 0
    for number, line in enumerate(_text(file).splitlines(), start=1):
        try:
            name, probability, kind = line.split()
            chance = float(probability)
        except ValueError as error:
            raise DataError(f"{file}, row {number}: needs a path, a probability and mono or poly") from error
        if not 0 <= chance <= 1:
            raise DataError(f"{file}, row {number}: {probability} is not a probability")
        if 0 < chance < 1:
            unsure += 1
        elif not (path := home / "images" / Path(name).name).is_file():
            absent.append(name)
        else:
            samples.append(Sample(path, f"images/{path.name}", int(chance), kind if chance else GOOD))
    notes = [f"{unsure} images are not used: their label is neither 0 nor 1"] if unsure else []
    notes += [f"listed in labels.csv but not there: {some(absent)}"] if absent else []
    return Dataset("elpv", home, samples, "catalog", notes)


def brainmri(home: Path) -> Dataset:
    """no/ and yes/."""
    samples = [
        Sample(path, path.relative_to(home).as_posix(), label, defect)
        for folder, label, defect in (("no", 0, GOOD), ("yes", 1, "tumor"))
        for path in walk(home / folder)
    ]
    return Dataset("brainmri", home, samples, "catalog")


def headct(home: Path) -> Dataset:
    """labels.csv (id, hemorrhage) and head_ct/NNN.png, which the download has in a second folder of that name."""
    file = home / "labels.csv"
    pictures = {path.stem.lstrip("0") or "0": path for path in walk(home / "head_ct")}
    samples: list[Sample] = []
    absent: list[str] = []
    for number, row in _table(file, ("id", "hemorrhage")):
        if row["hemorrhage"] not in ("0", "1") or not row["id"].isdecimal():
            raise DataError(f"{file}, row {number}: needs a number and, for hemorrhage, 0 or 1")
        path = pictures.pop(row["id"].lstrip("0") or "0", None)
        if path is None:
            absent.append(row["id"])
        else:
            bad = row["hemorrhage"] == "1"
            samples.append(Sample(path, path.relative_to(home).as_posix(), int(bad), "hemorrhage" if bad else GOOD))
    notes = [f"listed in labels.csv but not there: {some(absent)}"] if absent else []
    notes += [f"not used, not in labels.csv: {some(path.name for path in pictures.values())}"] if pictures else []
    return Dataset("headct", home, samples, "catalog", notes)


def _bare(samples: list[Sample]) -> list[str]:
    bare = [sample.name for sample in samples if sample.label and not sample.mask]
    return [f"anomaly without a mask: {some(bare)}"] if bare and any(s.mask for s in samples) else []


def walk(folder: Path) -> list[Path]:
    """The images at or below a folder; none where there is no such folder."""
    return discover.walk(folder) if folder.is_dir() else []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); unpack the download again") from error


def _table(file: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a table with their numbers; column names and cells without the blanks around them."""
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
