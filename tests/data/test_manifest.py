from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bgad.data import layouts
from bgad.errors import DataError
from bgad.types import Sample
from tests.data.files import make


def manifest(root: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    file = root / f"list.{kind}"
    if kind == "jsonl":
        file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    else:
        columns = list(rows[0])
        lines = [",".join(columns), *(",".join(str(row.get(c, "")) for c in columns) for row in rows)]
        file.write_text("\n".join(lines), encoding="utf-8-sig")
    return file


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_manifest(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/1.png", "a/2.png", "é/3.png", "m/3.png")
    rows: list[dict[str, Any]] = [
        {"path": "a/1.png", "label": 0, "mask": "", "class": "", "split": "train", "who": "me"},
        {"path": "./a/2.png", "label": "Normal", "mask": "", "class": "", "split": "test"},
        {"path": "é\\3.png", "label": "anomaly", "mask": "m/3.png", "class": "dent", "split": ""},
    ]
    file = manifest(tmp_path, kind, rows)
    dataset = layouts.load(file)
    assert dataset.samples == [
        Sample(tmp_path / "a/1.png", "a/1.png", 0, "good", None, "train"),
        Sample(tmp_path / "a/2.png", "a/2.png", 0, "good", None, "test"),
        Sample(tmp_path / "é/3.png", "é/3.png", 1, "dent", tmp_path / "m/3.png", ""),
    ]
    assert (dataset.layout, dataset.name, dataset.notes) == ("manifest", "list", ["columns not used: who"])
    monkeypatch.chdir(tmp_path)
    assert [s.name for s in layouts.load(file.name).samples] == ["a/1.png", "a/2.png", "é/3.png"]


def test_semicolon_csv_and_default_class(tmp_path: Path) -> None:
    make(tmp_path, "1.png", "2.png")
    (tmp_path / "l.csv").write_text("Label;Path\ngood;1.png\n1;2.png\n")
    assert [(s.label, s.defect) for s in layouts.load(tmp_path / "l.csv").samples] == [
        (0, "good"),
        (1, "bad"),
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"path": "../out.png", "label": 1}, "stay inside"),
        ({"path": "sub/../../out.png", "label": 1}, "stay inside"),
        ({"path": "/etc/hostname", "label": 1}, "stay inside"),
        ({"path": "C:\\x.png", "label": 1}, "stay inside"),
        ({"path": "link.png", "label": 1}, "leaves the manifest's folder"),
        ({"path": "linked/out.png", "label": 1}, "leaves the manifest's folder"),
        ({"path": "circle.png", "label": 1}, "not a usable path|does not exist"),
        ({"path": "gone.png", "label": 1}, "gone.png does not exist"),
        ({"path": "x" * 5000, "label": 1}, "not a usable path|does not exist"),
        ({"path": "2.png", "label": "maybe"}, "label is 'maybe'"),
        ({"path": "2.png", "label": ""}, "label is missing"),
        ({"path": "", "label": 1}, "path is missing"),
        ({"path": "1.png", "label": 1}, "already in row"),
        ({"path": "2.png", "label": 1, "split": "val"}, "split is 'val'"),
        ({"path": "2.png", "label": 1, "class": "good"}, "cannot be of class"),
        ({"path": "2.png", "label": 1, "mask": "../out.png"}, "stay inside"),
        ({"path": "2.png", "label": 1, "mask": "gone.png"}, "gone.png does not exist"),
    ],
)
def test_manifest_errors_name_the_row(tmp_path: Path, kind: str, row: dict[str, Any], message: str) -> None:
    make(tmp_path, "out.png", "in/1.png", "in/2.png", "other/out.png")
    root = tmp_path / "in"
    (root / "link.png").symlink_to("../out.png")
    (root / "linked").symlink_to("../other")
    (root / "circle.png").symlink_to("circle.png")
    first = {"path": "1.png", "label": 0, "mask": "", "class": "", "split": ""}
    file = manifest(root, kind, [first, row])
    with pytest.raises(DataError, match=message) as caught:
        layouts.load(file)
    assert f"list.{kind}, row {3 if kind == 'csv' else 2}: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_links_inside_the_manifest_folder_are_fine(tmp_path: Path) -> None:
    make(tmp_path, "a/1.png")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "l.csv").write_text("path,label\nb/1.png,0\n")
    assert layouts.load(tmp_path / "l.csv").samples[0].name == "b/1.png"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"", "no column 'path'"),
        ("a.csv", b"path,lable\n1.png,0\n", "row 1: no column 'label'"),
        ("a.csv", b"path,label\n\xff\xfe,0\n", "UTF-8 csv"),
        ("a.csv", b'path,label\n"1.png,0\n', "cannot be read|not"),
        ("a.csv", b"path,label\n", "no images found"),
        ("a.csv", b"path,label\n1.png\n", "row 2: label is missing"),
        ("a.jsonl", b"{", "row 1: is not JSON"),
        ("a.jsonl", b"[1]\n", "row 1: must be an object"),
        ("a.jsonl", b"\n" + b"[" * 100_000, "row 2: is not JSON"),
        ("a.jsonl", b'{"path": 3, "label": 0}', "row 1: path must be text, not int"),
        ("a.jsonl", b'{"path": "1.png", "label": 0.5}', "row 1: label must be text, not float"),
        ("a.jsonl", b'{"path": "a\\u0000.png", "label": 0}', "row 1: .*not a usable path"),
    ],
)
def test_broken_manifests(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    make(tmp_path, "1.png")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        layouts.load(tmp_path / name)
