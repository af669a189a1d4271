"""A data set of tiles that are cut from strips."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from bgad.data.layouts import Dataset
from bgad.types import GOOD, Sample
from tests.conftest import SIZE, draw_image


def tiled(root: Path) -> Dataset:
    """Write a normal strip and one with a defect in its middle tile, of three tiles each, and an unreadable file."""
    rng = np.random.default_rng(5)
    samples = []
    for name, defect in (("good", False), ("bad", True)):
        parts = [draw_image(rng, defect=defect and i == 1) for i in range(3)]
        path, mask = root / f"{name}.png", root / f"{name}_mask.png"
        Image.fromarray(np.concatenate([image for image, _ in parts], axis=1)).save(path)
        Image.fromarray(np.concatenate([where for _, where in parts], axis=1)).save(mask)
        for i in range(3):
            bad = defect and i == 1
            box = (i * SIZE, 0, (i + 1) * SIZE, SIZE)
            samples.append(
                Sample(path, f"{path.name}#{i}", int(bad), "blot" if bad else GOOD, mask if bad else None, box=box)
            )
    (root / "cut.png").write_bytes((root / "good.png").read_bytes()[:2000])
    samples += [Sample(root / "cut.png", f"cut.png#{i}", 0, box=(i, 0, i + 9, 9)) for i in range(3)]
    return Dataset("strips", root, samples, "public")
