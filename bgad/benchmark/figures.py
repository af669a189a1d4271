"""The data of the paper's figures, from trainings on one data set: `bgad figures`.

Everything is computed after the trainings. Nothing here chooses a model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bgad import metrics
from bgad.config import Config
from bgad.data.layouts import Dataset
from bgad.data.protocols import Case, protocol_split
from bgad.data.sample_io import MAX_UNREADABLE, ImageCache, validate_images
from bgad.data.split import Split
from bgad.errors import DataError
from bgad.features.scoring import latents, run_features
from bgad.inference.base import Output
from bgad.io.masks import defect_cells
from bgad.methods.checkpoint import run_key
from bgad.model import device as devices
from bgad.model.scoring import LevelModel
from bgad.training.feature_pool import FeaturePool, FeaturePools
from bgad.training.fit_model import ModelFit, TrainingRun
from bgad.training.snapshots import Snapshot, Snapshots, restore
from bgad.types import BoolArray, FloatArray, Index, Progress, ProgressTask, RunControl, Sample

logger = logging.getLogger(__name__)

MIN_ANOMALIES = 5  # below, a histogram or a t-SNE of anomalies says nothing
CURVE_POINTS = 12
TSNE_FEATURES = 300  # of each group
TSNE_LEVEL = -1  # the coarsest level, whose features are the most semantic

NORMAL, KNOWN, SEEN, UNSEEN = "normal", "known anomaly", "anomaly of a known class", "anomaly of an unseen class"


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """What `collect` trains on, as in a benchmark."""

    protocol: str = "multi-class"
    case: Case = field(default_factory=Case)
    known: int = 10
    seed: int = 0
    device: str = "auto"
    memory_gb: float = 4.0


@dataclass(frozen=True)
class CurvePoint:
    """AUROC on the test images after some steps; None where the data cannot tell."""

    step: int
    epoch: float
    phase: int
    image_auroc: float | None
    pixel_auroc: float | None


@dataclass(frozen=True)
class FeatureGroup:
    """Single features of one kind for t-SNE: as the backbone gives them, and their latents (n, C) each."""

    name: str
    features: FloatArray
    before: FloatArray  # latents at the end of phase 1
    after: FloatArray  # latents at the end of phase 2


@dataclass(frozen=True)
class MethodResult:
    """What one method gave on the test images."""

    method: str
    outputs: list[Output]
    boundary: float  # of the anomaly map
    low: float  # mean of the map over normals
    level_boundaries: list[float]
    curve: list[CurvePoint]
    groups: list[FeatureGroup]


@dataclass(frozen=True)
class FigureData:
    """Everything that the figures of one data set show."""

    name: str
    split: Split
    images: ImageCache
    masks: list[BoolArray | None]  # of the test images, as the model sees them
    results: list[MethodResult]
    config: Config  # of the last method


def check_possible(figure: str, split: Split) -> None:
    """DataError where the data of a split cannot give a figure."""
    anomalous = [s for s in split.test if s.label]
    marked = [s for s in anomalous if s.mask is not None]
    if figure in ("histogram", "tsne", "curve") and len(anomalous) < MIN_ANOMALIES:
        raise DataError(f"{figure} needs at least {MIN_ANOMALIES} anomalies to test, there are {len(anomalous)}")
    if figure == "qualitative" and not marked:
        raise DataError("qualitative outlines the ground truth, and no tested anomaly has a mask: leave it out")
    if figure == "tsne" and len({s.defect for s in (*split.known, *anomalous)}) < 2:
        raise DataError("tsne tells known from unseen classes, and there is one class of anomalies: leave it out")
    if figure == "rpag" and not any(s.mask is not None for s in split.known):
        raise DataError("rpag cuts pseudo anomalies from known anomalies with masks, and there are none: leave it out")


def possible(split: Split, wanted: Sequence[str], *, named: bool) -> list[str]:
    """Return the figures that can be drawn; one that was named and cannot be drawn raises, others are logged."""
    kept = []
    for figure in wanted:
        try:
            check_possible(figure, split)
            kept.append(figure)
        except DataError as error:
            if named:
                raise
            logger.warning(f"left out: {error}")
    return kept


def new_pools(
    configs: Sequence[Config], folder: Path, options: FigureOptions, progress: Progress | None = None
) -> FeaturePools:
    """Return the pools for the features by the backbones of all recipes."""
    return FeaturePools(
        [config.backbone for config in configs],
        device=devices.pick(options.device),
        folder=folder,
        memory_gb=options.memory_gb,
        progress=progress,
    )


def make_split(
    dataset: Dataset, images: ImageCache, options: FigureOptions, progress: Progress | None = None
) -> tuple[Dataset, Split]:
    """Validate a data set with the image cache of the pools and divide it as the benchmark does."""
    dataset, _ = validate_images(dataset, MAX_UNREADABLE, images, progress)
    split = protocol_split(dataset, options.protocol, options.case, known=options.known, seed=options.seed)
    return dataset, split


def collect(
    dataset: Dataset,
    split: Split,
    configs: Sequence[Config],
    pools: FeaturePools,
    work: Path,
    control: RunControl,
    *,
    with_curve: bool = True,
) -> FigureData:
    """Train every recipe on a split and return what the figures show.

    The curve scores all test images many times, which takes longer than a training.
    """
    results = []
    for config in configs:
        pool = pools.get(config.backbone, dataset, split)
        results.append(_result(dataset, split, config, pool, work, control, with_curve=with_curve))
    masks = [pool.images.read_mask(s) for s in split.test]
    return FigureData(dataset.name, split, pool.images, masks, results, configs[-1])


def _result(
    dataset: Dataset,
    split: Split,
    config: Config,
    pool: FeaturePool,
    work: Path,
    control: RunControl,
    *,
    with_curve: bool,
) -> MethodResult:
    """Train one method, and look at its flows along the way and at the end."""
    folder = work / f"{config.method}-{run_key(config, split, pool.device)[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    run = TrainingRun(config.method, dataset, split, split, pool.images.bits, pool.device, folder, control=control)
    model = LevelModel(config, pool.backbone).to(pool.device)
    fit = ModelFit(run, model, pool.training_set(split, config))
    snapshots = Snapshots(CURVE_POINTS)
    for _ in fit.steps():
        snapshots.follow(fit.loop)
    detector = fit.finish()
    final = {name: value.clone() for name, value in fit.model.levels.state_dict().items()}
    features = pool.features(split.test)
    outputs = list(run_features(detector.model, features, pool.device))
    masks = pool.masks(split.test)
    curve, before = [], None
    chosen = _tsne_features(split, pool, len(fit.loop.levels))
    end_of_phase_one = snapshots.end_of_phase_one()
    shown = snapshots.taken if with_curve else [end_of_phase_one]
    task = ProgressTask(control.progress, f"looking back at {config.method}", len(shown))
    for snapshot in shown:
        restore(fit.loop, snapshot)
        if with_curve:
            values = list(run_features(detector.model, features, pool.device))
            curve.append(_curve_point(snapshot, values, split, masks))
        if snapshot is end_of_phase_one:
            before = [latents(fit.model, level, pool.store, i, p) for _, level, i, p in chosen]
        task.advance()
    fit.model.levels.load_state_dict(final)
    groups = [
        FeatureGroup(name, pool.store.rows(level, i, p), earlier, latents(fit.model, level, pool.store, i, p))
        for (name, level, i, p), earlier in zip(chosen, before or [], strict=True)
    ]
    card = detector.card
    boundaries = [level.normal_boundary for level in card.levels]
    return MethodResult(config.method, outputs, card.map.boundary, card.map.mean, boundaries, curve, groups)


def _curve_point(
    snapshot: Snapshot, outputs: Sequence[Output], split: Split, masks: Sequence[BoolArray | None]
) -> CurvePoint:
    """Measure the flows of a snapshot on the test images, with maps and masks of the size of the model's input."""
    labels = [s.label for s in split.test]
    figures = metrics.compute([o.score for o in outputs], labels, [o.map for o in outputs], masks)
    return CurvePoint(snapshot.step, snapshot.epoch, snapshot.phase, figures["image_auroc"], figures["pixel_auroc"])


def _tsne_features(split: Split, pool: FeaturePool, levels: int) -> list[tuple[str, int, Index, Index]]:
    """Draw single features of each kind: name of the kind, level, image numbers in the pool, positions."""
    level = range(levels)[TSNE_LEVEL]
    grid, rng = pool.grids[level], np.random.default_rng(0)
    known_classes = {s.defect for s in split.known}
    kinds: dict[str, list[Sample]] = {
        NORMAL: [s for s in split.test if not s.label],
        KNOWN: list(split.known),
        SEEN: [s for s in split.test if s.label and s.defect in known_classes],
        UNSEEN: [s for s in split.test if s.label and s.defect not in known_classes],
    }
    chosen = []
    for name, samples in kinds.items():
        numbers, positions = list[int](), list[int]()
        for sample in samples:
            mask = pool.images.read_mask(sample) if sample.label else None
            cells = np.arange(grid[0] * grid[1]) if mask is None else defect_cells(mask, grid)
            numbers += [pool.number(sample)] * len(cells)
            positions += cells.tolist()
        if numbers:
            order = rng.permutation(len(numbers))[:TSNE_FEATURES]
            chosen.append((name, level, np.array(numbers, np.int64)[order], np.array(positions, np.int64)[order]))
    return chosen


def qualitative_samples(data: FigureData, count: int = 6) -> list[int]:
    """Return the numbers of test images to show: marked anomalies, spread over the defect classes."""
    classes: dict[str, list[int]] = {}
    for i, (sample, mask) in enumerate(zip(data.split.test, data.masks, strict=True)):
        if mask is not None and mask.any():
            classes.setdefault(sample.defect, []).append(i)
    turns = [numbers[k] for k in range(count) for numbers in classes.values() if k < len(numbers)]
    return turns[:count]
