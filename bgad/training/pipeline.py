"""From a folder of images to a model folder: scan, split, features, training, calibration, writing."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from bgad.artifact import folder as model_folder
from bgad.artifact.folder import Card
from bgad.calibration import Calibration, check_rate, effective_rate, require_supported
from bgad.config import Config
from bgad.data import layouts, locate, tiled_split
from bgad.data.sample_io import read, read_mask
from bgad.data.split import Split, make_split
from bgad.data.validation import MAX_BAD, Scan, scan_images
from bgad.errors import BgadError, ConfigError, DataError, ModelError, OutputError
from bgad.features.cache import Index, even_pick
from bgad.geometry.roi import Roi
from bgad.inference.torch_engine import Detector
from bgad.io import files as output_files
from bgad.io.files import write_whole
from bgad.model import backbone as backbones
from bgad.model import device as devices
from bgad.model.scoring import ScoringModel, pool
from bgad.model.weights import BACKBONE_FILE, FLOW_FILE, weight_files
from bgad.pseudo.generate import can_generate
from bgad.training import provenance
from bgad.training import tensorboard as board
from bgad.training.card_builder import build_card
from bgad.training.fingerprint import run_key
from bgad.training.fit_image_head import ASIDE, Weighing
from bgad.training.loop import CHECKPOINT, LOG, PhaseOne, Trainer
from bgad.training.provenance import Origin
from bgad.training.training_set import PUSHING, Material, gather
from bgad.types import TAUGHT, FloatArray, ImageLike, Progress, ProgressTask, Sample

logger = logging.getLogger(__name__)

MIDWAY = 0.5  # flows that go on from another model's end so far on the way that they have learnt, and forget less
EXPORT_PICTURES = 32  # that the graph is compared with torch on; tiles, where pictures are cut
RUN = "run.json"  # in the work folder: which run it is


@dataclass(frozen=True)
class Options:
    """What a run needs besides the recipe; see `train`."""

    out: Path
    known: int | None
    test_share: float
    split: Path | None
    rate: float | None
    device: str
    memory_gb: float
    max_bad: int
    resume: bool
    overwrite: bool
    tensorboard: Path | None
    export: bool
    roi: Path | None
    progress: Progress | None = None


def train(
    data: str | Path,
    out: str | Path | None = None,
    *,
    root: str | Path | None = None,
    config: Config | None = None,
    known: int | None = None,
    test_share: float = 0.0,
    split: str | Path | None = None,
    rate: float | None = None,
    device: str = "auto",
    memory_gb: float = 4.0,
    max_bad: int = MAX_BAD,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: Path | None = None,
    export: bool = True,
    roi: str | Path | None = None,
    progress: Progress | None = None,
) -> Detector:
    """Train on a folder, a manifest or a public data set and write the model folder; returns the model, ready to score.

    The options are those of `bgad train`: where public data sets are, known anomalies to use (None: all that are there
    for training, 10 of a test set), share of the normals to keep aside, or a split file in place of both;
    false-reject rate, and how to run. `export` adds the graph that scores without torch; `roi` is a picture of where
    to look (black: not there), or a JSON file with polygons.
    """
    if max_bad < 0 or not 0 <= test_share < 1:
        raise ConfigError("max_bad must be 0 or more, and test_share 0 or more and below 1")
    if split is not None and (known is not None or test_share):
        raise ConfigError("a split file says which images are known and which are tested: leave out --known and --test")
    place = Path(out) if out else locate.model_folder(data)
    given = None if split is None else Path(split)
    options = Options(
        place,
        known,
        test_share,
        given,
        rate,
        device,
        memory_gb,
        max_bad,
        resume,
        overwrite,
        tensorboard,
        export,
        None if roi is None else Path(roi),
        progress,
    )
    return _train(Path(data), root, (config or Config()).check(), options)


def _train(data: Path, root: str | Path | None, config: Config, options: Options) -> Detector:
    began = time.monotonic()
    if options.rate is not None:
        check_rate(options.rate)
    model_folder.check_destination(options.out, overwrite=options.overwrite)
    work = _work_folder(options)
    if options.resume and not unfinished(options.out):
        logger.warning(f"there is nothing to resume in {work}: training begins anew")
    devices.pick(options.device)  # what cannot work is told before every picture has been read
    backbones.check(config.backbone)
    if options.split is not None and not options.split.is_file():
        raise DataError(f"{options.split}: cannot be read: No such file or directory")
    roi = None if options.roi is None else Roi.load(options.roi)
    dataset, scan = scan_images(locate.load(data, root), options.max_bad, options.progress)
    for note in dataset.notes:
        logger.warning(note)
    if roi is not None:
        _check_size(roi, f"{options.roi}", dataset, scan)
    origin = provenance.given(data, root)
    return learn(dataset, scan, _split(dataset, config, options), config, options, roi, began=began, origin=origin)


def learn(
    dataset: layouts.Dataset,
    scan: Scan,
    split: Split,
    config: Config,
    options: Options,
    roi: Roi | None,
    *,
    began: float,
    origin: Origin,
    start: Path | None = None,
) -> Detector:
    """Train on a split and write the model folder. With `start`, the flows go on from those of that model; `origin`
    says where the pictures are."""
    logger.info(
        f"{dataset.name}: {len(split.train)} normals to train on, {len(split.calibration)} held out to calibrate, "
        f"{len(split.known)} known anomalies ({sum(s.mask is not None for s in split.known)} with masks), "
        f"{len(split.test)} images left for test"
    )
    torch_device = devices.pick(options.device)
    devices.keep_memory()
    state = None if start is None else safetensors.torch.load_file(start / BACKBONE_FILE)
    model = ScoringModel(config, backbones.build(config.backbone, state)).to(torch_device)
    if start is not None:
        model.load_state_dict(flows_of(start), strict=False)
    key = run_key(config, split, torch_device, roi, start)
    with _working(options, key, dataset.name) as work, board.writer(options.tensorboard) as watch:
        if roi is not None and not config.tile.size:
            model.look_at(roi.fitted(config.backbone.size))
        if roi is not None:
            split = _looking_at(split, roi, work / model_folder.ROI)
        learnt = tiled_split.cut(split, config.tile, scan.shapes) if config.tile.size else _learnable(split)
        before = None if start is None else Before.of(start, learnt, config)
        name, bits, rate = options.out.stem, scan.bits, options.rate
        job = Job(
            name, dataset, split, learnt, bits, torch_device, work, key, rate, roi, before, began, options.progress
        )
        looked_at = None if config.tile.size else roi
        material = gather(model, learnt, bits, torch_device, work, key, options.memory_gb, looked_at, options.progress)
        detector = fit(job, model, material, resume=options.resume, watch=watch)
        files = {**weight_files(model), LOG: (work / LOG).read_bytes(), model_folder.SPLIT: split.to_bytes()}
        if roi is not None:
            files[model_folder.ROI] = roi.png()
        card = detector.card.data
        if start is not None:
            card = card | {"parent": model_folder.read(start).data["checksum"]}
        if options.export:
            card, files = _with_graph(detector, learnt, card, files, options.progress)
        model_folder.write(options.out, card, files)
    logger.info(detector.calibration.guarantee())
    logger.info(f"model: {options.out}")
    written = model_folder.read(options.out)
    provenance.remember(written.data["checksum"], origin)
    return Detector(model, written, torch_device)


def _check_size(roi: Roi, name: str, dataset: layouts.Dataset, scan: Scan) -> None:
    """Where to look must have the size of the pictures."""
    for sample in dataset.samples:
        height, width = scan.shapes[sample.name]
        if sample.box is not None:
            raise DataError(f"{sample.name} is a tile of a picture: a region of interest is for whole pictures")
        if (height, width) != roi.mask.shape:
            size = f"{roi.mask.shape[1]}x{roi.mask.shape[0]}"
            raise DataError(f"{sample.name} is {width}x{height}, the region of interest {name} {size}: make them equal")


def _looking_at(split: Split, roi: Roi, file: Path) -> Split:
    """The split with samples that show nothing but the region."""
    write_whole(file, roi.png())
    train, calibration, known, test = (
        [replace(sample, roi=file) for sample in role]
        for role in (split.train, split.calibration, split.known, split.test)
    )
    return replace(split, train=train, calibration=calibration, known=known, test=test)


def flows_of(folder: Path) -> dict[str, torch.Tensor]:
    """What a model has learnt, without its backbone."""
    model_folder.read(folder, needs=(FLOW_FILE, BACKBONE_FILE))
    return safetensors.torch.load_file(folder / FLOW_FILE)


def _learnable(split: Split) -> Split:
    """The split without known anomalies whose defect lies where nobody looks."""
    kept = [s for s in split.known if s.roi is None or s.mask is None or _shows_defect(s)]
    if len(kept) < len(split.known):
        logger.warning(f"{len(split.known) - len(kept)} known anomalies have their defect outside of the region")
    return replace(split, known=kept)


def _shows_defect(sample: Sample) -> bool:
    mask = read_mask(sample)
    return mask is not None and bool(mask.any())


def _with_graph(
    detector: Detector, learnt: Split, card: dict[str, Any], files: dict[str, bytes], progress: Progress | None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The card and the files with the graph, compared with torch on some pictures; as they are where it fails."""
    from bgad.export import onnx as export

    everyone = [*learnt.known, *(learnt.train if detector.tile.size else [*learnt.test, *learnt.calibration])]
    chosen = [everyone[i] for i in even_pick(len(everyone), EXPORT_PICTURES)]
    on_cpu = Detector(copy.deepcopy(detector.model), detector.card, torch.device("cpu"))  # accelerators round otherwise
    if detector.tile.size:
        on_cpu.roi = None  # a tile has been painted over when it was read
    try:
        pictures: list[ImageLike] = [s.path if s.box is None else read(s, detector.card.bits) for s in chosen]
        made, parity = export.checked_graph(on_cpu, pictures, progress=progress)
    except BgadError as error:
        logger.warning(f"no graph is written: {error}")
        return card, files
    return card | {"export": {"onnx": export.about(parity)}}, files | made


def _split(dataset: layouts.Dataset, config: Config, options: Options) -> Split:
    if options.split is None:
        split = make_split(
            dataset, rate=options.rate, seed=config.seed, known=options.known, test_share=options.test_share
        )
    else:
        split = Split.load(options.split, dataset)
        if options.rate is not None:
            require_supported(len(split.calibration), options.rate)
    for note in split.notes:
        logger.warning(note)
    if config.loss.method in PUSHING and not split.known:
        made = config.pseudo.count and can_generate(config.pseudo.method, [])
        others = f"normals and {config.pseudo.method} pseudo anomalies" if made else "normals alone"
        logger.warning(f"{dataset.root} has no known anomalies: {config.loss.method} learns from {others}")
    return split


def unfinished(out: Path) -> bool:
    """Whether a training that was to write this model can be gone on with."""
    return (_work(out) / CHECKPOINT).exists()


def _work(out: Path) -> Path:
    return out.with_name(f"{out.name}.work")


def _work_folder(options: Options) -> Path:
    work = _work(options.out)
    if (work / output_files.LOCK).exists():
        with output_files.locked(work, "training"):
            pass  # else it is told here that another one is at work
    if unfinished(options.out) and not options.resume:
        raise OutputError(f"{work} holds an unfinished run: go on with --resume, or delete the folder")
    if work.exists() and not (work / RUN).exists() and any(path.name != output_files.LOCK for path in work.iterdir()):
        raise OutputError(f"{work} is in the way and is not ours: move it, or choose another --out")
    return work


@contextmanager
def _working(options: Options, key: str, data: str) -> Iterator[Path]:
    """The folder of a run that is going on, for this process alone; it goes when the run ends well."""
    work = _work_folder(options)
    with output_files.locked(work, "training"):
        for path in [] if options.resume else work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != output_files.LOCK:
                path.unlink()
        note = work / RUN
        if note.exists() and json.loads(note.read_text())["key"] != key:
            raise ModelError(f"{work} belongs to a run with other data or settings: give the same ones, or delete it")
        write_whole(note, json.dumps({"key": key, "data": data}).encode())
        try:
            yield work
        except KeyboardInterrupt:
            again = "" if options.resume else " and --resume"
            logger.info(f"stopped; what was learnt is in {work}: go on with the same command{again}")
            raise
        except OSError as error:
            raise OutputError(f"cannot write to {work}: {error.strerror or error}; go on with --resume") from error
        shutil.rmtree(work)


@dataclass(frozen=True)
class Before:
    """What the flows that a training goes on from have seen of its samples."""

    aside: Index | None  # normals that they have not learnt; None where the model's card does not say
    new: Index  # known anomalies that they have not learnt, neither as such nor as normals
    taught: Index  # known anomalies that were taught, now or earlier

    @classmethod
    def of(cls, folder: Path, learnt: Split, config: Config) -> Before:
        """Of a model. Of tiles, some of all that the pictures set aside have now."""
        card = model_folder.read(folder)
        roles = Split.roles_from_json(card.split)
        known = [roles.get(learnt.hashes[tiled_split.picture_of(s, config.tile)]) for s in learnt.known]
        new = np.flatnonzero([role not in ("train", "known") for role in known])
        taught = np.flatnonzero([s.defect == TAUGHT for s in learnt.known])
        names = card.data["training"].get("aside")
        if names is None:
            return cls(None, new, taught)
        found = np.flatnonzero(np.isin([tiled_split.picture_of(s, config.tile) for s in learnt.train], names))
        return cls(found[even_pick(len(found), ASIDE)], new, taught)


@dataclass(frozen=True)
class Job:
    """One training with everything decided: who learns what, and where its state is kept."""

    name: str
    dataset: layouts.Dataset
    split: Split
    learnt: Split  # the same with tiles in place of pictures, where the recipe cuts them
    bits: int
    device: torch.device
    work: Path
    key: str
    rate: float | None = None
    roi: Roi | None = None
    before: Before | None = None  # where the flows go on from another model's
    began: float = field(default_factory=time.monotonic)
    progress: Progress | None = None


def fit(
    job: Job,
    model: ScoringModel,
    material: Material,
    *,
    resume: bool = False,
    phase_one: PhaseOne | None = None,
    watch: Callable[[Trainer, dict[str, float]], None] | None = None,
) -> Detector:
    """Train the model on ready features and calibrate it; the detector's card is complete but written nowhere."""
    before = job.before
    start = [parameter.detach().clone() for parameter in model.levels.parameters()]
    weighing = Weighing(model, material, *((before.aside, before.new, before.taught) if before else ()))
    trainer = Trainer(
        model,
        weighing.learnt,
        material.anomalies,
        unseen=weighing.unseen,
        inside=material.inside,
        near=material.near,
        work=job.work,
        device=job.device,
        run_key=job.key,
        phase_one=phase_one,
        before_push=weighing.weigh,  # the flows have seen no anomaly yet, or none of the new ones
        watch=watch,
        warm=before is not None,
    )
    if resume and trainer.restore():
        logger.info(f"going on from step {trainer.step} of {trainer.schedule.steps}")
    trainer.run(job.progress)
    if before is not None:
        with torch.no_grad():
            for now, was in zip(model.levels.parameters(), start, strict=True):
                now.lerp_(was, 1 - MIDWAY)
    if not trainer.anomalies or trainer.schedule.push_at >= trainer.schedule.steps:
        weighing.weigh(trainer)  # and now neither, but they have learnt more
    return _finish(job, model, material, trainer, weighing)


def _finish(job: Job, model: ScoringModel, material: Material, trainer: Trainer, weighing: Weighing) -> Detector:
    """Constants of training normals (those that were set aside, where there are some), scores of the held-out ones,
    and the card."""
    config, split = model.config, job.split
    constants = trainer.constants()
    for level, constant in zip(trainer.levels, constants, strict=True):
        level.set_constants(constant)
    model.eval()
    some = [job.learnt.train[i] for i in weighing.sample_index]
    some = [sample for sample in some if sample.ignore is None] or some
    task = ProgressTask(job.progress, "calibrating", len(split.calibration) + len(some))

    def run(samples: list[Sample]) -> Iterator[tuple[float, FloatArray]]:
        for one in material.run(model, samples):
            task.advance()
            yield one

    normal_maps = np.stack([anomaly for _, anomaly in run(some)])
    here = None if material.inside is None or job.roi is None else job.roi.fitted(config.backbone.size)
    values = normal_maps if here is None else normal_maps[:, here]
    edge = float(np.quantile(values, 1 - config.loss.beta))
    plain = pool(torch.from_numpy(normal_maps), config.score.top_share)
    spread = plain.std(correction=0).clamp(min=1e-3 * float(plain.abs().mean()) + 1e-6)
    model.map_constants.copy_(torch.stack([plain.mean(), spread]))
    held_out = [score for score, _ in run(split.calibration)]
    calibration = Calibration(tuple(held_out), effective_rate(len(held_out), job.rate))
    centre = float(values.mean())
    card = build_card(job, model, trainer, weighing, constants, edge, centre, calibration)
    png = None if job.roi is None else job.roi.png()
    return Detector(model, Card(json.loads(json.dumps(card)), split.to_json(), png), job.device)
