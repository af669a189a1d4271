"""DRAEM: noise of the stated frequency, textures that no longer show the image, a visible change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgad.pseudo import draem as pseudo_draem
from bgad.pseudo.draem import CHANGES, draem, noise_mask, perlin, texture
from bgad.types import FloatArray


def random_image(seed: int = 0, shape: tuple[int, int] = (48, 64), *, grey: bool = False) -> FloatArray:
    """A smooth gradient with some grain."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[: shape[0], : shape[1]] / max(shape)
    image = np.stack([rows, rows if grey else columns, rows if grey else 1 - rows], axis=-1) * 0.8  # (H, W, 3)
    return (image + rng.uniform(0, 0.2, (*shape, 1))).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(17, 70), st.integers(17, 70)),
    cells=st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8])),
    angle=st.floats(-2, 2),
    seed=st.integers(0, 1000),
)
def test_noise_stays_in_its_range(shape: tuple[int, int], cells: tuple[int, int], angle: float, seed: int) -> None:
    noise = perlin(shape, cells, np.random.default_rng(seed), angle)
    assert noise.shape == shape
    assert noise.dtype == np.float32
    assert np.abs(noise).max() <= 1 + 1e-6
    assert np.ptp(noise) > 0
    np.testing.assert_array_equal(noise, perlin(shape, cells, np.random.default_rng(seed), angle))


def test_noise_reaches_high_and_low_and_has_no_bias() -> None:
    noise = np.stack([perlin((64, 64), (4, 4), np.random.default_rng(seed)) for seed in range(60)])
    assert noise.max() > 0.8
    assert noise.min() < -0.8
    assert abs(noise.mean()) < 0.02


@pytest.mark.parametrize("cells", [(1, 1), (2, 8), (8, 2), (4, 4)])
def test_noise_is_zero_on_its_lattice_and_smooth_between(cells: tuple[int, int]) -> None:
    noise = perlin((128, 64), cells, np.random.default_rng(1))
    nodes = noise[:: 128 // cells[0], :: 64 // cells[1]]
    assert nodes.shape == cells
    assert np.abs(nodes).max() < 1e-6
    assert np.abs(noise).max() > 0.1
    assert np.abs(np.diff(noise, axis=0)).max() < 4 * cells[0] / 128
    assert np.abs(np.diff(noise, axis=1)).max() < 4 * cells[1] / 64


def test_more_cells_mean_more_waves_along_that_axis() -> None:
    def frequency(axis: int, cells: tuple[int, int], angle: float = 0.0) -> float:
        """Mean frequency of the power spectrum, in waves along the axis."""
        total = []
        for seed in range(8):
            noise = perlin((64, 64), cells, np.random.default_rng(seed), angle)
            power = (np.abs(np.fft.rfft(noise, axis=axis)) ** 2).sum(axis=1 - axis)
            total.append(float((power * np.arange(33)).sum() / power.sum()))
        return float(np.mean(total))

    along = [frequency(0, (cells, 4)) for cells in (2, 4, 8, 16)]
    for low, high in pairwise(along):
        assert 1.5 * low < high < 3 * low
    assert frequency(1, (16, 2)) < frequency(0, (16, 2)) / 3
    assert frequency(0, (16, 2), np.pi / 2) < frequency(1, (16, 2), np.pi / 2) / 3  # turned by a quarter


def test_frequencies_are_powers_of_two_that_fit_the_image() -> None:
    rng = np.random.default_rng(0)
    found = {pseudo_draem._cells((256, 48), rng) for _ in range(800)}
    assert {a for a, _ in found} == {1, 2, 4, 8, 16, 32}
    assert {b for _, b in found} == {1, 2, 4, 8}


@pytest.mark.parametrize("shape", [(32, 32), (40, 96)])
def test_the_mask_is_never_empty_and_seldom_large(shape: tuple[int, int]) -> None:
    shares = [noise_mask(shape, np.random.default_rng(seed))[0].mean() for seed in range(150)]
    assert min(shares) > 0
    assert np.mean(shares) < 0.15
    assert max(shares) < 0.6


def test_without_a_high_place_the_mask_is_the_highest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pseudo_draem, "NOISE_THRESHOLD", 2.0)
    mask, _ = noise_mask((40, 40), np.random.default_rng(0))
    assert mask.mean() == pytest.approx(0.05, abs=0.002)


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_changes_a_texture(name: str) -> None:
    image = random_image()
    for seed in range(4):
        changed = CHANGES[name](image, np.random.default_rng(seed))
        assert changed.shape == image.shape
        assert np.abs(changed - image).mean() > 0.02


def test_shuffled_blocks_keep_their_pixels() -> None:
    image = random_image(shape=(48, 64))
    mixed = pseudo_draem._shuffled(image, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(mixed.ravel()), np.sort(image.ravel()))
    assert np.abs(mixed - image).mean() > 0.1
    assert pseudo_draem._shuffled(random_image(shape=(45, 61)), np.random.default_rng(0)).shape == (45, 61, 3)


def test_textures_are_of_both_kinds_and_take_no_colour_into_grey() -> None:
    seen = set()
    for seed in range(40):
        for grey in (False, True):
            other = random_image(grey=grey)
            made, what = texture(other, np.random.default_rng(seed), 3, drawn=seed % 2 == 0)
            assert made.dtype == np.float32
            assert made.shape == other.shape
            assert 0 <= made.min() <= made.max() <= 1
            assert np.abs(made - other).mean() > 0.05
            assert (np.ptp(made, axis=2).max() < 1e-6) == grey
            names = what.split(", ")
            assert len(names) == (1 if seed % 2 == 0 else 4)
            seen.update(names)
    assert seen == {"shuffle", "stripes", "checks", "cloud", "grain", *CHANGES}


def test_opacity_lies_in_its_range_and_the_rest_is_untouched() -> None:
    normal, white = np.full((48, 48, 3), 0.2, np.float32), random_image(shape=(48, 48))
    strengths = []
    for seed in range(40):
        image, mask, steps = draem(normal, white, np.random.default_rng(seed))
        np.testing.assert_array_equal(image[~mask], normal[~mask])
        strengths.append(float(steps.rsplit(" ", 1)[1]))
        assert np.abs(image - normal)[mask].mean() >= pseudo_draem.MIN_CHANGE
    assert 0.1 <= min(strengths) < 0.3
    assert 0.8 < max(strengths) <= 1


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_flat_images_are_changed_too(level: float) -> None:
    flat = np.full((32, 32, 3), level, np.float32)
    for seed in range(30):
        image, mask, _ = draem(flat, flat, np.random.default_rng(seed), 0)
        assert mask.any()
        assert np.abs(image - flat)[mask].mean() > 0.005
