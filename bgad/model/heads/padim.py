"""PaDiM's head: the Mahalanobis distance of each position from the Gaussian of the normals there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bgad.config import Config
from bgad.config.baselines import PadimConfig
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.scoring import map_score, resize_maps


class PadimHead(Head):
    """P positions of the finest map; of the joined features, D channels are drawn by the seed."""

    mean: Tensor  # (P, D)
    whiten: Tensor  # (P, D, D): (x - mean) @ whiten has unit covariance
    picked: Tensor  # (D,): channels of the joined features

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, PadimConfig)  # noqa: S101 - Config.check ensures it
        self.maps, self.sigma = spec.chosen(settings.strides), settings.sigma
        self.grid = max(spec.grids[i] for i in self.maps)
        joined = sum(spec.channels[i] for i in self.maps)
        order = torch.randperm(joined, generator=torch.Generator().manual_seed(config.seed))
        picked = order[: settings.channels].sort().values
        positions, dimensions = self.grid[0] * self.grid[1], len(picked)
        self.register_buffer("picked", picked)
        self.register_buffer("mean", torch.zeros(positions, dimensions))
        self.register_buffer("whiten", torch.zeros(1, dimensions, dimensions))  # of all positions when fitted

    def embed(self, maps: Sequence[Tensor]) -> Tensor:
        """Join the maps (B, C, h, w), coarse ones repeated, at the drawn channels: (B, P, D)."""
        joined = [
            maps[i] if self.spec.grids[i] == self.grid else F.interpolate(maps[i], size=self.grid, mode="nearest")
            for i in self.maps
        ]
        return torch.cat(joined, 1)[:, self.picked].flatten(2).transpose(1, 2)

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head."""
        centred = (self.embed(maps) - self.mean)[:, :, None]  # (B, P, 1, D)
        distance = (centred @ self.whiten).square().sum((2, 3)).sqrt().reshape(-1, *self.grid)
        anomaly_map = resize_maps(distance, (self.spec.size, self.spec.size), self.sigma)
        return HeadOutput(map_score(anomaly_map, 0.0), anomaly_map)
