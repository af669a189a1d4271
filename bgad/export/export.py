"""Export of a model folder's graph, checked against torch before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bgad.artifact import folder as model_folder
from bgad.artifact.card import ExportCard, ParityCard
from bgad.errors import ConfigError, ModelError
from bgad.export.onnx import halved, to_onnx
from bgad.export.openvino import to_openvino
from bgad.export.parity import TOLERANCE, Inputs, Parity, compare
from bgad.inference import openvino_engine
from bgad.inference.base import BaseScorer
from bgad.inference.onnx_engine import GRAPH, Runtime, engine_version
from bgad.inference.torch_engine import Detector
from bgad.types import ImageLike, Progress

FORMATS = ("onnx", "openvino")


@dataclass(frozen=True)
class ExportOptions:
    """The format of a graph, and how far it may differ from torch."""

    to: str = "onnx"  # one of FORMATS
    half: bool = False  # weights in 16 bits: half the file, and slightly different scores
    tolerance: float = TOLERANCE  # largest difference from torch, as a share of the range

    def check(self) -> None:
        """ConfigError for an unknown format."""
        if self.to not in FORMATS:
            raise ConfigError(f"unknown format {self.to!r}: choose from {', '.join(FORMATS)}")


def export(
    folder: Path,
    images: Sequence[ImageLike] | None = None,
    options: ExportOptions | None = None,
    progress: Progress | None = None,
) -> Parity:
    """Write the graph into a model folder and its parity into the card; ModelError where it differs from torch.

    The graph is compared on `images`, or on synthetic ones where none are given.
    """
    options = options or ExportOptions()
    detector = Detector.load(folder, "cpu")
    card, files = model_folder.read_all(folder)
    graph, parity = checked_graph(detector, images, options, progress)
    exports = {**card.exports, options.to: card_entry(parity, options)}
    model_folder.write(folder, replace(card, exports=exports), files | graph)
    return parity


def checked_graph(
    detector: Detector,
    images: Sequence[ImageLike] | None = None,
    options: ExportOptions | None = None,
    progress: Progress | None = None,
    *,
    inputs: Inputs | None = None,
) -> tuple[dict[str, bytes], Parity]:
    """Return the files of a detector's graph and its parity; ModelError where it differs from torch.

    It is compared on `images`, or on `inputs` of the model, or on synthetic ones where neither is given.
    """
    options = options or ExportOptions()
    options.check()
    graph = to_onnx(detector.model)
    scorer: BaseScorer
    if options.to == "openvino":
        files = to_openvino(graph, half=options.half)
        scorer = openvino_engine.OpenVino(detector.card, *files.values(), device="cpu")
    else:
        files = {GRAPH: halved(graph) if options.half else graph}
        scorer = Runtime(detector.card, files[GRAPH], device="cpu")
    parity = replace(compare(detector, scorer, images, progress, inputs=inputs), tolerance=options.tolerance)
    if not parity.holds:
        raise ModelError(
            f"the exported graph differs from torch by {max(parity.score, parity.map):.1e} of the range over "
            f"{parity.images} images, more than {parity.tolerance:g}: "
            + ("leave out --half, or raise --tolerance" if options.half else "score with torch (--engine torch)")
        )
    return files, parity


def card_entry(parity: Parity, options: ExportOptions | None = None) -> ExportCard:
    """Return what the card says of an export."""
    options = options or ExportOptions()
    engine = engine_version() if options.to == "onnx" else openvino_engine.version()
    compared = ParityCard(parity.images, parity.score, parity.map, parity.tolerance)
    return ExportCard("float16" if options.half else "float32", compared, str(torch.__version__), engine)
