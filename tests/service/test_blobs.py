from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from bgad.errors import DataError, OutputError
from bgad.service.blobs import BlobKind, BlobStore


def test_a_file_that_is_on_the_disk_can_be_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.fstat(number).st_ino))
    files = BlobStore(tmp_path / "all")

    def way(path: Path) -> set[int]:
        return {part.stat().st_ino for part in (path, path.parent, path.parent.parent, files.folder)}

    name = files.put(BlobKind.MASK, b"painted")
    assert way(files.path(BlobKind.MASK, name)) <= synced
    synced.clear()
    assert files.put(BlobKind.MASK, b"painted") == name  # also where it was there: a power cut may have been in between
    assert way(files.path(BlobKind.MASK, name)) <= synced
    synced.clear()
    name = hashlib.sha256(b"sent").hexdigest()
    files.put_as(BlobKind.IMAGE, name, b"sent")
    assert synced == set()  # it is scored at once, and on the disk with a review
    files.sync(BlobKind.IMAGE, name)
    assert way(files.path(BlobKind.IMAGE, name)) <= synced


def test_what_a_power_cut_leaves_is_seen_and_mended(tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    name = files.put(BlobKind.MASK, b"painted")
    for left in (b"", bytes(7)):
        files.path(BlobKind.MASK, name).write_bytes(left)
        with pytest.raises(DataError, match="is damaged: send the image again"):
            files.sync(BlobKind.MASK, name)
        assert files.repair(BlobKind.MASK, name, b"painted")
        assert not files.repair(BlobKind.MASK, name, b"painted")
        files.path(BlobKind.MASK, name).write_bytes(left)
        assert files.put(BlobKind.MASK, b"painted") == name
        assert files.path(BlobKind.MASK, name).read_bytes() == b"painted"
    files.path(BlobKind.MASK, name).write_bytes(b"")
    assert not files.has(BlobKind.MASK, name)


def test_a_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failure = os.fsync, OSError(errno.EINVAL, "Invalid argument")

    def fsync(number: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{number}"):  # noqa: PTH112 - a link to it
            raise failure
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    files = BlobStore(tmp_path)
    assert files.path(BlobKind.MASK, files.put(BlobKind.MASK, b"painted")).read_bytes() == b"painted"
    failure = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OutputError, match=r"cannot write below .*: Input/output error"):
        files.put(BlobKind.MASK, b"another")
