"""The plain loop of the paper, as one would write it first: what our training is measured against.

timm's backbone in eager torch runs again in every epoch, FrEIA's blocks get the position joined to every feature, a
step takes 4,096 random features, the optimiser and the schedule are the paper's. The loss is that of the package, which
tests hold to the paper's formulas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import FrEIA.framework
import FrEIA.modules
import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad import metrics
from bgad.config import PRESETS, BackboneConfig, Config, FlowConfig
from bgad.data.sample_io import read, read_mask
from bgad.data.split import Split
from bgad.io import images
from bgad.io.masks import resize_mask
from bgad.model import backbone as backbones
from bgad.model.boundary import normal_boundary
from bgad.model.flow import CLAMP, LOG_2PI, POSITION_CHANNELS, position_encoding
from bgad.training.loop import warm_cosine
from bgad.training.objective import NORMALISER, objective
from bgad.types import BoolArray, Sample

CHUNK, BATCH, EPOCHS, LR = 4096, 32, 200, 2e-4
PAPER = PRESETS["paper"]


def freia_flow(channels: int, config: FlowConfig) -> nn.Module:
    """A flow of FrEIA's blocks."""

    def subnet(inputs: int, outputs: int) -> nn.Module:
        most = config.max_hidden_ratio * channels or config.hidden_ratio * inputs
        hidden = round(min(config.hidden_ratio * inputs, most))
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    flow: nn.Module = FrEIA.framework.SequenceINN(channels)
    for _ in range(config.blocks):
        flow.append(  # type: ignore[operator]
            FrEIA.modules.AllInOneBlock,
            cond=0,
            cond_shape=(POSITION_CHANNELS,),
            subnet_constructor=subnet,
            affine_clamping=CLAMP,
            global_affine_type="SOFTPLUS",
            permute_soft=True,
        )
    return flow


def papers(size: int) -> Config:
    """The paper's flows on our backbone: 8 blocks, features as they come."""
    return Config(backbone=BackboneConfig(size=size, min_stride=0), flow=PAPER.flow)


class PlainModel(nn.Module):
    """timm's backbone and FrEIA's flows; scores as in the paper."""

    def __init__(self, config: Config, *, pretrained: bool = True) -> None:
        super().__init__()
        self.size, self.finest = config.backbone.size, config.backbone.min_stride
        self.net = timm.create_model("tf_efficientnet_lite0", features_only=True, out_indices=(1, 2, 3))
        if pretrained:
            packaged = backbones.BACKBONES["lite0"]
            state = backbones._packaged_state(packaged)
            self.net.load_state_dict({key: value for key, value in state.items() if key in self.net.state_dict()})
        self.net.eval().requires_grad_(False)
        self.flows = nn.ModuleList(freia_flow(channels, config.flow) for channels in self.net.feature_info.channels())

    def features(self, pixels: Tensor) -> list[Tensor]:
        """Pixels (B, S, S, 3) -> feature maps."""
        maps: list[Tensor] = self.net((pixels.permute(0, 3, 1, 2) - 127 / 255) / (128 / 255))
        factors = [max(1, self.finest // stride) for stride in self.net.feature_info.reduction()]
        return [F.avg_pool2d(m, factor) if factor > 1 else m for m, factor in zip(maps, factors, strict=True)]

    def log_p(self, level: int, rows: Tensor, position: Tensor) -> Tensor:
        """log p / d of features (N, C) at positions (N, 128)."""
        z, log_det = self.flows[level](rows, [position])
        found: Tensor = (log_det - 0.5 * z.square().sum(1)) / rows.shape[1] - 0.5 * LOG_2PI
        return found

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels (B, S, S, 3) -> scores and maps."""
        total = torch.zeros(len(pixels), self.size, self.size)
        for level, features in enumerate(self.features(pixels)):
            batch, channels, height, width = features.shape
            rows = features.permute(0, 2, 3, 1).reshape(-1, channels)
            log_p = self.log_p(level, rows, position_encoding(height, width).repeat(batch, 1))
            small = log_p.view(batch, 1, height, width)
            total += 1 - F.interpolate(small.clamp(max=0).exp(), size=(self.size, self.size), mode="bilinear")[:, 0]
        return total.flatten(1).amax(1), total


@dataclass
class Loop:
    """One training run; `seconds` counts training alone."""

    split: Split
    size: int
    bits: int
    seconds: float = 0.0
    epoch: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = PlainModel(papers(self.size))
        self.optimiser = torch.optim.Adam([p for p in self.model.flows.parameters() if p.requires_grad], LR)
        self.rng = np.random.default_rng(0)

    def pixels(self, samples: Sequence[Sample]) -> Tensor:
        """Read again every time, as a data loader does."""
        size = (self.size, self.size)
        return torch.from_numpy(np.stack([images.fit(read(s, self.bits), size) for s in samples]))

    def run(self, minutes: float, look: Callable[[Loop], bool], every: float = 30.0) -> None:
        """Train until the schedule or the time is over or `look`, asked every so often, says that it is enough."""
        looked = 0.0
        while self.epoch < EPOCHS and self.seconds < 60 * minutes:
            began = time.perf_counter()
            self._epoch()
            self.epoch += 1
            self.seconds += time.perf_counter() - began
            if self.seconds - looked > every or self.seconds >= 60 * minutes:
                looked = self.seconds
                if look(self):
                    return

    def _epoch(self) -> None:
        pushing = self.epoch >= round(PAPER.train.push_start * EPOCHS)
        self.optimiser.param_groups[0]["lr"] = LR * warm_cosine(self.epoch / EPOCHS, PAPER.train.warmup)
        everyone = [*self.split.train, *(self.split.known if pushing else [])]
        order = [everyone[i] for i in self.rng.permutation(len(everyone))]
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            with torch.no_grad():
                maps = self.model.features(self.pixels(batch))
            for level, features in enumerate(maps):
                self._level(level, features, batch, pushing)

    def _level(self, level: int, features: Tensor, batch: Sequence[Sample], pushing: bool) -> None:
        count, channels, height, width = features.shape
        rows = features.permute(0, 2, 3, 1).reshape(-1, channels)
        position = position_encoding(height, width).repeat(count, 1)
        bad = torch.from_numpy(np.concatenate([_marked(s, (height, width)) for s in batch]))
        order = torch.randperm(len(rows))
        for start in range(0, len(order), CHUNK):
            chunk = order[start : start + CHUNK]
            log_p, marked = self.model.log_p(level, rows[chunk], position[chunk]), bad[chunk]
            normal, abnormal = log_p[~marked], log_p[marked] if pushing and bool(marked.any()) else None
            edge = None
            if pushing:
                edge = normal_boundary((normal.detach() / NORMALISER).numpy(), PAPER.loss.beta)
            loss = objective(PAPER.objective, PAPER.loss, normal, abnormal, edge).total
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()

    def auroc(self) -> float:
        """Image AUROC on the test images of the split."""
        scores: list[float] = []
        with torch.inference_mode():
            for start in range(0, len(self.split.test), 8):
                scores += self.model(self.pixels(self.split.test[start : start + 8]))[0].tolist()
        return metrics.auroc(scores, [s.label for s in self.split.test]) or 0.0


def _marked(sample: Sample, grid: tuple[int, int]) -> BoolArray:
    mask = read_mask(sample) if sample.label else None
    return np.zeros(grid[0] * grid[1], np.bool_) if mask is None else resize_mask(mask, grid).ravel()
