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

from bgad.errors import OutputError
from bgad.outputs import write_whole


@dataclass(frozen=True)
class Origin:
    """The data set, and pictures and masks that were taught later, by their names in the split."""

    root: Path
    taught: dict[str, Path] = field(default_factory=dict)
    masks: dict[str, Path] = field(default_factory=dict)


def remember(checksum: str, origin: Origin) -> None:
    """Keep it for later; where that is not possible, nothing is lost but comfort."""
    content = {
        "root": str(origin.root.absolute()),
        "taught": {name: str(path.absolute()) for name, path in origin.taught.items()},
        "masks": {name: str(path.absolute()) for name, path in origin.masks.items()},
    }
    with suppress(OutputError, OSError, RuntimeError):  # RuntimeError: a user without a home
        write_whole(_file(checksum), json.dumps(content, indent=1).encode())


def recall(checksum: str) -> Origin | None:
    """What was kept; None where there is nothing that can be read."""
    try:
        stored = json.loads(_file(checksum).read_bytes())
        taught, masks = ({n: Path(p) for n, p in stored[key].items()} for key in ("taught", "masks"))
        return Origin(Path(stored["root"]), taught, masks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def _file(checksum: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return Path(os.environ.get("BGAD_STATE") or base / "bgad") / "origins" / f"{checksum}.json"
