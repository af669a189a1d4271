"""Adds a precision to a model: a calibration of its own, from the same calibration normals and at the same rate.

The images are found by the split in the model folder. Nothing is chosen by the test images.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FLOAT32, AgreementCard, CalibrationCard, CalibrationNormal, Card
from bgad.data import layouts
from bgad.data.layouts import Dataset
from bgad.data.sample_io import digest, read
from bgad.errors import BgadError, ConfigError, DataError, ModelError
from bgad.export.agreement import Compared, Scored, agreement, check
from bgad.export.export import ExportOptions, card_entry, checked_graph
from bgad.features.cache import even_pick
from bgad.inference import openvino_engine as openvino
from bgad.inference.base import BaseScorer
from bgad.inference.precision import PRECISIONS
from bgad.inference.torch_engine import Detector
from bgad.methods import checkpoint
from bgad.types import ImageLike, Progress, ProgressTask, Sample, SplitImage, SplitRecord

logger = logging.getLogger(__name__)

OPENVINO = "openvino"
MAX_TEST_IMAGES = 400  # that are scored at both precisions


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """Where the images of a model are, and what computes in the precision."""

    data: str | Path | None = None  # None: where they were at training
    root: str | Path | None = None  # folder of the public data sets, where `data` is one
    device: str = "cpu"  # cpu, gpu or npu: the calibration is for it alone


@dataclass(frozen=True)
class _Images:
    """The images of a model's split that are at hand."""

    calibration: list[Sample]
    known: list[Sample]
    test: list[Sample]


def add_precision(
    folder: str | Path,
    precision: str,
    check_images: Sequence[ImageLike] | None = None,
    *,
    options: PrecisionOptions | None = None,
    progress: Progress | None = None,
) -> AgreementCard:
    """Calibrate a model for a precision below float32 and write it into the model folder.

    A graph for OpenVINO is added where the folder has none, compared with torch on `check_images` or on synthetic ones.
    ModelError where the precision does not agree with float32; the folder then stays as it was.
    """
    folder, options = Path(folder), options or PrecisionOptions()
    lower = [name for name in PRECISIONS if name != FLOAT32]
    if precision not in lower:
        raise ConfigError(f"unknown precision {precision!r} to add: choose from {', '.join(lower)}")
    openvino.check_precision(precision, openvino.pick(options.device, strict=True))
    card, files = model_folder.read_all(folder)
    images = _find_images(folder, card, _load_data(card, options))
    if check_images and openvino.XML in files:
        raise ConfigError(
            f"{folder} has a graph for OpenVINO, which was compared when it was written: leave out --check"
        )
    if openvino.XML not in files:
        graph, parity = checked_graph(Detector.load(folder, "cpu"), check_images, ExportOptions(OPENVINO), progress)
        entry = card_entry(parity, ExportOptions(OPENVINO))
        card, files = replace(card, exports={**card.exports, OPENVINO: entry}), files | graph
    card = _calibrated(card, files, precision, images, options.device, progress)
    check(card.agreement[precision], len(images.known), precision)
    model_folder.check_same(folder, card)  # its checksum is still that of the card that was read
    with checkpoint.passing_on_provenance(folder):
        model_folder.write(folder, card, files)
    return card.agreement[precision]


def _load_data(card: Card, options: PrecisionOptions) -> Dataset:
    """Return the data set of a model; DataError where nobody knows where it is."""
    if options.data is not None:
        return layouts.locate(Path(options.data), options.root)
    source = checkpoint.recall(card.checksum)
    if source is None:
        raise DataError("the images that calibrated the model are needed: say where its data set is with --data")
    if options.root is not None:
        if source.root is None:
            raise ConfigError(
                "--root is the folder of public data sets, and this model was not trained on one: give --data"
            )
        source = replace(source, root=Path(options.root))
    try:
        return source.load()
    except DataError as error:
        raise DataError(f"the images that calibrated the model are needed ({error}): give --data") from error


def _find_images(folder: Path, card: Card, dataset: Dataset) -> _Images:
    """Return the images of the split, recognised by their content; DataError unless every calibration normal is there.

    Others may be missing: they only tell how the precision agrees with float32.
    """
    find = _finder(dataset)
    by_role: dict[str, list[Sample]] = {"calibration": [], "known": [], "test": []}
    missing = []
    for image in SplitRecord.from_json(card.split).images:
        sample = find(image) if image.role in by_role else None
        if sample is not None:
            by_role[image.role].append(sample)
        elif image.role == "calibration":
            missing.append(image.name)
    if missing:
        raise DataError(
            f"{dataset.root} lacks {len(missing)} of the images that calibrated {folder}, the first: {missing[0]}; "
            "give the data set that it was trained on with --data"
        )
    known = sum(image.role == "known" for image in SplitRecord.from_json(card.split).images)
    if len(by_role["known"]) < known:
        missed = known - len(by_role["known"])
        logger.warning(f"{missed} of {known} known anomalies are not in {dataset.root}: the check goes on without them")
    test = by_role["test"]
    chosen = [test[i] for i in even_pick(len(test), min(len(test), MAX_TEST_IMAGES))]
    return _Images(by_role["calibration"], by_role["known"], chosen)


def _finder(dataset: Dataset) -> Callable[[SplitImage], Sample | None]:
    """Return a function that finds an image of a split: by its name, or where that has changed, by its content."""
    by_name = {sample.name: sample for sample in dataset.samples}
    by_content: dict[str, Sample] = {}

    def find(image: SplitImage) -> Sample | None:
        named = by_name.get(image.name)
        if named is not None and _content(named) == image.sha256:
            return named
        if not by_content:
            by_content.update({_content(sample): sample for sample in dataset.samples})
        return by_content.get(image.sha256)

    return find


def _content(sample: Sample) -> str:
    try:
        return digest(sample)
    except (BgadError, OSError):
        return ""  # a file that cannot be read is not the image of any split


def _calibrated(
    card: Card,
    files: dict[str, bytes],
    precision: str,
    images: _Images,
    device: str,
    progress: Progress | None,
) -> Card:
    """Return the card with the calibration of a precision and its agreement with float32."""
    count = len(images.calibration) + len(images.known) + len(images.test)
    task = ProgressTask(progress, f"calibrating for {precision}", 2 * count)
    float32 = card.calibration[FLOAT32]
    # The scorer that is calibrated decides nothing yet, so it gets the thresholds of float32.
    provisional = replace(card, calibration={**card.calibration, precision: float32})
    graph = (files[openvino.XML], files[openvino.BIN])
    normals, known, test = Scored(), Scored(), Scored()
    calibration = float32
    for name, where in ((FLOAT32, "cpu"), (precision, device)):
        scorer = openvino.OpenVino(provisional, *graph, device=where, strict=True, precision=name)
        scored = list(_score(scorer, images.calibration, task))
        if name == precision:
            rate = None if float32.is_default_rate else float32.false_reject_rate
            calibration = CalibrationCard.from_normals(scored, card.score_parts, rate, float32.confidence)
        for group, results in (
            (normals, scored),
            (known, _score(scorer, images.known, task)),
            (test, _score(scorer, images.test, task)),
        ):
            scores = [result.score for result in results]
            (group.float32 if name == FLOAT32 else group.other).extend(scores)
    compared = Compared(normals, known, test, tuple(sample.label for sample in images.test))
    thresholds = float32.threshold, calibration.threshold
    found = agreement(compared, thresholds, openvino.version(), openvino.DEVICES[device])
    return replace(
        card,
        calibration={**card.calibration, precision: calibration},
        agreement={**card.agreement, precision: found},
    )


def _score(scorer: BaseScorer, samples: Sequence[Sample], task: ProgressTask) -> Iterator[CalibrationNormal]:
    """Yield the scores of samples; ModelError where one is no number."""
    bits = scorer.card.input.bits
    sources = (sample.path if sample.box is None else read(sample, bits) for sample in samples)
    for sample, result in zip(samples, scorer.calibrating(sources), strict=True):
        if not (math.isfinite(result.score) and math.isfinite(result.map_max)):
            raise ModelError(f"in {scorer.precision}, {sample.name} has no finite score: use float32 for this model")
        yield result
        task.advance()
