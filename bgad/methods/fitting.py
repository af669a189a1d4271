"""What a baseline's fit is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bgad.features.cache import AnomalyFeatures, Features, chunks
from bgad.methods.checkpoint import LogRow
from bgad.model.heads.base import rows_to_maps
from bgad.types import Index, RunControl

BATCH = 8  # images that `FitData.batches` gives at a time


@dataclass(frozen=True)
class FitData:
    """The images that a baseline learns from, as cached features, and the means of its fit.

    Neither test nor calibration images are in it. Of a baseline on pixels, the feature map is the image, (B, 3, S, S).
    """

    normals: Features
    known: AnomalyFeatures | None  # known anomalies; None where the baseline uses none
    pseudo: AnomalyFeatures | None  # pseudo anomalies of the recipe's section `pseudo`; None where it makes none
    grids: Sequence[tuple[int, int]]
    seed: int
    device: torch.device
    work: Path  # folder for the checkpoint and the log
    memory_bytes: float  # that the fit may take beside the cached features
    control: RunControl

    def maps(self, features: Features, images: Index, levels: Sequence[int] | None = None) -> list[Tensor]:
        """Return the feature maps (B, C, h, w) of these images, one tensor for each stride, or for these levels."""
        levels = range(len(features.levels)) if levels is None else levels
        rows = [torch.from_numpy(features.rows(level, images)).to(self.device) for level in levels]
        return rows_to_maps(rows, [self.grids[level] for level in levels])

    def batches(self, features: Features, levels: Sequence[int] | None = None) -> Iterator[list[Tensor]]:
        """Yield the feature maps of all images, a few at a time and in order."""
        for part in chunks(features.count, BATCH):
            yield self.maps(features, np.arange(part.start, part.stop), levels)

    def masks(self, anomalies: AnomalyFeatures, level: int, images: Index) -> Tensor:
        """Return the masks (B, h, w) of these anomalies on the grid of a level; all ones without a mask."""
        marked = torch.from_numpy(anomalies.masks(level, images)).to(self.device)
        return marked.float().reshape(len(images), *self.grids[level])


# Fits the head of a baseline in place. A fit that trains by steps yields the log row of each; others yield nothing.
Fit = Callable[[Any, FitData], Iterator[LogRow]]
