"""AITEX: strips of fabric, 4096 x 256, cut into tiles as the literature does; no files are written."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from bgad.data.datasets.readers import walk
from bgad.data.layouts import Dataset, some
from bgad.errors import BgadError
from bgad.io import images
from bgad.types import GOOD, Sample

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

Box = tuple[int, int, int, int]


def is_home(folder: Path) -> bool:
    """Whether the download was unpacked here."""
    return (folder / ANOMALOUS).is_dir() or (folder / NORMAL).is_dir()


def count(home: Path) -> tuple[int, int]:
    """Defect-free and defective strips, without a look into them."""
    return len(walk(home / NORMAL)), len(walk(home / ANOMALOUS))


def read(home: Path) -> Dataset:
    """Normal tiles come from defect-free strips only, anomalous ones are those on which the mask marks something."""
    notes: list[str] = []
    samples: list[Sample] = []
    for path in walk(home / NORMAL):
        boxes = _tiles(path, notes)
        samples += [Sample(path, _name(home, path, i), 0, GOOD, box=box) for i, box in enumerate(boxes)]
    masks: dict[str, list[Path]] = {}
    strange = []
    for path in walk(home / MASKS):
        named = _MASK.fullmatch(path.stem)
        if named:
            masks.setdefault(named[1], []).append(path)
        else:
            strange.append(path.name)
    strips = walk(home / ANOMALOUS)
    for path in strips:
        code = _STRIP.fullmatch(path.stem)
        if code is None:
            strange.append(path.name)
        else:
            samples += _anomalous(home, path, code[1], masks.get(path.stem, []), notes)
    bare = [path.name for path in strips if path.stem not in masks and path.name not in strange]
    alone = [found[0].name for stem, found in masks.items() if stem not in {path.stem for path in strips}]
    unknown = sorted({s.defect for s in samples if s.label} - set(CLASSES.values()))
    return Dataset(
        "aitex",
        home,
        samples,
        "catalog",
        notes
        + ([f"not used, a strip without a mask: {some(bare)}"] if bare else [])
        + ([f"mask without an image: {some(alone)}"] if alone else [])
        + ([f"not used, the name tells no defect: {some(strange)}"] if strange else [])
        + ([f"unknown defect codes, used as classes: {some(unknown)}"] if unknown else []),
    )


def _anomalous(home: Path, path: Path, code: str, masks: list[Path], notes: list[str]) -> list[Sample]:
    boxes = _tiles(path, notes) if masks else []
    if not boxes:
        return []
    try:
        marked = [images.read_mask(mask) for mask in masks]
    except BgadError as error:
        notes.append(f"not used, the mask of {path.name} is broken: {error}")
        return []
    right, bottom = boxes[-1][2:]
    if any(mask.shape[0] < bottom or mask.shape[1] < right for mask in marked):
        notes.append(f"not used, the mask is smaller than the strip: {path.name}")
        return []
    defect = CLASSES.get(code, code)
    return [
        Sample(path, _name(home, path, i), 1, defect, masks[0], box=box, more_masks=tuple(masks[1:]))
        for i, box in enumerate(boxes)
        if any(mask[box[1] : box[3], box[0] : box[2]].any() for mask in marked)
    ]


def _tiles(path: Path, notes: list[str]) -> list[Box]:
    """The squares of a strip, from the left; a rest that is no whole square is left out."""
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
