"""The trained thing without torch: the exported graph on ONNX Runtime, behind the same Scorer."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bgad.artifact import folder as model_folder
from bgad.artifact.card import Card
from bgad.errors import ConfigError, ModelError, first_line
from bgad.inference.base import BaseScorer
from bgad.types import FloatArray

logger = logging.getLogger(__name__)

GRAPH, PIXELS = "model.onnx", "pixels"
CPU = "CPUExecutionProvider"
PROVIDERS = {  # name -> what ONNX Runtime calls it, best first
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": CPU,
}
AUTO = ("cuda", "cpu")  # TensorRT builds an engine for minutes: only when asked for


def engine_version() -> str:
    """Of ONNX Runtime."""
    return f"onnxruntime {onnxruntime.__version__}"


def session_options(threads: int) -> Any:
    """For ONNX Runtime, on so many cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what is wrong is told by us
    return options


def has_provider(device: str) -> bool:
    """Whether this build of ONNX Runtime has a device."""
    return PROVIDERS[device] in onnxruntime.get_available_providers()


def provider(device: str, *, strict: bool = False) -> str:
    """The name of the provider to use; one that is not there is a warning and the CPU, or an error where strict."""
    there = onnxruntime.get_available_providers()
    if device == "auto":
        return next(name for name in AUTO if PROVIDERS[name] in there)
    if device not in PROVIDERS:
        raise ConfigError(f"unknown device {device!r} for a graph: choose from auto, {', '.join(PROVIDERS)}")
    if PROVIDERS[device] in there:
        return device
    offered = ", ".join(name for name, full in PROVIDERS.items() if full in there)
    missing = f"{device} is not in this build of ONNX Runtime, which has {offered}"
    if strict:
        raise ConfigError(f"{missing}: install the build that has it, or choose another --device")
    logger.warning(f"{missing}: scoring on the CPU")
    return "cpu"


class Runtime(BaseScorer):
    """Scores images with ONNX Runtime; `bgad.load` gives one for a model folder that holds a graph."""

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
        super().__init__(card, threads=threads, batch=batch)
        self.device = provider(device, strict=strict)
        self._graph = graph
        self._here = threading.local()
        self._lock = threading.Lock()
        self._sessions: dict[int, Any] = {}
        self.session = self._session(self.threads)
        self.strict = strict
        running = self.session.get_providers()[0]
        if running != PROVIDERS[self.device]:
            if strict:
                raise ConfigError(f"{self.device} cannot be used here: ONNX Runtime took {running} instead")
            logger.warning(f"{self.device} cannot be used here: scoring on the CPU")
            self.device = "cpu"

    def _session(self, threads: int) -> Any:
        """One for each number of threads; a session may be used from many threads."""
        with self._lock:
            if threads not in self._sessions:
                self._sessions[threads] = self._open(threads)
            return self._sessions[threads]

    def _open(self, threads: int) -> Any:
        options = session_options(threads)
        wanted = list(dict.fromkeys((PROVIDERS[self.device], CPU)))
        try:
            session = onnxruntime.InferenceSession(self._graph, options, providers=wanted, enable_fallback=0)
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime cannot load the graph of {self.card.name} ({first_line(error)}): "
                "export it again with `bgad export`"
            ) from error
        inputs = [(i.name, i.shape[1:]) for i in session.get_inputs()]
        outputs = len(session.get_outputs())
        if inputs != [(PIXELS, [*self.card.input.shape, 3])] or outputs != 2 + len(self.card.levels):
            raise ModelError(f"{GRAPH} does not belong to its card: export the model again with `bgad export`")
        return session

    def start_thread(self) -> None:
        """See BaseScorer."""
        self._here.beside_others = True

    def run(self, pixels: FloatArray) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """See BaseScorer."""
        beside_others = self.device == "cpu" and getattr(self._here, "beside_others", False)
        session = self._session(1) if beside_others else self.session
        try:
            score, anomaly, *levels = session.run(None, {PIXELS: np.ascontiguousarray(pixels, np.float32)})
        except Exception as error:  # its errors have no common class
            raise ModelError(f"ONNX Runtime failed on {self.device}: {first_line(error)}; try --device cpu") from error
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
    ) -> Runtime:
        """Read a model folder and verify the files that ONNX Runtime uses; the torch weights are not opened."""
        folder = Path(folder)
        if GRAPH not in model_folder.read_card(folder).files:
            raise no_graph(folder)
        card, files = model_folder.read_files(folder, (GRAPH,))
        return cls(card, files[GRAPH], device=device, threads=threads, batch=batch, strict=strict)


def no_graph(folder: Path) -> ModelError:
    """What to say of a model folder that cannot be scored without torch."""
    return ModelError(
        f"{folder} has no {GRAPH}, which scoring without torch needs: run `bgad export {folder}` where "
        "bgad[train] is installed, or install it here: pip install 'bgad[train]'"
    )
