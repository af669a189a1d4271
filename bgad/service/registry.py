"""The models of the service: their versions, which one is released, and the decision rule of each version."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FLOAT32, Card
from bgad.errors import BgadError, ConfigError
from bgad.inference import load as loading
from bgad.service.errors import MissingError
from bgad.service.folders import MODEL_SUFFIX, Folders
from bgad.service.scoring.model_cache import ModelCache, check_unchanged
from bgad.service.store import history
from bgad.service.store.history import EventFilter
from bgad.service.store.store import Store
from bgad.service.store.versions import CANDIDATE, DISCARDED, RELEASED, RETIRED, OperatingPoint, Version

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecisionRule:
    """How a version decides, as its model card and the chosen false-reject rate say."""

    threshold: float
    rate: float
    map_threshold: float  # map value above which a contour is drawn
    guarantee: str
    calibration_normals: int
    input_size: int
    part_limits: dict[str, float]  # a part of the score above its limit stands out


class ModelRegistry:
    """Finds model folders, and releases, rolls back and adjusts their versions."""

    def __init__(self, folders: Folders, store: Store, cache: ModelCache, precision: str = FLOAT32) -> None:
        """`precision` is the one in which the models of the folder score, or `auto`."""
        self._folders, self._store, self._cache = folders, store, cache
        self._precision = precision
        self._released: dict[str, Version] = {}  # in the main service, every change goes through this object
        self._release_lock, self._rate_lock = threading.Lock(), threading.Lock()
        self._rules: dict[int, tuple[float | None, DecisionRule]] = {}  # by version, with its rate: only the last one

    def scan(self) -> None:
        """Register every model folder; the first version of a name is released.

        A released version scores in the precision that was asked for; where a model has none, the error says so.
        """
        found = []
        for folder in sorted(self._folders.models.glob(f"*{MODEL_SUFFIX}")):
            try:
                card = model_folder.verify(folder)
            except BgadError as error:
                logger.warning("%s is left out: %s", folder.name, error)
                continue
            found.append((folder, card, loading.usable_precision(folder, self._precision)))
        for folder, card, precision in found:  # only now: one model without the precision leaves all as they were
            self._register(folder, card, precision)

    def _register(self, folder: Path, card: Card, precision: str) -> None:
        name, versions, checksum = folder.name.removesuffix(MODEL_SUFFIX), self._store.versions, card.checksum
        for old in versions.all(name):
            if old.folder == folder.name and old.checksum != checksum:
                if old.state != DISCARDED:
                    logger.warning("%s is another model than before, which is gone", folder.name)
                versions.mark_replaced(old.id)
        released = next((version for version in versions.all(name) if version.state == RELEASED), None)
        if released is not None and (released.folder, released.checksum) == (folder.name, checksum):
            if released.precision != precision:
                rate = released.rate
                threshold = None if rate is None else card.calibration_at(precision).calibration(rate).threshold
                versions.change_precision(released, precision, threshold)
            return
        known = next((v for v in versions.all(name) if (v.folder, v.checksum) == (folder.name, checksum)), None)
        if known is not None and released is not None:  # it scores again in its own precision once it is released
            return
        has_released = released is not None
        state = CANDIDATE if has_released else RELEASED
        version = versions.add(name, checksum, folder.name, state=state, precision=precision)
        if version.state == DISCARDED and not has_released:  # the folder was replaced and is back
            versions.restore(version.id)

    def names(self) -> list[str]:
        """Return the names of the models that have a released version."""
        return self._store.versions.names()

    def released(self, name: str) -> Version:
        """Return the released version of a model; the store is asked once, and again after `forget`."""
        with self._release_lock:
            if name not in self._released:
                self._released[name] = self._store.versions.released(name)
            return self._released[name]

    def remembered(self, name: str) -> Version | None:
        """Return the released version of a model if it is known without asking the store; never waits."""
        return self._released.get(name)

    def forget(self, version: Version) -> None:
        """Ask the store anew which version is released: another service has released or changed one since."""
        with self._release_lock:
            if self._released.get(version.name) == version:
                del self._released[version.name]

    def version(self, name: str, number: int | None) -> Version:
        """Return a version of a model by its id, or the released one if `number` is None."""
        if number is None:
            return self._store.versions.released(name)
        version = self._store.versions.get(number)
        if version.name != name:
            raise MissingError(f"there is no version {number} of {name!r}")
        if version.state == DISCARDED:
            raise ConfigError(f"version {number} has been discarded")
        return version

    def previous(self, name: str) -> Version:
        """Return the version that was released before the present one."""
        released = self._store.versions.released(name)
        retired = {v.id: v for v in self._store.versions.all(name) if v.state == RETIRED}
        releases = EventFilter((name,), (history.RELEASE, history.ROLL_BACK))
        numbers = [int(event.detail.removeprefix("version ")) for event in self._store.history.page(releases, None)]
        for number in (*numbers, released.parent):
            if number in retired:
                return retired[number]
        raise MissingError(f"no other version of {name!r} has been released: there is no way back")

    def release(self, version: Version, who: str, what: str = history.RELEASE) -> None:
        """Release a version; it is loaded first, so that a damaged one is never released.

        `what` is how the history calls it.
        """
        self._cache.batcher(version)
        self._store.versions.release(version.id, who, what)
        self._forget_released(version.name)

    def set_rate(self, name: str, rate: float, who: str) -> Version:
        """Set the false-reject rate of the released version; lists and counts follow from then on."""
        with self._rate_lock:
            version = self.released(name)
            scorer = self._cache.batcher(version).scorer
            calibration = replace(scorer.calibration, rate=rate)  # raises if the calibration normals do not support it
            old, new = (OperatingPoint(c.rate, c.threshold) for c in (scorer.calibration, calibration))
            self._store.versions.set_rate(version.id, old, new, who)
            self._forget_released(name)
            scorer.set_rate(rate)
            reloaded = self._cache.cached_scorer(version.id)
            if reloaded is not None and reloaded is not scorer:  # it was unloaded and loaded again meanwhile
                reloaded.set_rate(rate)
        return self._store.versions.get(version.id)

    def _forget_released(self, name: str) -> None:
        """Ask the store anew after a change. The lock is not held during the change: no other model waits for it."""
        with self._release_lock:
            self._released.pop(name, None)

    def card(self, version: Version) -> Card:
        """Read a version's model card with its split; the model is not loaded."""
        folder = self._folders.models / version.folder
        card = model_folder.read(folder)
        check_unchanged(folder, card, version)
        return card

    def decision_rule(self, version: Version) -> DecisionRule:
        """Return the decision rule of a version from its card alone; the files were verified by `scan`."""
        rate, rule = self._rules.get(version.id, (None, None))
        if rule is None or rate != version.rate:
            folder = self._folders.models / version.folder
            card = model_folder.read_card(folder)
            check_unchanged(folder, card, version)
            own = card.calibration_at(version.precision)
            calibration = own.calibration(version.rate)
            rule = DecisionRule(
                threshold=calibration.threshold,
                rate=calibration.rate,
                map_threshold=own.map_calibration(version.rate).threshold,
                guarantee=calibration.guarantee(),
                calibration_normals=len(calibration.scores),
                input_size=card.config.backbone.size,
                part_limits=own.part_limits,
            )
            self._rules[version.id] = version.rate, rule
        return rule

    def existing_rule(self, number: int) -> DecisionRule | None:
        """Return the decision rule of a version; None if its model folder is gone or was replaced."""
        try:
            return self.decision_rule(self._store.versions.get(number))
        except BgadError:
            return None

    def adopt(self, folder: Path, name: str) -> tuple[str, str]:
        """Move a model folder that a job made below the service's folder; return its relative path and checksum."""
        checksum = model_folder.verify(folder).checksum
        destination = self._folders.versions / f"{name}-{checksum[:16]}{MODEL_SUFFIX}"
        if not destination.exists():
            destination.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(destination)
        return destination.relative_to(self._folders.models).as_posix(), checksum
