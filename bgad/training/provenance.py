"""Provenance: where the training images of a model are on this machine.

It is kept outside of the model, so that a model does not tell where it was made: one small file for each model in the
user's state folder ($BGAD_STATE, or bgad in $XDG_STATE_HOME), named by the checksum of the card. It only saves typing:
without it, `bgad update` asks for --data.
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
class Provenance:
    """The data set of a model, and the images that updates have added; the dictionaries go by names in the split."""

    data: Path  # a folder or a manifest; or the name of a public data set
    root: Path | None = None  # the folder of the public data sets; None: `data` is a path
    taught: dict[str, Path] = field(default_factory=dict)
    masks: dict[str, Path] = field(default_factory=dict)
    ignored: dict[str, Path] = field(default_factory=dict)  # regions to ignore

    def load(self) -> Dataset:
        """Load the data set; DataError where it does not exist any more."""
        if self.root is None:
            return locate.load(self.data)
        return registry.load(self.data.parts[0], "".join(self.data.parts[1:]), self.root)


def provenance_of(data: str | Path, root: str | Path | None) -> Provenance:
    """Return the provenance of a data set given by the user, independent of the working directory."""
    if locate.set_name(data) is None:
        return Provenance(Path(data).absolute())
    return Provenance(Path(data), (registry.default_root() if root is None else Path(root)).absolute())


def remember(checksum: str, provenance: Provenance) -> None:
    """Store the provenance of a model; without write access it is silently left out, as it is only a convenience."""
    content = {
        "data": str(provenance.data),
        "root": None if provenance.root is None else str(provenance.root),
        **{kind: {name: str(path.absolute()) for name, path in getattr(provenance, kind).items()} for kind in _PATHS},
    }
    with suppress(OutputError, OSError, RuntimeError):  # RuntimeError: a user without a home
        write_atomic(_file(checksum), json.dumps(content, indent=1).encode())


def recall(checksum: str) -> Provenance | None:
    """Return the stored provenance of a model; None where there is none that can be read."""
    try:
        stored = json.loads(_file(checksum).read_bytes())
        paths = {kind: {n: Path(p) for n, p in stored[kind].items()} for kind in _PATHS}
        root = stored["root"]
        return Provenance(Path(stored["data"]), None if root is None else Path(root), **paths)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def _file(checksum: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return Path(os.environ.get("BGAD_STATE") or base / "bgad") / "provenance" / f"{checksum}.json"
