"""The conditional normalizing flow: the log-likelihood of a feature given its position.

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
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POSITION_CHANNELS = 128
CLAMP = 1.9
LOG_2PI = math.log(2 * math.pi)


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


class Activations(NamedTuple):
    """The values of one coupling block that its backward pass needs."""

    x: Tensor  # (B, K, C)
    hidden: Tensor  # (B, K, hidden)
    tanh: Tensor  # (B, K, moved)
    factor: Tensor  # (B, K, moved): exp(clamp * tanh)
    y: Tensor  # (B, K, C): before scaling and rotation


def coefficients(x1: Tensor, block: CouplingBlock) -> tuple[Tensor, Tensor, Tensor]:
    """Run the sub-network of a block on x1 (B, K, kept): its hidden units, tanh(s) and t."""
    hidden = F.linear(x1, block.w_in).add_(block.position_part).relu_()  # (B, K, hidden)
    s, t = F.linear(hidden, block.w_out, block.b_out).chunk(2, dim=-1)  # (B, K, moved) each
    return hidden, torch.tanh(s), t


def coupling(x: Tensor, block: CouplingBlock, clamp: float) -> tuple[Tensor, Tensor, Activations]:
    """Apply one block to x (B, K, C): its output (B, K, C), its log-determinant (B, K) and its activations.

    The log-determinant leaves out the global scale, which is the same for every feature.
    """
    kept = block.w_in.shape[1]
    x1, x2 = x[..., :kept], x[..., kept:]
    hidden, tanh, t = coefficients(x1, block)
    s = clamp * tanh
    log_det = s.sum(-1)
    factor = s.exp_()
    y = torch.cat([x1, torch.addcmul(t, x2, factor)], dim=-1)
    return F.linear(y, block.mixing, block.mixing_shift), log_det, Activations(x, hidden, tanh, factor, y)


def log_likelihood_per_channel(z: Tensor, log_det: Tensor) -> Tensor:
    """Return log p / d of latents (B, K, C) with log-determinants (B, K): the unit of every constant of the package."""
    return (log_det - 0.5 * z.square().sum(-1)) / z.shape[-1] - 0.5 * LOG_2PI


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

    def stacked(self, part: Tensor, scale: Tensor) -> CouplingBlock:
        """Return the tensors of all blocks, blocks first, from `position_part` and `global_scale`."""
        mixing = self.rotation * scale[:, None, :]  # (blocks, C, C)
        mixing_shift = (self.rotation @ self.offset[:, :, None])[:, :, 0]  # (blocks, C)
        return CouplingBlock(part, self.w_in, 0.1 * self.w_out, 0.1 * self.b_out, mixing, mixing_shift)

    def forward(self, x: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, K, C) and `position_part` (blocks, K, hidden) -> latents (B, K, C), log-determinant (B, K)."""
        scale = self.global_scale()
        stacked, constant = self.stacked(part, scale), scale.log().sum()
        if torch.is_grad_enabled():
            z, log_det = _TrainingPass.apply(x, self.clamp, *stacked)
            return z, log_det + constant
        return run_blocks(x, constant.expand(x.shape[:-1]), stacked, self.clamp)

    def inverse(self, z: Tensor, part: Tensor) -> Tensor:
        """Latents (B, K, C) -> features (B, K, C)."""
        scale = self.global_scale()
        for i, block in reversed(list(enumerate(each_block(self.stacked(part, scale))))):
            y = (F.linear(z, self.rotation[i].T) - self.offset[i]) / scale[i]
            y1, y2 = y[..., : self.kept], y[..., self.kept :]
            _, tanh, t = coefficients(y1, block)
            z = torch.cat([y1, (y2 - t) * torch.exp(-self.clamp * tanh)], dim=-1)
        return z

    def log_likelihood(self, x: Tensor, part: Tensor) -> Tensor:
        """Return log p(x) / d of each feature, (B, K)."""
        return log_likelihood_per_channel(*self(x, part))


def each_block(stacked: CouplingBlock) -> Iterator[CouplingBlock]:
    """Split stacked tensors into those of one block after the other."""
    return (CouplingBlock(*tensors) for tensors in zip(*stacked, strict=True))


def run_blocks(
    x: Tensor, log_det: Tensor, stacked: CouplingBlock, clamp: float, keep: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Apply all blocks to x (B, K, C) and add to log_det (B, K); append the activations to `keep`, if given."""
    for block in each_block(stacked):
        x, scales, activations = coupling(x, block, clamp)
        log_det = log_det + scales
        if keep is not None:
            keep.extend(activations)
    return x, log_det


class _TrainingPass(torch.autograd.Function):
    """All blocks, with a hand-written backward pass that writes each gradient once, in place.

    Autograd through `coupling` gives the same gradients up to rounding. Interleaved training steps of the three levels
    on one CPU core (torch 2.15) took it 0.98 times as long. The hand-written pass stays because another order of
    summation changes the last bits of every trained weight, and with them the models of a given seed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, clamp: float, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        stacked = CouplingBlock(*tensors)
        activations: list[Tensor] = []
        z, log_det = run_blocks(x, x.new_zeros(x.shape[:-1]), stacked, clamp, activations)
        ctx.save_for_backward(stacked.w_in, stacked.w_out, stacked.mixing, *activations)
        ctx.clamp = clamp
        return z, log_det

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_log_det: Tensor) -> tuple[Tensor | None, ...]:
        w_in, w_out, mixing, *saved = ctx.saved_tensors
        images, positions, channels = grad_z.shape
        blocks, hidden_size, kept = w_in.shape
        moved = channels - kept
        g = grad_z.reshape(-1, channels)  # (rows, C): a row for each image and position
        g_log_det = grad_log_det.reshape(-1, 1) * ctx.clamp
        g_part = g.new_empty(blocks, positions, hidden_size)
        g_w_in, g_w_out, g_mixing = torch.empty_like(w_in), torch.empty_like(w_out), torch.empty_like(mixing)
        g_b_out, g_shift = g.new_empty(blocks, 2 * moved), g.new_empty(blocks, channels)
        size = len(Activations._fields)
        for block in reversed(range(blocks)):
            x, hidden, tanh, factor, y = (values.flatten(0, 1) for values in saved[size * block : size * (block + 1)])
            torch.sum(g, 0, out=g_shift[block])
            torch.mm(g.T, y, out=g_mixing[block])
            g_y = g @ mixing[block]  # (rows, C)
            g_y2 = g_y[:, kept:]
            g_x2 = g_y2 * factor
            g_a = g.new_empty(len(g), 2 * moved)
            slope = torch.addcmul(g_log_det, g_x2, x[:, kept:], value=ctx.clamp)  # d loss / d tanh
            torch.addcmul(slope, slope, tanh * tanh, value=-1, out=g_a[:, :moved])
            g_a[:, moved:] = g_y2
            torch.sum(g_a, 0, out=g_b_out[block])
            torch.mm(g_a.T, hidden, out=g_w_out[block])
            g_hidden = (g_a @ w_out[block]).mul_(hidden > 0)
            torch.sum(g_hidden.view(images, positions, hidden_size), 0, out=g_part[block])
            torch.mm(g_hidden.T, x[:, :kept], out=g_w_in[block])
            g = torch.cat([torch.addmm(g_y[:, :kept], g_hidden, w_in[block]), g_x2], dim=1)
        return g.view(grad_z.shape), None, g_part, g_w_in, g_w_out, g_b_out, g_mixing, g_shift
