"""The process of a teaching: task.json in, a new model and result.json out, progress as JSON lines.

It knows no store and no network: what it is told is in the task, what it found goes into files beside it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bgad import console, loading, modelfile, origins
from bgad.data import folders, resolve
from bgad.errors import BgadError
from bgad.metrics import auroc
from bgad.scorer import BaseScorer
from bgad.types import Sample

MOST = 400  # validation images that both versions score
LEARNING = 0.8  # share of the time that goes into learning; the rest compares


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
    from bgad.update import Lesson, update

    def tell(done: float, message: str) -> None:
        print(json.dumps({"progress": round(done, 4), "message": message}), flush=True)  # noqa: T201

    console.listen(lambda name, done, total: tell(LEARNING * _share(name, done / max(1, total)), name))

    def lesson(row: dict[str, Any]) -> Lesson:
        mask, ignore = (Path(row[kind]) if row[kind] else None for kind in ("mask", "ignore"))
        return Lesson(Path(row["path"]), int(row["verdict"] == "bad"), mask, row["name"], ignore)

    new = [lesson(row) for row in task["learn"]]
    found = {row["sha256"]: lesson(row) for row in task["found"]}
    data = Path(task["data"])
    data = data / modelfile.read(Path(task["model"])).data["data"]["name"]
    place = data if data.is_dir() else None
    rate = task.get("rate")
    update(task["model"], new, task["out"], data=place, found=found, rate=rate, overwrite=True)
    console.listen(None)
    tell(LEARNING, "comparing")
    learnt = {row["image"] for row in task["learn"]}
    compared = compare(Path(task["model"]), Path(task["out"]), task["compare"], learnt, place, rate)
    result.write_text(json.dumps(compared))
    tell(1.0, "done")


STAGES = {"reading": (0.0, 0.05), "features": (0.05, 0.3), "training": (0.3, 0.9), "calibrating": (0.9, 0.95)}


def _share(name: str, done: float) -> float:
    """Of the learning, when so much of a stage is done."""
    start, end = STAGES.get(name, (0.95, 1.0))
    return start + (end - start) * done


def compare(
    old: Path,
    new: Path,
    reviewed: Sequence[dict[str, Any]],
    learnt: set[int],
    data: Path | None = None,
    rate: float | None = None,
) -> dict[str, Any]:
    """Both versions on the images that neither has learnt from, and on everything that was reviewed."""
    before, after = loading.load(old, engine="onnx"), loading.load(new, engine="onnx")
    if rate is not None:
        before.set_rate(rate)  # the new one has it in its card
    validation = _validation(after, data)
    return {
        "validation": _side_by_side(before, after, [(s.name, s.path, s.label, {}) for s in validation]),
        "reviews": _side_by_side(
            before,
            after,
            [
                (
                    row["name"],
                    Path(row["path"]),
                    int(row["verdict"] == "bad"),
                    {"image": row["image"], "learnt": row["image"] in learnt},
                )
                for row in reviewed
            ],
        ),
    }


def _validation(model: BaseScorer, data: Path | None) -> list[Sample]:
    """The test images of the new model's split: those of the old one that were not taught."""
    card = model.card
    origin = origins.recall(card.data["checksum"])
    try:
        dataset = resolve.load(data) if data else origin.load() if origin else None
    except BgadError:
        dataset = None
    if dataset is None:
        return []
    tested = {image["name"]: image["sha256"] for image in card.split["images"] if image["role"] == "test"}
    found = [s for s in dataset.samples if s.name in tested and s.box is None]
    step = max(1, -(-len(found) // MOST))
    return [s for s in found[::step] if folders.hash_file(s.path) == tested[s.name]]


def _side_by_side(
    before: BaseScorer, after: BaseScorer, cases: Sequence[tuple[str, Path, int, dict[str, Any]]]
) -> dict[str, Any]:
    """AUROC and errors of both, and image by image what changed."""
    paths = [path for _, path, _, _ in cases]
    rows: list[dict[str, Any]] = []
    pairs = zip(before.score_stream(paths), after.score_stream(paths), strict=True)
    for (name, _, label, more), (was, now) in zip(cases, pairs, strict=True):
        if isinstance(was, BgadError) or isinstance(now, BgadError):
            continue
        rows.append(
            {
                "name": name,
                "label": label,
                **more,
                "before": {"score": was.score, "p_value": was.p_value, "is_anomaly": was.is_anomaly},
                "after": {"score": now.score, "p_value": now.p_value, "is_anomaly": now.is_anomaly},
                "change": _change(label, was.is_anomaly, now.is_anomaly),
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


def _change(label: int, before: bool, after: bool) -> str:
    right, now = before == bool(label), after == bool(label)
    return "same" if right == now else "better" if now else "worse"


if __name__ == "__main__":
    sys.exit(main())
