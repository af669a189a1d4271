"""The scoring model: from pixels through backbone, flows and fusion to an anomaly map and an image score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import Config, ScoreConfig
from bgad.model import backbone as backbones
from bgad.model import image_head
from bgad.model.flow import ConditionalFlow, position_encoding
from bgad.types import BoolArray, FloatArray

TAIL = 0.02


@dataclass(frozen=True)
class LevelConstants:
    """What scoring needs to know of a level's normals, in units of log p / d."""

    centre: float  # mean
    spread: float  # standard deviation
    highest: float
    boundary: float  # b_n

    def values(self) -> tuple[float, ...]:
        """As a level keeps them."""
        return self.centre, self.spread, self.highest, self.boundary


class Level(nn.Module):
    """One scale: standardise features, then their log-likelihood given the position."""

    mean: Tensor
    std: Tensor
    position: Tensor
    constants: Tensor

    def __init__(self, channels: int, grid: tuple[int, int], config: Config, seed: int) -> None:
        super().__init__()
        self.grid = grid
        flow = config.flow
        self.flow = ConditionalFlow(
            channels,
            blocks=flow.blocks,
            hidden_ratio=flow.hidden_ratio,
            max_hidden_ratio=flow.max_hidden_ratio,
            clamp=flow.clamp,
            seed=seed,
        )
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))
        self.register_buffer("constants", torch.tensor([0.0, 1.0, 0.0, 0.0]))
        self.register_buffer("position", position_encoding(*grid), persistent=False)

    def forward(self, rows: Tensor, at: Tensor | None = None) -> Tensor:
        """Feature rows (B, K, C), at all positions or at those of index `at` (K,) -> log p / d (B, K)."""
        position = self.position if at is None else self.position[at]
        return self.flow.log_likelihood((rows - self.mean) / self.std, self.flow.position_part(position))

    def set_constants(self, c: LevelConstants) -> None:
        """Fix what fusion uses."""
        self.constants.copy_(torch.tensor(c.values()))


class ImageLevel(nn.Module):
    """The image as a whole: how far its summary lies from those of the normals, and how far beyond them towards known
    anomalies. Before it is fitted it says 0."""

    mean: Tensor
    whiten: Tensor
    constants: Tensor

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.statistics = SUMMARY[: image_head.statistics_of(sum(channels))]
        size = len(self.statistics) * sum(channels)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("whiten", torch.zeros(size, size))
        self.register_buffer("constants", torch.tensor([0.0, 1.0]))  # centre and spread of the distances
        for i, width in enumerate([size, *channels]):  # of the summary, then of each map; one row a direction
            self.register_buffer(f"towards{i}", torch.zeros(1, width))
            self.register_buffer(f"start{i}", torch.tensor([[0.0, 1.0]]))  # and spread

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Feature rows (B, P, C) of each stride -> distance (B,) and places along the directions (B, 1 + strides),
        both in spreads of normals; above 0 is beyond the normals. Of several directions the one that leads farthest."""
        summary = self.summarise(maps)
        distance = ((summary - self.mean) @ self.whiten.T).square().sum(1).sqrt()
        places = [F.linear(summary, self._towards(0))]  # (B, directions)
        for i, rows in enumerate(maps):
            count = image_head.peak_count(int(rows.shape[1]), image_head.DEFECT_PEAK)
            along = F.linear(rows, self._towards(i + 1)).transpose(1, 2)  # ONNX Runtime 1.31 miscompiles rows @ vector
            places.append(along.topk(count, dim=2).values.mean(2))
        starts = [self.get_buffer(f"start{i}").unbind(1) for i in range(len(places))]
        beyond = [((x - start) / spread).amax(1) for x, (start, spread) in zip(places, starts, strict=True)]
        return (distance - self.constants[0]) / self.constants[1], torch.stack(beyond, 1)

    def summarise(self, maps: Sequence[Tensor]) -> Tensor:
        """Feature rows (B, P, C) of each stride -> what sums up the image, (B, V)."""
        return torch.cat([statistic(rows) for rows in maps for statistic in self.statistics], 1)

    def _towards(self, i: int) -> Tensor:
        return self.get_buffer(f"towards{i}")

    def set_whole(self, whole: image_head.Whole) -> None:
        """Take over what was fitted to the normals."""
        self.mean.copy_(torch.from_numpy(whole.mean))
        self.whiten.copy_(torch.from_numpy(whole.whiten))
        self.constants.copy_(torch.tensor([whole.centre, whole.spread]))

    def set_directions(self, i: int, directions: Sequence[image_head.Direction]) -> None:
        """Take over those of the summary (0) or of a map (from 1)."""
        towards = np.stack([direction.towards for direction in directions])
        starts = torch.tensor([[direction.start, direction.spread] for direction in directions])
        self.register_buffer(f"towards{i}", torch.from_numpy(towards).to(self.mean))
        self.register_buffer(f"start{i}", starts.to(self.mean))

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """With as many directions as there are; older models have one of each, not in rows."""
        for name, own in list(self.named_buffers()):
            if name.startswith(("towards", "start")) and (found := state_dict.get(prefix + name)) is not None:
                state_dict[prefix + name] = found.reshape(-1, own.shape[1])
                self.register_buffer(name, own.new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _peak(rows: Tensor) -> Tensor:
    return rows.topk(image_head.peak_count(int(rows.shape[1]), image_head.PEAK), dim=1).values.mean(1)


SUMMARY = (lambda rows: rows.mean(1), lambda rows: rows.std(1, correction=0), _peak)  # (B, P, C) -> (B, C)


class ScoringModel(nn.Module):
    """From pixels to map and score; the one scoring path that training, evaluation and export share."""

    map_constants: Tensor  # mean and spread of the map's scores over training normals
    mix: Tensor  # share of each level in the map, then the weight of the image as a whole
    region: Tensor | None

    def __init__(self, config: Config, backbone: backbones.Backbone) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.grids = backbone.grids(config.backbone.size)
        flows = len(config.backbone.strides)
        self.levels = nn.ModuleList(
            Level(channels, grid, config, seed=config.seed * 1000 + i)
            for i, (channels, grid) in enumerate(zip(backbone.channels[:flows], self.grids[:flows], strict=True))
        )
        self.summed = [backbone.strides.index(s) for s in config.backbone.image_head_strides]
        self.image = ImageLevel([backbone.channels[i] for i in self.summed]) if self.summed else None
        self.register_buffer("region", None, persistent=False)  # see look_at
        self.register_buffer("map_constants", torch.tensor([0.0, 1.0]))
        self.register_buffer("mix", torch.tensor(default_mix(config)))

    def look_at(self, region: BoolArray) -> None:
        """Let the score come from these pixels of the map (S, S) alone; what lies outside has been painted over."""
        self.region = torch.from_numpy(region).to(self.mix.device)

    def head(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Feature rows of each stride (B, h * w, C), the flows' first -> what `forward` gives."""
        levels: list[Level] = list(self.levels)  # type: ignore[arg-type]
        rows = features[: len(levels)]
        log_p = [level(x).unflatten(1, level.grid) for level, x in zip(levels, rows, strict=True)]
        score, anomaly = self.judge(log_p, [features[i] for i in self.summed])
        return score, anomaly, log_p

    def judge(self, log_p: list[Tensor], summed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Log-likelihoods of each level (B, h, w) and feature rows of the strides that tell of the image as a whole ->
        image scores (B,) and anomaly maps (B, S, S)."""
        constants: list[Tensor] = [level.constants for level in self.levels]  # type: ignore[misc]
        anomaly = fuse(log_p, constants, self.mix[:-1], self.config.backbone.size, self.config.score)
        if self.region is not None:
            lowest = anomaly.masked_fill(~self.region, torch.inf).amin((1, 2), keepdim=True)
            anomaly = torch.where(self.region, anomaly, lowest)
        score = pool(anomaly, self.config.score.top_share)
        if self.image is not None:
            whole = self.whole(*self.image(summed))
            score = (score - self.map_constants[0]) / self.map_constants[1] + self.mix[-1] * whole
        return score, anomaly

    def whole(self, distance: Tensor, beyond: Tensor) -> Tensor:
        """Distance (B,) and places along the directions (B, D) -> how strange the images are as a whole (B,)."""
        if self.config.loss.method != "bgad-full-push":  # which knows no boundary
            beyond = beyond.clamp(min=0.0)
        return distance + self.config.score.direction_weight * beyond.sum(1)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Pixels (B, S, S, 3) -> image scores (B,), anomaly maps (B, S, S), log-likelihoods of each level."""
        return self.head([features.flatten(2).transpose(1, 2) for features in self.backbone(pixels)])


def default_mix(config: Config) -> list[float]:
    """Where no known anomaly says otherwise: levels by a power of their strides, the image as a whole by its weight."""
    powers = [stride**config.score.level_prior_power for stride in config.backbone.strides]
    return [*(power / sum(powers) for power in powers), config.score.image_head_weight]


def strangeness(log_p: Tensor, constants: Tensor, config: ScoreConfig) -> Tensor:
    """Of each feature of a level, comparable between levels; higher is stranger.

    `boundary`: a sigmoid of how far a feature lies beyond its level's boundary b_n: 0 well inside, 1/2 on the
    boundary, about 1 far outside, so that one freak feature of one level cannot decide alone. A slow logarithm keeps
    the order of what lies far outside.
    `standard`: how many standard deviations of the normals below their mean.
    `probability`: the paper's 1 - exp(log p), relative to the most likely normal.
    """
    centre, spread, highest, boundary = constants.unbind()
    if config.fusion == "boundary":
        beyond = boundary - log_p
        return torch.sigmoid(config.sharpness * beyond) + TAIL * torch.log1p(beyond.clamp(min=0.0))
    if config.fusion == "standard":
        return (centre - log_p) / spread
    return 1 - torch.exp((log_p - highest).clamp(max=0.0))


def enlarge(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B, h, w) at another size, smoothly."""
    rows, columns = (
        torch.from_numpy(_between(cells, length)).to(maps)
        for cells, length in zip((int(maps.shape[1]), int(maps.shape[2])), size, strict=True)
    )
    return rows @ maps @ columns.T  # two small products: engines take several times as long to resize


@lru_cache(maxsize=64)
def _between(cells: int, length: int) -> FloatArray:
    """(length, cells): how much each cell counts at each pixel, linearly between the centres of two cells."""
    at = np.clip((np.arange(length) + 0.5) * cells / length - 0.5, 0, cells - 1)
    share: FloatArray = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(cells))).astype(np.float32)
    return share


def fuse(log_p: list[Tensor], constants: list[Tensor], shares: Tensor, size: int, config: ScoreConfig) -> Tensor:
    """One anomaly map (B, size, size): the strangeness of the levels, each by its share."""
    grids: dict[tuple[int, int], Tensor] = {}  # levels on one grid are added up before they are enlarged
    for x, c, share in zip(log_p, constants, shares.unbind(), strict=True):
        grid, part = (int(x.shape[1]), int(x.shape[2])), share * strangeness(x, c, config)
        grids[grid] = grids[grid] + part if grid in grids else part
    first, *others = (enlarge(part, (size, size)) for part in grids.values())
    return sum(others, first)


def pool(anomaly: Tensor, top_share: float) -> Tensor:
    """Image scores (B,): the mean of the highest `top_share` of the map, or its maximum for 0."""
    flat = anomaly.flatten(1)  # (B, size * size)
    count = max(1, round(top_share * int(flat.shape[1])))
    return flat.topk(count, dim=1).values.mean(1)
