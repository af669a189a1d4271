"""CutMix pseudo anomalies: one rectangle of another normal, of DRA's sizes."""

from __future__ import annotations

import numpy as np

from bgad.pseudo.cutmix import AREA_RANGE, ASPECT_RANGE, cutmix, rectangle
from bgad.types import FloatArray


def noise(seed: int) -> FloatArray:
    return np.random.default_rng(seed).random((64, 48, 3), np.float32)


def test_a_rectangle_of_the_other_image_is_pasted() -> None:
    normal, other = noise(0), noise(1)
    for seed in range(5):
        image, mask, text = cutmix(normal, other, np.random.default_rng(seed))
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
        assert text == f"{width} x {height}"
        assert mask.sum() == height * width
        np.testing.assert_array_equal(image[~mask], normal[~mask])
        patch = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        windows = np.lib.stride_tricks.sliding_window_view(other, patch.shape)
        assert (windows == patch).all(axis=(-3, -2, -1)).any()


def test_the_sizes_are_those_of_dra() -> None:
    rng = np.random.default_rng(0)
    sides = np.array([rectangle(256, 256, rng) for _ in range(500)])
    areas, aspects = sides.prod(1) / 256**2, sides[:, 0] / sides[:, 1]
    assert AREA_RANGE[0] * 0.95 < areas.min() < 0.03
    assert 0.14 < areas.max() < AREA_RANGE[1] * 1.05
    assert ASPECT_RANGE[0] * 0.95 < aspects.min() < 0.35
    assert 3.0 < aspects.max() < ASPECT_RANGE[1] * 1.05


def test_equal_images_show_no_defect() -> None:
    flat = np.full((32, 32, 3), 0.5, np.float32)
    image, mask, _ = cutmix(flat, flat, np.random.default_rng(0))
    assert not mask.any()
    np.testing.assert_array_equal(image, flat)
