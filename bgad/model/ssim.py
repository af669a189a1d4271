"""Structural similarity of images (Wang et al., "Image quality assessment: from error visibility to structural
similarity", 2004)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SIGMA = 11, 1.5  # pixels: side and width of the Gaussian window; as printed
C1, C2 = 0.01**2, 0.03**2  # constants for values in 0..1; as printed


def ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """Images (B, C, H, W) in 0..1 -> their structural similarity at each pixel, (B, H, W), the mean of the channels.

    The window is reflected at the border, so that the border has values, too.
    """
    a, b = a - 0.5, b - 0.5  # moments of smaller values cancel with smaller rounding errors
    mean_a, mean_b = _windowed(a), _windowed(b)
    variance_a = _windowed(a * a) - mean_a.square()
    variance_b = _windowed(b * b) - mean_b.square()
    covariance = _windowed(a * b) - mean_a * mean_b
    mean_a, mean_b = mean_a + 0.5, mean_b + 0.5
    luminance = (2 * mean_a * mean_b + C1) / (mean_a.square() + mean_b.square() + C1)
    structure = (2 * covariance + C2) / (variance_a + variance_b + C2)
    return (luminance * structure).mean(1)


def _windowed(images: Tensor) -> Tensor:
    """Return the mean of each channel in a Gaussian window around each pixel."""
    channels, half = int(images.shape[1]), WINDOW // 2
    kernel = torch.exp(-0.5 * (torch.arange(-half, half + 1, dtype=images.dtype) / SIGMA) ** 2)
    kernel = (kernel / kernel.sum()).to(images.device).expand(channels, 1, 1, WINDOW)
    padded = F.pad(images, (half, half, half, half), mode="reflect")
    return F.conv2d(F.conv2d(padded, kernel, groups=channels), kernel.transpose(2, 3), groups=channels)
