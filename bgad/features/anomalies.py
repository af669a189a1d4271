"""Cached features of anomalies, with the positions that show their defects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bgad.features.cache import Features
from bgad.types import BoolArray, Index


@dataclass
class AnomalyFeatures:
    """Features of known or pseudo anomalies, and the positions of each that show the defect.

    `cells[level][image]` is never empty. `marked[image]` is False for an anomaly without a mask: its cells are all
    positions, until instance selection replaces them by the least likely ones.
    """

    features: Features
    cells: list[list[Index]]
    marked: list[bool]
    pseudo: bool = False

    def only_marked(self) -> list[AnomalyFeatures]:
        """Return the anomalies with a mask, as one group; no group where there are none."""
        images = np.flatnonzero(self.marked)
        cells = [[level[i] for i in images] for level in self.cells]
        marked = AnomalyFeatures(self.features.select(images), cells, [True] * len(images), self.pseudo)
        return [marked] if len(images) else []

    def masks(self, level: int, images: Index) -> BoolArray:
        """Return which positions of a level show the defect of each of these images, (images, positions)."""
        marked = np.zeros((len(images), self.features.levels[level].shape[1]), np.bool_)
        for row, image in zip(marked, images, strict=True):
            row[self.cells[level][image]] = True
        return marked
