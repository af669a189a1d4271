"""MLEP's head: the distance of an embedding from the centre of the normals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bgad.config import Config
from bgad.config.supervised import MlepConfig
from bgad.model.heads.base import FeatureSpec, HeadOutput
from bgad.model.heads.supervised import SupervisedHead, over_scales


class MlepHead(SupervisedHead):
    """A linear embedding of each position; that of the image is their mean."""

    centre: Tensor  # (E,): mean embedding of the training normals

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, MlepConfig)  # noqa: S101 - Config.check ensures it
        self.embed = nn.Conv2d(self.features.channels, settings.dimensions, 1)
        self.register_buffer("centre", torch.zeros(settings.dimensions))

    def embedding(self, features: Sequence[Tensor]) -> Tensor:
        """Features (B, D, h, w) of each scale -> the embedding of the image (B, E)."""
        return over_scales([self.embed(x).mean((2, 3)) for x in features])

    def rate(self, features: Sequence[Tensor]) -> HeadOutput:
        """See SupervisedHead."""
        maps = [distance(self.embed(x), self.centre[:, None, None]) for x in features]
        return HeadOutput(distance(self.embedding(features), self.centre), self.full_map(maps))


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance along the second axis, with a gradient at 0.

    >>> distance(torch.tensor([[3.0, 4.0]]), torch.zeros(2))
    tensor([5.])
    """
    return (a - b).square().sum(1).add(1e-12).sqrt()
