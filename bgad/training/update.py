"""Update of a model: it learns new normals and new anomalies without a training from scratch.

The flows start from those of the model and train a short schedule on everything the model was trained on and the new
images. Then they are averaged with the old ones (`warm_start.NEW_WEIGHT_SHARE`). New anomalies get discriminant
directions of their own. So the images of the first training must still exist. The image head and the threshold are
fitted anew; the weights of the score move as far as new anomalies are a share of all known ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgad.artifact import folder as model_folder
from bgad.artifact.card import CalibrationCard
from bgad.calibration import check_rate, effective_rate, is_supported, require_supported, smallest_rate
from bgad.config import Config, check_updatable
from bgad.data import layouts
from bgad.data.sample_io import ImageCache, validate_images
from bgad.data.split import Split
from bgad.errors import ConfigError, DataError
from bgad.geometry.roi import Roi
from bgad.inference.torch_engine import Detector
from bgad.methods import checkpoint
from bgad.methods.checkpoint import Provenance
from bgad.model import backbone as backbones
from bgad.training.paired_files import IGNORE, MASK, list_images, pair_files
from bgad.training.pipeline import TrainingData, TrainOptions, new_image_cache, prepared
from bgad.types import GOOD, ROLES, TAUGHT, UNUSED, USED_ROLES, Progress, RunControl, Sample, StopRequest

logger = logging.getLogger(__name__)

# Steps of the two phases. A training from scratch takes 800 and 400: the normals are known already, so phase 1 only
# adapts to new ones, and phase 2 has fewer anomalies to push.
PHASE_ONE_STEPS, PHASE_TWO_STEPS = 10, 80
PSEUDO_COUNT = 40  # of 160 in a training: generating them takes long, and the flows know similar ones
LR, PUSH_LR = 2e-3, 5e-4  # of the phases; a larger rate forgets known anomalies


@dataclass(frozen=True)
class NewImage:
    """An image that an update learns from."""

    path: Path
    label: int  # 0 normal, 1 anomalous
    mask: Path | None = None
    name: str = ""  # name in the split; the file name by default
    ignore: Path | None = None  # region to ignore


def new_images(
    good: Sequence[str | Path] = (),
    bad: Sequence[str | Path] = (),
    masks: str | Path | None = None,
    ignore: str | Path | None = None,
) -> list[NewImage]:
    """Return the new images among files, folders and patterns, with masks and regions to ignore from their folders."""
    normals, anomalies = list_images(good), list_images(bad)
    if not normals and not anomalies:
        raise ConfigError("there is nothing to learn: give new images with --good or --bad")
    mask_of = pair_files(anomalies, masks, MASK)
    ignore_of = pair_files(normals + anomalies, ignore, IGNORE)
    return [
        NewImage(image.path, label, mask_of.get(image.path) if label else None, ignore=ignore_of.get(image.path))
        for label, listed in enumerate((normals, anomalies))
        for image in listed
    ]


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """The options of `update`, which are those of `bgad update`; a value that cannot work raises."""

    data: str | Path | None = None  # where the training images are, if they have moved
    relocated: Mapping[str, NewImage] | None = None  # images of earlier updates that have moved, by SHA-256
    false_reject_rate: float | None = None  # share of good parts that may be rejected; None: the model's
    device: str = "auto"  # cpu, cuda or mps; auto takes an accelerator where there is one
    resume: bool = False  # continue an update that was stopped
    overwrite: bool = False  # replace an existing model folder
    export: bool = True  # add the graph that scores without torch

    def __post_init__(self) -> None:
        if self.false_reject_rate is not None:
            check_rate(self.false_reject_rate)

    def for_training(self, false_reject_rate: float | None, confidence: float | None) -> TrainOptions:
        """Return the options of the training that an update runs."""
        return TrainOptions(
            false_reject_rate=false_reject_rate,
            confidence=confidence,
            device=self.device,
            resume=self.resume,
            overwrite=self.overwrite,
            export=self.export,
        )


def update(
    model: str | Path,
    new: Sequence[NewImage],
    out: str | Path | None = None,
    *,
    config: Config | None = None,
    options: UpdateOptions = UpdateOptions(),
    progress: Progress | None = None,
    stop: StopRequest | None = None,
) -> Detector:
    """Write a model that has learnt the new images, beside the old one or to `out`; returns its detector.

    `config` replaces the recipe of the model with the short schedule of an update. `stop` is that of `train`.
    """
    started = time.monotonic()
    folder = Path(model)
    card = model_folder.read(folder)
    destination = Path(out) if out else folder.with_name(f"{folder.stem}-taught{folder.suffix}")
    model_folder.check_destination(destination, overwrite=options.overwrite)
    recipe = backbones.resolve(config) if config else shortened(card.config)
    for either in (card.config, recipe):
        check_updatable(either)
    remembered = checkpoint.recall(card.checksum)
    source = remembered if options.data is None else checkpoint.provenance_of(options.data, None)
    if source is None:
        raise DataError("the images that the model was trained on are needed: say where they are with --data")
    dataset = _load_data(source)
    earlier = _taught_before(card.split, remembered or Provenance(Path()), options.relocated or {})
    dataset = replace(dataset, samples=[*dataset.samples, *earlier])
    roi = Roi.from_png(card.roi_png) if card.roi_png else None
    data = _joined_data(folder, dataset, source, new, new_image_cache(recipe, roi), progress)
    data = replace(data, roi=roi)
    rate = _rate(len(data.split.calibration), card.calibration_at(), options.false_reject_rate)
    training = options.for_training(rate, card.calibration_at().confidence)
    control = RunControl(progress, stop)
    with prepared(data, destination, recipe, training, control, started=started, parent=folder) as preparation:
        return preparation.train()


def _joined_data(
    folder: Path,
    dataset: layouts.Dataset,
    source: Provenance,
    new: Sequence[NewImage],
    images: ImageCache,
    progress: Progress | None,
) -> TrainingData:
    """Return the data of a model with new images in their roles."""
    # Unreadable images are an error only where the split of the model needs them, so here any number is allowed.
    dataset, shapes = validate_images(dataset, len(dataset.samples), images, progress)
    old_split = Split.load(folder / model_folder.SPLIT, dataset)
    samples = [_sample(image) for image in new]
    try:
        added, added_shapes = validate_images(replace(dataset, samples=samples, notes=[]), 0, images, progress)
    except DataError as error:
        raise DataError(f"a new image cannot be used: {str(error).rpartition('the first: ')[2]}") from error
    split = joined(old_split, added.samples)
    for note in split.notes[len(old_split.notes) :]:
        logger.warning(note)
    taught = [s for s in (*split.train, *split.calibration, *split.known) if _is_taught(s.name)]
    source = replace(
        source,
        taught={s.name: s.path for s in taught},
        masks={s.name: s.mask for s in taught if s.mask is not None},
        ignored={s.name: s.ignore for s in taught if s.ignore is not None},
    )
    everything = replace(dataset, samples=[*dataset.samples, *added.samples], notes=dataset.notes + added.notes)
    return TrainingData(everything, shapes | added_shapes, split, images, source)


def _rate(held_out: int, calibration: CalibrationCard, asked: float | None) -> float | None:
    """Return the false-reject rate: the one asked for, now or before, or the smallest that the normals support.

    None stands for the default rate: nobody has asked for one, or the smallest supported rate is the default.
    """
    if asked is not None:
        require_supported(held_out, asked, calibration.confidence)
        return asked
    before, confidence = calibration.false_reject_rate, calibration.confidence
    default = effective_rate(held_out, None, confidence)
    rate = before if is_supported(held_out, before, confidence) else smallest_rate(held_out, confidence)
    rate = default if calibration.is_default_rate else rate
    if rate > before:
        logger.warning(
            f"{held_out} held-out normals are left: the false-reject rate becomes {rate:.4g}, it was {before:.4g}"
        )
    return None if calibration.is_default_rate or (rate > before and rate == default) else rate


def shortened(config: Config) -> Config:
    """Return the recipe of a model with the short schedule of an update."""
    train = replace(
        config.train,
        epochs=0,
        steps=min(PHASE_ONE_STEPS, config.train.steps),
        push_steps=min(PHASE_TWO_STEPS, config.train.push_steps),
        lr=min(LR, config.train.lr),
        push_lr=min(PUSH_LR, config.train.push_lr or config.train.lr),
    )
    pseudo = replace(config.pseudo, count=min(PSEUDO_COUNT, config.pseudo.count))
    return replace(config, train=train, pseudo=pseudo)


def joined(old: Split, new: Sequence[Sample]) -> Split:
    """Return the split with new images in it; a new image of the test set is trained on from now on and tested no more.

    An image that was learnt before keeps its role, unless it has another label now, or a new mask or region to ignore.
    New normals are trained on. They do not calibrate, because the threshold rests on normals drawn at random, not on
    chosen ones.
    """
    notes = list(old.notes)
    fresh = _unlearnt(old, new, notes)
    train, calibration, known, test, unused = (
        [s for s in getattr(old, role) if old.hashes[s.name] not in fresh] for role in (*ROLES, UNUSED)
    )
    for sample in fresh.values():
        (known if sample.label else train).append(sample)
    if not calibration:
        raise DataError("no normal would be left to calibrate the threshold: train anew with more good images")
    if not fresh:
        raise DataError("all of these images have been learnt before: there is nothing new in them")
    formerly_tested = [s for s in old.test if old.hashes[s.name] in fresh]
    if formerly_tested:
        notes.append(
            f"{len(formerly_tested)} images were tested so far and are learnt from now on, "
            f"the first: {formerly_tested[0].name}"
        )
    added = {sample.name: digest for digest, sample in fresh.items()}
    renamed = {name for name, digest in old.hashes.items() if digest in fresh and name not in added}
    reasons = {sample.name: f"taught as {_verdict(sample.label)}" for sample in fresh.values()}
    return replace(
        old,
        train=train,
        calibration=calibration,
        known=known,
        test=test,
        unused=unused,
        hashes={name: digest for name, digest in (old.hashes | added).items() if name not in renamed},
        why={name: text for name, text in (old.why | reasons).items() if name not in renamed},
        notes=notes,
        protocol="given",
        known_class="",
    )


def _unlearnt(old: Split, new: Sequence[Sample], notes: list[str]) -> dict[str, Sample]:
    """Return the new images by SHA-256, without those that were trained on as they are; add notes on the exceptions."""
    roles = {old.hashes[s.name]: (role, s) for role in USED_ROLES for s in getattr(old, role)}
    fresh: dict[str, Sample] = {}
    for sample in new:
        digest = layouts.hash_file(sample.path)
        if digest in fresh and fresh[digest].label != sample.label:
            raise DataError(f"{sample.path} is the same image as {fresh[digest].path}: is it good or bad?")
        role, before = roles.get(digest, ("twice among the new", None))
        corrected = before is not None and (
            before.label != sample.label
            or _is_other_file(before.mask, sample.mask)
            or (role != "calibration" and _is_other_file(before.ignore, sample.ignore))
        )
        if digest in fresh or (before is not None and not corrected):
            notes.append(f"{sample.name} is known already ({role}) and is left out")
            continue
        if before is not None:
            notes.append(f"{before.name} was {role} and is now taught as {_verdict(sample.label)}")
        fresh[digest] = sample
    return fresh


def _verdict(label: int) -> str:
    return "bad" if label else "good"


def _is_other_file(before: Path | None, now: Path | None) -> bool:
    """Return whether there is a mask or region now whose content differs from the one before."""
    return now is not None and (before is None or layouts.hash_file(before) != layouts.hash_file(now))


def _load_data(source: Provenance) -> layouts.Dataset:
    """Return the data set that the model was trained on."""
    try:
        return source.load()
    except DataError as error:
        raise DataError(f"the images that the model was trained on are needed ({error}): give --data") from error


def _taught_before(split: Mapping[str, Any], remembered: Provenance, relocated: Mapping[str, NewImage]) -> list[Sample]:
    """Return the images that earlier updates have added: where they were, else where they are now."""
    samples = []
    for image in split["images"]:
        name, label = image["name"], int(image["role"] == "known")
        if not _is_taught(name):
            continue
        current = relocated.get(image["sha256"])
        path = _existing(remembered.taught.get(name), current.path if current else None)
        if path is None:
            raise DataError(f"{name} was taught on another machine or by another user: update the model there")
        if current is not None and current.label != label:
            current = None  # its mask and region belong to another label
        mask, ignore = remembered.masks.get(name), remembered.ignored.get(name)
        # A file that is not remembered with a remembered image is newer than the model and must not count as learnt.
        if mask or name not in remembered.taught:
            mask = _existing(mask, current.mask if current else None)
        if ignore or name not in remembered.taught:
            ignore = _existing(ignore, current.ignore if current else None)
        missing = [p for p in (path, ignore) if p is not None and not p.exists()]
        if missing:
            raise DataError(f"{missing[0]} was taught before and is not there any more: put it back")
        samples.append(Sample(path, name, label, TAUGHT if label else GOOD, mask, split="train", ignore=ignore))
    return samples


def _existing(remembered: Path | None, current: Path | None) -> Path | None:
    """Return the first of the two paths that exists, or the remembered one where neither does."""
    return next((path for path in (remembered, current) if path is not None and path.exists()), remembered)


def _sample(image: NewImage) -> Sample:
    """Return the sample of a new image; its name has the hash of its content, as two images may have one file name."""
    digest = layouts.hash_file(image.path)
    name = f"{TAUGHT}/{_verdict(image.label)}/{digest[:12]}-{image.name or image.path.name}"
    defect = TAUGHT if image.label else GOOD
    return Sample(image.path, name, image.label, defect, image.mask, split="train", ignore=image.ignore)


def _is_taught(name: str) -> bool:
    return name.startswith(f"{TAUGHT}/")
