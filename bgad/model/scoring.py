"""The scoring model: pixels through backbone, levels and fusion to an anomaly map and an image score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bgad.config import Config
from bgad.model.backbone import Backbone
from bgad.model.distance import DistanceLevel
from bgad.model.flow import P_VALUES, FlowLevel, Level
from bgad.model.image_head import ImageHead, top_mean
from bgad.types import BoolArray, FloatArray

FLOW_FILE, BACKBONE_FILE = "flow.safetensors", "backbone.safetensors"
# Beyond the last quantile, the anomaly score grows with the logarithm of the distance, so that far outliers keep their
# order and one extreme feature of one level does not decide alone. PRO moved by at most .005 and image AUROC by at most
# .01 between slopes of 2 and 8.
OUTLIER_SLOPE = 4.0
_P_VALUE_STEPS = -torch.tensor(P_VALUES).log().diff()

LEVEL_TYPES: dict[str, type[FlowLevel | DistanceLevel]] = {"flow": FlowLevel, "distance": DistanceLevel}


class ScoringModel(nn.Module):
    """The one scoring path that training, evaluation and export share: pixels in, map and score out."""

    region: Tensor | None  # (S, S): True inside the region of interest

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.grids = backbone.grids(config.backbone.size)
        self.register_buffer("region", None, persistent=False)

    def set_region(self, region: BoolArray) -> None:
        """Restrict map and score to these pixels (S, S); images come with the rest painted over."""
        self.region = torch.from_numpy(region).to(self.backbone.mean.device)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Pixels (B, S, S, 3) -> parts of the image scores (B, 3), anomaly maps (B, S, S), log p / d of each level."""
        return self.score_features([features.flatten(2).transpose(1, 2) for features in self.backbone(pixels)])

    def score_features(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Feature rows of each of the backbone's maps (B, h * w, C) -> the outputs of `forward`."""
        raise NotImplementedError

    def for_export(self) -> nn.Module:
        """Return what an exported graph computes of the feature maps (B, C, h, w): the outputs of `forward`."""
        raise NotImplementedError

    def _inside(self, anomaly_map: Tensor) -> Tensor:
        """Return maps (B, S, S) that are lowest outside of the region of interest."""
        if self.region is None:
            return anomaly_map
        lowest = anomaly_map.masked_fill(~self.region, torch.inf).amin((1, 2), keepdim=True)
        return torch.where(self.region, anomaly_map, lowest)


class LevelModel(ScoringModel):
    """Our own methods: a level for each stride or block, the fusion of their values, and the image head."""

    map_constants: Tensor  # mean and spread of the map's image scores over training normals
    score_weights: Tensor  # weight of each level in the map's part of the score, then that of the image head

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        flows = len(config.backbone.levels)
        self.levels = nn.ModuleList(
            LEVEL_TYPES[config.level](channels, grid, config, seed=config.seed * 1000 + i)
            for i, (channels, grid) in enumerate(zip(backbone.channels[:flows], self.grids[:flows], strict=True))
        )
        # indices of the backbone's feature maps that the image head takes
        self.image_head_maps = [config.backbone.all_levels.index(i) for i in config.backbone.image_head_levels]
        channels = [backbone.channels[i] for i in self.image_head_maps]
        self.image_head = ImageHead(channels) if channels else None
        self.register_buffer("map_constants", torch.tensor([0.0, 1.0]))
        self.register_buffer("score_weights", torch.tensor(default_score_weights(config)))

    def for_export(self) -> nn.Module:
        """See ScoringModel."""
        return _LevelsOfMaps(self)

    def score_features(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """See ScoringModel; the features of the levels come first."""
        levels: list[Level] = list(self.levels)  # type: ignore[arg-type]
        rows = features[: len(levels)]
        log_p = [level(x).unflatten(1, level.grid) for level, x in zip(levels, rows, strict=True)]
        parts, anomaly_map = self.score_likelihoods(log_p, [features[i] for i in self.image_head_maps])
        return parts, anomaly_map, log_p

    def score_likelihoods(self, log_p: list[Tensor], head_rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Log-likelihoods of each level (B, h, w) and the image head's feature rows -> score parts (B, 3) and maps.

        The parts are those of types.PARTS; their sum is the image score.
        """
        constants: list[Tensor] = [level.constants for level in self.levels]  # type: ignore[misc]
        config = self.config.score
        levels = [level_anomaly(x, c, config.fusion) for x, c in zip(log_p, constants, strict=True)]
        anomaly_map = self._fuse(levels, torch.full((len(levels),), 1 / len(levels)))
        scored_map = self._fuse(levels, self.score_weights[:-1]) if config.weighs_levels else anomaly_map
        map_part = map_score(scored_map, config.top_share)
        if self.image_head is None:
            zero = torch.zeros_like(map_part)
            return torch.stack([map_part, zero, zero], 1), anomaly_map
        distance, excess = self.image_head(head_rows)
        map_part = (map_part - self.map_constants[0]) / self.map_constants[1]
        weight = self.score_weights[-1]
        return torch.stack([map_part, weight * distance, weight * self._resemblance(excess)], 1), anomaly_map

    def _fuse(self, levels: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Return the weighted sum of the levels' anomaly scores; it is lowest outside of the region of interest."""
        return self._inside(fuse(levels, weights, self.config.backbone.size))

    def image_head_score(self, distance: Tensor, excess: Tensor) -> Tensor:
        """Combine Mahalanobis distances (B,) and excesses along the directions (B, D) to one score each (B,)."""
        return distance + self._resemblance(excess)

    def _resemblance(self, excess: Tensor) -> Tensor:
        return self.config.score.direction_weight * excess.clamp(min=0.0).sum(1)


class _LevelsOfMaps(nn.Module):
    """A model of levels whose constants are folded."""

    def __init__(self, model: LevelModel) -> None:
        super().__init__()
        self.model = model
        levels: list[Level] = list(model.levels)  # type: ignore[arg-type]
        self.levels = nn.ModuleList(level.for_export() for level in levels)

    def forward(self, maps: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        log_p = [level(features) for level, features in zip(self.levels, maps, strict=False)]
        head_rows = [maps[i].flatten(2).transpose(1, 2) for i in self.model.image_head_maps]
        return *self.model.score_likelihoods(log_p, head_rows), log_p


def default_score_weights(config: Config) -> list[float]:
    """Return the prior weights: each level by a power of its stride, then the image head's.

    The blocks of a vision transformer have one stride, so they weigh alike.
    """
    strides = (1,) * len(config.backbone.blocks) or config.backbone.strides
    powers = [stride**config.score.level_prior_power for stride in strides]
    return [*(power / sum(powers) for power in powers), config.score.image_head_weight]


def level_anomaly(log_p: Tensor, constants: Tensor, fusion: str) -> Tensor:
    """Turn the log-likelihoods of a level into anomaly scores that are comparable between levels.

    `probability`: the paper's 1 - exp(log p), relative to the most likely normal.
    `p-value`: -log of the share of normals that are less likely. Their sum over levels is Fisher's method of combining
    p-values. It is sensitive at any distance from the normals, and each level counts by the ranks of its normals.
    """
    if fusion == "probability":
        return 1 - torch.exp((log_p - constants[2]).clamp(max=0.0))
    spread, quantiles = constants[1], constants[4:]
    inner, outer = quantiles[:-1], quantiles[1:]
    slopes = _P_VALUE_STEPS.to(log_p) / (inner - outer).clamp(min=1e-6)
    # how far log p lies within each of the intervals between quantiles, (..., intervals)
    within = torch.minimum(inner, torch.maximum(outer, log_p[..., None]))
    anomaly = ((inner - within) * slopes).sum(-1) - math.log(P_VALUES[0])
    beyond = (quantiles[-1] - log_p).clamp(min=0.0) / spread
    return anomaly + OUTLIER_SLOPE * torch.log1p(beyond)


def resize_maps(maps: Tensor, size: tuple[int, int], sigma: float = 0.0) -> Tensor:
    """Interpolate maps (..., h, w) bilinearly to another size, and smooth them there by a Gaussian of this width."""
    rows, columns = (
        torch.from_numpy(_smoothing(length, sigma) @ _interpolation(cells, length)).to(maps)
        if sigma
        else torch.from_numpy(_interpolation(cells, length)).to(maps)
        for cells, length in zip((int(maps.shape[-2]), int(maps.shape[-1])), size, strict=True)
    )
    return rows @ maps @ columns.T  # two small products: engines take several times as long to resize


@lru_cache(maxsize=64)
def _interpolation(cells: int, length: int) -> FloatArray:
    """Return the matrix (length, cells) that interpolates linearly between the centres of neighbouring cells."""
    at = np.clip((np.arange(length) + 0.5) * cells / length - 0.5, 0, cells - 1)
    weights: FloatArray = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(cells))).astype(np.float32)
    return weights


@lru_cache(maxsize=16)
def _smoothing(length: int, sigma: float) -> FloatArray:
    """Return the matrix (length, length) of a Gaussian filter of 4 sigma on each side that mirrors the border."""
    radius = round(4 * sigma)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    at = (np.arange(length)[:, None] + offsets) % (2 * length)
    at = np.minimum(at, 2 * length - 1 - at)  # mirrored: d c b a | a b c d | d c b a
    matrix = np.zeros((length, length))
    np.add.at(matrix, (np.arange(length)[:, None], at), kernel / kernel.sum())
    return matrix.astype(np.float32)


def fuse(levels: Sequence[Tensor], weights: Tensor, size: int) -> Tensor:
    """Return maps (B, size, size): the weighted sum of the anomaly scores of all levels, (B, h, w) each."""
    sums: dict[tuple[int, int], Tensor] = {}  # levels on one grid are added up before they are resized
    for x, weight in zip(levels, weights.unbind(), strict=True):
        grid = int(x.shape[1]), int(x.shape[2])
        sums[grid] = sums[grid] + weight * x if grid in sums else weight * x
    first, *others = (resize_maps(part, (size, size)) for part in sums.values())
    return sum(others, first)


def map_score(anomaly_map: Tensor, top_share: float) -> Tensor:
    """Return the image score of each map (B, H, W): the mean of its highest `top_share`, or its maximum for 0."""
    values = anomaly_map.flatten(1)  # (B, H * W)
    return top_mean(values, max(1, round(top_share * int(values.shape[1]))), 1)


def weight_files(model: ScoringModel) -> dict[str, bytes]:
    """Serialise a model: the bytes of each weight file, by file name."""
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    backbone = {key.removeprefix("backbone."): state.pop(key) for key in list(state) if key.startswith("backbone.")}
    return {FLOW_FILE: safetensors.torch.save(state), BACKBONE_FILE: safetensors.torch.save(backbone)}
