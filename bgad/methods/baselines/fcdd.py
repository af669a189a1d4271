"""FCDD, written from Liznerski et al., "Explainable deep one-class classification", ICLR 2021.

As printed: a convolutional map A = sqrt(z^2 + 1) - 1 on frozen features, upsampled by a Gaussian; the semi-supervised
loss mean((1 - Y) A) - log(1 - exp(-mean(Y A))), whose second term is that of anomalies alone, where Y is the mask; the
image score is the mean of the map.
Not as printed: the known anomalies are the only ones (FCDD without anomalies trains with confetti noise or with other
data sets), and half of a batch are anomalies. A known anomaly without a mask counts as anomalous everywhere, which is
FCDD's loss of whole images; so masks are used where there are any. Two convolutions are trained, by Adam (printed:
stochastic gradient descent). The Gaussian is that of the recipe (printed: of the receptive field). The preset `paper`
has VGG-11 at 224 pixels and about the printed number of steps; images are not augmented.
`fcdd-frozen` compares map and mask on the finest of the feature grids, `fcdd` at the pixels of the input. `fcdd` trains
the whole network, of which the original leaves the first layers as they are.
Not confirmed: VGG-11, stochastic gradient descent and the number of steps, which were written from memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bgad.methods.baselines.losses import map_loss
from bgad.methods.baselines.supervised import Draws, joined, settings_of, train
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Step
from bgad.model.heads.fcdd import FcddHead


def fit_fcdd(head: FcddHead, data: FitData) -> Iterator[LogRow]:
    """Train by the loss of map and mask."""
    settings, draws = settings_of(head), Draws(head, data)
    finest = max(draws.levels, key=lambda level: data.grids[level])

    def loss(step: Step) -> Tensor:
        anomalous = settings.images_per_step // 2
        normal = settings.images_per_step - anomalous
        chosen = step.rng.integers(draws.known.features.count, size=anomalous)
        maps = joined(draws.sample(step, data.normals, normal), draws.maps(draws.known.features, chosen))
        masks = data.masks(draws.known, finest, chosen)
        masks = torch.cat([masks.new_zeros((normal, *masks.shape[1:])), masks])
        return map_loss(head.heat(head.features(maps), data.grids[finest]), masks)

    return train(head, data, loss)
