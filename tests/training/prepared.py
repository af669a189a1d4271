"""Features of a small data set, for several tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bgad.config import Config
from bgad.data import layouts
from bgad.data.sample_io import ImageCache
from bgad.data.split import make_split
from bgad.model import backbone as backbones
from bgad.model.scoring import ScoringModel
from bgad.training.training_set import CacheOptions, TrainingSet, build_training_set
from tests.conftest import tiny_config

CPU = torch.device("cpu")


def one_stride(**values: Any) -> Config:
    """The tiny recipe with one stride in the image head, whose covariance is then quickly inverted."""
    return tiny_config(**{"backbone": {"image_head_strides": [16]}, **values})


def prepared(root: Path, config: Config, work: Path, known: int = 6) -> tuple[ScoringModel, TrainingSet]:
    """A model with random flows, and the features of a small set."""
    split = make_split(layouts.load(root), seed=0, known=known, holdout=4)
    model = ScoringModel(config, backbones.build(config.backbone))
    images = ImageCache(config.backbone.size)
    return model, build_training_set(model, split, images, CPU, CacheOptions(work, "key", 1.0))
