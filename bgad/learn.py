"""From a folder of images to a model folder: scan, split, features, training, calibration, writing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bgad import __version__, console, images, modelfile, pseudo
from bgad import backbone as backbones
from bgad import device as devices
from bgad.boundary import NORMALISER, abnormal_boundary
from bgad.calibration import Calibration, check_rate, effective_rate
from bgad.cells import defect_cells
from bgad.config import Config, to_dict
from bgad.data import folders
from bgad.data.split import Split, holdout_size, make_split
from bgad.detector import Detector, ScoringModel, run_model, weights
from bgad.errors import BgadError, ConfigError, DataError, ModelError, OutputError
from bgad.features import Budget, FeatureStore
from bgad.modelfile import Card
from bgad.outputs import write_whole
from bgad.trainer import CHECKPOINT, LOG, Anomalies, Trainer
from bgad.types import BoolArray, FloatArray, Sample

MAX_BAD = 10  # broken images that are skipped before training gives up
BOUNDARY_IMAGES = 64  # training normals whose maps give the edge of normal in map units


@dataclass(frozen=True)
class Options:
    """What a run needs besides the recipe; see `train`."""

    out: Path
    known: int | None
    test_share: float
    rate: float | None
    device: str
    memory_gb: float
    max_bad: int
    resume: bool
    overwrite: bool
    tensorboard: Path | None


def train(
    data: str | Path,
    out: str | Path | None = None,
    *,
    config: Config | None = None,
    known: int | None = None,
    test_share: float = 0.0,
    rate: float | None = None,
    device: str = "auto",
    memory_gb: float = 4.0,
    max_bad: int = MAX_BAD,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: Path | None = None,
) -> Detector:
    """Train on a data folder or manifest and write the model folder; returns the model, ready to score.

    The options are those of `bgad train`: known anomalies to use (None: all that are there for training, 10 of a
    test set), share of the normals to keep aside, false-reject rate, and how to run.
    """
    if max_bad < 0 or not 0 <= test_share < 1:
        raise ConfigError("max_bad must be 0 or more, and test_share 0 or more and below 1")
    root = Path(data)
    place = Path(out) if out else Path(f"{root.resolve().stem}.bgad")
    options = Options(place, known, test_share, rate, device, memory_gb, max_bad, resume, overwrite, tensorboard)
    return _train(root, (config or Config()).check(), options)


def _train(root: Path, config: Config, options: Options) -> Detector:
    began = time.monotonic()
    if options.rate is not None:
        check_rate(options.rate)
    modelfile.check_destination(options.out, overwrite=options.overwrite)
    work = _work_folder(options)
    dataset, scan = scan_images(folders.load(root), options.max_bad)
    for note in dataset.notes:
        console.warn(note)
    split = _split(dataset, config, options)
    console.say(
        f"{dataset.name}: {len(split.train)} normals to train on, {len(split.calibration)} held out to calibrate, "
        f"{len(split.known)} known anomalies ({sum(s.mask is not None for s in split.known)} with masks), "
        f"{len(split.test)} images left for test"
    )
    torch_device = devices.pick(options.device)
    devices.keep_memory()
    model = ScoringModel(config, backbones.build(config.backbone)).to(torch_device)
    key = _run_key(config, split, torch_device)
    _prepare_work(work, key, options, root)
    try:
        with _board(options.tensorboard) as watch:
            normals, anomalies = _features(model, split, config, scan.bits, torch_device, work, key, options.memory_gb)
            trainer = Trainer(model, normals, anomalies, work=work, device=torch_device, run_key=key, watch=watch)
            if options.resume and trainer.restore():
                console.say(f"going on from step {trainer.step} of {trainer.schedule.steps}")
            trainer.run()
        detector = _finish(model, trainer, dataset, split, config, options, scan.bits, torch_device, began)
    except KeyboardInterrupt:
        again = "" if options.resume else " and --resume"
        console.say(f"\nstopped; what was learnt is in {work}: go on with the same command{again}")
        raise
    except OSError as error:
        raise OutputError(f"cannot write to {work}: {error.strerror or error}; go on with --resume") from error
    shutil.rmtree(work)
    return detector


@dataclass(frozen=True)
class Scan:
    """What a look at every image of a data set tells."""

    bits: int
    skipped: list[str]


def scan_images(dataset: folders.Dataset, max_bad: int) -> tuple[folders.Dataset, Scan]:
    """Decode every image and mask once: broken ones are named, skipped and counted."""

    def look(sample: Sample) -> tuple[Sample | None, int, list[str]]:
        try:
            picture = images.read(sample.path)
            bits = images.bit_depth(sample.path) if picture.dtype != np.uint8 else 8
        except BgadError as error:
            return None, 8, [f"skipped: {error}"]
        if sample.mask is None:
            return sample, bits, []
        try:
            mask = images.read_mask(sample.mask)
        except BgadError as error:
            return replace(sample, mask=None), bits, [f"mask not used: {error}"]
        notes = []
        if mask.shape != picture.shape[:2]:
            sizes = f"{mask.shape[1]}x{mask.shape[0]} instead of {picture.shape[1]}x{picture.shape[0]}"
            notes.append(f"{sample.mask} is {sizes}: it is resized to its image")
        if not mask.any():
            notes.append(f"{sample.mask} marks no pixel: {sample.name} is used as an anomaly without a mask")
            return replace(sample, mask=None), bits, notes
        return sample, bits, notes

    kept, notes, skipped, depth = [], list(dataset.notes), [], 8
    with console.bar("reading", len(dataset.samples)) as bar, ThreadPoolExecutor(2) as pool:
        for sample, (seen, bits, said) in zip(dataset.samples, pool.map(look, dataset.samples), strict=True):
            if sample.split != "test":
                depth = max(depth, bits)
            notes += said
            if seen is None:
                skipped.append(sample.name)
            else:
                kept.append(seen)
            bar.update()
    if len(skipped) > max_bad:
        raise DataError(
            f"{len(skipped)} images of {dataset.root} cannot be read (more than --max-bad {max_bad}), the first: "
            f"{next(n for n in notes if n.startswith('skipped'))[9:]}"
        )
    if skipped:
        notes.append(f"{len(skipped)} broken images skipped: {', '.join(skipped[:5])}")
    return replace(dataset, samples=kept, notes=notes), Scan(depth, skipped)


def _split(dataset: folders.Dataset, config: Config, options: Options) -> Split:
    pool = [s for s in dataset.samples if s.label == 0 and s.split != "test"]
    aside = 0
    if options.test_share and not any(s.split == "test" for s in dataset.samples):
        aside = max(1, round(options.test_share * len(pool)))
    uses_anomalies = config.loss.method in ("bgad", "bgad-full-push")
    split = make_split(
        dataset,
        seed=config.seed,
        known=options.known,
        holdout=holdout_size(len(pool) - aside, options.rate),
        test_share=options.test_share,
    )
    for note in split.notes:
        console.warn(note)
    if uses_anomalies and not split.known:
        console.warn(f"{dataset.root} has no known anomalies: {config.loss.method} learns from normals alone")
    return split


def _work_folder(options: Options) -> Path:
    work = options.out.with_name(f"{options.out.name}.work")
    if (work / CHECKPOINT).exists() and not options.resume:
        raise OutputError(f"{work} holds an unfinished run: go on with --resume, or delete the folder")
    return work


def _prepare_work(work: Path, key: str, options: Options, root: Path) -> None:
    note = work / "run.json"
    if not options.resume and work.exists():
        if not note.exists() and any(work.iterdir()):
            raise OutputError(f"{work} is in the way and is not ours: move it, or choose another --out")
        shutil.rmtree(work)
    if note.exists() and json.loads(note.read_text())["key"] != key:
        raise ModelError(f"{work} belongs to a run with other data or settings: give the same ones, or delete it")
    write_whole(note, json.dumps({"key": key, "data": root.name}).encode())


def _run_key(config: Config, split: Split, device: torch.device) -> str:
    """Two runs with the same key make the same model."""
    masks = [folders.hash_file(s.mask) if s.mask else None for s in split.known]
    weights_file = folders.hash_file(Path(config.backbone.weights)) if config.backbone.weights else ""
    parts = [to_dict(config), split.to_json(), masks, weights_file, device.type, torch.__version__, __version__]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _features(
    model: ScoringModel,
    split: Split,
    config: Config,
    bits: int,
    device: torch.device,
    work: Path,
    key: str,
    memory_gb: float,
) -> tuple[FeatureStore, list[Anomalies]]:
    """Caches of the training normals, of the known anomalies, and of the pseudo anomalies made of them."""
    size = (config.backbone.size, config.backbone.size)
    grids, channels = [level.grid for level in model.levels], model.backbone.channels
    budget = Budget(memory_gb * 1e9)
    pushing = config.loss.method in ("bgad", "bgad-full-push")
    known = split.known if pushing else []
    with_masks = [s for s in known if s.mask is not None]
    made = config.pseudo.count if config.pseudo.method != "none" and with_masks else 0

    def picture(sample: Sample) -> FloatArray:
        return images.fit(images.read(sample.path, bits=bits), size)

    def make(index: int) -> tuple[FloatArray, BoolArray]:
        image, mask, _ = pseudo.pseudo_anomaly(
            index,
            split.train,
            with_masks,
            seed=config.seed,
            size=size,
            method=config.pseudo.method,
            transforms=config.pseudo.transforms,
            bits=bits,
        )
        return image, mask

    anomalies = []
    with console.bar("features", len(split.train) + len(known) + made) as bar:

        def store(name: str, count: int, pictures: Callable[[int], FloatArray]) -> FeatureStore:
            place = FeatureStore(count, grids, channels, budget=budget, folder=work / name, key=key)  # type: ignore[arg-type]
            place.fill(model.backbone, pictures, device, bar.update)
            return place

        normals = store("normals", len(split.train), lambda i: picture(split.train[i]))
        if known:
            marked = [s.mask is not None for s in known]
            masks = [None if s.mask is None else images.read_mask(s.mask) for s in known]
            real = store("known", len(known), lambda i: picture(known[i]))
            anomalies.append(Anomalies(real, [_cells(masks, grid) for grid in grids], marked))  # type: ignore[arg-type]
        if made:
            drawn: dict[int, BoolArray] = {}

            def draw(index: int) -> FloatArray:
                image, drawn[index] = make(index)
                return image

            copies = store("pseudo", made, draw)
            masks = [drawn[i] if i in drawn else make(i)[1] for i in range(made)]
            anomalies.append(Anomalies(copies, [_cells(masks, grid) for grid in grids], [True] * made))  # type: ignore[arg-type]
    return normals, anomalies


def _cells(masks: list[BoolArray | None], grid: tuple[int, int]) -> list[Any]:
    everywhere = np.arange(grid[0] * grid[1])
    return [everywhere if mask is None else defect_cells(mask, grid) for mask in masks]


def _finish(
    model: ScoringModel,
    trainer: Trainer,
    dataset: folders.Dataset,
    split: Split,
    config: Config,
    options: Options,
    bits: int,
    device: torch.device,
    began: float,
) -> Detector:
    """Constants of the training normals, scores of the held-out ones, and the model folder."""
    constants = trainer.constants()
    for level, constant in zip(trainer.levels, constants, strict=True):
        level.set_constants(constant)
    model.eval()
    size = (config.backbone.size, config.backbone.size)

    def run(samples: list[Sample], bar: console.Bar) -> list[tuple[float, FloatArray]]:
        def one(sample: Sample) -> tuple[float, FloatArray]:
            pixels = images.fit(images.read(sample.path, bits=bits), size)
            scores, maps, _ = run_model(model, pixels[None], device)
            bar.update()
            return float(scores[0]), maps[0]

        return list(devices.Workers(os.cpu_count() or 1, device).stream(one, samples))

    step = max(1, len(split.train) // BOUNDARY_IMAGES)
    some = split.train[::step][:BOUNDARY_IMAGES]
    with console.bar("calibrating", len(split.calibration) + len(some)) as bar:
        held_out = [score for score, _ in run(split.calibration, bar)]
        normal_maps = np.stack([found for _, found in run(some, bar)])
        edge = float(np.quantile(normal_maps, 1 - config.loss.beta))
    calibration = Calibration(tuple(held_out), effective_rate(len(held_out), options.rate))
    card = {
        "bgad": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": options.out.stem,
        "data": {
            "name": dataset.name,
            "layout": dataset.layout,
            "protocol": _protocol(dataset, split),
            "known": len(split.known),
            "notes": dataset.notes + split.notes,
        },
        "config": to_dict(replace(config, backbone=replace(config.backbone, weights=""))),
        "input": {
            "bits": bits,
            "mean": model.backbone.mean.flatten().tolist(),
            "std": model.backbone.std.flatten().tolist(),
        },
        "levels": [
            {
                "stride": stride,
                "channels": channels,
                "grid": list(level.grid),
                "centre": c.centre,
                "spread": c.spread,
                "highest": c.highest,
                "boundary": c.boundary,
                "abnormal_boundary": abnormal_boundary(c.boundary / NORMALISER, config.loss.tau) * NORMALISER,
            }
            for stride, channels, level, c in zip(
                model.backbone.strides, model.backbone.channels, trainer.levels, constants, strict=True
            )
        ],
        "boundary": edge,
        "centre": float(normal_maps.mean()),
        "calibration": {
            "scores": sorted(held_out),
            "rate": calibration.rate,
            "threshold": calibration.threshold,
            "guarantee": calibration.guarantee(),
        },
        "split": split.to_json(),
        "training": {
            "seconds": round(time.monotonic() - began + trainer.seconds_before, 2),
            "loop_seconds": round(trainer.seconds, 2),
            "steps": trainer.step,
            "device": str(device),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "licences": {
            "bgad": "Apache-2.0",
            "backbone": _backbone_licence(config.backbone.name),
            "data": "that of the training images applies to what the model learnt from them",
        },
    }
    log = (trainer.work / LOG).read_bytes()
    modelfile.write(options.out, card, {**weights(model), LOG: log})
    console.say(calibration.guarantee())
    console.say(f"model: {options.out}")
    return Detector(model, Card(modelfile.read(options.out).data), device)


def _protocol(dataset: folders.Dataset, split: Split) -> str:
    """How the known anomalies came about: none, the data set's own choice, or drawn over all its classes."""
    if not split.known:
        return "unsupervised"
    drawn = len(split.known) < sum(s.label for s in dataset.samples if s.split != "train")
    return "multi-class" if drawn and split.known[0].split != "train" else "given"


def _backbone_licence(name: str) -> str:
    if name in backbones.BACKBONES:
        return "Apache-2.0 (EfficientNet-Lite weights trained on ImageNet)"
    return f"see timm's page of {name}"


@contextmanager
def _board(folder: Path | None) -> Iterator[Callable[[int, dict[str, float]], None] | None]:
    """A TensorBoard writer, when asked for and installed; what it still holds is written at the end."""
    if folder is None:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OutputError("TensorBoard is not installed: pip install 'bgad[tensorboard]'") from error
    with SummaryWriter(str(folder)) as writer:

        def watch(step: int, row: dict[str, float]) -> None:
            for key, value in row.items():
                if key != "step" and not np.isnan(value):
                    writer.add_scalar(key, value, step)

        yield watch
