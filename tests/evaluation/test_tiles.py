from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from bgad.data.sample_io import read
from bgad.evaluation.evaluate import evaluate
from bgad.inference.torch_engine import Detector
from tests.data.strips import tiled


def test_tiles_are_scored_and_measured_like_images(model: Path, tmp_path: Path) -> None:
    dataset = tiled(tmp_path)
    detector = Detector.load(model, "cpu")
    cell, section, rows = evaluate(detector, dataset)
    assert cell["images"] == {"normal": 5, "anomalous": 1}
    assert cell["metrics"]["pixel_auroc"] is not None
    assert sum(note.startswith("left out: ") for note in section.notes) == 3
    scores = {row["name"]: row["score"] for row in rows}
    for sample in dataset.samples[:6]:
        path = tmp_path / "tile.png"
        Image.fromarray(read(sample)).save(path)
        assert detector.score(path).score == pytest.approx(scores[sample.name], rel=1e-5, abs=1e-4)
