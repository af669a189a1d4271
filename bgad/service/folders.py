"""Where the workbench keeps its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DATA = "data"  # beside the models: their data sets, as after `bgad demo`
WORKSPACE = ".workbench"  # beside the models: the store and all files of the service
MODEL_SUFFIX = ".bgad"


@dataclass(frozen=True)
class Folders:
    """The folder of the models, the folder of their data sets, and the service's own folder."""

    models: Path
    data: Path

    @classmethod
    def of(cls, models: Path, data: Path | None = None) -> Folders:
        """Return the folders for a folder of models; data sets are in its sub-folder `data` unless `data` is given."""
        return cls(models, data or models / DATA)

    @property
    def workspace(self) -> Path:
        """The service's own folder."""
        return self.models / WORKSPACE

    @property
    def jobs(self) -> Path:
        """Working folders of teaching jobs."""
        return self.workspace / "jobs"

    @property
    def versions(self) -> Path:
        """Model folders that teaching jobs made."""
        return self.workspace / "versions"

    @property
    def sqlite_address(self) -> str:
        """The address of the default store."""
        return f"sqlite:///{(self.workspace / 'store.sqlite').absolute()}"
