"""Pseudo anomalies: image and mask move together, chance comes from the seed, pasting keeps to its place."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from bgad.config import PSEUDO_METHODS, from_dict
from bgad.errors import ConfigError, DataError
from bgad.pseudo import rpag as pseudo
from bgad.types import BoolArray, FloatArray, Sample

GEOMETRIC = sorted(set(pseudo.TRANSFORMS) - set(pseudo.PHOTOMETRIC))
RED = np.array([1.0, 0.0, 0.0], np.float32)


def scene(height: int = 96, width: int = 96) -> tuple[FloatArray, BoolArray]:
    """A grey picture with fine grain and a red blob, lopsided on purpose, exactly where the mask is."""
    grain = np.random.default_rng(5).uniform(0.4, 0.6, (height, width, 1))
    image = np.repeat(grain, 3, axis=2).astype(np.float32)
    mask = np.zeros((height, width), bool)
    mask[36:60, 30:44] = mask[50:60, 30:62] = True
    image[mask] = RED
    return image, mask


def red(image: FloatArray) -> BoolArray:
    return (image[..., 0] - image[..., 1]) > 0.5


def iou(a: BoolArray, b: BoolArray) -> float:
    return float((a & b).sum() / (a | b).sum())


def disc(size: int = 128, *, inside: float, outside: float) -> tuple[FloatArray, BoolArray]:
    rows, columns = np.mgrid[:size, :size]
    truth = (rows - size * 0.55) ** 2 + (columns - size * 0.45) ** 2 < (size * 0.25) ** 2
    grey = np.where(truth, inside, outside) + np.random.default_rng(0).normal(0, 0.02, (size, size))
    return np.repeat(np.clip(grey, 0, 1)[..., None], 3, axis=2).astype(np.float32), truth


def test_the_nine_transforms_of_the_paper() -> None:
    names = "flip rotate transpose noise distortion brightness sharpness translate blur"
    assert list(pseudo.TRANSFORMS) == names.split()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GEOMETRIC)
def test_geometry_moves_image_and_mask_together(name: str, seed: int) -> None:
    image, mask = scene()
    moved, moved_mask = pseudo.TRANSFORMS[name](image, mask, np.random.default_rng(seed))
    assert moved_mask.dtype == bool
    assert moved.dtype == np.float32
    assert moved.shape == (*moved_mask.shape, 3)
    assert iou(red(moved), moved_mask) > 0.8
    if moved_mask.shape == mask.shape:
        assert iou(mask, moved_mask) < 0.98  # it really moved


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", pseudo.PHOTOMETRIC)
def test_photometry_changes_the_image_and_leaves_the_mask(name: str, seed: int) -> None:
    image, mask = scene()
    before = image.copy(), mask.copy()
    changed, same = pseudo.TRANSFORMS[name](image, mask, np.random.default_rng(seed))
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
        blurred, _ = pseudo.TRANSFORMS["blur"](image, mask, np.random.default_rng(seed))
        sharp, _ = pseudo.TRANSFORMS["sharpness"](image, mask, np.random.default_rng(seed))
        noisy, _ = pseudo.TRANSFORMS["noise"](image, mask, np.random.default_rng(seed))
        assert blurred[:30, :, 0].std() < 0.9 * grain
        assert sharp[:30, :, 0].std() > 1.1 * grain
        np.testing.assert_allclose(noisy[0, :, 0], noisy[0, :, 2], atol=1e-6)  # grey grain on grey


@pytest.mark.parametrize("name", pseudo.TRANSFORMS)
def test_transforms_take_pictures_that_are_not_square(name: str) -> None:
    image, mask = scene(72, 130)
    moved, moved_mask = pseudo.TRANSFORMS[name](image, mask, np.random.default_rng(1))
    assert moved.shape == (*moved_mask.shape, 3)
    assert iou(red(moved), moved_mask) > 0.8
    if name == "transpose":
        np.testing.assert_array_equal(moved_mask, mask.T)


def test_flip_goes_both_ways() -> None:
    image, mask = scene()
    flips = [pseudo.TRANSFORMS["flip"](image, mask, np.random.default_rng(seed))[1] for seed in range(20)]
    assert any((flip == mask[::-1]).all() for flip in flips)
    assert any((flip == mask[:, ::-1]).all() for flip in flips)


@pytest.mark.parametrize("count", range(10))
def test_augment_takes_that_many_different_transforms(count: int) -> None:
    image, mask = scene()
    _, moved_mask, names = pseudo.augment(image, mask, np.random.default_rng(count), count)
    assert len(names) == len(set(names)) == count
    assert set(names) <= set(pseudo.TRANSFORMS)
    assert moved_mask.any()


def test_augment_uses_all_transforms_in_any_order_and_refuses_more() -> None:
    image, mask = scene()
    drawn = [pseudo.augment(image, mask, np.random.default_rng(seed), 2)[2] for seed in range(60)]
    assert {name for names in drawn for name in names} == set(pseudo.TRANSFORMS)
    assert len(set(drawn)) > 30
    with pytest.raises(ConfigError, match="10 transforms"):
        pseudo.augment(image, mask, np.random.default_rng(0), 10)


def test_augment_falls_back_when_the_defect_keeps_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(image: FloatArray, mask: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
        return image, np.zeros_like(mask)

    for name in GEOMETRIC:
        monkeypatch.setitem(pseudo.TRANSFORMS, name, lose)
    image, mask = scene()
    for seed in range(8):
        changed, same, names = pseudo.augment(image, mask, np.random.default_rng(seed), 3)
        assert set(names) <= set(pseudo.PHOTOMETRIC)
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
        results.append([pseudo.rpag(normal, image, mask, np.random.default_rng(s), 9) for s in range(3)])
        if trial == 0:
            assert torch.equal(torch.get_rng_state(), torch_before)
            assert str(np.random.get_state()) == legacy
            assert random.getstate() == python
            with torch.random.fork_rng():
                torch.manual_seed(99)
                torch.rand(3)
    for (one, one_mask), (two, two_mask) in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one_mask, two_mask)
    assert not np.array_equal(results[0][0][1], results[0][1][1])  # another seed, another result


@pytest.mark.parametrize(("inside", "outside"), [(0.8, 0.1), (0.2, 0.9), (0.55, 0.35)])
def test_foreground_is_the_object_on_dark_and_on_bright_ground(inside: float, outside: float) -> None:
    image, truth = disc(inside=inside, outside=outside)
    assert iou(pseudo.foreground(image), truth) > 0.98


def test_foreground_drops_specks_and_fills_pinholes() -> None:
    image, truth = disc(inside=0.8, outside=0.1)
    image[10:12, 100:103] = 1.0  # dust
    image[70:72, 56:59] = 0.0  # glare on the object
    found = pseudo.foreground(image)
    assert not found[10:12, 100:103].any()
    assert found[70:72, 56:59].all()
    assert iou(found, truth) > 0.98


def test_foreground_of_a_texture_or_a_flat_picture_is_everything() -> None:
    rng = np.random.default_rng(2)
    grain = np.repeat(rng.uniform(0, 1, (96, 128, 1)), 3, axis=2).astype(np.float32)
    rows, columns = np.mgrid[:96, :128]
    weave = np.repeat(((rows // 6 + columns // 6) % 2)[..., None], 3, axis=2).astype(np.float32) * 0.5 + 0.2
    strip = np.full((96, 128, 3), 0.3, np.float32)
    strip[:, -8:] = 0.9  # the table beside the cloth
    flat = np.full((96, 128, 3), 0.5, np.float32)
    for picture in (grain, weave, strip, flat):
        assert pseudo.foreground(picture).all()


def test_cut_takes_the_bounding_box_of_all_regions_or_of_one() -> None:
    image, _ = scene()
    mask = np.zeros((96, 96), bool)
    mask[5:9, 10:20] = True
    mask[80:90, 70:72] = True
    shapes = set()
    for seed in range(40):
        patch, patch_mask = pseudo.cut(image, mask, np.random.default_rng(seed))
        assert patch.shape == (*patch_mask.shape, 3)
        shapes.add(patch_mask.shape)
        if patch_mask.shape == (4, 10):
            np.testing.assert_array_equal(patch, image[5:9, 10:20])
            assert patch_mask.all()
        if patch_mask.shape == (85, 62):
            np.testing.assert_array_equal(patch_mask, mask[5:90, 10:72])
    assert shapes == {(4, 10), (10, 2), (85, 62)}


def ring(mask: BoolArray) -> BoolArray:
    """The mask and the pixels next to it."""
    padded = np.pad(mask, 1)
    grown = np.zeros_like(mask)
    for dy in range(3):
        for dx in range(3):
            grown |= padded[dy : dy + mask.shape[0], dx : dx + mask.shape[1]]
    return grown


centres = st.tuples(st.integers(-12, 60), st.integers(-12, 60))


@settings(max_examples=100, deadline=None)
@given(
    patch_mask=hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9)),
    centre=centres,
    seed=st.integers(0, 9),
)
def test_paste_keeps_to_its_place(patch_mask: BoolArray, centre: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    normal = rng.uniform(0, 1, (48, 40, 3)).astype(np.float32)
    patch = rng.uniform(0, 1, (*patch_mask.shape, 3)).astype(np.float32)
    image, mask = pseudo.paste(normal, patch, patch_mask, centre)
    expected = np.zeros((48, 40), bool)
    full = np.zeros((148, 140), bool)
    colours = np.zeros((148, 140, 3), np.float32)
    top, left = 50 + centre[0] - patch_mask.shape[0] // 2, 50 + centre[1] - patch_mask.shape[1] // 2
    box = np.s_[top : top + patch_mask.shape[0], left : left + patch_mask.shape[1]]
    full[box], colours[box] = patch_mask, patch
    expected = full[50:98, 50:90]
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(image[mask], colours[50:98, 50:90][mask])
    beyond = ~ring(full)[50:98, 50:90]
    np.testing.assert_array_equal(image[beyond], normal[beyond])


def test_paste_softens_the_seam() -> None:
    normal = np.zeros((20, 20, 3), np.float32)
    image, mask = pseudo.paste(normal, np.ones((4, 4, 3), np.float32), np.ones((4, 4), bool), (10, 10))
    assert mask.sum() == 16
    np.testing.assert_allclose(image[10, 6:14, 0], [0, 1 / 3, 1, 1, 1, 1, 1 / 3, 0], atol=1e-6)
    assert image[7, 7, 0] == pytest.approx(1 / 9)
    assert not normal.any()


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
    image, pasted = pseudo.rpag(normal, abnormal, mask, rng, count)
    assert image.shape == normal.shape
    assert image.dtype == np.float32
    assert pasted.shape == normal.shape[:2]
    assert (pasted & pseudo.foreground(normal)).any()
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
        _, pasted = pseudo.rpag(normal, abnormal, mask, np.random.default_rng(seed), 0)
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
        _, pasted = pseudo.rpag(normal, np.ones_like(normal), corner, np.random.default_rng(seed), 0)
        assert pasted[80:88, 80:88].any()


def write(path: Path, image: FloatArray | BoolArray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((image * 255).astype(np.uint8)).save(path)
    return path


@pytest.fixture
def plant(tmp_path: Path) -> tuple[list[Sample], list[Sample]]:
    normals = []
    for number, inside in enumerate((0.7, 0.8, 0.9)):
        path = write(tmp_path / f"train/good/{number}.png", disc(80, inside=inside, outside=0.1)[0])
        normals.append(Sample(path, f"train/good/{number}.png", 0))
    known = []
    for number in range(2):
        image, mask = scene(72 + number, 130)
        path = write(tmp_path / f"test/crack/{number}.png", image)
        marked = write(tmp_path / f"ground_truth/crack/{number}.png", mask)
        known.append(Sample(path, f"test/crack/{number}.png", 1, "crack", marked))
    return normals, known


def test_generate_is_a_series_fixed_by_the_seed(
    plant: tuple[list[Sample], list[Sample]],
) -> None:
    normals, known = plant
    four = list(pseudo.generate(normals, known, 4, seed=3, size=(64, 48)))
    two = list(pseudo.generate(normals, known, 2, seed=3, size=(64, 48)))
    third = pseudo.pseudo_anomaly(2, normals, known, seed=3, size=(64, 48))
    other = list(pseudo.generate(normals, known, 4, seed=4, size=(64, 48)))
    assert len(four) == 4
    for (image, mask, text), (same, same_mask, same_text) in zip(four, [*two, third], strict=False):
        assert image.shape == (64, 48, 3)
        assert image.dtype == np.float32
        assert mask.shape == (64, 48)
        assert mask.any()
        np.testing.assert_array_equal(image, same)
        np.testing.assert_array_equal(mask, same_mask)
        assert text == same_text
    assert [text.split(" on ")[0] for _, _, text in four] == ["crack/0.png", "crack/1.png"] * 2
    for _, _, text in four:
        picture, steps = text.split(" on ")[1].split(": ")
        assert picture in {"good/0.png", "good/1.png", "good/2.png"}
        assert len(set(steps.split(", ")) & set(pseudo.TRANSFORMS)) == 3
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(four, other, strict=True))
    assert not np.array_equal(four[0][1], four[2][1])  # the same known anomaly, made anew


@pytest.mark.parametrize("transforms", [0, 1, 5])
def test_generate_passes_the_number_of_transforms_on(plant: tuple[list[Sample], list[Sample]], transforms: int) -> None:
    _, _, text = next(pseudo.generate(*plant, 1, seed=0, size=(32, 32), transforms=transforms))
    steps = text.split(": ")[1].split(", ")
    assert len(steps) == transforms if transforms else steps == ["unchanged"]


def test_generate_keeps_a_defect_that_is_too_small_for_the_size(
    plant: tuple[list[Sample], list[Sample]], tmp_path: Path
) -> None:
    normals, _ = plant
    mask = np.zeros((256, 256), bool)
    mask[100, 101] = True
    image = np.full((256, 256, 3), 0.5, np.float32)
    write(tmp_path / "dot.png", image)
    write(tmp_path / "dot_mask.png", mask)
    dot = Sample(tmp_path / "dot.png", "dot/dot.png", 1, "dot", tmp_path / "dot_mask.png")
    for _, pasted, _ in pseudo.generate(normals, [dot], 5, seed=0, size=(32, 32)):
        assert 1 <= pasted.sum() <= 6


def test_generate_says_what_is_missing(plant: tuple[list[Sample], list[Sample]], tmp_path: Path) -> None:
    normals, known = plant
    empty = write(tmp_path / "empty.png", np.zeros((72, 130), bool))
    unmarked = Sample(known[0].path, known[0].name, 1, "crack")
    blank = Sample(known[0].path, known[0].name, 1, "crack", empty)
    with pytest.raises(ConfigError, match=r"unknown way .* nsb; choose from rpag, draem, nsa"):
        pseudo.generate(normals, known, 1, seed=0, size=(32, 32), method="nsb")
    with pytest.raises(DataError, match=r"rpag cuts .* with masks: give at least one"):
        pseudo.generate(normals, [], 1, seed=0, size=(32, 32))
    for method in pseudo.PSEUDO:
        with pytest.raises(DataError, match="on normal images: give at least one"):
            pseudo.generate([], known, 1, seed=0, size=(32, 32), method=method)
    with pytest.raises(DataError, match=r"crack/0\.png has no mask"):
        next(pseudo.generate(normals, [unmarked], 1, seed=0, size=(32, 32)))
    with pytest.raises(DataError, match=r"empty\.png marks no pixel"):
        next(pseudo.generate(normals, [blank], 1, seed=0, size=(32, 32)))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("method", pseudo.PSEUDO)
def test_every_way_changes_the_picture_where_the_mask_says(method: str, seed: int) -> None:
    normal = disc(96, inside=0.8, outside=0.1)[0][:72]
    donor, part = scene(72, 96)
    before = normal.copy(), donor.copy(), part.copy()
    made, mask, steps = pseudo.PSEUDO[method].make(normal, donor, part, np.random.default_rng(seed), 3)
    assert made.dtype == np.float32
    assert made.shape == normal.shape
    assert 0 <= made.min() <= made.max() <= 1
    assert mask.dtype == bool
    assert mask.shape == normal.shape[:2]
    assert 0 < mask.sum() < 0.6 * mask.size
    assert steps
    change = np.abs(made - normal).mean(axis=2)
    assert change[mask].mean() > 0.02
    assert change[~(ring(mask) | mask)].max() < 0.05  # rpag softens one pixel around the defect
    again, same_mask, same_steps = pseudo.PSEUDO[method].make(normal, donor, part, np.random.default_rng(seed), 3)
    np.testing.assert_array_equal(again, made)
    np.testing.assert_array_equal(same_mask, mask)
    assert same_steps == steps
    for array, kept in zip((normal, donor, part), before, strict=True):
        np.testing.assert_array_equal(array, kept)


@pytest.mark.parametrize("method", [name for name, way in pseudo.PSEUDO.items() if not way.needs_known])
def test_ways_without_known_anomalies_take_any_other_normal(
    plant: tuple[list[Sample], list[Sample]], method: str
) -> None:
    normals, known = plant
    assert pseudo.can_make(method, [])
    made = list(pseudo.generate(normals, [], 12, seed=2, size=(48, 64), method=method))
    pairs = {tuple(text.split(": ")[0].split(" on ")) for _, _, text in made}
    names = ["good/0.png", "good/1.png", "good/2.png"]
    assert pairs <= {(a, b) for a in names for b in names if a != b}
    assert {a for a, _ in pairs} == {b for _, b in pairs} == set(names)
    same = list(pseudo.generate(normals, known, 12, seed=2, size=(48, 64), method=method))
    for (image, mask, _), (other, other_mask, _) in zip(made, same, strict=True):
        np.testing.assert_array_equal(image, other)  # known anomalies play no part
        np.testing.assert_array_equal(mask, other_mask)
        assert mask.any()
    (image, mask, text) = next(pseudo.generate(normals[:1], [], 1, seed=0, size=(48, 64), method=method))
    assert text.startswith("good/0.png on good/0.png")  # one normal has no other
    assert mask.any()
    assert pseudo.contact_sheet(made).shape[1] == 6 * (216 + 12) + 12


def test_can_make_tells_what_is_needed(plant: tuple[list[Sample], list[Sample]]) -> None:
    _, known = plant
    unmarked = [Sample(known[0].path, known[0].name, 1, "crack")]
    assert pseudo.can_make("rpag", known)
    assert not pseudo.can_make("rpag", unmarked)
    assert not pseudo.can_make("rpag", [])
    assert not pseudo.can_make("none", known)


def test_the_recipe_knows_every_way() -> None:
    assert set(PSEUDO_METHODS) == {*pseudo.PSEUDO, "none"}
    for method in PSEUDO_METHODS:
        assert from_dict({"pseudo": {"method": method}}).pseudo.method == method
    with pytest.raises(ConfigError, match=r"pseudo\.method must be one of rpag, draem, nsa, none"):
        from_dict({"pseudo": {"method": "nsb"}})


def test_contact_sheet_shows_every_tile_outlined(plant: tuple[list[Sample], list[Sample]]) -> None:
    normals, known = plant
    tiles = list(pseudo.generate(normals, known, 5, seed=1, size=(48, 64)))
    page = pseudo.contact_sheet(tiles, columns=3)
    assert page.dtype == np.uint8
    assert page.shape[1] == 3 * (216 + 12) + 12
    outlined = np.all(np.abs(page.astype(int) - pseudo.OUTLINE) < 8, axis=2)
    rows = np.array_split(np.arange(page.shape[0]), 2)
    columns = np.array_split(np.arange(page.shape[1]), 3)
    counts = [outlined[np.ix_(r, c)].sum() for r in rows for c in columns]
    assert min(counts[:5]) > 8
    assert counts[5] == 0
    assert (page[:12] > 240).all()  # a light margin
    with pytest.raises(DataError, match="at least one"):
        pseudo.contact_sheet([])
