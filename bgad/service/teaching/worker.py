"""The process of a teaching: task.json in, a new model and result.json out, progress as JSON lines.

It knows no store and no network: what it is told is in the task, what it found goes into files beside it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bgad.artifact import folder as model_folder
from bgad.data import layouts, locate
from bgad.errors import BgadError
from bgad.inference import load as loading
from bgad.inference.base import BaseScorer
from bgad.metrics import auroc
from bgad.service.scoring.thumbnails import drawn
from bgad.training import provenance
from bgad.types import Sample, Scores

MOST = 400  # validation images that both versions score
DRAWINGS = "drawings"  # beside the result: small pictures of the validation images, SHA256.before and SHA256.after
SURE = 0.06  # of the work that must be seen before the time left is told
STEADY = 0.1  # of a stage that must be seen before its own speed counts
STAGES = {  # from where to where of the whole they go, by the time that they take on a small data set
    "reading": (0.0, 0.05),
    "features": (0.05, 0.25),
    "pseudo anomalies": (0.25, 0.3),
    "training": (0.42, 0.7),  # before it, the image level and the weights are found, which has no bar
    "calibrating": (0.7, 0.76),
    "comparing the graph with torch": (0.76, 0.84),
    "comparing": (0.84, 1.0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task; an error is one line on stderr."""
    path = Path((arguments or sys.argv[1:])[0])
    if arguments is None:
        threading.Thread(target=_end_with_the_service, daemon=True).start()
    try:
        run(json.loads(path.read_text()), path.with_name("result.json"))
    except BgadError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except ImportError as error:
        print(f"teaching needs {error.name}: pip install 'bgad[train]' where the service runs", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _end_with_the_service() -> None:
    """It holds the other end of the pipe, and sends nothing."""
    while os.read(0, 1):
        pass
    os._exit(1)


def run(task: dict[str, Any], result: Path) -> None:
    """Learn, then compare."""
    pace = Pace()

    def tell(stage: str, done: float) -> None:
        progress, left = pace.told(stage, done)
        print(json.dumps({"progress": round(progress, 4), "message": stage, "left": left}), flush=True)  # noqa: T201

    def progress(task: str, done: int, total: int, note: str = "") -> None:
        tell(task, done / max(1, total))

    from bgad.training.update import NewImage, update

    def lesson(row: dict[str, Any]) -> NewImage:
        mask, ignore = (Path(row[kind]) if row[kind] else None for kind in ("mask", "ignore"))
        return NewImage(Path(row["path"]), int(row["verdict"] == "bad"), mask, row["name"], ignore)

    new = [lesson(row) for row in task["learn"]]
    found = {row["sha256"]: lesson(row) for row in task["found"]}
    data = Path(task["data"])
    data = data / model_folder.read(Path(task["model"])).data["data"]["name"]
    place = data if data.is_dir() else None
    rate = task.get("rate")
    update(
        task["model"],
        new,
        task["out"],
        data=place,
        relocated=found,
        false_reject_rate=rate,
        overwrite=True,
        progress=progress,
    )
    compared = compare(
        Path(task["model"]),
        Path(task["out"]),
        task["compare"],
        data=place,
        rate=rate,
        drawings=result.with_name(DRAWINGS),
        tell=lambda done: tell("comparing", done),
    )
    result.write_text(json.dumps(compared))


class Pace:
    """How far the work is, and how long the rest takes: what is left of a stage at its own speed, and the stages after
    it at the speed of all so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._first: tuple[float, float] | None = None  # time and progress of the first word
        self._stage, self._began = "", (0.0, 0.0)  # time and share of the stage's first word
        self._progress = 0.0

    def told(self, stage: str, done: float) -> tuple[float, float | None]:
        """Progress from 0 to 1 and the seconds left, when so much of a stage is done; None while that is not known."""
        now = self.clock()
        start, end = STAGES.get(stage, (self._progress, self._progress))  # one that is not known moves nothing
        self._progress = max(self._progress, start + (end - start) * done)
        if self._first is None:
            self._first = now, self._progress
        if stage != self._stage:
            self._stage, self._began = stage, (now, done)
        passed, moved = now - self._first[0], self._progress - self._first[1]
        if moved < SURE:
            return self._progress, None
        took, made = now - self._began[0], done - self._began[1]
        own = took / made if made > STEADY else (end - start) * passed / moved  # seconds for the whole stage
        return self._progress, round((1 - done) * own + (1 - end) * passed / moved, 1)


def compare(
    old: Path,
    new: Path,
    reviewed: Sequence[dict[str, Any]],
    *,
    data: Path | None,
    rate: float | None,
    drawings: Path,
    tell: Callable[[float], None],
) -> dict[str, Any]:
    """Both versions on the images that neither has learnt from, and on everything that was reviewed. Small pictures of
    the former go into a folder, as their files need not stay where they are; `tell` hears the share that is done."""
    tell(0.0)
    before, after = loading.load(old, engine="onnx"), loading.load(new, engine="onnx")
    if rate is not None:
        before.set_rate(rate)  # the new one has it in its card
    drawings.mkdir(exist_ok=True)
    learnt = before.card.learnt | after.card.learnt
    validation, why = _validation(after, data)
    tests = [_Case(s.name, s.path, s.label, {"sha256": sha256}) for s, sha256 in validation]
    reviews = [
        _Case(
            row["name"],
            Path(row["path"]),
            int(row["verdict"] == "bad"),
            {"image": row["image"], "learnt": row["sha256"] in learnt},
        )
        for row in reviewed
    ]
    done = itertools.count(1)

    def seen(case: _Case, was: Scores | None, now: Scores | None) -> None:
        sha256 = case.more.get("sha256")
        for side, said, scorer in (("before", was, before), ("after", now, after)):
            if sha256 and said is not None:
                with suppress(OSError):  # without room for them, the comparison has none
                    (drawings / f"{sha256}.{side}").write_bytes(drawn(case.path, said.map, scorer.card))
        tell(next(done) / (len(tests) + len(reviews)))

    return {
        "threshold": {"before": before.threshold, "after": after.threshold},
        "validation": _side_by_side(before, after, tests, seen) | {"why": why},
        "reviews": _side_by_side(before, after, reviews, seen),
    }


@dataclass(frozen=True)
class _Case:
    """A picture that both versions are asked about."""

    name: str
    path: Path
    label: int
    more: dict[str, Any]  # goes into its row


def _validation(model: BaseScorer, data: Path | None) -> tuple[list[tuple[Sample, str]], str]:
    """The test images of the new model's split, with their sha256: those of the old one that were not taught. Of very
    many, always the same ones. Where there are none, why."""
    card = model.card
    tested = {image["name"]: image["sha256"] for image in card.split["images"] if image["role"] == "test"}
    if not tested:
        return (
            [],
            "No picture was kept for tests, or all of these were taught: bgad train --test keeps some.",
        )
    origin = provenance.recall(card.data["checksum"])
    try:
        dataset = locate.load(data) if data else origin.load() if origin else None
    except BgadError as error:
        return [], f"The data set cannot be read: {error}"
    if dataset is None:
        return [], "The data set is not here: bgad serve --data says where it is."
    found = sorted((s for s in dataset.samples if s.name in tested and s.box is None), key=lambda s: tested[s.name])
    some = [(s, tested[s.name]) for s in found[:MOST] if layouts.hash_file(s.path) == tested[s.name]]
    return some, "" if some else "The test pictures of the data set are not those of the training any more."


def _side_by_side(
    before: BaseScorer,
    after: BaseScorer,
    cases: Sequence[_Case],
    seen: Callable[[_Case, Scores | None, Scores | None], None],
) -> dict[str, Any]:
    """AUROC and errors of both, and image by image what changed."""
    paths = [case.path for case in cases]
    rows: list[dict[str, Any]] = []
    pairs = zip(before.score_stream(paths), after.score_stream(paths), strict=True)
    for case, (was, now) in zip(cases, pairs, strict=True):
        if isinstance(was, BgadError) or isinstance(now, BgadError):
            seen(case, None, None)
            continue
        seen(case, was, now)
        rows.append(
            {
                "name": case.name,
                "label": case.label,
                **case.more,
                "before": _said(was, before),
                "after": _said(now, after),
                "change": _change(case.label, was.is_anomaly, now.is_anomaly),
            }
        )
    labels = [row["label"] for row in rows]
    figures = {
        side: {
            "auroc": auroc([row[side]["score"] for row in rows], labels),
            "missed": sum(row["label"] and not row[side]["is_anomaly"] for row in rows),
            "false_rejects": sum(not row["label"] and row[side]["is_anomaly"] for row in rows),
        }
        for side in ("before", "after")
    }
    return {"images": len(rows), "bad": sum(labels), **figures, "rows": rows}


def _said(scores: Scores, scorer: BaseScorer) -> dict[str, Any]:
    """What a version says. Scores of two versions cannot be compared; the margin can: how far a score is above the
    threshold, in standard deviations of the version's own calibration normals."""
    spread = float(np.std(scorer.calibration.scores)) or 1.0
    said = {"score": scores.score, "p_value": scores.p_value, "is_anomaly": scores.is_anomaly}
    return said | {"margin": (scores.score - scores.threshold) / spread}


def _change(label: int, before: bool, after: bool) -> str:
    right, now = before == bool(label), after == bool(label)
    return "same" if right == now else "better" if now else "worse"


if __name__ == "__main__":
    sys.exit(main())
