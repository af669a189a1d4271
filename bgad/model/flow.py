"""The conditional normalizing flow: features and their position in, log-likelihood out.

One affine coupling block, with x = (x1, x2) and the position encoding c of the feature:

    (s, t) = 0.1 * W2 relu(Wx x1 + Wc c + b1) + 0.1 * b2
    y2     = x2 * exp(clamp * tanh(s)) + t
    y      = R ((x1, y2) * g + o)          R fixed random orthogonal, g = softplus scale

The position part `Wc c + b1` is the same for every image, so it is computed once per position and shared
by all images of a batch; at scoring time it is a constant. The weights of all blocks are stacked in one
tensor each: one matrix product gives the position part of the whole flow, and the optimiser has few tensors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POSITION_CHANNELS = 128
CLAMP = 1.9
LOG_2PI = math.log(2 * math.pi)


def position_encoding(height: int, width: int, channels: int = POSITION_CHANNELS) -> Tensor:
    """Fixed 2-D sine/cosine code of each grid cell, (height * width, channels); half for x, half for y."""
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
    """A random rotation, uniform over SO(n): QR of a Gaussian matrix with the signs and determinant set right."""
    q, r = torch.linalg.qr(torch.randn(channels, channels, generator=generator, dtype=torch.float64))
    q = q * torch.sign(torch.diagonal(r))
    if torch.linalg.det(q) < 0:
        q[:, 0] = -q[:, 0]
    return Tensor.float(q)


class ConditionalFlow(nn.Module):
    """Coupling blocks over features (images, positions, channels), conditioned on the position."""

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
        # softplus(beta = 0.5) * 0.1 equals 1 here: the flow starts without scaling
        self.scale = nn.Parameter(torch.full((blocks, channels), 2 * math.log(math.exp(5.0) - 1)))
        self.offset = nn.Parameter(torch.zeros(blocks, channels))
        self.register_buffer("rotation", torch.stack([_orthogonal(channels, generator) for _ in range(blocks)]))

    def position_part(self, position: Tensor) -> Tensor:
        """What each block's first layer makes of the positions: (K, 128) -> (blocks, K, hidden)."""
        hidden = self.w_pos.shape[1]
        flat = F.linear(position, self.w_pos.reshape(self.blocks * hidden, -1), self.b_in.reshape(-1))
        return flat.view(-1, self.blocks, hidden).transpose(0, 1)  # (blocks, K, hidden)

    def _global_scale(self) -> Tensor:
        return 0.1 * F.softplus(self.scale, beta=0.5)  # (blocks, C)

    def _coefficients(self, x1: Tensor, part: Tensor, block: int) -> tuple[Tensor, Tensor]:
        hidden = torch.relu_(F.linear(x1, self.w_in[block]) + part)  # (B, K, hidden)
        a = F.linear(hidden, 0.1 * self.w_out[block], 0.1 * self.b_out[block])  # (B, K, 2 * moved)
        s, t = a[..., : self.moved], a[..., self.moved :]
        return self.clamp * torch.tanh(s), t

    def forward(self, x: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, K, C) and `position_part` (blocks, K, hidden) -> latents (B, K, C), log-determinant (B, K)."""
        scale = self._global_scale()
        mix = self.rotation * scale[:, None, :]  # (blocks, C, C): scaling and rotation as one matrix
        shift = (self.rotation @ self.offset[:, :, None])[:, :, 0]  # (blocks, C)
        constant = scale.log().sum()
        if torch.is_grad_enabled():
            z, log_det = _TrainingPass.apply(
                x, part, self.w_in, 0.1 * self.w_out, 0.1 * self.b_out, mix, shift, self.clamp
            )
            return z, log_det + constant
        log_det = constant.expand(x.shape[:-1])
        for block in range(self.blocks):
            x1, x2 = x[..., : self.kept], x[..., self.kept :]
            s, t = self._coefficients(x1, part[block], block)
            x = F.linear(torch.cat([x1, torch.addcmul(t, x2, s.exp())], dim=-1), mix[block], shift[block])
            log_det = log_det + s.sum(-1)
        return x, log_det

    def inverse(self, z: Tensor, part: Tensor) -> Tensor:
        """Latents (B, K, C) -> features (B, K, C)."""
        scale = self._global_scale()
        for block in reversed(range(self.blocks)):
            y = (F.linear(z, self.rotation[block].T) - self.offset[block]) / scale[block]
            y1, y2 = y[..., : self.kept], y[..., self.kept :]
            s, t = self._coefficients(y1, part[block], block)
            z = torch.cat([y1, (y2 - t) * torch.exp(-s)], dim=-1)
        return z

    def log_likelihood(self, x: Tensor, part: Tensor) -> Tensor:
        """log p(x) / d of each feature, (B, K): the unit in which every constant of the package is given."""
        z, log_det = self(x, part)
        log_p: Tensor = (log_det - 0.5 * z.square().sum(-1)) / self.channels - 0.5 * LOG_2PI
        return log_p


class FixedFlow(nn.Module):
    """A trained flow at all positions of its grid, for scoring: everything that an image cannot change is a constant.

    The position part p of a block is the sum of what the row and what the column says. It costs one pass over the
    hidden units instead of two: relu(h + p) = max(h, -p) + p, and W2 p is a constant. Engines work out -p and W2 p
    once, when they load the graph, so the file need not hold them.
    """

    scale: Tensor
    shift: Tensor
    log_det: Tensor

    def __init__(
        self, flow: ConditionalFlow, position: Tensor, grid: tuple[int, int], mean: Tensor, std: Tensor
    ) -> None:
        super().__init__()
        self.blocks, self.kept, self.channels, self.clamp = flow.blocks, flow.kept, flow.channels, flow.clamp
        self.grid = grid
        with torch.no_grad():
            part = flow.position_part(position).reshape(flow.blocks, *grid, -1)  # (blocks, h, w, hidden)
            scale = flow._global_scale()
            tables = {
                "rows": part[:, :, :1],  # (blocks, h, 1, hidden)
                "columns": part[:, :1] - part[:, :1, :1],  # (blocks, 1, w, hidden)
                "w_in": flow.w_in.transpose(1, 2),
                "w_out": 0.1 * flow.w_out.transpose(1, 2),
                "b_out": 0.1 * flow.b_out,
                "mix": (flow.rotation * scale[:, None, :]).transpose(1, 2),
                "mix_shift": (flow.rotation @ flow.offset[:, :, None])[:, :, 0],
            }
            for name, table in tables.items():
                for block in range(self.blocks):  # one constant each: an engine would slice a stack at every run
                    self.register_buffer(f"{name}{block}", table[block].clone(memory_format=torch.contiguous_format))
            self.register_buffer("scale", 1 / std)
            self.register_buffer("shift", -mean / std)
            self.register_buffer("log_det", scale.log().sum())

    def forward(self, features: Tensor) -> Tensor:
        """Feature maps (B, C, h, w), as the backbone gives them -> log p / d (B, h, w)."""
        x = features.flatten(2).transpose(1, 2) * self.scale + self.shift  # (B, h * w, C)
        moved = self.channels - self.kept
        total: Tensor | None = None  # of the tanh of all blocks: one sum over channels at the end
        for block in range(self.blocks):
            of = {name: self.get_buffer(f"{name}{block}") for name in _FIXED}
            part = (of["rows"] + of["columns"]).flatten(0, 1)  # (h * w, hidden)
            x1, x2 = x[..., : self.kept], x[..., self.kept :]
            hidden = torch.maximum(x1 @ of["w_in"], -part)  # (B, h * w, hidden)
            a = hidden @ of["w_out"] + (part @ of["w_out"] + of["b_out"])
            tanh = torch.tanh(a[..., :moved])
            total = tanh if total is None else total + tanh
            y2 = x2 * torch.exp(self.clamp * tanh) + a[..., moved:]
            x = torch.cat([x1, y2], -1) @ of["mix"] + of["mix_shift"]
        assert total is not None  # noqa: S101 - a flow has blocks
        log_det = self.log_det + self.clamp * total.sum(-1)
        log_p = (log_det - 0.5 * (x * x).sum(-1)) / self.channels - 0.5 * LOG_2PI
        return log_p.reshape(-1, *self.grid)


_FIXED = ("rows", "columns", "w_in", "w_out", "b_out", "mix", "mix_shift")


class _TrainingPass(torch.autograd.Function):
    """The blocks with a backward pass written out: the same numbers as autograd's, sooner.

    Autograd would make a zero-filled gradient of every stacked weight for each block and a dozen small tensors in
    between; here each gradient is written once, in place, and the activations are kept as they are.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, w_in: Tensor, w_out: Tensor, b_out: Tensor, mix: Tensor,
                shift: Tensor, clamp: float) -> tuple[Tensor, Tensor]:  # fmt: skip
        images, positions, channels = x.shape
        rows = images * positions
        moved = b_out.shape[1] // 2
        kept = channels - moved
        x = x.reshape(rows, channels)
        log_det = x.new_zeros(rows)
        saved = []
        for block in range(len(w_in)):
            x1, x2 = x[:, :kept], x[:, kept:]
            hidden = x1 @ w_in[block].T  # (rows, hidden)
            hidden.view(images, positions, -1).add_(part[block]).relu_()
            a = torch.addmm(b_out[block], hidden, w_out[block].T)  # (rows, 2 * moved)
            tanh = a[:, :moved].tanh()
            s = tanh * clamp
            log_det += s.sum(1)
            factor = s.exp_()
            y = torch.cat([x1, torch.addcmul(a[:, moved:], x2, factor)], dim=1)
            saved += [x, hidden, tanh, factor, y]
            x = torch.addmm(shift[block], y, mix[block].T)
        ctx.save_for_backward(w_in, w_out, mix, *saved)
        ctx.clamp, ctx.shape = clamp, (images, positions, channels)
        return x.view(images, positions, channels), log_det.view(images, positions)

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_log_det: Tensor) -> tuple[Tensor | None, ...]:
        w_in, w_out, mix, *saved = ctx.saved_tensors
        images, positions, channels = ctx.shape
        blocks, hidden_size, kept = w_in.shape
        moved = channels - kept
        g = grad_z.reshape(-1, channels)
        g_log_det = grad_log_det.reshape(-1, 1) * ctx.clamp
        g_part = g.new_empty(blocks, positions, hidden_size)
        g_w_in, g_w_out, g_mix = torch.empty_like(w_in), torch.empty_like(w_out), torch.empty_like(mix)
        g_b_out, g_shift = g.new_empty(blocks, 2 * moved), g.new_empty(blocks, channels)
        for block in reversed(range(blocks)):
            x, hidden, tanh, factor, y = saved[5 * block : 5 * block + 5]
            torch.sum(g, 0, out=g_shift[block])
            torch.mm(g.T, y, out=g_mix[block])
            g_y = g @ mix[block]  # (rows, C)
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
        return g.view(ctx.shape), g_part, g_w_in, g_w_out, g_b_out, g_mix, g_shift, None
