"""Pseudo anomalies by name: which generators exist, what they need, and the series that a seed fixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bgad.config import PseudoConfig
from bgad.data.sample_io import ImageCache
from bgad.errors import DataError
from bgad.pseudo.cutmix import cutmix
from bgad.pseudo.draem import draem
from bgad.pseudo.nsa import nsa
from bgad.pseudo.rpag import fit_mask, foreground, rpag
from bgad.types import BoolArray, FloatArray, Sample


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


def can_generate(method: str, known: Sequence[Sample]) -> bool:
    """Return whether the method can work with these known anomalies; the method "none" never can."""
    return method in PSEUDO and (not PSEUDO[method].needs_known or any(s.mask is not None for s in known))


@dataclass(frozen=True)
class PseudoSeries:
    """An endless series of pseudo anomalies that the seed fixes: item i does not depend on the others.

    Every item draws a normal. The donor is one of the known anomalies in turn, or another normal, as the method needs.
    """

    normals: Sequence[Sample]
    known: Sequence[Sample]
    images: ImageCache
    config: PseudoConfig
    seed: int

    def make(self, index: int) -> PseudoAnomaly:
        """Generate one item of the series."""
        rng = np.random.default_rng([self.seed, index])
        at = int(rng.integers(len(self.normals)))
        normal = self.normals[at]
        method, read = PSEUDO[self.config.method], self.images.read
        if method.needs_known:
            donor = self.known[index % len(self.known)]
            donor_image = read(donor)
            region = self._defect_mask(donor, (donor_image.shape[0], donor_image.shape[1]))
        else:
            donor = self.normals[(at + int(rng.integers(1, max(2, len(self.normals))))) % len(self.normals)]
            donor_image = read(donor)
            region = foreground(donor_image)
        image, mask, steps = method.generate(read(normal), donor_image, region, rng, self.config.transforms)
        return PseudoAnomaly(image, mask, f"{_short_name(donor)} on {_short_name(normal)}: {steps}")

    def _defect_mask(self, sample: Sample, size: tuple[int, int]) -> BoolArray:
        original = self.images.read_mask(sample)
        if original is None:
            raise DataError(f"{sample.name} has no mask: pseudo anomalies are cut from anomalies with masks")
        mask = fit_mask(original, size)
        if not mask.any():
            raise DataError(f"{sample.mask} marks no pixel: mark the defect or drop {sample.name}")
        return mask


def _short_name(sample: Sample) -> str:
    return "/".join(sample.name.split("/")[-2:])
