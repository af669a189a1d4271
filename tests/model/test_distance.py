"""The level of bgad-distance: the similarity to the nearest stored normal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bgad.config import Config, override, preset_for
from bgad.model.distance import DistanceLevel


def recipe(*changes: str) -> Config:
    return override(preset_for("bgad-distance", None), list(changes))


def made(channels: int, *changes: str, rows: int = 20, seed: int = 3) -> DistanceLevel:
    """An untrained level with random statistics and stored normals."""
    level = DistanceLevel(channels, (2, 3), recipe(f"distance.bank_size={rows}", *changes), seed)
    rng = np.random.default_rng(seed)
    level.mean.copy_(torch.from_numpy(rng.normal(size=channels)))
    level.std.copy_(torch.from_numpy(rng.uniform(0.5, 2, size=channels)))
    level.bank.copy_(torch.from_numpy(rng.normal(size=(rows, channels))))
    return level


def slow(level: DistanceLevel, rows: np.ndarray) -> np.ndarray:
    """The values (B, K) with one loop over features and one over stored normals."""
    w, mean, std = (x.detach().double().numpy() for x in (level.projection, level.mean, level.std))

    def unit(x: np.ndarray) -> np.ndarray:
        z = np.append(w @ ((x - mean) / std), np.sqrt(len(w)))
        projected: np.ndarray = z / np.sqrt((z**2).sum())
        return projected

    stored = [unit(x) for x in level.bank.double().numpy()]
    values = [[max(float(unit(x) @ u) for u in stored) - 1 for x in image] for image in rows]
    return level.scale * np.array(values)


def test_a_value_by_hand() -> None:
    level = DistanceLevel(1, (1, 3), recipe("distance.bank_size=2", "distance.scale=10.0"), seed=0)
    level.mean.copy_(torch.tensor([1.0]))
    level.std.copy_(torch.tensor([2.0]))
    with torch.no_grad():
        level.projection.fill_(3.0)
    level.bank.copy_(torch.tensor([[1.0], [1.5]]))  # projected to 0 and 0.75: unit vectors (0, 1) and (0.6, 0.8)
    # projected to 0, -0.75 and 4 / 3, that is (0, 1), (-0.6, 0.8) and (0.8, 0.6): cosines 1, 0.8 and 0.96
    rows = torch.tensor([[[1.0], [0.5], [1 + 8 / 9]]])
    torch.testing.assert_close(level(rows), torch.tensor([[0.0, -2.0, -0.4]]))


@pytest.mark.parametrize("changes", [[], ["distance.dimension=4"], ["distance.scale=3.0"]], ids=str)
def test_values_equal_those_of_a_slow_version(changes: list[str]) -> None:
    level = made(7, *changes)
    assert level.projection.shape == (4 if changes == ["distance.dimension=4"] else 7, 7)
    rows = np.random.default_rng(1).normal(size=(2, 6, 7)).astype(np.float32)
    with torch.no_grad():
        values = level(torch.from_numpy(rows))
        at = level(torch.from_numpy(rows[:, [4, 1]]), torch.tensor([4, 1]))
        exported = level.for_export()(torch.from_numpy(rows).transpose(1, 2).reshape(2, 7, 2, 3))
    np.testing.assert_allclose(values, slow(level, rows), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(at, values[:, [4, 1]], rtol=1e-5, atol=1e-5)  # the position does not matter
    np.testing.assert_allclose(exported.flatten(1), values, rtol=1e-4, atol=1e-4)
    assert (values <= 0).all()


def test_untrained_it_is_plain_nearest_neighbours() -> None:
    """Every seed starts with the cosines of the standardised features and a constant, if no dimension is dropped."""
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 6, 5)).astype(np.float32))
    level = made(5)
    constant = {6: torch.full((6, 1), 5**0.5), 20: torch.full((20, 1), 5**0.5)}
    x, bank = (torch.cat([(r - level.mean) / level.std, constant[len(r)]], 1) for r in (rows[0], level.bank))
    cosines = torch.nn.functional.cosine_similarity(x[:, None], bank[None], dim=-1)  # (6, 20)
    for seed in range(3):
        other = DistanceLevel(5, (2, 3), recipe("distance.bank_size=20"), seed)
        other.load_state_dict({k: v for k, v in level.state_dict().items() if k != "projection"}, strict=False)
        with torch.no_grad():
            torch.testing.assert_close(other(rows)[0], level.scale * (cosines.amax(1) - 1), rtol=1e-4, atol=1e-4)


def test_noise_around_the_mean_is_normal() -> None:
    """A plain background has features near the mean; the direction of their noise must not matter."""
    level = made(8)
    level.bank.copy_(level.mean + 0.01 * torch.randn(20, 8, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        background = level(level.mean + 0.01 * torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(1)))
        defect = level(level.mean + 3 * level.std.expand(1, 1, 8))
    assert background.min() > -0.01
    assert defect.max() < -5


def test_a_stored_normal_has_the_highest_value() -> None:
    level = made(6)
    with torch.no_grad():
        torch.testing.assert_close(level(level.bank[None]), torch.zeros(1, 20), rtol=0, atol=1e-5)


def test_the_gradient_reaches_the_projection() -> None:
    """Through the feature and through its stored neighbour, against finite differences."""
    level = made(4, "distance.dimension=3", rows=5).double()
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(1, 6, 4)))

    def values(projection: Any) -> Any:
        return torch.func.functional_call(level, {"projection": projection}, (rows,))

    start = level.projection.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(values, (start,))
    (gradient,) = torch.autograd.grad(values(start).sum(), start)
    assert gradient.abs().max() > 1e-3
    assert [name for name, _ in level.named_parameters()] == ["projection"]  # the bank itself is not trained
