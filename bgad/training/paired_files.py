"""Pairs new images with files of a folder that belong to them: masks, or regions to ignore."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bgad.errors import DataError, abbreviate
from bgad.io import discover

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """What the files of a folder are."""

    suffix: str  # a file may be called as its image, or with this at the end of its name
    singular: str
    plural: str


MASK = Kind("_mask", "mask", "masks")
IGNORE = Kind("_ignore", "region to ignore", "regions to ignore")


@dataclass(frozen=True)
class ListedImage:
    """An image, and the paths without suffix at which its file may lie in the folder."""

    path: Path
    candidates: list[str]


@dataclass
class _Pairs:
    file_of: dict[Path, Path] = field(default_factory=dict)
    image_of: dict[Path, Path] = field(default_factory=dict)


def list_images(given: Sequence[str | Path]) -> list[ListedImage]:
    """Return the images of files, folders and patterns.

    The candidates of an image are its path inside the given folder, with the name of that folder and without.
    """
    folders = [Path(path) for path in given if Path(path).is_dir()]
    listed = []
    for path in discover.expand(given) if given else []:
        folder = next((folder for folder in folders if path.is_relative_to(folder)), path.parent)
        inner = path.relative_to(folder).with_suffix("")
        listed.append(ListedImage(path, [(folder.resolve().name / inner).as_posix(), inner.as_posix()]))
    return listed


def pair_files(listed: Sequence[ListedImage], folder: str | Path | None, kind: Kind) -> dict[Path, Path]:
    """Map each image to its file: the one with the same path in the folder, else the only one with the same name.

    DataError where two files fit one image, or one file fits two.
    """
    if folder is None:
        return {}
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{folder}: no such folder of {kind.plural}")
    files = discover.walk(root)
    by_path: dict[str, list[Path]] = {}
    by_name: dict[str, list[Path]] = {}
    for file in files:
        stem = file.relative_to(root).with_suffix("").as_posix()
        for name in {stem, stem.removesuffix(kind.suffix)}:
            by_path.setdefault(name, []).append(file)
            by_name.setdefault(name.rpartition("/")[2], []).append(file)
    pairs = _Pairs()
    _pair(listed, {image.path: image.candidates for image in listed}, by_path, kind, pairs)
    _pair(listed, {image.path: [image.path.stem] for image in listed}, by_name, kind, pairs)
    if alone := [file.relative_to(root.parent).as_posix() for file in files if file not in pairs.image_of]:
        logger.warning(f"{kind.singular} without an image: {abbreviate(alone)}")
    without = [str(image.path) for image in listed if image.path not in pairs.file_of]
    if kind is MASK and pairs.file_of and without:
        logger.warning(f"anomaly without a mask: {abbreviate(without)}")
    return pairs.file_of


def _pair(
    listed: Sequence[ListedImage],
    names: dict[Path, list[str]],
    files: dict[str, list[Path]],
    kind: Kind,
    pairs: _Pairs,
) -> None:
    """Pair the images that have no file yet with the files of their names that have no image from an earlier call."""
    taken = set(pairs.image_of)
    for image in listed:
        if image.path in pairs.file_of:
            continue
        fitting = next((files[name] for name in names[image.path] if name in files), [])
        fitting = [file for file in fitting if file not in taken]
        if len(fitting) > 1:
            both = f"{fitting[0]} or {fitting[1]}"
            raise DataError(f"{image.path}: which is its {kind.singular}, {both}? Keep one of them")
        for file in fitting:
            if file in pairs.image_of:
                both = f"{pairs.image_of[file]} and {image.path}"
                raise DataError(
                    f"{file}: is the {kind.singular} of both {both}; give each its own, in folders of their own"
                )
            pairs.file_of[image.path], pairs.image_of[file] = file, image.path
