"""The program of the worker process: reads a task, writes a new model and result.json, and prints progress as JSON.

It knows no store and no network. The task says what to do, and results go into files beside it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from bgad.artifact import folder as model_folder
from bgad.errors import BgadError
from bgad.service.teaching.comparison import Comparison
from bgad.service.teaching.progress import ProgressEstimate
from bgad.service.teaching.task import COMPARISONS, RESULT_FILE, TaskImage, TeachingTask


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task; an error is one line on standard error."""
    path = Path((arguments or sys.argv[1:])[0])
    if arguments is None:
        threading.Thread(target=_exit_with_the_service, daemon=True).start()
    try:
        run(TeachingTask.read(path), path.with_name(RESULT_FILE))
    except BgadError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except ImportError as error:
        print(f"teaching needs {error.name}: pip install 'bgad[train]' where the service runs", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def run(task: TeachingTask, result: Path) -> None:
    """Train the new version, then compare it with the old one."""
    from bgad.model.device import tune_allocator
    from bgad.training.update import NewImage, UpdateOptions, update  # imports torch

    tune_allocator()
    estimate = ProgressEstimate()

    def report(stage: str, done: float) -> None:
        progress, seconds_left = estimate.update(stage, done)
        print(json.dumps({"progress": round(progress, 4), "message": stage, "seconds_left": seconds_left}), flush=True)  # noqa: T201

    def on_progress(task: str, done: int, total: int, note: str = "") -> None:
        report(task, done / max(1, total))

    def lesson(image: TaskImage) -> NewImage:
        mask, ignore = (Path(file) if file else None for file in (image.mask, image.ignore))
        return NewImage(Path(image.path), int(image.verdict == "bad"), mask, image.name, ignore)

    old, new = Path(task.model), Path(task.out)
    folder = Path(task.data) / model_folder.read_card(old).data.name
    data = folder if folder.is_dir() else None
    options = UpdateOptions(
        data=data,
        relocated={image.sha256: lesson(image) for image in task.available},
        false_reject_rate=task.rate,
        overwrite=True,
    )
    update(old, [lesson(image) for image in task.new], new, options=options, progress=on_progress)
    report("comparing", 0.0)
    comparison = Comparison(old, new, task.rate, result.with_name(COMPARISONS), task.precision)
    result.write_text(json.dumps(comparison.run(task.reviewed, data, lambda done: report("comparing", done))))


def _exit_with_the_service() -> None:
    """End this process when the service closes the pipe to it, on which it sends nothing."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
