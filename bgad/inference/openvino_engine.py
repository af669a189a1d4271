"""The exported graph on OpenVINO, which `bgad export --to openvino` writes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np

from bgad.artifact.card import Card
from bgad.errors import ConfigError, ModelError
from bgad.inference.base import GraphScorer, Outputs
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
    ) -> None:
        self._core = core()
        if device not in DEVICES:
            raise ConfigError(f"unknown device {device!r} for OpenVINO: choose from {', '.join(DEVICES)}")
        self.device = DEVICES[device]
        available = [name.partition(".")[0] for name in self._core.available_devices]
        if self.device not in available:
            missing = f"OpenVINO finds no {self.device} here, only {', '.join(available)}"
            if strict:
                raise ConfigError(f"{missing}: choose another --device")
            logger.warning(f"{missing}: scoring on the CPU")
            self.device = "CPU"
        super().__init__(card, threads=threads, batch=batch, on_cpu=self.device == "CPU")
        try:
            self._weights = weights  # the model refers to these bytes without keeping them alive
            self._model = self._core.read_model(xml, weights)
        except RuntimeError as error:
            raise ModelError(f"OpenVINO cannot read {XML}: export it again with --to openvino") from error
        (height, width), outputs = self.card.input.shape, len(self._model.outputs)
        shape = [str(dimension) for dimension in self._model.inputs[0].get_partial_shape()][1:]
        if shape != [str(height), str(width), "3"] or outputs != 3 + len(self.card.levels):
            raise ModelError(f"{XML} does not belong to its card: export the model again with --to openvino")
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._compiled: dict[int, Any] = {}
        self._compile(self.threads)

    def _compile(self, threads: int) -> Any:
        """Return the model, compiled once for each number of threads."""
        with self._lock:
            if threads not in self._compiled:
                options = {
                    "INFERENCE_PRECISION_HINT": "f32",
                    "PERFORMANCE_HINT": "LATENCY",
                }  # f32: the precision of torch
                if self.device == "CPU":
                    streams = 1 if threads > 1 else self.threads
                    options |= {"INFERENCE_NUM_THREADS": str(self.threads), "NUM_STREAMS": str(streams)}
                try:
                    self._compiled[threads] = self._core.compile_model(self._model, self.device, options)
                except RuntimeError as error:
                    text = str(error).strip().splitlines()[-1][:160]
                    raise ModelError(
                        f"OpenVINO cannot run the model on {self.device} ({text}): --device cpu"
                    ) from error
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
