"""CFA, written from Lee, Lee and Song, "CFA: coupled-hypersphere-based feature adaptation for target-oriented anomaly
localization", IEEE Access 2022.

As printed: features of three strides, averaged over neighbourhoods of 3 x 3 and joined; a descriptor, one 1 x 1
convolution that is also given the coordinates; a memory bank whose size does not depend on the number of normals: the
clusters (k-means) of the descriptors of a first normal, which every further normal moves by a moving average; a loss
that attracts each descriptor into hyperspheres around its 3 nearest stored ones and repels it from those around the
next 3; the distance from the nearest stored one, weighted by the soft minimum over 3, as the score of a patch; AdamW
with AMSGrad, learning rate 1e-3, weight decay 5e-4, 4 images a step, 30 epochs (the preset `paper`).
Not as printed: the backbone and the input are those of the recipe (printed: wide ResNet-50 at 224 pixels, which is the
preset `paper`); the default has 400 steps.
Not confirmed: the weight of the moving average (ours counts all normals alike), the start of the radius, the margin,
and that the radius is learnt.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bgad.config.unsupervised import CfaConfig
from bgad.errors import ConfigError
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, constant, train_steps
from bgad.model.heads.cfa import CfaHead
from bgad.model.heads.patchcore import squared_distances
from bgad.types import ProgressTask


def fit_cfa(head: CfaHead, data: FitData) -> Iterator[LogRow]:
    """Fill the memory bank by the untrained descriptor, then train the descriptor; yields the log row of each step."""
    settings = head.config.baseline
    assert isinstance(settings, CfaConfig)  # noqa: S101 - Config.check ensures it
    with torch.inference_mode():
        bank = _bank(head, settings, data)
    head.register_buffer("bank", bank.clone())

    def loss(step: Step) -> Tensor:
        chosen = step.rng.integers(data.normals.count, size=settings.images_per_step)
        squared = squared_distances(head.embed(data.maps(data.normals, chosen)), head.bank)
        return coupled_loss(squared, head.radius, settings.neighbours, settings.margin)

    optimiser = torch.optim.AdamW(head.parameters(), weight_decay=settings.weight_decay, amsgrad=True)
    schedule = Schedule(steps=settings.step_count(data.normals.count), lr=constant(settings.lr))
    yield from train_steps(head, optimiser, loss, data, schedule)


def coupled_loss(squared: Tensor, radius: Tensor, neighbours: int, margin: float) -> Tensor:
    """Mean violation of the hyperspheres, from the squared distances (..., N) to all stored descriptors.

    The nearest ones attract: a distance must not exceed the radius. The next ones repel: a distance must not fall below
    the radius by more than the margin; all of them squared.

    >>> coupled_loss(torch.tensor([[5.0, 2.0, 9.0, 3.0]]), torch.tensor(2.0), 2, 0.5).item()  # (0 + 0) / 2 + 0 / 2
    0.0
    >>> coupled_loss(torch.tensor([[7.0, 2.0, 9.0, 8.0]]), torch.tensor(3.0), 2, 0.5).item()  # 0 + (0.5 + 0) / 2
    0.25
    """
    nearest = squared.topk(2 * neighbours, largest=False).values
    attracting, repelling = nearest[..., :neighbours], nearest[..., neighbours:]
    bound = radius.square()
    return (attracting - bound).relu().mean() + (bound - repelling - margin).relu().mean()


def _bank(head: CfaHead, settings: CfaConfig, data: FitData) -> Tensor:
    """Return the memory bank (N, D): clusters of the first normal's descriptors, moved by those of the others."""
    positions = head.grid[0] * head.grid[1]
    size = round(settings.bank_share * positions)
    if size < 2 * settings.neighbours:
        raise ConfigError(
            f"CFA needs {2 * settings.neighbours} stored descriptors, and baseline.bank_share leaves {size} of "
            f"{positions}: raise it"
        )
    first = int(np.random.default_rng([data.seed, 0]).integers(data.normals.count))
    task = ProgressTask(data.control.progress, "memory bank", data.normals.count)
    bank = clusters(head.embed(data.maps(data.normals, np.array([first])))[0], size, data.seed)
    others = np.delete(np.arange(data.normals.count), first)
    for seen, image in enumerate(others, 1):
        rows = head.embed(data.maps(data.normals, np.array([image])))[0]
        nearest = squared_distances(bank, rows).argmin(1)  # the patch of this image nearest to each stored one
        bank = bank + (rows[nearest] - bank) / (seen + 1)
        task.advance()
    return bank


def clusters(rows: Tensor, count: int, seed: int) -> Tensor:
    """Return the centres (count, D) of clusters of rows (n, D); the rows where there are as many."""
    if count >= len(rows):
        return rows
    try:
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        text = "baseline.bank_share below 1 needs scikit-learn"
        raise ConfigError(f"{text}: pip install 'bgad[baselines]', or set it to 1") from error
    with threadpool_limits(1):  # several threads add up in any order, and the bits would differ
        means = KMeans(count, n_init=1, random_state=seed).fit(rows.cpu().numpy())
    return torch.from_numpy(means.cluster_centers_).to(rows)
