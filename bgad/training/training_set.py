"""The training set as cached features: normals, known anomalies and pseudo anomalies of a split.

Some training normals are validation normals: no flow is trained on them, so they show how a model sees new normals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bgad.config import Config, PseudoConfig
from bgad.data import tiled_split
from bgad.data.sample_io import ImageCache, marks_all, region
from bgad.data.split import Split
from bgad.errors import DataError
from bgad.features.cache import AnomalyFeatures, Budget, Extractor, Features, FeatureStore, available_shards, even_pick
from bgad.geometry import tiles
from bgad.geometry.roi import Roi, mask_outside
from bgad.inference.base import SampleScore, score_tiles
from bgad.inference.torch_engine import run_model
from bgad.io.cpus import usable_cpus
from bgad.io.images import cut
from bgad.io.masks import defect_cells, touched_cells
from bgad.model import device as devices
from bgad.model.scoring import ScoringModel
from bgad.pseudo.generate import PSEUDO, PseudoAnomaly
from bgad.pseudo.rpag import fit_mask, foreground
from bgad.types import BoolArray, FloatArray, Index, Progress, ProgressTask, Sample

logger = logging.getLogger(__name__)

Grid = tuple[int, int]
CacheFeatures = Callable[[int, Callable[[int], FloatArray]], Features]  # arguments: number of images, image by number


ScoreSamples = Callable[[ScoringModel, list[Sample]], Iterator[SampleScore]]


@dataclass(frozen=True)
class TrainingSet:
    """Cached features of a split, and a function that scores its images with a model."""

    normals: Features
    anomalies: list[AnomalyFeatures]
    score: ScoreSamples
    roi_positions: list[Index] | None = None  # of each level, those inside the region of interest; None: all
    trained_positions: list[Index] | None = None  # of each level, those that the map in the region needs; None: all
    image_numbers: Index | None = None  # number of the image that each normal tile was cut from; None: no tiles

    @property
    def known(self) -> AnomalyFeatures | None:
        """The known anomalies; None where the method uses none."""
        return next((group for group in self.anomalies if not group.pseudo), None)


@dataclass(frozen=True)
class CacheOptions:
    """Where features are cached, and how much memory they may take before they go to disk."""

    work: Path
    key: str  # fingerprint of the run: features on disk with another key are computed again
    memory_gb: float
    progress: Progress | None = None


def build_training_set(
    model: ScoringModel,
    split: Split,
    images: ImageCache,
    device: torch.device,
    cache: CacheOptions,
    roi: Roi | None = None,
) -> TrainingSet:
    """Compute and cache the features of one training."""
    config, grids = model.config, model.grids
    budget = Budget(cache.memory_gb * 1e9)
    known = split.known if config.uses_anomalies else []
    pseudo_total = pseudo_count(split, config)
    extract = Extractor(model.backbone, config.backbone.size, device)
    task = ProgressTask(cache.progress, "features", len(split.train) + len(known) + pseudo_total)

    def compute(name: str, count: int, image: Callable[[int], FloatArray]) -> Features:
        folder = cache.work / name
        store = FeatureStore(count, grids, model.backbone.channels, budget=budget, folder=folder, key=cache.key)
        store.take(available_shards(folder, cache.key, store.done))
        store.fill(extract, image, device, task.advance)
        return store

    normals = compute("normals", len(split.train), lambda i: images.read(split.train[i]))
    unmasked_normals = normals.select(np.flatnonzero([s.ignore is None for s in split.train]))
    replace_ignored(normals, split.train, images, None, unmasked_normals, grids)
    anomalies = []
    if known:
        features = compute("known", len(known), lambda i: images.read(known[i]))
        anomalies.append(known_anomalies(known, features, grids, images))
        replace_ignored(features, known, images, anomalies[0], unmasked_normals, grids)
    if pseudo_total:
        cache_pseudo: CacheFeatures = lambda count, image: compute("pseudo", count, image)  # noqa: E731
        anomalies.append(pseudo_anomalies(split, config, grids, images, cache_pseudo, roi))
    return TrainingSet(
        normals,
        [group for group in anomalies if group.features.count],
        sample_scorer(config, images, device),
        None if roi is None else [roi.cells(grid) for grid in grids],
        None if roi is None else [positions_near(roi.resized(config.backbone.size), grid) for grid in grids],
        _image_numbers(split, config) if config.tile.size else None,
    )


def _image_numbers(split: Split, config: Config) -> Index:
    """Return the number of the image that each normal tile was cut from."""
    names = [tiled_split.image_name_of(tile.name, config.tile) for tile in split.train]
    return np.unique(names, return_inverse=True)[1]


def sample_scorer(config: Config, images: ImageCache, device: torch.device) -> ScoreSamples:
    """Return a function that scores samples as a detector does; a tiled image has the score of its highest tile."""

    def score_tiled(model: ScoringModel, sample: Sample) -> SampleScore:
        complete, inside = images.read_complete(sample), region(sample)
        shape = complete.shape[0], complete.shape[1]
        inputs = tiles.model_inputs(partial(cut, complete), shape, config.tile, inside, config.backbone.size)
        return score_tiles(lambda pixels: run_model(model, pixels, device), shape, inputs, config.tile, inside)

    def score(model: ScoringModel, samples: list[Sample]) -> Iterator[SampleScore]:
        def score_one(sample: Sample) -> SampleScore:
            if config.tile.size:
                return score_tiled(model, sample)
            output = run_model(model, images.read(sample)[None], device).one(0)
            return SampleScore(output, float(output.map.max()))

        return devices.WorkerPool(usable_cpus(), device).stream(score_one, samples)

    return score


def without_full_masks(split: Split) -> Split:
    """Return the split with known anomalies unmasked where a mask marks the whole image, which locates no defect."""
    known = []
    for sample in split.known:
        if sample.mask is not None and sample.box is None and marks_all(sample):
            logger.warning(f"{sample.mask} marks the whole image: {sample.name} is used as an anomaly without a mask")
            sample = replace(sample, mask=None, more_masks=())
        known.append(sample)
    return split if known == split.known else replace(split, known=known)


def with_visible_defect(split: Split, images: ImageCache) -> Split:
    """Return the split without known anomalies whose marked defect the model does not see: cropped off or outside."""
    kept = []
    for sample in split.known:
        mask = images.read_mask(sample)
        if mask is None or mask.any():
            kept.append(sample)
    if len(kept) < len(split.known):
        hidden = len(split.known) - len(kept)
        logger.warning(f"{hidden} known anomalies are left out: their defect lies outside of what the model sees")
    return split if kept == split.known else replace(split, known=kept)


def known_anomalies(
    known: Sequence[Sample], features: Features, grids: Sequence[Grid], images: ImageCache
) -> AnomalyFeatures:
    """Known anomalies with the cells that their masks mark."""
    masks = [images.read_mask(s) for s in known]
    marked = [mask is not None for mask in masks]
    return AnomalyFeatures(features, [mask_cells(masks, grid) for grid in grids], marked)


def replace_ignored(
    features: Features,
    samples: Sequence[Sample],
    images: ImageCache,
    known: AnomalyFeatures | None,
    normals: Features,
    grids: Sequence[Grid],
) -> None:
    """Replace the features in regions to ignore by those of other normals at the same positions.

    So neither the flows nor the image head learn from such a region. A cell that also shows a marked defect is kept.
    """
    for number, sample in enumerate(samples):
        ignore_mask = images.read_ignored(sample)
        if ignore_mask is None:
            continue
        if not normals.count:
            raise DataError(f"every normal has a region to ignore, as {sample.name} has: add normals without one")
        other = np.array(number % normals.count)
        for level, grid in enumerate(grids):
            positions = touched_cells(ignore_mask, grid)
            if known is not None and known.marked[number]:
                positions = np.setdiff1d(positions, known.cells[level][number])
            features.levels[level][features.index[number], positions] = normals.rows(level, other, positions)


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


def pseudo_count(split: Split, config: Config) -> int:
    """Return the number of pseudo anomalies that a training uses."""
    usable = config.uses_pseudo and can_generate(config.pseudo.method, split.known if config.uses_anomalies else [])
    return config.pseudo.count if usable else 0


def pseudo_anomalies(
    split: Split,
    config: Config,
    grids: Sequence[Grid],
    images: ImageCache,
    cache_features: CacheFeatures,
    roi: Roi | None = None,
) -> AnomalyFeatures:
    """Generate the pseudo anomalies of a split and cache their features.

    With a region of interest, those whose defect lies outside of it are dropped.
    """
    series = PseudoSeries(
        [s for s in split.train if s.ignore is None],
        [s for s in split.known if s.mask is not None and config.uses_anomalies],
        images,
        config.pseudo,
        config.seed,
    )
    masks: dict[int, BoolArray] = {}
    inside = None if roi is None else roi.resized(config.backbone.size)

    def make(index: int) -> FloatArray:
        image, masks[index], _ = series.make(index)
        if inside is not None:
            masks[index] &= inside
            return mask_outside(image, inside, "pseudo anomaly").astype(np.float32)
        return image

    count = config.pseudo.count
    features = cache_features(count, make)
    for index in range(count):
        if index not in masks:  # its features come from the cache of an earlier run
            make(index)
    kept = np.array([i for i in range(count) if masks[i].any()], np.int64)
    kept_masks = [masks[i] for i in kept]
    kept_features = features if len(kept) == count else features.select(kept)
    cells = [mask_cells(kept_masks, grid) for grid in grids]
    return AnomalyFeatures(kept_features, cells, [True] * len(kept), pseudo=True)


def mask_cells(masks: Sequence[BoolArray | None], grid: Grid) -> list[Index]:
    """Return the positions of a level that show the defect of each image; all positions where there is no mask."""
    everywhere = np.arange(grid[0] * grid[1])
    return [everywhere if mask is None else defect_cells(mask, grid) for mask in masks]


def positions_near(region: BoolArray, grid: Grid) -> Index:
    """Return the positions of a level that the map inside a region depends on: those in it and their neighbours.

    >>> region = np.zeros((8, 8), bool); region[:, 7] = True
    >>> positions_near(region, (1, 4))
    array([2, 3])
    """
    padded = np.zeros((grid[0] + 2, grid[1] + 2), bool)
    padded[1:-1, 1:-1].flat[touched_cells(region, grid)] = True
    return np.flatnonzero(np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).any((2, 3)))


MAX_VALIDATION = 64  # the standard error of a spread over 64 normals is 9 % of it
# Units that rest on six normals are wrong by a factor, so of few normals up to a third is taken, until there are 16.
FEW_VALIDATION = 16
# With fewer training normals than this, the flows need all of them, and there are no validation normals.
MIN_TRAINING_NORMALS = 32
VALIDATION_DIVISOR = 8  # one of eight normals is for validation


@dataclass(frozen=True)
class NormalPartition:
    """The training normals, divided into those that the levels are trained on, stored ones and validation normals."""

    flow_normals: Features
    bank: Features | None  # normals whose features are stored; None where the method stores none
    validation_index: Index  # numbers of the validation normals among the training normals; may be empty
    validation: Features | None  # None where there are none
    reference_index: Index  # validation normals, or an even sample of `flow_normals` where there are none
    reference: Features


def partition_normals(training_set: TrainingSet, chosen: Index, *, with_bank: bool = False) -> NormalPartition:
    """Divide the normals of a training set; `chosen` are the numbers of the validation normals.

    No other tile of an image with a validation tile is trained on. With a bank, every second of the other images is
    stored and the rest is trained on, so that no normal feature is compared with its own image. Pseudo anomalies may
    be made of stored images; only their defects are pushed.
    """
    normals = training_set.normals
    images = np.arange(normals.count) if training_set.image_numbers is None else training_set.image_numbers
    trained = np.flatnonzero(~np.isin(images, images[chosen]))
    stored = trained[:0]
    if with_bank:
        order = np.unique(images[trained], return_inverse=True)[1]
        trained, stored = trained[order % 2 == 1], trained[order % 2 == 0]
        if not len(trained):
            raise DataError("a bank of normals needs at least 2 training images: one to store, one to compare with it")
    reference = chosen if len(chosen) else trained[even_pick(len(trained), MAX_VALIDATION)]
    return NormalPartition(
        normals.select(trained),
        normals.select(stored) if with_bank else None,
        chosen,
        normals.select(chosen) if len(chosen) else None,
        reference,
        normals.select(reference),
    )


def choose_validation_normals(count: int, image_numbers: Index | None = None) -> Index:
    """Choose the validation normals among `count` training normals.

    One of eight, at most 64; a larger share of few normals, and none of very few. With tiles, `image_numbers` tells
    the image of each; then one of eight images is chosen with all of its tiles.

    >>> [len(choose_validation_normals(count)) for count in (31, 40, 59, 400, 5000)]
    [0, 13, 16, 50, 64]
    >>> choose_validation_normals(40, np.repeat(np.arange(8), 5)).tolist()
    [0, 1, 2, 3, 4]
    """
    enough = count >= MIN_TRAINING_NORMALS
    if image_numbers is None or len(np.unique(image_numbers)) == count:
        wanted = max(count // VALIDATION_DIVISOR, min(FEW_VALIDATION, count // 3))
        return even_pick(count, min(MAX_VALIDATION, wanted) if enough else 0)
    images = np.unique(image_numbers)
    chosen = images[even_pick(len(images), len(images) // VALIDATION_DIVISOR)]
    tiles = np.flatnonzero(np.isin(image_numbers, chosen))
    return tiles[even_pick(len(tiles), MAX_VALIDATION)] if enough else tiles[:0]
