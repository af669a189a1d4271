"""Builds the card of a model that has been fitted and calibrated."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

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
from bgad.calibration import Calibration
from bgad.config.baselines import PIXELS
from bgad.geometry.roi import Roi
from bgad.model import backbone as backbones
from bgad.model.scoring import ScoringModel
from bgad.training.run import TrainingRun
from bgad.types import PARTS, FloatArray


@dataclass(frozen=True)
class FitFacts:
    """What a fit says about its model, beside the recipe and the data."""

    levels: tuple[LevelCard, ...]  # none in a baseline
    map: MapCard
    score_parts: tuple[ScorePart, ...]
    calibration: Calibration
    training: TrainingCard


@dataclass(frozen=True)
class LoopSeconds:
    """The time that a fit took, and the part of it that earlier runs have spent."""

    total: float
    resumed: float


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
        ),
        levels=facts.levels,
        map=facts.map,
        score_parts=facts.score_parts,
        calibration={FLOAT32: CalibrationCard.of(facts.calibration)},
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


def score_parts(weights: Sequence[float], calibration_parts: FloatArray, rate: float) -> tuple[ScorePart, ...]:
    """Describe the parts of a score; `calibration_parts` (n, 3) are those of the calibration normals."""
    limits = np.quantile(calibration_parts, 1 - rate, axis=0, method="higher")
    return tuple(
        ScorePart(name, part_weight, float(limit))
        for name, part_weight, limit in zip(PARTS, weights, limits, strict=True)
        if part_weight
    )


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
    if name in backbones.BACKBONES:
        return "Apache-2.0 (EfficientNet-Lite weights trained on ImageNet)"
    return f"see timm's page of {name}"
