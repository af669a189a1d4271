"""PatchCore's head: the distance of each patch feature from the nearest in a memory bank of normal ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bgad.config import Config
from bgad.config.baselines import PatchcoreConfig
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.scoring import resize_maps

PATCH = 3  # side of the neighbourhood that a patch feature is the mean of; as printed


class PatchcoreHead(Head):
    """P positions of the finest map; the bank holds N patch features of D channels."""

    bank: Tensor  # (N, D)
    neighbours: Tensor  # (N, b): the stored patches nearest to each stored one, itself first

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, PatchcoreConfig)  # noqa: S101 - Config.check ensures it
        self.maps, self.sigma, self.reweights = spec.chosen(settings.strides), settings.sigma, settings.neighbours > 0
        self.grid = max(spec.grids[i] for i in self.maps)
        self.register_buffer("bank", torch.zeros(1, sum(spec.channels[i] for i in self.maps)))
        self.register_buffer("neighbours", torch.zeros(1, 1, dtype=torch.int64))

    def embed(self, maps: Sequence[Tensor]) -> Tensor:
        """Return locally aware patch features (B, P, D): averaged over neighbourhoods, at one resolution, joined."""
        return local_features([maps[i] for i in self.maps], self.grid).flatten(2).transpose(1, 2)

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head."""
        patches = self.embed(maps)
        squared, nearest = squared_distances(patches, self.bank).min(2)  # (B, P)
        distance = squared.sqrt()
        anomaly_map = resize_maps(distance.reshape(-1, *self.grid), (self.spec.size, self.spec.size), self.sigma)
        return HeadOutput(self._score(patches, nearest, distance.argmax(1, keepdim=True)), anomaly_map)

    def _score(self, patches: Tensor, nearest: Tensor, at: Tensor) -> Tensor:
        """Return the distance of the patch at (B, 1), the most anomalous one, re-weighted by its surroundings (B,).

        The weight is 1 - softmax of its distances from the nearest stored patch and the neighbours of that.
        """
        patch = patches.gather(1, at[:, :, None].expand(-1, -1, patches.shape[2]))  # (B, 1, D)
        around = self.bank[self.neighbours[nearest.gather(1, at)[:, 0]]]  # (B, b, D)
        distances = (patch - around).square().sum(2).sqrt()  # more exact than from products, for the sake of parity
        return distances[:, 0] * (1 - distances.softmax(1)[:, 0]) if self.reweights else distances[:, 0]


def local_features(maps: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:
    """Average feature maps (B, C, h, w) over neighbourhoods, bring them to one grid and join them: (B, D, *grid)."""
    local = [F.avg_pool2d(features, PATCH, stride=1, padding=PATCH // 2) for features in maps]
    return torch.cat([x if tuple(x.shape[2:]) == grid else resize_maps(x, grid) for x in local], 1)


def squared_distances(rows: Tensor, bank: Tensor) -> Tensor:
    """Rows (..., D) and a bank (N, D) -> the squared Euclidean distances (..., N)."""
    products = F.linear(rows, bank)
    return (rows.square().sum(-1, keepdim=True) + bank.square().sum(1) - 2 * products).clamp(min=0.0)
