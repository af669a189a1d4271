"""The image head: an anomaly score of the image, from the statistics of its feature maps.

A defect of the whole part (too dark, the wrong part, a finely spread flaw) can hide from every single feature. The head
therefore pools each feature map to mean, standard deviation and peak of each channel. It scores this descriptor by its
Mahalanobis distance from the training normals.

Known anomalies add discriminant directions, of the descriptor and of the features at their defects. A direction counts
only beyond the boundary of the normals along it. So known anomalies raise the score of what resembles them, and never
lower the score of an unseen kind of defect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.types import FloatArray

# Values of a descriptor. Its covariance is estimated from few normals and stored in full, so a backbone with many
# channels is described by fewer statistics.
MAX_DESCRIPTOR = 2048
# Share of a channel's values that make its peak: 5 of the 256 positions of a map of 16 x 16, so that a small defect
# shows and a single position does not decide.
PEAK_SHARE = 0.02
# Share of a map's projections on a direction that are averaged: wider than PEAK_SHARE, because the mean over more
# positions varies less between normals.
DIRECTION_PEAK_SHARE = 0.05


@dataclass(frozen=True)
class DiscriminantDirection:
    """A linear discriminant between normals and known anomalies, with the boundary of the normals along it."""

    vector: FloatArray  # (C,)
    boundary: float  # three quarters of the normals project below it
    spread: float  # standard deviation of the normals' projections

    def excess(self, projections: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Return how far projections lie beyond the boundary, in standard deviations of the normals."""
        excess: npt.NDArray[np.float64] = (projections.astype(np.float64) - self.boundary) / self.spread
        return excess


@dataclass(frozen=True)
class DescriptorGaussian:
    """The Gaussian of the normals' descriptors, and the distribution of their distances from its mean."""

    mean: FloatArray  # (V,)
    whiten: FloatArray  # (V, V): whiten @ (x - mean) has about unit covariance
    distance_mean: float
    distance_std: float


def statistics_count(channels: int) -> int:
    """Return how many of mean, standard deviation and peak the descriptor of so many channels holds.

    >>> statistics_count(112 + 320), statistics_count(1024 + 2048)
    (3, 1)
    """
    return min(3, max(1, MAX_DESCRIPTOR // channels))


def peak_count(positions: int, share: float) -> int:
    """Return how many of the highest values make a peak, at least one."""
    return max(1, int(positions * share))


def top_mean(values: Tensor, count: int, dim: int) -> Tensor:
    """Return the mean of the `count` highest values along a dimension."""
    return values.topk(count, dim=dim).values.mean(dim)


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(1)


def _std(rows: Tensor) -> Tensor:
    return rows.std(1, correction=0)


def _peak(rows: Tensor) -> Tensor:
    return top_mean(rows, peak_count(int(rows.shape[1]), PEAK_SHARE), 1)


STATISTICS: tuple[Callable[[Tensor], Tensor], ...] = (_mean, _std, _peak)  # (B, P, C) -> (B, C)


class ImageHead(nn.Module):
    """Mahalanobis distance of an image's descriptor, and its projections on the discriminant directions."""

    mean: Tensor
    whiten: Tensor
    constants: Tensor

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.statistics = STATISTICS[: statistics_count(sum(channels))]
        size = len(self.statistics) * sum(channels)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("whiten", torch.zeros(size, size))
        self.register_buffer("constants", torch.tensor([0.0, 1.0]))  # mean and std of the normals' distances
        for i, width in enumerate([size, *channels]):  # of the descriptor, then of each map; one row a direction
            self.register_buffer(f"direction{i}", torch.zeros(1, width))
            self.register_buffer(f"direction_scale{i}", torch.tensor([[0.0, 1.0]]))  # boundary and spread

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Feature rows (B, P, C) of each stride -> distance (B,) and excess along the directions (B, 1 + strides).

        Both are in standard deviations of normals. An excess above 0 lies beyond the boundary of the normals; of
        several directions of one input, the largest counts.
        """
        descriptor = self.descriptor(maps)
        distance = ((descriptor - self.mean) @ self.whiten.T).square().sum(1).sqrt()
        projections = [F.linear(descriptor, self.get_buffer("direction0"))]  # (B, directions)
        for i, rows in enumerate(maps, start=1):
            # F.linear: ONNX Runtime 1.31 miscompiles rows @ vector
            along = F.linear(rows, self.get_buffer(f"direction{i}")).transpose(1, 2)  # (B, directions, P)
            projections.append(top_mean(along, peak_count(int(rows.shape[1]), DIRECTION_PEAK_SHARE), 2))
        scales = [self.get_buffer(f"direction_scale{i}").unbind(1) for i in range(len(projections))]
        excess = [((x - edge) / spread).amax(1) for x, (edge, spread) in zip(projections, scales, strict=True)]
        return (distance - self.constants[0]) / self.constants[1], torch.stack(excess, 1)

    def descriptor(self, maps: Sequence[Tensor]) -> Tensor:
        """Pool feature rows (B, P, C) of each stride to statistics of each channel, (B, V)."""
        return torch.cat([statistic(rows) for rows in maps for statistic in self.statistics], 1)

    @property
    def is_fitted(self) -> bool:
        """Tell whether a Gaussian was fitted; before that, every output is 0."""
        return bool(self.whiten.any())

    def set_gaussian(self, gaussian: DescriptorGaussian) -> None:
        """Store the Gaussian that was fitted to the normals."""
        self.mean.copy_(torch.from_numpy(gaussian.mean))
        self.whiten.copy_(torch.from_numpy(gaussian.whiten))
        self.constants.copy_(torch.tensor([gaussian.distance_mean, gaussian.distance_std]))

    def set_directions(self, i: int, directions: Sequence[DiscriminantDirection]) -> None:
        """Store the directions of the descriptor (i = 0) or of a feature map (from 1)."""
        vectors = np.stack([direction.vector for direction in directions])
        scales = torch.tensor([[direction.boundary, direction.spread] for direction in directions])
        self.register_buffer(f"direction{i}", torch.from_numpy(vectors).to(self.mean))
        self.register_buffer(f"direction_scale{i}", scales.to(self.mean))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Accept any number of directions: the buffers take the shapes of what is loaded."""
        for name, buffer in list(self.named_buffers()):
            if name.startswith("direction") and (stored := state_dict.get(prefix + name)) is not None:
                self.register_buffer(name, buffer.new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)
