"""DRAEM's head: a network that removes anomalies, and one that finds them by comparing the image with the result."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import Config
from bgad.config.unsupervised import DraemConfig
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.scoring import map_score

MULTIPLES = (1, 2, 4, 8, 8)  # channels at each resolution, as multiples of the width
MEAN_FILTER = 21  # pixels: side of the window in which the map is averaged for the image score; as printed


class EncoderDecoder(nn.Module):
    """Convolutions that halve an image four times and double it again; with skips, it is a U-Net."""

    def __init__(self, inputs: int, outputs: int, width: int, *, skips: bool) -> None:
        super().__init__()
        self.skips = skips
        widths = [width * multiple for multiple in MULTIPLES]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip((inputs, *widths), widths, strict=False))
        coarser = [*widths[1:-1], widths[-1]]
        self.up = nn.ModuleList(_block(a + b * skips, b) for a, b in zip(coarser[::-1], widths[-2::-1], strict=True))
        self.output = nn.Conv2d(width, outputs, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, inputs, S, S) -> (B, outputs, S, S)."""
        finer = []
        for number, block in enumerate(self.down):
            images = block(F.max_pool2d(images, 2) if number else images)
            finer.append(images)
        for block, skip in zip(self.up, finer[-2::-1], strict=True):
            images = F.interpolate(images, scale_factor=2.0, mode="nearest")
            images = block(torch.cat([images, skip], 1) if self.skips else images)
        result: Tensor = self.output(images)
        return result


def _block(inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class DraemHead(Head):
    """The reconstructive and the discriminative network."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, DraemConfig)  # noqa: S101 - Config.check ensures it
        self.reconstructive = EncoderDecoder(3, 3, settings.reconstructive_width, skips=False)
        self.discriminative = EncoderDecoder(6, 2, settings.discriminative_width, skips=True)

    def predict(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (B, 3, S, S) -> reconstructions, and logits of normal and anomalous (B, 2, S, S)."""
        reconstructions = self.reconstructive(images)
        return reconstructions, self.discriminative(torch.cat([images, reconstructions], 1))

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head."""
        anomaly_map = self.predict(maps[0])[1].softmax(1)[:, 1]
        averaged = F.avg_pool2d(anomaly_map[:, None], MEAN_FILTER, 1, MEAN_FILTER // 2)[:, 0]
        return HeadOutput(map_score(averaged, 0.0), anomaly_map)
