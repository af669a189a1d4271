"""The blob store: image files, masks and thumbnails, named by their sha256 so that no client's name becomes a path."""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from enum import StrEnum
from pathlib import Path

from bgad.errors import DataError, OutputError
from bgad.io import files
from bgad.io.files import sha256_bytes, sha256_file

MAX_NAME_LENGTH = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobKind(StrEnum):
    """What a blob is; each kind has a folder of its own."""

    IMAGE = "images"
    MASK = "masks"
    THUMBNAIL = "thumbnails"  # named SHA256.VERSION
    COMPARISON = "comparisons"  # thumbnails of validation images that a teaching job drew, named SHA256.VERSION


class BlobStore:
    """Files below one folder, spread over sub-folders by the first two characters of their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, kind: BlobKind, content: bytes) -> str:
        """Store bytes durably and return their sha256."""
        name = sha256_bytes(content)
        path = self.location(kind, name)
        if _sha256(path) != name:
            self._write(path, content)
        self._sync(path)  # also for a file that exists: it may not have reached the disk yet
        return name

    def put_as(self, kind: BlobKind, name: str, content: bytes) -> None:
        """Store bytes under the sha256 of the bytes, or of what they were made from; durable only after `sync`."""
        self._write(self.location(kind, name), content)

    def sync(self, kind: BlobKind, name: str) -> None:
        """Make a file durable; DataError if it is damaged, as after a power failure."""
        path = self.path(kind, name)
        if _sha256(path) != name:
            raise DataError(f"the file {kind}/{name[:12]} is damaged: send the image again")
        self._sync(path)

    def repair(self, kind: BlobKind, name: str, content: bytes) -> bool:
        """Rewrite a file whose content does not match its name; return whether that was necessary."""
        if _sha256(self.location(kind, name)) == name:
            return False
        self.put_as(kind, name, content)
        return True

    def path(self, kind: BlobKind, name: str) -> Path:
        """Return the path of a file; DataError if it does not exist."""
        path = self.location(kind, name)
        if not path.exists():
            raise DataError(f"the file {kind}/{name[:12]} is not there any more")
        return path

    def location(self, kind: BlobKind, name: str) -> Path:
        """Return the path at which a file is or would be stored."""
        if not _SHA256.fullmatch(name.partition(".")[0]):
            raise DataError(f"{name!r} is not a name of a file here")
        return self.folder / kind / name[:2] / name

    def has(self, kind: BlobKind, name: str, size: int | None = None) -> bool:
        """Return whether a non-empty file exists, of `size` bytes if given."""
        path = self.location(kind, name)
        actual = path.stat().st_size if path.exists() else 0
        return actual > 0 and size in (None, actual)

    def remove(self, kind: BlobKind, name: str) -> int:
        """Remove a file if it exists; return the number of bytes freed."""
        path = self.location(kind, name)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size

    def _write(self, path: Path, content: bytes) -> None:
        try:
            files.write_atomic(path, content)
        except OutputError as error:
            reason = getattr(error.__cause__, "strerror", None) or error
            raise OutputError(f"cannot write below {self.folder}: {reason}") from error

    def _sync(self, path: Path) -> None:
        """Sync a file and the folders that lead to it: without its directory entry a file is lost."""
        try:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            for folder in (path.parent, path.parent.parent, self.folder):
                _sync_folder(folder)
        except OSError as error:
            raise OutputError(f"cannot write below {self.folder}: {error.strerror or error}") from error


def display_name(given: str) -> str:
    """Return a client's file name, made safe to show: the last part of the path without control characters.

    >>> display_name("../../etc/pass\\x00wd"), display_name("C:\\\\parts\\\\7.png"), display_name("")
    ('passwd', '7.png', 'image')
    """
    last = re.split(r"[\\/]", given)[-1]
    printable = "".join(c for c in last if unicodedata.category(c)[0] != "C")
    return printable.strip()[:MAX_NAME_LENGTH] or "image"


def _sha256(path: Path) -> str:
    """Return the sha256 of a file's content, or an empty string if the file does not exist."""
    if not path.exists():
        return ""
    return sha256_file(path)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # some systems cannot open folders
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL):  # some cannot sync them
            raise
    finally:
        os.close(descriptor)
