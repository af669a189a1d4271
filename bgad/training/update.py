"""Teach a model what has been found since: new good parts and new defects, from where it is, without forgetting.

The flows go on from those of the model, in a short schedule, over everything that it has learnt before and what is new,
and end midway between the two (`learn.MIDWAY`). What is taught has directions of its own in the image level.
So the pictures of its training must still be there. The image level and the threshold are found anew; the weights of
the parts move as far as the new defects are a share of all known ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgad.artifact import folder as model_folder
from bgad.calibration import check_rate, is_supported, require_supported, smallest_rate
from bgad.config import Config
from bgad.data import layouts
from bgad.data.split import Split
from bgad.data.validation import validate_images
from bgad.errors import ConfigError, DataError, abbreviate
from bgad.geometry.roi import Roi
from bgad.inference.torch_engine import Detector
from bgad.io import discover
from bgad.training import provenance
from bgad.training.pipeline import Options, learn
from bgad.training.provenance import Origin
from bgad.types import GOOD, TAUGHT, Progress, Sample

logger = logging.getLogger(__name__)

STEPS, PUSH_STEPS = 10, 80  # of the two phases; training anew takes 800 and 400
PSEUDO = 40  # pseudo anomalies, of 160: making them takes long, and the flows know the like
LR, PUSH_LR = 2e-3, 5e-4  # of the normals, and of the push: larger steps forget what was known


@dataclass(frozen=True)
class Lesson:
    """One new picture."""

    path: Path
    label: int  # 0 good, 1 bad
    mask: Path | None = None
    name: str = ""  # what it is called; that of its file by default
    ignore: Path | None = None  # what is not learnt from


def lessons(
    good: Sequence[str | Path] = (),
    bad: Sequence[str | Path] = (),
    masks: str | Path | None = None,
    ignore: str | Path | None = None,
) -> list[Lesson]:
    """From files, folders and patterns; see `_painted_for` for what belongs to which."""
    normals, anomalies = (_places(given) for given in (good, bad))
    if not normals and not anomalies:
        raise ConfigError("there is nothing to learn: give new pictures with --good or --bad")
    marks, without = _painted_for(anomalies, masks, "mask"), _painted_for(normals + anomalies, ignore, "ignore")
    return [
        Lesson(path, label, marks.get(path) if label else None, ignore=without.get(path))
        for label, found in enumerate((normals, anomalies))
        for path, _ in found
    ]


def _places(given: Sequence[str | Path]) -> list[tuple[Path, list[str]]]:
    """The pictures, each with the paths at which something may be painted for it: its own from the folder that was
    given, with that folder's name and without."""
    tops = [Path(top) for top in given if Path(top).is_dir()]
    found = []
    for path in discover.expand(given) if given else []:
        top = next((top for top in tops if path.is_relative_to(top)), path.parent)
        inner = path.relative_to(top).with_suffix("")
        found.append((path, [(top.resolve().name / inner).as_posix(), inner.as_posix()]))
    return found


def _painted_for(pictures: Sequence[tuple[Path, list[str]]], folder: str | Path | None, kind: str) -> dict[Path, Path]:
    """Picture -> the file of the same path in the folder, else the only one of its name; either may end in `_mask`
    (`_ignore`). DataError where two could be meant."""
    if folder is None:
        return {}
    what, many = ("mask", "masks") if kind == "mask" else ("region to ignore", "regions to ignore")
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{folder}: no such folder of {many}")
    files = discover.walk(root)
    by_path: dict[str, list[Path]] = {}
    by_name: dict[str, list[Path]] = {}
    for file in files:
        whole = file.relative_to(root).with_suffix("").as_posix()
        for name in {whole, whole.removesuffix(f"_{kind}")}:
            by_path.setdefault(name, []).append(file)
            by_name.setdefault(name.rpartition("/")[2], []).append(file)
    found: dict[Path, Path] = {}
    owners: dict[Path, Path] = {}  # the other way round
    taken: set[Path] = set()
    for table in (by_path, by_name):
        for path, places in pictures:
            names = [] if path in found else places if table is by_path else [path.stem]
            fitting = next((table[name] for name in names if name in table), [])
            fitting = [file for file in fitting if file not in taken]
            if len(fitting) > 1:
                raise DataError(f"{path}: which is its {what}, {fitting[0]} or {fitting[1]}? Keep one of them")
            for file in fitting:
                if file in owners:
                    both = f"{owners[file]} and {path}"
                    raise DataError(f"{file}: is the {what} of both {both}; give each its own, in folders of their own")
                found[path], owners[file] = file, path
        taken = set(owners)
    if alone := [file.relative_to(root.parent).as_posix() for file in files if file not in owners]:
        logger.warning(f"{what} without an image: {abbreviate(alone)}")
    if kind == "mask" and found and (bare := [str(path) for path, _ in pictures if path not in found]):
        logger.warning(f"anomaly without a mask: {abbreviate(bare)}")
    return found


def update(
    model: str | Path,
    new: Sequence[Lesson],
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    found: Mapping[str, Lesson] | None = None,
    config: Config | None = None,
    rate: float | None = None,
    device: str = "auto",
    memory_gb: float = 4.0,
    resume: bool = False,
    overwrite: bool = False,
    export: bool = True,
    progress: Progress | None = None,
) -> Detector:
    """Write a model that knows what is new, beside the old one or to `out`; returns it, ready to score.

    `data` says where the pictures of the training are, if they have moved; `found`, by sha256, where those of earlier
    lessons are that are not where they were. `rate` is another false-reject rate than the model's.
    """
    began = time.monotonic()
    if rate is not None:
        check_rate(rate)
    folder = Path(model)
    card = model_folder.read(folder)
    place = Path(out) if out else folder.with_name(f"{folder.stem}-taught{folder.suffix}")
    model_folder.check_destination(place, overwrite=overwrite)
    recipe = config or shortened(card.config)
    origin = provenance.recall(card.checksum)
    source = origin if data is None else provenance.given(data, None)
    if source is None:
        raise DataError("the pictures that the model was trained on are needed: say where they are with --data")
    dataset = _old_data(source)
    dataset = replace(dataset, samples=[*dataset.samples, *_taught_before(card.split, origin, found or {})])
    dataset, scan = validate_images(dataset, len(dataset.samples), progress)  # the split demands those that it needs
    old = Split.load(folder / model_folder.SPLIT, dataset)
    added = [_sample(lesson) for lesson in new]
    try:
        more, more_scan = validate_images(replace(dataset, samples=added, notes=[]), 0, progress)
    except DataError as error:
        raise DataError(f"a new picture cannot be used: {str(error).rpartition('the first: ')[2]}") from error
    split = joined(old, more.samples)
    for note in split.notes[len(old.notes) :]:
        logger.warning(note)
    rate = _rate(len(split.calibration), card.calibration_at().false_reject_rate, rate)
    learnt = [s for s in (*split.train, *split.calibration, *split.known) if _taught(s.name)]
    place_of = replace(
        source,
        taught={s.name: s.path for s in learnt},
        masks={s.name: s.mask for s in learnt if s.mask is not None},
        ignored={s.name: s.ignore for s in learnt if s.ignore is not None},
    )
    scan = replace(scan, bits=max(scan.bits, more_scan.bits), shapes=scan.shapes | more_scan.shapes)
    roi = Roi.from_png(card.roi_png) if card.roi_png else None
    options = Options(
        out=place,
        known=None,
        test_share=0.0,
        split=None,
        rate=rate,
        device=device,
        memory_gb=memory_gb,
        max_bad=0,
        resume=resume,
        overwrite=overwrite,
        tensorboard=None,
        export=export,
        roi=None,
        progress=progress,
    )
    everyone = replace(dataset, samples=[*dataset.samples, *more.samples], notes=dataset.notes + more.notes)
    return learn(everyone, scan, split, recipe, options, roi, began=began, start=folder, origin=place_of)


def _rate(held_out: int, before: float, asked: float | None) -> float:
    """The false-reject rate: what is asked for, else the model's, or the smallest that the normals left support."""
    if asked is not None:
        require_supported(held_out, asked)
        return asked
    if is_supported(held_out, before):
        return before
    rate = smallest_rate(held_out)
    logger.warning(
        f"{held_out} held-out normals are left: the false-reject rate becomes {rate:.4g}, it was {before:.4g}"
    )
    return rate


def shortened(config: Config) -> Config:
    """The recipe of a model for going on from it."""
    train = replace(
        config.train,
        epochs=0,
        steps=min(STEPS, config.train.steps),
        push_steps=min(PUSH_STEPS, config.train.push_steps),
        lr=min(LR, config.train.lr),
        push_lr=min(PUSH_LR, config.train.push_lr or config.train.lr),
    )
    few = replace(config.pseudo, count=min(PSEUDO, config.pseudo.count))
    return replace(config, train=train, pseudo=few)


def joined(old: Split, new: Sequence[Sample]) -> Split:
    """The split with new pictures in it; one that was tested so far is learnt from now on and tested no more.

    What was learnt before stays as it is, unless somebody says now that good is bad or bad is good, or has painted the
    defect or what to ignore since. New good ones are learnt; the threshold rests on those that were drawn for it, not
    on chosen ones.
    """
    roles = {old.hashes[s.name]: (role, s) for role in ("train", "calibration", "known") for s in getattr(old, role)}
    hashes, why, notes = dict(old.hashes), dict(old.why), list(old.notes)
    fresh: dict[str, Sample] = {}
    for sample in new:
        digest = layouts.hash_file(sample.path)
        if digest in fresh and fresh[digest].label != sample.label:
            raise DataError(f"{sample.path} is the same picture as {fresh[digest].path}: is it good or bad?")
        role, before = roles.get(digest, ("twice among the new", None))
        corrected = before is not None and (
            before.label != sample.label
            or _painted(before.mask, sample.mask)
            or (role != "calibration" and _painted(before.ignore, sample.ignore))
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


def _painted(before: Path | None, now: Path | None) -> bool:
    """Whether there is something now, and something else than before."""
    return now is not None and (before is None or layouts.hash_file(before) != layouts.hash_file(now))


def _old_data(origin: Origin) -> layouts.Dataset:
    """The data set that the model was trained on."""
    try:
        return origin.load()
    except DataError as error:
        raise DataError(f"the pictures that the model was trained on are needed ({error}): give --data") from error


def _taught_before(split: Mapping[str, Any], origin: Origin | None, found: Mapping[str, Lesson]) -> list[Sample]:
    """What was taught before: where it was, else where it was found."""
    was = origin or Origin(Path())
    samples = []
    for image in split["images"]:
        name, label = image["name"], int(image["role"] == "known")
        if not _taught(name):
            continue
        now = found.get(image["sha256"])
        path = _there(was.taught.get(name), now.path if now else None)
        if path is None:
            raise DataError(f"{name} was taught on another machine or by another user: update the model there")
        same = now if now is not None and now.label == label else None  # else it was painted for another verdict
        mask, ignore = was.masks.get(name), was.ignored.get(name)
        if mask or name not in was.taught:  # else it is remembered without one: what was painted since is new
            mask = _there(mask, same.mask if same else None)
        if ignore or name not in was.taught:
            ignore = _there(ignore, same.ignore if same else None)
        missing = [p for p in (path, ignore) if p is not None and not p.exists()]
        if missing:
            raise DataError(f"{missing[0]} was taught before and is not there any more: put it back")
        samples.append(Sample(path, name, label, TAUGHT if label else GOOD, mask, split="train", ignore=ignore))
    return samples


def _there(remembered: Path | None, found: Path | None) -> Path | None:
    """The first of the two that is there; what is remembered, where neither is."""
    return next((path for path in (remembered, found) if path is not None and path.exists()), remembered)


def _sample(lesson: Lesson) -> Sample:
    """Named by its content: two files of one name are two pictures."""
    digest = layouts.hash_file(lesson.path)
    name = f"{TAUGHT}/{'bad' if lesson.label else 'good'}/{digest[:12]}-{lesson.name or lesson.path.name}"
    defect = TAUGHT if lesson.label else GOOD
    return Sample(lesson.path, name, lesson.label, defect, lesson.mask, split="train", ignore=lesson.ignore)


def _taught(name: str) -> bool:
    return name.startswith(f"{TAUGHT}/")
