"""MSFD, multi-scale feature distillation, written from Wang et al., "Student-teacher feature pyramid matching for
anomaly detection", BMVC 2021.

Not confirmed: what MSFD is. The paper's tables have figures of it that resemble those of student-teacher feature
pyramid matching, and its bibliography does not tell it from KDAD. We took the former.
As printed there: a frozen teacher; a student that learns its features of several strides from normals, by the squared
distance of features scaled to length 1; the product over the strides of these distances as the map, and its maximum as
the image score; gradient descent with learning rate 0.4, momentum 0.9 and weight decay 1e-4, 32 images a step, 100
epochs at 256 pixels (the preset `paper`).
Not as printed: the student is not a second network of the teacher's kind on the image. It takes the teacher's features
of the finest stride and learns those of the others, so that cached features suffice. The teacher is the backbone of the
recipe (printed: ResNet-18, which is the preset `paper`), and the default has 400 steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bgad.config.unsupervised import MsfdConfig
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, constant, train_steps
from bgad.model.heads.distillation import MsfdHead, cosine_error


def fit_msfd(head: MsfdHead, data: FitData) -> Iterator[LogRow]:
    """Train the student on the normals; yields the log row of each step."""
    settings = head.config.baseline
    assert isinstance(settings, MsfdConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        chosen = step.rng.integers(data.normals.count, size=settings.images_per_step)
        return torch.stack([cosine_error(*pair).mean() for pair in head.pairs(data.maps(data.normals, chosen))]).sum()

    optimiser = torch.optim.SGD(
        head.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    schedule = Schedule(steps=settings.step_count(data.normals.count), lr=constant(settings.lr))
    return train_steps(head, optimiser, loss, data, schedule)
