"""The dispatch over all generators, and the series that a seed fixes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bgad.config import PSEUDO_METHODS, from_dict
from bgad.errors import ConfigError, DataError
from bgad.pseudo.contact_sheet import contact_sheet
from bgad.pseudo.generate import PSEUDO, can_generate
from bgad.pseudo.rpag import TRANSFORMS
from bgad.types import Sample
from tests.pseudo.scenes import disc, generate, reader, scene, write, write_samples


@pytest.fixture
def plant(tmp_path: Path) -> tuple[list[Sample], list[Sample]]:
    return write_samples(tmp_path)


def test_generate_is_a_series_fixed_by_the_seed(
    plant: tuple[list[Sample], list[Sample]],
) -> None:
    normals, known = plant
    four = generate(normals, known, 4, reader(64, 48), seed=3)
    two = generate(normals, known, 2, reader(64, 48), seed=3)
    third = generate(normals, known, 3, reader(64, 48), seed=3)[2]
    other = generate(normals, known, 4, reader(64, 48), seed=4)
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
        normal, steps = text.split(" on ")[1].split(": ")
        assert normal in {"good/0.png", "good/1.png", "good/2.png"}
        assert len(set(steps.split(", ")) & set(TRANSFORMS)) == 3
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(four, other, strict=True))
    assert not np.array_equal(four[0][1], four[2][1])  # the same known anomaly, made anew


@pytest.mark.parametrize("transforms", [0, 1, 5])
def test_generate_passes_the_number_of_transforms_on(plant: tuple[list[Sample], list[Sample]], transforms: int) -> None:
    _, _, text = generate(*plant, 1, reader(32, 32), seed=0, transforms=transforms)[0]
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
    for _, pasted, _ in generate(normals, [dot], 5, reader(32, 32), seed=0):
        assert 1 <= pasted.sum() <= 6


def test_generate_says_what_is_missing(plant: tuple[list[Sample], list[Sample]], tmp_path: Path) -> None:
    normals, known = plant
    empty = write(tmp_path / "empty.png", np.zeros((72, 130), bool))
    unmarked = Sample(known[0].path, known[0].name, 1, "crack")
    blank = Sample(known[0].path, known[0].name, 1, "crack", empty)
    with pytest.raises(DataError, match=r"crack/0\.png has no mask"):
        generate(normals, [unmarked], 1, reader(32, 32), seed=0)
    with pytest.raises(DataError, match=r"empty\.png marks no pixel"):
        generate(normals, [blank], 1, reader(32, 32), seed=0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("method", PSEUDO)
def test_every_method_changes_the_image_where_the_mask_says(method: str, seed: int) -> None:
    normal = disc(96, inside=0.8, outside=0.1)[0][:72]
    donor, part = scene(72, 96)
    before = normal.copy(), donor.copy(), part.copy()
    made, mask, steps = PSEUDO[method].generate(normal, donor, part, np.random.default_rng(seed), 3)
    assert made.dtype == np.float32
    assert made.shape == normal.shape
    assert 0 <= made.min() <= made.max() <= 1
    assert mask.dtype == bool
    assert mask.shape == normal.shape[:2]
    assert 0 < mask.sum() < 0.6 * mask.size
    assert steps
    change = np.abs(made - normal).mean(axis=2)
    assert change[mask].mean() > 0.02
    assert change[~mask].max() < 0.05
    again, same_mask, same_steps = PSEUDO[method].generate(normal, donor, part, np.random.default_rng(seed), 3)
    np.testing.assert_array_equal(again, made)
    np.testing.assert_array_equal(same_mask, mask)
    assert same_steps == steps
    for array, kept in zip((normal, donor, part), before, strict=True):
        np.testing.assert_array_equal(array, kept)


@pytest.mark.parametrize("method", [name for name, entry in PSEUDO.items() if not entry.needs_known])
def test_methods_without_known_anomalies_take_any_other_normal(
    plant: tuple[list[Sample], list[Sample]], method: str
) -> None:
    normals, known = plant
    assert can_generate(method, [])
    made = generate(normals, [], 12, reader(48, 64), seed=2, method=method)
    pairs = {tuple(text.split(": ")[0].split(" on ")) for _, _, text in made}
    names = ["good/0.png", "good/1.png", "good/2.png"]
    assert pairs <= {(a, b) for a in names for b in names if a != b}
    assert {a for a, _ in pairs} == {b for _, b in pairs} == set(names)
    same = generate(normals, known, 12, reader(48, 64), seed=2, method=method)
    for (image, mask, _), (other, other_mask, _) in zip(made, same, strict=True):
        np.testing.assert_array_equal(image, other)  # known anomalies play no part
        np.testing.assert_array_equal(mask, other_mask)
        assert mask.any()
    (image, mask, text) = generate(normals[:1], [], 1, reader(48, 64), seed=0, method=method)[0]
    assert text.startswith("good/0.png on good/0.png")  # one normal has no other
    assert mask.any()
    assert contact_sheet(made).shape[1] == 6 * (216 + 12) + 12


def test_can_generate_tells_what_is_needed(plant: tuple[list[Sample], list[Sample]]) -> None:
    _, known = plant
    unmarked = [Sample(known[0].path, known[0].name, 1, "crack")]
    assert can_generate("rpag", known)
    assert not can_generate("rpag", unmarked)
    assert not can_generate("rpag", [])
    assert not can_generate("none", known)


def test_the_recipe_knows_every_method() -> None:
    assert set(PSEUDO_METHODS) == {*PSEUDO, "none"}
    for method in PSEUDO_METHODS:
        assert from_dict({"pseudo": {"method": method}}).pseudo.method == method
    with pytest.raises(ConfigError, match=r"pseudo\.method must be one of rpag, draem, nsa, cutmix, none"):
        from_dict({"pseudo": {"method": "nsb"}})
