"""A level without a flow: the similarity of a feature to its nearest stored normal.

Features x with C channels are standardised and projected, and a constant coordinate is added: z = (W x, sqrt(D)) for D
dimensions. With the unit vectors u = z / |z| and those of the stored normals, the bank u_1 ... u_N,

    value = scale * (max_i u . u_i - 1)  <= 0

takes the place of log p / d: boundary, margin, loss, fusion and calibration need only that normals have higher values.
The constant is as long as W x is for a typical normal. Without it, features near the mean, such as a plain background,
would be told apart by the direction of their noise. W starts with orthogonal rows, so that the untrained value is that
of plain nearest neighbours by the cosine of (x, sqrt(C)), as long as no dimension is dropped.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import Config
from bgad.model.flow import Level


def unit_vectors(projected: Tensor) -> Tensor:
    """Add the constant coordinate to projected features (..., D) and normalise: (..., D + 1)."""
    dimension = int(projected.shape[-1])
    return F.normalize(F.pad(projected, (0, 1), value=math.sqrt(dimension)), dim=-1)


def similarity_value(unit: Tensor, bank: Tensor, scale: float) -> Tensor:
    """Unit vectors (..., D) and those of the bank (N, D) -> the values (...)."""
    return scale * ((unit @ bank.T).amax(-1) - 1)


class DistanceLevel(Level):
    """A level whose value is the similarity of a feature to its nearest stored normal, whatever their positions."""

    bank: Tensor  # (N, C): features of normals, as the backbone gives them; training changes how they are projected

    def __init__(self, channels: int, grid: tuple[int, int], config: Config, seed: int) -> None:
        super().__init__(channels, grid)
        distance = config.distance
        self.scale = distance.scale
        weight = torch.empty(min(channels, distance.dimension or channels), channels)
        nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(seed))
        self.projection = nn.Parameter(weight)
        self.register_buffer("bank", torch.zeros(distance.bank_size, channels))

    def unit_vectors(self, rows: Tensor) -> Tensor:
        """Project feature rows (..., C) to unit vectors (..., D + 1)."""
        return unit_vectors(F.linear(self.standardise(rows), self.projection))

    def forward(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """See Level."""
        return similarity_value(self.unit_vectors(rows), self.unit_vectors(self.bank), self.scale)

    def for_export(self) -> nn.Module:
        """See Level."""
        return ScoringDistance(self)


class ScoringDistance(nn.Module):
    """A trained level for all positions of its grid; standardisation, projection and bank are constants."""

    weight: Tensor
    bias: Tensor
    bank: Tensor

    def __init__(self, level: DistanceLevel) -> None:
        super().__init__()
        self.grid, self.scale = level.grid, level.scale
        with torch.no_grad():
            self.register_buffer("weight", level.projection / level.std)
            self.register_buffer("bias", -(level.projection @ (level.mean / level.std)))
            self.register_buffer("bank", level.unit_vectors(level.bank))

    def forward(self, features: Tensor) -> Tensor:
        """Feature maps (B, C, h, w) -> values (B, h, w)."""
        rows = features.flatten(2).transpose(1, 2)  # (B, h * w, C)
        unit = unit_vectors(F.linear(rows, self.weight, self.bias))
        return similarity_value(unit, self.bank, self.scale).reshape(-1, *self.grid)
