"""Evaluates a model on labelled images that it was not trained on: result cell, report section and image rows."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bgad._version import __version__
from bgad.artifact.card import FLOAT32, Card
from bgad.data.layouts import Dataset
from bgad.data.sample_io import digest, read
from bgad.errors import BgadError, DataError, OutputError
from bgad.evaluation.build_section import build_section
from bgad.evaluation.decisions import decisions
from bgad.evaluation.gallery import Gallery
from bgad.evaluation.measure import measure
from bgad.evaluation.report.contents import Section
from bgad.inference.base import BaseScorer
from bgad.inference.batch import THRESHOLD, map_legend
from bgad.io.files import write_atomic
from bgad.types import UNUSED, ImageLike, Progress, Sample, Scores, SplitRecord

logger = logging.getLogger(__name__)

RESULTS = "results.json"


def evaluate(
    scorer: BaseScorer,
    dataset: Dataset,
    *,
    data: str | None = None,
    contour: str = THRESHOLD,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], Section, list[dict[str, Any]]]:
    """Score the test images of a data set; return the result cell, the section of the report, and a row per image.

    `contour`, one of `inference.batch.CONTOURS`, says where the colours of the report's anomaly maps begin.
    """
    samples, left_out = select_samples(scorer.card, dataset)
    notes = list(dataset.notes)
    if all(s.label for s in samples):
        notes.append("no normal images to compare with: train with --test 0.25 to hold some out, or give others")
    name = data or (dataset.root.resolve().parent.name if dataset.layout == "mvtec" else dataset.name)
    gallery = Gallery(samples)
    measured = measure(
        scorer.card,
        _score(scorer, samples, gallery),
        len(samples),
        notes,
        data=name,
        category=dataset.name,
        progress=progress,
    )
    for note in left_out:
        logger.info(note)
    for note in measured.notes:
        logger.warning(note)
    measured.cell["precision"] = scorer.precision
    measured.cell["decisions"] = decisions(scorer.calibration, scorer.map_threshold, measured.rows)
    section = build_section(scorer, map_legend(scorer, contour), measured, left_out, gallery.thumbnails)
    return measured.cell, section, measured.rows


def select_samples(card: Card, dataset: Dataset) -> tuple[list[Sample], list[str]]:
    """Return the labelled images that the model may be tested on, and notes on those that are left out.

    Images are identified by content. An image that is not in the model's split is new to the model and can be tested.
    """
    roles = _roles(card, dataset)
    divided = any(s.split == "test" for s in dataset.samples)
    candidates = [
        s for s in dataset.samples if s.split == "test" or roles[s.name] == "test" or (s.split == "" and not divided)
    ]
    if not candidates:
        raise DataError(f"{dataset.root}: every image belongs to the training split, so nothing is left to evaluate on")
    testable = [s for s in candidates if roles[s.name] in ("test", None)]
    unused = sum(roles[s.name] == UNUSED for s in candidates)
    trained = len(candidates) - len(testable) - unused
    if not testable:
        raise DataError(
            f"{dataset.root}: the model was trained or calibrated on all of these images, so nothing is left to "
            "evaluate on; give other data, or train with --test 0.25 to hold some out"
        )
    left_out = [f"{trained} images left out: the model was trained or calibrated on them"] if trained else []
    left_out += [f"{unused} images left out: the model's split gives them no role"] if unused else []
    return testable, left_out


@dataclass(frozen=True)
class Subject:
    """What an evaluation is about; results.json holds it, so that other results are not replaced by accident."""

    model: str  # checksum of the card
    data: str  # absolute path, or name of a public data set
    precision: str = FLOAT32


def check_results_folder(out: Path, subject: Subject, *, overwrite: bool) -> None:
    """Raise OutputError where a folder holds the results of another model or precision or of other data."""
    path = out / RESULTS
    if overwrite or not path.exists():
        return
    try:
        stored = json.loads(path.read_bytes())
        stored = stored["subject"] if isinstance(stored, dict) and "subject" in stored else {}
    except (OSError, ValueError, RecursionError):
        stored = {}
    if stored == asdict(subject):
        return
    if not isinstance(stored, dict) or stored.keys() != asdict(subject).keys():
        owner = "results that are not of `bgad evaluate`"
    elif stored["model"] != subject.model:
        owner = "the results of another model"
    elif stored["data"] != subject.data:
        owner = f"the results on {stored['data']}"
    else:
        owner = f"the results in {stored['precision']}"
    raise OutputError(f"{out} holds {owner}: give another --out, or --overwrite to replace them")


def write_results(
    out: Path, cells: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], subject: Subject | None = None
) -> Path:
    """Write results.json in one step: `cells` with the figures, `images` with one row per scored image."""
    path = out / RESULTS
    about = {} if subject is None else {"subject": asdict(subject)}
    content = {"bgad": __version__, **about, "cells": list(cells), "images": list(rows)}
    write_atomic(path, json.dumps(content, indent=1).encode())
    return path


def _roles(card: Card, dataset: Dataset) -> dict[str, str | None]:
    """Return name -> role in the model's split, found by name and content or by content alone; None where absent."""
    record = SplitRecord.from_json(card.split)
    by_hash = record.roles()
    by_name = {(image.name, image.sha256): image.role for image in record.images}
    hashes = {s.name: digest(s) for s in dataset.samples}
    return {name: by_name.get((name, content), by_hash.get(content)) for name, content in hashes.items()}


def _score(scorer: BaseScorer, samples: list[Sample], gallery: Gallery) -> Iterator[tuple[Sample, Scores | BgadError]]:
    """Score each sample, and cut tiles out of their images first; samples that cannot be read come last.

    The decoded images go to the gallery.
    """
    readable: deque[Sample] = deque()
    unreadable: deque[tuple[Sample, BgadError]] = deque()

    def inputs() -> Iterator[ImageLike]:
        for sample in samples:
            try:
                image = sample.path if sample.box is None else read(sample, scorer.card.input.bits)
            except BgadError as error:
                unreadable.append((sample, error))
            else:
                readable.append(sample)
                yield image

    for result, image in scorer.score_with_images(inputs()):
        sample = readable.popleft()
        if image is not None and not isinstance(result, BgadError):
            gallery.add(sample, result, image)
        yield sample, result
    yield from unreadable
