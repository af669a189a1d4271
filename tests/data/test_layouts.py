from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bgad.data import layouts
from bgad.errors import DataError
from bgad.types import Sample
from tests.data.files import make


def by_name(dataset: layouts.Dataset) -> dict[str, Sample]:
    found = {sample.name: sample for sample in dataset.samples}
    assert len(found) == len(dataset.samples)
    return found


def test_mvtec(tmp_path: Path) -> None:
    make(tmp_path, "train/good/000.png", "train/good/001.PNG", "train/dent/000.png", "test/good/000.png")
    make(tmp_path, "test/crack/000.png", "test/crack/001.png", "test/größe/7.jpg", "test/crack/.x.png")
    make(
        tmp_path,
        "ground_truth/crack/000_mask.png",
        "ground_truth/größe/7.png",
        "ground_truth/dent/000_mask.png",
    )
    make(tmp_path, "ground_truth/crack/999_mask.png", "ground_truth/good/000_mask.png", "test/stray.png")
    dataset = layouts.load(str(tmp_path))
    samples = by_name(dataset)
    assert (dataset.layout, dataset.name, dataset.root) == ("mvtec", tmp_path.name, tmp_path)
    assert {n: (s.label, s.defect, s.split, s.mask and s.mask.name) for n, s in samples.items()} == {
        "train/good/000.png": (0, "good", "train", None),
        "train/good/001.PNG": (0, "good", "train", None),
        "train/dent/000.png": (1, "dent", "train", "000_mask.png"),
        "test/good/000.png": (0, "good", "test", None),
        "test/crack/000.png": (1, "crack", "test", "000_mask.png"),
        "test/crack/001.png": (1, "crack", "test", None),
        "test/größe/7.jpg": (1, "größe", "test", "7.png"),
    }
    assert samples["test/crack/000.png"].mask == tmp_path / "ground_truth/crack/000_mask.png"
    assert all(sample.path == tmp_path / name for name, sample in samples.items())
    assert dataset.notes == [
        "mask without an image: ground_truth/crack/999_mask.png",
        "anomaly without a mask: test/crack/001.png",
        "not used, outside of a class folder: test/stray.png",
    ]


def test_mvtec_without_test_and_with_other_names(tmp_path: Path) -> None:
    make(tmp_path, "train/ok/1.bmp")
    assert [s.split for s in layouts.load(tmp_path).samples] == ["train"]
    make(tmp_path, "test/OK/1.bmp", "test/ko/2.bmp", "ground_truth/ko/2.bmp")
    samples = by_name(layouts.load(tmp_path))
    assert samples["test/OK/1.bmp"].label == 0
    assert samples["test/ko/2.bmp"].mask == tmp_path / "ground_truth/ko/2.bmp"


def test_one_mask_for_two_images_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "train/good/0.png", "train/dent/0.png", "test/dent/0.png", "ground_truth/dent/0_mask.png")
    with pytest.raises(DataError, match=r"mask of both train/dent/0\.png and test/dent/0\.png"):
        layouts.load(tmp_path)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("good", "bad"),
        ("OK", "NG"),
        ("ok", "nok"),
        ("normal", "anomalous"),
        ("no", "yes"),
        ("i.O.", "n.i.O."),
        ("iO", "niO"),
        ("Gut", "Ausschuss"),
        ("bon", "défaut"),
        ("Bueno", "MALO"),
        ("pass", "Not_OK"),
        ("良品", "不良"),
    ],
)
def test_plain_names(tmp_path: Path, good: str, bad: str) -> None:
    make(tmp_path, f"{good}/1.png", f"{bad}/2.png")
    dataset = layouts.load(tmp_path)
    assert dataset.layout == "plain"
    assert dataset.notes == []
    assert {(s.label, s.defect, s.split, s.mask) for s in dataset.samples} == {
        (0, "good", "", None),
        (1, "bad", "", None),
    }


@pytest.mark.parametrize("masks", ["masks/{}", "masks/{}_mask", "masks/bad/{}", "masks/bad/{}_mask"])
def test_plain_masks(tmp_path: Path, masks: str) -> None:
    make(tmp_path, "good/1.png", "bad/1.png", "bad/2.jpg", "bad/3.png", "bad/scratch/7.png")
    expected = {"bad/1.png": "1", "bad/2.jpg": "2", "bad/scratch/7.png": "scratch/7"}
    for stem in expected.values():
        make(tmp_path, masks.format(stem) + ".png")
    make(tmp_path, "masks/lost.png", "_extra/1.png")
    (tmp_path / "empty").mkdir()
    dataset = layouts.load(tmp_path)
    samples = by_name(dataset)
    for name, stem in expected.items():
        assert samples[name].mask == tmp_path / (masks.format(stem) + ".png")
    assert samples["bad/scratch/7.png"].defect == "scratch"
    assert samples["good/1.png"].mask is None
    assert dataset.notes == [
        "mask without an image: masks/lost.png",
        "anomaly without a mask: bad/3.png",
        "folders not used: _extra/, empty/",
    ]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["OK/1.png", "Kratzer/2.png"],
            "Kratzer/ holds images .* rename it to good/, bad/ or masks/ .* or to _Kratzer/",
        ),
        (["good/1.png", "bad/2.png", "mask/2.png"], "mask/ holds images that would not be used"),
        (["good/1.png", "test/good/2.png"], "test/ holds images"),
        (["train/good/1.png", "NG/2.png"], "NG/ holds images that would not be used: rename it to train/NG/"),
    ],
)
def test_a_folder_that_may_be_a_label_is_not_left_out_in_silence(
    tmp_path: Path, files: list[str], message: str
) -> None:
    make(tmp_path, *files)
    with pytest.raises(DataError, match=message):
        layouts.load(tmp_path)
    name = message.split("/")[0]
    (tmp_path / name).rename(tmp_path / f"_{name}")
    assert len(layouts.load(tmp_path).samples) == len(files) - 1


def test_a_leading_underscore_leaves_out_a_label_too(tmp_path: Path) -> None:
    make(tmp_path, "good/1.png", "bad/2.png", "_NG/3.png", "_good/4.png")
    dataset = layouts.load(tmp_path)
    assert sorted(by_name(dataset)) == ["bad/2.png", "good/1.png"]
    assert dataset.notes == ["folders not used: _good/, _NG/"]


def test_models_beside_the_images_are_no_label(tmp_path: Path) -> None:
    make(tmp_path, "good/1.png", "parts.bgad/roi.png")
    assert layouts.load(tmp_path).notes == ["folders not used: parts.bgad/"]


def test_plain_flat_masks_reach_classes(tmp_path: Path) -> None:
    make(tmp_path, "good/1.png", "bad/scratch/7.png", "bad/dent/8.png", "masks/7.png", "masks/8_mask.tif")
    samples = by_name(layouts.load(tmp_path))
    assert samples["bad/scratch/7.png"].mask == tmp_path / "masks/7.png"
    assert samples["bad/dent/8.png"].mask == tmp_path / "masks/8_mask.tif"
    make(tmp_path, "bad/dent/7.png")
    with pytest.raises(DataError, match="rename one of them"):
        layouts.load(tmp_path)


def test_long_notes_are_cut(tmp_path: Path) -> None:
    make(tmp_path, "good/1.png", "bad/1.png", *(f"masks/x{i}.png" for i in range(9)))
    assert layouts.load(tmp_path).notes[0].endswith("masks/x4.png and 4 more")


def test_unsupported_files_are_noted(tmp_path: Path) -> None:
    make(tmp_path / "mvtec", "train/good/1.png", "test/crack/2.png", "ground_truth/crack/2_mask.png")
    make(tmp_path / "plain", "good/1.png", "bad/2.png")
    for name in ("mvtec/train/good/3.heic", "mvtec/ground_truth/crack/4.gif", "plain/good/5.gif", "plain/good/6.gif"):
        (tmp_path / name).touch()
    (tmp_path / "plain/bad/7.png").symlink_to("nowhere.png")
    assert layouts.load(tmp_path / "mvtec").notes == ["not used: 1 .gif, 1 .heic"]
    assert layouts.load(tmp_path / "plain").notes == ["not used: 2 .gif, 1 broken link"]
    (tmp_path / "plain/good/1.png").unlink()
    with pytest.raises(DataError, match=r"no normal images to train on; .*; not used: 2 \.gif, 1 broken link$"):
        layouts.load(tmp_path / "plain")


def test_link_loop(tmp_path: Path) -> None:
    make(tmp_path, "good/1.png", "bad/2.png")
    (tmp_path / "bad" / "loop").symlink_to(tmp_path)
    (tmp_path / "good" / "self").symlink_to("self")
    assert len(layouts.load(tmp_path).samples) == 2


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        layouts.load(tmp_path / "gone")
    with pytest.raises(DataError, match=r"expected train/good .* found no folders"):
        layouts.load(tmp_path)
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match="found photos/"):
        layouts.load(tmp_path)
    make(tmp_path / "many", "screw/train/good/1.png", "nut/train/good/1.png")
    with pytest.raises(DataError, match="give one of them: nut, screw"):
        layouts.load(tmp_path / "many")
    make(tmp_path / "only_bad", "bad/1.png")
    (tmp_path / "only_bad" / "good").mkdir()
    with pytest.raises(DataError, match="no normal images"):
        layouts.load(tmp_path / "only_bad")
    make(tmp_path / "empty", "test/good/1.png")
    (tmp_path / "empty/train/good").mkdir(parents=True)
    with pytest.raises(DataError, match="no normal images"):
        layouts.load(tmp_path / "empty")
    (tmp_path / "list.txt").write_text("a")
    with pytest.raises(DataError, match=r"\.csv or \.jsonl"):
        layouts.load(tmp_path / "list.txt")


def test_hash_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert layouts.hash_file(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(DataError, match="No such file"):
        layouts.hash_file(tmp_path / "b")
