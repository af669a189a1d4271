"""RPAG: image and mask move together, randomness comes from the generator alone, pasting keeps to its place."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bgad.errors import ConfigError
from bgad.pseudo.rpag import PHOTOMETRIC, TRANSFORMS, augment, cut, foreground, paste, rpag
from bgad.types import BoolArray, FloatArray
from tests.pseudo.scenes import disc, iou, red, scene

GEOMETRIC = sorted(set(TRANSFORMS) - set(PHOTOMETRIC))


def test_the_nine_transforms_of_the_paper() -> None:
    names = "flip rotate transpose noise distortion brightness sharpness translate blur"
    assert list(TRANSFORMS) == names.split()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometry_moves_image_and_mask_together(name: str, seed: int) -> None:
    image, mask = scene()
    moved, moved_mask = TRANSFORMS[name](image, mask, np.random.default_rng(seed))
    assert moved_mask.dtype == bool
    assert moved.dtype == np.float32
    assert moved.shape == (*moved_mask.shape, 3)
    assert iou(red(moved), moved_mask) > 0.8
    if moved_mask.shape == mask.shape:
        assert iou(mask, moved_mask) < 0.98  # it really moved


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", PHOTOMETRIC)
def test_photometry_changes_the_image_and_leaves_the_mask(name: str, seed: int) -> None:
    image, mask = scene()
    before = image.copy(), mask.copy()
    changed, same = TRANSFORMS[name](image, mask, np.random.default_rng(seed))
    assert changed.dtype == np.float32
    assert changed.min() >= 0
    assert changed.max() <= 1
    assert np.abs(changed - image).mean() > 0.005
    np.testing.assert_array_equal(same, mask)
    np.testing.assert_array_equal(image, before[0])  # the input is not touched
    np.testing.assert_array_equal(mask, before[1])


def test_photometry_has_the_stated_direction() -> None:
    image, mask = scene()
    grain = image[:30, :, 0].std()
    for seed in range(3):
        blurred, _ = TRANSFORMS["blur"](image, mask, np.random.default_rng(seed))
        sharp, _ = TRANSFORMS["sharpness"](image, mask, np.random.default_rng(seed))
        noisy, _ = TRANSFORMS["noise"](image, mask, np.random.default_rng(seed))
        assert blurred[:30, :, 0].std() < 0.9 * grain
        assert sharp[:30, :, 0].std() > 1.1 * grain
        np.testing.assert_allclose(noisy[0, :, 0], noisy[0, :, 2], atol=1e-6)  # grey grain on grey


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_take_images_that_are_not_square(name: str) -> None:
    image, mask = scene(72, 130)
    moved, moved_mask = TRANSFORMS[name](image, mask, np.random.default_rng(1))
    assert moved.shape == (*moved_mask.shape, 3)
    assert iou(red(moved), moved_mask) > 0.8
    if name == "transpose":
        np.testing.assert_array_equal(moved_mask, mask.T)


def test_flip_goes_both_ways() -> None:
    image, mask = scene()
    flips = [TRANSFORMS["flip"](image, mask, np.random.default_rng(seed))[1] for seed in range(20)]
    assert any((flip == mask[::-1]).all() for flip in flips)
    assert any((flip == mask[:, ::-1]).all() for flip in flips)


@pytest.mark.parametrize("count", range(10))
def test_augment_takes_that_many_different_transforms(count: int) -> None:
    image, mask = scene()
    _, moved_mask, names = augment(image, mask, np.random.default_rng(count), count)
    assert len(names) == len(set(names)) == count
    assert set(names) <= set(TRANSFORMS)
    assert moved_mask.any()


def test_augment_uses_all_transforms_in_any_order_and_refuses_more() -> None:
    image, mask = scene()
    drawn = [augment(image, mask, np.random.default_rng(seed), 2)[2] for seed in range(60)]
    assert {name for names in drawn for name in names} == set(TRANSFORMS)
    assert len(set(drawn)) > 30
    with pytest.raises(ConfigError, match="10 transforms"):
        augment(image, mask, np.random.default_rng(0), 10)


def test_augment_falls_back_when_the_defect_keeps_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
        return image, np.zeros_like(mask)

    for name in GEOMETRIC:
        monkeypatch.setitem(TRANSFORMS, name, lose)
    image, mask = scene()
    for seed in range(8):
        changed, same, names = augment(image, mask, np.random.default_rng(seed), 3)
        assert set(names) <= set(PHOTOMETRIC)
        assert not np.array_equal(changed, image)
        np.testing.assert_array_equal(same, mask)


def test_chance_comes_from_the_given_generator_alone() -> None:
    image, mask = scene()
    normal, _ = disc(96, inside=0.8, outside=0.1)
    torch_before = torch.get_rng_state()
    legacy = str(np.random.get_state())
    python = random.getstate()
    results = []
    for trial in range(2):
        results.append([rpag(normal, image, mask, np.random.default_rng(s), 9) for s in range(3)])
        if trial == 0:
            assert torch.equal(torch.get_rng_state(), torch_before)
            assert str(np.random.get_state()) == legacy
            assert random.getstate() == python
            with torch.random.fork_rng():
                torch.manual_seed(99)
                torch.rand(3)
    for (one, one_mask, _), (two, two_mask, _) in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one_mask, two_mask)
    assert not np.array_equal(results[0][0][1], results[0][1][1])  # another seed, another result


def two_regions() -> BoolArray:
    mask = np.zeros((96, 96), bool)
    mask[5:9, 10:20] = True
    mask[80:90, 70:72] = True
    return mask


def test_cut_takes_the_bounding_box_of_all_regions() -> None:
    image, _ = scene()
    mask = two_regions()
    patch, patch_mask = cut(image, mask)
    np.testing.assert_array_equal(patch, image[5:90, 10:72])
    np.testing.assert_array_equal(patch_mask, mask[5:90, 10:72])


@settings(max_examples=100, deadline=None)
@given(
    patch_mask=hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9)),
    centre=st.tuples(st.integers(-12, 60), st.integers(-12, 60)),
    seed=st.integers(0, 9),
)
def test_paste_keeps_to_its_place(patch_mask: BoolArray, centre: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    normal = rng.uniform(0, 1, (48, 40, 3)).astype(np.float32)
    patch = rng.uniform(0, 1, (*patch_mask.shape, 3)).astype(np.float32)
    image, mask = paste(normal, patch, patch_mask, centre)
    expected = np.zeros((48, 40), bool)
    full = np.zeros((148, 140), bool)
    colours = np.zeros((148, 140, 3), np.float32)
    top, left = 50 + centre[0] - patch_mask.shape[0] // 2, 50 + centre[1] - patch_mask.shape[1] // 2
    box = np.s_[top : top + patch_mask.shape[0], left : left + patch_mask.shape[1]]
    full[box], colours[box] = patch_mask, patch
    expected = full[50:98, 50:90]
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(image[mask], colours[50:98, 50:90][mask])
    np.testing.assert_array_equal(image[~mask], normal[~mask])


def close_regions() -> tuple[FloatArray, BoolArray, FloatArray]:
    """An anomaly of noise with two regions near each other, and a normal with an object in the middle."""
    abnormal = np.random.default_rng(4).uniform(0.2, 0.4, (96, 96, 3)).astype(np.float32)
    mask = np.zeros((96, 96), bool)
    mask[5:9, 10:20] = mask[12:22, 14:16] = True
    normal = np.full((96, 96, 3), 0.9, np.float32)
    normal[32:64, 32:64] = 0.5
    return abnormal, mask, normal


def test_rpag_pastes_the_exact_pixels_of_all_regions() -> None:
    """As printed: the defect is cut out by its mask and pasted, all of it and nothing around it."""
    abnormal, mask, normal = close_regions()
    for seed in range(20):
        image, pasted, _ = rpag(normal, abnormal, mask, np.random.default_rng(seed), 0)
        np.testing.assert_array_equal(cut(image, pasted)[1], mask[5:22, 10:20])  # both regions, always
        np.testing.assert_array_equal(image[pasted], abnormal[mask])
        np.testing.assert_array_equal(image[~pasted], normal[~pasted])  # no blended rim


@settings(max_examples=30, deadline=None)
@given(
    mask=hnp.arrays(bool, st.tuples(st.integers(6, 40), st.integers(6, 40))).filter(lambda m: bool(m.any())),
    seed=st.integers(0, 2**31),
    count=st.integers(0, 9),
)
def test_rpag_always_shows_a_defect_on_the_object(mask: BoolArray, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    abnormal = rng.uniform(0, 1, (*mask.shape, 3)).astype(np.float32)
    normal, _ = disc(48, inside=0.9, outside=0.2)
    image, pasted, _ = rpag(normal, abnormal, mask, rng, count)
    assert image.shape == normal.shape
    assert image.dtype == np.float32
    assert pasted.shape == normal.shape[:2]
    assert (pasted & foreground(normal)).any()
    assert np.isfinite(image).all()
    assert image.min() >= 0
    assert image.max() <= 1 + 1e-6


def test_rpag_places_the_middle_of_a_defect_on_the_object_and_all_over_it() -> None:
    abnormal = np.zeros((128, 128, 3), np.float32)
    mask = np.zeros((128, 128), bool)
    mask[3:8, 3:8] = True
    normal, truth = disc(inside=0.9, outside=0.3)
    centres = []
    for seed in range(60):
        _, pasted, _ = rpag(normal, abnormal, mask, np.random.default_rng(seed), 0)
        centres.append(np.argwhere(pasted).mean(axis=0).round().astype(int))
    rows, columns = np.array(centres).T
    assert truth[rows, columns].all()
    assert np.ptp(rows) > 40
    assert np.ptp(columns) > 40


def test_rpag_shows_a_bent_defect_with_an_empty_middle() -> None:
    corner = np.zeros((96, 96), bool)
    corner[:90, :3] = corner[:3, :90] = True
    normal = np.full((96, 96, 3), 0.1, np.float32)
    normal[80:88, 80:88] = 0.9  # an object much smaller than the hollow of the defect
    for seed in range(10):
        _, pasted, _ = rpag(normal, np.ones_like(normal), corner, np.random.default_rng(seed), 0)
        assert pasted[80:88, 80:88].any()


@pytest.mark.parametrize(("inside", "outside"), [(0.8, 0.1), (0.2, 0.9), (0.55, 0.35)])
def test_foreground_is_the_object_on_dark_and_on_bright_ground(inside: float, outside: float) -> None:
    image, truth = disc(inside=inside, outside=outside)
    assert iou(foreground(image), truth) > 0.98


def test_foreground_drops_specks_and_fills_pinholes() -> None:
    image, truth = disc(inside=0.8, outside=0.1)
    image[10:12, 100:103] = 1.0  # dust
    image[70:72, 56:59] = 0.0  # glare on the object
    found = foreground(image)
    assert not found[10:12, 100:103].any()
    assert found[70:72, 56:59].all()
    assert iou(found, truth) > 0.98


def test_foreground_of_a_texture_or_a_flat_image_is_everything() -> None:
    rng = np.random.default_rng(2)
    grain = np.repeat(rng.uniform(0, 1, (96, 128, 1)), 3, axis=2).astype(np.float32)
    rows, columns = np.mgrid[:96, :128]
    weave = np.repeat(((rows // 6 + columns // 6) % 2)[..., None], 3, axis=2).astype(np.float32) * 0.5 + 0.2
    strip = np.full((96, 128, 3), 0.3, np.float32)
    strip[:, -8:] = 0.9  # the table beside the cloth
    flat = np.full((96, 128, 3), 0.5, np.float32)
    for picture in (grain, weave, strip, flat):
        assert foreground(picture).all()
