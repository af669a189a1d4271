from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bgad.service.drift import martingale
from bgad.service.drift.cause import find_cause, superiority

THRESHOLD = 2.0


def normals(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1, count)


def with_defects(count: int, seed: int, share: float) -> np.ndarray:
    """Normals as before, and defects that score high."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(count) < share, rng.normal(6, 1, count), normals(count, seed + 1))


def test_the_probability_is_that_of_mann_and_whitney() -> None:
    old, new = np.round(normals(40, 1), 1), np.round(normals(25, 2, 0.4), 1)  # with ties
    probability, deviations = superiority(old, new)
    known = stats.mannwhitneyu(new, old, alternative="two-sided", method="asymptotic", use_continuity=False)
    assert probability == pytest.approx(known.statistic / (40 * 25))
    assert 2 * stats.norm.sf(abs(deviations)) == pytest.approx(known.pvalue, rel=0.02)  # theirs corrects for ties
    assert superiority(old, np.array([])) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        (with_defects(80, 3, 0.4), "defects", "The others score as before."),
        (normals(80, 4, 1.0), "imaging", "score higher than before, too."),
        (normals(80, 4, -1.0), "imaging", "score lower than before, too."),
        (normals(80, 4, 6.0), "imaging", "changed imaging (light, focus, position, material) or a bad series."),
        (np.minimum(normals(80, 5), THRESHOLD), "unclear", "cannot be told from the scores."),
    ],
)
def test_what_a_change_looks_like(changed: np.ndarray, kind: str, words: str) -> None:
    cause = find_cause(normals(300, 0), changed, THRESHOLD)
    assert cause.kind == kind
    assert words in str(cause)
    assert f"Of the 80 images behind the change, {np.sum(changed > THRESHOLD)} score above" in str(cause)


def test_few_images_are_no_proof_of_a_shift() -> None:
    assert find_cause(normals(300, 0), np.array([1.9] * 4 + [9.0] * 2), THRESHOLD).kind == "defects"
    assert find_cause(np.array([]), np.array([1.0]), THRESHOLD).kind == "unclear"


@pytest.mark.parametrize("quiet", [30, 400])
@pytest.mark.parametrize("seed", range(4))
def test_the_change_begins_where_the_scores_change(quiet: int, seed: int) -> None:
    scores = np.concatenate([normals(quiet, seed), normals(200, 50 + seed, 2.0)])
    result = martingale.run(normals(50, 99).tolist(), scores)
    test = martingale.DriftTest(normals(50, 99).tolist())
    for score in scores:  # up to the first alarm after the change
        test.update([score])
        if test.alarms and test.alarms[-1] >= quiet:
            break
    change = test.result().change
    assert change.stop - 1 == test.alarms[-1]
    assert abs(change.start - quiet) <= 12
    assert find_cause(scores[: change.start], scores[change.start : change.stop], THRESHOLD).kind == "imaging"
    assert result.change.stop - 1 == result.alarms[-1]
    assert martingale.run([1.0], []).change == range(0)
