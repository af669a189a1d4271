"""The central square of an image, to which the paper's methods crop; the rest of the image is not looked at."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bgad.io import images
from bgad.types import Box, FloatArray, Shape

Pixel = TypeVar("Pixel", bound=np.generic)


def crop(image: npt.NDArray[Pixel]) -> npt.NDArray[Pixel]:
    """Return the central square of an image or a mask, as a view.

    >>> crop(np.arange(10).reshape(2, 5))
    array([[1, 2],
           [6, 7]])
    """
    return image[_central_square((image.shape[0], image.shape[1]))]


def uncrop_map(anomaly_map: FloatArray, shape: Shape) -> FloatArray:
    """Return the map of an image of this shape from that of its central square; outside of it, the map is lowest."""
    complete = np.full(shape, anomaly_map.min(), np.float32)
    side = min(shape)
    complete[_central_square(shape)] = images.resize_map(anomaly_map, (side, side))
    return complete


def central_box(shape: Shape) -> Box:
    """Return the box of the central square of an image."""
    rows, columns = _central_square(shape)
    return columns.start, rows.start, columns.stop, rows.stop


def _central_square(shape: Shape) -> tuple[slice, slice]:
    side = min(shape)
    top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
    return np.s_[top : top + side, left : left + side]
