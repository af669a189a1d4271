"""The workbench without HTTP: builds the parts of the service, connects them, and starts and stops them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from bgad.artifact.card import FLOAT32
from bgad.errors import DataError
from bgad.inference.load import usable_precision
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.drift.monitor import DriftMonitor
from bgad.service.folders import Folders
from bgad.service.free_space import MIN_FREE_BYTES, FreeSpace
from bgad.service.image_views import ImageViews
from bgad.service.registry import ModelRegistry
from bgad.service.retention import Retention
from bgad.service.reviewing import Reviewing
from bgad.service.role import Role
from bgad.service.scoring.decoding import DecodingBudget
from bgad.service.scoring.in_flight import UploadsInFlight
from bgad.service.scoring.ingest import ImageLimits, Ingest, IngestChecks, ScoredImage
from bgad.service.scoring.model_cache import MAX_MODELS, ModelCache
from bgad.service.scoring.recorder import Recorder
from bgad.service.scoring.rescore import Rescorer
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.store import history
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from bgad.service.threads import SupervisedThread

CHECKED_IMAGES = 5  # images whose files a scorer looks for when it starts


@dataclass(frozen=True)
class WorkbenchSettings:
    """The limits and the role that an operator sets."""

    limits: ImageLimits = field(default_factory=ImageLimits)
    max_models: int = MAX_MODELS  # released versions in memory
    retention_days: float | None = None  # for images that nobody reviews; None: for good
    min_free_bytes: int = MIN_FREE_BYTES  # on the disk, below which no more images and jobs are taken
    role: Role = Role.MAIN
    precision: str = FLOAT32  # of the models' scores, or `auto`; a scorer follows the main service


class Workbench:
    """The parts of the service over one folder of models and one store.

    The parts know only their collaborators, never this class. What one event means for several of them is said here.
    """

    def __init__(self, folders: Folders, store: Store, settings: WorkbenchSettings | None = None) -> None:
        settings = settings or WorkbenchSettings()
        self.folders, self.store, self.limits, self.role = folders, store, settings.limits, settings.role
        self.blobs, self.free_space = BlobStore(folders.workspace), FreeSpace(folders.models, settings.min_free_bytes)
        self.recorder = Recorder(store.database)
        self.decoding = DecodingBudget(settings.limits.max_pixels)
        self.models = ModelCache(folders.models, store.versions, settings.max_models, self.decoding)
        self.registry = ModelRegistry(folders, store, self.models, settings.precision)
        self.thumbnails = Thumbnails(self.blobs, self.models.waiting, self.decoding)
        in_flight = UploadsInFlight()
        self.ingest = Ingest(
            store,
            self.registry,
            self.models,
            self.blobs,
            self.thumbnails,
            in_flight,
            IngestChecks(settings.limits, self.free_space, self.recorder),
            releases_elsewhere=self.role is Role.SCORER,
        )
        self.views = ImageViews(store.images, self.blobs, self.models, self.thumbnails, self.decoding)
        self.reviewing = Reviewing(store, self.blobs, self.views, settings.limits, self.decoding)
        self.rescorer = Rescorer(store, self.registry, self.models, self.blobs, self.thumbnails)
        self.drift = DriftMonitor(store, self.registry)
        self.retention = Retention(
            store, self.registry, self.blobs, self.thumbnails, in_flight, folders, settings.retention_days
        )
        self.decisions: Counter[tuple[str, str]] = Counter()  # images scored, by model and decision
        self.not_kept: Counter[str] = Counter()  # images scored and not stored, by model
        self._decisions_lock = threading.Lock()
        if self.role is Role.MAIN:
            self.registry.scan()
        else:
            self._check_folder()

    def start(self) -> None:
        """Start the work in the background, which is the main service's."""
        if self.role is not Role.MAIN:
            return
        self.rescorer.start()
        self.drift.start()
        self.retention.start()

    def close(self) -> None:
        """Stop the work in the background and answer all admitted requests."""
        self.retention.close()
        self.rescorer.close()
        self.drift.close()
        self.models.close()
        self.thumbnails.close()
        self.recorder.close()

    def score(self, model: str, content: bytes, name: str, *, patient: bool = False, sender: str = "") -> ScoredImage:
        """Score an image and store it if the store answers; then tell those who work with new scores."""
        scored = self.ingest.score(model, content, name, patient=patient, sender=sender)
        with self._decisions_lock:
            self.decisions[model, "anomalous" if scored.scores.is_anomaly else "normal"] += 1
            self.not_kept[model] += scored.image is None
        if scored.image is None:
            return scored
        released = self.registry.released(model) if self.role is Role.MAIN else scored.version
        if released.id != scored.version.id:  # released meanwhile: the list of images to rescore lacks this one
            self.rescorer.add_late(released, scored.image)
        self.drift.notify(model)
        return scored

    def threads(self) -> list[SupervisedThread]:
        """Return the threads that run in the background."""
        threads = (self.drift.thread, self.retention.thread, self.thumbnails.thread, self.recorder.thread)
        return [thread for thread in (*threads, self.store.database.thread) if thread is not None and thread.is_running]

    def _check_folder(self) -> None:
        """Raise DataError unless the models and the images of the store are in the folder."""
        names, images = self.registry.names(), self.store.images.newest(CHECKED_IMAGES)
        if not names:
            raise DataError("the store has no released model: start the main service first")
        has_model = any(self.registry.existing_rule(self.registry.released(name).id) is not None for name in names)
        if not has_model or (images and not any(self.blobs.has(BlobKind.IMAGE, image.sha256) for image in images)):
            what = "images" if has_model else "models"
            raise DataError(f"{self.folders.models} lacks the {what} of the store: give the main service's --models")
        for version in map(self.registry.released, names):  # the main service has chosen their precisions
            usable_precision(self.folders.models / version.folder, version.precision)

    def release(self, version: Version, who: str, what: str = history.RELEASE) -> None:
        """Release a version, rescore earlier images with it and start its drift test.

        `what` is how the history calls it.
        """
        self.registry.release(version, who, what)
        self.rescorer.release(version)
        self.drift.notify(version.name)
