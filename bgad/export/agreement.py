"""How the scores of a precision agree with those of float32, and the limits beyond which it is not added to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bgad.artifact.card import AgreementCard
from bgad.errors import ModelError
from bgad.metrics import auroc, spearman

# Calibration and threshold make up for any change that keeps the order of the scores. So the limits are about order.
# At .98, what a precision adds to the scores at random has a fifth of their spread (1 / sqrt(1 + .2^2)): decisions
# change for images right at the threshold only.
MIN_RANK_CORRELATION = 0.98
# Of the images; the same two that change places at the threshold are allowed however few images there are.
MAX_CHANGED_DECISIONS = 0.02
EXCHANGED = 2
# That known anomalies may lose against calibration normals. One pair of few is a larger step, and is allowed.
MAX_AUROC_LOSS = 0.005


@dataclass(frozen=True)
class Scored:
    """The scores of images in float32 and in another precision, in the same order."""

    float32: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.float32)

    def __add__(self, more: Scored) -> Scored:
        return Scored(self.float32 + more.float32, self.other + more.other)


@dataclass(frozen=True)
class Compared:
    """The images that both precisions have scored, by role."""

    normals: Scored  # calibration normals
    known: Scored = field(default_factory=Scored)  # known anomalies
    test: Scored = field(default_factory=Scored)
    test_labels: tuple[int, ...] = ()


def agreement(compared: Compared, thresholds: tuple[float, float], engine: str, device: str) -> AgreementCard:
    """Describe the agreement; `thresholds` are those of float32 and of the precision."""
    images = compared.normals + compared.known
    decisions = [np.asarray(s) > t for s, t in zip((images.float32, images.other), thresholds, strict=True)]
    return AgreementCard(
        engine=engine,
        device=device,
        images=len(images),
        rank_correlation=spearman(images.float32, images.other),
        changed_decisions=int(np.sum(decisions[0] != decisions[1])),
        known_auroc=_aurocs(images, [0] * len(compared.normals) + [1] * len(compared.known)),
        test_auroc=_aurocs(compared.test, compared.test_labels),
    )


def check(found: AgreementCard, known: int, precision: str) -> None:
    """Raise ModelError where a limit is exceeded; the result on test images has none, as nothing is chosen by it."""
    n = found.images
    one_exchange = 1 - 12 / (n * (n * n - 1)) if n > 1 else 1.0  # the correlation where two neighbours change places
    least = min(MIN_RANK_CORRELATION, one_exchange)
    most = max(EXCHANGED, int(MAX_CHANGED_DECISIONS * n))
    problem = ""
    if not found.rank_correlation >= least - 1e-12:  # also where it is no number
        problem = f"the rank correlation of their scores is {found.rank_correlation:.4f}, less than {least:.4g}"
    elif found.changed_decisions > most:
        problem = f"{found.changed_decisions} decisions change, more than {most}"
    elif found.known_auroc is not None:
        allowed = max(MAX_AUROC_LOSS, 1.5 / (known * (n - known)))
        before, after = found.known_auroc
        if not after >= before - allowed:
            problem = f"the AUROC of known anomalies falls from {before:.4f} to {after:.4f}, by more than {allowed:.2g}"
    if problem:
        raise ModelError(
            f"{precision} does not agree with float32 on the {n} calibration normals and known anomalies: {problem}; "
            "the model stays as it was: score it in float32"
        )


def _aurocs(scored: Scored, labels: Sequence[int]) -> tuple[float, float] | None:
    """Return the image AUROC in float32 and in the other precision; None without images of both labels."""
    before, after = auroc(scored.float32, labels), auroc(scored.other, labels)
    return None if before is None or after is None else (before, after)
