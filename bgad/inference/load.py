"""Read a model folder and return the scorer of the engine that was asked for, or of the best one on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bgad.artifact import folder as model_folder
from bgad.errors import ConfigError
from bgad.inference.base import BaseScorer
from bgad.inference.onnx_engine import GRAPH, Runtime, has_provider

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs; see `load`."""

    device: str = "auto"
    threads: int | None = None
    batch: int | None = None
    strict: bool = False


def _load_onnx(folder: Path, options: EngineOptions) -> BaseScorer:
    return Runtime.load(folder, options.device, threads=options.threads, batch=options.batch, strict=options.strict)


def _load_openvino(folder: Path, options: EngineOptions) -> BaseScorer:
    from bgad.inference.openvino_engine import OpenVino

    return OpenVino.load(folder, options.device, threads=options.threads, batch=options.batch, strict=options.strict)


def _load_torch(folder: Path, options: EngineOptions) -> BaseScorer:
    from bgad.inference.torch_engine import Detector

    return Detector.load(folder, options.device, threads=options.threads, batch=options.batch)


# A new engine is a subclass of BaseScorer and an entry here; its library is imported when a model is loaded with it.
ENGINES: dict[str, Callable[[Path, EngineOptions], BaseScorer]] = {
    "onnx": _load_onnx,
    "openvino": _load_openvino,
    "torch": _load_torch,
}


def load(
    folder: str | Path,
    device: str = "auto",
    *,
    engine: str = "auto",
    threads: int | None = None,
    batch: int | None = None,
    strict: bool = False,
) -> BaseScorer:
    """Read a model folder and return a scorer.

    `engine`: `onnx` and `openvino` run an exported graph and need no torch; `torch` needs `bgad[train]`; `auto` takes
    the ONNX graph where the folder has one. `device`: `auto` or `cpu`; `cuda`, `tensorrt` and `openvino` (onnx), `gpu`
    and `npu` (openvino), `cuda` and `mps` (torch). A device that a graph cannot use is a warning, or with `strict` an
    error. `threads` is the number of cores for one image, and the number of batches of `batch` images that run side by
    side where there are many.
    """
    folder = Path(folder)
    if engine != "auto" and engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}: choose from auto, {', '.join(ENGINES)}")
    if engine == "auto":
        engine, device = _best_engine(folder, device, strict=strict)
    return ENGINES[engine](folder, EngineOptions(device, threads, batch, strict))


def _best_engine(folder: Path, device: str, *, strict: bool) -> tuple[str, str]:
    """Choose the engine of a folder for a device; return it with the device that it can use."""
    has_graph = GRAPH in model_folder.read_card(folder).files
    if not has_graph or _only_torch_has(device):
        if find_spec("torch") is None:
            raise Runtime.not_exported(folder)
        return "torch", device
    if not _needs_torch(device):
        return "onnx", device
    missing = f"neither torch nor this build of ONNX Runtime can use {device} here"
    if strict:
        raise ConfigError(f"{missing}: choose another --device")
    logger.warning(f"{missing}: scoring on the CPU")
    return "onnx", "cpu"


def _needs_torch(device: str) -> bool:
    """Tell whether a device is one of torch's that the installed ONNX Runtime lacks."""
    return device == "mps" or (device.startswith("cuda") and not has_provider("cuda"))


def _only_torch_has(device: str) -> bool:
    """Tell whether torch can use a device here that the installed ONNX Runtime lacks."""
    if find_spec("torch") is None or not _needs_torch(device):
        return False
    from bgad.inference.torch_engine import has_device

    return has_device(device)
