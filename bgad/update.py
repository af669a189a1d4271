"""Teach a model what has been found since: new good parts and new defects, from where it is, without forgetting.

The flows go on from those of the model, in a short schedule, over everything that it has learnt before and what is new.
So the pictures of its training must still be there. The image level, the weights of the parts and the threshold are
found anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgad import console, images, modelfile, origins
from bgad.config import OLDER, Config, from_dict
from bgad.data import folders, resolve
from bgad.data.split import Split
from bgad.detector import Detector
from bgad.errors import ConfigError, DataError
from bgad.learn import MAX_BAD, Options, learn, scan_images
from bgad.origins import Origin
from bgad.roi import Roi
from bgad.types import GOOD, Sample

STEPS, PUSH_STEPS = 60, 240  # of the two phases; training anew takes 800 and 400
LR = 2e-3  # of the normals; that of the push stays
TAUGHT = "taught"  # the folder in the names of what was taught


@dataclass(frozen=True)
class Lesson:
    """One new picture."""

    path: Path
    label: int  # 0 good, 1 bad
    mask: Path | None = None
    name: str = ""  # what it is called; that of its file by default


def lessons(
    good: Sequence[str | Path] = (), bad: Sequence[str | Path] = (), masks: str | Path | None = None
) -> list[Lesson]:
    """From files, folders and patterns; the mask of a bad one is the file with its name, or its name and _mask."""
    marks: dict[str, Path] = {}
    if masks is not None:
        if not Path(masks).is_dir():
            raise DataError(f"{masks}: no such folder of masks")
        marks = {path.stem.removesuffix("_mask"): path for path in images.walk(Path(masks))}
    found = [Lesson(path, 0) for path in (images.expand(good) if good else [])]
    found += [Lesson(path, 1, marks.get(path.stem)) for path in (images.expand(bad) if bad else [])]
    if not found:
        raise ConfigError("there is nothing to learn: give new pictures with --good or --bad")
    return found


def update(
    model: str | Path,
    new: Sequence[Lesson],
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    config: Config | None = None,
    rate: float | None = None,
    device: str = "auto",
    memory_gb: float = 4.0,
    resume: bool = False,
    overwrite: bool = False,
    export: bool = True,
) -> Detector:
    """Write a model that knows what is new, beside the old one or to `out`; returns it, ready to score.

    `data` says where the pictures of the training are, if they have moved; `rate` is another false-reject rate than the
    model's.
    """
    began = time.monotonic()
    folder = Path(model)
    card = modelfile.read(folder)
    place = Path(out) if out else folder.with_name(f"{folder.stem}-taught{folder.suffix}")
    modelfile.check_destination(place, overwrite=overwrite)
    recipe = config or shortened(from_dict(card.data["config"], base=OLDER, source=str(folder / modelfile.CARD)))
    origin = origins.recall(card.data["checksum"])
    paths, masks = (dict(origin.taught), dict(origin.masks)) if origin else ({}, {})
    dataset = _with_taught(_old_data(origin, data), card.split, paths, masks)
    dataset, scan = scan_images(dataset, MAX_BAD)
    old = Split.load(folder / modelfile.SPLIT, dataset)
    added = [_sample(lesson) for lesson in new]
    try:
        more, more_scan = scan_images(replace(dataset, samples=added, notes=[]), 0)
    except DataError as error:
        raise DataError(f"a new picture cannot be used: {str(error).rpartition('the first: ')[2]}") from error
    split = joined(old, more.samples)
    for note in split.notes[len(old.notes) :]:
        console.warn(note)
    learnt = [s for s in (*split.train, *split.calibration, *split.known) if _taught(s.name)]
    paths = {s.name: s.path.absolute() for s in learnt}
    masks = {s.name: s.mask.absolute() for s in learnt if s.mask is not None}
    scan = replace(scan, bits=max(scan.bits, more_scan.bits), shapes=scan.shapes | more_scan.shapes)
    roi = Roi.from_png(card.roi) if card.roi else None
    options = Options(
        out=place,
        known=None,
        test_share=0.0,
        split=None,
        rate=card.calibration["rate"] if rate is None else rate,
        device=device,
        memory_gb=memory_gb,
        max_bad=MAX_BAD,
        resume=resume,
        overwrite=overwrite,
        tensorboard=None,
        export=export,
        roi=None,
    )
    everyone = replace(dataset, samples=[*dataset.samples, *more.samples], notes=dataset.notes + more.notes)
    place_of = Origin(dataset.root, paths, masks)
    return learn(everyone, scan, split, recipe, options, roi, began=began, start=folder, origin=place_of)


def shortened(config: Config) -> Config:
    """The recipe of a model for going on from it."""
    train = replace(
        config.train,
        epochs=0,
        passes=0,
        steps=min(STEPS, config.train.steps),
        push_steps=min(PUSH_STEPS, config.train.push_steps),
        lr=min(LR, config.train.lr),
        push_lr=config.train.push_lr or min(LR, config.train.lr),
    )
    return replace(config, train=train)


def joined(old: Split, new: Sequence[Sample]) -> Split:
    """The split with new pictures in it; one that was tested so far is learnt from now on and tested no more.

    What was learnt before stays as it is, unless somebody says now that good is bad or bad is good, or has marked the
    defect since. New good ones are learnt; the threshold rests on those that were drawn for it, not on chosen ones.
    """
    roles = {old.hashes[s.name]: (role, s) for role in ("train", "calibration", "known") for s in getattr(old, role)}
    hashes, why, notes = dict(old.hashes), dict(old.why), list(old.notes)
    fresh: dict[str, Sample] = {}
    for sample in new:
        digest = folders.hash_file(sample.path)
        if digest in fresh and fresh[digest].label != sample.label:
            raise DataError(f"{sample.path} is the same picture as {fresh[digest].path}: is it good or bad?")
        role, before = roles.get(digest, ("twice among the new", None))
        corrected = before is not None and (
            before.label != sample.label or (sample.mask is not None and before.mask is None)
        )
        if digest in fresh or (before is not None and not corrected):
            notes.append(f"{sample.name} is known already ({role}) and is left out")
            continue
        if before is not None:
            notes.append(f"{before.name} was {role} and is now taught as {'bad' if sample.label else 'good'}")
        fresh[digest] = sample
        hashes[sample.name] = digest
        why[sample.name] = f"taught as {'bad' if sample.label else 'good'}"
    train, calibration, known = (
        [s for s in getattr(old, role) if old.hashes[s.name] not in fresh] for role in ("train", "calibration", "known")
    )
    for sample in fresh.values():
        (known if sample.label else train).append(sample)
    if not calibration:
        raise DataError("no normal would be left to calibrate the threshold: train anew with more good pictures")
    if not fresh:
        raise DataError("all of these pictures have been learnt before: there is nothing new in them")
    test = [s for s in old.test if old.hashes[s.name] not in fresh]
    unused = [s for s in old.unused if old.hashes[s.name] not in fresh]
    gone = [s for s in old.test if old.hashes[s.name] in fresh]
    if gone:
        notes.append(f"{len(gone)} images were tested so far and are learnt from now on, the first: {gone[0].name}")
    taken = {sample.name for sample in fresh.values()}
    moved = {name for name, digest in old.hashes.items() if digest in fresh and name not in taken}
    return replace(
        old,
        train=train,
        calibration=calibration,
        known=known,
        test=test,
        unused=unused,
        hashes={name: digest for name, digest in hashes.items() if name not in moved},
        why={name: text for name, text in why.items() if name not in moved},
        notes=notes,
        protocol="given",
        known_class="",
    )


def _old_data(origin: Origin | None, given: str | Path | None) -> folders.Dataset:
    """The data set that the model was trained on."""
    root = given or (origin.root if origin else None)
    if root is None:
        raise DataError("the pictures that the model was trained on are needed: say where they are with --data")
    try:
        return resolve.load(root, None)
    except DataError as error:
        raise DataError(f"the pictures that the model was trained on are needed ({error}): give --data") from error


def _with_taught(
    dataset: folders.Dataset, split: Mapping[str, Any], paths: Mapping[str, Path], masks: Mapping[str, Path]
) -> folders.Dataset:
    """With what was taught before."""
    known = {image["name"] for image in split["images"] if image["role"] == "known"}
    samples = [
        Sample(path, name, int(name in known), TAUGHT if name in known else GOOD, masks.get(name), split="train")
        for name, path in paths.items()
    ]
    lost = [image["name"] for image in split["images"] if _taught(image["name"]) and image["name"] not in paths]
    if lost:
        raise DataError(f"{lost[0]} was taught on another machine or by another user: update the model there")
    missing = [str(sample.path) for sample in samples if not sample.path.exists()]
    if missing:
        raise DataError(f"{missing[0]} was taught before and is not there any more: put it back")
    return replace(dataset, samples=[*dataset.samples, *samples])


def _sample(lesson: Lesson) -> Sample:
    """Named by its content: two files of one name are two pictures."""
    digest = folders.hash_file(lesson.path)
    name = f"{TAUGHT}/{'bad' if lesson.label else 'good'}/{digest[:12]}-{lesson.name or lesson.path.name}"
    return Sample(lesson.path, name, lesson.label, TAUGHT if lesson.label else GOOD, lesson.mask, split="train")


def _taught(name: str) -> bool:
    return name.startswith(f"{TAUGHT}/")
