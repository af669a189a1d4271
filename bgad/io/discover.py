"""Finding images: folders are walked and glob patterns expanded, in natural order, each image once."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bgad.errors import DataError, cause

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_UNSUPPORTED = "arw avif cr2 cr3 dcm dib dng exr gif heic heif hif j2k jfif jp2 jpe jxl nef pbm pgm pnm ppm psd raw tga"
UNSUPPORTED_SUFFIXES = frozenset(f".{name}" for name in _UNSUPPORTED.split())  # images that cannot be read


def natural_key(path: Path) -> tuple[list[str | int], str]:
    """Return the sort key that puts img2 before img10."""
    text = path.as_posix()
    parts = re.split(r"(\d+)", text.casefold())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], text


def walk(folder: Path, unsupported: Counter[str] | None = None) -> list[Path]:
    """Return every image below a folder in natural order; hidden names are skipped and no folder is entered twice.

    `unsupported` counts broken links and images of formats that cannot be read.
    """
    images = []
    for path in (path for sub in _folders(folder) for path in _children(sub)):
        if _is_image(path):
            images.append(path)
        elif unsupported is not None:
            _count_unsupported(path, unsupported)
    return sorted(images, key=natural_key)


def describe_unsupported(unsupported: Counter[str]) -> str:
    """Format what `walk` counted for a message.

    >>> describe_unsupported(Counter({".heic": 4, "broken link": 1, ".gif": 2}))
    '2 .gif, 4 .heic, 1 broken link'
    """
    return ", ".join(
        f"{count} {kind}{'s' if kind[0] != '.' and count > 1 else ''}" for kind, count in sorted(unsupported.items())
    )


def expand(paths: Sequence[str | Path], *, missing_ok: bool = False) -> list[Path]:
    """Expand files, folders and glob patterns (with **) to a list of images, each once, in the order given.

    With `missing_ok` a file that does not exist stays in the list, so that its reader reports it. One warning counts
    the images in folders and patterns whose format cannot be read.
    """
    images: dict[Path, Path] = {}
    unsupported: Counter[str] = Counter()
    for given in paths:
        matches = _matches(given, unsupported, missing_ok=missing_ok)
        if not matches:
            others = f"; {describe_unsupported(unsupported)} not used" if unsupported else ""
            raise DataError(f"{given}: no image found ({', '.join(sorted(IMAGE_SUFFIXES))}){others}")
        for path in matches:
            images.setdefault(Path(os.path.realpath(path)), path)  # realpath, unlike resolve, accepts a circle of links
    if unsupported:
        logger.warning(f"{describe_unsupported(unsupported)} not used")
    return list(images.values())


def _matches(given: str | Path, unsupported: Counter[str], *, missing_ok: bool) -> list[Path]:
    """Return the images that one argument names."""
    path = Path(given)
    if path.is_dir():
        return walk(path, unsupported)
    if path.exists():
        return [path]
    if glob.has_magic(str(given)):
        images = []
        for match in sorted(_glob(path.as_posix()), key=natural_key):
            if match.is_dir():
                images += walk(match, unsupported)
            elif _is_image(match):
                images.append(match)
            else:
                _count_unsupported(match, unsupported)
        return images
    if missing_ok:
        return [path]
    raise DataError(f"{given}: no such file or folder")


def _count_unsupported(path: Path, unsupported: Counter[str]) -> None:
    if path.suffix.lower() in UNSUPPORTED_SUFFIXES and path.is_file():
        unsupported[path.suffix.lower()] += 1
    elif path.is_symlink() and not path.exists():
        unsupported["broken link"] += 1


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()


def _children(folder: Path) -> Iterable[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {cause(error)}") from error


def _folders(top: Path) -> Iterator[Path]:
    """Yield a folder and all below it; links come last and never lead to a visited folder or one above the top."""
    visited = set(top.resolve().parents)
    folders, links = [top], deque[Path]()
    while folders or links:
        folder = folders.pop() if folders else links.popleft()
        if folder.resolve() in visited:
            continue
        visited.add(folder.resolve())
        yield folder
        for path in sorted(_children(folder), key=natural_key):
            if path.is_dir():
                (links if path.is_symlink() else folders).append(path)


def _glob(pattern: str) -> Iterator[Path]:
    """Expand a pattern as glob.glob does with recursion, but let ** enter each folder once, however links are laid."""
    if pattern.endswith("**"):
        pattern += "/*"
    recursive = re.search(r"(?:^|(?<=/))\*\*/", pattern)
    if not recursive:
        yield from map(Path, glob.glob(pattern))  # noqa: PTH207 - the pattern may be absolute
        return
    head, tail = pattern[: recursive.start()], pattern[recursive.end() :]
    for top in glob.glob(head) if head else [os.curdir]:  # noqa: PTH207
        for folder in _folders(Path(top)) if Path(top).is_dir() else ():
            matches = _glob(f"{glob.escape(folder.as_posix())}/{tail}")
            yield from (path for path in matches if not (path.is_symlink() and path.is_dir()))
