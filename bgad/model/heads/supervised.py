"""What the heads of the supervised baselines have in common: their features, and the mean over input scales."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bgad.config import Config
from bgad.config.supervised import SupervisedConfig, TrainedNetwork
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.heads.joined import FrozenFeatures, JoinedFeatures, TrainedFeatures
from bgad.model.scoring import resize_maps


class SupervisedHead(Head):
    """A head on feature maps (B, D, h, w), one for each scale of the input; a subclass rates them."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, SupervisedConfig)  # noqa: S101 - Config.check ensures it
        self.features: JoinedFeatures = (
            TrainedFeatures(spec, settings)
            if isinstance(settings, TrainedNetwork)
            else FrozenFeatures(spec, settings.strides)
        )

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head."""
        return self.rate(self.features([maps[i] for i in self.features.levels]))

    def rate(self, features: Sequence[Tensor]) -> HeadOutput:
        """Score the features (B, D, h, w) of each scale."""
        raise NotImplementedError

    def full_map(self, maps: Sequence[Tensor], sigma: float = 0.0) -> Tensor:
        """Maps (B, h, w) of each scale -> their mean at the size of the input (B, S, S), smoothed by a Gaussian."""
        size = (self.spec.size, self.spec.size)
        return over_scales([resize_maps(one, size, sigma) for one in maps])


def over_scales(values: Sequence[Tensor]) -> Tensor:
    """Return the mean of the tensors of all scales."""
    return torch.stack(list(values)).mean(0)
