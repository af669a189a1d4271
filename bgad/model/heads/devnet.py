"""The heads of DevNet and FLOS: a linear score of each position, and the mean of the highest as the image score."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bgad.config import Config
from bgad.config.supervised import ScorerConfig
from bgad.model.heads.base import FeatureSpec, HeadOutput
from bgad.model.heads.supervised import SupervisedHead, over_scales
from bgad.model.scoring import map_score


class FlosHead(SupervisedHead):
    """A 1 x 1 convolution gives the logit of each position."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, ScorerConfig)  # noqa: S101 - Config.check ensures it
        self.top_share = settings.top_share
        self.scorer = nn.Conv2d(self.features.channels, 1, 1)

    def position_scores(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Features (B, D, h, w) of each scale -> the scores of their positions (B, h, w)."""
        return [self.scorer(x)[:, 0] for x in features]

    def image_scores(self, features: Sequence[Tensor]) -> Tensor:
        """Features (B, D, h, w) of each scale -> the image scores (B,)."""
        return over_scales([map_score(x, self.top_share) for x in self.position_scores(features)])

    def rate(self, features: Sequence[Tensor]) -> HeadOutput:
        """See SupervisedHead."""
        return HeadOutput(self.image_scores(features), self.full_map(self.position_scores(features)))


class DevnetHead(FlosHead):
    """A position deviates whatever the sign of its score."""

    def position_scores(self, features: Sequence[Tensor]) -> list[Tensor]:
        """See FlosHead; absolute values."""
        return [scores.abs() for scores in super().position_scores(features)]
