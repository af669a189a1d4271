"""Rows that are appended to a file as they come: a run that was killed goes on behind the last whole line."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bgad.errors import OutputError
from bgad.io.files import check_folder, locked, write_atomic

logger = logging.getLogger(__name__)

FILE, ABOUT = "scores.jsonl", "scores.about.json"
SAFE_EVERY = 1.0  # seconds between two moments at which all lines are safe from a power cut

Row = dict[str, Any]


class Journal:
    """The rows of scoring runs in a folder.

    Beside what `predict` says, a row has `file` (the absolute path), `changed` (the file's time and size when it was
    scored) and `stem` (of the names of its pictures). `done` are those of the paths at hand that have a row and have
    not changed since; `stems` gives the stem of a file, of those that are scored again too.
    """

    def __init__(self, folder: Path, paths: dict[str, Any], done: set[str], stems: dict[str, str]) -> None:
        self.file, self._paths, self.done, self.stems = folder / FILE, paths, done, stems
        try:
            self._stream = self.file.open("ab")
        except OSError as error:
            raise _cannot_write(self.file, error) from error
        self._safe = time.monotonic()

    def rows(self) -> Iterator[Row]:
        """Those of the paths at hand, as `predict` gave them, in the order in which they were written."""
        for row in rows(self.file):
            if row["file"] in self.done:
                yield {key: value for key, value in row.items() if key not in ("file", "changed")}

    def append(self, row: Row) -> None:
        """Write one row; when this returns, a kill of the process does not lose it."""
        name = absolute(Path(row["path"]))
        whole = row | {"file": name, "changed": self._paths.get(name)}  # as it was before it was read
        try:
            self._stream.write(json.dumps(whole).encode() + b"\n")
            self._stream.flush()
            if time.monotonic() - self._safe > SAFE_EVERY:
                os.fsync(self._stream.fileno())
                self._safe = time.monotonic()
        except OSError as error:
            raise _cannot_write(self.file, error) from error

    def close(self) -> None:
        """What was written stays."""
        try:
            os.fsync(self._stream.fileno())
            self._stream.close()
        except OSError as error:
            raise _cannot_write(self.file, error) from error


@contextmanager
def opened(folder: Path, about: Row, paths: Sequence[Path], *, overwrite: bool = False) -> Iterator[Journal]:
    """The journal of a folder, begun or gone on with; `about` says what must be the same for going on.

    With `overwrite` the rows of the paths at hand go, and all rows where `about` is not the same.
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
            at_hand = {absolute(path): _changed(path) for path in paths}
            done, stems = _restore(file, at_hand, overwrite=overwrite)
        except OSError as error:
            raise _cannot_write(file, error) from error
        journal = Journal(folder, at_hand, done, stems)
        try:
            yield journal
        finally:
            journal.close()


def rows(file: Path) -> Iterator[Row]:
    """The whole lines of a journal."""
    with file.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                yield json.loads(line)


def absolute(path: Path) -> str:
    """What a row is known by, wherever the command is run."""
    return os.path.abspath(path)  # noqa: PTH100 - resolve would follow links


def _restore(file: Path, paths: dict[str, Any], *, overwrite: bool) -> tuple[set[str], dict[str, str]]:
    """Which of the paths are done, and the stems of files. A line that a crash left unfinished goes, and of the paths
    at hand those lines whose image could not be scored, or is another one by now: they get another try. With
    `overwrite` all lines of the paths at hand go, and damaged ones."""
    done: set[str] = set()
    stems: dict[str, str] = {}
    if not file.exists():
        return done, stems
    draft = file.with_name(f"{file.name}.new")
    kept = gone = 0
    with file.open("rb") as old, draft.open("wb") as new:
        for number, line in enumerate(old, start=1):
            if not line.endswith(b"\n"):
                continue
            try:
                row = json.loads(line)
                name, changed, failed, stem = row["file"], row["changed"], row["error"] is not None, row["stem"]
                if stem is not None and (Path(stem).is_absolute() or ".." in Path(stem).parts):
                    raise ValueError(stem)
            except (ValueError, KeyError, TypeError) as problem:
                if not overwrite:
                    raise OutputError(f"{file}: line {number} is damaged; --overwrite leaves it out") from problem
                gone += 1
                continue
            if stem is not None:
                stems[name] = stem
            if name in paths and (overwrite or failed or changed != paths[name]):
                gone += 1
                continue
            if name in paths:
                done.add(name)
            kept += 1
            new.write(line)
        new.flush()
        os.fsync(new.fileno())
    if overwrite and gone:
        logger.info(f"rows that go from {file.parent}: {gone} of {kept + gone}")
    draft.replace(file)
    return done, stems


def is_done(path: Path, done: Container[str]) -> bool:
    """Whether a path is among those of a journal."""
    return absolute(path) in done


def _changed(path: Path) -> list[int] | None:
    """Differs when a file has been replaced; None where there is none."""
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


KEPT = "what was scored is kept: make room and run the same again"
