"""A level of the model: one scale of features, and the value that rates how normal each of them is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bgad.config import Config
from bgad.model.boundary import normal_boundary
from bgad.model.flow import ConditionalFlow, ScoringFlow, position_encoding
from bgad.types import FloatArray

# p-values at which a level stores the value of its normals; between them, log p-values are interpolated. The last is
# the smallest that the few thousand features of a small set of normals support.
P_VALUES = (0.5, 0.2, 0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(frozen=True)
class LevelConstants:
    """Statistics of a level's values over normals, in units of log p / d."""

    centre: float  # mean
    spread: float  # standard deviation
    highest: float
    boundary: float  # b_n
    quantiles: tuple[float, ...]  # at P_VALUES, descending

    @classmethod
    def of(cls, log_p: FloatArray, beta: float) -> LevelConstants:
        """Compute the constants from the log p / d of normals; `beta` is the share of them beyond the boundary."""
        x = log_p.astype(np.float64)
        return cls(
            centre=float(x.mean()),
            spread=float(max(x.std(), 1e-6)),
            highest=float(x.max()),
            boundary=normal_boundary(x, beta),
            quantiles=tuple(np.quantile(x, P_VALUES).tolist()),
        )

    def values(self) -> tuple[float, ...]:
        """Return the constants in the order of `Level.constants`."""
        return self.centre, self.spread, self.highest, self.boundary, *self.quantiles


class Level(nn.Module):
    """One scale: it standardises features and rates each of them; the higher the value, the more normal."""

    mean: Tensor
    std: Tensor
    constants: Tensor

    def __init__(self, channels: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.channels, self.grid = channels, grid
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))
        self.register_buffer("constants", torch.zeros(4 + len(P_VALUES)))

    def forward(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """Feature rows (B, K, C), at all positions or at those of index `at` (K,) -> values (B, K)."""
        raise NotImplementedError

    def for_export(self) -> nn.Module:
        """Return the trained level for an exported graph: feature maps (B, C, h, w) -> values (B, h, w)."""
        raise NotImplementedError

    @property
    def positions(self) -> int:
        """Return the number of positions of the grid."""
        return math.prod(self.grid)

    def standardise(self, rows: Tensor) -> Tensor:
        """Shift and scale each channel by the statistics of the normals."""
        return (rows - self.mean) / self.std

    def set_constants(self, c: LevelConstants) -> None:
        """Store the statistics that the anomaly map is computed with."""
        self.constants.copy_(torch.tensor(c.values()))


class FlowLevel(Level):
    """A level whose value is log p / d of a feature given its position, under a conditional flow."""

    position: Tensor

    def __init__(self, channels: int, grid: tuple[int, int], config: Config, seed: int) -> None:
        super().__init__(channels, grid)
        flow = config.flow
        self.flow = ConditionalFlow(
            channels,
            blocks=flow.blocks,
            hidden_ratio=flow.hidden_ratio,
            max_hidden_ratio=flow.max_hidden_ratio,
            clamp=flow.clamp,
            seed=seed,
        )
        self.register_buffer("position", position_encoding(*grid), persistent=False)

    def forward(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """See Level."""
        position = self.position if at is None else self.position[at]
        return self.flow.log_likelihood(self.standardise(rows), self.flow.position_part(position))

    def for_export(self) -> nn.Module:
        """See Level."""
        return ScoringFlow(self.flow, self.position, self.grid, self.mean, self.std)
