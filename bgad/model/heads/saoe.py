"""SAOE's head: logits of the classes normal, known anomaly and pseudo anomaly."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bgad.config import Config
from bgad.model.heads.base import FeatureSpec, HeadOutput
from bgad.model.heads.supervised import SupervisedHead, over_scales

CLASSES = NORMAL, KNOWN, PSEUDO = 0, 1, 2


class SaoeHead(SupervisedHead):
    """A linear classifier of the mean feature; at each position, the same classifier gives the map."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        self.classifier = nn.Conv2d(self.features.channels, len(CLASSES), 1)

    def logits(self, features: Sequence[Tensor]) -> Tensor:
        """Features (B, D, h, w) of each scale -> the logits of the image (B, 3)."""
        return over_scales([self.classifier(x).mean((2, 3)) for x in features])

    def rate(self, features: Sequence[Tensor]) -> HeadOutput:
        """See SupervisedHead."""
        maps = [anomaly_log_odds(self.classifier(x)) for x in features]
        return HeadOutput(anomaly_log_odds(self.logits(features)), self.full_map(maps))


def anomaly_log_odds(logits: Tensor) -> Tensor:
    """Logits (B, 3, ...) -> log of the probability of an anomaly by that of a normal (B, ...)."""
    return logits[:, KNOWN:].logsumexp(1) - logits[:, NORMAL]
