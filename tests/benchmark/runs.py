"""Small data sets and runs for the tests of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgad.benchmark.paper_tables import Matrix, PaperTable, methods
from bgad.benchmark.plan import Outcome
from bgad.benchmark.runner import BenchmarkOptions, run
from bgad.config import METHODS, Config, from_dict, preset_for
from tests.conftest import save

SIZE = 48
CLASSES = {"cable": ("bent_wire", "cable_swap", "cut_outer_insulation"), "carpet": ("color", "hole", "thread")}
SHORT: dict[str, dict[str, Any]] = {  # of both families of methods
    "backbone": {"name": "lite0", "size": 64},
    "train": {"steps": 2, "push_steps": 1, "images_per_step": 4, "positions_per_image": [4, 4, 4]},
    "pseudo": {"count": 2},
}
SMALL_FLOW: dict[str, dict[str, Any]] = {"flow": {"blocks": 1, "hidden_ratio": 0.5}}  # the paper's flow is fixed


def options(*settings: dict[str, dict[str, Any]]) -> list[str]:
    """Return a recipe as options of a command."""
    keys = [f"{part}.{key}={json.dumps(value)}" for parts in settings for part, values in parts.items()
            for key, value in values.items()]  # fmt: skip
    return ["--device", "cpu", *(word for key in keys for word in ("--set", key))]


PRINTED_TINY, TINY = options(SHORT), options(SHORT, SMALL_FLOW)


def tiny(method: str, **values: Any) -> Config:
    """Return a recipe of any method that trains in a second."""
    small = SHORT if METHODS[method].is_printed else SHORT | SMALL_FLOW
    if METHODS[method].level == "distance":
        small = SHORT | {"train": SHORT["train"] | {"steps": 0}, "distance": {"bank_size": 64}}
    return from_dict(values, from_dict(small, preset_for(method, None)))


CONFIG = tiny("bgad-plus")


def category(root: Path, classes: tuple[str, ...], seed: int, good: str = "good", width: int = SIZE) -> None:
    """Write a category in the MVTec layout: noise, with a dark square as defect."""
    rng = np.random.default_rng(seed)
    for folder, count in ((f"train/{good}", 8), (f"test/{good}", 4), *((f"test/{c}", 3) for c in classes)):
        for i in range(count):
            image = rng.integers(90, 140, (SIZE, width, 3), dtype=np.uint8)
            if not folder.endswith(good):
                y, x = rng.integers(4, (36, width - 12))
                image[y : y + 8, x : x + 8] -= 40
                mask = np.zeros((SIZE, width), np.uint8)
                mask[y : y + 8, x : x + 8] = 255
                save(root / "ground_truth" / folder[5:] / f"{i}_mask.png", mask)
            save(root / folder / f"{i}.png", image)


def results(out: Path) -> dict[str, Any]:
    """Return results.json, which must not hold NaN or infinity."""
    stored: dict[str, Any] = json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)
    return stored


def timeless(out: Path) -> dict[str, Any]:
    """Return results.json without times and measured memory."""
    stored = results(out)
    for cell in stored["cells"]:
        assert set(cell.pop("seconds")) == {"train", "score", "features"}
        assert set(cell.pop("cost")) == {"image_ms", "model_mb", "fit_mb"}
    return stored


def fast(
    out: Path,
    root: Path,
    *columns: str,
    protocol: str = "one-class",
    recipe: dict[str, Any] | None = None,
    **options: Any,
) -> list[Outcome]:
    """Run one category with one seed and few steps; `recipe` changes that of every method."""
    matrix = Matrix({"mvtec": ("carpet",)}, protocol, methods(*columns), known=(2,), seeds=1)
    chosen = BenchmarkOptions(root=root, device="cpu", **options)
    configs = {method: tiny(method, **(recipe or {})) for method in columns}
    return run(PaperTable("tiny", (matrix,)), out, configs=configs, options=chosen)
