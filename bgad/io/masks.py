"""Masks at another resolution: in pixels, or as the cells of a feature grid that show a marked defect."""

from __future__ import annotations

import numpy as np
from PIL import Image

from bgad.types import BoolArray, FloatArray, Index


def resize_mask(mask: BoolArray, size: tuple[int, int]) -> BoolArray:
    """Resize a mask (h, w) to (height, width) by the nearest pixel."""
    image = Image.fromarray(np.ascontiguousarray(mask, np.uint8))
    return np.asarray(image.resize(size[::-1], Image.Resampling.NEAREST)) > 0


def defect_cells(mask: BoolArray, grid: tuple[int, int]) -> Index:
    """Return the flat indices of the grid cells that show a defect: half covered or more, else the most covered ones.

    >>> mask = np.zeros((8, 8), bool); mask[0:4, 4:8] = True
    >>> defect_cells(mask, (2, 2))
    array([1])
    """
    cover = _cover(mask, grid)
    peak = float(cover.max())
    if peak <= 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(cover >= 0.999 * min(0.5, peak))  # rounding must not take a cell that is just half covered


def touched_cells(mask: BoolArray, grid: tuple[int, int]) -> Index:
    """Return the flat indices of the grid cells that show any part of a mask.

    >>> mask = np.zeros((8, 8), bool); mask[0, 3:5] = True
    >>> touched_cells(mask, (2, 2))
    array([0, 1])
    """
    return np.flatnonzero(_cover(mask, grid) > 0)


def _cover(mask: BoolArray, grid: tuple[int, int]) -> FloatArray:
    """Return the share of each grid cell that is marked, (cells,)."""
    rows, columns = _overlap(mask.shape[0], grid[0]), _overlap(mask.shape[1], grid[1])
    cover: FloatArray = (rows @ mask.astype(np.float32) @ columns.T).ravel()
    return cover


def _overlap(pixels: int, cells: int) -> FloatArray:
    """Return the share of each cell that each pixel fills along one side, (cells, pixels)."""
    edges = np.linspace(0, pixels, cells + 1)
    at = np.arange(pixels)
    low = np.maximum(edges[:-1, None], at)
    high = np.minimum(edges[1:, None], at + 1)
    share: FloatArray = (np.clip(high - low, 0, None) * cells / pixels).astype(np.float32)
    return share
