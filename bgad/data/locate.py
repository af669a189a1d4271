"""Resolves what users call their data: the path of a folder or manifest, or the name of a public data set."""

from __future__ import annotations

from pathlib import Path

from bgad.data import layouts, manifest
from bgad.data.datasets import registry
from bgad.data.layouts import Dataset
from bgad.errors import DataError


def load(data: str | Path, root: str | Path | None = None, *, need_normals: bool = True) -> Dataset:
    """Load the data at a path; if no such path exists, load NAME or NAME/CATEGORY of the registry below `root`."""
    path = Path(data)
    name, category = _parts(path)
    if path.exists():
        try:
            return layouts.load(path, need_normals=need_normals)
        except DataError as error:
            if name not in registry.DATASETS:
                raise
            raise DataError(f"{error}; {path} is also the name of a data set: for that, run elsewhere") from error
    if not name:
        raise DataError(f"{path}: no such folder or manifest, and no name of a data set (`bgad datasets` lists them)")
    try:
        return registry.load(name, category, root)
    except DataError as error:
        raise DataError(f"{path}: no such folder or manifest; as the name of a data set: {error}") from error


def set_name(data: str | Path) -> str | None:
    """Return the name of the public data set that `load` reads for `data`; None where it reads a path."""
    name, _ = _parts(Path(data))
    return name if name in registry.DATASETS and not Path(data).exists() else None


def model_folder(data: str | Path) -> Path:
    """Return the default model folder of a training: in the current directory, named like the data.

    >>> model_folder("mvtec/screw").name, model_folder("gear.v1").name, model_folder("parts.csv").name
    ('screw.bgad', 'gear.v1.bgad', 'parts.bgad')
    """
    path = Path(data).resolve()
    return Path(f"{path.stem if path.suffix.lower() in manifest.READERS else path.name}.bgad")


def _parts(path: Path) -> tuple[str, str]:
    """Return name and category of a data set; two empty texts where the path can be neither."""
    name, *rest = path.parts or ("",)
    return (name, "".join(rest)) if len(rest) < 2 and not path.is_absolute() and name != ".." else ("", "")
