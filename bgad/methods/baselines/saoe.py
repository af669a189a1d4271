"""SAOE: synthetic anomalies and outlier exposure, as Ding et al., "Catching both gray and black swans", CVPR 2022,
combine them for a comparison with DRA (from Li et al., "CutPaste", CVPR 2021, and Hendrycks et al., "Deep anomaly
detection with outlier exposure", ICLR 2019, among others).

As printed: a classifier with the three classes normal, known anomaly and pseudo anomaly, on the features of DRA, and a
further loss of outliers; pseudo anomalies are rectangles of other normals.
Not as printed: what differs in `dra` and, on frozen features, in `dra-frozen`. The outliers of the original are images
of other data sets, which a user may not have. Ours are normals on which a part of a known anomaly is pasted, in pixels
or features: its defect, or a rectangle as of CutMix where it has no mask.
Their loss is -log(1 - p(normal)). How the original pools, weighs the losses and scores is not known to us: ours
classifies the mean feature, weighs outliers by 0.5 and scores by the log-odds of an anomaly, at each position for the
map.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bgad.config.supervised import SaoeConfig
from bgad.methods.baselines.losses import exposure_loss
from bgad.methods.baselines.supervised import Draws, joined, labels_of, thirds, train
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Step
from bgad.model.heads.saoe import KNOWN, NORMAL, PSEUDO, SaoeHead
from bgad.pseudo.cutmix import rectangle

FINE = 256  # rectangles are drawn on a grid of this side, whatever that of the features is


def fit_saoe(head: SaoeHead, data: FitData) -> Iterator[LogRow]:
    """Train by cross-entropy, and by the loss of the outliers."""
    settings, draws = head.config.baseline, Draws(head, data)
    assert isinstance(settings, SaoeConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        maps, (normal, known, pseudo) = thirds(head, draws, step)
        labels = labels_of([(NORMAL, normal), (KNOWN, known), (PSEUDO, pseudo)], maps[0]).long()
        features = head.features(joined(maps, outliers(draws, step, known)))
        logits = head.logits(features)
        classified = F.cross_entropy(logits[: len(labels)], labels)
        return classified + settings.exposure_weight * exposure_loss(logits[len(labels) :])

    return train(head, data, loss)


def outliers(draws: Draws, step: Step, count: int) -> list[Tensor]:
    """Return the maps (count, C, h, w) of normals on which a part of a known anomaly is pasted."""
    images = step.rng.integers(draws.known.features.count, size=count)
    normals, donors = draws.sample(step, draws.data.normals, count), draws.maps(draws.known.features, images)
    boxes = [_box(step.rng) for _ in images]
    pasted = []
    for level, under, over in zip(draws.levels, normals, donors, strict=True):
        masks = draws.data.masks(draws.known, level, images)
        for number, image in enumerate(images):
            if not draws.known.marked[image]:
                masks[number] = box_mask(boxes[number], draws.data.grids[level]).to(masks)
        pasted.append(torch.where(masks[:, None] > 0, over, under))
    return pasted


def _box(rng: np.random.Generator) -> tuple[int, int, int, int]:
    rows, columns = rectangle(FINE, FINE, rng)
    return int(rng.integers(FINE - rows + 1)), int(rng.integers(FINE - columns + 1)), rows, columns


def box_mask(box: tuple[int, int, int, int], grid: tuple[int, int]) -> Tensor:
    """Return the cells (h, w) of a grid that a rectangle touches: top, left, rows and columns of FINE x FINE.

    >>> box_mask((64, 0, 64, 96), (4, 4)).int().tolist()
    [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    """
    top, left, rows, columns = box
    mask = torch.zeros(grid, dtype=torch.bool)
    mask[_cells(top, rows, grid[0]), _cells(left, columns, grid[1])] = True
    return mask


def _cells(start: int, length: int, cells: int) -> slice:
    return slice(start * cells // FINE, -(-(start + length) * cells // FINE))
