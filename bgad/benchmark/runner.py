"""Runs the cells of a benchmark and writes its tables, beside the printed figures, and its page.

Cells of a category with the same backbone share the features of its images; cells of a seed share phase 1 of the
training. A finished cell is a file, so that a run that was killed continues with the next cell.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgad import metrics
from bgad._version import __version__
from bgad.artifact import folder as model_folder
from bgad.benchmark import page as benchmark_page
from bgad.benchmark.cost import FitMemory, fit_memory, model_cost
from bgad.benchmark.maps import draw_maps
from bgad.benchmark.output import csv_text, markdown
from bgad.benchmark.paper_tables import PaperTable
from bgad.benchmark.plan import Group, Outcome, Request, in_order, plan
from bgad.benchmark.tables import grids
from bgad.config import BASELINES, Config, override, preset_for, to_dict
from bgad.data.layouts import Dataset
from bgad.data.protocols import Case, protocol_split
from bgad.data.sample_io import MAX_UNREADABLE, hash_masks, validate_images
from bgad.data.split import Split
from bgad.errors import BgadError, ConfigError, is_out_of_memory
from bgad.evaluation.measure import Measurement, measure
from bgad.features.cache import Features
from bgad.features.scoring import run_features, score_features
from bgad.inference.torch_engine import Detector
from bgad.io import files as output_files
from bgad.methods.checkpoint import TRAINING_LOG, run_key
from bgad.model import backbone as backbones
from bgad.model import device as devices
from bgad.model.scoring import weight_files
from bgad.training.feature_pool import FeaturePool, FeaturePools
from bgad.training.fit_model import ModelFit, TrainingRun
from bgad.training.loop import TrainingLoop
from bgad.training.pipeline import largest, new_fit
from bgad.training.shared_phases import RECIPE_VERSION, SharedPhase, flow_key, phase_key, phase_two_key
from bgad.training.training_set import TrainingSet
from bgad.types import Progress, ProgressTask, RunControl, Shape, StopRequest

logger = logging.getLogger(__name__)

CURVE_POINTS = 24  # of a learning curve
WRITE_SECONDS = 10.0  # between two writes of the table while cells run
SHORT = 12  # characters of a key in a file name


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """The options of `run`, which are those of `bgad benchmark` on how it runs."""

    root: Path | None = None  # folder of the public data sets; None: $BGAD_DATA, else ./data
    device: str = "auto"  # cpu, cuda or mps; auto takes an accelerator where there is one
    memory_gb: float = 4.0  # memory for cached features; the rest goes to disk
    keep_models: bool = False  # keep the model of every cell
    maps: int = 0  # test anomalies of each cell whose anomaly maps are kept
    share_pushed: bool = False  # cells that differ in the score alone share flows that anomalies push; takes disk space


@dataclass(frozen=True)
class Setup:
    """What all cells of a run share."""

    out: Path
    configs: Mapping[str, Config]  # of each method
    device: devices.Device
    options: BenchmarkOptions
    control: RunControl


RunGroups = Callable[[Sequence[Group], Setup], Iterator[Outcome]]


def run(
    table: PaperTable,
    out: Path,
    *,
    configs: Mapping[str, Config] | None = None,
    options: BenchmarkOptions = BenchmarkOptions(),
    progress: Progress | None = None,
    stop: StopRequest | None = None,
    run_groups: RunGroups | None = None,
    groups: Sequence[Group] | None = None,
) -> list[Outcome]:
    """Run the cells that are not finished, and write results.json, table.md, table.csv and benchmark.html.

    `configs` are the recipes of the table's methods; None: their default presets. `run_groups` runs the cells of the
    groups elsewhere; None: here, one after the other. `groups` are the planned cells; None: all those of the table.
    """
    output_files.check_folder(out)
    given = {method: preset_for(method, None) for method in table.methods} if configs is None else configs
    recipes = {method: backbones.resolve(config) for method, config in given.items()}
    column_recipes = _column_recipes(table, recipes)
    if any(config.tile.size for config in column_recipes):
        raise ConfigError("a benchmark does not cut tiles: leave out tile.size, or use train and evaluate")
    with output_files.locked(out, "benchmark"):
        device = devices.pick(options.device)
        setup = Setup(out, recipes, device, options, RunControl(progress, stop))
        groups = plan(table.matrices, options.root) if groups is None else groups
        if any(group.requests for group in groups):
            _check_backbones(column_recipes)
        done: dict[Request, Outcome] = {}
        total, written = sum(len(group.requests) for group in groups), time.monotonic()
        task = ProgressTask(progress, "cells", total)
        try:
            for outcome in (run_groups or _run_here)(groups, setup):
                done[outcome.request] = outcome
                if outcome.reason:
                    logger.warning(f"{outcome.request.name()}: {outcome.reason}")
                task.advance(1, f"{outcome.request.category} {outcome.request.column.title}")
                if time.monotonic() - written > WRITE_SECONDS:
                    write(out, table, in_order(groups, done), recipes)
                    written = time.monotonic()
        except KeyboardInterrupt:
            finished = sum(outcome.cell is not None for outcome in done.values())
            logger.info(f"stopped; {finished} of {total} cells are in {out}: run the same command to continue")
            raise
        finally:
            write(out, table, in_order(groups, done), recipes)
    return in_order(groups, done)


def _run_here(groups: Sequence[Group], setup: Setup) -> Iterator[Outcome]:
    """Run the cells of all groups in this process."""
    for group in groups:
        yield from run_group(group, setup)


def _column_recipes(table: PaperTable, configs: Mapping[str, Config]) -> list[Config]:
    """Return the recipes of all columns; ConfigError where one is missing or changes a key to a wrong value."""
    if missing := [method for method in table.methods if method not in configs]:
        raise ConfigError(f"the table has the method {missing[0]}, but there is no recipe of it: give one in configs")
    recipes = []
    for column in dict.fromkeys(column for matrix in table.matrices for column in matrix.columns):
        try:
            recipes.append(backbones.resolve(override(configs[column.method], list(column.changes))))
        except ConfigError as error:
            raise ConfigError(f"column {column.title!r}: {error}") from error
    return recipes


def _check_backbones(configs: Sequence[Config]) -> None:
    """Raise ModelError where a backbone or its weights are not available, once instead of in every cell."""
    for backbone in dict.fromkeys(config.backbone for config in configs):
        backbones.check(backbone)
        if backbone.name not in backbones.BACKBONES:
            backbones.build(backbone)  # timm downloads the weights


def write(out: Path, table: PaperTable, outcomes: Sequence[Outcome], configs: Mapping[str, Config]) -> None:
    """Write the files of a run with the outcomes so far."""
    content = {
        "bgad": __version__,
        "cells": list({json.dumps(o.cell, sort_keys=True): o.cell for o in outcomes if o.cell is not None}.values()),
        "missing": [o.request.facts() | {"reason": o.reason, "failed": o.failed} for o in outcomes if o.cell is None],
    }
    output_files.write_atomic(out / "results.json", json.dumps(content, indent=1).encode())
    tables = grids(table, outcomes, configs)
    output_files.write_atomic(out / "table.md", markdown(table, tables, outcomes).encode())
    output_files.write_atomic(out / "table.csv", csv_text(tables).encode())
    output_files.write_atomic(out / "benchmark.html", benchmark_page.render(table, tables, outcomes).encode())


def run_group(group: Group, setup: Setup) -> Iterator[Outcome]:
    """Yield the outcomes of one category: finished cells are read, the others run on pools of features."""
    if group.dataset is None or not group.requests:
        return
    pools = FeaturePools(
        [_recipe(request, setup).backbone for request in group.requests],
        device=setup.device,
        folder=setup.out / "work" / f"pool-{group.requests[0].name('')}",
        memory_gb=setup.options.memory_gb,
        progress=setup.control.progress,
    )
    try:
        dataset, shapes = validate_images(group.dataset, MAX_UNREADABLE, pools.images, setup.control.progress)
        masks = zip(dataset.samples, hash_masks(dataset.samples), strict=True)
        mask_hashes = [[sample.name, *digests] for sample, digests in masks if digests]
    except Exception as error:  # noqa: BLE001 - _failure raises what it does not know
        yield from [_failure(request, error, setup) for request in group.requests]
        return
    for note in dataset.notes:
        logger.warning(f"{group.category}: {note}")
    splits: dict[tuple[str, Case, int, int], Split] = {}
    hashes: dict[str, str] | None = None
    for request in group.requests:
        try:
            protocol, case, known, seed = what = request.protocol, request.case, request.known, request.seed
            if what not in splits:
                splits[what] = protocol_split(dataset, protocol, case, known=known, seed=seed, hashes=hashes)
                hashes = splits[what].hashes
            split = splits[what]
            config = _recipe(request, setup)
            key = _cell_key(config, split, request, mask_hashes, setup.device)
            path, stored = _stored(setup.out, request, key)
            if stored is None or _lacks_files(request, setup, key):
                pool = pools.get(config.backbone, dataset, split)
                stored = _cell(request, dataset, split, config, pool, shapes, setup, key)
                del pool  # `pools` alone holds it
                output_files.write_atomic(path, json.dumps(stored, indent=1).encode())
            shutil.rmtree(_work(setup, key), ignore_errors=True)  # only now: a kill before this loses nothing
            file = path.relative_to(setup.out).as_posix()
            outcome = Outcome(request, stored["cell"] | request.facts(), notes=tuple(stored["notes"]), file=file)
        except Exception as error:  # noqa: BLE001 - _failure raises what it does not know
            outcome = _failure(request, error, setup)
        yield outcome  # not above: the exception holds the memory of the cell
    pools.drop()


def _failure(request: Request, error: Exception, setup: Setup) -> Outcome:
    """Return the outcome of a cell that failed for want of something; other errors are bugs and end the run."""
    if isinstance(error, BgadError):
        return Outcome(request, reason=str(error), failed=True)
    if not is_out_of_memory(error):
        raise error
    baseline = _recipe(request, setup).baseline
    batch = "train" if baseline is None else "baseline" if hasattr(baseline, "images_per_step") else ""
    smaller = f"--memory, --size or {batch}.images_per_step" if batch else "--memory or --size"
    return Outcome(request, reason=f"out of memory: lower {smaller}", failed=True)


def _recipe(request: Request, setup: Setup) -> Config:
    """Return the recipe of a cell."""
    config = backbones.resolve(override(setup.configs[request.column.method], list(request.column.changes)))
    return replace(config, seed=request.seed)


def _cell_key(
    config: Config, split: Split, request: Request, mask_hashes: list[list[str]], device: devices.Device
) -> str:
    """Return the fingerprint of a cell; cells with the same fingerprint have the same figures."""
    parts = [
        run_key(config, split, device),
        mask_hashes,
        request.data,
        request.category,
        request.column.curve,
        RECIPE_VERSION,
    ]
    return output_files.sha256_json(parts)


def _work(setup: Setup, key: str) -> Path:
    """Return the folder with the training state of a cell."""
    return setup.out / "work" / f"cell-{key[:16]}"


def kept_model(out: Path, request: Request, key: str) -> Path:
    """Return the folder of the model of a cell that is kept."""
    return out / "models" / f"{request.name()}-{key[:SHORT]}.bgad"


def map_file(out: Path, request: Request, key: str) -> Path:
    """Return the file with the anomaly maps that a cell keeps."""
    return out / "maps" / f"{request.name()}-{key[:SHORT]}.json"


def _lacks_files(request: Request, setup: Setup, key: str) -> bool:
    """Tell whether a finished cell lacks the model or the maps that this run keeps."""
    options = setup.options
    without_model = options.keep_models and not kept_model(setup.out, request, key).exists()
    return without_model or (options.maps > 0 and not map_file(setup.out, request, key).exists())


def _shared_phase(setup: Setup, name: str, key: str) -> SharedPhase:
    """Return the file with the state at the end of a phase, for all cells with this key."""
    return SharedPhase(setup.out / "work" / name / f"{key[:16]}.safetensors", key)


@dataclass(frozen=True)
class _SharedWork:
    """What a cell shares with others: the ends of its phases, and the work folder of flows that no anomaly pushes."""

    phases: Mapping[int, SharedPhase]
    flows: Path | None = None


def _shared_work(config: Config, split: Split, setup: Setup, *, alone: bool) -> _SharedWork:
    """Return what a cell shares; nothing where it must run `alone`, and nothing of a baseline."""
    if alone or config.method in BASELINES:
        return _SharedWork({})
    phases = {1: _shared_phase(setup, "phase-one", phase_key(config, split, setup.device))}
    flows = flow_key(config, split, setup.device)
    if flows is not None:
        return _SharedWork(phases, setup.out / "work" / "flows" / flows[:16])
    if setup.options.share_pushed:
        phases[2] = _shared_phase(setup, "phase-two", phase_two_key(config, split, setup.device))
    return _SharedWork(phases)


def _copy(folder: Path, to: Path) -> None:
    """Copy a folder; the copy appears complete or not at all."""
    fresh = to.with_name(f"{to.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(folder, fresh)
    fresh.rename(to)


def _stored(out: Path, request: Request, key: str) -> tuple[Path, dict[str, Any] | None]:
    """Return the file of a cell, and its content if it is finished; another table may have named the file."""
    cells = out / "cells"
    for path in cells.glob(f"*-{key[:SHORT]}.json"):
        try:
            stored = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(stored, dict) and stored.get("key") == key:
            return path, stored
    return cells / f"{request.name()}-{key[:SHORT]}.json", None


def _cell(
    request: Request,
    dataset: Dataset,
    split: Split,
    config: Config,
    pool: FeaturePool,
    shapes: Mapping[str, Shape],
    setup: Setup,
    key: str,
) -> dict[str, Any]:
    """Train, score and measure one cell; return the content of its file."""
    content = split.to_bytes()
    split_name = f"splits/{request.name('')}-{output_files.sha256_bytes(content)[:SHORT]}.json"
    output_files.write_atomic(setup.out / split_name, content)
    work = _work(setup, key)
    curve = None
    if request.column.curve:
        shutil.rmtree(work, ignore_errors=True)  # a curve begins with the first step
        curve = _Curve(pool, split)
    shared = _shared_work(config, split, setup, alone=curve is not None)
    has_flows = shared.flows is not None and shared.flows.exists()
    # The rest of a training may not show its memory. Phase 2 alone counts as the whole: its steps hold anomalies, too.
    is_partial = has_flows or work.exists()
    if shared.flows is not None and has_flows and not work.exists():
        _copy(shared.flows, work)
    work.mkdir(parents=True, exist_ok=True)
    model = pool.new_model(config)
    place = request.name(), dataset, split, split, pool.images.bits, setup.device, work
    biggest = largest(shapes[sample.name] for sample in split.train)
    training_set, features_seconds = _training_set(pool, split, config)  # before the run, whose clock times the fit
    run = TrainingRun(*place, largest_image=biggest, memory_gb=setup.options.memory_gb, control=setup.control)
    with fit_memory() as memory:
        fit = new_fit(run, model, training_set, resume=True, shared_phases=shared.phases)
        for _ in fit.steps():
            if curve is not None and isinstance(fit, ModelFit):
                curve.follow(fit.loop)
        detector = fit.finish()
    if shared.flows is not None and not shared.flows.exists():
        _copy(work, shared.flows)
    tested = [shapes[s.name] for s in split.test]
    measured = _measure(detector, request, split, pool.features(split.test), tested, setup.control.progress)
    cell = measured.cell | request.facts() | {"drawn": len(split.known)}
    cell["seconds"]["features"] = round(features_seconds, 3)
    cell["cost"] = model_cost(detector, split.test, tested, pool.images, FitMemory() if is_partial else memory)
    if curve is not None:
        cell["curve"] = curve.points
    if setup.options.keep_models:
        _keep(detector, kept_model(setup.out, request, key), work, content)
    if setup.options.maps:
        maps = draw_maps(detector.card, measured, setup.options.maps)
        output_files.write_atomic(map_file(setup.out, request, key), json.dumps(maps).encode())
    return {
        "key": key,
        "cell": cell,
        "images": measured.rows,
        "split": split_name,
        "notes": [*dataset.notes, *measured.notes],
        "config": to_dict(config),
        "versions": {"bgad": __version__, "torch": devices.torch_version(), "python": platform.python_version()},
    }


def _training_set(pool: FeaturePool, split: Split, config: Config) -> tuple[TrainingSet, float]:
    """Return the training set of a cell, and the seconds that all features took.

    Cells may share pseudo anomalies, whose features the first of them computes.
    """
    began = time.monotonic()
    training_set = pool.training_set(split, config)
    return training_set, pool.seconds + time.monotonic() - began


def _keep(detector: Detector, folder: Path, work: Path, split: bytes) -> None:
    """Write the model folder of a cell, without a graph."""
    log = (work / TRAINING_LOG).read_bytes()
    files = {**weight_files(detector.model), TRAINING_LOG: log, model_folder.SPLIT: split}
    model_folder.write(folder, detector.card, files)


def _measure(
    detector: Detector,
    request: Request,
    split: Split,
    features: Features,
    shapes: list[Shape],
    progress: Progress | None,
) -> Measurement:
    """Score the features of the test images and measure the model."""
    scored = zip(split.test, score_features(detector, features, shapes), strict=True)
    return measure(
        detector.card,
        scored,
        len(split.test),
        list(split.notes),
        data=request.data,
        category=request.category,
        progress=progress,
    )


class _Curve:
    """The learning curve of a training on the test images, at the size of the model's input, which is quick."""

    def __init__(self, pool: FeaturePool, split: Split) -> None:
        self._masks = pool.masks(split.test)
        self._labels = [s.label for s in split.test]
        self._features, self._device = pool.features(split.test), pool.device
        self.points: list[dict[str, float | None]] = []

    def follow(self, loop: TrainingLoop) -> None:
        """Measure the model if a point of the curve is due after this step."""
        schedule = loop.schedule
        if loop.step % max(1, schedule.steps // CURVE_POINTS) and loop.step != schedule.steps:
            return
        loop.set_constants()
        results = list(run_features(loop.model, self._features, self._device))
        scores, maps = [output.score for output in results], [output.map for output in results]
        figures = metrics.compute(scores, self._labels, maps, self._masks)
        phase = 1 if loop.step <= schedule.push_at else 2
        # no image AUROC: the units of the map's score are measured after the training
        self.points.append({"step": loop.step, "phase": phase, "pixel_auroc": figures["pixel_auroc"]})
