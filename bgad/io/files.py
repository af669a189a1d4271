"""Writing results: a place that cannot be written is found before the work, a file appears whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bgad.errors import OutputError

LOCK = ".lock"


def check_folder(folder: Path) -> None:
    """Fail early where files could not be written below `folder`; it need not exist, and is not made here."""
    nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise OutputError(f"cannot write to {folder}: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise OutputError(f"cannot write to {folder}: no permission to write in {nearest}")


def check_file(path: Path, suffix: str) -> None:
    """Fail early where a file of a kind could not be written."""
    if path.suffix.lower() != suffix:
        raise OutputError(f"cannot write to {path}: give the name of a file that ends in {suffix}")
    if path.is_dir():
        raise OutputError(f"cannot write to {path}: it is a folder")
    check_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, with the folders above it, in place of one that is there; a failure leaves the old one."""
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
def locked(out: Path, what: str, option: str = "--out", name: str = LOCK) -> Iterator[None]:
    """Keep a second process away from an output folder; the lock of a process that died is no lock. `name`: its file,
    where not the whole folder is meant."""
    busy = OutputError(f"{out} is in use by another {what}: wait for it, or give another {option}")
    out.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not a Unix
        with _pid_file(out / name, busy):
            yield
        return
    with (out / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise busy from error
        yield


@contextmanager
def _pid_file(path: Path, busy: OutputError) -> Iterator[None]:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError as error:
        raise OutputError(f"{busy}; if there is none, delete {path}") from error
    os.write(handle, str(os.getpid()).encode())
    os.close(handle)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
