"""The task of a teaching job: the file through which the service tells the worker process what to do."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bgad.artifact import folder as model_folder
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.folders import Folders
from bgad.service.store.jobs import Job
from bgad.service.store.reviews import DECIDED, ReviewedImage
from bgad.service.store.store import Store

TASK_FILE, RESULT_FILE, LOG_FILE = "task.json", "result.json", "log.txt"
COMPARISONS = "comparisons"  # folder of thumbnails of the validation images: SHA256.before and SHA256.after


@dataclass(frozen=True)
class TaskImage:
    """An image with its verdict and the paths of its files."""

    path: str
    name: str
    sha256: str
    verdict: str  # good, bad, or empty if nobody reviewed it
    mask: str | None
    ignore: str | None
    image: int | None = None  # id in the store


@dataclass(frozen=True)
class TeachingTask:
    """What the worker process needs; it knows no store."""

    model: str  # folder of the old version
    out: str  # folder of the new version
    data: str  # folder of data sets
    rate: float | None  # false-reject rate of the old version; None: that of its card
    precision: str  # of the old version
    new: list[TaskImage]  # to learn from
    reviewed: list[TaskImage]  # to compare both versions on
    available: list[TaskImage]  # images of the old version's split that the service holds

    def write(self, path: Path) -> None:
        """Write the task as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> TeachingTask:
        """Read a task that `write` wrote."""
        fields = json.loads(path.read_text())
        for key in ("new", "reviewed", "available"):
            fields[key] = [TaskImage(**row) for row in fields[key]]
        return cls(**fields)


def build_task(job: Job, folder: Path, store: Store, blobs: BlobStore, folders: Folders) -> TeachingTask:
    """Collect what a job needs; `folder` is its working folder."""
    chosen = set(job.images)
    reviewed = [row for row in store.reviews.current(job.name) if row.verdict in DECIDED]
    version = store.versions.get(job.version)
    model = folders.models / version.folder
    return TeachingTask(
        model=str(model),
        out=str(folder / "model.bgad"),
        data=str(folders.data),
        rate=version.rate,
        precision=version.precision,
        new=[_task_image(row, blobs) for row in reviewed if row.image in chosen],
        reviewed=[_task_image(row, blobs) for row in reviewed],
        available=_available(model, chosen, store.reviews.current(), blobs),
    )


def _task_image(row: ReviewedImage, blobs: BlobStore) -> TaskImage:
    mask, ignore = (name and str(blobs.path(BlobKind.MASK, name)) for name in (row.mask, row.ignore))
    path = str(blobs.path(BlobKind.IMAGE, row.sha256))
    return TaskImage(path, row.name, row.sha256, row.verdict, mask, ignore, row.image)


def _available(
    model: Path, chosen: Collection[int], reviews: Iterable[ReviewedImage], blobs: BlobStore
) -> list[TaskImage]:
    """Return the images of a model's split that the service holds, with their reviews unless those are taught now.

    An image of an earlier teaching may no longer be where it was then.
    """
    reviewed = {row.sha256: row for row in reviews if row.verdict in DECIDED and row.image not in chosen}
    images = []
    for image in model_folder.read(model).split["images"]:
        sha256 = image["sha256"]
        if not blobs.has(BlobKind.IMAGE, sha256):
            continue
        row = reviewed.get(sha256)
        names = (None, None) if row is None else (row.mask, row.ignore)
        mask, ignore = (
            str(blobs.location(BlobKind.MASK, name)) if name and blobs.has(BlobKind.MASK, name) else None
            for name in names
        )
        path = str(blobs.location(BlobKind.IMAGE, sha256))
        images.append(TaskImage(path, image["name"], sha256, row.verdict if row else "", mask, ignore))
    return images
