"""A level of the model, and the conditional normalizing flow that it rates features with.

A level is one scale of features, with a value for each that rates how normal it is: here the log-likelihood of the
feature given its position. `model/distance.py` has levels without a flow.

One affine coupling block, with x = (x1, x2) and the position encoding c of the feature:

    (s, t) = 0.1 * W2 relu(Wx x1 + Wc c + b1) + 0.1 * b2
    y2     = x2 * exp(clamp * tanh(s)) + t
    y      = R ((x1, y2) * g + o)          R fixed random orthogonal, g = softplus scale

The position part `Wc c + b1` does not depend on the image, so it is computed once per position and shared by all
images of a batch; at scoring time it is a constant. The weights of all blocks are stacked in one tensor each: one
matrix product gives the position part of the whole flow, and the optimiser updates few tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import Config
from bgad.model.boundary import normal_boundary
from bgad.types import FloatArray

POSITION_CHANNELS = 128
CLAMP = 1.9
LOG_2PI = math.log(2 * math.pi)
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
    """One scale: it rates features, the more normal the higher; standardised first where the recipe says so."""

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
        """Shift and scale each channel by `mean` and `std`, which are 0 and 1 unless the loop sets them."""
        return (rows - self.mean) / self.std

    def set_constants(self, c: LevelConstants) -> None:
        """Store the statistics that the anomaly map is computed with."""
        self.constants.copy_(torch.tensor(c.values()))


def position_encoding(height: int, width: int, channels: int = POSITION_CHANNELS) -> Tensor:
    """Return the fixed 2-D sine/cosine encoding of each grid cell, (height * width, channels): half x, half y."""
    if channels % 4:
        raise ValueError(f"position channels must be a multiple of 4, not {channels}")
    half = channels // 2
    rate = torch.exp(torch.arange(0, half, 2, dtype=torch.float64) * -(math.log(10_000.0) / half))
    y = torch.arange(height, dtype=torch.float64)[:, None] * rate  # (H, half/2)
    x = torch.arange(width, dtype=torch.float64)[:, None] * rate  # (W, half/2)
    along_x = torch.stack([x.sin(), x.cos()], dim=-1).reshape(1, width, half).expand(height, width, half)
    along_y = torch.stack([y.sin(), y.cos()], dim=-1).reshape(height, 1, half).expand(height, width, half)
    return torch.cat([along_x, along_y], dim=-1).reshape(height * width, channels).float()


def _orthogonal(channels: int, generator: torch.Generator) -> Tensor:
    """Draw a rotation uniformly over SO(n): QR of a Gaussian matrix, with signs and determinant corrected."""
    q, r = torch.linalg.qr(torch.randn(channels, channels, generator=generator, dtype=torch.float64))
    q = q * torch.sign(torch.diagonal(r))
    if torch.linalg.det(q) < 0:
        q[:, 0] = -q[:, 0]
    return Tensor.float(q)


class CouplingBlock(NamedTuple):
    """The tensors that one coupling block multiplies with; scaling and rotation are one matrix."""

    position_part: Tensor  # (K, hidden): Wc c + b1
    w_in: Tensor  # (hidden, kept)
    w_out: Tensor  # (2 * moved, hidden), with the factor 0.1
    b_out: Tensor  # (2 * moved,), with the factor 0.1
    mixing: Tensor  # (C, C): R diag(g)
    mixing_shift: Tensor  # (C,): R o

    @property
    def kept(self) -> int:
        """Return the number of channels of x1."""
        return int(self.w_in.shape[1])  # int: an exported graph has a constant, not the shape of a tensor

    @property
    def moved(self) -> int:
        """Return the number of channels of x2."""
        return int(self.w_out.shape[0]) // 2


def coefficients(x1: Tensor, block: CouplingBlock) -> tuple[Tensor, Tensor]:
    """Run the sub-network of a block on x1 (B, K, kept): tanh(s) and t, (B, K, moved) each."""
    hidden = F.linear(x1, block.w_in).add_(block.position_part).relu_()  # (B, K, hidden)
    both = F.linear(hidden, block.w_out, block.b_out)  # (B, K, 2 * moved)
    s, t = torch.split(both, [block.moved, block.moved], dim=-1)
    return torch.tanh(s), t


def coupling(x: Tensor, block: CouplingBlock, clamp: float) -> tuple[Tensor, Tensor]:
    """Apply one block to x (B, K, C): its output (B, K, C) and its log-determinant (B, K).

    The log-determinant leaves out the global scale, which is the same for every feature.
    """
    x1, x2 = torch.split(x, [block.kept, block.moved], dim=-1)
    tanh, t = coefficients(x1, block)
    log_scale = clamp * tanh
    log_det = log_scale.sum(-1)
    y = torch.cat([x1, torch.addcmul(t, x2, log_scale.exp_())], dim=-1)
    return F.linear(y, block.mixing, block.mixing_shift), log_det


def run_blocks(x: Tensor, log_det: Tensor, blocks: Iterable[CouplingBlock], clamp: float) -> tuple[Tensor, Tensor]:
    """Apply blocks to x (B, K, C) one after the other and add their log-determinants (B, K) to log_det."""
    for block in blocks:
        x, block_log_det = coupling(x, block, clamp)
        log_det = log_det + block_log_det
    return x, log_det


def log_likelihood_per_channel(z: Tensor, log_det: Tensor) -> Tensor:
    """Return log p / d of latents (B, K, C) with log-determinants (B, K): the unit of `LevelConstants`."""
    return (log_det - 0.5 * z.square().sum(-1)) / int(z.shape[-1]) - 0.5 * LOG_2PI


class ConditionalFlow(nn.Module):
    """Coupling blocks over features (images, positions, channels), conditioned on the position of each feature."""

    rotation: Tensor

    def __init__(
        self,
        channels: int,
        *,
        blocks: int = 8,
        hidden_ratio: float = 2.0,
        max_hidden_ratio: float = 0.0,
        clamp: float = CLAMP,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.channels, self.blocks, self.clamp = channels, blocks, clamp
        self.kept, self.moved = channels - channels // 2, channels // 2  # x1, x2
        fan_in = self.kept + POSITION_CHANNELS
        wanted, limit = hidden_ratio * fan_in, max_hidden_ratio * channels
        hidden = round(min(wanted, limit) if limit else wanted)
        generator = torch.Generator().manual_seed(seed)

        def uniform(fan: int, *shape: int) -> nn.Parameter:
            bound = 1 / math.sqrt(fan)
            return nn.Parameter((torch.rand(blocks, *shape, generator=generator) * 2 - 1) * bound)

        self.w_in = uniform(fan_in, hidden, self.kept)
        self.w_pos = uniform(fan_in, hidden, POSITION_CHANNELS)
        self.b_in = uniform(fan_in, hidden)
        self.w_out = uniform(hidden, 2 * self.moved, hidden)
        self.b_out = uniform(hidden, 2 * self.moved)
        # 0.1 * softplus(scale, beta=0.5) equals 1 here: the flow starts without scaling
        self.scale = nn.Parameter(torch.full((blocks, channels), 2 * math.log(math.exp(5.0) - 1)))
        self.offset = nn.Parameter(torch.zeros(blocks, channels))
        self.register_buffer("rotation", torch.stack([_orthogonal(channels, generator) for _ in range(blocks)]))

    def position_part(self, position: Tensor) -> Tensor:
        """Apply the position half of each block's first layer: (K, 128) -> (blocks, K, hidden)."""
        hidden = self.w_pos.shape[1]
        flat = F.linear(position, self.w_pos.reshape(self.blocks * hidden, -1), self.b_in.reshape(-1))
        return flat.view(-1, self.blocks, hidden).transpose(0, 1)  # (blocks, K, hidden)

    def global_scale(self) -> Tensor:
        """Return the positive scale g of each block and channel, (blocks, C)."""
        return 0.1 * F.softplus(self.scale, beta=0.5)

    def each_block(self, part: Iterable[Tensor], scale: Tensor) -> Iterator[CouplingBlock]:
        """Yield the tensors of one block after the other, from the position part of each and `global_scale`."""
        mixing = self.rotation * scale[:, None, :]  # (blocks, C, C)
        mixing_shift = (self.rotation @ self.offset[:, :, None])[:, :, 0]  # (blocks, C)
        stacked = (part, self.w_in, 0.1 * self.w_out, 0.1 * self.b_out, mixing, mixing_shift)
        return (CouplingBlock(*tensors) for tensors in zip(*stacked, strict=True))

    def forward(self, x: Tensor, part: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Features (B, K, C), position part (K, hidden) of each block -> latents (B, K, C), log-determinant (B, K)."""
        scale = self.global_scale()
        return run_blocks(x, scale.log().sum(), self.each_block(part, scale), self.clamp)

    def inverse(self, z: Tensor, part: Iterable[Tensor]) -> Tensor:
        """Latents (B, K, C) -> features (B, K, C)."""
        scale = self.global_scale()
        for i, block in reversed(list(enumerate(self.each_block(part, scale)))):
            y = (F.linear(z, self.rotation[i].T) - self.offset[i]) / scale[i]
            y1, y2 = y[..., : self.kept], y[..., self.kept :]
            tanh, t = coefficients(y1, block)
            z = torch.cat([y1, (y2 - t) * torch.exp(-self.clamp * tanh)], dim=-1)
        return z

    def log_likelihood(self, x: Tensor, part: Iterable[Tensor]) -> Tensor:
        """Return log p(x) / d of each feature, (B, K)."""
        return log_likelihood_per_channel(*self(x, part))


_BLOCK_BUFFERS = ("rows", "columns", *CouplingBlock._fields[1:])  # of each block of a ScoringFlow


class ScoringFlow(nn.Module):
    """A trained flow for all positions of its grid; part of the exported graph.

    Everything that no image changes is a constant. The position part of a block is stored as a row part and a column
    part. Engines add them once, when they load the graph, so the file does not hold the sum.
    """

    scale: Tensor
    shift: Tensor
    log_det: Tensor

    def __init__(
        self, flow: ConditionalFlow, position: Tensor, grid: tuple[int, int], mean: Tensor, std: Tensor
    ) -> None:
        super().__init__()
        self.blocks, self.clamp, self.grid = flow.blocks, flow.clamp, grid
        with torch.no_grad():
            scale = flow.global_scale()
            for i, (part, *weights) in enumerate(flow.each_block(flow.position_part(position), scale)):
                cells = part.reshape(*grid, -1)  # (h, w, hidden)
                rows, columns = cells[:, :1], cells[:1] - cells[:1, :1]  # (h, 1, hidden), (1, w, hidden)
                # one constant for each block: an engine would slice a stack at every run
                for name, tensor in zip(_BLOCK_BUFFERS, (rows, columns, *weights), strict=True):
                    self.register_buffer(f"{name}{i}", tensor.clone(memory_format=torch.contiguous_format))
            self.register_buffer("scale", 1 / std)
            self.register_buffer("shift", -mean / std)
            self.register_buffer("log_det", scale.log().sum())

    def block(self, i: int) -> CouplingBlock:
        """Return the tensors of one block."""
        rows, columns, *weights = (self.get_buffer(f"{name}{i}") for name in _BLOCK_BUFFERS)
        return CouplingBlock((rows + columns).flatten(0, 1), *weights)  # position part: (h * w, hidden)

    def forward(self, features: Tensor) -> Tensor:
        """Feature maps (B, C, h, w) -> log p / d (B, h, w)."""
        x = features.flatten(2).transpose(1, 2) * self.scale + self.shift  # (B, h * w, C)
        z, log_det = run_blocks(x, self.log_det, (self.block(i) for i in range(self.blocks)), self.clamp)
        return log_likelihood_per_channel(z, log_det).reshape(-1, *self.grid)


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
        return self.flow.log_likelihood(self.standardise(rows), self.position_parts(at))

    def position_parts(self, at: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the position part of each block, (K, hidden), at all positions or at those of index `at` (K,).

        The encoding of a position is one of its row beside one of its column, and the part is linear in it. So many
        positions take a product for each row and each column, and a sum.
        """
        height, width = self.grid
        if at is not None and len(at) <= height + width:
            return iter(self.flow.position_part(self.position[at]))
        grid = self.position.view(height, width, -1)
        columns, rows = (
            self.flow.position_part(grid[0]),
            self.flow.position_part(grid[:, 0]),
        )  # (blocks, w or h, hidden)
        pairs = zip(rows - rows[:, :1], columns, strict=True)  # both hold the part of the corner
        if at is None:
            return ((row[:, None] + column).flatten(0, 1) for row, column in pairs)
        y, x = at // width, at % width
        return (row.index_select(0, y) + column.index_select(0, x) for row, column in pairs)

    def for_export(self) -> nn.Module:
        """See Level."""
        return ScoringFlow(self.flow, self.position, self.grid, self.mean, self.std)
