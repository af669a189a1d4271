from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bgad.cli.main import main
from bgad.data.datasets import expected as contents
from bgad.data.datasets import registry
from bgad.data.datasets.registry import DATASETS
from bgad.errors import DataError
from tests.data.datasets.makers import MAKERS, make_elpv, make_headct, mvtec_layout, notes


def test_all_sets_live_in_one_root(tmp_path: Path) -> None:
    for make in MAKERS.values():
        make(tmp_path)
    rows = {row.entry.name: row for row in registry.inventory(tmp_path)}
    assert list(rows) == list(DATASETS)
    for name, row in rows.items():
        assert row.place == registry.find(name, tmp_path)
        assert (row.missing, row.problem) == ([], "")
        assert [status.category for status in row.categories] == registry.categories(name, tmp_path)
    assert (rows["mvtec"].categories[0].normal, rows["mvtec"].categories[0].anomalous) == (4, 3)
    assert (rows["aitex"].categories[0].normal, rows["aitex"].categories[0].anomalous) == (2, 3)  # strips
    assert (rows["ksdd2"].categories[0].normal, rows["ksdd2"].categories[0].images) == (None, 9)


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
    assert "no masks found: pixel metrics cannot be computed" in notes(dataset)
    assert len(dataset.samples) == 7


@pytest.mark.parametrize(("gone", "said"), [("train", "no normal images to train on"), ("test", "no anomalous images")])
def test_half_unpacked_category(gone: str, said: str, tmp_path: Path) -> None:
    mvtec_layout(tmp_path / "mvtec", "bottle", contents.CLASSES["mvtec"]["bottle"])
    shutil.rmtree(tmp_path / "mvtec/bottle" / gone)
    with pytest.raises(DataError, match=rf"bottle: {said}: MVTec AD is incomplete.*expected bottle/, cable/"):
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
    said = "is not ELPV, or not completely unpacked: expected labels.csv and images/; found"
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
    assert said in row.categories[0].notes[0]


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


def test_the_registry_needs_no_torch() -> None:
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
    assert [(status.normal, status.anomalous) for status in row.categories] == [(normal, anomalous)]
    if name != "aitex":
        dataset = registry.load(name, root=real_data)
        assert Counter(s.label for s in dataset.samples) == {0: normal, 1: anomalous}


def test_real_elpv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("elpv_dataset")
    monkeypatch.undo()
    dataset = registry.load("elpv", root=tmp_path)
    assert Counter(s.defect for s in dataset.samples) == {"good": 1508, "mono": 313, "poly": 402}
    assert dataset.notes == ["401 images are not used: their label is neither 0 nor 1"]
