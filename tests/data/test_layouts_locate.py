from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bgad.data import layouts
from bgad.data.datasets import registry
from bgad.errors import DataError
from tests.conftest import write_set


@pytest.fixture(autouse=True)
def _only_what_is_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the data sets of the machine that runs the tests."""
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    monkeypatch.delenv("BGAD_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def screw(tmp_path: Path) -> Path:
    return write_set(tmp_path / "sets/mvtec/screw", train=3, good=1, bad=2)


@pytest.mark.parametrize("data", ["mvtec/screw", Path("mvtec/screw"), "mvtec/screw/"])
def test_a_registered_name_is_read_from_the_root(data: str | Path, screw: Path, tmp_path: Path) -> None:
    dataset = layouts.locate(data, tmp_path / "sets")
    assert (dataset.name, dataset.root, len(dataset.samples)) == ("screw", screw, 6)
    assert layouts.set_name(data) == "mvtec"
    assert layouts.model_folder(data) == Path("screw.bgad")


def test_a_model_has_the_full_name_of_its_data() -> None:
    found = [layouts.model_folder(name).name for name in ("gear.v1", "gear.v2/", "in/list.CSV", "list.v2.jsonl")]
    assert found == ["gear.v1.bgad", "gear.v2.bgad", "list.bgad", "list.v2.bgad"]


def test_the_root_comes_from_the_environment(screw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BGAD_DATA", str(tmp_path / "sets"))
    assert layouts.locate("mvtec/screw").root == screw
    monkeypatch.delenv("BGAD_DATA")
    (tmp_path / "sets").rename(tmp_path / "data")
    assert layouts.locate("mvtec/screw").root == Path("data/mvtec/screw")


def test_a_path_that_exists_wins(screw: Path, tmp_path: Path) -> None:
    shutil.copytree(screw, tmp_path / "mvtec/screw")
    (tmp_path / "mvtec/screw/train/good/000.png").unlink()
    dataset = layouts.locate("mvtec/screw", tmp_path / "sets")
    assert (dataset.root, len(dataset.samples)) == (Path("mvtec/screw"), 5)
    assert layouts.set_name("mvtec/screw") is None
    (tmp_path / "elpv").mkdir()
    with pytest.raises(DataError, match=r"^elpv: expected train/good.*; elpv is also the name of a data set"):
        layouts.locate("elpv", tmp_path / "sets")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("parts", "as the name of a data set: unknown data set 'parts': choose from mvtec, "),
        ("mvtek/screw", r"unknown data set 'mvtek' \(did you mean mvtec\?\)"),
        ("mvtec", "mvtec has several categories: choose from screw"),
        ("mvtec/screws", "mvtec has no category 'screws'; did you mean screw?"),
        ("elpv", "as the name of a data set: ELPV was not found: .*sets does not have it"),
        ("a/b/c", "and no name of a data set"),
        ("../elpv", "and no name of a data set"),
        ("/elpv", "and no name of a data set"),
    ],
)
def test_what_is_neither_a_path_nor_a_name(data: str, message: str, screw: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{data}: no such folder or manifest.*{message}"):
        layouts.locate(data, tmp_path / "sets")
    with pytest.raises(DataError, match="is no folder"):
        layouts.locate("elpv", tmp_path / "gone")


def test_evaluation_needs_no_normals(tmp_path: Path) -> None:
    root = write_set(tmp_path / "bad", train=1, good=0, bad=2)
    (root / "train/good/000.png").unlink()
    assert len(layouts.locate(root, need_normals=False).samples) == 2
    with pytest.raises(DataError, match="no normal images to train on"):
        layouts.locate(root)
