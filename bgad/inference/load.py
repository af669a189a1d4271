"""A model folder -> the best scorer for it here: its graph on ONNX Runtime, or torch."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from bgad.artifact import folder as model_folder
from bgad.errors import ConfigError
from bgad.inference.base import BaseScorer
from bgad.inference.onnx_engine import GRAPH, Runtime, has_provider, no_graph

logger = logging.getLogger(__name__)

ENGINES = ("auto", "onnx", "openvino", "torch")


def load(
    folder: str | Path,
    device: str = "auto",
    *,
    engine: str = "auto",
    threads: int | None = None,
    batch: int | None = None,
    strict: bool = False,
) -> BaseScorer:
    """Read a model folder, ready to score.

    `engine`: `onnx` runs the folder's graph and needs no torch, nor does `openvino`; `torch` needs `bgad[train]`;
    `auto` takes the graph where there is one. `device`: `auto` or `cpu`; `cuda`, `tensorrt` and `openvino`
    (onnx), `gpu` and `npu` (openvino), `cuda` and `mps` (torch); one that a graph cannot have is a warning, or with
    `strict` an error. `threads` are for one image, and how many batches of `batch` images run side by side where there
    are many.
    """
    folder = Path(folder)
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}: choose from {', '.join(ENGINES)}")
    if engine == "auto":
        has_graph = GRAPH in model_folder.read_card(folder).files
        engine = "onnx" if has_graph and not _only_torch_has(device) else "torch"
        if engine == "onnx" and _is_torchs(device):
            missing = f"neither torch nor this build of ONNX Runtime can use {device} here"
            if strict:
                raise ConfigError(f"{missing}: choose another --device")
            logger.warning(f"{missing}: scoring on the CPU")
            device = "cpu"
        if engine == "torch" and find_spec("torch") is None:
            raise no_graph(folder)
    if engine == "onnx":
        return Runtime.load(folder, device, threads=threads, batch=batch, strict=strict)
    if engine == "openvino":
        from bgad.inference.openvino_engine import OpenVino

        return OpenVino.load(folder, device, threads=threads, batch=batch, strict=strict)
    from bgad.inference.torch_engine import Detector

    return Detector.load(folder, device, threads=threads, batch=batch)


def _is_torchs(device: str) -> bool:
    """Whether a device is one of torch's that the installed ONNX Runtime has not."""
    return device == "mps" or (device.startswith("cuda") and not has_provider("cuda"))


def _only_torch_has(device: str) -> bool:
    """Whether a device was asked for that torch can use here and the installed ONNX Runtime cannot."""
    if find_spec("torch") is None or not _is_torchs(device):
        return False
    from bgad.inference.torch_engine import has_device

    return has_device(device)
