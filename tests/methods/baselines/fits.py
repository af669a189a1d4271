"""Fits baselines on a small data set whose features are computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bgad import metrics
from bgad.config import BASELINES, Config, from_dict, preset_for
from bgad.data import layouts
from bgad.data.layouts import Dataset
from bgad.data.protocols import Case, protocol_split
from bgad.data.sample_io import ImageCache
from bgad.data.split import Split
from bgad.features.scoring import run_features
from bgad.inference.torch_engine import Detector
from bgad.model.heads.base import HeadModel
from bgad.training.feature_pool import FeaturePool
from bgad.training.fit_baseline import BaselineFit
from bgad.training.fit_model import TrainingRun
from bgad.types import Sample

CPU = torch.device("cpu")
SIZE, KNOWN = 64, 4
STEPS = 6  # of a fit that is brief
SUPERVISED = ("devnet", "flos", "dra", "saoe", "mlep", "fcdd")
SHORT = {"steps": 40, "images_per_step": 12, "lr": 0.01}
# Settings on top of the preset `smoke` with which a fit takes about a second on images of 64 pixels.
TINY: dict[str, dict[str, Any]] = {
    "padim": {"channels": 20},
    "patchcore": {"coreset_share": 0.05},
    "cfa": {"steps": 30, "bank_share": 0.25},
    "msfd": {"steps": 30, "images_per_step": 8},
    "kdad": {"steps": 50, "images_per_step": 8, "lr": 0.01},
    "ae-mse": {"steps": 40, "images_per_step": 8, "width": 8, "latent": 8, "lr": 0.01},
    "ae-ssim": {"steps": 40, "images_per_step": 8, "width": 8, "latent": 8, "lr": 0.005},
    "draem": {"steps": 50, "images_per_step": 8, "reconstructive_width": 4, "discriminative_width": 4, "lr": 0.004},
    "vt-adl": {
        "steps": 40,
        "patch": 16,
        "width": 16,
        "blocks": 1,
        "decoder_width": 16,
        "components": 3,
        "noise": 0.5,
        "lr": 0.01,
    },
    **{f"{name}-frozen": SHORT for name in SUPERVISED},
    **{
        name: {"steps": 12, "images_per_step": 8, "lr": 2e-3, "strides": [8], "scales": 2 if name == "dra" else 1}
        for name in SUPERVISED
    },
}

# Baselines that anomalies among the normals of this data do not mislead: an autoencoder does not learn to reproduce a
# blot in a short schedule.
NOT_MISLED = ("ae-mse", "ae-ssim")


def tiny(method: str, **values: Any) -> Config:
    """A recipe of a baseline whose fit takes about a second."""
    base = from_dict({"backbone": {"size": SIZE}, "baseline": TINY[method]}, preset_for(method, "smoke"))
    return from_dict(values, base)


def brief(method: str, **values: Any) -> Config:
    """The same with a few steps, for what does not need a baseline that has learnt something."""
    return tiny(method, **({"baseline": {"steps": STEPS}} if "steps" in TINY[method] else {}), **values)


@dataclass
class Bench:
    """A small data set, a split of it, and its features by each kind of backbone."""

    root: Path
    work: Path
    pools: dict[Any, FeaturePool] = field(default_factory=dict)
    fits: int = 0

    @cached_property
    def dataset(self) -> Dataset:
        return layouts.load(self.root)

    @cached_property
    def split(self) -> Split:
        return protocol_split(self.dataset, "multi-class", Case(), known=KNOWN, seed=0)

    def pool(self, config: Config) -> FeaturePool:
        if config.backbone not in self.pools:
            folder = self.work / f"pool{len(self.pools)}"
            self.pools[config.backbone] = FeaturePool(
                self.dataset.samples, self.split.hashes, ImageCache(config.backbone.size), config.backbone,
                device=CPU, folder=folder, memory_gb=1.0,
            )  # fmt: skip
        return self.pools[config.backbone]

    def prepare(self, config: Config, split: Split | None = None, work: Path | None = None) -> BaselineFit:
        """A fit in a work folder of its own, or in one that another fit has left."""
        split, pool = split or self.split, self.pool(config)
        self.fits += 1
        work = work or self.work / f"fit{self.fits}"
        work.mkdir(exist_ok=True)
        run = TrainingRun(config.method, self.dataset, split, split, 8, CPU, work, memory_gb=1.0)
        model = pool.new_model(config)
        assert isinstance(model, HeadModel)
        return BaselineFit(run, model, pool.training_set(split, config))

    def fit(self, config: Config, split: Split | None = None, work: Path | None = None) -> Detector:
        fit = self.prepare(config, split, work)
        for _ in fit.steps():
            pass
        return fit.finish()

    def scores(self, detector: Detector) -> list[float]:
        """Scores of the test images."""
        features = self.pool(detector.card.config).features(self.split.test)
        return [output.score for output in run_features(detector.model, features, CPU)]

    def image_auroc(self, detector: Detector) -> float:
        """Image AUROC on the test images."""
        value = metrics.compute(self.scores(detector), [s.label for s in self.split.test])["image_auroc"]
        assert value is not None
        return value

    def separation(self, detector: Detector) -> float:
        """Difference of the mean scores of anomalous and normal test images, in standard deviations of the normal ones.

        Unlike AUROC, it also tells two models apart that put all images in the right order.
        """
        scores = np.array(self.scores(detector))
        anomalous = np.array([s.label == 1 for s in self.split.test])
        return float((scores[anomalous].mean() - scores[~anomalous].mean()) / scores[~anomalous].std())

    def with_wrong_labels(self, method: str) -> Split:
        """The split with labels that mislead: of a supervised baseline exchanged, else anomalies among the normals.

        The anomalies that contaminate the normals are those of the test set, which a fit must otherwise not see.
        """
        split = self.split
        if BASELINES[method].supervised:
            count = len(split.known)
            normals = [*split.train[count:], *(replace(s, label=0, mask=None) for s in split.known)]
            pairs = zip(split.train[:count], split.known, strict=True)
            return replace(split, train=normals, known=[replace(s, label=1, mask=other.mask) for s, other in pairs])
        anomalies = [replace(s, label=0) for s in split.test if s.label]
        tested = [s for s in split.test if not s.label]
        return replace(split, train=[*anomalies, *split.train[len(anomalies) :]], test=tested)

    def unused(self, method: str) -> list[Sample]:
        """The images that a fit of a baseline must not see."""
        known = [] if BASELINES[method].supervised else self.split.known
        return [*self.split.test, *self.split.calibration, *known]


def state_of(detector: Detector) -> Mapping[str, Tensor]:
    """What a fit has learnt."""
    return {key: value for key, value in detector.model.state_dict().items() if key.startswith("head.")}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two states are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
