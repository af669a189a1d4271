"""AE-MSE and AE-SSIM, written from Bergmann et al., "Improving unsupervised defect segmentation by applying structural
similarity to autoencoders", VISAPP 2019.

As printed: a convolutional autoencoder of strided 4 x 4 and plain 3 x 3 convolutions with leaky rectifiers, down to 8 x
8 positions and then to a latent vector of 100 values; the loss and the map are the squared error, or 1 - structural
similarity in windows of 11 x 11; Adam, learning rate 2e-4, weight decay 1e-5, 200 epochs (the preset `paper`).
Not as printed: a plain convolution follows each strided one (printed: two of them do, and two end the encoder); the
whole image is reconstructed at the recipe's size (printed for textures: patches of 128 pixels at random positions); no
augmentation; the last layer is a sigmoid; the default has 1,500 steps of 16 images.
Not confirmed: the image score, for which we take the maximum of the map; the number of images in a step.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bgad.config.unsupervised import AutoencoderConfig
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, constant, train_steps
from bgad.model.heads.autoencoder import AutoencoderHead


def fit_autoencoder(head: AutoencoderHead, data: FitData) -> Iterator[LogRow]:
    """Minimise the mean of the errors that the head scores by; yields the log row of each step."""
    settings = head.config.baseline
    assert isinstance(settings, AutoencoderConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        chosen = step.rng.integers(data.normals.count, size=settings.images_per_step)
        return head.errors(data.maps(data.normals, chosen)[0]).mean()

    optimiser = torch.optim.Adam(head.parameters(), weight_decay=settings.weight_decay)
    schedule = Schedule(steps=settings.step_count(data.normals.count), lr=constant(settings.lr))
    return train_steps(head, optimiser, loss, data, schedule)
