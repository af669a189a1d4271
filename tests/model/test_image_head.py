from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.covariance import ledoit_wolf as reference

from bgad.model import image_head
from bgad.model.image_head import Places, Summaries, ledoit_wolf, peaks
from bgad.model.scoring import ImageLevel

Floats = npt.NDArray[np.float32]


def normals(count: int, size: int = 12, seed: int = 0) -> Floats:
    """Correlated summaries of different scales."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(size, size))
    return (rng.normal(size=(count, size)) @ mix * np.linspace(0.1, 3, size) + 5).astype(np.float32)


def known(count: int, shift: float = 6.0) -> Floats:
    bad = normals(count, seed=1)
    bad[:, 3] += shift
    return bad


def fitted(count: int = 200) -> Summaries:
    return Summaries(normals(count))


@pytest.mark.parametrize("rows", [5, 40, 400])
def test_the_covariance_is_that_of_ledoit_and_wolf(rows: int) -> None:
    x = normals(rows).astype(np.float64)
    x -= x.mean(axis=0)
    found, share = ledoit_wolf(x)
    expected, expected_share = reference(x, assume_centered=True)
    assert share == pytest.approx(expected_share)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_distances_by_hand() -> None:
    """The whitening gives the Mahalanobis distance under the shrunk covariance of the standardised summaries."""
    x, new = normals(200).astype(np.float64), normals(7, seed=2)
    found = fitted()
    whole = found.whole
    mean, std = x.mean(axis=0), x.std(axis=0)
    inverse = np.linalg.inv(reference((x - mean) / std, assume_centered=True)[0])
    z = (new - mean) / std
    expected = np.sqrt(np.einsum("ij,jk,ik->i", z, inverse, z))
    np.testing.assert_allclose(np.linalg.norm((new - whole.mean) @ whole.whiten.T, axis=1), expected, rtol=1e-3)
    np.testing.assert_allclose(found.distances(new), (expected - whole.centre) / whole.spread, rtol=1e-3)


def test_normals_are_measured_out_of_fold() -> None:
    """With few normals, those that were fitted lie too close; new ones lie as far as the constants say."""
    found = fitted(30)
    whole = found.whole
    seen = np.linalg.norm((normals(30) - whole.mean) @ whole.whiten.T, axis=1)
    new = np.linalg.norm((normals(500, seed=3) - whole.mean) @ whole.whiten.T, axis=1)
    assert seen.mean() < whole.centre
    assert new.mean() == pytest.approx(whole.centre, rel=0.1)
    assert (found.normals.mean(), found.normals.std()) == pytest.approx((0, 1), abs=1e-9)
    apart = Summaries(normals(30)[np.arange(30) % image_head.FOLDS != 2]).whole  # what the third fold is measured by
    away = np.linalg.norm((normals(30)[2::5] - apart.mean) @ apart.whiten.T, axis=1)
    np.testing.assert_allclose(found.normals[2::5], (away - whole.centre) / whole.spread, rtol=1e-3, atol=1e-3)


def test_the_known_anomalies_give_a_direction_and_the_normals_its_start() -> None:
    direction, own = fitted().direction(known(10))

    def beyond(x: Floats) -> Any:
        return direction.beyond(x @ direction.towards)

    assert beyond(normals(5)) == pytest.approx(
        (normals(5) @ direction.towards - direction.start) / direction.spread, rel=1e-5
    )
    assert np.mean(own > 0) == pytest.approx(1 - image_head.EDGE, abs=0.01)
    assert np.corrcoef(own, beyond(normals(200)))[0, 1] > 0.9
    assert np.mean(beyond(normals(4000, seed=5)) > 0) == pytest.approx(1 - image_head.EDGE, abs=0.05)
    assert beyond(normals(4000, seed=5)).std() == pytest.approx(1, abs=0.1)
    like_known, opposite = normals(50, seed=4), normals(50, seed=4)
    like_known[:, 3] += 6.0
    opposite[:, 3] -= 6.0
    assert np.mean(beyond(like_known) > 0) > 0.95
    assert np.mean(beyond(opposite) > 0) < 0.05


def test_odd_normals() -> None:
    same = np.ones((20, 6), np.float32)
    half_constant = normals(20)
    half_constant[:, :6] = 1.0
    for x, bad in ((same, same[:2] + 1), (half_constant, known(2)), (same, same[:1])):
        found = Summaries(x)
        direction, own = found.direction(bad)
        assert np.isfinite([found.whole.centre, found.whole.spread, direction.start, direction.spread]).all()
        assert np.isfinite(found.whole.whiten).all()
        assert np.isfinite(direction.towards).all()
        assert np.isfinite(own).all()


def test_normals_that_are_all_alike_leave_finite_scores() -> None:
    """Half precision can make near copies the same; another image is far away, but not infinitely far."""
    found = Summaries(np.full((20, 6), 3.0, np.float32))
    assert np.isfinite(found.distances(np.full((1, 6), 4.0, np.float32))).all()


def test_a_wide_backbone_is_summed_up_by_its_means() -> None:
    level = ImageLevel([900, 1200])
    assert level.mean.shape == (2100,)
    rows = [torch.rand(2, 4, 900), torch.rand(2, 4, 1200)]
    torch.testing.assert_close(level.summarise(rows), torch.cat([r.mean(1) for r in rows], 1))


def maps(count: int, seed: int, defect: bool = False) -> Floats:
    """Feature rows (count, 40, 5); a defect moves channel 2 at four positions."""
    rows = np.random.default_rng(seed).normal(size=(count, 40, 5)).astype(np.float32)
    if defect:
        rows[:, 7:11, 2] += 5
    return rows


@pytest.mark.parametrize("marked", [True, False])
def test_the_direction_of_a_map_points_at_the_defect(marked: bool) -> None:
    cells = [np.arange(7, 11) if marked else None] * 6
    direction = Places(maps(80, 0)).direction(maps(6, 1, defect=True), cells)
    assert np.argmax(np.abs(direction.towards)) == 2
    assert direction.towards[2] > 5 * np.delete(np.abs(direction.towards), 2).max()

    def beyond(rows: Floats) -> Any:
        return (peaks(rows @ direction.towards) - direction.start) / direction.spread

    assert np.mean(beyond(maps(400, 2)) > 0) == pytest.approx(1 - image_head.EDGE, abs=0.1)
    assert beyond(maps(50, 3, defect=True)).min() > 3


def test_a_marked_direction_by_hand() -> None:
    good, bad = maps(80, 0), maps(1, 1, defect=True)
    direction = Places(good).direction(bad, [np.array([7, 8])])
    x = (good - good.mean(axis=(0, 1))).reshape(-1, 5).astype(np.float64)
    covariance = x.T @ x / len(x)
    covariance += 0.1 * np.trace(covariance) / 5 * np.eye(5)
    defect = bad[0, 7:9].mean(axis=0) - good.mean(axis=(0, 1))
    expected = np.linalg.solve(covariance, defect) / np.sqrt(defect @ np.linalg.solve(covariance, defect))
    np.testing.assert_allclose(direction.towards, expected, rtol=1e-4)


def test_the_level_says_what_was_fitted() -> None:
    rows = [maps(90, 0), maps(90, 1)[:, :10]]
    tensors = [torch.from_numpy(r) for r in rows]
    level = ImageLevel([5, 5])
    summary = level.summarise(tensors).numpy()
    m = rows[0]
    peak = m.max(axis=1)  # of 40 positions, a fiftieth is one
    np.testing.assert_allclose(
        summary[:, :15], np.concatenate([m.mean(1), m.std(1), peak], axis=1), rtol=1e-4, atol=1e-6
    )
    distance, beyond = level(tensors)
    assert distance.tolist() == [0.0] * 90  # nothing is known yet
    assert beyond.tolist() == [[0.0] * 3] * 90
    found = Summaries(summary[:60])
    whole, (direction, _) = found.whole, found.direction(summary[60:70] + 1)
    level.set_whole(whole)
    level.set_directions(0, [direction])
    of_map = Places(rows[1][:60]).direction(rows[1][60:70] + 1, [None] * 10)
    level.set_directions(2, [of_map])
    distance, beyond = level(tensors)
    expected = np.linalg.norm((summary - whole.mean) @ whole.whiten.T, axis=1)
    np.testing.assert_allclose(distance.numpy(), (expected - whole.centre) / whole.spread, rtol=1e-3, atol=1e-3)
    place = (summary @ direction.towards - direction.start) / direction.spread
    np.testing.assert_allclose(beyond[:, 0].numpy(), place, rtol=1e-3, atol=1e-3)
    assert beyond[:, 1].tolist() == [0.0] * 90
    place = (peaks(rows[1] @ of_map.towards) - of_map.start) / of_map.spread
    np.testing.assert_allclose(beyond[:, 2].numpy(), place, rtol=1e-3, atol=1e-3)


def test_of_several_directions_the_one_that_leads_farthest_counts() -> None:
    good, bad = maps(80, 0), [maps(6, 1, defect=True), maps(6, 2)]
    bad[1][:, 20:24, 4] += 5  # another kind of defect
    of_map = [Places(good).direction(kind, [None] * 6) for kind in bad]
    summaries = ImageLevel([5]).summarise([torch.from_numpy(good)]).numpy()
    of_summary = [Summaries(summaries).direction(summaries[:3] + shift)[0] for shift in (1, -1)]
    tensors = [torch.from_numpy(np.concatenate([good, *bad]))]

    def beyond(*numbers: int) -> Floats:
        level = ImageLevel([5])
        level.set_directions(0, [of_summary[i] for i in numbers])
        level.set_directions(1, [of_map[i] for i in numbers])
        found: Floats = level(tensors)[1].numpy()
        return found

    first, second = beyond(0), beyond(1)
    assert (first > second).any(axis=0).all()
    assert (second > first).any(axis=0).all()
    np.testing.assert_allclose(beyond(0, 1), np.maximum(first, second), rtol=1e-3, atol=1e-4)


def test_directions_are_loaded_as_they_are_and_those_of_older_models_too() -> None:
    two = ImageLevel([5])
    for i, width in ((0, 15), (1, 5)):
        some = [image_head.Direction(np.full(width, k, np.float32), k, k + 1) for k in (1, 2)]
        two.set_directions(i, some)
    tensors = [torch.from_numpy(maps(9, 0))]
    again = ImageLevel([5])
    again.load_state_dict(two.state_dict())
    assert torch.equal(again(tensors)[1], two(tensors)[1])
    older = {
        key: value[1] if key.startswith(("towards", "start")) else value for key, value in two.state_dict().items()
    }
    assert older["towards0"].shape == (15,)
    again.load_state_dict(older)
    one = ImageLevel([5])
    for i, width in ((0, 15), (1, 5)):
        one.set_directions(i, [image_head.Direction(np.full(width, 2, np.float32), 2, 3)])
    assert torch.equal(again(tensors)[1], one(tensors)[1])
