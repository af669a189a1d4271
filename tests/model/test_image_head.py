from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from bgad.model.image_head import DiscriminantDirection, ImageHead
from bgad.training.fit_image_head import DescriptorStatistics, FeatureStatistics, direction_peaks

Floats = npt.NDArray[np.float32]


def test_a_wide_backbone_is_described_by_its_means() -> None:
    head = ImageHead([900, 1200])
    assert head.mean.shape == (2100,)
    rows = [torch.rand(2, 4, 900), torch.rand(2, 4, 1200)]
    torch.testing.assert_close(head.descriptor(rows), torch.cat([r.mean(1) for r in rows], 1))


def maps(count: int, seed: int, defect: bool = False) -> Floats:
    """Feature rows (count, 40, 5); a defect moves channel 2 at four positions."""
    rows = np.random.default_rng(seed).normal(size=(count, 40, 5)).astype(np.float32)
    if defect:
        rows[:, 7:11, 2] += 5
    return rows


def test_the_head_computes_what_was_fitted() -> None:
    rows = [maps(90, 0), maps(90, 1)[:, :10]]
    tensors = [torch.from_numpy(r) for r in rows]
    head = ImageHead([5, 5])
    descriptor = head.descriptor(tensors).numpy()
    m = rows[0]
    peak = m.max(axis=1)  # of 40 positions, a fiftieth is one
    np.testing.assert_allclose(
        descriptor[:, :15], np.concatenate([m.mean(1), m.std(1), peak], axis=1), rtol=1e-4, atol=1e-6
    )
    distance, excess = head(tensors)
    assert distance.tolist() == [0.0] * 90  # not fitted yet
    assert excess.tolist() == [[0.0] * 3] * 90
    found = DescriptorStatistics(descriptor[:60])
    gaussian, (direction, _) = found.gaussian, found.direction(descriptor[60:70] + 1)
    head.set_gaussian(gaussian)
    head.set_directions(0, [direction])
    of_map = FeatureStatistics(rows[1][:60]).direction(rows[1][60:70] + 1, [None] * 10)
    head.set_directions(2, [of_map])
    distance, excess = head(tensors)
    expected = np.linalg.norm((descriptor - gaussian.mean) @ gaussian.whiten.T, axis=1)
    np.testing.assert_allclose(
        distance.numpy(), (expected - gaussian.distance_mean) / gaussian.distance_std, rtol=1e-3, atol=1e-3
    )
    place = (descriptor @ direction.vector - direction.boundary) / direction.spread
    np.testing.assert_allclose(excess[:, 0].numpy(), place, rtol=1e-3, atol=1e-3)
    assert excess[:, 1].tolist() == [0.0] * 90
    place = (direction_peaks(rows[1] @ of_map.vector) - of_map.boundary) / of_map.spread
    np.testing.assert_allclose(excess[:, 2].numpy(), place, rtol=1e-3, atol=1e-3)


def test_of_several_directions_the_largest_excess_counts() -> None:
    good, bad = maps(80, 0), [maps(6, 1, defect=True), maps(6, 2)]
    bad[1][:, 20:24, 4] += 5  # another kind of defect
    of_map = [FeatureStatistics(good).direction(kind, [None] * 6) for kind in bad]
    descriptors = ImageHead([5]).descriptor([torch.from_numpy(good)]).numpy()
    of_descriptor = [DescriptorStatistics(descriptors).direction(descriptors[:3] + shift)[0] for shift in (1, -1)]
    tensors = [torch.from_numpy(np.concatenate([good, *bad]))]

    def excess(*numbers: int) -> Floats:
        head = ImageHead([5])
        head.set_directions(0, [of_descriptor[i] for i in numbers])
        head.set_directions(1, [of_map[i] for i in numbers])
        found: Floats = head(tensors)[1].numpy()
        return found

    first, second = excess(0), excess(1)
    assert (first > second).any(axis=0).all()
    assert (second > first).any(axis=0).all()
    np.testing.assert_allclose(excess(0, 1), np.maximum(first, second), rtol=1e-3, atol=1e-4)


def test_any_number_of_directions_is_loaded() -> None:
    two = ImageHead([5])
    for i, width in ((0, 15), (1, 5)):
        two.set_directions(i, [DiscriminantDirection(np.full(width, k, np.float32), k, k + 1) for k in (1, 2)])
    tensors = [torch.from_numpy(maps(9, 0))]
    loaded = ImageHead([5])
    loaded.load_state_dict(two.state_dict())
    assert torch.equal(loaded(tensors)[1], two(tensors)[1])
