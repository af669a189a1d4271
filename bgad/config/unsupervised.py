"""Settings of the baselines that learn by gradient descent, from normals alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bgad.config.sections import BaselineConfig, need


@dataclass(frozen=True)
class TrainedConfig(BaselineConfig):
    """The schedule that these baselines have in common."""

    steps: int = 400
    epochs: int = 0  # passes over the normals, in place of steps; 0: count steps
    images_per_step: int = 8
    lr: float = 1e-3

    def check(self) -> None:
        """See BaselineConfig."""
        need(self.steps >= 1, "baseline.steps", "at least 1")
        need(self.epochs >= 0, "baseline.epochs", "0 or more")
        need(self.images_per_step >= 2, "baseline.images_per_step", "at least 2")
        need(self.lr > 0, "baseline.lr", "above 0")

    def step_count(self, normals: int) -> int:
        """Return the number of steps with so many normals.

        >>> TrainedConfig().step_count(30), TrainedConfig(epochs=4).step_count(30)
        (400, 15)
        """
        return math.ceil(self.epochs * normals / self.images_per_step) if self.epochs else self.steps


@dataclass(frozen=True)
class CfaConfig(TrainedConfig):
    """CFA."""

    images_per_step: int = 4  # as printed
    strides: tuple[int, ...] = (4, 8, 16)  # of the features that are joined; as printed
    bank_share: float = 1.0  # stored features, as a share of the positions of one image; printed: 1 and less
    neighbours: int = 3  # stored features that attract a patch, and as many next ones that repel it; as printed
    radius: float = 1e-5  # of the hyperspheres at the start; it is learnt
    margin: float = 0.1  # by which a patch may enter a hypersphere that repels it
    weight_decay: float = 5e-4  # as printed
    sigma: float = 4.0  # of the Gaussian that smooths the map, in pixels of the input

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(len(self.strides) > 0, "baseline.strides", "one or more strides")
        need(0 < self.bank_share <= 1, "baseline.bank_share", "above 0, at most 1")
        need(self.neighbours >= 1, "baseline.neighbours", "at least 1")
        need(self.radius > 0, "baseline.radius", "above 0")
        need(self.margin >= 0, "baseline.margin", "0 or more")
        need(self.weight_decay >= 0, "baseline.weight_decay", "0 or more")
        need(self.sigma >= 0, "baseline.sigma", "0 or more")


@dataclass(frozen=True)
class DistillationConfig(TrainedConfig):
    """What the baselines with a teacher and a student have in common."""

    strides: tuple[int, ...] = (4, 8, 16)  # of the first, the student takes the features; the others it learns
    width: float = 1.0  # hidden channels of the student, as a multiple of the teacher's channels at that stride

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(len(self.strides) > 1, "baseline.strides", "two or more strides")
        need(list(self.strides) == sorted(set(self.strides)), "baseline.strides", "distinct and ascending")
        need(self.width > 0, "baseline.width", "above 0")


@dataclass(frozen=True)
class MsfdConfig(DistillationConfig):
    """Multi-scale feature distillation."""

    images_per_step: int = 32  # as printed
    lr: float = 0.4  # of gradient descent with momentum; as printed
    momentum: float = 0.9  # as printed
    weight_decay: float = 1e-4  # as printed
    width: float = 2.0

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(0 <= self.momentum < 1, "baseline.momentum", "0 or more, below 1")
        need(self.weight_decay >= 0, "baseline.weight_decay", "0 or more")


@dataclass(frozen=True)
class KdadConfig(DistillationConfig):
    """KDAD."""

    images_per_step: int = 16
    strides: tuple[int, ...] = (4, 8, 16, 32)
    width: float = 0.5  # a student smaller than its teacher
    sigma: float = 4.0  # of the Gaussian that smooths the map, in pixels of the input

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.sigma >= 0, "baseline.sigma", "0 or more")


@dataclass(frozen=True)
class AutoencoderConfig(TrainedConfig):
    """AE-MSE and AE-SSIM."""

    steps: int = 1500
    images_per_step: int = 16
    lr: float = 2e-4  # as printed
    weight_decay: float = 1e-5  # as printed
    latent: int = 100  # values of the latent vector; printed: 100 and 500
    width: int = 32  # channels of the first convolutions; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.weight_decay >= 0, "baseline.weight_decay", "0 or more")
        need(self.latent >= 1, "baseline.latent", "at least 1")
        need(self.width >= 1, "baseline.width", "at least 1")


@dataclass(frozen=True)
class DraemConfig(TrainedConfig):
    """DRAEM."""

    steps: int = 800
    images_per_step: int = 8  # as printed
    lr: float = 1e-3  # at the start; printed: 1e-4
    reconstructive_width: int = 16  # channels of the first convolutions; printed: 128
    discriminative_width: int = 16  # printed: 64

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.reconstructive_width >= 1, "baseline.reconstructive_width", "at least 1")
        need(self.discriminative_width >= 1, "baseline.discriminative_width", "at least 1")


@dataclass(frozen=True)
class VtAdlConfig(TrainedConfig):
    """VT-ADL."""

    steps: int = 800
    lr: float = 5e-4  # printed: 1e-4
    clip_norm: float = 1.0  # maximum gradient norm; 0: no clipping
    patch: int = 32  # side of a patch in pixels; printed: 64
    width: int = 128  # values of the code of a patch
    blocks: int = 4  # of the transformer
    heads: int = 4  # of its attention
    decoder_width: int = 128  # channels at the decoder's coarsest resolution, halved at each doubling
    components: int = 10  # Gaussians of a mixture; as printed
    noise: float = 0.2  # standard deviation of the noise on the codes that the mixtures learn

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.clip_norm >= 0, "baseline.clip_norm", "0 or more")
        need(self.patch >= 2, "baseline.patch", "at least 2")
        need(self.heads >= 1 and self.width % self.heads == 0, "baseline.width", "a multiple of baseline.heads")
        need(self.blocks >= 1, "baseline.blocks", "at least 1")
        need(self.decoder_width >= 16, "baseline.decoder_width", "at least 16")
        need(self.components >= 1, "baseline.components", "at least 1")
        need(self.noise >= 0, "baseline.noise", "0 or more")
