"""MLEP's head: the distance of an embedding from the centre of the normals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bgad.config import Config
from bgad.config.supervised import MlepConfig
from bgad.model.heads.base import FeatureSpec, HeadOutput
from bgad.model.heads.supervised import SupervisedHead, over_scales
from bgad.model.image_head import top_mean


class MlepHead(SupervisedHead):
    """A linear embedding of each position; that of the image has the highest values of each dimension."""

    centre: Tensor  # (E,): mean embedding of the training normals

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, MlepConfig)  # noqa: S101 - Config.check ensures it
        self.top_share = settings.top_share
        self.embed = nn.Conv2d(self.features.channels, settings.dimensions, 1)
        self.register_buffer("centre", torch.zeros(settings.dimensions))

    def embedding(self, features: Sequence[Tensor]) -> Tensor:
        """Features (B, D, h, w) of each scale -> the embedding of the image (B, E)."""
        return over_scales([self._highest(self.embed(x)) for x in features])

    def _highest(self, embedded: Tensor) -> Tensor:
        values = embedded.flatten(2)  # (B, E, h * w)
        return top_mean(values, max(1, round(self.top_share * int(values.shape[2]))), 2)

    def rate(self, features: Sequence[Tensor]) -> HeadOutput:
        """See SupervisedHead; a position counts by how far it exceeds the centre."""
        centre = self.centre[:, None, None]
        maps = [distance(torch.maximum(self.embed(x), centre), centre) for x in features]
        return HeadOutput(distance(self.embedding(features), self.centre), self.full_map(maps))


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance along the second axis, with a gradient at 0.

    >>> distance(torch.tensor([[3.0, 4.0]]), torch.zeros(2))
    tensor([5.])
    """
    return (a - b).square().sum(1).add(1e-12).sqrt()
