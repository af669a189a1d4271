"""The user's state folder: notes that save time or typing and that nothing depends on."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """Return $BGAD_STATE, else bgad in $XDG_STATE_HOME or in ~/.local/state; RuntimeError for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return Path(os.environ.get("BGAD_STATE") or base / "bgad")
