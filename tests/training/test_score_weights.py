from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from bgad.training import score_weights

Floats = npt.NDArray[np.float32]
EQUAL = [1 / 3] * 3


def maps(count: int, seed: int, lift: float = 0.0, where: slice = slice(0, 4)) -> Floats:
    values = np.random.default_rng(seed).normal(size=(count, 50)).astype(np.float32)
    values[:, where] += lift
    return values


def levels(count: int, seed: int, lifts: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> list[Floats]:
    return [maps(count, 10 * seed + i, lift) for i, lift in enumerate(lifts)]


def fitted(known: int, lifts: tuple[float, float, float], *, marked: bool, evidence_weight: float = 4.0) -> list[float]:
    cells = [np.arange(4) if marked else None] * known
    return score_weights.level_weights(
        EQUAL, levels(40, 1), levels(known, 2, lifts), cells, top_share=0.05, evidence_weight=evidence_weight
    )


def test_above_by_hand() -> None:
    """Normals 0 and 2 have a deviation of 1, so a step is half as wide."""
    found = score_weights.share_below(np.array([1.0, 2.0, 100.0]), np.array([0.0, 2.0]))
    expected = [0.5, (1 / (1 + np.exp(-4)) + 0.5) / 2, 1.0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_top_mean_by_hand() -> None:
    rows = np.array([[1.0, 5.0, 3.0, 4.0], [0.0, 0.0, 0.0, 2.0]])
    assert score_weights.top_mean(rows, 0.5).tolist() == [4.5, 1.0]
    assert score_weights.top_mean(rows, 0.0).tolist() == [5.0, 2.0]


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_level_that_finds_the_known_anomalies_counts_most(best: int, marked: bool) -> None:
    lifts = tuple(4.0 if i == best else 0.0 for i in range(3))
    assert len(lifts) == 3
    found = fitted(10, lifts, marked=marked)
    assert sum(found) == pytest.approx(1)
    assert min(found) > 0
    assert np.argmax(found) == best
    assert found[best] > 0.5


def test_one_anomaly_moves_less_than_ten_and_none_nothing() -> None:
    lifts = (0.0, 3.0, 0.0)
    none, one, ten = (fitted(k, lifts, marked=True)[1] for k in (0, 1, 10))
    assert none == pytest.approx(1 / 3)
    assert 1 / 3 + 0.05 < one < ten - 0.05
    assert fitted(10, lifts, marked=True, evidence_weight=0.0) == pytest.approx(EQUAL)


def test_without_evidence_the_prior_is_kept_exactly() -> None:
    prior = [0.2, 0.3, 0.5]
    empty = [x[:0] for x in levels(1, 2)]
    assert score_weights.level_weights(
        prior, levels(20, 1), empty, [], top_share=0.05, evidence_weight=4.0
    ) == pytest.approx(prior)


def test_levels_that_do_equally_well_keep_the_prior() -> None:
    same = maps(40, 1)
    found = score_weights.level_weights(
        [0.2, 0.3, 0.5], [same] * 3, [maps(10, 2, 2.0)] * 3, [None] * 10, top_share=0.05, evidence_weight=4.0
    )
    assert found == pytest.approx([0.2, 0.3, 0.5], abs=1e-6)


def test_weights_by_an_independent_slow_version() -> None:
    """The posterior mean over all numbers of sixths, with a multinomial prior, by drawing them one by one."""
    prior, normals, known = [0.5, 0.5], [maps(30, 1), maps(30, 2)], [maps(3, 3, 2.0), maps(3, 4)]
    cells = [np.arange(4), None, np.arange(2)]
    total, weights = np.zeros(2), 0.0
    for draws in itertools.product((0, 1), repeat=6):  # each sixth to one of two levels, equally likely
        share = np.bincount(draws, minlength=2) / 6
        ours = share[0] * normals[0] + share[1] * normals[1]
        theirs = share[0] * known[0] + share[1] * known[1]
        found = 0.0
        for row, own in zip(theirs, cells, strict=True):
            if own is None:
                peak, peaks = np.sort(row)[-5:].mean(), np.sort(ours, axis=1)[:, -5:].mean(axis=1)
                found += float(np.mean(1 / (1 + np.exp(-(peak - peaks) / (0.5 * peaks.std())))))
            else:
                found += float(
                    np.mean([np.mean(row[own] > np.quantile(ours, 1 - f)) for f in (0.003, 0.01, 0.03, 0.1)])
                )
        total += share * np.exp(2.0 * found)
        weights += float(np.exp(2.0 * found))
    expected = total / weights
    assert score_weights.level_weights(
        prior, normals, known, cells, top_share=0.1, evidence_weight=2.0
    ) == pytest.approx(expected, rel=1e-4)


def test_the_image_as_a_whole_counts_by_what_it_tells() -> None:
    rng = np.random.default_rng(0)
    normals = (rng.normal(size=60).astype(np.float32), rng.normal(size=60).astype(np.float32))
    noise, clear = rng.normal(size=10).astype(np.float32), rng.normal(size=10).astype(np.float32) + 3
    more = score_weights.image_head_weight(0.5, normals, (noise, clear), evidence_weight=4.0)
    less = score_weights.image_head_weight(0.5, normals, (clear, noise), evidence_weight=4.0)
    assert less < 0.3 < 0.5 < 1.0 < more
    one = score_weights.image_head_weight(0.5, normals, (noise[:1], clear[:1]), evidence_weight=4.0)
    assert 0.5 < one < more
    none = (noise[:0], clear[:0])
    assert score_weights.image_head_weight(0.5, normals, none, evidence_weight=4.0) == pytest.approx(0.5)
    assert score_weights.image_head_weight(0.5, normals, (noise, clear), evidence_weight=0.0) == pytest.approx(0.5)
    assert score_weights.image_head_weight(0.0, normals, (noise, clear), evidence_weight=4.0) == 0.0


def test_normals_that_are_all_alike_do_no_harm() -> None:
    flat = [np.zeros((10, 50), np.float32)] * 3
    found = score_weights.level_weights(
        EQUAL, flat, levels(3, 2, (1.0, 0.0, 0.0)), [None] * 3, top_share=0.05, evidence_weight=4.0
    )
    assert np.isfinite(found).all()
    weight = score_weights.image_head_weight(
        0.5, (np.zeros(5, np.float32), np.zeros(5, np.float32)), (np.ones(2, np.float32),) * 2, evidence_weight=4.0
    )
    assert np.isfinite(weight)
