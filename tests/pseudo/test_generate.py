"""All generators by name."""

from __future__ import annotations

import numpy as np
import pytest

from bgad.config import PSEUDO_METHODS, from_dict
from bgad.errors import ConfigError
from bgad.pseudo.generate import PSEUDO
from tests.pseudo.scenes import disc, scene


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


def test_the_recipe_knows_every_method() -> None:
    assert set(PSEUDO_METHODS) == {*PSEUDO, "none"}
    for method in PSEUDO_METHODS:
        assert from_dict({"pseudo": {"method": method}}).pseudo.method == method
    with pytest.raises(ConfigError, match=r"pseudo\.method must be one of rpag, draem, nsa, cutmix, none"):
        from_dict({"pseudo": {"method": "nsb"}})
