"""Where the pictures of a model are on this machine, kept outside of the model: a model tells nobody where it was made.

One small file for each model in the user's state folder ($BGAD_STATE, or bgad in $XDG_STATE_HOME), named by the card's
checksum. It only saves typing: without it, `bgad update` asks for --data.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bgad.data import locate
from bgad.data.datasets import registry
from bgad.data.layouts import Dataset
from bgad.errors import OutputError
from bgad.io.files import write_atomic

_PATHS = ("taught", "masks", "ignored")


@dataclass(frozen=True)
class Origin:
    """The data set, and pictures that were taught later with what was painted on them, by their names in the split."""

    data: Path  # a folder or a manifest; or the name of a public data set
    sets: Path | None = None  # where that one is; None: `data` is a path
    taught: dict[str, Path] = field(default_factory=dict)
    masks: dict[str, Path] = field(default_factory=dict)
    ignored: dict[str, Path] = field(default_factory=dict)

    def load(self) -> Dataset:
        """The data set; DataError where it is not there any more."""
        if self.sets is None:
            return locate.load(self.data)
        return registry.load(self.data.parts[0], "".join(self.data.parts[1:]), self.sets)


def given(data: str | Path, root: str | Path | None) -> Origin:
    """What somebody gave to be trained on, such that it is found from anywhere."""
    if locate.set_name(data) is None:
        return Origin(Path(data).absolute())
    return Origin(Path(data), (registry.default_root() if root is None else Path(root)).absolute())


def remember(checksum: str, origin: Origin) -> None:
    """Keep it for later; where that is not possible, nothing is lost but comfort."""
    content = {
        "root": str(origin.data),  # as older versions call it
        "sets": None if origin.sets is None else str(origin.sets),
        **{kind: {name: str(path.absolute()) for name, path in getattr(origin, kind).items()} for kind in _PATHS},
    }
    with suppress(OutputError, OSError, RuntimeError):  # RuntimeError: a user without a home
        write_atomic(_file(checksum), json.dumps(content, indent=1).encode())


def recall(checksum: str) -> Origin | None:
    """What was kept; None where there is nothing that can be read."""
    try:
        stored = json.loads(_file(checksum).read_bytes())
        paths = {kind: {n: Path(p) for n, p in stored.get(kind, {}).items()} for kind in _PATHS}
        sets = stored.get("sets")
        return Origin(Path(stored["root"]), None if sets is None else Path(sets), **paths)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def _file(checksum: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return Path(os.environ.get("BGAD_STATE") or base / "bgad") / "origins" / f"{checksum}.json"
