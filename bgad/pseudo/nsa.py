"""NSA's way to a pseudo anomaly: patches of another normal image, blended in by Poisson image editing."""

from __future__ import annotations

import cc3d
import numpy as np
import numpy.typing as npt

from bgad.io import images
from bgad.types import BoolArray, FloatArray

ATTEMPTS = 4  # draws of patches before the largest change so far is taken
PATCHES = 4  # at most
SIDE = (0.06, 0.4)  # of a patch, as a share of the object's extent
LEAST = 5  # pixels
SCALE = (0.7, 1.3)
CHANGED = 0.04  # mean difference over the channels from which a pixel counts as changed
SMALLEST = 2e-4  # share of the picture from which a changed region counts
SEEN = 2 / 255  # a change below it is rounding

Doubles = npt.NDArray[np.float64]
Box = tuple[int, int, int, int]  # top, left, height, width


def _sine_transform(values: Doubles, axis: int) -> Doubles:
    """The discrete sine transform (type I) along an axis: the spectrum of the odd continuation."""
    x = np.moveaxis(values, axis, -1)
    zero = np.zeros_like(x[..., :1])
    odd = np.concatenate([zero, x, zero, -x[..., ::-1]], axis=-1)  # (..., 2 n + 2)
    spectrum: Doubles = -np.fft.rfft(odd).imag[..., 1 : x.shape[-1] + 1]
    return np.moveaxis(spectrum, -1, axis)


def solve_poisson(source: Doubles) -> Doubles:
    """The u with (five-point) Laplacian `source`, (h, w, c), that is 0 all around the rectangle; exact."""
    h, w = source.shape[:2]
    rows, columns = (2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1)) - 2 for n in (h, w))
    spectrum = _sine_transform(_sine_transform(source, 0), 1) / (rows[:, None] + columns)[..., None]
    return np.asarray(_sine_transform(_sine_transform(spectrum, 0), 1) / (4 * (h + 1) * (w + 1)))


def blend(target: FloatArray, patch: FloatArray, *, mixed: bool) -> FloatArray:
    """The rectangle `target`, (h, w, 3), with the gradients of `patch` inside and its own rim kept.

    Mixed: at each place the steeper of the two gradients, so that strong structures of the target stay.
    """
    ground, donor = target.astype(np.float64), patch.astype(np.float64)
    excess = []  # of the wanted gradients over the target's own
    for axis in (0, 1):
        own, wanted = np.diff(ground, axis=axis), np.diff(donor, axis=axis)
        excess.append(np.where(np.abs(own) > np.abs(wanted), 0, wanted - own) if mixed else wanted - own)
    divergence = np.diff(excess[0], axis=0)[:, 1:-1] + np.diff(excess[1], axis=1)[1:-1]  # (h - 2, w - 2, 3)
    ground[1:-1, 1:-1] += solve_poisson(divergence)
    return np.clip(ground, 0, 1).astype(np.float32)


def _sides(region: BoolArray, rng: np.random.Generator) -> tuple[int, int]:
    """Height and width of a patch: a truncated gamma distribution over the extent of the object."""
    sides = []
    for axis, length in enumerate(region.shape):
        along = np.flatnonzero(region.any(axis=1 - axis))
        share = min(SIDE[0] + rng.gamma(2, 0.1), SIDE[1])
        sides.append(min(max(LEAST, round(share * int(along[-1] - along[0] + 1))), length))
    return sides[0], sides[1]


def _box(region: BoolArray, sides: tuple[int, int], rng: np.random.Generator) -> Box:
    """A box of that size inside the picture, around a random place of the region."""
    place = rng.choice(np.argwhere(region))
    top, left = (
        int(np.clip(at - rng.integers(side), 0, length - side))
        for at, side, length in zip(place, sides, region.shape, strict=True)
    )
    return top, left, *sides


def _cut(image: FloatArray, box: Box) -> FloatArray:
    top, left, height, width = box
    return image[top : top + height, left : left + width]


def changed_region(before: FloatArray, after: FloatArray) -> BoolArray:
    """Where the picture really changed: regions of some size, their pinholes filled."""
    mask = np.abs(after - before).mean(axis=2) > CHANGED
    smallest = max(4, round(SMALLEST * mask.size))
    for inside in (True, False):
        grains = cc3d.dust((mask == inside).astype(np.uint8), smallest, connectivity=8 if inside else 4)
        mask = (grains > 0) == inside
    return np.asarray(mask, bool)


def _patched(
    normal: FloatArray, other: FloatArray, region: BoolArray, source: BoolArray, rng: np.random.Generator
) -> tuple[FloatArray, str]:
    image, steps = normal.copy(), []
    for number in range(PATCHES):
        if number and rng.random() < 0.5:
            continue
        sides = _sides(region, rng)
        scale = np.clip(rng.normal(1, 0.5), *SCALE)
        height, width = (
            int(np.clip(round(side / scale), 2, length)) for side, length in zip(sides, source.shape, strict=True)
        )
        patch = images.fit(_cut(other, _box(source, (height, width), rng)), sides)
        place = _cut(image, _box(region, sides, rng))
        mixed = bool(rng.integers(2))
        place[:] = blend(place, patch, mixed=mixed)
        steps.append(f"{sides[1]} x {sides[0]}{' mixed' if mixed else ''}")
    return image, ", ".join(steps)


def nsa(
    normal: FloatArray, other: FloatArray, region: BoolArray, source: BoolArray, rng: np.random.Generator
) -> tuple[FloatArray, BoolArray, str]:
    """`normal` with 1 to 4 patches of `other` blended in, the mask of what changed, and what was done.

    Patches are taken where the object of `other` is (`source`) and put where that of `normal` is (`region`).
    """
    tries: list[tuple[tuple[bool, float], FloatArray, BoolArray, str]] = []
    while len(tries) < ATTEMPTS and not any(on_object for (on_object, _), *_ in tries):
        image, steps = _patched(normal, other, region, source, rng)
        change = np.abs(image - normal).mean(axis=2)
        mask = changed_region(normal, image)
        tries.append(((bool((mask & region).any()), float(change.max())), image, mask, steps))
    (_, most), image, mask, steps = max(tries, key=lambda found: found[0])
    if most < SEEN:  # flat pictures have no gradients to blend
        image, steps = normal.copy(), "brightness"
        place = _cut(image, _box(region, _sides(region, rng), rng))
        place[:] = np.clip(place + (-0.2 if place.mean() > 0.5 else 0.2), 0, 1)
        mask = changed_region(normal, image)
    change = np.abs(image - normal).mean(axis=2)
    if not mask.any():
        mask = change > change.max() / 2
    stray = (change > CHANGED) & ~mask
    image[stray] = normal[stray]
    return image, mask, steps
