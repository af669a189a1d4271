"""Writes small image files for the tests of layouts and manifests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image


def make(root: Path, *names: str) -> Path:
    """Write small images, each with its own pixels."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 4), np.uint8)).save(path)
    return root
