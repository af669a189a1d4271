"""DevNet, written from Pang et al., "Explainable deep few-shot anomaly detection with deviation networks", 2021.

As printed: a 1 x 1 convolution scores every position of the feature map; the image score is the mean of the highest
10 % of the absolute scores; the deviation loss with 5,000 draws of a standard normal and a margin of 5; batches of 48,
half of them anomalous; Adam with weight decay 1e-5, and a learning rate that falls to a tenth every 200 steps.
`devnet` trains its network with the head, at two input scales; the preset `paper` has the printed ResNet-18 at 448 and
224 pixels and the printed schedule, the default Lite0 at 192 and 96 pixels and few steps, for a CPU.
Not as printed, in both: features are standardised by the normals; images are not augmented; the map is that of the
scores (printed: gradients of the score). In `devnet`, batch norm keeps its ImageNet statistics.
In `devnet-frozen`, the backbone is frozen, so one input scale is left; two strides of the recipe's features are joined
(preset `paper`: the last map alone), with a tenfold learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from bgad.config.supervised import DevnetConfig
from bgad.methods.baselines.losses import deviation_loss, gaussian_reference
from bgad.methods.baselines.supervised import Draws, halves, train
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Step
from bgad.model.heads.devnet import DevnetHead


def fit_devnet(head: DevnetHead, data: FitData) -> Iterator[LogRow]:
    """Train by the deviation loss."""
    settings, draws = head.config.baseline, Draws(head, data)
    assert isinstance(settings, DevnetConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        features, labels = halves(head, draws, step)
        scores = head.image_scores(features)
        return deviation_loss(scores, labels, gaussian_reference(scores), settings.margin)

    return train(head, data, loss)
