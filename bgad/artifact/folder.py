"""The model folder NAME.bgad/: a card that says what the model is, and its weights; nothing is ever unpickled.

It is written under a temporary name and renamed, so a crash leaves the old model or the new one. Every file's
sha256 is in the card, and the card's own in its `checksum`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bgad.errors import ModelError, OutputError

FORMAT = 2  # 1 had the split inside the card
CARD = "card.json"
SPLIT = "split.json"
ROI = "roi.png"


@dataclass(frozen=True)
class Card:
    """card.json, read and checked; the fields that code needs have names, the rest is in `data`."""

    data: dict[str, Any]
    split: dict[str, Any] = field(default_factory=dict)  # split.json: which images the model was made of
    roi: bytes | None = None  # roi.png: where the model looks

    @property
    def size(self) -> int:
        """Side of the model's input in pixels."""
        return int(self.data["config"]["backbone"]["size"])

    @property
    def bits(self) -> int:
        """Bit depth of the training images."""
        return int(self.data["input"]["bits"])

    @property
    def map_boundary(self) -> float:
        """Map value at the edge of normal."""
        return float(self.data["boundary"])

    @property
    def map_centre(self) -> float:
        """Mean map value of the training normals."""
        return float(self.data["centre"])

    @property
    def calibration(self) -> dict[str, Any]:
        """Held-out scores and the rate asked for."""
        return dict(self.data["calibration"])

    @property
    def levels(self) -> list[dict[str, Any]]:
        """Constants of each level: stride, channels, grid, boundary and so on."""
        return list(self.data["levels"])

    @property
    def learnt(self) -> set[str]:
        """sha256 of the images that it was trained or calibrated on: their scores say nothing of new parts."""
        roles = ("train", "calibration", "known")
        return {image["sha256"] for image in self.split.get("images", []) if image["role"] in roles}


def checksum(data: Mapping[str, Any]) -> str:
    """sha256 of the card without its checksum, in one canonical form."""
    body = {key: value for key, value in data.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check_destination(folder: Path, *, overwrite: bool) -> None:
    """Fail before any work when the model could not be written there."""
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


def write(folder: Path, card: dict[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a whole model folder at once, in place of one that is there."""
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    data = json.loads(json.dumps(card | {"format": FORMAT, "files": {n: _sha(b) for n, b in files.items()}}))
    data["checksum"] = checksum(data)
    try:
        temporary.mkdir(parents=True)
        for name, content in {**files, CARD: json.dumps(data, indent=1).encode()}.items():
            with (temporary / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if not folder.exists():
            temporary.rename(folder)
        elif not _exchange(temporary, folder):
            old = temporary.with_name(f"{temporary.name}.old")
            folder.rename(old)
            try:
                temporary.rename(folder)
            except BaseException:
                old.rename(folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"cannot write the model {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # what is left of the new one, or the old one after an exchange


def _exchange(a: Path, b: Path) -> bool:
    """Swap two folders in one step, so that no crash can fall in between; False where the system has no way to."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except (AttributeError, TypeError, OSError):  # only Linux has it
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(swap(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0)


def read(folder: Path, needs: Iterable[str] = ()) -> Card:
    """Read the card and check version, checksum and files, those in `needs` among them."""
    return contents(folder, needs)[0]


def peek(folder: Path) -> dict[str, Any]:
    """The card alone, its version and checksum checked, its files not."""
    path = folder / CARD
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ModelError(f"{folder} {what}: give a model folder that `bgad train` wrote")
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{folder} is not a model folder: cannot read {CARD} ({error.strerror})") from error
    except ValueError as error:
        raise ModelError(f"{path} is damaged: not valid JSON") from error
    version = data.get("format") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise ModelError(f"{path} is not a model card: it has no format version")
    if version > FORMAT:
        raise ModelError(
            f"{folder} has format {version}, this bgad reads up to {FORMAT}: upgrade bgad to use this model"
        )
    if checksum(data) != data.get("checksum"):
        raise ModelError(f"{path} has been changed: its checksum does not match; take a fresh copy of the model")
    if not isinstance(data.get("files"), dict):
        raise ModelError(f"{path} is not a model card: it lists no files")
    return dict(data)


def contents(folder: Path, needs: Iterable[str] = ()) -> tuple[Card, dict[str, bytes]]:
    """As `read`, with the files that the card lists."""
    data, path = peek(folder), folder / CARD
    files = data["files"]
    if missing := [name for name in needs if name not in files]:
        raise ModelError(f"{folder} is incomplete: its card does not list {missing[0]}")
    split = data.get("split", {})
    found: dict[str, bytes] = {}
    for name, expected in files.items():
        if Path(name).name != name:
            raise ModelError(f"{path} names a file outside the model folder: {name!r}")
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise ModelError(f"{folder} is incomplete: cannot read {name} ({error.strerror})") from error
        if _sha(content) != expected:
            raise ModelError(f"{folder / name} has been changed: its sha256 does not match the card")
        if name == SPLIT:
            split = json.loads(content)
        found[name] = content
    return Card(data, split, found.get(ROI)), found


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _share(level: dict[str, Any]) -> str:
    """How much a level counts; older cards do not say."""
    return f", {level['share']:.0%} of the map" if "share" in level else ""


def describe(model: Card) -> list[str]:
    """The card in a few lines for people."""
    card = model.data
    roles = Counter(image["role"] for image in model.split["images"])
    config, calibration, training = card["config"], card["calibration"], card["training"]
    return [
        f"name        {card['name']}  (format {card['format']}, bgad {card['bgad']}, {card['created']})",
        f"data        {card['data']['name']}: {roles['train']} normals trained on, {roles['calibration']} held out, "
        f"{card['data']['known']} known anomalies, {roles['test']} images left for test",
        f"recipe      {config['loss']['method']} on {config['backbone']['name']}, "
        f"{config['backbone']['size']} x {config['backbone']['size']}, seed {config['seed']}",
        *([f"tiles       of {tile['size']} pixels"] if (tile := config.get("tile", {})).get("size") else []),
        *(
            [f"looks at    {roi['share']:.0%} of the picture, {'x'.join(map(str, roi['size']))} pixels"]
            if (roi := card.get("roi"))
            else []
        ),
        f"training    {training['steps']} steps in {training['seconds']:.0f} s on {training['device']}",
        f"threshold   {calibration['threshold']:.6g} at a false-reject rate of {calibration['rate']:g}",
        f"guarantee   {calibration['guarantee']}",
        *(
            f"level       stride {level['stride']}: b_n {level['boundary']:.3f}, b_a {level['abnormal_boundary']:.3f}"
            f" (log p / d){_share(level)}"
            for level in card["levels"]
        ),
        *([f"image level counts {weight:.2f} beside the map"] if (weight := card.get("image_weight")) else []),
        f"files       {', '.join(f'{name} {digest[:12]}' for name, digest in card['files'].items())}: all intact",
        f"licences    {'; '.join(f'{k}: {v}' for k, v in card['licences'].items())}",
    ]
