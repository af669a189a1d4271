"""Pseudo anomalies as in NSA: patches of another normal image, blended in by Poisson image editing.

The Poisson equation on a rectangle is solved exactly by sine transforms. They are written with numpy's FFT, because
scipy is not a dependency of training; a test compares them with scipy's.
"""

from __future__ import annotations

import cc3d
import numpy as np
import numpy.typing as npt

from bgad.io import images
from bgad.types import BoolArray, FloatArray

MAX_ATTEMPTS = 4  # draws of patches before the one with the largest change is taken
MAX_PATCHES = 4  # NSA's number
PATCH_SIDE_RANGE = (0.06, 0.4)  # side of a patch as a share of the object's extent, as in NSA
MIN_PATCH_PIXELS = 5  # a smaller patch has no interior to blend
SCALE_RANGE = (0.7, 1.3)  # by how much a patch is resized, as in NSA
MIN_PIXEL_CHANGE = 0.04  # mean difference over the channels from which a pixel counts as changed
MIN_REGION_SHARE = 2e-4  # share of the image below which a changed region is a speck
ROUNDING = 2 / 255  # a change below it is rounding, not a defect

Doubles = npt.NDArray[np.float64]
Box = tuple[int, int, int, int]  # top, left, height, width


def _sine_transform(values: Doubles, axis: int) -> Doubles:
    """Discrete sine transform of type I along an axis: the spectrum of the odd continuation."""
    x = np.moveaxis(values, axis, -1)
    zero = np.zeros_like(x[..., :1])
    odd = np.concatenate([zero, x, zero, -x[..., ::-1]], axis=-1)  # (..., 2 n + 2)
    spectrum: Doubles = -np.fft.rfft(odd).imag[..., 1 : x.shape[-1] + 1]
    return np.moveaxis(spectrum, -1, axis)


def solve_poisson(source: Doubles) -> Doubles:
    """Solve for the u, 0 on the rim of the rectangle, whose five-point Laplacian is `source`, (h, w, c); exact."""
    h, w = source.shape[:2]
    rows, columns = (2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1)) - 2 for n in (h, w))
    spectrum = _sine_transform(_sine_transform(source, 0), 1) / (rows[:, None] + columns)[..., None]
    return np.asarray(_sine_transform(_sine_transform(spectrum, 0), 1) / (4 * (h + 1) * (w + 1)))


def blend(target: FloatArray, patch: FloatArray, *, mixed: bool) -> FloatArray:
    """Blend `patch` into the rectangle `target`, (h, w, 3): the gradients of the patch, the rim of the target.

    `mixed` takes the steeper of the two gradients at each pixel, so that strong structures of the target stay.
    """
    ground, donor = target.astype(np.float64), patch.astype(np.float64)
    excess = []  # of the wanted gradients over those of the target
    for axis in (0, 1):
        present, wanted = np.diff(ground, axis=axis), np.diff(donor, axis=axis)
        difference = wanted - present
        excess.append(np.where(np.abs(present) > np.abs(wanted), 0, difference) if mixed else difference)
    divergence = np.diff(excess[0], axis=0)[:, 1:-1] + np.diff(excess[1], axis=1)[1:-1]  # (h - 2, w - 2, 3)
    ground[1:-1, 1:-1] += solve_poisson(divergence)
    return np.clip(ground, 0, 1).astype(np.float32)


def _sides(region: BoolArray, rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width of a patch from a truncated gamma distribution over the extent of the object."""
    sides = []
    for axis, length in enumerate(region.shape):
        along = np.flatnonzero(region.any(axis=1 - axis))
        share = min(PATCH_SIDE_RANGE[0] + rng.gamma(2, 0.1), PATCH_SIDE_RANGE[1])
        sides.append(min(max(MIN_PATCH_PIXELS, round(share * int(along[-1] - along[0] + 1))), length))
    return sides[0], sides[1]


def _box(region: BoolArray, sides: tuple[int, int], rng: np.random.Generator) -> Box:
    """Draw a box of that size inside the image, around a random pixel of the region."""
    centre = rng.choice(np.argwhere(region))
    top, left = (
        int(np.clip(at - rng.integers(side), 0, length - side))
        for at, side, length in zip(centre, sides, region.shape, strict=True)
    )
    return top, left, *sides


def _cut(image: FloatArray, box: Box) -> FloatArray:
    top, left, height, width = box
    return image[top : top + height, left : left + width]


def changed_region(before: FloatArray, after: FloatArray) -> BoolArray:
    """Mask of the changed pixels, without specks and pinholes."""
    mask = np.abs(after - before).mean(axis=2) > MIN_PIXEL_CHANGE
    smallest = max(4, round(MIN_REGION_SHARE * mask.size))
    for inside in (True, False):
        grains = cc3d.dust((mask == inside).astype(np.uint8), smallest, connectivity=8 if inside else 4)
        mask = (grains > 0) == inside
    return np.asarray(mask, bool)


def _patched(
    normal: FloatArray, other: FloatArray, region: BoolArray, source: BoolArray, rng: np.random.Generator
) -> tuple[FloatArray, str]:
    """Blend patches into a copy of `normal`; returns the image and the size of each patch."""
    image, steps = normal.copy(), []
    for number in range(MAX_PATCHES):
        if number and rng.random() < 0.5:
            continue
        sides = _sides(region, rng)
        scale = np.clip(rng.normal(1, 0.5), *SCALE_RANGE)
        height, width = (
            int(np.clip(round(side / scale), 2, length)) for side, length in zip(sides, source.shape, strict=True)
        )
        patch = images.fit(_cut(other, _box(source, (height, width), rng)), sides)
        target = _cut(image, _box(region, sides, rng))  # a view: writing to it changes the image
        mixed = bool(rng.integers(2))
        target[:] = blend(target, patch, mixed=mixed)
        steps.append(f"{sides[1]} x {sides[0]}{' mixed' if mixed else ''}")
    return image, ", ".join(steps)


def nsa(
    normal: FloatArray, other: FloatArray, region: BoolArray, source: BoolArray, rng: np.random.Generator
) -> tuple[FloatArray, BoolArray, str]:
    """Blend 1 to 4 patches of `other` into `normal`; returns the image, the mask of the change and a description.

    Patches come from the object of `other` (`source`) and lie on the object of `normal` (`region`).
    """
    attempts: list[tuple[tuple[bool, float], FloatArray, BoolArray, str]] = []
    while len(attempts) < MAX_ATTEMPTS and not any(on_object for (on_object, _), *_ in attempts):
        image, steps = _patched(normal, other, region, source, rng)
        change = np.abs(image - normal).mean(axis=2)
        mask = changed_region(normal, image)
        attempts.append(((bool((mask & region).any()), float(change.max())), image, mask, steps))
    (_, most), image, mask, steps = max(attempts, key=lambda attempt: attempt[0])
    if most < ROUNDING:  # flat images have no gradients to blend: change the brightness instead
        image, steps = normal.copy(), "brightness"
        target = _cut(image, _box(region, _sides(region, rng), rng))
        target[:] = np.clip(target + (-0.2 if target.mean() > 0.5 else 0.2), 0, 1)
        mask = changed_region(normal, image)
    change = np.abs(image - normal).mean(axis=2)
    if not mask.any():
        mask = change > change.max() / 2
    stray = (change > MIN_PIXEL_CHANGE) & ~mask
    image[stray] = normal[stray]
    return image, mask, steps
