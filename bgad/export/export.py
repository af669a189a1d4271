"""Export of a model folder's graph, checked against torch before it is written."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FLOAT32, Card, ExportCard, ParityCard
from bgad.errors import BgadError, ConfigError, ModelError
from bgad.export.onnx import to_onnx
from bgad.export.openvino import to_openvino
from bgad.inference import openvino_engine
from bgad.inference.base import BaseScorer
from bgad.inference.onnx_engine import GRAPH, Runtime, engine_version
from bgad.inference.torch_engine import Detector
from bgad.types import FloatArray, ImageLike, Progress, ProgressTask

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4  # of the range of scores or map values; float32 engines stay below a tenth of it
BATCH = 4  # images that are compared at a time


class Inputs(Protocol):
    """A number of inputs of the model, each (S, S, 3) in float32."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[FloatArray]: ...


@dataclass(frozen=True)
class Parity:
    """The largest differences of a graph from torch, as shares of the range of scores and of map values."""

    images: int  # number of images that were compared
    score: float
    map: float
    tolerance: float = TOLERANCE

    @property
    def holds(self) -> bool:
        """Tell whether both differences are within the tolerance."""
        return self.score <= self.tolerance and self.map <= self.tolerance


def compare(
    detector: Detector,
    engine: BaseScorer,
    images: Sequence[ImageLike] | None = None,
    progress: Progress | None = None,
    *,
    inputs: Inputs | None = None,
) -> Parity:
    """Run torch and another engine on the same inputs: those of images, those given, or else synthetic ones.

    The range of the scores is that of the calibration normals, or the distance of an image's score from their mean
    where that is larger. So one extreme image does not hide differences of the others.
    """
    calibration = np.array(detector.card.calibration_at().scores)
    centre, spread = calibration.mean(), max(float(np.ptp(calibration)), 1e-12)
    score_difference, map_difference = 0.0, 0.0
    map_low, map_high, count = np.inf, -np.inf, 0
    if inputs is None:
        inputs = [] if images is not None else synthetic_images(detector.card.config.backbone.size)
    task = ProgressTask(progress, "comparing the graph with torch", len(inputs if images is None else images))
    for pixels in _batches(_counted(inputs, task) if images is None else _inputs(detector, images, task)):
        expected, _, expected_maps, _ = detector.run(pixels)
        scores, _, maps, _ = engine.run(pixels)
        if not (np.isfinite(scores).all() and np.isfinite(maps).all()):
            score_difference = map_difference = math.inf
        map_low, map_high = min(map_low, float(expected_maps.min())), max(map_high, float(expected_maps.max()))
        scale = np.maximum(np.abs(expected - centre), spread)
        score_difference = max(score_difference, float((np.abs(expected - scores) / scale).max()))
        map_difference = max(map_difference, float(np.abs(expected_maps - maps).max()))
        count += len(pixels)
    if not count:
        raise ModelError("there is no image to compare the exported graph with torch on")
    return Parity(count, score_difference, map_difference / max(map_high - map_low, 1e-12))


def _inputs(detector: Detector, images: Sequence[ImageLike], task: ProgressTask) -> Iterator[FloatArray]:
    """Yield the model's inputs for the images that can be read."""
    for image in images:
        try:
            yield from (pixels for _, pixels in detector.inputs(image)[1])
        except BgadError as error:
            logger.warning(str(error))
        task.advance()


def _counted(inputs: Inputs, task: ProgressTask) -> Iterator[FloatArray]:
    for pixels in inputs:
        yield pixels
        task.advance()


def _batches(source: Iterator[FloatArray]) -> Iterator[FloatArray]:
    while batch := list(islice(source, BATCH)):
        yield np.stack(batch)


def synthetic_images(size: int, seed: int = 0) -> Sequence[FloatArray]:
    """Return synthetic images of many kinds: flat, ramps, and noise of several grain sizes."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 1, size, dtype=np.float32)
    flat = [np.full((size, size, 3), value, np.float32) for value in (0.0, 0.5, 1.0)]
    ramps = [np.broadcast_to(values, (size, size, 3)).copy() for values in (ramp[None, :, None], ramp[:, None, None])]
    noise = [
        F.interpolate(torch.from_numpy(rng.random((1, 3, n, n), np.float32)), size=(size, size), mode="bilinear")[0]
        for n in (2, 4, 8, 16, 32, 64, size)
    ]
    return [*flat, *ramps, *(image.permute(1, 2, 0).numpy() for image in noise)]


FORMATS = ("onnx", "openvino")


@dataclass(frozen=True)
class ExportOptions:
    """The format of a graph."""

    to: str = "onnx"  # one of FORMATS

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
    if any(files.get(name) != content for name, content in graph.items()):
        card = _without_precisions(card, options.to)
    model_folder.check_same(folder, card)
    model_folder.write(folder, replace(card, exports=exports), files | graph)
    return parity


def _without_precisions(card: Card, written: str) -> Card:
    """Return the card without the calibrations of lower precisions, which belong to an earlier graph for OpenVINO."""
    if written != "openvino" or not card.agreement:
        return card
    dropped = ", ".join(card.agreement)
    logger.warning(f"the new graph is not calibrated for {dropped}: run `bgad export` again with --precision")
    return replace(card, calibration={FLOAT32: card.calibration[FLOAT32]}, agreement={})


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
        files = to_openvino(graph)
        scorer = openvino_engine.OpenVino(detector.card, *files.values(), device="cpu")
    else:
        files = {GRAPH: graph}
        scorer = Runtime(detector.card, files[GRAPH], device="cpu")
    parity = compare(detector, scorer, images, progress, inputs=inputs)
    if not parity.holds:
        raise ModelError(
            f"the exported graph differs from torch by {max(parity.score, parity.map):.1e} of the range over "
            f"{parity.images} images, more than {parity.tolerance:g}: score with torch (--engine torch)"
        )
    return files, parity


def card_entry(parity: Parity, options: ExportOptions | None = None) -> ExportCard:
    """Return what the card says of an export."""
    options = options or ExportOptions()
    engine = engine_version() if options.to == "onnx" else openvino_engine.version()
    compared = ParityCard(parity.images, parity.score, parity.map, parity.tolerance)
    return ExportCard(FLOAT32, compared, str(torch.__version__), engine)
