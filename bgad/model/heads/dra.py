"""DRA's heads: normality of the image, and scores of known, pseudo and residual anomalies at each position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bgad.config import Config
from bgad.config.supervised import DraConfig
from bgad.model.heads.base import FeatureSpec, HeadOutput
from bgad.model.heads.supervised import SupervisedHead, over_scales
from bgad.model.scoring import map_score


class DraScores(NamedTuple):
    """The score of each head (B,); the normality head is high for normals, the others for anomalies."""

    normality: Tensor
    known: Tensor
    pseudo: Tensor
    residual: Tensor


class DraHead(SupervisedHead):
    """The residual head rates how far features differ from the mean feature map of reference normals."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, DraConfig)  # noqa: S101 - Config.check ensures it
        self.top_share, channels = settings.top_share, self.features.channels
        self.normality = nn.Sequential(nn.Linear(channels, settings.hidden), nn.ReLU(), nn.Linear(settings.hidden, 1))
        self.known, self.pseudo = nn.Conv2d(channels, 1, 1), nn.Conv2d(channels, 1, 1)
        self.residual = nn.Conv2d(channels, 1, 3, padding=1)
        for scale, grid in enumerate(self.features.grids):
            self.register_buffer(f"reference{scale}", torch.zeros(channels, *grid))

    @property
    def references(self) -> list[Tensor]:
        """Mean feature map (D, h, w) of the reference normals, at each scale."""
        return [self.get_buffer(f"reference{scale}") for scale in range(len(self.features.grids))]

    def set_references(self, features: Sequence[Tensor]) -> None:
        """Store the mean of the feature maps (n, D, h, w) of the reference normals at each scale."""
        for stored, maps in zip(self.references, features, strict=True):
            stored.copy_(maps.mean(0))

    def position_scores(self, features: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (B, D, h, w) of a scale -> absolute scores (B, h, w) of known, pseudo and residual anomalies."""
        scores = self.known(features), self.pseudo(features), self.residual(reference - features)
        known, pseudo, residual = (score[:, 0].abs() for score in scores)
        return known, pseudo, residual

    def scores(self, features: Sequence[Tensor], references: Sequence[Tensor]) -> DraScores:
        """Features (B, D, h, w) and reference maps (D, h, w) of each scale -> the scores of all heads."""
        normality = over_scales([self.normality(x.mean((2, 3)))[:, 0] for x in features])
        rated = [self.position_scores(x, mean) for x, mean in zip(features, references, strict=True)]
        known, pseudo, residual = (
            over_scales([map_score(scale[head], self.top_share) for scale in rated]) for head in range(3)
        )
        return DraScores(normality, known, pseudo, residual)

    def rate(self, features: Sequence[Tensor]) -> HeadOutput:
        """See SupervisedHead; the map is the sum of the heads that have one."""
        scores = self.scores(features, self.references)
        rated = [self.position_scores(x, mean) for x, mean in zip(features, self.references, strict=True)]
        maps = [known + pseudo + residual for known, pseudo, residual in rated]
        return HeadOutput(scores.known + scores.pseudo + scores.residual, self.full_map(maps), -scores.normality)
