"""FLOS: the focal loss of Lin et al., "Focal loss for dense object detection", ICCV 2017, on DevNet's network, as Ding
et al., "Catching both gray and black swans", CVPR 2022, compare it with DRA.

As printed: the network, the batches and the optimiser of DevNet with the binary focal loss, alpha 1 and gamma 2.
Not as printed: what differs in `devnet` and, on frozen features, in `devnet-frozen`. The positions have signed logits,
as a probability below one half needs a negative one; whether the original takes absolute values is not known to us.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from bgad.config.supervised import FlosConfig
from bgad.methods.baselines.losses import focal_loss
from bgad.methods.baselines.supervised import Draws, halves, train
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Step
from bgad.model.heads.devnet import FlosHead


def fit_flos(head: FlosHead, data: FitData) -> Iterator[LogRow]:
    """Train by the focal loss."""
    settings, draws = head.config.baseline, Draws(head, data)
    assert isinstance(settings, FlosConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        features, labels = halves(head, draws, step)
        return focal_loss(head.image_scores(features), labels, settings.gamma)

    return train(head, data, loss)
