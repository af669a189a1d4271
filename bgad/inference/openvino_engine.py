"""The exported graph on OpenVINO, behind the same Scorer; for `bgad export --to openvino`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np

from bgad.artifact import folder as model_folder
from bgad.artifact.card import Card
from bgad.errors import ConfigError, ModelError
from bgad.inference.base import BaseScorer
from bgad.types import FloatArray

logger = logging.getLogger(__name__)

XML, BIN = "model.xml", "model.bin"
DEVICES = {"auto": "CPU", "cpu": "CPU", "gpu": "GPU", "npu": "NPU"}


class OpenVino(BaseScorer):
    """Scores images with OpenVINO; `bgad.load(folder, engine="openvino")` gives one."""

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
        super().__init__(card, threads=threads, batch=batch)
        core = _core()
        if device not in DEVICES:
            raise ConfigError(f"unknown device {device!r} for OpenVINO: choose from {', '.join(DEVICES)}")
        self.device = DEVICES[device]
        there = [name.partition(".")[0] for name in core.available_devices]
        if self.device not in there:
            missing = f"OpenVINO finds no {self.device} here, only {', '.join(there)}"
            if strict:
                raise ConfigError(f"{missing}: choose another --device")
            logger.warning(f"{missing}: scoring on the CPU")
            self.device = "CPU"
        try:
            self._weights = weights  # the model refers to these bytes and does not keep them alive
            self._model = core.read_model(xml, weights)
        except RuntimeError as error:
            raise ModelError(f"OpenVINO cannot read {XML}: export it again with --to openvino") from error
        (height, width), outputs = self.card.input.shape, len(self._model.outputs)
        shape = [str(dimension) for dimension in self._model.inputs[0].get_partial_shape()][1:]
        if shape != [str(height), str(width), "3"] or outputs != 2 + len(self.card.levels):
            raise ModelError(f"{XML} does not belong to its card: export the model again with --to openvino")
        self._core = core
        self._here = threading.local()
        self._lock = threading.Lock()
        self._compiled: dict[int, Any] = {}
        self._for(self.threads)

    def _for(self, threads: int) -> Any:
        """The model, compiled for so many threads."""
        with self._lock:
            if threads not in self._compiled:
                options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}  # f32: as torch has it
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
        self._here.request = self._for(1).create_infer_request()

    def run(self, pixels: FloatArray) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """See BaseScorer."""
        request = getattr(self._here, "request", None) or self._for(self.threads).create_infer_request()
        found = request.infer([np.ascontiguousarray(pixels, np.float32)])
        score, anomaly, *levels = (np.array(value) for value in found.to_tuple())
        return score, anomaly, levels

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        *,
        threads: int | None = None,
        batch: int | None = None,
        strict: bool = False,
    ) -> OpenVino:
        """Read a model folder and verify the files that OpenVINO uses."""
        folder = Path(folder)
        if not {XML, BIN} <= model_folder.read_card(folder).files.keys():
            raise ModelError(f"{folder} has no {XML}: run `bgad export {folder} --to openvino` first")
        card, files = model_folder.read_files(folder, (XML, BIN))
        return cls(card, files[XML], files[BIN], device=device, threads=threads, batch=batch, strict=strict)


def convert(graph: Path, to: Path, *, half: bool) -> dict[str, bytes]:
    """The files of an ONNX graph for OpenVINO, by way of the folder `to`."""
    _core()  # says so where it is not installed
    import openvino

    openvino.save_model(openvino.convert_model(graph), to / XML, compress_to_fp16=half)
    return {name: (to / name).read_bytes() for name in (XML, BIN)}


def version() -> str:
    """Of OpenVINO."""
    import openvino

    return f"openvino {openvino.__version__.partition('-')[0]}"


def _core() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise ModelError("OpenVINO is not installed: pip install 'bgad[openvino]'") from error
    # the first array that its bindings take must not be taken by two threads at once: they would wait for each other
    _ = openvino.Tensor(np.zeros(1, np.float32)).data
    return openvino.Core()
