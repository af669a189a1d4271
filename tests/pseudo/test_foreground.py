from __future__ import annotations

import numpy as np
import pytest

from bgad.pseudo.foreground import foreground
from tests.pseudo.scenes import disc, iou


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
