"""Images that several tests of pseudo anomalies share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bgad.config import PseudoConfig
from bgad.data.sample_io import ImageCache
from bgad.pseudo.generate import PseudoAnomaly
from bgad.training.training_set import PseudoSeries
from bgad.types import BoolArray, FloatArray, Sample

RED = np.array([1.0, 0.0, 0.0], np.float32)


def scene(height: int = 96, width: int = 96) -> tuple[FloatArray, BoolArray]:
    """A grey image with fine grain and a red blob, lopsided on purpose, exactly where the mask is."""
    grain = np.random.default_rng(5).uniform(0.4, 0.6, (height, width, 1))
    image = np.repeat(grain, 3, axis=2).astype(np.float32)
    mask = np.zeros((height, width), bool)
    mask[36:60, 30:44] = mask[50:60, 30:62] = True
    image[mask] = RED
    return image, mask


def red(image: FloatArray) -> BoolArray:
    return (image[..., 0] - image[..., 1]) > 0.5


def iou(a: BoolArray, b: BoolArray) -> float:
    return float((a & b).sum() / (a | b).sum())


def disc(size: int = 128, *, inside: float, outside: float) -> tuple[FloatArray, BoolArray]:
    rows, columns = np.mgrid[:size, :size]
    truth = (rows - size * 0.55) ** 2 + (columns - size * 0.45) ** 2 < (size * 0.25) ** 2
    grey = np.where(truth, inside, outside) + np.random.default_rng(0).normal(0, 0.02, (size, size))
    return np.repeat(np.clip(grey, 0, 1)[..., None], 3, axis=2).astype(np.float32), truth


def write(path: Path, image: FloatArray | BoolArray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255).astype(np.uint8)).save(path)
    return path


def reader(height: int, width: int) -> ImageCache:
    """A reader of images at this size, which need not be square here."""
    made = ImageCache(height)
    made.size = (height, width)
    return made


def write_samples(tmp_path: Path) -> tuple[list[Sample], list[Sample]]:
    normals = []
    for number, inside in enumerate((0.7, 0.8, 0.9)):
        path = write(tmp_path / f"train/good/{number}.png", disc(80, inside=inside, outside=0.1)[0])
        normals.append(Sample(path, f"train/good/{number}.png", 0))
    known = []
    for number in range(2):
        image, mask = scene(72 + number, 130)
        path = write(tmp_path / f"test/crack/{number}.png", image)
        marked = write(tmp_path / f"ground_truth/crack/{number}.png", mask)
        known.append(Sample(path, f"test/crack/{number}.png", 1, "crack", marked))
    return normals, known


def generate(
    normals: Sequence[Sample], known: Sequence[Sample], count: int, images: ImageCache, *, seed: int, **config: Any
) -> list[PseudoAnomaly]:
    """The first items of a series; `config` are keys of its recipe."""
    series = PseudoSeries(normals, known, images, PseudoConfig(**config), seed)
    return [series.make(index) for index in range(count)]
