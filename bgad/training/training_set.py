"""What training reads of a split: features of its normals, of its known anomalies and of pseudo anomalies.

`gather` computes them for one training; a `Pool` computes those of a whole data set once, for many.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from bgad._version import __version__
from bgad.config import BackboneConfig, Config
from bgad.data import tiled_split
from bgad.data.layouts import hash_file
from bgad.data.sample_io import ignored, read, read_mask, region
from bgad.data.split import Split
from bgad.errors import DataError
from bgad.features.cache import Budget, Features, FeatureStore, Index
from bgad.features.extractor import Extractor
from bgad.features.scoring import run_features
from bgad.geometry import tiles
from bgad.geometry.grid import defect_cells, touched_cells
from bgad.geometry.roi import Roi, blank
from bgad.inference.torch_engine import run_model
from bgad.io import images
from bgad.model import backbone as backbones
from bgad.model import device as devices
from bgad.model.scoring import ScoringModel
from bgad.pseudo.generate import PseudoSeries, can_generate
from bgad.training.loop import Anomalies
from bgad.types import BoolArray, FloatArray, Progress, ProgressTask, Sample

Grid = tuple[int, int]
Fill = Callable[[int, Callable[[int], FloatArray]], Features]  # number of images, image by number
PUSHING = ("bgad", "bgad-full-push")  # the methods that look at anomalies
RECIPE = 9  # raise it when a change to the code makes other features, models or figures: what was kept is made again


@dataclass(frozen=True)
class Material:
    """Features to train on, and a way to run the model that learns on images of the split (score and map of each)."""

    normals: Features
    anomalies: list[Anomalies]
    run: Callable[[ScoringModel, list[Sample]], Iterator[tuple[float, FloatArray]]]
    inside: list[Index] | None = None  # positions of each level that are looked at; None: all
    near: list[Index] | None = None  # those that what is looked at depends on; None: all
    pictures: Index | None = None  # number of the picture that each normal is, or is a tile of; None: each its own


def known_anomalies(known: Sequence[Sample], features: Features, grids: Sequence[Grid]) -> Anomalies:
    """The real ones, marked where they have a mask."""
    masks = [read_mask(s) for s in known]
    return Anomalies(features, [cells(masks, grid) for grid in grids], [mask is not None for mask in masks])


def leave_out(
    store: Features, samples: Sequence[Sample], known: Anomalies | None, normals: Features, grids: Sequence[Grid]
) -> None:
    """Where a picture is not to be learnt from, put what other normals show there: so its own features are neither
    learnt nor pushed, by the flows or by the image level. Where a cell shows a marked defect as well, that counts."""
    for number, sample in enumerate(samples):
        without = ignored(sample)
        if without is None:
            continue
        if not normals.count:
            raise DataError(f"every normal has a region to ignore, as {sample.name} has: add normals without one")
        other = np.array(number % normals.count)
        for level, grid in enumerate(grids):
            at = touched_cells(without, grid)
            if known is not None and known.marked[number]:
                at = np.setdiff1d(at, known.cells[level][number])
            store.levels[level][store.index[number], at] = normals.rows(level, other, at)


def pseudo_count(split: Split, config: Config) -> int:
    """How many pseudo anomalies this training uses."""
    usable = config.loss.method in PUSHING and can_generate(config.pseudo.method, split.known)
    return config.pseudo.count if usable else 0


def pseudo_anomalies(
    split: Split, config: Config, grids: Sequence[Grid], bits: int, fill: Fill, roi: Roi | None = None
) -> Anomalies:
    """Those that the recipe makes of this split; `fill` gives the features of the pictures drawn here."""
    size = (config.backbone.size, config.backbone.size)
    normals = [s for s in split.train if s.ignore is None]
    with_masks = [s for s in split.known if s.mask is not None]
    drawn: dict[int, BoolArray] = {}
    looked_at = None if roi is None else roi.fitted(config.backbone.size)
    series = PseudoSeries(
        normals,
        with_masks,
        lambda sample: images.fit(read(sample, bits), size),
        config.pseudo.method,
        config.pseudo.transforms,
        config.seed,
    )

    def draw(index: int) -> FloatArray:
        image, drawn[index], _ = series.make(index)
        if looked_at is not None:
            drawn[index] &= looked_at
            return blank(image, looked_at, "pseudo anomaly").astype(np.float32)
        return image

    count = config.pseudo.count
    features = fill(count, draw)
    for index in range(count):  # those whose features were there already, after a resume
        if index not in drawn:
            draw(index)
    kept = np.array([i for i in range(count) if drawn[i].any()], np.int64)  # the others are pasted where nobody looks
    masks = [drawn[i] for i in kept]
    store = features if len(kept) == count else features.select(kept)
    return Anomalies(store, [cells(masks, grid) for grid in grids], [True] * len(kept), pseudo=True)


def cells(masks: Sequence[BoolArray | None], grid: Grid) -> list[Index]:
    """The positions of a level that show the defect; all of them where nobody marked it."""
    everywhere = np.arange(grid[0] * grid[1])
    return [everywhere if mask is None else defect_cells(mask, grid) for mask in masks]


def gather(
    model: ScoringModel,
    split: Split,
    bits: int,
    device: torch.device,
    work: Path,
    key: str,
    memory_gb: float,
    roi: Roi | None = None,
    progress: Progress | None = None,
) -> Material:
    """The material of one training, cached in memory or in `work`."""
    config = model.config
    size = (config.backbone.size, config.backbone.size)
    grids = model.grids
    budget = Budget(memory_gb * 1e9)
    known = split.known if config.loss.method in PUSHING else []
    made = pseudo_count(split, config)

    def picture(sample: Sample) -> FloatArray:
        return images.fit(read(sample, bits), size)

    def run(model: ScoringModel, samples: list[Sample]) -> Iterator[tuple[float, FloatArray]]:
        def one(sample: Sample) -> tuple[float, FloatArray]:
            found = []
            for _, pixels in tiles.parts(read(sample, bits), config.tile, region(sample), size[0]):
                scores, maps, _ = run_model(model, pixels[None], device)
                found.append((float(scores[0]), maps[0]))
            return max(found, key=lambda pair: pair[0])  # as a picture is scored: by its strangest tile

        return devices.Workers(os.cpu_count() or 1, device).stream(one, samples)

    anomalies = []
    extract = Extractor(model.backbone, config.backbone.size, device)
    task = ProgressTask(progress, "features", len(split.train) + len(known) + made)

    def store(name: str, count: int, pictures: Callable[[int], FloatArray]) -> Features:
        place = FeatureStore(count, grids, model.backbone.channels, budget=budget, folder=work / name, key=key)
        place.fill(extract, pictures, device, task.advance)
        return place

    normals = store("normals", len(split.train), lambda i: picture(split.train[i]))
    whole = normals.select(np.flatnonzero([s.ignore is None for s in split.train]))
    leave_out(normals, split.train, None, whole, grids)
    if known:
        anomalies.append(known_anomalies(known, store("known", len(known), lambda i: picture(known[i])), grids))
        leave_out(anomalies[0].store, known, anomalies[0], whole, grids)
    if made:
        anomalies.append(
            pseudo_anomalies(split, config, grids, bits, lambda count, draw: store("pseudo", count, draw), roi)
        )
    anomalies = [group for group in anomalies if group.store.count]
    inside = None if roi is None else [roi.cells(grid) for grid in grids]
    near = None if roi is None else [shown_by(roi.fitted(size[0]), grid) for grid in grids]
    names = [tiled_split.picture_of(s, config.tile) for s in split.train]
    return Material(normals, anomalies, run, inside, near, np.unique(names, return_inverse=True)[1])


def shown_by(region: BoolArray, grid: Grid) -> Index:
    """The positions of a level that the map inside of a region is made of: those in it and their neighbours.

    >>> region = np.zeros((8, 8), bool); region[:, 7] = True
    >>> shown_by(region, (1, 4))
    array([2, 3])
    """
    around = np.zeros((grid[0] + 2, grid[1] + 2), bool)
    around[1:-1, 1:-1].flat[touched_cells(region, grid)] = True
    return np.flatnonzero(np.lib.stride_tricks.sliding_window_view(around, (3, 3)).any((2, 3)))


class Pool:
    """The features of every image of a data set; each split of it takes its own by number, without copies."""

    def __init__(
        self,
        samples: Sequence[Sample],
        hashes: Mapping[str, str],
        bits: int,
        config: BackboneConfig,
        *,
        device: torch.device,
        folder: Path,
        memory_gb: float,
        progress: Progress | None = None,
    ) -> None:
        began = time.monotonic()
        self.config, self.bits, self.device, self.folder = config, bits, device, folder
        self.progress = progress
        self.backbone = backbones.build(config).to(device)
        self.grids = self.backbone.grids(config.size)
        self.budget = Budget(memory_gb * 1e9)
        self._place = {sample.name: i for i, sample in enumerate(samples)}
        self._pseudo: tuple[str, Anomalies] | None = None  # the last, for the methods that share it
        weights = hash_file(Path(config.weights)) if config.weights else ""
        pictures = [hashes[s.name] for s in samples]
        parts = [RECIPE, __version__, torch.__version__, asdict(config), weights, bits, pictures]
        self.key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        self._extract = Extractor(self.backbone, config.size, device)
        task = ProgressTask(progress, "features", len(samples))
        store = self._store(len(samples), "pool", self.key, self.budget)
        size = (config.size, config.size)
        store.fill(self._extract, lambda i: images.fit(read(samples[i], bits), size), device, task.advance)
        self.store = store
        self.seconds = time.monotonic() - began

    def _store(self, count: int, name: str, key: str, budget: Budget) -> FeatureStore:
        place = self.folder / name
        return FeatureStore(count, self.grids, self.backbone.channels, budget=budget, folder=place, key=key)

    def features(self, samples: Sequence[Sample]) -> Features:
        """Those of these images."""
        return self.store.select([self._place[s.name] for s in samples])

    def model(self, config: Config) -> ScoringModel:
        """A model that has learnt nothing yet, around the backbone of the pool."""
        return ScoringModel(config, self.backbone).to(self.device)

    def material(self, split: Split, config: Config) -> Material:
        """The material of one training, from the pool."""
        known = split.known if config.loss.method in PUSHING else []
        anomalies = [known_anomalies(known, self.features(known), self.grids)] if known else []
        if pseudo_count(split, config):
            anomalies.append(self._made(split, config))

        def run(model: ScoringModel, samples: list[Sample]) -> Iterator[tuple[float, FloatArray]]:
            found = run_features(model, self.features(samples), self.device)
            return ((score, anomaly) for score, anomaly, _ in found)

        return Material(self.features(split.train), anomalies, run)

    def _made(self, split: Split, config: Config) -> Anomalies:
        who = [[split.hashes[s.name] for s in group] for group in (split.train, split.known)]
        masks = [[hash_file(path) for path in (s.mask, *s.more_masks)] if s.mask else None for s in split.known]
        parts = [self.key, who, masks, asdict(config.pseudo), config.seed]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        if self._pseudo is None or self._pseudo[0] != key:
            self._pseudo = None  # before the next one takes its memory

            def fill(count: int, draw: Callable[[int], FloatArray]) -> Features:
                task = ProgressTask(self.progress, "pseudo anomalies", count)
                store = self._store(count, "pseudo", key, Budget(self.budget.left))
                store.fill(self._extract, draw, self.device, task.advance)
                return store

            self._pseudo = key, pseudo_anomalies(split, config, self.grids, self.bits, fill)
        return self._pseudo[1]
