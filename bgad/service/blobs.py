"""Pictures, masks and thumbnails of the workbench: files named by their content, so no name of a client's is a path."""

from __future__ import annotations

import errno
import os
import re
import unicodedata
import uuid
from pathlib import Path

from bgad.errors import DataError, OutputError
from bgad.io.files import sha256_bytes, sha256_file

NAME_LENGTH = 200
_SHA = re.compile(r"[0-9a-f]{64}")


class Files:
    """Below one folder, two letters of the name at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, kind: str, content: bytes) -> str:
        """Keep some bytes, which are on the disk when this returns; their sha256."""
        name = sha256_bytes(content)
        path = self._path(kind, name)
        if _sha256(path) == name:  # it was there; whether it was on the disk, nobody knows
            self._sync(path)
        else:
            self._write(path, content, durable=True)
        return name

    def sync(self, kind: str, name: str) -> None:
        """See to it that a file is on the disk; DataError when it is damaged, as after a power cut."""
        path = self.path(kind, name)
        if _sha256(path) != name:
            raise DataError(f"the file {kind}/{name[:12]} is damaged: send the picture again")
        self._sync(path)

    def mend(self, kind: str, name: str, content: bytes) -> bool:
        """Put a file right that does not hold the bytes that it is named by; whether that was so."""
        if _sha256(self._path(kind, name)) == name:
            return False
        self.put_as(kind, name, content)
        return True

    def put_as(self, kind: str, name: str, content: bytes) -> None:
        """Keep some bytes under the name that they, or those they were made of (a thumbnail), have; on the disk after
        `sync`."""
        self._write(self._path(kind, name), content, durable=False)

    def path(self, kind: str, name: str) -> Path:
        """Where it is; DataError when it is not there."""
        path = self._path(kind, name)
        if not path.exists():
            raise DataError(f"the file {kind}/{name[:12]} is not there any more")
        return path

    def drop(self, kind: str, name: str) -> int:
        """Forget some bytes that are of no use; how many."""
        path = self._path(kind, name)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size

    def place(self, kind: str, name: str) -> Path:
        """Where it is, or would be."""
        return self._path(kind, name)

    def has(self, kind: str, name: str, size: int | None = None) -> bool:
        """Whether it is there, with so many bytes; an empty one is none."""
        path = self._path(kind, name)
        there = path.stat().st_size if path.exists() else 0
        return there > 0 and size in (None, there)

    def _path(self, kind: str, name: str) -> Path:
        if not _SHA.fullmatch(name.partition(".")[0]):
            raise DataError(f"{name!r} is not a name of a file here")
        return self.folder / kind / name[:2] / name

    def _write(self, path: Path, content: bytes, *, durable: bool) -> None:
        draft = path.with_name(f".{uuid.uuid4().hex}")
        try:
            if not path.parent.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            draft.replace(path)
            if durable:
                self._sync_way(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise OutputError(f"cannot write below {self.folder}: {error.strerror or error}") from error

    def _sync(self, path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self._sync_way(path)

    def _sync_way(self, path: Path) -> None:
        """The folders that lead to a file, any of which may be new: without its name the file is lost."""
        for folder in (path.parent, path.parent.parent, self.folder):
            _sync_folder(folder)


def _sha256(path: Path) -> str:
    """Of what a file holds; nothing where it is not there."""
    return sha256_file(path) if path.exists() else ""


def _sync_folder(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:  # not every system opens folders
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL):  # nor syncs them
            raise
    finally:
        os.close(opened)


def shown_name(given: str) -> str:
    """A client's name for a picture, to show: the last part of the path, without what cannot be printed.

    >>> shown_name("../../etc/pass\\x00wd"), shown_name("C:\\\\parts\\\\7.png"), shown_name("")
    ('passwd', '7.png', 'picture')
    """
    last = re.split(r"[\\/]", given)[-1]
    printable = "".join(c for c in last if unicodedata.category(c)[0] != "C")
    return printable.strip()[:NAME_LENGTH] or "picture"
