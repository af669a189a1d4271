"""Pseudo anomalies as in DRAEM: a texture blended into a normal image where Perlin noise is high.

DRAEM takes its textures from a collection of photographs. Here a texture is another normal image, strongly augmented,
or a drawn pattern, so that no further data set is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bgad.types import BoolArray, FloatArray

MAX_ATTEMPTS = 6  # draws of mask and texture before the one that changes the image most is taken
NOISE_THRESHOLD = 0.5  # noise above it marks the anomaly, as in DRAEM
MAX_CELLS_LOG2 = 5  # at most 2^5 noise cells along a side: finer noise is grain, not a region
MIN_CELL_PIXELS = 6  # smaller noise cells are lost at the strides of the feature maps
OPACITY_RANGE = (0.1, 1.0)
MIN_CHANGE = 0.02  # mean change of the pixels inside the mask; a smaller one is hardly visible
MAX_GREY_SPREAD = 1e-3  # channels of a grey image differ by less

Change = Callable[[FloatArray, np.random.Generator], FloatArray]


def perlin(shape: tuple[int, int], cells: tuple[int, int], rng: np.random.Generator, angle: float = 0.0) -> FloatArray:
    """Perlin noise in -1..1, (H, W), with `cells` along each axis and the lattice rotated by `angle` radians."""
    h, w = shape
    rows, columns = np.mgrid[:h, :w].astype(np.float64)
    if angle:
        y, x = rows - h / 2, columns - w / 2
        rows, columns = np.cos(angle) * y - np.sin(angle) * x, np.sin(angle) * y + np.cos(angle) * x
    v, u = rows * cells[0] / h, columns * cells[1] / w  # in lattice units
    v, u = v - np.floor(v.min()), u - np.floor(u.min())  # the lattice begins at the edge of the image
    i, j = v.astype(np.int64), u.astype(np.int64)
    a = rng.uniform(0, 2 * np.pi, (int(i.max()) + 2, int(j.max()) + 2))  # direction of the gradient at each node
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
    """Draw the number of noise cells along each axis: a power of two, each equally likely."""
    most = [min(MAX_CELLS_LOG2, max(0, int(np.log2(side / MIN_CELL_PIXELS)))) for side in shape]
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
    """Cut the image into blocks and shuffle them, so that its object is no longer recognisable."""
    h, w = image.shape[:2]
    side = int(rng.choice((2, 4, 8)))
    height, width = -(-h // side), -(-w // side)
    padded = np.pad(image, ((0, side * height - h), (0, side * width - w), (0, 0)), mode="edge")
    blocks = padded.reshape(side, height, side, width, 3).swapaxes(1, 2).reshape(side * side, height, width, 3)
    mixed = blocks[rng.permutation(len(blocks))].reshape(side, side, height, width, 3).swapaxes(1, 2)
    return mixed.reshape(side * height, side * width, 3)[:h, :w]


def _pattern(shape: tuple[int, int], rng: np.random.Generator) -> tuple[FloatArray, str]:
    """Draw stripes, checks, clouds or grain between two random colours; returns the pattern and its name."""
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
    """Make a texture in 0..1: a drawn pattern, or `other` with shuffled blocks and `count` changes.

    Returns the texture and its description. A grey image gives a grey texture, because colour alone would give the
    pseudo anomaly away.
    """
    if drawn:
        image, description = _pattern((other.shape[0], other.shape[1]), rng)
    else:
        image, names = _shuffled(other, rng), rng.permutation(list(CHANGES))[:count].tolist()
        for name in names:
            image = np.clip(CHANGES[name](image, rng), 0, 1)
        description = ", ".join(["shuffle", *names])
    if np.ptp(other, axis=2).max() < MAX_GREY_SPREAD:
        image = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2)
    return image.astype(np.float32), description


def noise_mask(shape: tuple[int, int], rng: np.random.Generator) -> tuple[BoolArray, str]:
    """Mask of the pixels where noise of a random frequency and direction is high, never empty, and its description."""
    for _ in range(MAX_ATTEMPTS):
        cells = _cells(shape, rng)
        noise = perlin(shape, cells, rng, float(rng.uniform(-np.pi / 2, np.pi / 2)))
        mask = noise > NOISE_THRESHOLD
        if mask.any():
            break
    else:  # noise of few cells may stay below the threshold everywhere
        mask = noise >= np.quantile(noise, 0.95)
    return mask, f"noise {cells[0]} x {cells[1]}"


def draem(
    normal: FloatArray, other: FloatArray, rng: np.random.Generator, count: int = 3
) -> tuple[FloatArray, BoolArray, str]:
    """Blend a texture into `normal` where noise is high; returns the image, the mask and a description."""
    attempts: list[tuple[float, FloatArray, BoolArray, str]] = []
    while len(attempts) < MAX_ATTEMPTS and not any(change >= MIN_CHANGE for change, *_ in attempts):
        mask, noise = noise_mask((normal.shape[0], normal.shape[1]), rng)
        # The last attempt draws a pattern: no change makes a texture of a black image.
        drawn = rng.random() < 0.5 or len(attempts) == MAX_ATTEMPTS - 1
        cover, description = texture(other, rng, count, drawn=drawn)
        opacity = np.float32(rng.uniform(*OPACITY_RANGE))
        image = np.where(mask[..., None], (1 - opacity) * normal + opacity * cover, normal).clip(0, 1)
        change = float(np.abs(image - normal)[mask].mean())
        attempts.append((change, image, mask, f"{description}, {noise}, opacity {opacity:.1f}"))
    _, image, mask, steps = max(attempts, key=lambda attempt: attempt[0])
    return image, mask, steps
