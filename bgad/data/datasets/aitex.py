"""Reads AITEX: strips of fabric, 4096 x 256 pixels, cut into square tiles as in the literature, without new files."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from bgad.data.datasets.readers import walk
from bgad.data.layouts import Dataset
from bgad.data.sample_io import read_mask_file
from bgad.errors import BgadError, abbreviate
from bgad.types import GOOD, Box, Sample

TILE = 256
NORMAL, ANOMALOUS, MASKS = "NODefect_images", "Defect_images", "Mask_images"
CLASSES = {
    "002": "Broken_end",
    "006": "Broken_yarn",
    "010": "Broken_pick",
    "016": "Weft_curling",
    "019": "Fuzzyball",
    "022": "Cut_selvage",
    "023": "Crease",
    "025": "Warp_ball",
    "027": "Knots",
    "029": "Contamination",
    "030": "Nep",
    "036": "Weft_crack",
}
_STRIP = re.compile(r"\d+_(\d{3})_\d+")  # number of the image, of the defect, of the fabric
_MASK = re.compile(r"(.+)_mask\d*")


def is_home(folder: Path) -> bool:
    """Tell whether a folder holds the unpacked download."""
    return (folder / ANOMALOUS).is_dir() or (folder / NORMAL).is_dir()


def count(home: Path) -> tuple[int, int]:
    """Count the normal and the anomalous strips, without decoding them."""
    return len(walk(home / NORMAL)), len(walk(home / ANOMALOUS))


def read(home: Path) -> Dataset:
    """Read the tiles: normal ones come from defect-free strips only, anomalous ones are those with a marked pixel."""
    notes: list[str] = []
    samples: list[Sample] = []
    for path in walk(home / NORMAL):
        boxes = _tiles(path, notes)
        samples += [Sample(path, _name(home, path, i), 0, GOOD, box=box) for i, box in enumerate(boxes)]
    masks: dict[str, list[Path]] = {}
    unknown_names = []
    for path in walk(home / MASKS):
        named = _MASK.fullmatch(path.stem)
        if named:
            masks.setdefault(named[1], []).append(path)
        else:
            unknown_names.append(path.name)
    strips = walk(home / ANOMALOUS)
    for path in strips:
        code = _STRIP.fullmatch(path.stem)
        if code is None:
            unknown_names.append(path.name)
        else:
            samples += _anomalous(home, path, code[1], masks.get(path.stem, []), notes)
    unmasked = [path.name for path in strips if path.stem not in masks and path.name not in unknown_names]
    orphans = [paths[0].name for stem, paths in masks.items() if stem not in {path.stem for path in strips}]
    unknown_codes = sorted({s.defect for s in samples if s.label} - set(CLASSES.values()))
    return Dataset(
        "aitex",
        home,
        samples,
        "public",
        notes
        + ([f"not used, a strip without a mask: {abbreviate(unmasked)}"] if unmasked else [])
        + ([f"mask without an image: {abbreviate(orphans)}"] if orphans else [])
        + ([f"not used, the name does not state a defect: {abbreviate(unknown_names)}"] if unknown_names else [])
        + ([f"unknown defect codes, used as classes: {abbreviate(unknown_codes)}"] if unknown_codes else []),
    )


def _anomalous(home: Path, path: Path, code: str, masks: list[Path], notes: list[str]) -> list[Sample]:
    """Return the tiles of an anomalous strip on which one of its masks marks a pixel."""
    boxes = _tiles(path, notes) if masks else []
    if not boxes:
        return []
    try:
        mask_pixels = [read_mask_file(mask) for mask in masks]
    except BgadError as error:
        notes.append(f"not used, the mask of {path.name} is broken: {error}")
        return []
    right, bottom = boxes[-1][2:]
    if any(mask.shape[0] < bottom or mask.shape[1] < right for mask in mask_pixels):
        notes.append(f"not used, the mask is smaller than the strip: {path.name}")
        return []
    defect = CLASSES.get(code, code)
    return [
        Sample(path, _name(home, path, i), 1, defect, masks[0], box=box, more_masks=tuple(masks[1:]))
        for i, box in enumerate(boxes)
        if any(mask[box[1] : box[3], box[0] : box[2]].any() for mask in mask_pixels)
    ]


def _tiles(path: Path, notes: list[str]) -> list[Box]:
    """Return the boxes of the square tiles of a strip, from the left; a narrower rest is left out."""
    try:
        with Image.open(path) as image:  # reads the header only
            width, height = image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        notes.append(f"not used, {path.name} is not a readable image: {type(error).__name__}")
        return []
    if width < TILE or height < TILE:
        notes.append(f"not used, {path.name} is {width}x{height}: smaller than a tile of {TILE}x{TILE}")
        return []
    return [(left, 0, left + TILE, TILE) for left in range(0, width - TILE + 1, TILE)]


def _name(home: Path, path: Path, tile: int) -> str:
    return f"{path.relative_to(home).as_posix()}#{tile:02}"
