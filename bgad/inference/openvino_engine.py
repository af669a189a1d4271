"""The exported graph on OpenVINO, which `bgad export --to openvino` writes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

from bgad.artifact.card import FLOAT32, Card
from bgad.errors import BgadError, ConfigError, ModelError
from bgad.inference.base import GraphScorer, Outputs
from bgad.inference.precision import PRECISIONS
from bgad.types import FloatArray

logger = logging.getLogger(__name__)

XML, BIN = "model.xml", "model.bin"
DEVICES = {"auto": "CPU", "cpu": "CPU", "gpu": "GPU", "npu": "NPU"}


class OpenVino(GraphScorer):
    """Scores images with OpenVINO; `bgad.load(folder, engine="openvino")` returns one."""

    ENGINE, FILES = "openvino", (XML, BIN)

    def __init__(
        self,
        card: Card,
        xml: bytes,
        weights: bytes,
        *,
        device: str = "auto",
        threads: int | None = None,
        batch: int | None = None,
        strict: bool = False,
        precision: str = FLOAT32,
    ) -> None:
        self._core = core()
        self.device = pick(device, strict=strict)
        check_precision(precision, self.device)
        super().__init__(card, threads=threads, batch=batch, on_cpu=self.device == "CPU", precision=precision)
        try:
            self._weights = weights  # the model refers to these bytes without keeping them alive
            self._model = self._core.read_model(xml, weights)
        except RuntimeError as error:
            raise ModelError(f"OpenVINO cannot read {XML}: export it again with --to openvino") from error
        (height, width), outputs = self.card.input.shape, len(self._model.outputs)
        shape = [str(dimension) for dimension in self._model.inputs[0].get_partial_shape()][1:]
        if shape != [str(height), str(width), "3"] or outputs != 3 + len(self.card.levels):
            raise ModelError(f"{XML} does not belong to its card: export the model again with --to openvino")
        _check_numbers(self._model)
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._compiled: dict[int, Any] = {}
        self._compile(self.threads)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        *,
        threads: int | None = None,
        batch: int | None = None,
        strict: bool = False,
        precision: str = FLOAT32,
    ) -> Self:
        """See GraphScorer; a precision must have been calibrated on the same kind of device."""
        card, graph = cls.read_graph(Path(folder))
        made = cls(card, *graph, device=device, threads=threads, batch=batch, strict=strict, precision=precision)
        check_usable(card, precision, made.device)
        return made

    def _compile(self, threads: int) -> Any:
        """Return the model, compiled once for each number of threads."""
        with self._lock:
            if threads not in self._compiled:
                hint = PRECISIONS[self.precision].hint
                options = {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
                if self.device == "CPU":
                    streams = 1 if threads > 1 else self.threads
                    options |= {"INFERENCE_NUM_THREADS": str(self.threads), "NUM_STREAMS": str(streams)}
                try:
                    compiled = self._core.compile_model(self._model, self.device, options)
                except RuntimeError as error:
                    text = str(error).strip().splitlines()[-1][:160]
                    raise ModelError(
                        f"OpenVINO cannot run the model on {self.device} ({text}): --device cpu"
                    ) from error
                if self.precision != FLOAT32 and _hint_of(compiled) != hint:
                    raise _missing(self.precision, self.device)
                self._compiled[threads] = compiled
            return self._compiled[threads]

    def start_thread(self) -> None:
        """See BaseScorer."""
        self._thread.request = self._compile(1).create_infer_request()

    def run(self, pixels: FloatArray) -> Outputs:
        """See BaseScorer."""
        request = getattr(self._thread, "request", None) or self._compile(self.threads).create_infer_request()
        outputs = request.infer([np.ascontiguousarray(pixels, np.float32)])
        scores, parts, maps, *levels = (np.array(value) for value in outputs.to_tuple())
        return Outputs(scores, parts, maps, levels)

    @staticmethod
    def not_exported(folder: Path) -> ModelError:
        """See GraphScorer."""
        return ModelError(f"{folder} has no {XML}: run `bgad export {folder} --to openvino` first")


def pick(device: str, *, strict: bool = False) -> str:
    """Return OpenVINO's name of the device to use: one that is not here is a warning and the CPU, or an error."""
    if device not in DEVICES:
        raise ConfigError(f"unknown device {device!r} for OpenVINO: choose from {', '.join(DEVICES)}")
    available = [name.partition(".")[0] for name in core().available_devices]
    if DEVICES[device] in available:
        return DEVICES[device]
    missing = f"OpenVINO finds no {DEVICES[device]} here, only {', '.join(available)}"
    if strict:
        raise ConfigError(f"{missing}: choose another --device")
    logger.warning(f"{missing}: scoring on the CPU")
    return "CPU"


def capabilities(device: str) -> list[str]:
    """Return what OpenVINO says that a device (CPU, GPU, NPU) computes fast, such as FP32 and BF16."""
    return list(core().get_property(device, "OPTIMIZATION_CAPABILITIES"))


def device_name(device: str) -> str:
    """Return the full name of a device, such as the model of a CPU."""
    return str(core().get_property(device, "FULL_DEVICE_NAME")).strip()


def check_precision(precision: str, device: str) -> None:
    """Raise ConfigError where a device (CPU, GPU, NPU) does not compute in a precision; every one has float32."""
    if precision != FLOAT32 and PRECISIONS[precision].capability not in capabilities(device):
        raise _missing(precision, device)


def check_usable(card: Card, precision: str, device: str) -> None:
    """Raise an error where a device (CPU, GPU, NPU) lacks a calibrated precision, or is not the one calibrated."""
    check_precision(precision, device)
    if precision != FLOAT32 and (calibrated := card.agreement[precision].device) != device:
        raise ModelError(
            f"{card.name} is calibrated for {precision} on a {calibrated}, not on a {device}: choose another --device "
            "or --precision"
        )


def is_usable(card: Card, precision: str, device: str) -> bool:
    """Return whether this machine has OpenVINO and the device (as in DEVICES) that a calibration is for."""
    try:
        check_usable(card, precision, pick(device, strict=True))
    except BgadError:
        return False
    return XML in card.files


def _missing(precision: str, device: str) -> ConfigError:
    return ConfigError(
        f"the {device} of this machine ({device_name(device)}) does not compute in {precision}: "
        f"leave out --precision {precision}, or use a machine that does"
    )


def _hint_of(compiled: Any) -> str:
    """Return OpenVINO's name of the precision that a compiled model computes in."""
    return str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())


def _check_numbers(model: Any) -> None:
    """Raise ModelError for a graph that stores weights in 16 bits: the model was calibrated with those of 32."""
    kinds = {op.get_element_type().get_type_name() for op in model.get_ops() if op.get_type_name() == "Constant"}
    if short := sorted(kinds & {"f16", "bf16"}):
        raise ModelError(
            f"{XML} stores weights in {short[0]}, its card says {FLOAT32}: export the model again with --to openvino"
        )


def version() -> str:
    """Return the name and version of OpenVINO."""
    import openvino

    return f"openvino {openvino.__version__.partition('-')[0]}"


def core() -> Any:
    """Return OpenVINO's core; ModelError where it is not installed."""
    try:
        import openvino
    except ImportError as error:
        raise ModelError("OpenVINO is not installed: pip install 'bgad[openvino]'") from error
    # Convert a first array now: its bindings dead-lock when two threads convert the first one at once.
    _ = openvino.Tensor(np.zeros(1, np.float32)).data
    return openvino.Core()
