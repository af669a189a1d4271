"""The image head: cross-validated scores and the directions of known anomalies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.covariance import ledoit_wolf as reference

from bgad.training.fit_image_head import (
    BOUNDARY_QUANTILE,
    FOLDS,
    DescriptorStatistics,
    FeatureStatistics,
    descriptors_of,
    direction_peaks,
    fit_image_head,
    ledoit_wolf,
    top_mean,
)
from tests.conftest import tiny_config
from tests.training.prepared import prepared


def test_known_anomalies_are_scored_out_of_fold(data_set: Path, tmp_path: Path) -> None:
    config = tiny_config()
    model, training_set = prepared(data_set, config, tmp_path)
    head, known = model.image_head, training_set.anomalies[0]
    assert head is not None
    reference = np.arange(5)
    scores = fit_image_head(model, head, training_set.normals, known, reference)
    assert scores is not None
    assert (scores.normals.shape, scores.known.shape) == ((5,), (6,))
    # the first of six, by hand: directions from those that are not in its fold
    rest = np.array([1, 2, 3, 4])  # 0 and 5 are one fold of five
    summaries = descriptors_of(model, head, known.features)
    fitted = DescriptorStatistics(descriptors_of(model, head, training_set.normals))
    direction, _ = fitted.direction(summaries[rest])
    total = float(fitted.distances(summaries[:1])[0])
    places = [float(direction.excess(summaries[:1] @ direction.vector)[0])]
    for i in model.image_head_maps:
        cells = [known.cells[i][k] for k in rest]
        along = FeatureStatistics(training_set.normals.rows(i, np.arange(training_set.normals.count))).direction(
            known.features.rows(i, rest), cells
        )
        places.append(float(along.excess(direction_peaks(known.features.rows(i, np.array([0])) @ along.vector))[0]))
    assert max(places) > 0
    expected = total + config.score.direction_weight * sum(max(place, 0.0) for place in places)
    assert scores.known[0] == pytest.approx(expected, rel=1e-3)
    # a single one says nothing of its own direction
    alone = type(known)(known.features.select([0]), [c[:1] for c in known.cells], known.marked[:1])
    scores = fit_image_head(model, head, training_set.normals, alone, reference)
    assert scores is not None
    assert scores.known.tolist() == pytest.approx([total], rel=1e-4)
    assert scores.normals.tolist() == pytest.approx(fitted.normal_distances[reference].tolist(), rel=1e-3)


def test_taught_anomalies_have_directions_of_their_own(data_set: Path, tmp_path: Path) -> None:
    config = tiny_config()
    model, training_set = prepared(data_set, config, tmp_path)
    head, known = model.image_head, training_set.anomalies[0]
    assert head is not None
    reference, first, taught = np.arange(5), np.array([0, 1, 3, 4]), np.array([2, 5])
    scores = fit_image_head(model, head, training_set.normals, known, reference, taught)
    assert scores is not None
    summaries = descriptors_of(model, head, known.features)
    fitted = DescriptorStatistics(descriptors_of(model, head, training_set.normals))
    places = {
        i: FeatureStatistics(training_set.normals.rows(i, np.arange(training_set.normals.count)))
        for i in model.image_head_maps
    }

    def along(kinds: list[Any], k: int) -> list[float]:
        """How far beyond an anomaly lies in the farthest direction of the kinds."""
        chosen = [fitted.direction(summaries[kind])[0] for kind in kinds]
        far = [max(float(d.excess(summaries[k : k + 1] @ d.vector)[0]) for d in chosen)]
        for i in model.image_head_maps:
            of_map = [
                places[i].direction(known.features.rows(i, kind), [known.cells[i][n] for n in kind]) for kind in kinds
            ]
            rows = known.features.rows(i, np.array([k]))
            far.append(max(float(d.excess(direction_peaks(rows @ d.vector))[0]) for d in of_map))
        return far

    with torch.inference_mode():
        rows = [torch.from_numpy(known.features.rows(i, np.arange(6))) for i in model.image_head_maps]
        beyond = head(rows)[1].numpy()
    np.testing.assert_allclose(beyond, [along([first, taught], k) for k in range(6)], rtol=1e-2, atol=1e-2)
    # as if they had not been seen: 0 and 5 are one fold, so 0 is judged by 1, 3 and 4, and by 2
    for k, kinds in ((0, [first[1:], taught[:1]]), (2, [first, taught[1:]])):
        far = along(kinds, k)
        expected = float(fitted.distances(summaries[k : k + 1])[0]) + config.score.direction_weight * sum(
            max(place, 0.0) for place in far
        )
        assert scores.known[k] == pytest.approx(expected, rel=1e-3)
    # where all were taught, there is one kind
    fit_image_head(model, head, training_set.normals, known, reference, np.arange(6))
    assert head.get_buffer("direction0").shape[0] == 1


Floats = npt.NDArray[np.float32]


def normals(count: int, size: int = 12, seed: int = 0) -> Floats:
    """Correlated descriptors of different scales."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(size, size))
    return (rng.normal(size=(count, size)) @ mix * np.linspace(0.1, 3, size) + 5).astype(np.float32)


def known(count: int, shift: float = 6.0) -> Floats:
    bad = normals(count, seed=1)
    bad[:, 3] += shift
    return bad


def fitted(count: int = 200) -> DescriptorStatistics:
    return DescriptorStatistics(normals(count))


@pytest.mark.parametrize("rows", [5, 40, 400])
def test_the_covariance_is_that_of_ledoit_and_wolf(rows: int) -> None:
    x = normals(rows).astype(np.float64)
    x -= x.mean(axis=0)
    found, share = ledoit_wolf(x)
    expected, expected_share = reference(x, assume_centered=True)
    assert share == pytest.approx(expected_share)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_distances_by_hand() -> None:
    """The whitening gives the Mahalanobis distance under the shrunk covariance of the standardised descriptors."""
    x, new = normals(200).astype(np.float64), normals(7, seed=2)
    found = fitted()
    gaussian = found.gaussian
    mean, std = x.mean(axis=0), x.std(axis=0)
    inverse = np.linalg.inv(reference((x - mean) / std, assume_centered=True)[0])
    z = (new - mean) / std
    expected = np.sqrt(np.einsum("ij,jk,ik->i", z, inverse, z))
    np.testing.assert_allclose(np.linalg.norm((new - gaussian.mean) @ gaussian.whiten.T, axis=1), expected, rtol=1e-3)
    np.testing.assert_allclose(
        found.distances(new), (expected - gaussian.distance_mean) / gaussian.distance_std, rtol=1e-3
    )


def test_normals_are_measured_out_of_fold() -> None:
    """With few normals, those that were fitted lie too close; new ones lie as far as the constants say."""
    found = fitted(30)
    gaussian = found.gaussian
    seen = np.linalg.norm((normals(30) - gaussian.mean) @ gaussian.whiten.T, axis=1)
    new = np.linalg.norm((normals(500, seed=3) - gaussian.mean) @ gaussian.whiten.T, axis=1)
    assert seen.mean() < gaussian.distance_mean
    assert new.mean() == pytest.approx(gaussian.distance_mean, rel=0.1)
    assert (found.normal_distances.mean(), found.normal_distances.std()) == pytest.approx((0, 1), abs=1e-9)
    others = normals(30)[np.arange(30) % FOLDS != 2]  # the Gaussian of the other folds measures the third
    apart = DescriptorStatistics(others).gaussian
    away = np.linalg.norm((normals(30)[2::5] - apart.mean) @ apart.whiten.T, axis=1)
    np.testing.assert_allclose(
        found.normal_distances[2::5], (away - gaussian.distance_mean) / gaussian.distance_std, rtol=1e-3, atol=1e-3
    )


def test_the_known_anomalies_give_a_direction_and_the_normals_its_boundary() -> None:
    direction, own = fitted().direction(known(10))

    def excess(x: Floats) -> Any:
        return direction.excess(x @ direction.vector)

    assert excess(normals(5)) == pytest.approx(
        (normals(5) @ direction.vector - direction.boundary) / direction.spread, rel=1e-5
    )
    assert np.mean(own > 0) == pytest.approx(1 - BOUNDARY_QUANTILE, abs=0.01)
    assert np.corrcoef(own, excess(normals(200)))[0, 1] > 0.9
    assert np.mean(excess(normals(4000, seed=5)) > 0) == pytest.approx(1 - BOUNDARY_QUANTILE, abs=0.05)
    assert excess(normals(4000, seed=5)).std() == pytest.approx(1, abs=0.1)
    like_known, opposite = normals(50, seed=4), normals(50, seed=4)
    like_known[:, 3] += 6.0
    opposite[:, 3] -= 6.0
    assert np.mean(excess(like_known) > 0) > 0.95
    assert np.mean(excess(opposite) > 0) < 0.05


def test_odd_normals() -> None:
    same = np.ones((20, 6), np.float32)
    half_constant = normals(20)
    half_constant[:, :6] = 1.0
    for x, bad in ((same, same[:2] + 1), (half_constant, known(2)), (same, same[:1])):
        found = DescriptorStatistics(x)
        direction, own = found.direction(bad)
        assert np.isfinite(
            [found.gaussian.distance_mean, found.gaussian.distance_std, direction.boundary, direction.spread]
        ).all()
        assert np.isfinite(found.gaussian.whiten).all()
        assert np.isfinite(direction.vector).all()
        assert np.isfinite(own).all()


def test_normals_that_are_all_alike_leave_finite_scores() -> None:
    """Half precision can make near copies the same; another image is far away, but not infinitely far."""
    found = DescriptorStatistics(np.full((20, 6), 3.0, np.float32))
    assert np.isfinite(found.distances(np.full((1, 6), 4.0, np.float32))).all()


def maps(count: int, seed: int, defect: bool = False) -> Floats:
    """Feature rows (count, 40, 5); a defect moves channel 2 at four positions."""
    rows = np.random.default_rng(seed).normal(size=(count, 40, 5)).astype(np.float32)
    if defect:
        rows[:, 7:11, 2] += 5
    return rows


@pytest.mark.parametrize("marked", [True, False])
def test_the_direction_of_a_map_points_at_the_defect(marked: bool) -> None:
    cells = [np.arange(7, 11) if marked else None] * 6
    direction = FeatureStatistics(maps(80, 0)).direction(maps(6, 1, defect=True), cells)
    assert np.argmax(np.abs(direction.vector)) == 2
    assert direction.vector[2] > 5 * np.delete(np.abs(direction.vector), 2).max()

    def excess(rows: Floats) -> Any:
        return (direction_peaks(rows @ direction.vector) - direction.boundary) / direction.spread

    assert np.mean(excess(maps(400, 2)) > 0) == pytest.approx(1 - BOUNDARY_QUANTILE, abs=0.1)
    assert excess(maps(50, 3, defect=True)).min() > 3


def test_a_marked_direction_by_hand() -> None:
    good, bad = maps(80, 0), maps(1, 1, defect=True)
    direction = FeatureStatistics(good).direction(bad, [np.array([7, 8])])
    x = (good - good.mean(axis=(0, 1))).reshape(-1, 5).astype(np.float64)
    covariance = x.T @ x / len(x)
    covariance += 0.1 * np.trace(covariance) / 5 * np.eye(5)
    defect = bad[0, 7:9].mean(axis=0) - good.mean(axis=(0, 1))
    expected = np.linalg.solve(covariance, defect) / np.sqrt(defect @ np.linalg.solve(covariance, defect))
    np.testing.assert_allclose(direction.vector, expected, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_top_mean_is_the_mean_of_the_highest_values(count: int) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    expected = np.sort(rows, axis=1)[:, 7 - count :].mean(axis=1)
    assert top_mean(rows, count).dtype == np.float32
    np.testing.assert_allclose(top_mean(rows, count), expected, rtol=1e-6)
