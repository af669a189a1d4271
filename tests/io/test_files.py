from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bgad.errors import OutputError
from bgad.io.files import check_file, check_folder, locked, sha256_bytes, sha256_file, sha256_json, write_atomic


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


def test_an_atomic_write_replaces_the_file_or_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "größe.bin"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    with pytest.raises(OutputError, match="is not a folder"):
        write_atomic(path / "below", b"x")

    def full_disk(draft: Path, content: bytes) -> None:
        with draft.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        write_atomic(path, b"three")
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


HOLD = """
import pathlib, sys, time
from bgad.io.files import locked
with locked(pathlib.Path(sys.argv[1]), "training"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_keeps_other_processes_out_and_ends_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        message = "is in use by another benchmark: wait for it, or give another --out"
        with pytest.raises(OutputError, match=message), locked(tmp_path, "benchmark"):
            pass
        with locked(tmp_path, "benchmark", name=".other"):  # another lock file is another lock
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locked(tmp_path, "benchmark"):
        pass


def test_a_lock_is_held_against_the_same_process_and_is_free_after_an_error(tmp_path: Path) -> None:
    with locked(tmp_path / "new", "run"), pytest.raises(OutputError, match="in use"), locked(tmp_path / "new", "run"):
        pass
    with pytest.raises(KeyError), locked(tmp_path / "new", "run"):
        raise KeyError
    with locked(tmp_path / "new", "run"):
        pass


def test_digests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    expected = hashlib.sha256(b"abc").hexdigest()
    assert sha256_bytes(b"abc") == sha256_file(tmp_path / "a") == expected
    assert sha256_file(tmp_path / "a", "def") == sha256_bytes(b"abcdef")
    value = {"b": [1, 2.5, None], "a": "ü"}
    assert sha256_json(value) == hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    assert sha256_json(value) != sha256_json(value | {"a": "u"})
