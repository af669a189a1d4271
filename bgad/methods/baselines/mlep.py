"""MLEP, written from Liu et al., "Margin learning embedded prediction for video anomaly detection with a few
anomalies", IJCAI 2019, whose margin Ding et al., "Catching both gray and black swans", CVPR 2022, use on images.

As printed: the margin loss max(0, 1 + d(anchor, normal) - d(anchor, anomaly)), whose anchor is another normal.
Not as printed: MLEP predicts frames of a video, and an image has none to predict; how Ding et al. carried it over to
images is not known to us. Ours embeds every position by a 1 x 1 convolution to 16 dimensions, takes the mean of the
highest 10 % of each as the embedding of the image, and scores by the Euclidean distance from the mean embedding of the
training normals; the map shows by how much a position exceeds that. On the demo, 16 dimensions and the highest values
did better than 128 and the mean. Batches and optimiser are those of DevNet, with what differs in `devnet` and, on
frozen features, in `devnet-frozen`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bgad.config.supervised import MlepConfig
from bgad.methods.baselines.losses import margin_loss
from bgad.methods.baselines.supervised import Draws, halves, train
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Step
from bgad.model.heads.mlep import MlepHead, distance


def fit_mlep(head: MlepHead, data: FitData) -> Iterator[LogRow]:
    """Train by the margin loss, then store the centre of the normals."""
    settings, draws = head.config.baseline, Draws(head, data)
    assert isinstance(settings, MlepConfig)  # noqa: S101 - Config.check ensures it

    def loss(step: Step) -> Tensor:
        features, labels = halves(head, draws, step)
        embedding = head.embedding(features)
        normals, anomalies = embedding[labels == 0], embedding[labels == 1]
        anchors = normals[: len(anomalies)]
        others = normals.roll(1, 0)[: len(anomalies)]  # the images of a batch are in random order
        return margin_loss(distance(anchors, others), distance(anchors, anomalies), settings.margin)

    yield from train(head, data, loss)
    with torch.inference_mode():
        batches = data.batches(data.normals, head.features.levels)
        total = sum((head.embedding(head.features(maps)).sum(0) for maps in batches), torch.zeros_like(head.centre))
        head.centre.copy_(total / data.normals.count)
