"""PatchCore, written from Roth et al., "Towards total recall in industrial anomaly detection", CVPR 2022.

As printed: features of strides 8 and 16, averaged over neighbourhoods of 3 x 3 and joined at the finer resolution; a
coreset by greedy k-centre selection in a random projection to 128 dimensions; the distance to the nearest stored patch
as the map, smoothed by a Gaussian of 4 pixels; the largest distance as the image score, re-weighted by neighbours of
the nearest stored patch.
Not as printed: the backbone and the input are those of the recipe (printed: wide ResNet-50 at 224 pixels, which is the
preset `paper`); the coreset keeps 1 % by default (printed: 25, 10 and 1 %); features keep their channels, where the
paper pools them to 1,024; where the patches exceed the memory, the coreset is chosen from a random part of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bgad.config.baselines import PatchcoreConfig
from bgad.errors import DataError
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.model.heads.patchcore import PatchcoreHead, squared_distances
from bgad.types import ProgressTask

logger = logging.getLogger(__name__)

REPORT = 64  # patches of the coreset between two reports of progress
NEIGHBOUR_ROWS = 256  # stored patches whose neighbours are computed at a time


def fit_patchcore(head: PatchcoreHead, data: FitData) -> Iterator[LogRow]:
    """Fill the memory bank with a coreset of the normal patches; nothing is trained by steps."""
    settings = head.config.baseline
    assert isinstance(settings, PatchcoreConfig)  # noqa: S101 - Config.check ensures it
    rng = np.random.default_rng([data.seed, 0])
    with torch.inference_mode():
        patches, total = _patches(head, settings, data, rng)
        size = min(len(patches), max(round(settings.coreset_share * total), settings.neighbours + 1))
        if size <= settings.neighbours:
            raise DataError(
                f"PatchCore needs more than {settings.neighbours} normal patches, there are {len(patches)}: add normals"
            )
        projection = torch.from_numpy(rng.standard_normal((patches.shape[1], settings.projection), np.float32))
        projected = patches @ projection.to(patches) / math.sqrt(settings.projection)
        task = ProgressTask(data.control.progress, "coreset", size)
        bank = patches[coreset(projected, size, int(rng.integers(len(patches))), task)]
        neighbours = nearest_stored(bank, max(1, settings.neighbours))
    head.register_buffer("bank", bank.clone())
    head.register_buffer("neighbours", neighbours.clone())
    return iter(())


def _patches(
    head: PatchcoreHead, settings: PatchcoreConfig, data: FitData, rng: np.random.Generator
) -> tuple[Tensor, int]:
    """Return the patch features (n, D) that the coreset is chosen from, and how many there are in all normals."""
    positions, channels = head.grid[0] * head.grid[1], head.bank.shape[1]
    total = data.normals.count * positions
    limit = int(data.memory_bytes / (4 * (channels + settings.projection + 2)))
    of_image = min(positions, limit // data.normals.count)
    if of_image < 1:
        raise DataError(f"PatchCore's patches exceed the memory of {data.memory_bytes / 1e9:g} GB: raise --memory")
    if of_image < positions:
        logger.warning(
            f"PatchCore chooses its coreset from {of_image} of the {positions} patches of each image, as all of them "
            f"exceed the memory of {data.memory_bytes / 1e9:g} GB"
        )
    parts = []
    for maps in data.batches(data.normals):
        for rows in head.embed(maps):
            kept = rows if of_image == positions else rows[_drawn(positions, of_image, rng).to(rows.device)]
            parts.append(kept)
    return torch.cat(parts), total


def _drawn(count: int, wanted: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(np.sort(rng.choice(count, wanted, replace=False)))


def nearest_stored(bank: Tensor, count: int) -> Tensor:
    """Return the indices (N, count) of the patches of a bank (N, D) that are nearest to each, itself first."""
    parts = []
    for own in torch.split(torch.arange(len(bank), device=bank.device), NEIGHBOUR_ROWS):
        distances = squared_distances(bank[own], bank)
        distances[torch.arange(len(own)), own] = -1.0  # rounding must not put a near-by patch before itself
        parts.append(distances.topk(count, largest=False).indices)
    return torch.cat(parts)


def coreset(rows: Tensor, size: int, first: int, task: ProgressTask) -> Tensor:
    """Return the indices of `size` rows (n, D): from the first on, always the one farthest from those chosen.

    >>> rows = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    >>> coreset(rows, 3, 0, ProgressTask(None, "", 3)).tolist()
    [0, 3, 2]
    """
    chosen = torch.empty(size, dtype=torch.int64, device=rows.device)
    norms = rows.square().sum(1)
    nearest = torch.full_like(norms, torch.inf)
    index = torch.tensor(first, device=rows.device)
    for number in range(size):
        chosen[number] = index
        distance = torch.addmv(norms, rows, rows[index], alpha=-2).add_(norms[index])
        nearest = torch.minimum(nearest, distance)
        index = nearest.argmax()
        if (number + 1) % REPORT == 0 or number + 1 == size:
            task.advance(REPORT if (number + 1) % REPORT == 0 else size % REPORT)
    return chosen
