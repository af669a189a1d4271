"""Writing results: early checks of the destination, atomic writes, locks, and sha256 digests."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bgad.errors import OutputError

LOCK = ".lock"


def check_folder(folder: Path) -> None:
    """Raise OutputError where files cannot be written below `folder`; it need not exist and is not created."""
    nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise OutputError(f"cannot write to {folder}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise OutputError(f"cannot write to {folder}: no permission to write in {nearest}")


def check_file(path: Path, suffix: str) -> None:
    """Raise OutputError where a file with this suffix cannot be written to `path`."""
    if path.suffix.lower() != suffix:
        raise OutputError(f"cannot write to {path}: give the name of a file that ends in {suffix}")
    if path.is_dir():
        raise OutputError(f"cannot write to {path}: it is a folder")
    check_folder(path.parent)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file and the folders above it, in place of an existing file; a failure leaves the old file."""
    check_folder(path.parent)
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another place for it") from error
    finally:
        with suppress(OSError):  # the folder itself may be out of reach; the error above says so
            draft.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, user: str, option: str = "--out", name: str = LOCK) -> Iterator[None]:
    """Keep other processes out of a folder; OutputError where one holds the lock.

    The system releases the lock when the process ends, even when it is killed. `user` names what holds it and `option`
    the command-line option to change; `name` is the lock file, where less than the folder is locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / name, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise OutputError(f"{folder} is in use by another {user}: wait for it, or give another {option}") from error
    try:
        yield
    finally:
        lock.release()


def sha256_bytes(content: bytes) -> str:
    """Return the sha256 of bytes as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path, more: str = "") -> str:
    """Return the sha256 of a file's bytes followed by the text `more`, reading the file piece by piece."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(more.encode())
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form: the order of an object's keys does not matter.

    >>> sha256_json({"a": 1, "b": [2]}) == sha256_json({"b": (2,), "a": 1})
    True
    """
    return sha256_bytes(json.dumps(value, sort_keys=True).encode())
