"""The features of a whole data set, computed once for the many trainings of a benchmark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from bgad._version import __version__
from bgad.config import BackboneConfig, Config
from bgad.data.layouts import Dataset
from bgad.data.sample_io import ImageCache, hash_masks
from bgad.data.split import Split
from bgad.features.cache import AnomalyFeatures, Budget, Extractor, Features, FeatureStore
from bgad.features.scoring import run_features
from bgad.inference.base import SampleScore
from bgad.inference.torch_engine import new_model
from bgad.io.files import sha256_json
from bgad.io.masks import resize_mask
from bgad.methods.checkpoint import hash_weights
from bgad.model import backbone as backbones
from bgad.model.scoring import ScoringModel
from bgad.training.shared_phases import RECIPE_VERSION
from bgad.training.training_set import (
    TrainingSet,
    known_anomalies,
    pseudo_anomalies,
    pseudo_count,
    with_visible_defect,
    without_full_masks,
)
from bgad.types import BoolArray, FloatArray, Progress, ProgressTask, Sample


class FeaturePool:
    """Features of every image of a data set; a split selects its own without copying them."""

    def __init__(
        self,
        samples: Sequence[Sample],
        hashes: Mapping[str, str],
        images: ImageCache,
        config: BackboneConfig,
        *,
        device: torch.device,
        folder: Path,
        memory_gb: float,
        progress: Progress | None = None,
    ) -> None:
        started = time.monotonic()
        self.config, self.images, self.device, self.folder = config, images, device, folder
        self.progress = progress
        self.backbone = backbones.build(config).to(device)
        self.grids = self.backbone.grids(config.size)
        self.budget = Budget(memory_gb * 1e9)
        self._number = {sample.name: i for i, sample in enumerate(samples)}
        self._pseudo: tuple[str, AnomalyFeatures] | None = None  # the last ones, for the methods that share them
        weights = hash_weights(config)
        image_hashes = [hashes[s.name] for s in samples]
        self.key = sha256_json(
            [RECIPE_VERSION, __version__, torch.__version__, asdict(config), weights, images.bits, image_hashes]
        )
        self._extract = Extractor(self.backbone, config.size, device)
        task = ProgressTask(progress, "features", len(samples))
        self.store = self._new_store(len(samples), "pool", self.key, self.budget)
        self.store.fill(self._extract, lambda i: images.read(samples[i]), device, task.advance)
        self.seconds = time.monotonic() - started

    def _new_store(self, count: int, name: str, key: str, budget: Budget) -> FeatureStore:
        folder = self.folder / name
        return FeatureStore(count, self.grids, self.backbone.channels, budget=budget, folder=folder, key=key)

    def features(self, samples: Sequence[Sample]) -> Features:
        """Return the features of these images."""
        return self.store.select([self._number[s.name] for s in samples])

    def number(self, sample: Sample) -> int:
        """Return the number of an image in the pool's store."""
        return self._number[sample.name]

    def masks(self, samples: Sequence[Sample]) -> list[BoolArray | None]:
        """Return the masks of these images at the size of the model's input; None where there is none."""
        masks = (self.images.read_mask(sample) for sample in samples)
        return [None if mask is None else resize_mask(mask, self.images.size) for mask in masks]

    def new_model(self, config: Config) -> ScoringModel:
        """Return an untrained model around the backbone of the pool."""
        return new_model(config, self.backbone).to(self.device)

    def training_set(self, split: Split, config: Config) -> TrainingSet:
        """Return the training set of a split."""
        split = with_visible_defect(without_full_masks(split), self.images)
        known = split.known if config.uses_anomalies else []
        anomalies = [known_anomalies(known, self.features(known), self.grids, self.images)] if known else []
        if pseudo_count(split, config):
            anomalies.append(self._pseudo_anomalies(split, config))

        def score(model: ScoringModel, samples: list[Sample]) -> Iterator[SampleScore]:
            for output in run_features(model, self.features(samples), self.device):
                yield SampleScore(output, float(output.map.max()))

        return TrainingSet(self.features(split.train), anomalies, score)

    def _pseudo_anomalies(self, split: Split, config: Config) -> AnomalyFeatures:
        image_hashes = [[split.hashes[s.name] for s in group] for group in (split.train, split.known)]
        key = sha256_json([self.key, image_hashes, hash_masks(split.known), asdict(config.pseudo), config.seed])
        if self._pseudo is None or self._pseudo[0] != key:
            self._pseudo = None  # frees its memory before the next ones are computed

            def cache_features(count: int, image: Callable[[int], FloatArray]) -> Features:
                task = ProgressTask(self.progress, "pseudo anomalies", count)
                store = self._new_store(count, "pseudo", key, Budget(self.budget.left))
                store.fill(self._extract, image, self.device, task.advance)
                return store

            self._pseudo = key, pseudo_anomalies(split, config, self.grids, self.images, cache_features)
        return self._pseudo[1]


class FeaturePools:
    """The features of one data set by each of several backbones, which share the memory; a pool is made when needed.

    `images` is for the validation of the data set. It reads images as the first backbone takes them, and its bit depth
    is that of all pools.
    """

    def __init__(
        self,
        backbones: Iterable[BackboneConfig],
        *,
        device: torch.device,
        folder: Path,
        memory_gb: float,
        progress: Progress | None = None,
    ) -> None:
        distinct = list(dict.fromkeys(backbones))
        self._first, self._memory_gb = distinct[0], memory_gb / len(distinct)
        self._device, self._folder, self._progress = device, folder, progress
        self._pools: dict[BackboneConfig, FeaturePool] = {}
        self.images = ImageCache(self._first.size, crop=self._first.crop)

    def get(self, backbone: BackboneConfig, dataset: Dataset, split: Split) -> FeaturePool:
        """Return the features by a backbone; they are computed at the first call."""
        if backbone not in self._pools:
            images = self.images
            if backbone != self._first:
                images = ImageCache(backbone.size, crop=backbone.crop)
                images.bits = self.images.bits
            self._pools[backbone] = FeaturePool(
                dataset.samples,
                split.hashes,
                images,
                backbone,
                device=self._device,
                folder=self._folder / str(len(self._pools)),
                memory_gb=self._memory_gb,
                progress=self._progress,
            )
        return self._pools[backbone]

    def drop(self) -> None:
        """Free the memory, then remove the files."""
        self._pools.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
