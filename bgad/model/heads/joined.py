"""The features of the supervised baselines: frozen feature maps of several strides, joined and standardised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bgad.model.heads.base import FeatureSpec
from bgad.model.scoring import resize_maps


class JoinedFeatures(nn.Module):
    """Joins feature maps at the finest grid; each channel is standardised by the training normals."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)

    def __init__(self, spec: FeatureSpec, strides: Sequence[int]) -> None:
        super().__init__()
        self.levels = spec.chosen(strides)
        self.grid = max(spec.grids[i] for i in self.levels)
        self.grids = [self.grid]  # one scale
        self.channels = sum(spec.channels[i] for i in self.levels)
        self.register_buffer("mean", torch.zeros(self.channels))
        self.register_buffer("std", torch.ones(self.channels))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Feature maps (B, C, h, w) of the chosen strides -> the joined one (B, D, h, w), as a list of one scale."""
        joined = [x if tuple(x.shape[2:]) == self.grid else resize_maps(x, self.grid) for x in maps]
        return [(torch.cat(joined, 1) - self.mean[:, None, None]) / self.std[:, None, None]]
