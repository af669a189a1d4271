"""Features of a small data set, for several tests."""

from __future__ import annotations

from pathlib import Path

import torch

from bgad.config import Config
from bgad.data import layouts
from bgad.data.sample_io import ImageCache
from bgad.data.split import make_split
from bgad.model import backbone as backbones
from bgad.model.scoring import LevelModel
from bgad.training.training_set import CacheOptions, TrainingSet, build_training_set

CPU = torch.device("cpu")


def prepared(root: Path, config: Config, work: Path, known: int = 6) -> tuple[LevelModel, TrainingSet]:
    """A model with random flows, and the features of a small set."""
    split = make_split(layouts.load(root), seed=0, known=known, holdout=4)
    model = LevelModel(config, backbones.build(config.backbone))
    images = ImageCache(config.backbone.size)
    return model, build_training_set(model, split, images, CPU, CacheOptions(work, "key", 1.0))
