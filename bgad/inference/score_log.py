"""The score log of an output folder: rows are appended as images are scored, and an interrupted run continues.

The log is a file of JSON lines. A line that a crash left unfinished is dropped when the log is opened again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bgad.errors import OutputError
from bgad.inference.batch import Row
from bgad.io.files import check_folder, locked, write_atomic

logger = logging.getLogger(__name__)

FILE, ABOUT = "scores.jsonl", "scores.about.json"
SYNC_SECONDS = 1.0  # a power cut loses at most the rows of this time; syncing every row would slow scoring down
KEPT = "what was scored is kept: make room and run the same again"

Version = list[int] | None  # time and size of a file; None where it does not exist


class LogRow(Row):
    """A row of the log: that of `predict`, with the file that it belongs to."""

    file: str  # absolute path
    changed: Version  # when it was scored


@dataclass
class _Existing:
    """What an earlier run left: the files that need no scoring, and the stems of all files."""

    done: set[str] = field(default_factory=set)
    stems: dict[str, str] = field(default_factory=dict)


class ScoreLog:
    """The rows of scoring runs in a folder.

    `done` holds the absolute paths, of those at hand, that have a row and have not changed since. `stems` maps files to
    the names of their overlays and maps, also for files that are scored again.
    """

    def __init__(self, folder: Path, versions: Mapping[str, Version], existing: _Existing) -> None:
        self.file, self._versions = folder / FILE, versions
        self.done, self.stems = existing.done, existing.stems
        try:
            self._stream = self.file.open("ab")
        except OSError as error:
            raise _cannot_write(self.file, error) from error
        self._synced = time.monotonic()

    def rows(self) -> Iterator[Row]:
        """Yield the rows of files that are done, as `predict` gave them, in the order in which they were written."""
        for row in rows(self.file):
            if row["file"] in self.done:
                yield {key: value for key, value in row.items() if key not in ("file", "changed")}  # type: ignore[misc]

    def append(self, row: Row) -> None:
        """Write one row; after this returns, killing the process does not lose it."""
        name = absolute(Path(row["path"]))
        logged = row | {"file": name, "changed": self._versions.get(name)}  # the version from before it was read
        try:
            self._stream.write(json.dumps(logged).encode() + b"\n")
            self._stream.flush()
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._stream.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            raise _cannot_write(self.file, error) from error

    def close(self) -> None:
        """Sync and close the file."""
        try:
            os.fsync(self._stream.fileno())
            self._stream.close()
        except OSError as error:
            raise _cannot_write(self.file, error) from error


@contextmanager
def open_log(
    folder: Path, about: Mapping[str, Any], paths: Sequence[Path], *, overwrite: bool = False
) -> Iterator[ScoreLog]:
    """Start the log of a folder, or continue it where `about` (model, threshold, options) is the same.

    `overwrite` removes the rows of the paths at hand, and all rows where `about` differs.
    """
    check_folder(folder)
    with locked(folder, "scoring run"):
        file, note = folder / FILE, folder / ABOUT
        if file.exists() and _read_about(note) != json.loads(json.dumps(about)):
            if not overwrite:
                raise OutputError(
                    f"{folder} holds scores of another model or with other options: choose another --out, "
                    "or --overwrite"
                )
            count = file.read_bytes().count(b"\n")
            logger.info(f"rows that go from {folder}: all {count}, of another model or with other options")
            file.unlink()
        if not file.exists():
            write_atomic(note, json.dumps(about, indent=1).encode())
        try:
            versions = {absolute(path): _version(path) for path in paths}
            existing = _restore(file, versions, overwrite=overwrite)
        except OSError as error:
            raise _cannot_write(file, error) from error
        log = ScoreLog(folder, versions, existing)
        try:
            yield log
        finally:
            log.close()


def rows(file: Path) -> Iterator[LogRow]:
    """Yield the rows of a log, without a last line that is unfinished."""
    with file.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield json.loads(line)


def absolute(path: Path) -> str:
    """Return the absolute path that identifies a file in the log, wherever the command runs."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve would follow links


def is_done(path: Path, done: Container[str]) -> bool:
    """Tell whether a path is among the absolute paths that are done."""
    return absolute(path) in done


def _restore(file: Path, versions: Mapping[str, Version], *, overwrite: bool) -> _Existing:
    """Rewrite the log without the rows that are scored again, and return what remains of earlier runs.

    Dropped are an unfinished last line, and the rows of files at hand that could not be scored or have changed since.
    With `overwrite`, all rows of files at hand and damaged lines are dropped too.
    """
    existing = _Existing()
    if not file.exists():
        return existing
    draft = file.with_name(f"{file.name}.new")
    kept = dropped = 0
    with file.open("rb") as old, draft.open("wb") as new:
        for number, line in enumerate(old, start=1):
            if not line.endswith(b"\n"):
                continue
            try:
                row = _parse(line)
            except (ValueError, KeyError, TypeError) as problem:
                if not overwrite:
                    raise OutputError(f"{file}: line {number} is damaged; --overwrite leaves it out") from problem
                dropped += 1
                continue
            name, stem = row["file"], row.get("stem")
            if stem is not None:
                existing.stems[name] = stem
            outdated = row["error"] is not None or row["changed"] != versions.get(name)
            if name in versions and (overwrite or outdated):
                dropped += 1
                continue
            if name in versions:
                existing.done.add(name)
            kept += 1
            new.write(line)
        new.flush()
        os.fsync(new.fileno())
    if overwrite and dropped:
        logger.info(f"rows that go from {file.parent}: {dropped} of {kept + dropped}")
    draft.replace(file)
    return existing


def _parse(line: bytes) -> LogRow:
    """Read one line; ValueError, KeyError or TypeError where it is not a row, or its stem leaves the folder."""
    row: LogRow = json.loads(line)
    _, _, _, stem = row["file"], row["changed"], row["error"], row["stem"]
    if stem is not None and (Path(stem).is_absolute() or ".." in Path(stem).parts):
        raise ValueError(stem)
    return row


def _version(path: Path) -> Version:
    """Return what differs when a file has been replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


def _read_about(note: Path) -> Any:
    try:
        return json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None


def _cannot_write(file: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {file}: {error.strerror or error}; {KEPT}")
