"""The model folder NAME.bgad/: card.json and the files that it lists with their sha256.

A folder is written under a temporary name and then renamed, so a crash leaves either the old model or the new one.
No file is ever unpickled. A reader names the files that it uses, and only those are read and verified.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgad.artifact.card import FORMAT, Card, from_json, to_json
from bgad.errors import ModelError, OutputError
from bgad.io.files import sha256_bytes, sha256_json

CARD = "card.json"
SPLIT = "split.json"
ROI = "roi.png"


def checksum(content: Mapping[str, Any]) -> str:
    """Return the sha256 of a card's JSON in canonical form, without the checksum itself."""
    body = {key: value for key, value in content.items() if key != "checksum"}
    return sha256_json(body)


def check_destination(folder: Path, *, overwrite: bool) -> None:
    """Raise OutputError before any work starts when the model cannot be written to `folder`."""
    if folder.exists() and not overwrite:
        raise OutputError(f"{folder} exists already: choose another --out, or add --overwrite")
    if folder.exists() and not (folder / CARD).exists():
        raise OutputError(f"{folder} is not a model folder: it will not be overwritten")
    probe = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(f"cannot write to {folder.parent}: {error.strerror or error}") from error


def write(folder: Path, card: Card, files: Mapping[str, bytes]) -> Card:
    """Write a model folder, in place of an existing one; returns the card with the hashes of its files."""
    digests = {name: sha256_bytes(content) for name, content in files.items()}
    card = replace(card, format=FORMAT, files=digests, checksum="")
    content = json.loads(json.dumps(to_json(card)))
    card = replace(card, checksum=checksum(content))
    content["checksum"] = card.checksum
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        for name, data in {**files, CARD: json.dumps(content, indent=1).encode()}.items():
            with (temporary / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _put_in_place(temporary, folder)
    except OSError as error:
        raise OutputError(f"cannot write the model {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after an exchange, the old model has this name
    return card


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename the new folder to its final name; an error leaves the old folder there."""
    if not folder.exists():
        temporary.rename(folder)
        return
    if _exchange(temporary, folder):
        return
    old = temporary.with_name(f"{temporary.name}.old")
    folder.rename(old)
    try:
        temporary.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two folders in one atomic step; False where the system cannot."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except (AttributeError, TypeError, OSError):  # only Linux has it
        return False
    current_directory, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(swap(current_directory, os.fsencode(a), current_directory, os.fsencode(b), exchange) == 0)


def read_card(folder: Path) -> Card:
    """Read card.json and verify its format and checksum; the card has neither split nor region of interest."""
    path = folder / CARD
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise ModelError(f"{folder} {problem}: give a model folder that `bgad train` wrote")
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{folder} is not a model folder: cannot read {CARD} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: not valid JSON") from error
    version = content.get("format") if isinstance(content, dict) else None
    if type(version) is not int:
        raise ModelError(f"{path} is not a model card: it has no format version")
    if version > FORMAT:
        raise ModelError(f"{folder} has format {version}, this bgad reads format {FORMAT}: upgrade bgad to use it")
    if version < FORMAT:
        raise ModelError(f"{folder} has format {version}, this bgad reads format {FORMAT}: train the model again")
    if checksum(content) != content.get("checksum"):
        raise ModelError(f"{path} has been changed: its checksum does not match; take a fresh copy of the model")
    card = from_json(content, str(path))
    for name in card.files:
        if name in ("", "..") or Path(name).name != name:
            raise ModelError(f"{path} names a file outside the model folder: {name!r}")
    return card


def check_same(folder: Path, card: Card) -> None:
    """Raise ModelError unless a folder still holds the model that was read from it, before it is written anew."""
    if read_card(folder).checksum != card.checksum:
        raise ModelError(f"{folder} was written by another command meanwhile and stays as it is: run this one again")


def read(folder: Path, files: Iterable[str] = ()) -> Card:
    """Read the card, its split and its region of interest; verify these and the given files."""
    return read_files(folder, files)[0]


def verify(folder: Path) -> Card:
    """Read the card and verify every file that it lists."""
    return read_all(folder)[0]


def read_all(folder: Path) -> tuple[Card, dict[str, bytes]]:
    """Read and verify every file that the card lists."""
    return read_files(folder, read_card(folder).files)


def read_files(folder: Path, files: Iterable[str]) -> tuple[Card, dict[str, bytes]]:
    """Read and verify the given files, with the card, the split and the region of interest; no others are opened."""
    card = read_card(folder)
    wanted = [SPLIT, *([ROI] if card.roi else []), *files]
    if missing := [name for name in wanted if name not in card.files]:
        raise ModelError(f"{folder} is incomplete: its card does not list {missing[0]}")
    content = {name: _verified(folder / name, card.files[name]) for name in dict.fromkeys(wanted)}
    return replace(card, split=_split(folder / SPLIT, content[SPLIT]), roi_png=content.get(ROI)), content


def _verified(path: Path, sha256: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path.parent} is incomplete: cannot read {path.name} ({error.strerror})") from error
    if sha256_bytes(content) != sha256:
        raise ModelError(f"{path} has been changed: its sha256 does not match the card")
    return content


def _split(path: Path, content: bytes) -> dict[str, Any]:
    """Parse split.json; ModelError unless it is an object with a list of images, each with its hash and role."""
    try:
        split = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: not valid JSON") from error
    if not isinstance(split, dict) or not isinstance(split.get("images"), list):
        raise ModelError(f"{path} is not a split: it has no list of images")
    for number, image in enumerate(split["images"], start=1):
        if not isinstance(image, dict) or not all(isinstance(image.get(key), str) for key in ("sha256", "role")):
            raise ModelError(f"{path} is not a split: image {number} has no sha256 and role")
    return split
