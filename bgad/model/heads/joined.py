"""The features of the supervised baselines: joined feature maps of a frozen backbone or of a trained network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import BackboneConfig
from bgad.config.supervised import TrainedNetwork
from bgad.errors import ConfigError, ModelError
from bgad.model import backbone as backbones
from bgad.model.heads.base import FeatureSpec
from bgad.model.scoring import resize_maps

Grid = tuple[int, int]


class JoinedFeatures(nn.Module):
    """Joins feature maps at the finest grid; each channel is standardised by the training normals."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)

    def __init__(self, levels: Sequence[int], channels: int, grids: Sequence[Grid]) -> None:
        super().__init__()
        self.levels = levels  # of the cached features that `forward` takes
        self.channels, self.grids = channels, grids  # of the joined map, and its height and width at each scale
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps (B, C, h, w) of the chosen levels -> features (B, D, h, w) of each scale of the input."""
        scales = zip(self.maps_of_scales(maps), self.grids, strict=True)
        return [(join(one, grid) - self.mean[:, None, None]) / self.std[:, None, None] for one, grid in scales]

    def maps_of_scales(self, maps: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Return the maps that are joined at each scale."""
        raise NotImplementedError


class FrozenFeatures(JoinedFeatures):
    """Feature maps of a frozen backbone, of one scale."""

    def __init__(self, spec: FeatureSpec, strides: Sequence[int]) -> None:
        levels = spec.chosen(strides)
        super().__init__(levels, sum(spec.channels[i] for i in levels), [max(spec.grids[i] for i in levels)])

    def maps_of_scales(self, maps: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """See JoinedFeatures."""
        return [maps]


class TrainedFeatures(JoinedFeatures):
    """Feature maps of a network that is trained with the head, of the image and of it at half its size, and so on.

    Batch norm keeps its statistics, and is folded into the convolutions where it can be: a few images a step on a CPU
    do not suffice to estimate them.
    """

    def __init__(self, spec: FeatureSpec, settings: TrainedNetwork) -> None:
        multiple = max(settings.strides) * 2 ** (settings.scales - 1)
        if spec.size % multiple:
            raise ConfigError(f"backbone.size must be a multiple of {multiple} for {settings.scales} scales")
        network = BackboneConfig(
            settings.network, settings.strides, (), min_stride=0, size=spec.size, weights=settings.weights
        )
        net = backbones.build(network, random_weights=True)
        sizes = [spec.size // 2**scale for scale in range(settings.scales)]
        super().__init__([0], sum(net.channels), [max(net.grids(size)) for size in sizes])
        self.net, self.config = net.requires_grad_(True), network

    def load_pretrained(self) -> None:
        """Load the weights that the training starts from."""
        try:
            self.net.load_state_dict(backbones.build(self.config).state_dict())
        except ModelError as error:
            hint = "baseline.network and baseline.weights take the place of --backbone and --weights"
            raise ModelError(f"{error} ({hint})") from error

    def maps_of_scales(self, maps: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """See JoinedFeatures."""
        images = [maps[0] if scale == 0 else F.avg_pool2d(maps[0], 2**scale) for scale in range(len(self.grids))]
        return [self.net(image.permute(0, 2, 3, 1)) for image in images]


def join(maps: Sequence[Tensor], grid: Grid) -> Tensor:
    """Join maps (B, C, h, w) at one grid, (B, D, h, w)."""
    return torch.cat([x if tuple(x.shape[2:]) == grid else resize_maps(x, grid) for x in maps], 1)
