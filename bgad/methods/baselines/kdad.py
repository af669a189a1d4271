"""KDAD, written from Salehi et al., "Multiresolution knowledge distillation for anomaly detection", CVPR 2021.

As printed: a frozen teacher and a smaller student; the loss over several layers is the mean squared error of the
activations and 1 - cosine of all activations of a layer as one vector, weighted so that both are equal in the untrained
student; the loss of an image is its score; Adam, learning rate 1e-3.
Not as printed: the student takes the teacher's features of the finest stride and learns those of the others, so that
cached features suffice (printed: a network on the image, and four layers of VGG-16); the teacher is the backbone of the
recipe (VGG-16 at 128 pixels in the preset `paper`); the map is the error at each position, with the cosine of the
features there (printed: the gradient of the loss by the image).
Not confirmed: the size of the input, the number of epochs (200 in the preset `paper`) and of images in a step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bgad.config.unsupervised import KdadConfig
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import BATCH, FitData
from bgad.methods.loop import Schedule, Step, constant, train_steps
from bgad.model.heads.distillation import KdadHead, distillation_errors


def fit_kdad(head: KdadHead, data: FitData) -> Iterator[LogRow]:
    """Weigh the two errors by the untrained student, then train it; yields the log row of each step."""
    settings = head.config.baseline
    assert isinstance(settings, KdadConfig)  # noqa: S101 - Config.check ensures it
    head.eval()
    with torch.no_grad():
        some = data.maps(data.normals, np.arange(min(BATCH, data.normals.count)))
        values, directions = distillation_errors(head.pairs(some))
        head.value_weight.copy_(directions.mean() / values.mean())

    def loss(step: Step) -> Tensor:
        chosen = step.rng.integers(data.normals.count, size=settings.images_per_step)
        values, directions = distillation_errors(head.pairs(data.maps(data.normals, chosen)))
        return (head.value_weight * values + directions).mean()

    schedule = Schedule(steps=settings.step_count(data.normals.count), lr=constant(settings.lr))
    yield from train_steps(head, torch.optim.Adam(head.parameters()), loss, data, schedule)
