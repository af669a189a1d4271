"""Pictures -> features, on the fastest engine at hand that gives the same ones.

On a CPU that is ONNX Runtime: it runs the backbone in less than half of torch's time. Where the graph cannot be made
or says something else than torch, and on accelerators, torch runs it.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from bgad.export.onnx import OPSET, fix_padding, probes, write_graph
from bgad.features.cache import HALF_MAX, HalfArray
from bgad.inference.onnx_engine import CPU, PIXELS, session_options
from bgad.model.backbone import Backbone
from bgad.types import FloatArray

SAME = 2.0**-11  # of a level's largest value: half precision, in which features are kept, is not finer


class Extractor:
    """The backbone for pictures of one size; may be called from many threads, each of which uses one core."""

    def __init__(self, backbone: Backbone, size: int, device: torch.device) -> None:
        self.backbone, self.device = backbone, device
        self.session = _session(backbone, size) if device.type == "cpu" else None

    def __call__(self, batch: list[FloatArray]) -> list[HalfArray]:
        """Feature rows (images, positions, channels) of each level."""
        if self.session is None:
            return by_torch(self.backbone, batch, self.device)
        return [_rows(torch.from_numpy(found)) for found in self.session.run(None, {PIXELS: np.stack(batch)})]


def by_torch(backbone: Backbone, batch: list[FloatArray], device: torch.device) -> list[HalfArray]:
    """Feature rows (images, positions, channels) of each level, without an engine."""
    with torch.inference_mode():
        return [_rows(found) for found in backbone(torch.from_numpy(np.stack(batch)).to(device))]


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
    """The backbone alone as an ONNX graph, with any number of pictures at a time; ModelError where it has none."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        path = Path(folder) / "backbone.onnx"
        write_graph(
            _Maps(backbone, size),
            (torch.rand(2, size, size, 3),),
            path,
            dynamo=False,
            input_names=[PIXELS],
            dynamic_axes={PIXELS: {0: "pictures"}},
            opset_version=OPSET,
        )
        return path.read_bytes()


def _session(backbone: Backbone, size: int) -> Any:
    """None where the backbone has to be run by torch."""
    try:
        session = onnxruntime.InferenceSession(graph(backbone, size), session_options(1), providers=[CPU])
        pictures = np.stack(probes(size)[::4])
        found = session.run(None, {PIXELS: pictures})
        with torch.inference_mode():
            expected = [maps.numpy() for maps in backbone(torch.from_numpy(pictures))]
        same = all(np.abs(a - b).max() <= SAME * np.abs(b).max() for a, b in zip(found, expected, strict=True))
    except Exception:  # noqa: BLE001 - its errors have no common class, and torch can do it
        return None
    return session if same else None
