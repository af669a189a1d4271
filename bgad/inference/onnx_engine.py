"""The exported graph on ONNX Runtime: scoring without torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bgad.artifact.card import FLOAT32, Card
from bgad.errors import ConfigError, ModelError, first_line
from bgad.inference.base import CPU_BATCH, GraphScorer, Outputs
from bgad.types import FloatArray

logger = logging.getLogger(__name__)

GRAPH, PIXELS = "model.onnx", "pixels"
CPU = "CPUExecutionProvider"
PROVIDERS = {  # device -> execution provider of ONNX Runtime, fastest first
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": CPU,
}
SHORT_NUMBERS = {10: "float16", 16: "bfloat16"}  # ONNX's numbers of data types
AUTO = ("cuda", "cpu")  # not TensorRT: it builds an engine for minutes


def engine_version() -> str:
    """Return the name and version of ONNX Runtime."""
    return f"onnxruntime {onnxruntime.__version__}"


def session_options(threads: int) -> Any:
    """Return the options of a session that uses so many cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal only: every failure raises, and becomes an error of ours
    return options


def has_provider(device: str) -> bool:
    """Tell whether this build of ONNX Runtime supports a device."""
    return PROVIDERS[device] in onnxruntime.get_available_providers()


def provider(device: str, *, strict: bool = False) -> str:
    """Return the device to use: one that this build lacks is a warning and the CPU, or an error where strict."""
    available = onnxruntime.get_available_providers()
    if device == "auto":
        return next(name for name in AUTO if PROVIDERS[name] in available)
    if device not in PROVIDERS:
        raise ConfigError(f"unknown device {device!r} for a graph: choose from auto, {', '.join(PROVIDERS)}")
    if PROVIDERS[device] in available:
        return device
    offered = ", ".join(name for name, full in PROVIDERS.items() if full in available)
    missing = f"{device} is not in this build of ONNX Runtime, which has {offered}"
    if strict:
        raise ConfigError(f"{missing}: install the build that has it, or choose another --device")
    logger.warning(f"{missing}: scoring on the CPU")
    return "cpu"


class Runtime(GraphScorer):
    """Scores images with ONNX Runtime; `bgad.load` returns one for a model folder with a graph."""

    ENGINE, FILES = "onnx", (GRAPH,)

    def __init__(
        self,
        card: Card,
        graph: bytes,
        *,
        device: str = "auto",
        threads: int | None = None,
        batch: int | None = None,
        strict: bool = False,
    ) -> None:
        self.device = provider(device, strict=strict)
        super().__init__(card, threads=threads, batch=batch, on_cpu=self.device == "cpu")
        self._graph = graph
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._sessions: dict[int, Any] = {}
        self.session = self._session(self.threads)
        actual = self.session.get_providers()[0]
        if actual != PROVIDERS[self.device]:
            if strict:
                raise ConfigError(f"{self.device} cannot be used here: ONNX Runtime took {actual} instead")
            logger.warning(f"{self.device} cannot be used here: scoring on the CPU")
            self.device, self.on_cpu, self.batch = "cpu", True, CPU_BATCH

    def _session(self, threads: int) -> Any:
        """Return the session of this number of threads; any number of threads may run it."""
        with self._lock:
            if threads not in self._sessions:
                self._sessions[threads] = self._open(threads)
            return self._sessions[threads]

    def _open(self, threads: int) -> Any:
        options = session_options(threads)
        providers = list(dict.fromkeys((PROVIDERS[self.device], CPU)))
        try:
            session = onnxruntime.InferenceSession(self._graph, options, providers=providers, enable_fallback=0)
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime cannot load the graph of {self.card.name} ({first_line(error)}): "
                "export it again with `bgad export`"
            ) from error
        inputs = [(i.name, i.shape[1:]) for i in session.get_inputs()]
        outputs = len(session.get_outputs())
        if inputs != [(PIXELS, [*self.card.input.shape, 3])] or outputs != 3 + len(self.card.levels):
            raise ModelError(f"{GRAPH} does not belong to its card: export the model again with `bgad export`")
        if short := [SHORT_NUMBERS[kind] for kind in sorted(_weight_types(self._graph) & SHORT_NUMBERS.keys())]:
            raise ModelError(
                f"{GRAPH} stores weights in {short[0]}, its card says {FLOAT32}: export it again with `bgad export`"
            )
        return session

    def start_thread(self) -> None:
        """See BaseScorer."""
        self._thread.one_core = True

    def run(self, pixels: FloatArray) -> Outputs:
        """See BaseScorer."""
        one_core = self.on_cpu and getattr(self._thread, "one_core", False)
        session = self._session(1) if one_core else self.session
        try:
            scores, parts, maps, *levels = session.run(None, {PIXELS: np.ascontiguousarray(pixels, np.float32)})
        except Exception as error:  # its errors have no common class
            raise ModelError(f"ONNX Runtime failed on {self.device}: {first_line(error)}; try --device cpu") from error
        return Outputs(scores, parts, maps, levels)

    @staticmethod
    def not_exported(folder: Path) -> ModelError:
        """See GraphScorer."""
        return ModelError(
            f"{folder} has no {GRAPH}, which scoring without torch needs: run `bgad export {folder}` where "
            "bgad[train] is installed, or install it here: pip install 'bgad[train]'"
        )


def _weight_types(graph: bytes) -> set[int]:
    """Return ONNX's numbers of the data types of a graph's weights; the runtime install cannot parse ONNX otherwise."""
    model_graph, initializer, data_type = 7, 5, 2  # the fields of ModelProto, GraphProto and TensorProto
    tensors = (
        _fields(tensor)
        for number, content in _fields(memoryview(graph))
        if number == model_graph and isinstance(content, memoryview)
        for field, tensor in _fields(content)
        if field == initializer and isinstance(tensor, memoryview)
    )
    return {value for tensor in tensors for field, value in tensor if field == data_type and isinstance(value, int)}


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field of a protobuf message: integers, and the bytes of everything else."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
        yield number, message[at : at + size]
        at += size
