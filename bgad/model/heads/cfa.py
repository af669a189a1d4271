"""CFA's head: a learnt descriptor of each patch, and its distance from a memory bank of normal descriptors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bgad.config import Config
from bgad.config.unsupervised import CfaConfig
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.heads.patchcore import local_features, squared_distances
from bgad.model.scoring import map_score, resize_maps


class CfaHead(Head):
    """P positions of the finest map; the bank holds N descriptors of D channels."""

    bank: Tensor  # (N, D)
    position: Tensor  # (1, 2, h, w): coordinates in -1..1, two more channels of the descriptor's input

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, CfaConfig)  # noqa: S101 - Config.check ensures it
        self.maps, self.sigma, self.neighbours = spec.chosen(settings.strides), settings.sigma, settings.neighbours
        self.grid = max(spec.grids[i] for i in self.maps)
        channels = sum(spec.channels[i] for i in self.maps)
        self.descriptor = nn.Conv2d(channels + 2, channels, 1)
        self.radius = nn.Parameter(torch.tensor(settings.radius))
        rows, columns = (torch.linspace(-1, 1, length) for length in self.grid)
        self.register_buffer("position", torch.stack(torch.meshgrid(rows, columns, indexing="ij"))[None])
        self.register_buffer("bank", torch.zeros(1, channels))

    def embed(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the descriptors of the patches, (B, P, D)."""
        local = local_features([maps[i] for i in self.maps], self.grid)  # (B, D, h, w)
        position = self.position.expand(local.shape[0], -1, -1, -1)
        descriptors: Tensor = self.descriptor(torch.cat([local, position], 1))
        return descriptors.flatten(2).transpose(1, 2)

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head."""
        squared = squared_distances(self.embed(maps), self.bank)  # (B, P, N)
        nearest = squared.topk(self.neighbours, largest=False).values.sqrt()  # (B, P, K), ascending
        score = nearest[..., 0] * (-nearest).softmax(2)[..., 0]
        anomaly_map = resize_maps(score.reshape(-1, *self.grid), (self.spec.size, self.spec.size), self.sigma)
        return HeadOutput(map_score(anomaly_map, 0.0), anomaly_map)
