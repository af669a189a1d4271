"""DRAEM's way to a pseudo anomaly: a texture laid over a normal image where gradient noise is high.

DRAEM takes its textures from a collection of photographs. Here they are made of what is at hand: another
normal image, changed beyond recognition, or a drawn pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bgad.types import BoolArray, FloatArray

ATTEMPTS = 6  # draws of mask and texture before the best of them is taken
LEVEL = 0.5  # noise above it is the anomaly
FINEST = 5  # at most 2^5 cells along a side,
CELL = 6  # and none smaller than this many pixels
OPACITY = (0.1, 1.0)
MIN_CHANGE = 0.02  # mean change inside the mask; less can hardly be seen
GREY = 1e-3  # channels that differ by less show no colour

Change = Callable[[FloatArray, np.random.Generator], FloatArray]


def perlin(shape: tuple[int, int], cells: tuple[int, int], rng: np.random.Generator, angle: float = 0.0) -> FloatArray:
    """Gradient noise in -1..1, (H, W): `cells` along each axis, the lattice turned by `angle` (radians)."""
    h, w = shape
    rows, columns = np.mgrid[:h, :w].astype(np.float64)
    if angle:
        y, x = rows - h / 2, columns - w / 2
        rows, columns = np.cos(angle) * y - np.sin(angle) * x, np.sin(angle) * y + np.cos(angle) * x
    v, u = rows * cells[0] / h, columns * cells[1] / w  # in lattice units
    v, u = v - np.floor(v.min()), u - np.floor(u.min())  # the lattice begins where the picture does
    i, j = v.astype(np.int64), u.astype(np.int64)
    a = rng.uniform(0, 2 * np.pi, (int(i.max()) + 2, int(j.max()) + 2))  # the gradient at each node is a direction
    gradient_v, gradient_u = np.sin(a), np.cos(a)
    fv, fu = v - i, u - j
    corner = {
        (p, q): gradient_v[i + p, j + q] * (fv - p) + gradient_u[i + p, j + q] * (fu - q)
        for p in (0, 1)
        for q in (0, 1)
    }
    sv, su = (t * t * t * (t * (6 * t - 15) + 10) for t in (fv, fu))
    upper = corner[0, 0] + su * (corner[0, 1] - corner[0, 0])
    lower = corner[1, 0] + su * (corner[1, 1] - corner[1, 0])
    return np.asarray(np.sqrt(2) * (upper + sv * (lower - upper)), np.float32)


def _cells(shape: tuple[int, int], rng: np.random.Generator) -> tuple[int, int]:
    """A power of two for each axis, each as likely."""
    most = [min(FINEST, max(0, int(np.log2(side / CELL)))) for side in shape]
    return 2 ** int(rng.integers(most[0] + 1)), 2 ** int(rng.integers(most[1] + 1))


def _gamma(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    power = rng.uniform(0.3, 0.6) if rng.random() < 0.5 else rng.uniform(1.7, 3.0)
    return np.asarray(image**power, np.float32)


def _jitter(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    return np.asarray(image * rng.uniform(0.5, 1.6, 3) + rng.uniform(-0.25, 0.25, 3), np.float32)


def _solarise(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    return np.where(image > rng.uniform(0.1, 0.5), 1 - image, image)


def _posterise(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    steps = int(rng.integers(1, 4))
    return np.asarray(np.rint(image * steps) / steps, np.float32)


def _invert(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    return 1 - image


def _equalise(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    grey = np.rint(image * 255).astype(np.uint8)
    curve = np.cumsum(np.bincount(grey.ravel(), minlength=256)) / grey.size
    return np.asarray(curve[grey], np.float32)


def _turn(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    turned = np.rot90(image, 2 * int(rng.integers(2)))
    return np.flip(turned, int(rng.integers(2)))


CHANGES: dict[str, Change] = {
    "gamma": _gamma,
    "jitter": _jitter,
    "solarise": _solarise,
    "posterise": _posterise,
    "invert": _invert,
    "equalise": _equalise,
    "turn": _turn,
}


def _shuffled(image: FloatArray, rng: np.random.Generator) -> FloatArray:
    """The picture cut into a few blocks in another order, so that its object is no longer there."""
    h, w = image.shape[:2]
    side = int(rng.choice((2, 4, 8)))
    height, width = -(-h // side), -(-w // side)
    whole = np.pad(image, ((0, side * height - h), (0, side * width - w), (0, 0)), mode="edge")
    blocks = whole.reshape(side, height, side, width, 3).swapaxes(1, 2).reshape(side * side, height, width, 3)
    mixed = blocks[rng.permutation(len(blocks))].reshape(side, side, height, width, 3).swapaxes(1, 2)
    return mixed.reshape(side * height, side * width, 3)[:h, :w]


def _pattern(shape: tuple[int, int], rng: np.random.Generator) -> tuple[FloatArray, str]:
    """Stripes, checks, cloud or grain between two colours."""
    h, w = shape
    name = str(rng.choice(("stripes", "checks", "cloud", "grain")))
    if name == "cloud":
        octaves = [perlin(shape, (2**k, 2**k), rng) / 2**k for k in range(1, 5)]
        ink = np.clip(0.5 + np.sum(octaves, axis=0), 0, 1)
    elif name == "grain":
        ink = rng.uniform(0, 1, shape)
    else:
        rows, columns = np.mgrid[:h, :w]
        angle, length = rng.uniform(0, np.pi), rng.uniform(4, max(6, min(shape) / 4))
        across = np.sin(2 * np.pi * (np.cos(angle) * rows + np.sin(angle) * columns) / length)
        along = np.sin(2 * np.pi * (np.sin(angle) * rows - np.cos(angle) * columns) / length)
        ink = (across + 1) / 2 if name == "stripes" else across * along > 0
    dark, light = rng.uniform(0, 0.5, 3), rng.uniform(0.5, 1, 3)
    return (dark + (light - dark) * np.asarray(ink, np.float32)[..., None]).astype(np.float32), name


def texture(other: FloatArray, rng: np.random.Generator, count: int, *, drawn: bool) -> tuple[FloatArray, str]:
    """A texture in 0..1 and what it is: a drawn pattern, or `other` with its blocks shuffled and `count` changes.

    A grey picture gives grey textures: colour alone would give the fake away.
    """
    if drawn:
        image, what = _pattern((other.shape[0], other.shape[1]), rng)
    else:
        image, names = _shuffled(other, rng), rng.permutation(list(CHANGES))[:count].tolist()
        for name in names:
            image = np.clip(CHANGES[name](image, rng), 0, 1)
        what = ", ".join(["shuffle", *names])
    if np.ptp(other, axis=2).max() < GREY:
        image = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2)
    return image.astype(np.float32), what


def noise_mask(shape: tuple[int, int], rng: np.random.Generator) -> tuple[BoolArray, str]:
    """Where noise of a random frequency and direction is high; never empty."""
    for _ in range(ATTEMPTS):
        cells = _cells(shape, rng)
        noise = perlin(shape, cells, rng, float(rng.uniform(-np.pi / 2, np.pi / 2)))
        mask = noise > LEVEL
        if mask.any():
            break
    else:  # broad noise may have no high place
        mask = noise >= np.quantile(noise, 0.95)
    return mask, f"noise {cells[0]} x {cells[1]}"


def draem(
    normal: FloatArray, other: FloatArray, rng: np.random.Generator, count: int = 3
) -> tuple[FloatArray, BoolArray, str]:
    """`normal` with a texture over it where noise is high, the mask of it, and what was done."""
    tries: list[tuple[float, FloatArray, BoolArray, str]] = []
    while len(tries) < ATTEMPTS and not any(change >= MIN_CHANGE for change, *_ in tries):
        mask, shape = noise_mask((normal.shape[0], normal.shape[1]), rng)
        drawn = rng.random() < 0.5 or len(tries) == ATTEMPTS - 1  # of black pictures some changes make nothing
        cover, what = texture(other, rng, count, drawn=drawn)
        opacity = np.float32(rng.uniform(*OPACITY))
        image = np.where(mask[..., None], (1 - opacity) * normal + opacity * cover, normal).clip(0, 1)
        change = float(np.abs(image - normal)[mask].mean())
        tries.append((change, image, mask, f"{what}, {shape}, opacity {opacity:.1f}"))
    _, image, mask, steps = max(tries, key=lambda found: found[0])
    return image, mask, steps
