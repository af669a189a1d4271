from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bgad.data.layouts import Dataset
from bgad.data.sample_io import digest
from bgad.data.split import Split, make_split
from bgad.errors import DataError
from bgad.types import ROLES, UNUSED, Sample, SplitImage, SplitRecord
from tests.data.splits import mvtec, replace_digest, roles


@pytest.fixture(autouse=True)
def _no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_digest(monkeypatch)


def test_what_a_split_file_says() -> None:
    made = make_split(mvtec(20, {"a": 20}), holdout=4, known=3, seed=7)
    stored = json.loads(made.to_bytes())
    assert {key: value for key, value in stored.items() if key != "images"} == {
        "format": 1,
        "data": "mvtec",
        "protocol": "multi-class",
        "known_class": "",
        "subset": 0,
        "seed": 7,
        "notes": [],
    }
    assert len(stored["images"]) == 45
    assert stored["images"][0] == {
        "name": made.train[0].name,
        "sha256": f"sha of {made.train[0].path}",
        "role": "train",
        "defect": "good",
        "why": "normal of train/good",
    }
    reasons = {image["name"]: image["why"] for image in stored["images"]}
    assert reasons[made.known[2].name] == "drawn as known anomaly 3 of 3"
    assert reasons[made.calibration[0].name] == "held out for calibration"
    assert reasons[made.train[0].name] == "normal of train/good"
    assert {reasons[s.name] for s in made.test} == {"left for test", "normal of the test set"}
    record = SplitRecord.from_json(stored)
    assert record == made.record()
    assert record.roles() == {made.hashes[name]: role for name, role in roles(made).items()}


def test_an_image_with_a_role_is_not_unused_under_another_name() -> None:
    images = [SplitImage("1.png", "a", "test"), SplitImage("2.png", "a", "unused")]
    assert SplitRecord(images).roles() == SplitRecord(images[::-1]).roles() == {"a": "test"}


# --- the split file


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A data set of real files; a split does not depend on their content."""
    monkeypatch.undo()
    dataset = mvtec(8, {"a": 4, "b": 3})
    for one in dataset.samples:
        path = tmp_path / "set" / one.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.name)
    samples = [replace(one, path=tmp_path / "set" / one.name) for one in dataset.samples]
    strip = tmp_path / "set/test/b/000.png"
    tiles = [Sample(strip, f"test/b/000.png#{i}", 1, "b", None, "test", (i * 4, 0, i * 4 + 4, 4)) for i in range(2)]
    return replace(dataset, root=tmp_path / "set", samples=samples + tiles)


def test_a_split_comes_back_from_its_file(on_disk: Dataset, tmp_path: Path) -> None:
    made = make_split(on_disk, holdout=2, known=3, seed=5)
    path = tmp_path / "split.json"
    path.write_bytes(made.to_bytes())
    assert Split.load(path, replace(on_disk, name="renamed", samples=on_disk.samples[::-1])) == made
    listed = {image["name"]: image for image in json.loads(path.read_bytes())["images"]}
    assert listed["test/b/000.png#1"]["box"] == [4, 0, 8, 4]
    assert listed["test/b/000.png#1"]["sha256"] != listed["test/b/000.png#0"]["sha256"]
    one = listed["train/good/000.png"]
    assert one["sha256"] == hashlib.sha256(b"train/good/000.png").hexdigest()
    assert "box" not in one


def test_roles_may_be_edited_by_hand(on_disk: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    images = [
        {"name": one.name, "sha256": digest(one), "role": role}
        for one, role in zip(
            on_disk.samples, ["train"] * 5 + ["calibration"] * 2 + ["unused"] + ["test"] * 6, strict=False
        )
    ]
    images[-1]["role"] = "known"
    path.write_text(json.dumps({"format": 1, "images": images}))
    made = Split.load(path, on_disk)
    assert {role: len(getattr(made, role)) for role in (*ROLES, UNUSED)} == {
        "train": 5,
        "calibration": 2,
        "known": 1,
        "test": 5,
        "unused": 1 + 8,
    }
    assert made.protocol == "given"
    assert made.notes == ["8 images are not in the split file and get no role, the first: test/a/001.png"]
    assert made.why["test/b/000.png"] == "not in the split file"


def changed(stored: dict[str, Any], name: str, /, **values: Any) -> dict[str, Any]:
    return stored | {"images": [i | values if i["name"] == name else i for i in stored["images"]]}


NORMAL, ANOMALY = "train/good/000.png", "test/a/000.png"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: changed(d, NORMAL, role="boss"), f"{NORMAL} has the unknown role 'boss'; use train, calibration, k"),
        (lambda d: changed(d, NORMAL, name="train/good/x.png"), "train/good/x.png is not among the readable images of"),
        (lambda d: changed(d, NORMAL, sha256="0" * 64), f"{NORMAL} has changed since the split was made"),
        (lambda d: changed(d, NORMAL, role="known"), f"{NORMAL} is normal, so it cannot have the role known"),
        (lambda d: changed(d, ANOMALY, role="train"), f"{ANOMALY} is anomalous, so it cannot have the role train"),
        (lambda d: changed(d, ANOMALY, role="calibration"), f"{ANOMALY} is anomalous, so it cannot have the role cal"),
        (lambda d: changed(d, ANOMALY, defect="b"), f"{ANOMALY} is of class 'b' there, 'a' in the data"),
        (lambda d: changed(d, NORMAL, box=[1, 2, 3]), "image 1 has a box that is not four whole numbers"),
        (lambda d: changed(d, NORMAL, role=3), "image 1 has something other than text in one of its fields"),
        (lambda d: d | {"images": [*d["images"], d["images"][0] | {"role": "test"}]}, f"{NORMAL} is listed twice"),
        (lambda d: d | {"images": [*d["images"], {"name": NORMAL}]}, "image 17 needs name, sha256 and role"),
        (lambda d: d | {"images": [*d["images"], 5]}, "image 17 needs name, sha256 and role"),
        (lambda d: d | {"images": []}, "at least 2 images must have the role train, and 1 calibration"),
        (lambda d: d | {"images": {}}, "is not a split file: it needs format and images"),
        (lambda d: d | {"format": 2}, "has format 2, this bgad reads up to 1: upgrade bgad"),
        (lambda d: d | {"format": 0}, "is not a split file: it needs format and images"),
        (lambda d: d | {"format": None}, "is not a split file: it needs format and images"),
        (lambda d: [d], "is not a split file: it needs format and images"),
        (lambda d: d | {"seed": "1"}, "seed must be of type int"),
        (lambda d: d | {"notes": [1]}, "notes must be a list of texts"),
        (lambda d: d | {"protocol": "unsupervised"}, "is known, but the protocol is unsupervised"),
    ],
)
def test_a_wrong_split_file_is_named(
    on_disk: Dataset, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    on_disk = replace(on_disk, samples=on_disk.samples[:16])
    plan = ["train"] * 6 + ["calibration"] * 2 + ["test"] * 6 + ["known"] * 2
    images = [
        {"name": one.name, "sha256": digest(one), "role": role, "defect": one.defect, "why": ""}
        for one, role in zip(on_disk.samples, plan, strict=True)
    ]
    path = tmp_path / "split.json"
    stored = {"format": 1, "images": images}
    path.write_text(json.dumps(stored))
    Split.load(path, on_disk)
    path.write_text(json.dumps(change(stored)))
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: .*{message}") as caught:
        Split.load(path, on_disk)
    assert "\n" not in str(caught.value)


def test_a_changed_or_copied_image_and_an_unreadable_file_are_named(on_disk: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    made = make_split(on_disk, holdout=2, known=2)
    path.write_bytes(made.to_bytes())
    tested = next(s for s in made.test if not s.label)
    tested.path.write_bytes(made.train[0].path.read_bytes())
    with pytest.raises(DataError, match=f"{tested.name} has changed since the split"):
        Split.load(path, on_disk)
    path.write_bytes(
        path.read_bytes().replace(made.hashes[tested.name].encode(), made.hashes[made.train[0].name].encode())
    )
    with pytest.raises(DataError, match=rf"{tested.name} \(test\) is the same image as {made.train[0].name} \(train"):
        Split.load(path, on_disk)
    path.write_text("{")
    with pytest.raises(DataError, match="is not a split file: not valid JSON"):
        Split.load(path, on_disk)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Split.load(path, on_disk)
