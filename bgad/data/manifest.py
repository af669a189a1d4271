"""Reads the samples that a .csv or .jsonl manifest lists: path, label, mask, class and split of each image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

from bgad.errors import DataError, abbreviate
from bgad.types import GOOD, Sample, label_of

UNNAMED_DEFECT = "bad"  # the defect class of an anomaly whose class is not stated

_FLAGS = {"0": 0, "false": 0, "1": 1, "true": 1}  # labels of manifests only

COLUMNS = ("path", "label", "mask", "class", "split")
REQUIRED = ("path", "label")


def read_manifest(file: Path) -> tuple[list[Sample], list[str]]:
    """Return the samples of a manifest, and notes on missing masks and unknown columns."""
    rows = READERS.get(file.suffix.lower())
    if rows is None:
        raise DataError(f"{file}: a manifest is a .csv or .jsonl file; otherwise give a folder")
    samples: dict[str, Sample] = {}
    row_numbers: dict[str, int] = {}
    unknown_columns: dict[str, None] = {}
    try:
        for number, row in rows(file):
            sample = _sample(file, number, row)
            if sample.name in samples:
                raise DataError(f"{file}, row {number}: {sample.name} is already in row {row_numbers[sample.name]}")
            samples[sample.name], row_numbers[sample.name] = sample, number
            unknown_columns |= dict.fromkeys(str(key) for key in row if key not in COLUMNS)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as UTF-8 {file.suffix[1:]}: {error}") from error
    unmasked = [sample.name for sample in samples.values() if sample.label and not sample.mask]
    has_masks = any(sample.mask for sample in samples.values())
    notes = [f"anomaly without a mask: {abbreviate(unmasked)}"] if unmasked and has_masks else []
    notes += [f"columns not used: {abbreviate(unknown_columns)}"] if unknown_columns else []
    return list(samples.values()), notes


def _csv_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        header = stream.readline()
        stream.seek(0)
        delimiter = max(",;\t", key=header.count)  # spreadsheets of many countries write semicolons
        table = csv.DictReader(stream, delimiter=delimiter, restkey="(more cells than columns)", strict=True)
        table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
        for column in REQUIRED:
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


READERS = {".csv": _csv_rows, ".jsonl": _json_rows}  # suffix -> reader of numbered rows


def _sample(file: Path, number: int, row: dict[str, Any]) -> Sample:
    """Return the sample that one row describes; DataError names the row and the column that is wrong."""
    where = f"{file}, row {number}"
    path, label, mask, defect, split = (_cell(row, column, where) for column in COLUMNS)
    anomalous = _FLAGS.get(label.lower(), label_of(label))
    if anomalous is None:
        raise DataError(f"{where}: label is {label!r}; use 0 or good, 1 or bad")
    if split.lower() not in ("", "train", "test"):
        raise DataError(f"{where}: split is {split!r}; use train, test or nothing")
    if anomalous and defect.lower() == GOOD:
        raise DataError(f"{where}: an anomaly cannot be of class {GOOD!r}")
    image = _inside(file.parent, path, where)
    mask_path = _inside(file.parent, mask, where) if mask and anomalous else None
    name = image.relative_to(file.parent).as_posix()
    defect = (defect or UNNAMED_DEFECT) if anomalous else GOOD
    return Sample(image, name, anomalous, defect, mask_path, split.lower())


def _cell(row: dict[str, Any], column: str, where: str) -> str:
    """Return the text in a column of a row, without surrounding blanks; empty where an optional column is missing."""
    value = row.get(column)
    if value is None or isinstance(value, str):
        value = (value or "").strip()
        if not value and column in REQUIRED:
            raise DataError(f"{where}: {column} is missing")
        return str(value)
    if isinstance(value, int) and column in ("label", "class"):
        return str(value)
    raise DataError(f"{where}: {column} must be text, not {type(value).__name__}")


def _inside(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file that a manifest names; refuse one outside of the manifest's folder, also via a link."""
    name = name.replace("\\", "/")
    path = folder / name
    if name.startswith("/") or PureWindowsPath(name).drive or ".." in Path(name).parts:
        raise DataError(f"{where}: {name} must be relative to the manifest's folder and stay inside it")
    try:
        is_inside = path.resolve().is_relative_to(folder.resolve())
        exists = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, a circle of links
        raise DataError(f"{where}: {name!r} is not a usable path: {error}") from error
    if not is_inside:
        raise DataError(f"{where}: {name} is a link that leaves the manifest's folder; copy the file into it")
    if not exists:
        raise DataError(f"{where}: {name} does not exist")
    return path
