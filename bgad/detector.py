"""The trained thing on the torch side: backbone, flows, fusion and score as one module, and a Scorer around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad import backbone as backbones
from bgad import device as devices
from bgad import modelfile
from bgad.config import Config, ScoreConfig, from_dict
from bgad.flow import ConditionalFlow, position_encoding
from bgad.modelfile import Card
from bgad.scorer import BaseScorer
from bgad.types import FloatArray

SHARPNESS = 4.0  # of the step from inside to outside, per unit of log p / d
TAIL = 0.02
FLOW_FILE, BACKBONE_FILE = "flow.safetensors", "backbone.safetensors"


@dataclass(frozen=True)
class LevelConstants:
    """What scoring needs to know of a level's training normals, in units of log p / d."""

    centre: float  # mean
    spread: float  # standard deviation
    highest: float
    boundary: float  # b_n


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
        self.flow = ConditionalFlow(channels, blocks=flow.blocks, width=flow.width, clamp=flow.clamp, seed=seed)
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
        self.constants.copy_(torch.tensor([c.centre, c.spread, c.highest, c.boundary]))


class ScoringModel(nn.Module):
    """From pixels to map and score; the one scoring path that training, evaluation and export share."""

    def __init__(self, config: Config, backbone: backbones.Backbone) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        grids = backbone.grids(config.backbone.size)
        self.levels = nn.ModuleList(
            Level(channels, grid, config, seed=config.seed * 1000 + i)
            for i, (channels, grid) in enumerate(zip(backbone.channels, grids, strict=True))
        )

    def log_likelihoods(self, pixels: Tensor) -> list[Tensor]:
        """Pixels (B, S, S, 3) -> log p / d of each level, (B, h, w)."""
        maps = []
        for level, features in zip(self.levels, self.backbone(pixels), strict=True):
            rows = features.flatten(2).transpose(1, 2)  # (B, h * w, C)
            maps.append(level(rows).unflatten(1, level.grid))
        return maps

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Pixels (B, S, S, 3) -> image scores (B,), anomaly maps (B, S, S), log-likelihoods of each level."""
        log_p = self.log_likelihoods(pixels)
        constants = [level.constants for level in self.levels]
        anomaly = fuse(log_p, constants, self.config.backbone.size, self.config.score)  # type: ignore[arg-type]
        return pool(anomaly, self.config.score.top_share), anomaly, log_p


def fuse(log_p: list[Tensor], constants: list[Tensor], size: int, config: ScoreConfig) -> Tensor:
    """One anomaly map (B, size, size) of all levels; higher is stranger.

    `boundary`: a sigmoid of how far a feature lies beyond its level's boundary b_n, averaged over levels: 0 well
    inside, 1/2 on the boundary, about 1 far outside, so that one freak feature of one level cannot decide alone. A
    slow logarithm keeps the order of what lies far outside.
    `standard`: how many standard deviations of the training normals below their mean, averaged over levels.
    `probability`: the paper's 1 - exp(log p), relative to the most likely training normal, averaged likewise.
    """
    maps = []
    for values, constant in zip(log_p, constants, strict=True):
        centre, spread, highest, boundary = constant.unbind()
        if config.fusion == "boundary":
            beyond = boundary - values
            strange = torch.sigmoid(SHARPNESS * beyond) + TAIL * torch.log1p(beyond.clamp(min=0.0))
        elif config.fusion == "standard":
            strange = (centre - values) / spread
        else:
            strange = 1 - torch.exp((values - highest).clamp(max=0.0))
        up = F.interpolate(strange[:, None], size=(size, size), mode="bilinear", align_corners=False)
        maps.append(up[:, 0])  # (B, size, size)
    return torch.stack(maps).mean(0)


def pool(anomaly: Tensor, top_share: float) -> Tensor:
    """Image scores (B,): the mean of the highest `top_share` of the map, or its maximum for 0."""
    flat = anomaly.flatten(1)  # (B, size * size)
    count = max(1, round(top_share * flat.shape[1]))
    return flat.topk(count, dim=1).values.mean(1)


class Detector(BaseScorer):
    """Scores images with torch; `bgad.load` gives one."""

    def __init__(self, model: ScoringModel, card: Card, device: torch.device) -> None:
        super().__init__(card)
        self.model, self.device = model.to(device).eval(), device

    def run(self, pixels: FloatArray) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """See BaseScorer."""
        return run_model(self.model, pixels, self.device)

    def start_thread(self) -> None:
        """See BaseScorer."""
        torch.set_num_threads(1)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Detector:
        """Read a model folder and check every byte of it."""
        devices.keep_memory()
        folder = Path(folder)
        card = modelfile.read(folder, needs=(FLOW_FILE, BACKBONE_FILE))
        config = from_dict(card.data["config"], source=str(folder / modelfile.CARD))
        state = safetensors.torch.load_file(folder / BACKBONE_FILE)
        model = ScoringModel(config, backbones.build(config.backbone, state))
        model.levels.load_state_dict(safetensors.torch.load_file(folder / FLOW_FILE))
        return cls(model, card, devices.pick(device))


def run_model(
    model: ScoringModel, pixels: FloatArray, device: torch.device
) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
    """The scoring model on numpy arrays."""
    with torch.inference_mode():
        scores, maps, levels = model(torch.from_numpy(pixels).to(device))
        return scores.cpu().numpy(), maps.cpu().numpy(), [level.cpu().numpy() for level in levels]


def weights(model: ScoringModel) -> dict[str, bytes]:
    """The weight files of a model folder."""

    def pack(module: nn.Module) -> bytes:
        state = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
        return safetensors.torch.save(state)

    return {FLOW_FILE: pack(model.levels), BACKBONE_FILE: pack(model.backbone)}
