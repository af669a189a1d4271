"""A folder or a manifest on disk -> samples: the images, what is known of them and where their masks are."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

from bgad.errors import DataError
from bgad.io import discover
from bgad.types import GOOD, Sample

NORMAL_NAMES = frozenset({"good", "ok", "normal", "no"})
ANOMALOUS_NAMES = frozenset({"bad", "ko", "defect", "defective", "anomaly", "anomalous", "yes", "broken"})
BAD = "bad"  # the class of an anomaly that nobody named

MANIFESTS = (".csv", ".jsonl")

_COLUMNS = ("path", "label", "mask", "class", "split")
_LAYOUTS = (
    "expected train/good (with test/<class> and ground_truth/<class>/<name>_mask.png), "
    "or good/ and bad/ (with masks/), or a .csv or .jsonl manifest"
)


@dataclass(frozen=True)
class Dataset:
    """The samples of one data set, and notes on what in it was not understood."""

    name: str
    root: Path
    samples: list[Sample]
    layout: Literal["mvtec", "plain", "manifest", "catalog"]
    notes: list[str] = field(default_factory=list)


def load(root: str | Path, *, need_normals: bool = True) -> Dataset:
    """The data set in a folder (MVTec or plain layout, told apart by its sub-folders) or in a manifest file.

    Training needs normals outside of the test set; evaluation does not.
    """
    root = Path(root)
    if root.is_file():
        dataset = _manifest(root)
    elif root.is_dir():
        dataset = _folder(root)
    else:
        raise DataError(f"{root}: no such folder or manifest")
    notes = "".join(f"; {note}" for note in dataset.notes)
    if not dataset.samples:
        raise DataError(f"{root}: no images found; {_LAYOUTS}{notes}")
    if need_normals and not any(s.label == 0 and s.split != "test" for s in dataset.samples):
        raise DataError(f"{root}: no normal images to learn from; {_LAYOUTS}{notes}")
    return dataset


def hash_file(path: Path, more: str = "") -> str:
    """The sha256 of a file's bytes, followed by `more`, in hexadecimal."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    found.update(more.encode())
    return found.hexdigest()


def _folder(root: Path) -> Dataset:
    folders = subfolders(root)
    if is_category(root):
        return read_mvtec(root)
    if any(folder.name.lower() in NORMAL_NAMES for folder in folders):
        return _plain(root, folders)
    categories = [folder.name for folder in folders if is_category(folder)]
    if categories:
        raise DataError(f"{root}: holds data sets in its folders; give one of them: {some(categories, 20)}")
    held = some([f"{folder.name}/" for folder in folders], 8) if folders else "no folders"
    raise DataError(f"{root}: {_LAYOUTS}; found {held}")


def is_category(folder: Path) -> bool:
    """True for a folder in the MVTec layout."""
    return any(sub.name.lower() in NORMAL_NAMES for sub in subfolders(folder / "train"))


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, natural-sorted, without hidden ones; none where there is no such folder."""
    if not folder.is_dir():
        return []
    try:
        found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error
    return sorted(found, key=discover.natural_key)


def read_mvtec(root: Path) -> Dataset:
    """One category: train/<class>, test/<class> and ground_truth/<class>."""
    samples: list[Sample] = []
    loose: list[str] = []
    unread: Counter[str] = Counter()
    for split in ("train", "test"):
        for path in discover.walk(root / split, unread) if (root / split).is_dir() else ():
            name = path.relative_to(root)
            if len(name.parts) < 3:
                loose.append(name.as_posix())
                continue
            normal = name.parts[1].lower() in NORMAL_NAMES
            defect = GOOD if normal else name.parts[1]
            samples.append(Sample(path, name.as_posix(), int(not normal), defect, split=split))
    # test/crack/007.png -> ground_truth/crack/007
    wanted = {s.name: [Path(*Path(s.name).parts[1:]).with_suffix("").as_posix()] for s in samples}
    samples, notes = _attach_masks(samples, root / "ground_truth", wanted, unread)
    if loose:
        notes.append(f"not used, outside of a class folder: {some(loose)}")
    return Dataset(root.resolve().name, root, samples, "mvtec", notes)


def _plain(root: Path, folders: list[Path]) -> Dataset:
    samples: list[Sample] = []
    unused: list[str] = []
    unread: Counter[str] = Counter()
    wanted: dict[str, list[str]] = {}
    for folder in folders:
        kind = folder.name.lower()
        if kind not in NORMAL_NAMES | ANOMALOUS_NAMES:
            unused += [f"{folder.name}/"] if kind != "masks" else []
            continue
        for path in discover.walk(folder, unread):
            name, inner = path.relative_to(root), path.relative_to(folder)
            defect = GOOD if kind in NORMAL_NAMES else inner.parts[0] if len(inner.parts) > 1 else BAD
            samples.append(Sample(path, name.as_posix(), int(kind in ANOMALOUS_NAMES), defect))
            # masks/bad/crack/7, masks/crack/7 or masks/7; for a normal only masks/good/7, as stems may repeat
            places = [name] if kind in NORMAL_NAMES else [name, inner, Path(path.name)]
            wanted[name.as_posix()] = [place.with_suffix("").as_posix() for place in places]
    masks = next((folder for folder in folders if folder.name.lower() == "masks"), root / "masks")
    samples, notes = _attach_masks(samples, masks, wanted, unread)
    if unused:
        notes.append(f"folders not used: {some(unused)}")
    return Dataset(root.resolve().name, root, samples, "plain", notes)


def _attach_masks(
    samples: list[Sample], folder: Path, wanted: dict[str, list[str]], unread: Counter[str]
) -> tuple[list[Sample], list[str]]:
    """Give each anomaly its mask: the first of its wanted names that is there, with or without `_mask`."""
    masks: dict[str, list[Path]] = {}
    for path in discover.walk(folder, unread) if folder.is_dir() else ():
        masks.setdefault(path.relative_to(folder).with_suffix("").as_posix(), []).append(path)

    def partner(sample: Sample) -> Path | None:
        names = [f"{stem}{end}" for stem in wanted[sample.name] for end in ("_mask", "")]
        return next((masks[name][0] for name in names if name in masks), None)

    owner: dict[Path, Sample] = {}
    result: list[Sample] = []
    for sample in samples:
        mask = partner(sample) if sample.label else None
        if mask and mask in owner:
            both = f"{owner[mask].name} and {sample.name}"
            raise DataError(f"{mask}: is the mask of both {both}; rename one of them and give it its own mask")
        if mask:
            owner[mask] = sample
        result.append(replace(sample, mask=mask))
    used = {*owner, *(partner(sample) for sample in samples if not sample.label)}
    alone = [path.relative_to(folder.parent).as_posix() for found in masks.values() for path in found]
    alone = [name for name in alone if folder.parent / name not in used]
    bare = [sample.name for sample in result if sample.label and not sample.mask]
    notes = [f"not used: {discover.describe_unsupported(unread)}"] if unread else []
    notes += [f"mask without an image: {some(alone)}"] if alone else []
    return result, notes + ([f"anomaly without a mask: {some(bare)}"] if bare and owner else [])


def _manifest(file: Path) -> Dataset:
    readers = dict(zip(MANIFESTS, (_csv_rows, _json_rows), strict=True))
    if file.suffix.lower() not in readers:
        raise DataError(f"{file}: a manifest is a .csv or .jsonl file; otherwise give a folder")
    samples: dict[str, Sample] = {}
    rows: dict[str, int] = {}
    unknown: dict[str, None] = {}
    try:
        for number, row in readers[file.suffix.lower()](file):
            sample = _row_sample(file, number, row)
            if sample.name in samples:
                raise DataError(f"{file}, row {number}: {sample.name} is already in row {rows[sample.name]}")
            samples[sample.name], rows[sample.name] = sample, number
            unknown |= dict.fromkeys(str(key) for key in row if key not in _COLUMNS)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as UTF-8 {file.suffix[1:]}: {error}") from error
    bare = [sample.name for sample in samples.values() if sample.label and not sample.mask]
    masked = any(sample.mask for sample in samples.values())
    notes = [f"anomaly without a mask: {some(bare)}"] if bare and masked else []
    notes += [f"columns not used: {some(unknown)}"] if unknown else []
    return Dataset(file.stem, file.parent, list(samples.values()), "manifest", notes)


def _csv_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        header = stream.readline()
        stream.seek(0)
        delimiter = max(",;\t", key=header.count)  # spreadsheets of many countries write semicolons
        table = csv.DictReader(stream, delimiter=delimiter, restkey="(more cells than columns)", strict=True)
        table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
        for column in ("path", "label"):
            if column not in table.fieldnames:
                raise DataError(f"{file}, row 1: no column {column!r}; needs path and label")
        yield from enumerate(table, start=2)


def _json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with file.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{file}, row {number}: is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{file}, row {number}: must be an object with path and label")
            yield number, row


def _row_sample(file: Path, number: int, row: dict[str, Any]) -> Sample:
    where = f"{file}, row {number}"
    path, label, mask, defect, split = (_cell(row, column, where) for column in _COLUMNS)
    if label.lower() in NORMAL_NAMES | {"0", "false"}:
        anomalous = False
    elif label.lower() in ANOMALOUS_NAMES | {"1", "true"}:
        anomalous = True
    else:
        raise DataError(f"{where}: label is {label!r}; use 0 or good, 1 or bad")
    if split.lower() not in ("", "train", "test"):
        raise DataError(f"{where}: split is {split!r}; use train, test or nothing")
    if anomalous and defect.lower() == GOOD:
        raise DataError(f"{where}: an anomaly cannot be of class {GOOD!r}")
    image = _inside(file.parent, path, where)
    found = _inside(file.parent, mask, where) if mask and anomalous else None
    name = image.relative_to(file.parent).as_posix()
    return Sample(image, name, int(anomalous), (defect or BAD) if anomalous else GOOD, found, split.lower())


def _cell(row: dict[str, Any], column: str, where: str) -> str:
    value = row.get(column)
    if value is None or isinstance(value, str):
        value = (value or "").strip()
        if not value and column in ("path", "label"):
            raise DataError(f"{where}: {column} is missing")
        return str(value)
    if isinstance(value, int) and column in ("label", "class"):
        return str(value)
    raise DataError(f"{where}: {column} must be text, not {type(value).__name__}")


def _inside(folder: Path, name: str, where: str) -> Path:
    """A file that a manifest names; one outside of the manifest's folder is refused, also through a link."""
    name = name.replace("\\", "/")
    path = folder / name
    if name.startswith("/") or PureWindowsPath(name).drive or ".." in Path(name).parts:
        raise DataError(f"{where}: {name} must be relative to the manifest's folder and stay inside it")
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        found = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, a circle of links
        raise DataError(f"{where}: {name!r} is not a usable path: {error}") from error
    if not inside:
        raise DataError(f"{where}: {name} is a link that leaves the manifest's folder; copy the file into it")
    if not found:
        raise DataError(f"{where}: {name} does not exist")
    return path


def some(names: Iterable[str], most: int = 5) -> str:
    """The first few names for a message, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
