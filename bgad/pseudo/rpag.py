"""Known anomaly + normal image -> pseudo anomaly (RPAG: augment, find the object, cut by mask, paste).

DRAEM's and NSA's ways, which need another normal instead of a known anomaly, are here for comparison.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import cc3d
import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms import InterpolationMode

from bgad.data.sample_io import read, read_mask
from bgad.errors import ConfigError, DataError
from bgad.io import images, render
from bgad.pseudo.draem import draem
from bgad.pseudo.nsa import nsa
from bgad.types import BoolArray, FloatArray, Sample

Transform = Callable[[FloatArray, BoolArray, np.random.Generator], tuple[FloatArray, BoolArray]]
Pseudo = tuple[FloatArray, BoolArray, str]  # image, mask, what was done
# normal image, donor, which part of the donor counts (its defect or its object), chance, number of transforms
PseudoMaker = Callable[[FloatArray, FloatArray, BoolArray, np.random.Generator, int], Pseudo]
Warp = Callable[[torch.Tensor, InterpolationMode, list[float]], torch.Tensor]

ATTEMPTS = 4  # draws of a subset before the geometric transforms are given up
MIN_SEPARATION = 0.5  # between-class share of the grey variance; even one Gaussian cut in two has 0.64
MAX_BORDER = 0.25  # share of the border that an object may take
OUTLINE = (230, 20, 90)


def _tensor(image: FloatArray) -> torch.Tensor:
    return torch.tensor(image).permute(2, 0, 1)  # (3, H, W)


def _array(image: torch.Tensor) -> FloatArray:
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy(), dtype=np.float32)  # (H, W, 3)


def _warp(image: FloatArray, mask: BoolArray, warp: Warp) -> tuple[FloatArray, BoolArray]:
    """Move image and mask alike; new ground takes the mean colour so that it bleeds no black into defects."""
    fill = image.mean(axis=(0, 1)).tolist()
    moved = warp(_tensor(image), InterpolationMode.BILINEAR, fill)
    moved_mask = warp(torch.tensor(mask, dtype=torch.float32)[None], InterpolationMode.NEAREST, [0.0])
    return _array(moved.clamp(0, 1)), moved_mask[0].numpy() > 0.5


def _away_from_one(rng: np.random.Generator, least: float, most: float) -> float:
    return 1 + float(rng.choice((-1, 1)) * rng.uniform(least, most))


def _flip(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    axis = int(rng.integers(2))
    return np.flip(image, axis).copy(), np.flip(mask, axis).copy()


def _transpose(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    return image.transpose(1, 0, 2).copy(), mask.T.copy()  # (W, H, 3), (W, H)


def _rotate(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    angle = float(rng.uniform(-180, 180))
    return _warp(image, mask, lambda x, mode, fill: F.rotate(x, angle, mode, expand=True, fill=fill))


def _translate(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    h, w = mask.shape
    dx, dy = (rng.uniform(-0.2, 0.2, 2) * (w, h)).tolist()
    return _warp(
        image,
        mask,
        lambda x, mode, fill: F.affine(x, 0.0, [dx, dy], 1.0, [0.0, 0.0], interpolation=mode, fill=fill),
    )


def _distortion(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    h, w = mask.shape
    if rng.random() < 0.5:
        corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], float)
        ends = (corners + rng.uniform(-0.15, 0.15, (4, 2)) * (w, h)).tolist()
        return _warp(image, mask, lambda x, mode, fill: F.perspective(x, corners.tolist(), ends, mode, fill))
    coarse = torch.tensor(rng.normal(0, rng.uniform(0.02, 0.06), (1, 2, 8, 8)), dtype=torch.float32)
    smooth = torch.nn.functional.interpolate(coarse, (h, w), mode="bicubic", align_corners=True)
    field = smooth.permute(0, 2, 3, 1)  # (1, H, W, 2), in half widths and half heights
    return _warp(image, mask, lambda x, mode, fill: F.elastic(x, field, mode, fill))


def _noise(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    # The same for the three channels: coloured grain in a grey picture would give the fake away.
    grain = rng.normal(0, rng.uniform(0.02, 0.08), (*mask.shape, 1))
    return np.clip(image + grain, 0, 1).astype(np.float32), mask


def _brightness(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    return _array(F.adjust_brightness(_tensor(image), _away_from_one(rng, 0.15, 0.4))), mask


def _sharpness(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    return _array(F.adjust_sharpness(_tensor(image), float(rng.uniform(1.5, 4)))), mask


def _blur(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    short = min(mask.shape)
    sigma = float(rng.uniform(0.5, 1.5)) * max(1, short / 256)
    radius = min(int(np.ceil(3 * sigma)), short - 1)
    size = 2 * radius + 1
    return _array(F.gaussian_blur(_tensor(image), [size, size], [sigma, sigma])), mask


TRANSFORMS: dict[str, Transform] = {
    "flip": _flip,
    "rotate": _rotate,
    "transpose": _transpose,
    "noise": _noise,
    "distortion": _distortion,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "translate": _translate,
    "blur": _blur,
}
PHOTOMETRIC = ("noise", "brightness", "sharpness", "blur")


def augment(
    image: FloatArray, mask: BoolArray, rng: np.random.Generator, count: int = 3
) -> tuple[FloatArray, BoolArray, tuple[str, ...]]:
    """Apply `count` different transforms in random order and tell which; the defect stays in the frame."""
    if not 0 <= count <= len(TRANSFORMS):
        raise ConfigError(f"{count} transforms asked for: choose 0 to {len(TRANSFORMS)}")
    for _ in range(ATTEMPTS):
        result = _apply(image, mask, rng, rng.permutation(list(TRANSFORMS))[:count].tolist())
        if result[1].any():
            return result
    return _apply(image, mask, rng, rng.permutation(PHOTOMETRIC)[:count].tolist())


def _apply(
    image: FloatArray, mask: BoolArray, rng: np.random.Generator, names: list[str]
) -> tuple[FloatArray, BoolArray, tuple[str, ...]]:
    for name in names:
        image, mask = TRANSFORMS[name](image, mask, rng)
    return image, mask, tuple(names)


def _otsu(grey: npt.NDArray[np.uint8]) -> tuple[int, float]:
    """The grey level that parts two classes best, and the share of the variance that lies between them."""
    levels = np.arange(256)
    share = np.bincount(grey.ravel(), minlength=256) / grey.size
    below = np.cumsum(share)
    moment = np.cumsum(share * levels)
    mean = moment[-1]
    weight = below * (1 - below)
    between = np.divide((mean * below - moment) ** 2, weight, out=np.zeros(256), where=weight > 1e-9)
    total = float((share * (levels - mean) ** 2).sum())
    best = int(between.argmax())
    return best, float(between[best]) / total if total > 0 else 0.0


def foreground(image: FloatArray) -> BoolArray:
    """Where the object is; everywhere if the picture shows a texture.

    The border is mostly background, which gives the polarity. In a texture, both grey classes reach the
    border as often as the inside, so there is no object to find.
    """
    grey = np.rint(image @ np.array([0.299, 0.587, 0.114]) * 255).astype(np.uint8)  # (H, W)
    level, separation = _otsu(grey)
    bright = grey > level
    edge = max(1, min(grey.shape) // 50)
    border = np.ones(grey.shape, bool)
    border[edge:-edge, edge:-edge] = False
    found = bright != (bright[border].mean() > 0.5)
    on_border = found[border].mean()
    everywhere = np.ones(grey.shape, bool)
    if separation < MIN_SEPARATION or on_border > min(MAX_BORDER, found.mean() / 2):
        return everywhere
    speck = max(2, grey.size // 1000)
    found = _without_specks(found, speck)
    found = ~_without_specks(~found, speck)
    return found if found.any() else everywhere


def _without_specks(mask: BoolArray, smallest: int) -> BoolArray:
    return np.asarray(cc3d.dust(mask.astype(np.uint8), smallest, connectivity=8), dtype=bool)


def cut(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    """The bounding box of the defect: all its regions, or one of them, larger ones more often."""
    regions = cc3d.connected_components(mask.astype(np.uint8), connectivity=8)
    if regions.max() > 1 and rng.random() < 0.5:
        mask = regions == rng.choice(regions[mask])
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return image[box], mask[box]


def paste(
    normal: FloatArray, patch: FloatArray, patch_mask: BoolArray, centre: tuple[int, int]
) -> tuple[FloatArray, BoolArray]:
    """Put the masked pixels of the patch around `centre` (row, column); what leaves the image is cut off.

    One pixel around them is blended from the defect's own edge, so that the seam itself is not the defect.
    """
    solid = np.pad(patch_mask, 1)  # (h + 2, w + 2)
    colour = np.where(solid[..., None], np.pad(patch, ((1, 1), (1, 1), (0, 0))), 0).astype(np.float32)
    shifts = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]  # roll wraps round, but only the padding
    near = np.sum([np.roll(solid, shift, (0, 1)) for shift in shifts], axis=0)[..., None]
    blend = np.sum([np.roll(colour, shift, (0, 1)) for shift in shifts], axis=0) / np.maximum(near, 1)
    colour = np.where(solid[..., None], colour, blend).astype(np.float32)
    alpha = np.where(solid[..., None], 1, near / 9).astype(np.float32)

    (h, w), (height, width) = solid.shape, normal.shape[:2]
    top, left = centre[0] - patch_mask.shape[0] // 2 - 1, centre[1] - patch_mask.shape[1] // 2 - 1
    y0, x0 = max(top, 0), max(left, 0)
    y1, x1 = max(min(top + h, height), y0), max(min(left + w, width), x0)
    here, there = np.s_[y0:y1, x0:x1], np.s_[y0 - top : y1 - top, x0 - left : x1 - left]
    image, mask = normal.copy(), np.zeros((height, width), bool)
    image[here] = normal[here] * (1 - alpha[there]) + colour[there] * alpha[there]
    mask[here] = solid[there]
    return image, mask


def rpag(
    normal: FloatArray, abnormal: FloatArray, mask: BoolArray, rng: np.random.Generator, count: int = 3
) -> tuple[FloatArray, BoolArray]:
    """Put the defect of `abnormal`, changed by `count` transforms, on the object of `normal`."""
    return _rpag(normal, abnormal, mask, rng, count)[:2]


def _rpag(
    normal: FloatArray, abnormal: FloatArray, mask: BoolArray, rng: np.random.Generator, count: int = 3
) -> Pseudo:
    size = (normal.shape[0], normal.shape[1])
    if abnormal.shape != normal.shape:
        abnormal, mask = images.fit(abnormal, size), _fit_mask(mask, size)
    changed, changed_mask, names = augment(abnormal, mask, rng, count)
    place = rng.choice(np.argwhere(foreground(normal)))
    patch, patch_mask = cut(changed, changed_mask, rng)
    # A defect pixel, not the empty middle of a bent defect, comes to lie on the place: so one always shows.
    middle = np.array(patch_mask.shape) // 2
    pixels = np.argwhere(patch_mask)
    anchor = pixels[((pixels - middle) ** 2).sum(axis=1).argmin()]
    row, column = (place + middle - anchor).tolist()
    return *paste(normal, patch, patch_mask, (row, column)), ", ".join(names) or "unchanged"


def _draem(normal: FloatArray, other: FloatArray, part: BoolArray, rng: np.random.Generator, count: int = 3) -> Pseudo:
    return draem(normal, other, rng, count)


def _nsa(normal: FloatArray, other: FloatArray, part: BoolArray, rng: np.random.Generator, count: int = 3) -> Pseudo:
    return nsa(normal, other, foreground(normal), part, rng)


@dataclass(frozen=True)
class Way:
    """How a pseudo anomaly is made, and whether the donor is a known anomaly with its mask or another normal."""

    make: PseudoMaker
    needs_known: bool


PSEUDO: dict[str, Way] = {"rpag": Way(_rpag, True), "draem": Way(_draem, False), "nsa": Way(_nsa, False)}


def can_make(method: str, known: Sequence[Sample]) -> bool:
    """Whether pseudo anomalies can be made with these known anomalies; "none" never makes any."""
    return method in PSEUDO and (not PSEUDO[method].needs_known or any(s.mask is not None for s in known))


def _fit_mask(mask: BoolArray, size: tuple[int, int]) -> BoolArray:
    """Scale a mask; a defect too small for the new grid keeps every pixel that it touches."""
    fitted = images.resize_mask(mask, size)
    if fitted.any() or not mask.any():
        return fitted
    touched = torch.nn.functional.adaptive_max_pool2d(torch.tensor(mask, dtype=torch.float32)[None], size)
    return touched[0].numpy() > 0


def pseudo_anomaly(
    index: int,
    normals: Sequence[Sample],
    known: Sequence[Sample],
    *,
    seed: int,
    size: tuple[int, int],
    method: str = "rpag",
    transforms: int = 3,
    bits: int | None = None,
) -> Pseudo:
    """Number `index` of an endless series fixed by the seed: any normal, and the known anomalies in turn.

    The ways that need no known anomalies take any other normal instead.
    """
    rng = np.random.default_rng([seed, index])
    at = int(rng.integers(len(normals)))
    good = normals[at]
    if PSEUDO[method].needs_known:
        donor = known[index % len(known)]
        source, part = images.fit(read(donor, bits), size), _defect(donor, size)
    else:
        donor = normals[(at + int(rng.integers(1, max(2, len(normals))))) % len(normals)]
        source = images.fit(read(donor, bits), size)
        part = foreground(source)
    normal = images.fit(read(good, bits), size)
    image, mask, steps = PSEUDO[method].make(normal, source, part, rng, transforms)
    return image, mask, f"{_short(donor)} on {_short(good)}: {steps}"


def _defect(sample: Sample, size: tuple[int, int]) -> BoolArray:
    marked = read_mask(sample)
    if marked is None:
        raise DataError(f"{sample.name} has no mask: pseudo anomalies are cut from anomalies with masks")
    mask = _fit_mask(marked, size)
    if not mask.any():
        raise DataError(f"{sample.mask} marks no pixel: mark the defect or drop {sample.name}")
    return mask


def _short(sample: Sample) -> str:
    return "/".join(sample.name.split("/")[-2:])


def generate(
    normals: Sequence[Sample],
    known: Sequence[Sample],
    count: int,
    *,
    seed: int,
    size: tuple[int, int],
    method: str = "rpag",
    transforms: int = 3,
    bits: int | None = None,
) -> Iterator[Pseudo]:
    """The first `count` pseudo anomalies of the series: image, mask and what was done."""
    if method not in PSEUDO:
        raise ConfigError(f"unknown way to make pseudo anomalies: {method}; choose from {', '.join(PSEUDO)}")
    if not normals:
        raise DataError("pseudo anomalies are made on normal images: give at least one")
    if PSEUDO[method].needs_known and not known:
        raise DataError(f"{method} cuts pseudo anomalies from known anomalies with masks: give at least one")
    return (
        pseudo_anomaly(index, normals, known, seed=seed, size=size, method=method, transforms=transforms, bits=bits)
        for index in range(count)
    )


def contact_sheet(tiles: Iterable[Pseudo], columns: int = 6) -> npt.NDArray[np.uint8]:
    """A page of pseudo anomalies, each with its mask outlined and a caption, for a look before training."""
    width, gap, line = 216, 12, 14
    font = ImageFont.load_default(size=11)
    cells: list[tuple[Image.Image, list[str]]] = []
    for image, mask, caption in tiles:
        size = (max(1, round(width * mask.shape[0] / mask.shape[1])), width)
        drawn = render.outline(images.fit(image, size), _fit_mask(mask, size), OUTLINE)
        cells.append((Image.fromarray(drawn), textwrap.wrap(caption, 36)))
    if not cells:
        raise DataError("a contact sheet needs at least one pseudo anomaly: ask for one or more")
    columns = min(columns, len(cells))
    rows = -(-len(cells) // columns)
    cell_height = max(picture.height + gap // 2 + line * len(lines) for picture, lines in cells)
    extent = (gap + columns * (width + gap), gap + rows * (cell_height + gap))
    page = Image.new("RGB", extent, (246, 246, 244))
    draw = ImageDraw.Draw(page)
    for index, (picture, lines) in enumerate(cells):
        x, y = gap + index % columns * (width + gap), gap + index // columns * (cell_height + gap)
        page.paste(picture, (x, y))
        for number, text in enumerate(lines):
            draw.text((x, y + picture.height + gap // 2 + number * line), text, fill=(40, 40, 40), font=font)
    return np.asarray(page)
