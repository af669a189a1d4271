"""RPAG, the RandAugment-based Pseudo Anomaly Generation of the BGAD paper.

The masked defect of a known anomaly is augmented, cut out and pasted on the object of a normal image.
"""

from __future__ import annotations

from collections.abc import Callable

import cc3d
import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms.v2.functional as F
from torchvision.transforms import InterpolationMode

from bgad.errors import ConfigError
from bgad.io import images
from bgad.io.masks import resize_mask
from bgad.types import BoolArray, FloatArray

# Share of the grey variance that lies between the two Otsu classes. A single Gaussian cut in two already has 0.64, so a
# value below 0.5 means that the image has no two classes at all.
MIN_CLASS_SEPARATION = 0.5
MAX_BORDER_SHARE = 0.25  # an object that covers more of the border than this is taken for a texture


def _otsu(grey: npt.NDArray[np.uint8]) -> tuple[int, float]:
    """Return Otsu's threshold, and the share of the grey variance that lies between the two classes."""
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
    """Return the mask without connected components of fewer than `smallest` pixels."""
    return np.asarray(cc3d.dust(mask.astype(np.uint8), smallest, connectivity=8), dtype=bool)


Transform = Callable[[FloatArray, BoolArray, np.random.Generator], tuple[FloatArray, BoolArray]]
Warp = Callable[[torch.Tensor, InterpolationMode, list[float]], torch.Tensor]

# Geometric transforms may move the defect out of the frame. After this many draws of a subset only photometric ones
# are applied, so that augmentation always ends.
MAX_ATTEMPTS = 4


def _tensor(image: FloatArray) -> torch.Tensor:
    return torch.tensor(image).permute(2, 0, 1)  # (3, H, W)


def _array(image: torch.Tensor) -> FloatArray:
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy(), dtype=np.float32)  # (H, W, 3)


def _warp(image: FloatArray, mask: BoolArray, warp: Warp) -> tuple[FloatArray, BoolArray]:
    """Warp image and mask alike.

    Uncovered pixels take the mean colour, so that interpolation does not darken the edge of the defect.
    """
    fill = image.mean(axis=(0, 1)).tolist()
    moved = warp(_tensor(image), InterpolationMode.BILINEAR, fill)
    moved_mask = warp(torch.tensor(mask, dtype=torch.float32)[None], InterpolationMode.NEAREST, [0.0])
    return _array(moved.clamp(0, 1)), moved_mask[0].numpy() > 0.5


def _away_from_one(rng: np.random.Generator, least: float, most: float) -> float:
    return 1 + float(rng.choice((-1, 1)) * rng.uniform(least, most))


def _flip(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    axis = int(rng.integers(2))
    return np.flip(image, axis).copy(), np.flip(mask, axis).copy()


def _transpose(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    return image.transpose(1, 0, 2).copy(), mask.T.copy()  # (W, H, 3), (W, H)


def _rotate(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    angle = float(rng.uniform(-180, 180))
    return _warp(image, mask, lambda x, mode, fill: F.rotate(x, angle, mode, expand=True, fill=fill))


def _translate(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    h, w = mask.shape
    dx, dy = (rng.uniform(-0.2, 0.2, 2) * (w, h)).tolist()
    return _warp(
        image,
        mask,
        lambda x, mode, fill: F.affine(x, 0.0, [dx, dy], 1.0, [0.0, 0.0], interpolation=mode, fill=fill),
    )


def _distortion(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    h, w = mask.shape
    if rng.random() < 0.5:
        corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], float)
        ends = (corners + rng.uniform(-0.15, 0.15, (4, 2)) * (w, h)).tolist()
        return _warp(image, mask, lambda x, mode, fill: F.perspective(x, corners.tolist(), ends, mode, fill))
    coarse = torch.tensor(rng.normal(0, rng.uniform(0.02, 0.06), (1, 2, 8, 8)), dtype=torch.float32)
    smooth = torch.nn.functional.interpolate(coarse, (h, w), mode="bicubic", align_corners=True)
    field = smooth.permute(0, 2, 3, 1)  # (1, H, W, 2), in half widths and half heights
    return _warp(image, mask, lambda x, mode, fill: F.elastic(x, field, mode, fill))


def _noise(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    # All channels share the noise: coloured grain in a grey image would give the pseudo anomaly away.
    grain = rng.normal(0, rng.uniform(0.02, 0.08), (*mask.shape, 1))
    return np.clip(image + grain, 0, 1).astype(np.float32), mask


def _brightness(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    return _array(F.adjust_brightness(_tensor(image), _away_from_one(rng, 0.15, 0.4))), mask


def _sharpness(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    return _array(F.adjust_sharpness(_tensor(image), float(rng.uniform(1.5, 4)))), mask


def _blur(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    short = min(mask.shape)
    sigma = float(rng.uniform(0.5, 1.5)) * max(1, short / 256)
    radius = min(int(np.ceil(3 * sigma)), short - 1)
    size = 2 * radius + 1
    return _array(F.gaussian_blur(_tensor(image), [size, size], [sigma, sigma])), mask


TRANSFORMS: dict[str, Transform] = {
    "flip": _flip,
    "rotate": _rotate,
    "transpose": _transpose,
    "noise": _noise,
    "distortion": _distortion,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "translate": _translate,
    "blur": _blur,
}
PHOTOMETRIC = ("noise", "brightness", "sharpness", "blur")


def augment(
    image: FloatArray, mask: BoolArray, rng: np.random.Generator, count: int = 3
) -> tuple[FloatArray, BoolArray, tuple[str, ...]]:
    """Apply `count` different transforms in random order; the defect stays in the frame.

    Returns the image, the mask and the names of the transforms.
    """
    if not 0 <= count <= len(TRANSFORMS):
        raise ConfigError(f"{count} transforms asked for: choose 0 to {len(TRANSFORMS)}")
    for _ in range(MAX_ATTEMPTS):
        result = _apply(image, mask, rng, rng.permutation(list(TRANSFORMS))[:count].tolist())
        if result[1].any():
            return result
    return _apply(image, mask, rng, rng.permutation(PHOTOMETRIC)[:count].tolist())


def _apply(
    image: FloatArray, mask: BoolArray, rng: np.random.Generator, names: list[str]
) -> tuple[FloatArray, BoolArray, tuple[str, ...]]:
    for name in names:
        image, mask = TRANSFORMS[name](image, mask, rng)
    return image, mask, tuple(names)


def cut(image: FloatArray, mask: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Crop image and mask to the bounding box of the defect."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return image[box], mask[box]


def paste(
    normal: FloatArray, patch: FloatArray, patch_mask: BoolArray, centre: tuple[int, int]
) -> tuple[FloatArray, BoolArray]:
    """Paste the masked pixels of the patch around `centre` (row, column), clipped to the image."""
    (h, w), (height, width) = patch_mask.shape, normal.shape[:2]
    top, left = centre[0] - h // 2, centre[1] - w // 2
    y0, x0 = max(top, 0), max(left, 0)
    y1, x1 = max(min(top + h, height), y0), max(min(left + w, width), x0)
    target, source = np.s_[y0:y1, x0:x1], np.s_[y0 - top : y1 - top, x0 - left : x1 - left]
    image, mask = normal.copy(), np.zeros((height, width), bool)
    mask[target] = patch_mask[source]
    image[target] = np.where(patch_mask[source][..., None], patch[source], normal[target])
    return image, mask


def rpag(
    normal: FloatArray, abnormal: FloatArray, mask: BoolArray, rng: np.random.Generator, count: int = 3
) -> tuple[FloatArray, BoolArray, str]:
    """Paste the defect of `abnormal`, augmented by `count` transforms, on the object of `normal`, as the paper does.

    Returns the image, the mask of the pasted defect and the names of the transforms.
    """
    size = (normal.shape[0], normal.shape[1])
    if abnormal.shape != normal.shape:
        abnormal, mask = images.fit(abnormal, size), fit_mask(mask, size)
    augmented, augmented_mask, names = augment(abnormal, mask, rng, count)
    target = rng.choice(np.argwhere(foreground(normal)))
    patch, patch_mask = cut(augmented, augmented_mask)
    # The defect pixel nearest to the middle of the patch lies on the target: the middle of a bent defect may be empty,
    # and at least one defect pixel must show.
    middle = np.array(patch_mask.shape) // 2
    pixels = np.argwhere(patch_mask)
    anchor = pixels[((pixels - middle) ** 2).sum(axis=1).argmin()]
    row, column = (target + middle - anchor).tolist()
    return *paste(normal, patch, patch_mask, (row, column)), ", ".join(names) or "unchanged"


def fit_mask(mask: BoolArray, size: tuple[int, int]) -> BoolArray:
    """Resize a mask; a defect that is too small for the new grid keeps every pixel that it touches."""
    fitted = resize_mask(mask, size)
    if fitted.any() or not mask.any():
        return fitted
    touched = torch.nn.functional.adaptive_max_pool2d(torch.tensor(mask, dtype=torch.float32)[None], size)
    return touched[0].numpy() > 0
