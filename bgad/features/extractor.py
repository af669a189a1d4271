"""Feature extraction: the frozen backbone on the fastest engine that gives the features of torch.

On a CPU that is ONNX Runtime, which takes less than half of torch's time. Torch runs the backbone on accelerators, and
where the graph cannot be exported or gives other features.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from bgad.export.export import synthetic_images
from bgad.export.onnx import export_graph, fix_padding
from bgad.features.cache import HALF_MAX, HalfArray
from bgad.inference.onnx_engine import CPU, PIXELS, session_options
from bgad.model.backbone import Backbone
from bgad.types import FloatArray

TOLERANCE = 2.0**-11  # of a map's largest value: the resolution of half precision, in which features are cached


class Extractor:
    """Runs the backbone on images of one size; may be called from many threads, each of which uses one core."""

    def __init__(self, backbone: Backbone, size: int, device: torch.device) -> None:
        self.backbone, self.device = backbone, device
        self.session = _session(backbone, size) if device.type == "cpu" else None

    def __call__(self, batch: list[FloatArray]) -> list[HalfArray]:
        """Return the feature rows (images, positions, channels) of each stride."""
        if self.session is None:
            return by_torch(self.backbone, batch, self.device)
        return [_rows(torch.from_numpy(maps)) for maps in self.session.run(None, {PIXELS: np.stack(batch)})]


def by_torch(backbone: Backbone, batch: list[FloatArray], device: torch.device) -> list[HalfArray]:
    """Return the feature rows (images, positions, channels) of each stride, computed by torch."""
    with torch.inference_mode():
        return [_rows(maps) for maps in backbone(torch.from_numpy(np.stack(batch)).to(device))]


def _rows(maps: Tensor) -> HalfArray:
    rows = maps.flatten(2).transpose(1, 2).clamp(-HALF_MAX, HALF_MAX)  # (B, h * w, C)
    half: HalfArray = rows.half().cpu().numpy()
    return half


class _Maps(nn.Module):
    def __init__(self, backbone: Backbone, size: int) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        fix_padding(self.backbone, size)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(pixels))


def graph(backbone: Backbone, size: int) -> bytes:
    """Export the backbone alone as an ONNX graph for any number of images at a time; ModelError where that fails."""
    return export_graph(_Maps(backbone, size), size, dynamic_axes={PIXELS: {0: "images"}})


def _session(backbone: Backbone, size: int) -> Any:
    """Return a session that gives the features of torch, or None."""
    try:
        session = onnxruntime.InferenceSession(graph(backbone, size), session_options(1), providers=[CPU])
        pixels = np.stack(synthetic_images(size)[::4])
        maps = session.run(None, {PIXELS: pixels})
        with torch.inference_mode():
            expected = [m.numpy() for m in backbone(torch.from_numpy(pixels))]
        same = all(np.abs(a - b).max() <= TOLERANCE * np.abs(b).max() for a, b in zip(maps, expected, strict=True))
    except Exception:  # noqa: BLE001 - errors of the two exporters have no common class, and torch can run the backbone
        return None
    return session if same else None
