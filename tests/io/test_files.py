from __future__ import annotations

import os
from pathlib import Path

import pytest

from bgad.errors import OutputError
from bgad.io.files import check_file, check_folder, write_whole


def test_check_folder_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    check_folder(Path("a/b"))
    for place in (tmp_path / "file", tmp_path / "file" / "a" / "b"):
        with pytest.raises(OutputError, match="file is not a folder"):
            check_folder(place)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match="no permission to write"):
        check_folder(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_write_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "größe.bin"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    with pytest.raises(OutputError, match="is not a folder"):
        write_whole(path / "below", b"x")

    def full_disk(draft: Path, content: bytes) -> None:
        with draft.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        write_whole(path, b"three")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_check_file(tmp_path: Path) -> None:
    check_file(tmp_path / "a" / "sheet.PNG", ".png")
    (tmp_path / "b.png").mkdir()
    for path, reason in (
        (Path(), "ends in .png"),
        (tmp_path / "a.jpg", "ends in .png"),
        (tmp_path / "b.png", "it is a folder"),
    ):
        with pytest.raises(OutputError, match=reason):
            check_file(path, ".png")
