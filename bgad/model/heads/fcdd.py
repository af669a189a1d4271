"""FCDD's head: a convolutional map whose pseudo-Huber values are near zero on normals."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bgad.config import Config
from bgad.config.supervised import FcddConfig
from bgad.model.heads.base import FeatureSpec, HeadOutput
from bgad.model.heads.supervised import SupervisedHead, over_scales
from bgad.model.scoring import resize_maps


class FcddHead(SupervisedHead):
    """Two convolutions on the features; the image score is the mean of the map."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, FcddConfig)  # noqa: S101 - Config.check ensures it
        self.sigma = settings.sigma
        self.net = nn.Sequential(
            nn.Conv2d(self.features.channels, settings.hidden, 3, padding=1),
            nn.LeakyReLU(),
            nn.Conv2d(settings.hidden, 1, 1),
        )

    def heat(self, features: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:
        """Features (B, D, h, w) of each scale -> the map (B, H, W) on a grid, upsampled by a Gaussian."""
        sigma = self.sigma * grid[0] / self.spec.size  # in cells
        return over_scales([resize_maps(pseudo_huber(self.net(x)[:, 0]), grid, sigma) for x in features])

    def rate(self, features: Sequence[Tensor]) -> HeadOutput:
        """See SupervisedHead."""
        anomaly_map = self.heat(features, (self.spec.size, self.spec.size))
        return HeadOutput(anomaly_map.mean((1, 2)), anomaly_map)


def pseudo_huber(values: Tensor) -> Tensor:
    """Return sqrt(z^2 + 1) - 1, which is quadratic near 0 and linear far from it."""
    return (values.square() + 1).sqrt() - 1
