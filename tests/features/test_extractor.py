"""Features by ONNX Runtime are those of torch; where they would not be, torch gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bgad.config import BackboneConfig
from bgad.features import extractor as extract
from bgad.features.extractor import Extractor, by_torch
from bgad.model import backbone
from bgad.types import FloatArray

CPU = torch.device("cpu")
SIZE = 64


@pytest.fixture(scope="module")
def net() -> backbone.Backbone:
    return backbone.build(BackboneConfig(size=SIZE))


def images(count: int) -> list[FloatArray]:
    rng = np.random.default_rng(0)
    return [rng.random((SIZE, SIZE, 3), np.float32) for _ in range(count)]


def test_the_engine_gives_the_features_of_torch(net: backbone.Backbone) -> None:
    fast = Extractor(net, SIZE, CPU)
    assert fast.session is not None
    for count in (1, 3):
        for ours, theirs in zip(fast(images(count)), by_torch(net, images(count), CPU), strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == np.float16
            np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_a_graph_that_says_something_else_is_not_used(net: backbone.Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    class Louder(torch.nn.Module):
        def __init__(self, given: backbone.Backbone, size: int) -> None:
            super().__init__()
            self.given = given

        def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
            return tuple(1.01 * maps for maps in self.given(pixels))

    monkeypatch.setattr(extract, "_Maps", Louder)
    slow = Extractor(net, SIZE, CPU)
    assert slow.session is None
    for ours, theirs in zip(slow(images(2)), by_torch(net, images(2), CPU), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_backbone_without_a_graph_is_run_by_torch(net: backbone.Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(torch.nn.Module):
        def __init__(self, given: backbone.Backbone, size: int) -> None:
            super().__init__()

        def forward(self, pixels: Tensor) -> Any:
            return torch.linalg.eigvals(pixels[..., 0]).real  # ONNX has no such operation

    monkeypatch.setattr(extract, "_Maps", Odd)
    assert Extractor(net, SIZE, CPU).session is None
