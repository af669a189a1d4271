"""Read a model folder and return the scorer of the engine that was asked for, or of the best one on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FLOAT32
from bgad.errors import ConfigError, ModelError
from bgad.inference.base import BaseScorer
from bgad.inference.onnx_engine import GRAPH, Runtime, engine_version, has_provider
from bgad.inference.precision import AUTO, PRECISIONS, fastest
from bgad.io.cpus import usable_cpus

logger = logging.getLogger(__name__)

ONLY_OPENVINO = ("gpu", "npu")  # devices that no other engine has


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs; see `load`."""

    device: str = "auto"
    threads: int | None = None
    batch: int | None = None
    strict: bool = False
    precision: str = FLOAT32


def _load_onnx(folder: Path, options: EngineOptions) -> BaseScorer:
    return Runtime.load(folder, options.device, threads=options.threads, batch=options.batch, strict=options.strict)


def _load_openvino(folder: Path, options: EngineOptions) -> BaseScorer:
    from bgad.inference.openvino_engine import OpenVino

    return OpenVino.load(
        folder,
        options.device,
        threads=options.threads,
        batch=options.batch,
        strict=options.strict,
        precision=options.precision,
    )


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
    precision: str = FLOAT32,
    threads: int | None = None,
    batch: int | None = None,
    strict: bool = False,
) -> BaseScorer:
    """Read a model folder and return a scorer.

    `engine`: `onnx` and `openvino` run an exported graph and need no torch; `torch` needs `bgad[train]`; `auto` takes
    the ONNX graph where the folder has one. `device`: `auto` or `cpu`; `cuda`, `tensorrt` and `openvino` (onnx), `gpu`
    and `npu` (openvino), `cuda` and `mps` (torch). A device that a graph cannot use is a warning, or with `strict` an
    error. `precision`: one of PRECISIONS that the model is calibrated for, which OpenVINO computes where it is not
    float32; `auto` takes the one that this machine runs fastest. `threads` is the number of cores for one image, and
    the number of batches of `batch` images that run side by side where there are many.
    """
    folder = Path(folder)
    if engine != "auto" and engine not in ENGINES:
        raise ConfigError(f"unknown engine {engine!r}: choose from auto, {', '.join(ENGINES)}")
    if precision not in (AUTO, *PRECISIONS):
        raise ConfigError(f"unknown precision {precision!r}: choose from {AUTO}, {', '.join(PRECISIONS)}")
    options = EngineOptions(device, threads, batch, strict, precision)
    if precision == AUTO:
        options = replace(options, precision=pick_precision(folder, engine, options))
    return _load(folder, engine, options)


def load_exported(folder: Path, precision: str) -> BaseScorer:
    """Load the exported graph of a model at a precision; an error where it has none, even where torch is installed."""
    return load(folder, engine="onnx" if precision == FLOAT32 else "openvino", precision=precision)


def _load(folder: Path, engine: str, options: EngineOptions) -> BaseScorer:
    """Return the scorer of an engine (or `auto`) at a precision other than `auto`."""
    if options.precision != FLOAT32:
        engine = _engine_of(folder, engine, options.precision)
    elif engine == "auto" and options.device in ONLY_OPENVINO:
        engine = "openvino"
    elif engine == "auto":
        engine, device = _best_engine(folder, options.device, strict=options.strict)
        options = replace(options, device=device)
    return ENGINES[engine](folder, options)


def _engine_of(folder: Path, engine: str, precision: str) -> str:
    """Return the engine of a precision below float32; an error where it is another, or the model is not calibrated."""
    if engine not in ("auto", "openvino"):
        raise ConfigError(f"the engine {engine} computes in float32: give --engine openvino for {precision}")
    known = model_folder.read_card(folder).calibration
    if precision not in known:
        raise ModelError(
            f"{folder} is not calibrated for {precision} (it is for: {', '.join(known)}): "
            f"run `bgad export {folder} --precision {precision}` first"
        )
    return "openvino"


def usable_precision(folder: Path, precision: str) -> str:
    """Return the precision that a model is scored in on this machine where `precision`, or `auto`, is asked for.

    It is an error where the model is not calibrated for it, or the machine does not compute in it.
    """
    if precision == AUTO:
        return pick_precision(folder, "auto", EngineOptions())
    if precision != FLOAT32:
        _engine_of(folder, "auto", precision)
        from bgad.inference import openvino_engine as openvino

        openvino.check_usable(model_folder.read_card(folder), precision, openvino.pick("auto"))
    return precision


def pick_precision(folder: Path, engine: str, options: EngineOptions) -> str:
    """Return the precision that a model has the highest rate in on this machine: float32, or one it is calibrated for.

    Nothing is measured where there is no choice.
    """
    card = model_folder.read_card(folder)
    lower = [precision for precision in card.calibration if precision in PRECISIONS and precision != FLOAT32]
    if not lower or engine not in ("auto", "openvino"):
        return FLOAT32
    from bgad.inference import openvino_engine as openvino

    lower = [precision for precision in lower if openvino.is_usable(card, precision, options.device)]
    if not lower:
        return FLOAT32
    key = {
        "model": card.checksum,
        "precisions": lower,
        "device": openvino.device_name(openvino.DEVICES[options.device]),
        "threads": options.threads or usable_cpus(),
        "batch": options.batch,
        "engine": engine,
        "versions": [engine_version(), openvino.version()],
    }
    return fastest(
        card.name, lambda: {p: _load(folder, engine, replace(options, precision=p)) for p in (FLOAT32, *lower)}, key
    )


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
