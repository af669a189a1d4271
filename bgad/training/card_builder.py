"""The model card of a finished training."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import replace
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
from bgad.data import tiled_split
from bgad.geometry.roi import Roi
from bgad.model import backbone as backbones
from bgad.model.boundary import NORMALISER, abnormal_boundary
from bgad.model.scoring import LevelConstants, ScoringModel
from bgad.training.loop import TrainingLoop
from bgad.training.run import TrainingRun
from bgad.training.training_set import NormalPartition
from bgad.types import PARTS, FloatArray


def build_card(
    run: TrainingRun,
    model: ScoringModel,
    loop: TrainingLoop,
    partition: NormalPartition,
    constants: Sequence[LevelConstants],
    map_card: MapCard,
    parts: Sequence[ScorePart],
    calibration: Calibration,
) -> Card:
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
        levels=_level_cards(model, loop, constants),
        map=map_card,
        score_parts=tuple(parts),
        calibration={FLOAT32: CalibrationCard.of(calibration)},
        training=_training_card(run, model, loop, partition),
        roi=None if run.roi is None else _roi_card(run.roi),
        licences={
            "bgad": "Apache-2.0",
            "backbone": _backbone_licence(config.backbone.name),
            "data": "that of the training images applies to what the model learnt from them",
        },
        split=split.to_json(),
        roi_png=None if run.roi is None else run.roi.png(),
    )


def score_parts(model: ScoringModel, calibration_parts: FloatArray, rate: float) -> tuple[ScorePart, ...]:
    """Describe the parts of a model's score; `calibration_parts` (n, 3) are those of the calibration normals."""
    weight = float(model.score_weights[-1]) if model.image_head is not None and model.image_head.is_fitted else 0.0
    known_weight = weight * model.config.score.direction_weight if model.config.uses_anomalies else 0.0
    weights = (1.0, weight, known_weight)
    limits = np.quantile(calibration_parts, 1 - rate, axis=0, method="higher")
    return tuple(
        ScorePart(name, part_weight, float(limit))
        for name, part_weight, limit in zip(PARTS, weights, limits, strict=True)
        if part_weight
    )


def _level_cards(
    model: ScoringModel, loop: TrainingLoop, level_constants: Sequence[LevelConstants]
) -> tuple[LevelCard, ...]:
    """Describe each level with the statistics that fusion uses."""
    config = model.config
    return tuple(
        LevelCard(
            stride=stride,
            weight=weight,
            channels=level.flow.channels,
            grid=level.grid,
            mean=constants.centre,
            std=constants.spread,
            max=constants.highest,
            normal_boundary=constants.boundary,
            abnormal_boundary=abnormal_boundary(constants.boundary / NORMALISER, config.loss.tau) * NORMALISER,
        )
        for stride, level, constants, weight in zip(
            config.backbone.strides, loop.levels, level_constants, model.score_weights[:-1].tolist(), strict=True
        )
    )


def _training_card(
    run: TrainingRun, model: ScoringModel, loop: TrainingLoop, partition: NormalPartition
) -> TrainingCard:
    """Describe how the model was trained."""
    tile, images = model.config.tile, run.training_split.train
    validation = {tiled_split.image_name_of(images[i].name, tile) for i in partition.validation_index}
    return TrainingCard(
        seconds=round(time.monotonic() - run.started + loop.resumed_seconds, 2),
        loop_seconds=round(loop.seconds, 2),
        steps=loop.log.count(),
        device=str(run.device),
        torch=str(torch.__version__),
        python=platform.python_version(),
        validation_normals=tuple(sorted(validation)),
    )


def _roi_card(roi: Roi) -> RoiCard:
    """Describe the region of interest."""
    height, width = roi.mask.shape
    return RoiCard(height, width, float(roi.mask.mean()), roi.polygons)


def _backbone_licence(name: str) -> str:
    if name in backbones.BACKBONES:
        return "Apache-2.0 (EfficientNet-Lite weights trained on ImageNet)"
    return f"see timm's page of {name}"
