"""The training of one model on cached features: both phases, the weights of the score, calibration and the card.

A baseline has a fit of its own, and shares the run and the card with this one.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from bgad._version import __version__
from bgad.artifact.card import (
    FLOAT32,
    CalibrationCard,
    Card,
    DataCard,
    InputCard,
    LevelCard,
    MapCard,
    ProvenanceCard,
    RoiCard,
    ScorePart,
    TrainingCard,
)
from bgad.config.baselines import PIXELS
from bgad.data import tiled_split
from bgad.data.layouts import Dataset
from bgad.data.split import Split
from bgad.geometry.roi import Roi
from bgad.inference.base import SampleScore
from bgad.inference.torch_engine import Detector
from bgad.methods.checkpoint import LogRow
from bgad.model import backbone as backbones
from bgad.model.boundary import abnormal_boundary
from bgad.model.flow import LevelConstants
from bgad.model.scoring import LevelModel, ScoringModel
from bgad.training.fit_image_head import HeadScores, fit_image_head
from bgad.training.fit_score_weights import ScoreWeightFitter
from bgad.training.loop import LoopData, TrainingLoop
from bgad.training.objective import NORMALISER
from bgad.training.shared_phases import SharedPhase
from bgad.training.training_set import TrainingSet, choose_validation_normals, partition_normals
from bgad.training.warm_start import WarmStart, average_with_parent
from bgad.types import PARTS, FloatArray, Index, ProgressTask, RunControl, Sample, Shape

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingRun:
    """Everything that is decided before the training of one model begins."""

    name: str
    dataset: Dataset
    split: Split
    training_split: Split  # the split with tiles in place of images, where the recipe cuts them
    bits: int
    device: torch.device
    work: Path
    false_reject_rate: float | None = None
    confidence: float | None = None
    roi: Roi | None = None
    warm_start: WarmStart | None = None
    largest_image: Shape | None = None  # the training image with most pixels
    memory_gb: float = 4.0  # that a fit may take beside the cached features
    started: float = field(default_factory=time.monotonic)
    control: RunControl = field(default_factory=RunControl)


@dataclass(frozen=True)
class FitFacts:
    """What a fit says about its model, beside the recipe and the data."""

    levels: tuple[LevelCard, ...]  # none in a baseline
    map: MapCard
    score_parts: tuple[ScorePart, ...]
    calibration: CalibrationCard
    training: TrainingCard


@dataclass(frozen=True)
class LoopSeconds:
    """The time that a fit took, and the part of it that earlier runs have spent."""

    total: float
    resumed: float


class ModelFit:
    """Fits one model: run through `steps`, then call `finish`."""

    def __init__(
        self,
        run: TrainingRun,
        model: LevelModel,
        training_set: TrainingSet,
        *,
        shared_phases: Mapping[int, SharedPhase] | None = None,
    ) -> None:
        self.run, self.model, self.training_set = run, model, training_set
        self._initial = [parameter.detach().clone() for parameter in model.levels.parameters()]
        chosen = validation_normals(model, training_set, run.warm_start)
        self.partition = partition_normals(training_set, chosen, with_bank=model.config.level == "distance")
        self.head_scores = self._fit_image_head()
        new_anomalies = None if run.warm_start is None else run.warm_start.new_anomalies
        self.weight_fitter = ScoreWeightFitter(model, training_set, self.partition, self.head_scores, new_anomalies)
        data = LoopData(
            self.partition.flow_normals,
            training_set.anomalies,
            self.partition.validation,
            training_set.roi_positions,
            training_set.trained_positions,
            self.partition.bank,
        )
        self.loop = TrainingLoop(
            model,
            data,
            run.work,
            run.device,
            shared_phases=shared_phases,
            warm_start=run.warm_start is not None,
            control=run.control,
        )

    def _fit_image_head(self) -> HeadScores | None:
        """Fit the image head, if the model has one; returns its cross-validated scores."""
        head, warm_start = self.model.image_head, self.run.warm_start
        if head is None:
            return None
        taught = None if warm_start is None else warm_start.taught_anomalies
        normals, known = self.training_set.normals, self.training_set.known
        return fit_image_head(self.model, head, normals, known, self.partition.reference_index, taught)

    @property
    def step(self) -> int:
        """Number of training steps that are done."""
        return self.loop.step

    def resume(self) -> None:
        """Continue from the checkpoint in the work folder, if there is one."""
        if self.loop.restore():
            logger.info(f"going on from step {self.loop.step} of {self.loop.schedule.steps}")

    def steps(self) -> Iterator[LogRow]:
        """Run both phases and fit the weights of the score; yields the log row of every training step.

        The weights are fitted between the phases, while the flows know no anomaly. Where no anomaly pushes them in
        phase 2, they are fitted at the end, when the flows have trained longest.
        """
        loop, schedule = self.loop, self.loop.schedule
        yield from loop.phase(1)
        if loop.anomalies and loop.step == schedule.push_at < schedule.steps:
            self.weight_fitter.fit(loop.likelihoods)
        yield from loop.phase(2)
        if self.run.warm_start is not None:
            average_with_parent(list(self.model.levels.parameters()), self._initial)
        if not loop.anomalies or schedule.push_at >= schedule.steps:
            self.weight_fitter.fit(loop.likelihoods)

    def finish(self) -> Detector:
        """Fix the constants of the model, calibrate it and build its card; nothing is written."""
        run, model = self.run, self.model
        constants = self.loop.set_constants()
        model.eval()
        reference = [run.training_split.train[i] for i in self.partition.reference_index]
        reference = [sample for sample in reference if sample.ignore is None] or reference
        task = ProgressTask(run.control.progress, "calibrating", len(run.split.calibration) + len(reference))

        def score(samples: list[Sample]) -> Iterator[SampleScore]:
            for result in self.training_set.score(model, samples):
                task.advance()
                yield result

        model.map_constants.copy_(torch.tensor([0.0, 1.0]))  # the map's part as it is, to be standardised below
        normals = [(output.map, output.parts[0]) for output, _ in score(reference)]
        map_card = self._map_card(np.stack([normal_map for normal_map, _ in normals]))
        _set_map_constants(model, torch.tensor([part for _, part in normals]))
        parts = _score_parts(model)
        normals_to_calibrate = (scored.calibrating for scored in score(run.split.calibration))
        calibration = CalibrationCard.from_normals(normals_to_calibrate, parts, run.false_reject_rate, run.confidence)
        levels = _level_cards(model, self.loop, constants)
        facts = FitFacts(levels, map_card, parts, calibration, self._training())
        return Detector(model, build_card(run, model, facts), run.device)

    def _training(self) -> TrainingCard:
        """Describe how the model was trained."""
        loop, tile, images = self.loop, self.model.config.tile, self.run.training_split.train
        validation = {images[i].name for i in self.partition.validation_index}
        if tile.size:
            validation = {tiled_split.image_name_of(name, tile) for name in validation}
        seconds = LoopSeconds(loop.seconds, loop.resumed_seconds)
        return training_card(self.run, seconds, loop.log.count(), sorted(validation))

    def _map_card(self, normal_maps: FloatArray) -> MapCard:
        """Return the mean of the anomaly map over normals, and its boundary: their 1 - beta quantile."""
        config, roi = self.model.config, self.run.roi
        # With tiles, the region of interest is in the pixels of the image, not in those of the map of a tile.
        inside = None if self.training_set.roi_positions is None or roi is None else roi.resized(config.backbone.size)
        values = normal_maps if inside is None else normal_maps[:, inside]
        return MapCard(float(values.mean()), float(np.quantile(values, 1 - config.loss.beta)))


def validation_normals(model: LevelModel, training_set: TrainingSet, warm_start: WarmStart | None = None) -> Index:
    """Return the numbers of the normals that no flow is trained on; none where nothing needs them."""
    if model.image_head is None and model.config.score.evidence_weight <= 0:
        return np.arange(0)
    if warm_start is not None:
        return warm_start.validation
    return choose_validation_normals(training_set.normals.count, training_set.image_numbers)


def _set_map_constants(model: LevelModel, scores: torch.Tensor) -> None:
    """Set mean and spread of the map's scores (n,) over normals; they make it comparable to the image head's."""
    spread = scores.std(correction=0).clamp(min=1e-3 * float(scores.abs().mean()) + 1e-6)
    model.map_constants.copy_(torch.stack([scores.mean(), spread]))


def _score_parts(model: LevelModel) -> tuple[ScorePart, ...]:
    """Describe the parts of a model's score."""
    weight = float(model.score_weights[-1]) if model.image_head is not None and model.image_head.is_fitted else 0.0
    known_weight = weight * model.config.score.direction_weight if model.config.uses_anomalies else 0.0
    return score_parts((1.0, weight, known_weight))


def _level_cards(
    model: LevelModel, loop: TrainingLoop, level_constants: Sequence[LevelConstants]
) -> tuple[LevelCard, ...]:
    """Describe each level with the statistics that fusion uses."""
    config = model.config
    blocks = config.backbone.blocks or [None] * len(loop.levels)
    return tuple(
        LevelCard(
            stride=stride,
            weight=weight,
            channels=level.channels,
            grid=level.grid,
            mean=constants.centre,
            std=constants.spread,
            max=constants.highest,
            normal_boundary=constants.boundary,
            abnormal_boundary=abnormal_boundary(constants.boundary / NORMALISER, config.loss.tau) * NORMALISER,
            block=block,
        )
        for stride, block, level, constants, weight in zip(
            model.backbone.strides[: len(loop.levels)],
            blocks,
            loop.levels,
            level_constants,
            model.score_weights[:-1].tolist(),
            strict=True,
        )
    )


def build_card(run: TrainingRun, model: ScoringModel, facts: FitFacts) -> Card:
    """Describe a trained and calibrated model; exporting and writing add their parts."""
    config, dataset, split = model.config, run.dataset, run.split
    return Card(
        name=run.name,
        method=config.method,
        provenance=ProvenanceCard(__version__, datetime.now(UTC).isoformat(timespec="seconds")),
        data=DataCard(
            name=dataset.name,
            layout=dataset.layout,
            protocol=split.protocol,
            known_class=split.known_class,
            subset=split.subset,
            known=len(split.known),
            notes=tuple(dataset.notes + split.notes),
        ),
        config=replace(config, backbone=replace(config.backbone, weights="")),
        input=InputCard(
            height=config.backbone.size,
            width=config.backbone.size,
            bits=run.bits,
            mean=tuple(model.backbone.mean.flatten().tolist()),
            std=tuple(model.backbone.std.flatten().tolist()),
            largest_image=run.largest_image,
        ),
        levels=facts.levels,
        map=facts.map,
        score_parts=facts.score_parts,
        calibration={FLOAT32: facts.calibration},
        training=facts.training,
        roi=None if run.roi is None else _roi_card(run.roi),
        licences={
            "bgad": "Apache-2.0",
            "backbone": _backbone_licence(getattr(config.baseline, "network", config.backbone.name)),
            "data": "that of the training images applies to what the model learnt from them",
        },
        split=split.to_json(),
        roi_png=None if run.roi is None else run.roi.png(),
    )


def score_parts(weights: Sequence[float]) -> tuple[ScorePart, ...]:
    """Describe the parts of a score by their weights; one without a weight is left out."""
    return tuple(ScorePart(name, weight) for name, weight in zip(PARTS, weights, strict=True) if weight)


def training_card(run: TrainingRun, seconds: LoopSeconds, steps: int, validation: Sequence[str] = ()) -> TrainingCard:
    """Describe how a model was trained; `validation` are the names of the normals held out from it."""
    return TrainingCard(
        seconds=round(time.monotonic() - run.started + seconds.resumed, 2),
        loop_seconds=round(seconds.total, 2),
        steps=steps,
        device=str(run.device),
        torch=str(torch.__version__),
        python=platform.python_version(),
        validation_normals=tuple(validation),
    )


def _roi_card(roi: Roi) -> RoiCard:
    """Describe the region of interest."""
    height, width = roi.mask.shape
    return RoiCard(height, width, float(roi.mask.mean()), roi.polygons)


def _backbone_licence(name: str) -> str:
    if name == PIXELS:
        return "none: the method learns from pixels"
    packaged = backbones.BACKBONES.get(name)
    return packaged.licence if packaged else f"see timm's page of {name}"
