"""The losses of the supervised baselines, as functions of scores and labels (1: anomalous)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

REFERENCES = 5000  # draws of the Gaussian reference of the deviation loss; as printed
TINY = 1e-6  # keeps the logarithm of FCDD finite on a map of zeros


def deviation_loss(scores: Tensor, labels: Tensor, reference: Tensor, margin: float) -> Tensor:
    """Mean deviation loss of scores (B,): normals near the mean of the reference, anomalies `margin` stds above it.

    >>> reference = torch.tensor([-1.0, 0.0, 1.0])  # mean 0, standard deviation 1
    >>> deviation_loss(torch.tensor([-2.0, 4.0, 9.0]), torch.tensor([0.0, 1.0, 1.0]), reference, 5.0)
    tensor(1.)
    """
    deviation = (scores - reference.mean()) / reference.std()
    return ((1 - labels) * deviation.abs() + labels * (margin - deviation).clamp(min=0)).mean()


def gaussian_reference(like: Tensor) -> Tensor:
    """Draw the reference scores of a step from torch's generator, which the step seeds."""
    return torch.randn(REFERENCES).to(like)


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Mean binary focal loss of logits (B,), with alpha 1: -(1 - p)^gamma log p of the right class.

    >>> focal_loss(torch.zeros(2), torch.tensor([0.0, 1.0]), 2.0) / torch.tensor(2.0).log()
    tensor(0.2500)
    """
    log_p = F.logsigmoid(torch.where(labels > 0, logits, -logits))
    return -((1 - log_p.exp()) ** gamma * log_p).mean()


def margin_loss(to_normal: Tensor, to_anomaly: Tensor, margin: float) -> Tensor:
    """Mean of max(0, margin + d(anchor, normal) - d(anchor, anomaly)) over triplets (B,).

    >>> margin_loss(torch.tensor([1.0, 1.0]), torch.tensor([1.5, 4.0]), 1.0)
    tensor(0.2500)
    """
    return (margin + to_normal - to_anomaly).clamp(min=0).mean()


def exposure_loss(logits: Tensor) -> Tensor:
    """Mean of -log(1 - p(normal)) of outliers, from logits (B, classes) whose first class is normal.

    >>> exposure_loss(torch.zeros(1, 3)).exp()
    tensor(1.5000)
    """
    return (logits.logsumexp(1) - logits[:, 1:].logsumexp(1)).mean()


def map_loss(maps: Tensor, masks: Tensor) -> Tensor:
    """FCDD's loss of maps A (B, H, W) and masks Y (B, H, W), which are 0 everywhere in normals; mean over images.

    mean((1 - Y) A), and for anomalies also -log(1 - exp(-mean(Y A))); both means are over all positions.
    """
    outside, inside = ((1 - masks) * maps).mean((1, 2)), (masks * maps).mean((1, 2))
    push = -torch.log(-torch.expm1(-(inside + TINY)))
    return (outside + torch.where(masks.amax((1, 2)) > 0, push, torch.zeros_like(push))).mean()
