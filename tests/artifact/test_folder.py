from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FORMAT
from bgad.errors import ModelError, OutputError
from tests.artifact.test_card import sample_card

FILES = {"flow.safetensors": b"flow" * 100, "train.csv": b"step,loss\n0,1\n", "split.json": b'{"images": []}'}


def write(folder: Path, name: str = "gear", files: dict[str, bytes] | None = None) -> Path:
    model_folder.write(folder, sample_card(name=name), FILES if files is None else files)
    return folder


def rewrite(folder: Path, change: dict[str, Any]) -> None:
    """Change the card as somebody would who also mends its checksum."""
    path = folder / model_folder.CARD
    data = json.loads(path.read_bytes()) | change
    data["checksum"] = model_folder.checksum(data)
    path.write_text(json.dumps(data), "utf-8")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written = model_folder.write(tmp_path / "deep/er/gear.bgad", sample_card(name="Zahnrad ⚙"), FILES)
    card = model_folder.read(tmp_path / "deep/er/gear.bgad")
    assert card == replace(written, split={"images": []})
    assert (card.name, card.format) == ("Zahnrad ⚙", FORMAT)
    assert set(card.files) == set(FILES)
    folder = tmp_path / "deep/er/gear.bgad"
    assert {path.name for path in folder.iterdir()} == {*FILES, model_folder.CARD}
    assert [path.name for path in folder.parent.iterdir()] == ["gear.bgad"]  # no temporary folder stays
    assert (folder / "train.csv").read_bytes() == FILES["train.csv"]


def test_overwriting_replaces_all_of_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "gear.bgad")
    write(folder, "newer", {"other.bin": b"1", "split.json": FILES["split.json"]})
    assert model_folder.read(folder).name == "newer"
    assert {path.name for path in folder.iterdir()} == {"other.bin", "split.json", model_folder.CARD}
    assert [path.name for path in tmp_path.iterdir()] == ["gear.bgad"]


@pytest.mark.parametrize("name", ["card.json", "flow.safetensors", "backbone.safetensors", "train.csv", "split.json"])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_one_changed_byte_is_noticed_in_every_file(model: Path, tmp_path: Path, name: str, place: float) -> None:
    folder = tmp_path / "copy.bgad"
    shutil.copytree(model, folder)
    assert name in {path.name for path in folder.iterdir()}
    model_folder.verify(folder)
    path = folder / name
    content = bytearray(path.read_bytes())
    content[round(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"{name} (has been changed|is damaged)"):
        model_folder.verify(folder)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_or_shortened_file_is_noticed(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "gear.bgad")
    (folder / name).write_bytes(FILES[name][:-1])
    with pytest.raises(ModelError, match=f"{name} has been changed"):
        model_folder.verify(folder)
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"is incomplete: cannot read {name}"):
        model_folder.verify(folder)


def test_another_format_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "gear.bgad")
    rewrite(folder, {"format": FORMAT + 1})
    with pytest.raises(ModelError, match=f"has format {FORMAT + 1}.*upgrade bgad"):
        model_folder.read(folder)
    rewrite(folder, {"format": FORMAT - 1})
    with pytest.raises(ModelError, match=f"has format {FORMAT - 1}.*train the model again") as refused:
        model_folder.read(folder)
    assert "\n" not in str(refused.value)


def test_a_model_that_another_command_wrote_meanwhile_is_noticed(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plate.bgad"
    shutil.copytree(model, folder)
    card, files = model_folder.read_all(folder)
    model_folder.check_same(folder, card)
    model_folder.write(folder, replace(card, name="other"), files)
    with pytest.raises(ModelError, match="was written by another command meanwhile and stays as it is"):
        model_folder.check_same(folder, card)


def test_the_split_is_a_file_of_its_own(model: Path) -> None:
    card = model_folder.read(model)
    assert "split" not in json.loads((model / model_folder.CARD).read_bytes())
    assert card.split == json.loads((model / "split.json").read_bytes())
    assert card.files["split.json"] == hashlib.sha256((model / "split.json").read_bytes()).hexdigest()


def test_only_the_files_that_are_named_are_opened(tmp_path: Path) -> None:
    folder = write(tmp_path / "gear.bgad")
    (folder / "flow.safetensors").unlink()
    (folder / "train.csv").write_bytes(b"changed")
    assert model_folder.read(folder).name == "gear"
    with pytest.raises(ModelError, match=r"train\.csv has been changed"):
        model_folder.read(folder, ["train.csv"])
    with pytest.raises(ModelError, match=r"cannot read flow\.safetensors"):
        model_folder.read_files(folder, ["flow.safetensors"])


@pytest.mark.parametrize("content", [b"no json", b"[]", b'{"images": 3}'])
def test_a_split_that_is_none(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "gear.bgad", files=FILES | {"split.json": content})
    with pytest.raises(ModelError, match=r"split\.json is (damaged|not a split)"):
        model_folder.read(folder)


def test_a_newer_format_is_named_before_its_checksum(tmp_path: Path) -> None:
    """Another format may have another checksum: the version is what the user must hear of."""
    folder = write(tmp_path / "gear.bgad")
    path = folder / model_folder.CARD
    path.write_text(json.dumps({"format": FORMAT + 7}))
    with pytest.raises(ModelError, match="upgrade bgad"):
        model_folder.read(folder)


def test_a_value_changed_in_the_card_is_noticed(tmp_path: Path) -> None:
    folder = write(tmp_path / "gear.bgad")
    path = folder / model_folder.CARD
    data = json.loads(path.read_bytes())
    data["config"]["seed"] = 1
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="checksum does not match"):
        model_folder.read(folder)
    data["config"]["seed"] = 0
    path.write_text(json.dumps(data, indent=4, sort_keys=True))  # the same content in another form is the same card
    model_folder.read(folder)


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "sub/file", "..", ""])
def test_files_outside_of_the_folder_are_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("x")
    folder = write(tmp_path / "gear.bgad")
    rewrite(folder, {"files": {name: "0" * 64}})
    with pytest.raises(ModelError, match="outside the model folder"):
        model_folder.read(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", '"text"', '{"format": "1"}', "\xff"])
def test_a_card_that_is_none(tmp_path: Path, content: str) -> None:
    folder = write(tmp_path / "gear.bgad")
    (folder / model_folder.CARD).write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=r"not valid JSON|not a model card") as caught:
        model_folder.read(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("files", [None, [], "flow"])
def test_a_card_without_files(tmp_path: Path, files: object) -> None:
    folder = write(tmp_path / "gear.bgad")
    rewrite(folder, {"files": files})
    with pytest.raises(ModelError, match="the field files must be an object"):
        model_folder.read(folder)


def test_a_file_that_is_needed_must_be_in_the_card(tmp_path: Path) -> None:
    folder = write(tmp_path / "gear.bgad")
    model_folder.read(folder, ["flow.safetensors"])
    (folder / "backbone.safetensors").write_bytes(b"not checked by anyone")
    with pytest.raises(ModelError, match=r"does not list backbone\.safetensors"):
        model_folder.read(folder, ["flow.safetensors", "backbone.safetensors"])


def test_not_a_model_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        model_folder.read(tmp_path / "none.bgad")
    (tmp_path / "file.bgad").touch()
    with pytest.raises(ModelError, match="is not a folder"):
        model_folder.read(tmp_path / "file.bgad")
    (tmp_path / "empty.bgad").mkdir()
    with pytest.raises(ModelError, match="is not a model folder"):
        model_folder.read(tmp_path / "empty.bgad")


class Crash(BaseException):
    """What no handler of ours catches, like the end of the process."""


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), Crash()])
def test_a_crash_while_writing_leaves_the_old_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: int, error: BaseException
) -> None:
    folder = write(tmp_path / "gear.bgad")
    calls = iter(range(9))
    sync = os.fsync

    def fsync(file: int) -> None:
        if next(calls) == at:
            raise error
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutputError if isinstance(error, OSError) else Crash):
        write(folder, "newer")
    assert model_folder.read(folder).name == "gear"
    assert [path.name for path in tmp_path.iterdir()] == ["gear.bgad"]


@pytest.mark.parametrize("one_step", [True, False])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), Crash()])
def test_a_crash_while_renaming_leaves_the_old_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_step: bool, at: int, error: BaseException
) -> None:
    folder = write(tmp_path / "gear.bgad")
    calls = iter(range(9))
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if next(calls) == at:
            raise error
        return rename(self, target)

    def exchange(a: Path, b: Path) -> bool:
        if one_step:
            raise error
        return False

    monkeypatch.setattr(Path, "rename", failing)
    monkeypatch.setattr(model_folder, "_exchange", exchange)
    with pytest.raises(OutputError if isinstance(error, OSError) else Crash):
        write(folder, "newer")
    assert model_folder.read(folder).name == "gear"
    assert [path.name for path in tmp_path.iterdir()] == ["gear.bgad"]


def test_overwriting_where_the_system_cannot_exchange_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_folder, "_exchange", lambda a, b: False)
    folder = write(tmp_path / "gear.bgad")
    write(folder, "newer")
    assert model_folder.read(folder).name == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["gear.bgad"]


def test_a_crash_of_the_first_model_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write the model .*gear\.bgad: No space left on device") as caught:
        write(tmp_path / "gear.bgad")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_place_is_checked_before_the_work(tmp_path: Path) -> None:
    model_folder.check_destination(tmp_path / "new/gear.bgad", overwrite=False)
    folder = write(tmp_path / "gear.bgad")
    with pytest.raises(OutputError, match=r"exists already: .*--overwrite"):
        model_folder.check_destination(folder, overwrite=False)
    model_folder.check_destination(folder, overwrite=True)
    (tmp_path / "photos").mkdir()
    with pytest.raises(OutputError, match="is not a model folder: it will not be overwritten"):
        model_folder.check_destination(tmp_path / "photos", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write to"):
        model_folder.check_destination(tmp_path / "file/gear.bgad", overwrite=False)
    assert {path.name for path in tmp_path.iterdir()} <= {"gear.bgad", "photos", "file", "new"}


def test_a_card_says_what_the_code_needs(model: Path) -> None:
    card = model_folder.read(model)
    assert card.input.shape == (64, 64)
    assert card.input.bits == 8
    assert card.method == "bgad-plus"
    assert card.map.boundary > card.map.mean
    assert [level.stride for level in card.levels] == [4, 8, 16]
    for level in card.levels:
        assert level.abnormal_boundary == pytest.approx(level.normal_boundary - 10 * card.config.loss.tau)
    assert len(card.calibration_at().scores) == 5
    assert [part.name for part in card.score_parts] == ["map", "image", "known"]


def test_no_machine_path_is_in_the_card(model: Path, data_set: Path) -> None:
    text = (model / model_folder.CARD).read_text("utf-8")
    assert str(data_set.parent) not in text
    assert str(model.parent) not in text
