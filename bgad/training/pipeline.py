"""From a data set to a model folder: validate, split, extract features, train, calibrate, export, write."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import safetensors.torch
import torch

from bgad.artifact import folder as model_folder
from bgad.artifact.card import Card, ExportCard
from bgad.calibration import (
    DEFAULT_RATE,
    check_confidence,
    check_rate,
    effective_rate,
    normals_needed,
    require_supported,
)
from bgad.config import BASELINES, Config
from bgad.data import layouts, tiled_split
from bgad.data.sample_io import MAX_UNREADABLE, ImageCache, ModelInputs, validate_images
from bgad.data.split import Split, make_split
from bgad.errors import BgadError, ConfigError, DataError
from bgad.features.cache import even_pick
from bgad.geometry.roi import Roi
from bgad.inference.torch_engine import Detector, new_model
from bgad.io.files import write_atomic
from bgad.methods.baselines import check_split
from bgad.methods.checkpoint import (
    TRAINING_LOG,
    EventLog,
    LogRow,
    Provenance,
    check_work_folder,
    open_event_log,
    open_work_folder,
    provenance_of,
    remember,
    run_key,
    unfinished,
)
from bgad.model import backbone as backbones
from bgad.model import device as devices
from bgad.model.heads.base import HeadModel
from bgad.model.scoring import BACKBONE_FILE, LevelModel, ScoringModel, weight_files
from bgad.training.fit_baseline import BaselineFit
from bgad.training.fit_model import ModelFit, TrainingRun
from bgad.training.shared_phases import SharedPhase
from bgad.training.training_set import (
    CacheOptions,
    TrainingSet,
    build_training_set,
    can_generate,
    with_visible_defect,
    without_full_masks,
)
from bgad.training.warm_start import WarmStart, load_flows
from bgad.types import Progress, RunControl, Shape, StopRequest

logger = logging.getLogger(__name__)

PARITY_IMAGES = 32  # images, or tiles, on which the exported graph is compared with torch


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `train`, which are those of `bgad train`; a value that cannot work raises."""

    root: str | Path | None = None  # folder of the public data sets; None: $BGAD_DATA, else ./data
    known: int | None = None  # known anomalies to train on; None: all of the training part, or 10 of a test set
    test_share: float = 0.0  # share of the normals to keep for the test, where the data has no test set
    split: str | Path | None = None  # file that gives every image its role; replaces `known` and `test_share`
    false_reject_rate: float | None = None  # share of good parts that may be rejected; None: 0.05 if possible
    confidence: float | None = None  # with which the rate holds for the set at hand; None: on average over such sets
    device: str = "auto"  # cpu, cuda or mps; auto takes an accelerator where there is one
    memory_gb: float = 4.0  # memory for cached features; the rest goes to disk
    max_unreadable: int = MAX_UNREADABLE  # unreadable images to skip before giving up
    resume: bool = False  # continue a training that was stopped
    overwrite: bool = False  # replace an existing model folder
    tensorboard: str | Path | None = None  # folder for TensorBoard's event files
    export: bool = True  # add the graph that scores without torch
    roi: str | Path | None = None  # region of interest: an image (black: outside), or a JSON file with polygons

    def __post_init__(self) -> None:
        if self.max_unreadable < 0 or not 0 <= self.test_share < 1:
            raise ConfigError("max_unreadable must be 0 or more, and test_share 0 or more and below 1")
        if self.split is not None and (self.known is not None or self.test_share):
            raise ConfigError(
                "a split file says which images are known and which are tested: leave out --known and --test"
            )
        if self.false_reject_rate is not None:
            check_rate(self.false_reject_rate)
        if self.confidence is not None:
            check_confidence(self.confidence)

    @property
    def requested_rate(self) -> float | None:
        """The false-reject rate that the normals must support; a confidence asks for the default rate, too."""
        has_default = self.false_reject_rate is None and self.confidence is not None
        return DEFAULT_RATE if has_default else self.false_reject_rate


@dataclass(frozen=True)
class TrainingData:
    """A validated data set with the roles of its images."""

    dataset: layouts.Dataset
    shapes: Mapping[str, Shape]  # height and width of each image, by name
    split: Split
    images: ImageCache
    provenance: Provenance
    roi: Roi | None = None


def train(
    data: str | Path,
    out: str | Path | None = None,
    *,
    config: Config | None = None,
    options: TrainOptions = TrainOptions(),
    progress: Progress | None = None,
    stop: StopRequest | None = None,
) -> Detector:
    """Train on a folder, a manifest or a public data set, write the model folder and return the detector.

    `out` is the model folder (None: in the current directory, named like the data), and `config` the recipe. `stop`
    lets another thread or a signal handler end the training after a step; it then continues with the option `resume`.
    """
    started = time.monotonic()
    recipe = backbones.resolve((config or Config()).check())
    destination = Path(out) if out else layouts.model_folder(data)
    training_data = read_training_data(data, destination, recipe, options, progress)
    control = RunControl(progress, stop)
    with prepared(training_data, destination, recipe, options, control, started=started) as preparation:
        return preparation.train()


def read_training_data(
    data: str | Path, out: Path, config: Config, options: TrainOptions, progress: Progress | None
) -> TrainingData:
    """Read and validate a data set and give its images their roles; whatever cannot work raises before that."""
    check_before_reading(config, out, options)
    roi = None if options.roi is None else Roi.load(Path(options.roi))
    images = new_image_cache(config, roi)
    dataset = layouts.locate(Path(data), options.root)
    dataset, shapes = validate_images(dataset, options.max_unreadable, images, progress)
    for note in dataset.notes:
        logger.warning(note)
    if roi is not None:
        _check_roi_size(roi, f"{options.roi}", dataset, shapes)
    split = assign_roles(dataset, config, options)
    return TrainingData(dataset, shapes, split, images, provenance_of(Path(data), options.root), roi)


def new_image_cache(config: Config, roi: Roi | None) -> ImageCache:
    """Return a cache for the images of a training with this recipe and region of interest."""
    return ImageCache(config.backbone.size, crop=config.backbone.crop, tiled=config.tile.size > 0, roi=roi)


def check_before_reading(config: Config, out: Path, options: TrainOptions) -> None:
    """Raise for whatever cannot work before the images are read."""
    model_folder.check_destination(out, overwrite=options.overwrite)
    work = check_work_folder(out, resume=options.resume)
    if options.resume and not unfinished(out):
        logger.warning(f"there is nothing to resume in {work}: training begins anew")
    devices.pick(options.device)
    backbones.check(config.backbone)
    if options.roi is not None and config.backbone.crop:
        text = f"{config.method} crops images (backbone.crop), so it takes no region of interest"
        raise ConfigError(f"{text}: train bgad-plus, without backbone.crop")
    if options.split is not None and not Path(options.split).is_file():
        raise DataError(f"{Path(options.split)}: cannot be read: No such file or directory")


def assign_roles(dataset: layouts.Dataset, config: Config, options: TrainOptions) -> Split:
    """Split a data set, or read the split file, and warn of what it lacks."""
    rate, confidence = options.requested_rate, options.confidence
    if options.split is None:
        split = make_split(
            dataset,
            rate=rate,
            confidence=confidence,
            seed=config.seed,
            known=options.known,
            test_share=options.test_share,
        )
    else:
        split = Split.load(Path(options.split), dataset)
        if rate is not None:
            require_supported(len(split.calibration), rate, confidence)
    for note in split.notes:
        logger.warning(note)
    if rate is None:
        _warn_of_default_rate(split, from_file=options.split is not None)
    if config.method in BASELINES:
        check_split(config, split)
    if config.uses_anomalies and not split.known:
        has_pseudo = config.pseudo.count and can_generate(config.pseudo.method, [])
        others = f"normals and {config.pseudo.method} pseudo anomalies" if has_pseudo else "normals alone"
        logger.warning(f"{dataset.root} has no known anomalies: {config.method} learns from {others}")
    return split


def _warn_of_default_rate(split: Split, *, from_file: bool) -> None:
    """Warn where too few calibration normals raise the default false-reject rate, and say how to lower it."""
    held_out, normals, needed = (
        len(split.calibration),
        len(split.calibration) + len(split.train),
        normals_needed(DEFAULT_RATE),
    )
    rate = effective_rate(held_out, None)
    if rate <= DEFAULT_RATE:
        return
    if from_file:
        remedy = f"give {needed} normals the role calibration in the split file"
    elif normals >= 2 * needed:
        remedy = f"give --false-reject-rate {DEFAULT_RATE:g} to hold out {needed} of the {normals} normals"
    else:
        remedy = f"add normals ({normals} of {2 * needed} so far) and give --false-reject-rate {DEFAULT_RATE:g}"
    logger.warning(
        f"the default false-reject rate is {rate:.4g} here, the lowest for {held_out} calibration "
        f"normal{'' if held_out == 1 else 's'}: {DEFAULT_RATE:g} needs {needed}; {remedy}"
    )


@dataclass(frozen=True)
class Preparation:
    """A training whose work folder is open and whose features are not computed yet."""

    data: TrainingData
    out: Path
    options: TrainOptions
    run: TrainingRun
    model: ScoringModel
    cache: CacheOptions
    parent: Path | None

    def train(self) -> Detector:
        """Extract the features that are missing, train, calibrate, export and write the model folder."""
        run, images, out, options = self.run, self.data.images, self.out, self.options
        with open_event_log(options.tensorboard) as events:
            detector = _fit(run, self.model, images, self.cache, events, resume=options.resume)
        card, files = _model_files(detector, run, images, options, self.parent)
        model_folder.write(out, card, files)
        logger.info(detector.calibration.guarantee())
        logger.info(f"model: {out}")
        written = model_folder.read(out)
        remember(written.checksum, self.data.provenance)
        return Detector(self.model, written, run.device)


@contextmanager
def prepared(
    data: TrainingData,
    out: Path,
    config: Config,
    options: TrainOptions,
    control: RunControl,
    *,
    started: float,
    parent: Path | None = None,
) -> Iterator[Preparation]:
    """Prepare a training on data whose images have their roles: build the model and open the work folder.

    With `parent`, the flows start from those of that model. Options that say how images get their roles are not read.
    The folder is removed where the training then ends well.
    """
    split, roi = data.split, data.roi
    logger.info(
        f"{data.dataset.name}: {len(split.train)} normals to train on, {len(split.calibration)} held out to calibrate, "
        f"{len(split.known)} known anomalies ({sum(s.mask is not None for s in split.known)} with masks), "
        f"{len(split.test)} images left for test"
    )
    device = devices.pick(options.device)
    key = run_key(config, split, device, roi, parent)
    check_work_folder(out, resume=options.resume, key=key)  # before the time that a model takes to build
    model = _new_model(config, device, parent)
    with open_work_folder(out, key, data.dataset.name, resume=options.resume) as work:
        if roi is not None:
            split = _with_roi(split, roi, work / model_folder.ROI)
        training_split = without_full_masks(split)
        if config.tile.size:
            training_split = tiled_split.cut(training_split, config.tile, data.shapes)
        else:
            training_split = with_visible_defect(training_split, data.images)
        run = TrainingRun(
            out.stem,
            data.dataset,
            split,
            training_split,
            data.images.bits,
            device,
            work,
            options.false_reject_rate,
            options.confidence,
            roi,
            largest_image=largest(data.shapes[sample.name] for sample in split.train),
            memory_gb=options.memory_gb,
            started=started,
            control=control,
        )
        if parent is not None:
            run = replace(run, warm_start=WarmStart.from_model(parent, run.training_split, config))
        cache = CacheOptions(work, key, options.memory_gb, control.progress)
        yield Preparation(data, out, options, run, model, cache, parent)


def largest(shapes: Iterable[Shape]) -> Shape:
    """Return the shape with most pixels."""
    return max(shapes, key=lambda shape: shape[0] * shape[1])


def _new_model(config: Config, device: torch.device, parent: Path | None) -> ScoringModel:
    """Return an untrained model, or one with backbone and flows of its parent."""
    state = None if parent is None else safetensors.torch.load_file(parent / BACKBONE_FILE)
    model = new_model(config, backbones.build(config.backbone, state)).to(device)
    if parent is not None:
        model.load_state_dict(load_flows(parent), strict=False)
    return model


class Fit(Protocol):
    """Fits one model: run through `steps`, then call `finish`."""

    @property
    def step(self) -> int: ...

    def steps(self) -> Iterator[LogRow]: ...

    def finish(self) -> Detector: ...


def new_fit(
    run: TrainingRun,
    model: ScoringModel,
    training_set: TrainingSet,
    *,
    resume: bool,
    shared_phases: Mapping[int, SharedPhase] | None = None,
) -> Fit:
    """Return the fit of a model; with `resume`, it continues from the checkpoint in the work folder."""
    if isinstance(model, HeadModel):
        return BaselineFit(run, model, training_set)
    assert isinstance(model, LevelModel)  # noqa: S101 - `new_model` builds nothing else
    fit = ModelFit(run, model, training_set, shared_phases=shared_phases)
    if resume:
        fit.resume()
    return fit


def _fit(
    run: TrainingRun, model: ScoringModel, images: ImageCache, cache: CacheOptions, events: EventLog, *, resume: bool
) -> Detector:
    """Extract features, train the model on them and calibrate it."""
    config, roi = model.config, run.roi
    map_roi = None if config.tile.size else roi  # a tile is blanked outside of the region when it is read
    if map_roi is not None:
        model.set_region(map_roi.resized(config.backbone.size))
    training_set = build_training_set(model, run.training_split, images, run.device, cache, map_roi)
    fit = new_fit(run, model, training_set, resume=resume)
    for row in fit.steps():
        events.write(fit.step, row)
    return fit.finish()


def _model_files(
    detector: Detector, run: TrainingRun, images: ImageCache, options: TrainOptions, parent: Path | None
) -> tuple[Card, dict[str, bytes]]:
    """Return the card and the files of the model folder, with the exported graph if it is wanted and can be made."""
    files = {
        **weight_files(detector.model),
        TRAINING_LOG: (run.work / TRAINING_LOG).read_bytes(),
        model_folder.SPLIT: run.split.to_bytes(),
    }
    if run.roi is not None:
        files[model_folder.ROI] = run.roi.png()
    card = detector.card
    if parent is not None:
        origin = replace(card.provenance, parent=model_folder.read_card(parent).checksum)
        card = replace(card, provenance=origin)
    if options.export:
        exported = _export(detector, run.training_split, images, run.control.progress)
        if exported is not None:
            entry, graph = exported
            card, files = replace(card, exports={"onnx": entry}), files | graph
    return card, files


def _export(
    detector: Detector, split: Split, images: ImageCache, progress: Progress | None
) -> tuple[ExportCard, dict[str, bytes]] | None:
    """Return the exported graph, compared with torch on images of the split, and its card; None where that fails."""
    from bgad.export import export

    samples = [*split.known, *(split.train if detector.tile.size else [*split.test, *split.calibration])]
    chosen = [samples[i] for i in even_pick(len(samples), PARITY_IMAGES)]
    on_cpu = Detector(copy.deepcopy(detector.model), detector.card, torch.device("cpu"))  # accelerators round otherwise
    try:
        graph, parity = export.checked_graph(on_cpu, inputs=ModelInputs(chosen, images), progress=progress)
    except BgadError as error:
        logger.warning(f"no graph is written: {error}")
        return None
    return export.card_entry(parity), graph


def _check_roi_size(roi: Roi, name: str, dataset: layouts.Dataset, shapes: Mapping[str, Shape]) -> None:
    """The region of interest must have the size of the images."""
    for sample in dataset.samples:
        height, width = shapes[sample.name]
        if sample.box is not None:
            raise DataError(f"{sample.name} is a tile of an image: a region of interest is for whole images")
        if (height, width) != roi.mask.shape:
            size = f"{roi.mask.shape[1]}x{roi.mask.shape[0]}"
            raise DataError(f"{sample.name} is {width}x{height}, the region of interest {name} {size}: make them equal")


def _with_roi(split: Split, roi: Roi, file: Path) -> Split:
    """Return the split with samples that are blank outside of the region."""
    write_atomic(file, roi.png())
    train, calibration, known, test = (
        [replace(sample, roi=file) for sample in role]
        for role in (split.train, split.calibration, split.known, split.test)
    )
    return replace(split, train=train, calibration=calibration, known=known, test=test)
