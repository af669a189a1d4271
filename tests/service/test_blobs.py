from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from bgad.errors import DataError, OutputError
from bgad.service.blobs import Files


def test_a_file_that_is_on_the_disk_can_be_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.fstat(number).st_ino))
    files = Files(tmp_path / "all")

    def way(path: Path) -> set[int]:
        return {part.stat().st_ino for part in (path, path.parent, path.parent.parent, files.folder)}

    name = files.put("masks", b"painted")
    assert way(files.path("masks", name)) <= synced
    synced.clear()
    assert files.put("masks", b"painted") == name  # also where it was there: a power cut may have been in between
    assert way(files.path("masks", name)) <= synced
    synced.clear()
    name = hashlib.sha256(b"sent").hexdigest()
    files.put_as("pictures", name, b"sent")
    assert synced == set()  # it is scored at once, and on the disk with a review
    files.sync("pictures", name)
    assert way(files.path("pictures", name)) <= synced


def test_what_a_power_cut_leaves_is_seen_and_mended(tmp_path: Path) -> None:
    files = Files(tmp_path)
    name = files.put("masks", b"painted")
    for left in (b"", bytes(7)):
        files.path("masks", name).write_bytes(left)
        with pytest.raises(DataError, match="is damaged: send the picture again"):
            files.sync("masks", name)
        assert files.mend("masks", name, b"painted")
        assert not files.mend("masks", name, b"painted")
        files.path("masks", name).write_bytes(left)
        assert files.put("masks", b"painted") == name
        assert files.path("masks", name).read_bytes() == b"painted"
    files.path("masks", name).write_bytes(b"")
    assert not files.has("masks", name)


def test_a_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failure = os.fsync, OSError(errno.EINVAL, "Invalid argument")

    def fsync(number: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{number}"):  # noqa: PTH112 - a link to it
            raise failure
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    files = Files(tmp_path)
    assert files.path("masks", files.put("masks", b"painted")).read_bytes() == b"painted"
    failure = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OutputError, match=r"cannot write below .*: Input/output error"):
        files.put("masks", b"another")
