"""VT-ADL's head: a vision transformer encodes patches, a decoder rebuilds the image, a mixture rates the patches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import Config
from bgad.config.unsupervised import VtAdlConfig
from bgad.errors import ConfigError
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.scoring import map_score, resize_maps
from bgad.model.ssim import ssim_map

SQUARED_WEIGHT, SSIM_WEIGHT = 5.0, 0.5  # of squared error and structural similarity in the loss; as printed
MIN_STD = 0.05  # of a component, so that a likelihood stays bounded
DOUBLINGS = 5  # transposed convolutions of the decoder


class VtAdlHead(Head):
    """T patches, encoded by D values each; at each patch, a mixture of K Gaussians of its code."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, VtAdlConfig)  # noqa: S101 - Config.check ensures it
        if spec.size % settings.patch or spec.size % 2**DOUBLINGS:
            raise ConfigError(f"backbone.size must be a multiple of baseline.patch ({settings.patch}) and of 32 pixels")
        self.side, self.patch, width = spec.size // settings.patch, settings.patch, settings.width
        self.embedding = nn.Linear(3 * settings.patch**2, width)
        self.position = nn.Parameter(0.02 * torch.randn(self.side**2, width))
        self.blocks = nn.ModuleList(Block(width, settings.heads) for _ in range(settings.blocks))
        self.norm = nn.LayerNorm(width)
        self.coarse = spec.size // 2**DOUBLINGS
        self.to_decoder = nn.Linear(width, settings.decoder_width * self.coarse**2)
        self.decoder = _decoder(settings.decoder_width)
        shape = (self.side**2, settings.components)
        self.logits = nn.Parameter(torch.zeros(shape))
        self.means = nn.Parameter(torch.randn(*shape, width))
        self.raw_stds = nn.Parameter(torch.full((*shape, width), 0.5))

    def encode(self, images: Tensor) -> Tensor:
        """Images (B, 3, S, S) -> codes of the patches (B, T, D)."""
        tiles = images.reshape(-1, 3, self.side, self.patch, self.side, self.patch).permute(0, 2, 4, 1, 3, 5)
        tokens = self.embedding(tiles.reshape(-1, self.side**2, 3 * self.patch**2)) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        codes: Tensor = self.norm(tokens)
        return codes

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (B, T, D) -> images, from the mean of the codes."""
        coarse = self.to_decoder(codes.mean(1)).unflatten(1, (-1, self.coarse, self.coarse))
        images: Tensor = self.decoder(coarse)
        return images

    def surprise(self, codes: Tensor) -> Tensor:
        """Codes (B, T, D) -> the negative log-likelihood of each patch, divided by D: (B, T)."""
        stds = F.softplus(self.raw_stds) + MIN_STD
        return mixture_nll(codes, self.logits, self.means, stds) / codes.shape[2]

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head. The error of the reconstruction is the part of the image as a whole."""
        images = maps[0]
        codes = self.encode(images)
        patches = self.surprise(codes).reshape(-1, self.side, self.side)
        anomaly_map = resize_maps(patches, (self.spec.size, self.spec.size))
        return HeadOutput(map_score(anomaly_map, 0.0), anomaly_map, reconstruction_error(images, self.decode(codes)))


class Block(nn.Module):
    """A transformer block: attention between the patches, then two layers on each, both with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.queries_keys_values, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, D) -> tokens."""
        batch, count, width = tokens.shape
        split = self.queries_keys_values(self.norms[0](tokens)).reshape(batch, count, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (B, heads, T, D / heads) each
        weights = (query @ key.transpose(2, 3) / math.sqrt(width // self.heads)).softmax(3)
        tokens = tokens + self.joined((weights @ value).transpose(1, 2).reshape(batch, count, width))
        result: Tensor = tokens + self.mlp(self.norms[1](tokens))
        return result


def _decoder(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(DOUBLINGS - 1):
        layers += [nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.BatchNorm2d(width // 2), nn.ReLU()]
        width //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Sigmoid())


def reconstruction_error(images: Tensor, reconstructions: Tensor) -> Tensor:
    """Return the weighted sum of squared error and structural dissimilarity of each image (B,)."""
    squared = (images - reconstructions).square().mean((1, 2, 3))
    return SQUARED_WEIGHT * squared + SSIM_WEIGHT * (1 - ssim_map(images, reconstructions).mean((1, 2)))


def mixture_nll(codes: Tensor, logits: Tensor, means: Tensor, stds: Tensor) -> Tensor:
    """Negative log-likelihood of codes (B, T, D) under mixtures of K diagonal Gaussians, one mixture for each of T.

    `logits` are (T, K); `means` and `stds` are (T, K, D). The result is (B, T).
    """
    scaled = (codes[:, :, None] - means) / stds  # (B, T, K, D)
    log_p = -0.5 * scaled.square().sum(3) - stds.log().sum(2) - 0.5 * means.shape[2] * math.log(2 * math.pi)
    return -(log_p + logits.log_softmax(1)).logsumexp(2)
