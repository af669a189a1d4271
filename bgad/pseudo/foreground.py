"""Segmentation of the object in an image, which tells where a pseudo anomaly may lie."""

from __future__ import annotations

import cc3d
import numpy as np
import numpy.typing as npt

from bgad.types import BoolArray, FloatArray

# Share of the grey variance that lies between the two Otsu classes. A single Gaussian cut in two already has 0.64, so a
# value below 0.5 means that the image has no two classes at all.
MIN_CLASS_SEPARATION = 0.5
MAX_BORDER_SHARE = 0.25  # an object that covers more of the border than this is taken for a texture


def _otsu(grey: npt.NDArray[np.uint8]) -> tuple[int, float]:
    """Otsu's threshold, and the share of the grey variance that lies between the two classes."""
    grey_levels = np.arange(256)
    share = np.bincount(grey.ravel(), minlength=256) / grey.size
    below = np.cumsum(share)
    moment = np.cumsum(share * grey_levels)
    mean = moment[-1]
    weight = below * (1 - below)
    between = np.divide((mean * below - moment) ** 2, weight, out=np.zeros(256), where=weight > 1e-9)
    total = float((share * (grey_levels - mean) ** 2).sum())
    best = int(between.argmax())
    return best, float(between[best]) / total if total > 0 else 0.0


def foreground(image: FloatArray) -> BoolArray:
    """Mask of the object; true everywhere if the image shows a texture.

    The class that covers most of the border is the background. In a texture, both classes cover the border as often as
    the inside, so there is no object.
    """
    grey = np.rint(image @ np.array([0.299, 0.587, 0.114]) * 255).astype(np.uint8)  # (H, W)
    threshold, separation = _otsu(grey)
    bright = grey > threshold
    edge = max(1, min(grey.shape) // 50)
    border = np.ones(grey.shape, bool)
    border[edge:-edge, edge:-edge] = False
    mask = bright != (bright[border].mean() > 0.5)
    border_share = mask[border].mean()
    everywhere = np.ones(grey.shape, bool)
    if separation < MIN_CLASS_SEPARATION or border_share > min(MAX_BORDER_SHARE, mask.mean() / 2):
        return everywhere
    speck = max(2, grey.size // 1000)
    mask = _without_specks(mask, speck)
    mask = ~_without_specks(~mask, speck)  # the specks of the background are pinholes
    return mask if mask.any() else everywhere


def _without_specks(mask: BoolArray, smallest: int) -> BoolArray:
    """The mask without connected components of fewer than `smallest` pixels."""
    return np.asarray(cc3d.dust(mask.astype(np.uint8), smallest, connectivity=8), dtype=bool)
