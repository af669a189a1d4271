from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import bgad
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.data import layouts
from bgad.data.split import Split
from bgad.errors import BgadError, ConfigError, DataError, OutputError
from bgad.inference.torch_engine import Detector
from bgad.methods import checkpoint
from bgad.methods.checkpoint import LogRow
from bgad.model import backbone
from bgad.training import fit_score_weights, pipeline
from bgad.training import training_set as training_set_module
from bgad.training.fit_model import ModelFit
from bgad.training.loop import TrainingLoop
from bgad.training.training_set import build_training_set
from bgad.training.update import NewImage, UpdateOptions, _is_other_file, new_images, shortened, update
from bgad.types import StopRequest
from tests.conftest import draw_image, level_model, tiny_config
from tests.training.loops import saved_step

SHORT = tiny_config(train={"steps": 2, "push_steps": 2}, pseudo={"count": 3})


@pytest.fixture(scope="module")
def model(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the tests update."""
    out = tmp_path_factory.mktemp("model") / "plate.bgad"
    bgad.train(data_set, out, config=tiny_config(), options=bgad.TrainOptions(known=4, device="cpu", export=False))
    return out


def draw(folder: Path, count: int, *, defect: bool, seed: int = 0, mask: bool = False) -> list[Path]:
    """Write new images, and their masks to the folder `masks` beside."""
    rng = np.random.default_rng(500 + seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "masks").mkdir(exist_ok=True)
    made = []
    for i in range(count):
        image, truth = draw_image(rng, defect=defect)
        made.append(folder / f"{seed}-{i}.png")
        Image.fromarray(image).save(made[-1])
        if mask:
            Image.fromarray(truth.astype(np.uint8) * 255).save(folder.parent / "masks" / f"{seed}-{i}_mask.png")
    return made


def quick(model: Path, new: list[NewImage], out: Path, **options: Any) -> Detector:
    return update(model, new, out, config=SHORT, options=UpdateOptions(device="cpu", export=False, **options))


def roles(model: Path) -> dict[str, str]:
    return {image["name"]: image["role"] for image in model_folder.read(model).split["images"]}


def by_content(model: Path) -> dict[str, str]:
    return {i["sha256"]: i["role"] for i in model_folder.read(model).split["images"] if i["role"] != "unused"}


def test_new_images_get_their_roles(model: Path, tmp_path: Path) -> None:
    good, bad = draw(tmp_path / "good", 10, defect=False), draw(tmp_path / "bad", 3, defect=True, mask=True)
    new = new_images([tmp_path / "good"], [tmp_path / "bad"], tmp_path / "masks")
    assert [image.mask is not None for image in new] == [False] * 10 + [True] * 3
    detector = quick(model, new, tmp_path / "new.bgad")
    before, after = roles(model), roles(tmp_path / "new.bgad")
    added = {name: role for name, role in after.items() if name not in before}
    assert all(after[name] == role for name, role in before.items())  # what was there stays what it was
    assert sorted(added.values()) == ["known"] * 3 + ["train"] * 10
    assert all(name.startswith("taught/bad/") == (role == "known") for name, role in added.items())
    content = by_content(tmp_path / "new.bgad")
    assert {content[layouts.hash_file(path)] for path in bad} == {"known"}
    assert {content[layouts.hash_file(path)] for path in good} == {"train"}  # chosen ones calibrate nothing
    card = model_folder.read(tmp_path / "new.bgad")
    assert len(card.calibration_at().scores) == 5
    assert card.data.known == 7
    assert card.calibration_at().false_reject_rate == model_folder.read(model).calibration_at().false_reject_rate
    assert card.calibration_at().is_default_rate
    assert np.isfinite(detector.score(bad[0]).score)


def test_the_card_knows_the_parent_and_nobody_where_the_images_are(model: Path, tmp_path: Path) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    quick(model, [NewImage(bad, 1)], tmp_path / "new.bgad")
    card = model_folder.read(tmp_path / "new.bgad")
    assert card.provenance.parent == model_folder.read(model).checksum
    everything = b"".join(path.read_bytes() for path in (tmp_path / "new.bgad").iterdir())
    assert str(tmp_path).encode() not in everything
    origin = checkpoint.recall(card.checksum)
    assert origin is not None
    assert list(origin.taught.values()) == [bad]


def test_calibration_normals_are_never_trained_on(model: Path, data_set: Path, tmp_path: Path) -> None:
    held_out = [name for name, role in roles(model).items() if role == "calibration"]
    new = [NewImage(data_set / name, 0) for name in held_out]
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    with pytest.raises(DataError, match="all of these images have been learnt before: there is nothing new in them"):
        quick(model, new, tmp_path / "new.bgad")
    quick(model, [*new, NewImage(bad, 1)], tmp_path / "new.bgad")
    assert [name for name, role in roles(tmp_path / "new.bgad").items() if role == "calibration"] == held_out
    notes = model_folder.read(tmp_path / "new.bgad").data.notes
    assert sum("is known already (calibration) and is left out" in note for note in notes) == len(held_out)


def test_a_corrected_verdict_and_a_later_mask_take_the_place_of_what_was_learnt(
    model: Path, data_set: Path, tmp_path: Path
) -> None:
    trained = [name for name, role in roles(model).items() if role == "train"]
    (unmarked,) = draw(tmp_path / "bad", 1, defect=True, mask=True)
    quick(model, [NewImage(data_set / trained[0], 1), NewImage(unmarked, 1)], tmp_path / "first.bgad")
    content = by_content(tmp_path / "first.bgad")
    assert content[layouts.hash_file(data_set / trained[0])] == "known"  # somebody said that it is bad after all
    assert trained[0] not in roles(tmp_path / "first.bgad")
    notes = model_folder.read(tmp_path / "first.bgad").data.notes
    assert f"{trained[0]} was train and is now taught as bad" in notes
    (marked,) = new_images([], [tmp_path / "bad"], tmp_path / "masks")
    assert marked.mask is not None
    back = [marked, NewImage(data_set / trained[0], 0)]
    again = quick(tmp_path / "first.bgad", back, tmp_path / "second.bgad")
    content = by_content(tmp_path / "second.bgad")
    assert content[layouts.hash_file(data_set / trained[0])] == "train"
    origin = checkpoint.recall(again.card.checksum)
    assert origin is not None
    assert list(origin.masks.values()) == [marked.mask]
    assert len(origin.taught) == 2


def test_normals_that_the_flows_have_not_learnt_stay_so(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_set_module, "MIN_TRAINING_NORMALS", 8)
    bgad.train(data_set, tmp_path / "one.bgad", config=SHORT, options=bgad.TrainOptions(device="cpu", export=False))

    def aside(name: str) -> list[str]:
        return list(model_folder.read(tmp_path / name).training.validation_normals)

    assert aside("one.bgad")
    trained = [name for name, role in roles(tmp_path / "one.bgad").items() if role == "train"]
    learnt = next(name for name in trained if name not in aside("one.bgad"))  # taken out, all behind it move up
    new = [NewImage(path, 0) for path in draw(tmp_path / "good", 6, defect=False)]
    quick(tmp_path / "one.bgad", [NewImage(data_set / learnt, 1), *new[:4]], tmp_path / "two.bgad")
    quick(tmp_path / "two.bgad", new[4:], tmp_path / "three.bgad")
    assert aside("two.bgad") == aside("three.bgad") == aside("one.bgad")
    assert {roles(tmp_path / "three.bgad")[name] for name in aside("three.bgad")} == {"train"}


def test_names_with_a_hash_are_names(data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are set aside is known by name; without tiles, # is a character like any other."""
    monkeypatch.setattr(training_set_module, "MIN_TRAINING_NORMALS", 8)
    copy = Path(shutil.copytree(data_set, tmp_path / "plate"))
    for path in (copy / "train/good").iterdir():
        path.rename(path.with_name(f"part #{path.name}"))
    first = bgad.train(copy, tmp_path / "one.bgad", config=SHORT, options=bgad.TrainOptions(device="cpu", export=False))
    aside = first.card.training.validation_normals
    assert len(aside) == 6
    assert set(aside) < set(roles(tmp_path / "one.bgad"))
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    second = update(
        tmp_path / "one.bgad",
        [NewImage(bad, 1)],
        tmp_path / "two.bgad",
        config=SHORT,
        options=UpdateOptions(export=False),
    )
    assert second.card.training.validation_normals == aside


def test_new_defects_move_the_weights_of_the_parts_by_their_number(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_set_module, "MIN_TRAINING_NORMALS", 8)
    asked: list[tuple[list[float], int]] = []

    def level_weights(prior: list[float], _: Any, known: list[Any], *rest: Any, **more: Any) -> list[float]:
        asked.append((prior, len(known[0])))
        return [0.5, 0.3, 0.2] if len(asked) == 1 else [0.1, 0.1, 0.8]

    monkeypatch.setattr(fit_score_weights, "level_weights", level_weights)
    monkeypatch.setattr(fit_score_weights, "image_head_weight", lambda *_, **__: 0.4 if len(asked) == 1 else 0.9)
    first = bgad.train(
        data_set, tmp_path / "one.bgad", config=SHORT, options=bgad.TrainOptions(known=4, device="cpu", export=False)
    )
    trained = next(name for name, role in roles(tmp_path / "one.bgad").items() if role == "train")
    (good,), (bad,) = (draw(tmp_path / kind, 1, defect=kind == "bad", seed=i) for i, kind in enumerate(("good", "bad")))
    corrected = NewImage(data_set / trained, 1)  # the flows have learnt it, as a normal
    second = quick(tmp_path / "one.bgad", [NewImage(good, 0), corrected], tmp_path / "two.bgad")
    assert level_model(second).score_weights.tolist() == level_model(first).score_weights.tolist()
    third = quick(tmp_path / "one.bgad", [NewImage(bad, 1)], tmp_path / "three.bgad")
    assert [number for _, number in asked] == [4, 1]  # in training all, later the new one alone
    assert asked[1][0] == pytest.approx([0.5, 0.3, 0.2])
    assert level_model(third).score_weights.tolist() == pytest.approx(
        [0.42, 0.26, 0.32, 0.5]
    )  # one of five, the others have been asked


def test_fewer_held_out_normals_support_a_higher_rate(
    model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 are held out, at a rate of 1/6; one of them turns out to be bad."""
    held_out = next(data_set / name for name, role in roles(model).items() if role == "calibration")
    new = [NewImage(held_out, 1)]
    taught = quick(model, new, tmp_path / "new.bgad")
    assert "4 held-out normals are left: the false-reject rate becomes 0.2, it was 0.1667" in capsys.readouterr().err
    assert taught.calibration.rate == pytest.approx(0.2)
    assert "(default: 0.2)" in taught.calibration.guarantee()
    quick(model, new, tmp_path / "asked.bgad", false_reject_rate=0.4)
    assert model_folder.read(tmp_path / "asked.bgad").calibration_at().false_reject_rate == 0.4
    monkeypatch.setattr(backbone, "build", lambda *_: pytest.fail("the work has begun"))
    with pytest.raises(ConfigError, match=r"a false-reject rate of 0\.17 needs 5 held-out normals, there are 4"):
        quick(model, new, tmp_path / "other.bgad", false_reject_rate=0.17)
    with pytest.raises(ConfigError, match="lies between 0 and 1"):
        quick(model, new, tmp_path / "other.bgad", false_reject_rate=1.5)
    command = ["update", str(model), "--bad", str(held_out), "--out", str(tmp_path / "other.bgad")]
    assert main([*command, "--false-reject-rate", "0.17"]) == 2
    assert "needs 5 held-out normals, there are 4" in capsys.readouterr().err


def test_broken_images_that_training_skipped_are_no_trouble(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(data_set, tmp_path / "plate"))
    for i in range(12):  # more than the 10 that are skipped by default
        (copy / f"train/good/broken{i}.png").write_bytes(b"no picture")
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    quick(model, [NewImage(bad, 1)], tmp_path / "new.bgad", data=copy)
    assert len(roles(tmp_path / "new.bgad")) == len(roles(model)) + 1


def test_duplicates_are_named_and_left_out(model: Path, data_set: Path, tmp_path: Path) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    trained = next(data_set / name for name, role in roles(model).items() if role == "train")
    known = next(data_set / name for name, role in roles(model).items() if role == "known")
    shutil.copy(bad, twin := tmp_path / "twin.png")
    new = [NewImage(bad, 1), NewImage(twin, 1), NewImage(trained, 0), NewImage(known, 1)]
    quick(model, new, tmp_path / "new.bgad")
    assert len(roles(tmp_path / "new.bgad")) == len(roles(model)) + 1
    notes = "\n".join(model_folder.read(tmp_path / "new.bgad").data.notes)
    assert "twin.png is known already (twice among the new) and is left out" in notes
    assert f"{trained.name} is known already (train) and is left out" in notes
    assert f"{known.name} is known already (known) and is left out" in notes


def test_a_image_cannot_be_good_and_bad(model: Path, tmp_path: Path) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    shutil.copy(bad, twin := tmp_path / "twin.png")
    with pytest.raises(DataError, match=r"twin\.png is the same image as .*0-0\.png: is it good or bad\?"):
        quick(model, [NewImage(bad, 1), NewImage(twin, 0)], tmp_path / "new.bgad")


def test_what_was_tested_and_is_learnt_is_tested_no_more(model: Path, data_set: Path, tmp_path: Path) -> None:
    before = roles(model)
    bad = next(name for name, role in before.items() if role == "test" and "blot" in name)
    good = next(name for name, role in before.items() if role == "test" and "good" in name)
    quick(model, [NewImage(data_set / bad, 1), NewImage(data_set / good, 0)], tmp_path / "new.bgad")
    after = roles(tmp_path / "new.bgad")
    assert list(after.values()).count("test") == list(before.values()).count("test") - 2
    assert bad not in after
    assert good not in after
    content = by_content(tmp_path / "new.bgad")
    assert content[layouts.hash_file(data_set / bad)] == "known"
    assert content[layouts.hash_file(data_set / good)] == "train"
    notes = model_folder.read(tmp_path / "new.bgad").data.notes
    assert any(note.startswith("2 images were tested so far and are learnt from now on") for note in notes)


def test_a_second_update_knows_the_images_of_the_first(model: Path, data_set: Path, tmp_path: Path) -> None:
    first = draw(tmp_path / "bad", 2, defect=True, mask=True)
    tested = next(data_set / n for n, r in roles(model).items() if r == "test" and "blot" in n)
    new = [*new_images([], [tmp_path / "bad"], tmp_path / "masks"), NewImage(tested, 1)]
    quick(model, new, tmp_path / "1.bgad")
    second = draw(tmp_path / "more", 1, defect=True, seed=1)
    quick(tmp_path / "1.bgad", [NewImage(path, 1) for path in (*first, *second)], tmp_path / "2.bgad")
    content = by_content(tmp_path / "2.bgad")
    assert {content[layouts.hash_file(path)] for path in (*first, *second, tested)} == {"known"}
    assert list(roles(tmp_path / "2.bgad").values()).count("known") == 8
    card = model_folder.read(tmp_path / "2.bgad")
    assert sum("is known already (known)" in note for note in card.data.notes) == 2
    assert card.provenance.parent == model_folder.read(tmp_path / "1.bgad").checksum
    origin = checkpoint.recall(card.checksum)
    assert origin is not None
    assert len(origin.taught) == 4
    assert len(origin.masks) == 2

    first[0].unlink()
    with pytest.raises(DataError, match=r"0-0\.png was taught before and is not there any more: put it back"):
        quick(tmp_path / "2.bgad", [NewImage(tested, 1)], tmp_path / "3.bgad")


def test_two_images_of_one_name_are_two(model: Path, tmp_path: Path) -> None:
    paths = [draw(tmp_path / str(i), 1, defect=True, seed=i)[0].rename(tmp_path / str(i) / "x.png") for i in range(2)]
    quick(model, [NewImage(path, 1) for path in paths], tmp_path / "new.bgad")
    assert len([name for name in roles(tmp_path / "new.bgad") if name.endswith("-x.png")]) == 2


def test_images_that_have_moved(model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    shutil.copytree(data_set, tmp_path / "elsewhere" / "plate")
    monkeypatch.setenv("BGAD_STATE", str(tmp_path / "another machine"))
    with pytest.raises(DataError, match="that the model was trained on are needed: say where they are with --data"):
        quick(model, [NewImage(bad, 1)], tmp_path / "new.bgad")
    quick(model, [NewImage(bad, 1)], tmp_path / "new.bgad", data=tmp_path / "elsewhere" / "plate")
    shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"are needed \(.*elsewhere.*\): give --data") as gone:
        quick(tmp_path / "new.bgad", [NewImage(bad, 1)], tmp_path / "again.bgad")
    assert "\n" not in str(gone.value)


def test_images_that_are_others_now(model: Path, data_set: Path, tmp_path: Path) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    shutil.copytree(data_set, other := tmp_path / "plate")
    changed = next(name for name, role in roles(model).items() if role == "train")
    shutil.copy(bad, other / changed)
    with pytest.raises(DataError, match="has changed since the split was made"):
        quick(model, [NewImage(bad, 1)], tmp_path / "new.bgad", data=other)
    (other / changed).unlink()
    with pytest.raises(DataError, match="is not among the readable images of"):
        quick(model, [NewImage(bad, 1)], tmp_path / "new.bgad", data=other)


def test_new_images_that_cannot_be_learnt_from(model: Path, tmp_path: Path) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    (tmp_path / "broken.png").write_bytes(bad.read_bytes()[:100])
    cases: list[tuple[NewImage, str]] = [
        (NewImage(tmp_path / "none.png", 1), r"none\.png: cannot be read: No such file"),
        (NewImage(tmp_path / "broken.png", 1), r"broken\.png"),
    ]
    for image, message in cases:
        with pytest.raises(BgadError, match=message) as wrong:
            quick(model, [image], tmp_path / "new.bgad")
        assert "\n" not in str(wrong.value)
        assert not (tmp_path / "new.bgad").exists()


def test_a_mask_that_cannot_be_read_is_left_out_and_named(model: Path, tmp_path: Path) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    (tmp_path / "mask.png").write_bytes(b"no picture")
    quick(model, [NewImage(bad, 1, tmp_path / "mask.png")], tmp_path / "new.bgad")
    card = model_folder.read(tmp_path / "new.bgad")
    assert any(f"mask not used: {tmp_path / 'mask.png'}: not an image" in note for note in card.data.notes)
    origin = checkpoint.recall(card.checksum)
    assert origin is not None
    assert origin.masks == {}


def test_new_images_from_folders_and_masks(tmp_path: Path) -> None:
    draw(tmp_path / "bad", 2, defect=True, mask=True)
    good = draw(tmp_path / "good", 1, defect=False, seed=3)
    found = new_images(good, [tmp_path / "bad"], tmp_path / "masks")
    assert [(image.label, image.mask and image.mask.name) for image in found] == [
        (0, None), (1, "0-0_mask.png"), (1, "0-1_mask.png"),
    ]  # fmt: skip
    shutil.copytree(tmp_path / "masks", tmp_path / "ignore")
    ignore_file(tmp_path / "ignore" / "3-0_ignore.png")
    ignored = [
        image.ignore and image.ignore.name for image in new_images(good, [tmp_path / "bad"], None, tmp_path / "ignore")
    ]
    assert ignored == ["3-0_ignore.png", None, None]
    with pytest.raises(DataError, match="no such folder of regions to ignore"):
        new_images(good, ignore=tmp_path / "none")
    with pytest.raises(DataError, match="no such folder of masks"):
        new_images([], [tmp_path / "bad"], tmp_path / "none")
    with pytest.raises(ConfigError, match="there is nothing to learn: give new images with --good or --bad"):
        new_images()


def painted(folder: Path, *names: str) -> list[Path]:
    """Files that only have a name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        ignore_file(folder / name, size=8)
    return [folder / name for name in names]


def test_masks_are_found_by_path_then_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, masks = tmp_path / "bad", tmp_path / "masks"
    crack, dent, other = painted(bad, "crack/001.png", "dent/001.png", "dent/002.png")
    painted(masks, "crack/001_mask.png", "dent/001_mask.png", "deep/002.png", "dent/9.png")

    def found(*given: Path) -> dict[Path, str | None]:
        new = new_images([], given, masks)
        return {n.path: n.mask.relative_to(masks).as_posix() if n.mask else None for n in new}

    every = {crack: "crack/001_mask.png", dent: "dent/001_mask.png", other: "deep/002.png"}
    assert found(bad) == every
    assert "mask without an image: masks/dent/9.png" in capsys.readouterr().err
    assert found(bad / "crack", bad / "dent") == every
    assert found(crack, dent, other) == every
    (masks / "dent/001_mask.png").unlink()
    assert found(bad) == every | {dent: None}  # not that of crack
    assert f"anomaly without a mask: {dent}" in capsys.readouterr().err
    (masks / "crack/001_mask.png").unlink()
    painted(masks, "001.png")
    with pytest.raises(DataError, match=r"masks/001\.png: is the mask of both .*crack/001\.png and .*dent/001\.png"):
        found(bad)
    painted(masks, "other/001_mask.png")
    with pytest.raises(DataError, match=r"crack/001\.png: which is its mask, .*/001\.png or .*other/001_mask\.png\?"):
        found(bad)


def test_regions_of_good_and_bad_images_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (good,), (bad,) = painted(tmp_path / "good", "1.png"), painted(tmp_path / "bad", "1.png")
    painted(tmp_path / "ignore", "1.png")
    with pytest.raises(
        DataError, match=r"ignore/1\.png: is the region to ignore of both .*good/1\.png and .*bad/1\.png"
    ):
        new_images([good.parent], [bad.parent], ignore=tmp_path / "ignore")
    (tmp_path / "ignore/1.png").unlink()
    painted(tmp_path / "ignore", "good/1.png", "7_ignore.png")
    assert [image.ignore is not None for image in new_images([good], [bad], ignore=tmp_path / "ignore")] == [
        True,
        False,
    ]
    assert "region to ignore without an image: ignore/7_ignore.png" in capsys.readouterr().err


def test_the_recipe_is_that_of_the_model_but_shorter() -> None:
    config = tiny_config()
    long = replace(
        config,
        train=replace(config.train, steps=800, push_steps=400, lr=0.05),
        pseudo=replace(config.pseudo, count=160),
    )
    found = shortened(long)
    assert (found.train.steps, found.train.push_steps) == (10, 80)
    assert (found.train.lr, found.train.push_lr) == (2e-3, 5e-4)
    for push_lr, lr, kept in ((1e-4, 0.05, 1e-4), (0.0, 2e-4, 2e-4), (0.0, 1e-2, 5e-4)):  # 0: the one schedule of lr
        other = shortened(replace(config, train=replace(config.train, push_lr=push_lr, lr=lr)))
        assert other.train.push_lr == kept
    assert found.pseudo.count == 40
    assert replace(found, train=long.train, pseudo=long.pseudo) == long
    assert shortened(found) == found  # a model that was taught is taught again as long
    tiny = replace(config, train=replace(config.train, steps=3, push_steps=2))
    assert (shortened(tiny).train.steps, shortened(tiny).train.push_steps) == (3, 2)


def test_it_goes_on_from_the_model(model: Path, data_set: Path, tmp_path: Path) -> None:
    """After two steps it is nearer to what it was than to a model trained anew."""
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    taught = quick(model, [NewImage(bad, 1)], tmp_path / "new.bgad")
    fresh = bgad.train(
        data_set, tmp_path / "fresh.bgad", config=SHORT, options=bgad.TrainOptions(known=4, device="cpu", export=False)
    )
    was = bgad.load(model, engine="torch")
    assert isinstance(was, Detector)

    def levels(detector: Detector) -> np.ndarray:
        return np.concatenate([level.ravel() for level in detector.score(data_set / "test/good/000.png").levels])

    before, after, anew = levels(was), levels(taught), levels(fresh)
    assert np.abs(after - before).mean() < 0.5 * np.abs(anew - before).mean()


def test_the_flows_end_midway(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between those of the model and those that were learnt; what was known is known by a direction of its own."""
    learnt: list[dict[str, torch.Tensor]] = []
    steps = ModelFit.steps

    def recorded(self: ModelFit) -> Iterator[LogRow]:
        for row in steps(self):
            learnt[:] = [{name: value.clone() for name, value in self.model.levels.named_parameters()}]
            yield row

    monkeypatch.setattr(ModelFit, "steps", recorded)
    before = dict(level_model(Detector.load(model, device="cpu")).levels.named_parameters())
    second = quick(model, [NewImage(draw(tmp_path / "bad", 1, defect=True)[0], 1)], tmp_path / "two.bgad")
    after = dict(level_model(second).levels.named_parameters())
    assert any(not torch.equal(before[name], learnt[0][name]) for name in before)
    for name, value in after.items():
        torch.testing.assert_close(value, (before[name] + learnt[0][name]) / 2)
    head = level_model(second).image_head
    assert head is not None
    assert [head.get_buffer(f"direction{i}").shape[0] for i in range(2)] == [2, 2]


def test_where_it_is_written(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, own := tmp_path / "gear.bgad")
    (bad,) = draw(tmp_path / "bad", 1, defect=True)
    update(own, [NewImage(bad, 1)], config=SHORT, options=UpdateOptions(device="cpu", export=False))
    assert model_folder.read(tmp_path / "gear-taught.bgad").name == "gear-taught"
    with pytest.raises(OutputError, match="exists already: choose another --out, or add --overwrite"):
        update(own, [NewImage(bad, 1)], config=SHORT, options=UpdateOptions(device="cpu", export=False))
    update(own, [NewImage(bad, 1)], config=SHORT, options=UpdateOptions(device="cpu", export=False, overwrite=True))
    assert model_folder.read(own).data == model_folder.read(model).data


# --- what is not to be learnt from


def ignore_file(path: Path, *, size: int = 64) -> Path:
    region = np.zeros((size, size), np.uint8)
    region[: size // 2] = 255
    Image.fromarray(region).save(path)
    return path


def test_what_is_ignored_is_remembered_and_may_be_painted_later(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Path | None]] = []

    def recorded(model: Any, split: Split, *rest: Any) -> Any:
        given.append({s.path.name: s.ignore for s in (*split.train, *split.known)})
        return build_training_set(model, split, *rest)

    monkeypatch.setattr(pipeline, "build_training_set", recorded)
    region = ignore_file(tmp_path / "region.png")
    (good,), (bad,) = (draw(tmp_path / kind, 1, defect=kind == "bad", seed=i) for i, kind in enumerate(("good", "bad")))
    (later,) = draw(tmp_path / "later", 1, defect=False, seed=3)
    new = [NewImage(good, 0, ignore=region), NewImage(bad, 1, ignore=region), NewImage(later, 0)]
    first = quick(model, new, tmp_path / "1.bgad")
    assert {name: path for name, path in given[0].items() if path} == {good.name: region, bad.name: region}
    origin = checkpoint.recall(first.card.checksum)
    assert origin is not None
    assert set(origin.ignored.values()) == {region}

    held_out = next(data_set / name for name, role in roles(model).items() if role == "calibration")
    painted = replace(new[2], ignore=region)
    relocated = {layouts.hash_file(later): painted}  # with the region as it is now
    images_now = [painted, NewImage(held_out, 0, ignore=region)]
    quick(tmp_path / "1.bgad", images_now, tmp_path / "2.bgad", relocated=relocated)
    assert {name for name, path in given[1].items() if path} == {good.name, bad.name, later.name}
    assert by_content(tmp_path / "2.bgad")[layouts.hash_file(held_out)] == "calibration"  # never trained on
    with pytest.raises(DataError, match="there is nothing new in them"):
        quick(tmp_path / "2.bgad", [replace(new[2], ignore=region)], tmp_path / "3.bgad")
    region.unlink()
    with pytest.raises(DataError, match=r"region\.png was taught before and is not there any more: put it back"):
        quick(tmp_path / "2.bgad", new, tmp_path / "3.bgad")


def test_painted_again_is_painted_since(tmp_path: Path) -> None:
    first, second = ignore_file(tmp_path / "1.png"), ignore_file(tmp_path / "2.png")
    assert not _is_other_file(first, second)  # the same in another place
    ignore_file(second, size=32)
    assert _is_other_file(first, second)
    assert _is_other_file(None, first)
    assert not _is_other_file(first, None)


def test_regions_that_cannot_be_used(model: Path, tmp_path: Path) -> None:
    (bad,) = draw(tmp_path / "bad", 1, defect=True, mask=True)
    (mask,) = (tmp_path / "masks").iterdir()
    (tmp_path / "broken.png").write_bytes(b"no picture")
    cases = [
        (tmp_path / "broken.png", r"broken\.png: not an image"),
        (ignore_file(tmp_path / "small.png", size=32), "the region to ignore is 32x32, the image 64x64"),
        (mask, r"0-0\.png: all of its defect lies in the region to ignore"),
    ]
    for ignore, message in cases:
        with pytest.raises(DataError, match=f"a new image cannot be used: .*{message}"):
            quick(model, [NewImage(bad, 1, mask, ignore=ignore)], tmp_path / "new.bgad")


# --- where the images are


def test_images_of_earlier_updates_that_have_moved(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = draw(tmp_path / "bad", 1, defect=True, mask=True)[0]
    (image,) = new_images([], [tmp_path / "bad"], tmp_path / "masks")
    quick(model, [image], tmp_path / "1.bgad")
    (second,) = draw(tmp_path / "more", 1, defect=True, seed=1)
    digest = layouts.hash_file(first)
    monkeypatch.setenv("BGAD_STATE", str(tmp_path / "another user"))
    with pytest.raises(DataError, match=r"0-0\.png was taught on another machine or by another user"):
        quick(tmp_path / "1.bgad", [NewImage(second, 1)], tmp_path / "2.bgad", data=data_set)
    moved = first.rename(tmp_path / "moved.png")
    relocated = {digest: replace(image, path=moved)}
    again = quick(tmp_path / "1.bgad", [NewImage(second, 1)], tmp_path / "2.bgad", data=data_set, relocated=relocated)
    content = by_content(tmp_path / "2.bgad")
    assert (content[digest], content[layouts.hash_file(second)]) == ("known", "known")
    origin = checkpoint.recall(again.card.checksum)
    assert origin is not None
    assert moved in origin.taught.values()
    assert list(origin.masks.values()) == [image.mask]


def test_a_manifest_is_found_again(data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data_set, tmp_path / "plate")
    rows = [
        {"path": path.relative_to(tmp_path).as_posix(), "label": int("blot" in path.parts), "split": path.parts[-3]}
        for path in sorted(tmp_path.glob("plate/t*/*/*.png"))
    ]
    (tmp_path / "parts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    monkeypatch.chdir(tmp_path)
    bgad.train(
        "parts.jsonl", "parts.bgad", config=SHORT, options=bgad.TrainOptions(known=2, device="cpu", export=False)
    )
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    found_again(tmp_path / "parts.bgad", tmp_path)


def test_a_public_data_set_is_found_again(data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data_set, tmp_path / "sets/mvtec/screw")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BGAD_DATA", raising=False)
    bgad.train(
        "mvtec/screw",
        "screw.bgad",
        config=SHORT,
        options=bgad.TrainOptions(root="sets", known=2, device="cpu", export=False),
    )
    (tmp_path / "mvtec/screw").mkdir(parents=True)  # a path of that name is something else
    found_again(tmp_path / "screw.bgad", tmp_path)


def found_again(model: Path, tmp_path: Path) -> None:
    """An update needs no --data, and another one after it neither."""
    for i in range(2):
        (bad,) = draw(tmp_path / f"bad{i}", 1, defect=True, seed=i)
        quick(model, [NewImage(bad, 1)], tmp_path / f"{i}.bgad")
        model = tmp_path / f"{i}.bgad"
    assert list(roles(model).values()).count("known") == 4


def test_provenance_is_kept_and_a_damaged_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BGAD_STATE", str(tmp_path))
    kept = checkpoint.Provenance(Path("/data/plate"), Path("/sets"), taught={"a": Path("/a.png")})
    checkpoint.remember("abc", kept)
    assert checkpoint.recall("abc") == kept
    (file,) = (tmp_path / "provenance").iterdir()
    file.write_text('{"data": "/data/plate"}')
    assert checkpoint.recall("abc") is None
    assert checkpoint.recall("none") is None


# --- bgad update


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["update", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    errors = [line for line in said.err.splitlines() if not line.startswith("reading ")]
    assert len(errors) == 1
    return errors[0]


def test_by_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw(tmp_path / "bad", 2, defect=True, mask=True)
    draw(tmp_path / "good", 1, defect=False, seed=2)
    (tmp_path / "ignore").mkdir()
    region = ignore_file(tmp_path / "ignore" / "2-0.png")
    out = tmp_path / "new.bgad"
    command = [str(model), "--good", str(tmp_path / "good"), "--bad", str(tmp_path / "bad"), "--masks",
               str(tmp_path / "masks"), "--ignore", str(tmp_path / "ignore"), "--out", str(out), "--device",
               "cpu"]  # fmt: skip
    assert main(["update", *command]) == 0
    said = capsys.readouterr().err
    assert "20 normals to train on, 5 held out to calibrate, 6 known anomalies (6 with masks)" in said
    assert "model: " in said
    origin = checkpoint.recall(model_folder.read(out).checksum)
    assert origin is not None
    assert list(origin.ignored.values()) == [region]
    scored = bgad.load(out)  # with its graph
    assert scored.score(tmp_path / "bad" / "0-0.png").score > scored.score(tmp_path / "good" / "2-0.png").score
    assert "exists already" in fails(capsys, *command)
    assert "nothing new in them" in fails(capsys, str(out), "--bad", str(tmp_path / "bad"))
    assert "there is nothing to learn" in fails(capsys, str(model))
    assert "no such folder of masks" in fails(capsys, str(model), "--bad", str(tmp_path / "bad"), "--masks", "none")
    assert "does not exist" in fails(capsys, str(tmp_path / "none.bgad"), "--bad", str(tmp_path / "bad"))
    away = [str(model), "--bad", str(tmp_path / "bad"), "--data", str(tmp_path / "none"), "--out", str(out) + "x"]
    assert "give --data" in fails(capsys, *away)


def test_stopped_and_resumed_it_is_the_same_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(tmp_path / "bad", 2, defect=True, mask=True)

    def arguments(name: str) -> list[str]:
        out = str(tmp_path / name)
        return [str(model), "--bad", str(tmp_path / "bad"), "--out", out, "--device", "cpu"]

    assert main(["update", *arguments("whole.bgad")]) == 0
    stop, run_step = StopRequest(), TrainingLoop.run_step

    def stopping(self: TrainingLoop, step: int) -> LogRow:
        if step == 6:
            stop.request()
        return run_step(self, step)

    out, work = tmp_path / "stopped.bgad", tmp_path / "stopped.bgad.work"
    new = new_images([], [tmp_path / "bad"])
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "run_step", stopping)
        with pytest.raises(KeyboardInterrupt):
            update(model, new, out, options=UpdateOptions(device="cpu"), stop=stop)
    assert saved_step(work) == 7
    assert not out.exists()
    assert json.loads((work / "run.json").read_text())["data"] == "plate"
    assert main(["update", *arguments("stopped.bgad")]) == 2  # without --resume it is not thrown away
    assert "holds an unfinished run" in capsys.readouterr().err
    assert main(["update", *arguments("stopped.bgad"), "--resume"]) == 0
    for name in ("flow.safetensors", "split.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole.bgad" / name).read_bytes()
    assert not work.exists()
