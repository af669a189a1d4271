"""DRA, written from Ding et al., "Catching both gray and black swans: open-set supervised anomaly detection", CVPR
2022.

As printed: four heads on one feature map, each with DevNet's deviation loss, and their sum. The normality head (mean
feature, 256 units, one score) tells normals from everything else; the heads of known and of pseudo anomalies score
positions and take the highest 10 %; the residual head scores, by a 3 x 3 convolution, the mean feature map of 5
reference normals minus that of the image. The image score is the sum of the anomaly heads minus the normality head. A
third of a batch are normals, a third known anomalies and a third pseudo anomalies: rectangles of other normals (CutMix,
2 to 15 % of the area, aspect 0.3 to 3.3).
Not as printed: what differs in `devnet` and, on frozen features, in `devnet-frozen`. The pseudo anomalies are made in
image space before the fit, by the section `pseudo` of the recipe, and not anew in every step. Scores of positions count
by their absolute value, as in DevNet. The map is the sum of the maps of the three anomaly heads.
Not confirmed: that the labels of the normality head are reversed, which follows from the sign of its score.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bgad.config.supervised import DraConfig
from bgad.methods.baselines.losses import deviation_loss, gaussian_reference
from bgad.methods.baselines.supervised import Draws, joined, labels_of, thirds, train
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Step
from bgad.model.heads.dra import DraHead, DraScores


def fit_dra(head: DraHead, data: FitData) -> Iterator[LogRow]:
    """Train all heads by deviation losses, then store the reference of the residuals."""
    settings, draws = head.config.baseline, Draws(head, data)
    assert isinstance(settings, DraConfig)  # noqa: S101 - Config.check ensures it
    rng, count = np.random.default_rng([data.seed, 0]), data.normals.count
    chosen = rng.choice(count, min(settings.references, count), replace=False)
    references = draws.maps(data.normals, chosen)

    def loss(step: Step) -> Tensor:
        maps, counts = thirds(head, draws, step)
        features = head.features(joined(references, maps))
        means = [x[: len(chosen)].mean(0) for x in features]
        scores = head.scores([x[len(chosen) :] for x in features], means)
        return dra_loss(scores, counts, gaussian_reference(scores.known), settings.margin)

    yield from train(head, data, loss)
    with torch.inference_mode():
        head.set_references(head.features(references))


def dra_loss(scores: DraScores, counts: tuple[int, int, int], reference: Tensor, margin: float) -> Tensor:
    """Sum of the heads' deviation losses; the batch has normals, then known and pseudo anomalies, as counted.

    The normality head must deviate on normals. The head of known anomalies does not see pseudo anomalies, and that of
    pseudo anomalies does not see known ones.
    """
    normal, known, pseudo = counts
    labels = labels_of([(0, normal), (1, known + pseudo)], reference)

    def deviation(head: Tensor, images: Tensor, marks: Tensor) -> Tensor:
        return deviation_loss(head[images], marks[images], reference, margin)

    everything = torch.ones_like(labels, dtype=torch.bool)
    is_known, is_pseudo = everything.clone(), everything.clone()
    is_known[normal + known :] = False
    is_pseudo[normal : normal + known] = False
    return (
        deviation(scores.normality, everything, 1 - labels)
        + deviation(scores.known, is_known, labels)
        + deviation(scores.pseudo, is_pseudo, labels)
        + deviation(scores.residual, everything, labels)
    )
