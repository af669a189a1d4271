from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bgad.export.export import compare, synthetic_images
from bgad.export.onnx import to_onnx
from bgad.inference.base import Outputs
from bgad.inference.onnx_engine import Runtime
from bgad.inference.torch_engine import Detector
from bgad.types import FloatArray
from tests.conftest import SIZE, level_model


@pytest.fixture(scope="module")
def detector(model: Path) -> Detector:
    return Detector.load(model, "cpu")


def test_a_difference_is_seen(detector: Detector, model: Path) -> None:
    other = Detector.load(model, "cpu")
    with torch.no_grad():
        level_model(other).levels[0].flow.b_out.add_(1.0)  # type: ignore[operator, union-attr]
    runtime = Runtime(detector.card, to_onnx(other.model))
    parity = compare(detector, runtime)
    assert parity.images == len(synthetic_images(SIZE)) == 12
    assert parity.score > 1e-4
    assert parity.map > 1e-4
    assert not parity.holds


def test_a_graph_that_gives_no_numbers_is_seen(detector: Detector) -> None:
    class Broken:
        def run(self, pixels: FloatArray) -> Outputs:
            outputs = detector.run(pixels)
            return outputs._replace(scores=outputs.scores * np.nan)

    parity = compare(detector, Broken())  # type: ignore[arg-type]
    assert parity.score == float("inf")
    assert not parity.holds
