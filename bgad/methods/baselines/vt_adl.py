"""VT-ADL, written from Mishra et al., "VT-ADL: a vision transformer network for image anomaly detection and
localization", ISIE 2021.

As printed: a vision transformer encodes the patches of an image; a decoder rebuilds the image from all codes together;
a mixture density of 10 Gaussians rates the code of each patch; the loss is 5 times the squared error, less 0.5 times
the structural similarity, plus the negative log-likelihood; Adam, learning rate 1e-4; patches of 64 pixels of images of
512 (the preset `paper`).
Not as printed: the likelihood is divided by the number of values of a code; the default is small enough for two CPU
cores: images of 256 pixels and patches of 32, so that there are as many, and codes of 128 values, learning rate 5e-4.
Not confirmed: what the mixture's parameters depend on (ours: on the position of the patch); the numbers of blocks,
heads and values of a code, the noise on the codes, images in a step and epochs (400 in the preset `paper`); the image
score (ours: the maximum of the map plus the error of the reconstruction).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bgad.config.unsupervised import VtAdlConfig
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, constant, train_steps
from bgad.model.heads.vt_adl import VtAdlHead, reconstruction_error


def fit_vt_adl(head: VtAdlHead, data: FitData) -> Iterator[LogRow]:
    """Train encoder, decoder and mixtures together; yields the log row of each step."""
    settings = head.config.baseline
    assert isinstance(settings, VtAdlConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        images = data.maps(data.normals, step.rng.integers(data.normals.count, size=settings.images_per_step))[0]
        codes = head.encode(images)
        noisy = codes + settings.noise * torch.randn_like(codes)
        return reconstruction_error(images, head.decode(codes)).mean() + head.surprise(noisy).mean()

    schedule = Schedule(
        steps=settings.step_count(data.normals.count), lr=constant(settings.lr), clip_norm=settings.clip_norm
    )
    return train_steps(head, torch.optim.Adam(head.parameters()), loss, data, schedule)
