"""NSA's way: an exact Poisson solve, patches on the object, a mask of what really changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import fft, sparse
from scipy.sparse.linalg import spsolve

from bgad.pseudo import nsa as pseudo_nsa
from bgad.pseudo.nsa import MIN_PIXEL_CHANGE, blend, changed_region, nsa, solve_poisson
from bgad.types import BoolArray, FloatArray


def laplacian(h: int, w: int) -> sparse.csc_matrix:
    """The five-point Laplacian of an (h, w) rectangle with zeros around it."""
    rows, columns = (sparse.diags([1.0, -2.0, 1.0], [-1, 0, 1], shape=(n, n)) for n in (h, w))
    return sparse.csc_matrix(sparse.kron(rows, sparse.eye(w)) + sparse.kron(sparse.eye(h), columns))


def noise(h: int, w: int, seed: int, low: float = 0.3, high: float = 0.6) -> FloatArray:
    return np.random.default_rng(seed).uniform(low, high, (h, w, 3)).astype(np.float32)


def textured(seed: int, size: int = 64) -> FloatArray:
    """A bright square with stripes on a dark ground."""
    rng = np.random.default_rng(seed)
    image = np.full((size, size), 0.1)
    part = np.s_[size // 4 : 3 * size // 4, size // 4 : 3 * size // 4]
    rows = np.arange(size // 2)[:, None]
    image[part] = 0.6 + 0.3 * np.sin(rows / 2 + rng.uniform(0, 6)) * np.ones(size // 2)
    return np.repeat(image[..., None], 3, axis=2).astype(np.float32)


def object_of(image: FloatArray) -> BoolArray:
    return np.asarray(image[..., 0] > 0.2)


@pytest.mark.parametrize("shape", [(5, 8), (1, 4), (1, 1)])
def test_the_sine_transform_is_scipys(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    for axis in (0, 1):
        np.testing.assert_allclose(
            pseudo_nsa._sine_transform(values, axis), fft.dst(values, type=1, axis=axis), atol=1e-12
        )


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (12, 5), (31, 40)])
def test_the_solver_agrees_with_a_sparse_solve(shape: tuple[int, int]) -> None:
    source = np.random.default_rng(1).normal(size=(*shape, 3))
    found = solve_poisson(source)
    for channel in range(3):
        truth = spsolve(laplacian(*shape), source[..., channel].ravel()).reshape(shape)
        np.testing.assert_allclose(found[..., channel], truth, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(h=st.integers(3, 20), w=st.integers(3, 20), seed=st.integers(0, 99), mixed=st.booleans())
def test_blend_is_the_solution_of_the_poisson_equation(h: int, w: int, seed: int, mixed: bool) -> None:
    """Written the long way: edge by edge, the rim as known values on the right-hand side."""
    target, patch = noise(h, w, seed, 0.45, 0.55), noise(h, w, seed + 100, 0.45, 0.55)
    made = blend(target, patch, mixed=mixed)
    a, b = target[..., 0].astype(float), patch[..., 0].astype(float)
    right = np.zeros((h - 2, w - 2))
    for i in range(1, h - 1):
        for j in range(1, w - 1):
            for k, m in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                own, wanted = a[k, m] - a[i, j], b[k, m] - b[i, j]
                right[i - 1, j - 1] += own if mixed and abs(own) > abs(wanted) else wanted
                if k in (0, h - 1) or m in (0, w - 1):
                    right[i - 1, j - 1] -= a[k, m]
    truth = a.copy()
    truth[1:-1, 1:-1] = spsolve(laplacian(h - 2, w - 2), right.ravel()).reshape(h - 2, w - 2)
    np.testing.assert_allclose(made[..., 0], np.clip(truth, 0, 1), atol=1e-6)


@pytest.mark.parametrize("mixed", [False, True])
def test_blend_keeps_the_rim_and_forgets_the_offset_of_the_patch(mixed: bool) -> None:
    target, patch = noise(14, 19, 0), noise(14, 19, 1)
    made = blend(target, patch, mixed=mixed)
    assert made.dtype == np.float32
    rim = np.ones((14, 19), bool)
    rim[1:-1, 1:-1] = False
    np.testing.assert_array_equal(made[rim], target[rim])
    assert np.abs(made - target)[~rim].mean() > 0.01
    np.testing.assert_allclose(blend(target, patch + np.float32(0.25), mixed=mixed), made, atol=1e-6)
    np.testing.assert_allclose(blend(target, target + np.float32(0.1), mixed=mixed), target, atol=1e-6)


def test_mixed_gradients_keep_what_the_target_has() -> None:
    flat = np.full((20, 20, 3), 0.4, np.float32)
    edge = flat.copy()
    edge[:, 10:] = 0.8
    np.testing.assert_allclose(blend(edge, flat, mixed=True), edge, atol=1e-6)
    washed = blend(edge, flat, mixed=False)  # the flat patch smooths the edge away
    assert np.abs(np.diff(washed[10, 1:-1, 0])).max() < 0.1


def test_sides_are_a_share_of_the_object() -> None:
    region = np.zeros((200, 300), bool)
    region[20:120, 50:250] = True
    rng = np.random.default_rng(0)
    sides = np.array([pseudo_nsa._sides(region, rng) for _ in range(600)])
    assert sides.min(axis=0).tolist() <= [8, 16]
    assert sides.max(axis=0).tolist() == [40, 80]
    assert sides[:, 0].mean() == pytest.approx(100 * 0.243, rel=0.06)  # of a gamma distribution that ends at 0.4


def test_boxes_lie_inside_and_touch_the_object() -> None:
    region = np.zeros((30, 40), bool)
    region[0, 39] = region[15, 3] = True
    for seed in range(40):
        top, left, height, width = pseudo_nsa._box(region, (12, 9), np.random.default_rng(seed))
        assert (height, width) == (12, 9)
        assert 0 <= top <= 30 - 12
        assert 0 <= left <= 40 - 9
        assert region[top : top + 12, left : left + 9].any()


def test_the_mask_has_no_specks_and_no_pinholes() -> None:
    before = np.full((64, 64, 3), 0.5, np.float32)
    after = before.copy()
    after[10:20, 10:20] += 0.2
    after[14, 14] = 0.5  # a pinhole
    after[40, 40] += 0.2  # a speck
    after[50:60, 50:60] += MIN_PIXEL_CHANGE / 2  # too little
    mask = changed_region(before, after)
    truth = np.zeros((64, 64), bool)
    truth[10:20, 10:20] = True
    np.testing.assert_array_equal(mask, truth)


def test_patches_lie_on_the_object_and_vary_in_number() -> None:
    numbers: set[int] = set()
    modes: set[bool] = set()
    for seed in range(30):
        normal, other = textured(seed), textured(seed + 50)
        image, mask, steps = nsa(normal, other, object_of(normal), object_of(other), np.random.default_rng(seed))
        change = np.abs(image - normal).mean(axis=2)
        assert change[mask].mean() > MIN_PIXEL_CHANGE
        assert change[~mask].max() <= MIN_PIXEL_CHANGE
        assert (mask & object_of(normal)).any()
        numbers.add(len(steps.split(", ")))
        modes.update("mixed" in step for step in steps.split(", "))
    assert numbers == {1, 2, 3, 4}
    assert modes == {False, True}


def test_a_faint_change_is_marked_where_it_is_largest() -> None:
    normal, other = noise(48, 48, 0, 0.5, 0.5), noise(48, 48, 1, 0.48, 0.52)
    everywhere = np.ones((48, 48), bool)
    for seed in range(10):
        image, mask, steps = nsa(normal, other, everywhere, everywhere, np.random.default_rng(seed))
        change = np.abs(image - normal).mean(axis=2)
        assert 0 < change.max() < MIN_PIXEL_CHANGE
        assert mask[np.unravel_index(change.argmax(), change.shape)]
        assert change[mask].min() > change[~mask].max()
        assert "x" in steps


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_flat_images_are_changed_too(level: float) -> None:
    flat = np.full((32, 32, 3), level, np.float32)
    everywhere = np.ones((32, 32), bool)
    for seed in range(5):
        image, mask, steps = nsa(flat, flat, everywhere, everywhere, np.random.default_rng(seed))
        assert steps == "brightness"
        assert mask.sum() >= 25
        np.testing.assert_allclose(np.abs(image - flat)[mask], 0.2, atol=1e-6)
        np.testing.assert_array_equal(image[~mask], flat[~mask])
        assert 0 <= image.min() <= image.max() <= 1
