"""Small data sets and runs for the tests of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bgad.benchmark.paper_tables import Matrix, PaperTable, methods
from bgad.benchmark.plan import Outcome
from bgad.benchmark.runner import BenchmarkOptions, run
from bgad.config import Config, from_dict

SIZE = 48
CLASSES = {"cable": ("bent_wire", "cable_swap", "cut_outer_insulation"), "carpet": ("color", "hole", "thread")}
SETTINGS = {
    "backbone.size": "64",
    "flow.blocks": "1",
    "flow.hidden_ratio": "0.5",
    "train.steps": "2",
    "train.push_steps": "1",
    "train.images_per_step": "4",
    "train.positions_per_image": "[4, 4, 4]",
    "pseudo.count": "2",
}
TINY = ["--device", "cpu", *(part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}"))]
CONFIG = from_dict(
    {
        "backbone": {"size": 64},
        "flow": {"blocks": 1, "hidden_ratio": 0.5},
        "train": {"steps": 2, "push_steps": 1, "images_per_step": 4, "positions_per_image": [4, 4, 4]},
        "pseudo": {"count": 2},
    }
)


def save(path: Path, pixels: Any) -> None:
    """Write an image and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def category(root: Path, classes: tuple[str, ...], seed: int, good: str = "good") -> None:
    """Write a category in the MVTec layout: noise, with a dark square as defect."""
    rng = np.random.default_rng(seed)
    for folder, count in ((f"train/{good}", 8), (f"test/{good}", 4), *((f"test/{c}", 3) for c in classes)):
        for i in range(count):
            image = rng.integers(90, 140, (SIZE, SIZE, 3), dtype=np.uint8)
            if not folder.endswith(good):
                y, x = rng.integers(4, 36, 2)
                image[y : y + 8, x : x + 8] -= 40
                mask = np.zeros((SIZE, SIZE), np.uint8)
                mask[y : y + 8, x : x + 8] = 255
                save(root / "ground_truth" / folder[5:] / f"{i}_mask.png", mask)
            save(root / folder / f"{i}.png", image)


def results(out: Path) -> dict[str, Any]:
    """Return results.json, which must not hold NaN or infinity."""
    stored: dict[str, Any] = json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)
    return stored


def timeless(out: Path) -> dict[str, Any]:
    """Return results.json without times."""
    stored = results(out)
    for cell in stored["cells"]:
        assert set(cell.pop("seconds")) == {"train", "score", "features"}
    return stored


def fast(
    out: Path, root: Path, *columns: str, protocol: str = "one-class", config: Config = CONFIG, **options: Any
) -> list[Outcome]:
    """Run one category with one seed and few steps."""
    matrix = Matrix({"mvtec": ("carpet",)}, protocol, methods(*columns), known=(2,), seeds=1)
    chosen = BenchmarkOptions(root=root, device="cpu", **options)
    return run(PaperTable("tiny", (matrix,)), out, config=config, options=chosen)
