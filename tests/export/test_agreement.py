"""Limits on what a precision may change, and what they are measured on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bgad.artifact.card import AgreementCard
from bgad.errors import ModelError
from bgad.export.agreement import MIN_RANK_CORRELATION, Compared, Scored, agreement, check

FINE = AgreementCard("openvino", "CPU", 100, 1.0, 0, (0.99, 0.99), (0.9, 0.9))


def refused(found: AgreementCard, known: int = 10) -> str:
    with pytest.raises(ModelError) as caught:
        check(found, known, "bf16")
    message = str(caught.value)
    assert message.startswith(f"bf16 does not agree with float32 on the {found.images} calibration normals and known")
    assert "\n" not in message
    return message


def test_by_hand() -> None:
    normals = Scored([1.0, 2.0, 3.0, 4.0], [1.1, 3.3, 2.2, 4.4])  # two neighbours have changed places
    known = Scored([5.0, 3.5], [5.5, 2.1])  # the second falls below two normals, before it was below one
    test = Scored([1.0, 2.0, 3.0], [3.0, 1.0, 2.0])
    found = agreement(Compared(normals, known, test, (0, 0, 1)), (3.2, 3.0), "openvino 1", "CPU")
    assert (found.engine, found.device, found.images) == ("openvino 1", "CPU", 6)
    # ranks 0 1 2 4 5 3 and 0 3 2 4 5 1: the sum of the squared differences is 4 + 4 = 8
    assert found.rank_correlation == pytest.approx(1 - 6 * 8 / (6 * 35))
    # above 3.2: the fourth and both known ones; above 3.0: the second, the fourth and the first known one
    assert found.changed_decisions == 2
    assert found.known_auroc == (7 / 8, 5 / 8)
    assert found.test_auroc == (1.0, 0.5)


def test_without_anomalies_there_is_no_auroc() -> None:
    found = agreement(Compared(Scored([1.0, 2.0], [1.0, 2.0])), (1.5, 1.5), "", "CPU")
    assert (found.known_auroc, found.test_auroc) == (None, None)
    check(found, 0, "bf16")


def test_each_limit_is_enforced() -> None:
    check(FINE, 10, "bf16")
    assert "the rank correlation of their scores is 0.9799, less than 0.98" in refused(
        replace(FINE, rank_correlation=0.9799)
    )
    assert "the rank correlation" in refused(replace(FINE, rank_correlation=float("nan")))
    check(replace(FINE, changed_decisions=2), 10, "bf16")
    assert "3 decisions change, more than 2" in refused(replace(FINE, changed_decisions=3))
    check(replace(FINE, images=200, changed_decisions=4), 10, "bf16")
    check(replace(FINE, known_auroc=(0.99, 0.9852)), 10, "bf16")
    assert "the AUROC of known anomalies falls from 0.9900 to 0.9840, by more than 0.005" in refused(
        replace(FINE, known_auroc=(0.99, 0.984))
    )


def test_nothing_is_chosen_by_the_test_images() -> None:
    check(replace(FINE, test_auroc=(0.9, 0.1)), 10, "bf16")


@pytest.mark.parametrize("images", [2, 3, 5, 8, 20])
def test_two_neighbours_may_change_places_however_few_images_there_are(images: int) -> None:
    scores = np.arange(float(images))
    exchanged = scores.copy()
    exchanged[[0, 1]] = exchanged[[1, 0]]
    found = agreement(Compared(Scored(scores.tolist(), exchanged.tolist())), (9e9, 9e9), "", "CPU")
    check(found, 0, "bf16")
    if images < 9:
        assert found.rank_correlation < MIN_RANK_CORRELATION
        refused(replace(found, rank_correlation=found.rank_correlation - 0.01), 0)
    found = replace(found, known_auroc=(1.0, 1 - 1 / (images - 1)))  # one known anomaly, one of its pairs
    check(found, 1, "bf16")
