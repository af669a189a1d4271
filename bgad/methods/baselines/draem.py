"""DRAEM, written from Zavrtanik et al., "DRAEM: a discriminatively trained reconstruction embedding for surface anomaly
detection", ICCV 2021.

As printed: half of the images of a step get an anomaly, a texture blended in where Perlin noise is high; an
encoder-decoder learns to restore the image (squared error and structural similarity, each with weight 1), and a U-Net
learns the mask of the anomaly from the image and its reconstruction (focal loss, gamma 2); the map is its probability
of an anomaly, and the image score is the maximum of the map averaged over 21 x 21 pixels; Adam, learning rate 1e-4, a
tenth of it after 4/7 and again after 6/7 of the training (printed: epochs 400 and 600 of 700), 8 images a step, 256
pixels (the preset `paper`).
Not as printed: textures are those of `bgad/pseudo/draem.py`, other normals and drawn patterns, not photographs of a
further data set; images are not rotated; up-sampling repeats pixels; the default is small enough for two CPU cores:
128 pixels, 16 channels in place of 128 and 64, learning rate 1e-3, and 800 steps of 8 images.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bgad.config.unsupervised import DraemConfig
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, train_steps
from bgad.model.heads.draem import DraemHead
from bgad.model.ssim import ssim_map
from bgad.pseudo.draem import draem

FOCUS = 2.0  # gamma of the focal loss; as printed
DECAYS = (4 / 7, 6 / 7)  # shares of the training after which the learning rate falls to a tenth; as printed


def fit_draem(head: DraemHead, data: FitData) -> Iterator[LogRow]:
    """Train both networks on normals with and without anomalies; yields the log row of each step."""
    settings = head.config.baseline
    assert isinstance(settings, DraemConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        normals, images, masks = _images(data, settings.images_per_step, step.rng)
        reconstructions, logits = head.predict(images)
        restored = F.mse_loss(reconstructions, normals) + 1 - ssim_map(reconstructions, normals).mean()
        return restored + focal_loss(logits, masks)

    steps = settings.step_count(data.normals.count)

    def lr(step: int) -> float:
        return settings.lr * 0.1 ** sum(step >= share * steps for share in DECAYS)

    return train_steps(head, torch.optim.Adam(head.parameters()), loss, data, Schedule(steps=steps, lr=lr))


def focal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (B, 2, ...) and labels (B, ...) -> the mean of -(1 - p)^gamma log p, for the probability p of the label.

    >>> round(focal_loss(torch.zeros(1, 2, 1), torch.ones(1, 1, dtype=torch.int64)).item(), 4)  # 0.25 log 2
    0.1733
    """
    log_p = -F.cross_entropy(logits, labels, reduction="none")
    return -((1 - log_p.exp()) ** FOCUS * log_p).mean()


def _images(data: FitData, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw normals (B, 3, S, S); returns them, the same with an anomaly in every second, and the masks (B, S, S)."""
    normals = data.maps(data.normals, rng.integers(data.normals.count, size=count))[0]
    donors = data.maps(data.normals, rng.integers(data.normals.count, size=count))[0]
    images, masks = normals.clone(), torch.zeros(normals[:, 0].shape, dtype=torch.int64, device=data.device)
    for i in range(0, count, 2):
        pixels, donor = (x[i].permute(1, 2, 0).cpu().numpy() for x in (normals, donors))  # (S, S, 3)
        image, mask, _ = draem(pixels, donor, rng)
        images[i] = torch.from_numpy(image).permute(2, 0, 1)
        masks[i] = torch.from_numpy(mask)
    return normals, images, masks
