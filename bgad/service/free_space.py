"""Watches the free space of the disk, so that reviews and jobs can still be stored when images no longer are."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bgad.errors import OutputError

MIN_FREE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class FreeSpace:
    """The disk of a folder, and the free space below which it takes no more images and jobs."""

    folder: Path
    min_free_bytes: int = MIN_FREE_BYTES

    def free_bytes(self) -> int:
        """Return the free space."""
        return shutil.disk_usage(self.folder).free

    def problem(self) -> str:
        """Return what is wrong, or an empty string."""
        free = self.free_bytes()
        if free >= self.min_free_bytes:
            return ""
        return f"the disk is full: {free / 2**20:.0f} MiB are free, and {self.min_free_bytes / 2**20:.0f} are kept free"

    def check(self) -> None:
        """Raise OutputError if there is too little free space."""
        if problem := self.problem():
            raise OutputError(f"{problem}; free some space in {self.folder}")
