"""The model card of a finished training."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from bgad._version import __version__
from bgad.artifact import folder as model_folder
from bgad.calibration import Calibration
from bgad.config import to_dict
from bgad.data import tiled_split
from bgad.model import backbone as backbones
from bgad.model.boundary import NORMALISER, abnormal_boundary
from bgad.model.scoring import LevelConstants, ScoringModel
from bgad.training.fit_score_weights import ScoreWeightFitter
from bgad.training.loop import TrainingLoop
from bgad.training.run import TrainingRun


def build_card(
    run: TrainingRun,
    model: ScoringModel,
    loop: TrainingLoop,
    weight_fitter: ScoreWeightFitter,
    constants: Sequence[LevelConstants],
    boundary: float,
    centre: float,
    calibration: Calibration,
) -> dict[str, Any]:
    """The contents of card.json, except the parts that exporting and writing add."""
    config, dataset, split = model.config, run.dataset, run.split
    train = run.training_split.train
    validation = {tiled_split.picture_of(train[i], config.tile) for i in weight_fitter.partition.validation_index}
    return {
        "bgad": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": run.name,
        "data": {
            "name": dataset.name,
            "layout": dataset.layout,
            "protocol": split.protocol,
            "known_class": split.known_class,
            "subset": split.subset,
            "known": len(split.known),
            "notes": dataset.notes + split.notes,
        },
        "config": to_dict(replace(config, backbone=replace(config.backbone, weights=""))),
        "input": {
            "bits": run.bits,
            "mean": model.backbone.mean.flatten().tolist(),
            "std": model.backbone.std.flatten().tolist(),
        },
        "levels": [
            {
                "stride": stride,
                "share": share,
                "channels": level.flow.channels,
                "grid": list(level.grid),
                "centre": c.centre,
                "spread": c.spread,
                "highest": c.highest,
                "boundary": c.boundary,
                "abnormal_boundary": abnormal_boundary(c.boundary / NORMALISER, config.loss.tau) * NORMALISER,
            }
            for stride, level, c, share in zip(
                config.backbone.strides, loop.levels, constants, model.mix[:-1].tolist(), strict=True
            )
        ],
        "image_weight": float(model.mix[-1]) if weight_fitter.head_scores else None,
        "boundary": boundary,
        "centre": centre,
        "roi": None if run.roi is None else {"file": model_folder.ROI, **run.roi.about()},
        "calibration": {
            "scores": sorted(calibration.scores),
            "rate": calibration.rate,
            "threshold": calibration.threshold,
            "guarantee": calibration.guarantee(),
        },
        "training": {
            "seconds": round(time.monotonic() - run.started + loop.resumed_seconds, 2),
            "loop_seconds": round(loop.seconds, 2),
            "steps": loop.log.count(),
            "aside": sorted(validation),
            "device": str(run.device),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "licences": {
            "bgad": "Apache-2.0",
            "backbone": _backbone_licence(config.backbone.name),
            "data": "that of the training images applies to what the model learnt from them",
        },
    }


def _backbone_licence(name: str) -> str:
    if name in backbones.BACKBONES:
        return "Apache-2.0 (EfficientNet-Lite weights trained on ImageNet)"
    return f"see timm's page of {name}"
