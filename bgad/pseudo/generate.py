"""The generators of pseudo anomalies by name, and what each of them needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bgad.pseudo.cutmix import cutmix
from bgad.pseudo.draem import draem
from bgad.pseudo.nsa import nsa
from bgad.pseudo.rpag import foreground, rpag
from bgad.types import BoolArray, FloatArray


class PseudoAnomaly(NamedTuple):
    """An image with a synthetic defect, the mask of that defect, and a description of how it was made."""

    image: FloatArray
    mask: BoolArray
    description: str


# Arguments: normal image, donor image, mask of the donor's defect (or of its object, where the donor is a normal),
# random generator, number of transforms.
GenerateFunction = Callable[
    [FloatArray, FloatArray, BoolArray, np.random.Generator, int], tuple[FloatArray, BoolArray, str]
]


@dataclass(frozen=True)
class PseudoMethod:
    """A generator, and whether its donor is a known anomaly with a mask or another normal."""

    generate: GenerateFunction
    needs_known: bool


def _draem(
    normal: FloatArray, donor: FloatArray, region: BoolArray, rng: np.random.Generator, count: int
) -> tuple[FloatArray, BoolArray, str]:
    return draem(normal, donor, rng, count)


def _nsa(
    normal: FloatArray, donor: FloatArray, region: BoolArray, rng: np.random.Generator, count: int
) -> tuple[FloatArray, BoolArray, str]:
    return nsa(normal, donor, foreground(normal), region, rng)


def _cutmix(
    normal: FloatArray, donor: FloatArray, region: BoolArray, rng: np.random.Generator, count: int
) -> tuple[FloatArray, BoolArray, str]:
    return cutmix(normal, donor, rng)


# The extension point: a new generator needs an entry here and its name in `config.PSEUDO_METHODS`.
PSEUDO: dict[str, PseudoMethod] = {
    "rpag": PseudoMethod(rpag, needs_known=True),
    "draem": PseudoMethod(_draem, needs_known=False),
    "nsa": PseudoMethod(_nsa, needs_known=False),
    "cutmix": PseudoMethod(_cutmix, needs_known=False),
}
