"""What the service does, without HTTP: models and their versions, scoring, pictures of what was found, reviews."""

from __future__ import annotations

import hashlib
import io
import queue
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sqlalchemy.exc import SQLAlchemyError

from bgad import console, images, loading, modelfile
from bgad.calibration import Calibration, rate_bound, smallest_rate
from bgad.errors import BgadError, ConfigError, ImageError, ModelError
from bgad.scorer import BaseScorer
from bgad.service import drift, summary
from bgad.service.files import Files, shown_name
from bgad.service.scoring import Answer, Batcher, BusyError, ClosedError, fitted
from bgad.service.store import MissingError, Row, Store
from bgad.types import BoolArray, FloatArray, Scores

DATA = "data"  # beside the models: their data sets, as after `bgad demo`
FOLDER = ".workbench"  # beside the models: the store and all files
SUFFIX = ".bgad"
MAX_BYTES = 64 * 2**20  # of a picture that is sent
MAX_PIXELS = 50_000_000
AGAIN = 2000  # images that a new version scores again
LOADED = 4  # versions that are kept in memory
THUMBNAIL = 192  # pixels, the longer side
PAUSE = 0.05  # seconds between two looks whether there is time to draw
THUMBNAILS = 256  # that wait to be drawn; of what comes beyond, they are drawn when they are looked at


@dataclass(frozen=True)
class Scored:
    """A picture that was sent, and what the released version says of it."""

    image: int
    version: Row
    scores: Scores


@dataclass(frozen=True)
class Drawing:
    """A thumbnail to be drawn."""

    sha256: str
    name: str
    small: FloatArray  # the map, no larger than the model's
    card: modelfile.Card


@dataclass(frozen=True)
class Facts:
    """What the card of a version says of its decisions."""

    threshold: float
    rate: float
    guarantee: str
    size: int


class Workbench:
    """One folder of models, its store and its files."""

    def __init__(
        self,
        models: Path,
        store: Store,
        *,
        data: Path | None = None,
        max_bytes: int = MAX_BYTES,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        """`data` is the folder where the data sets of the models are, by their names, for teaching."""
        self.models, self.store = models, store
        self.data = data or models / DATA
        self.max_bytes, self.max_pixels = max_bytes, max_pixels
        self.files = Files(models / FOLDER)
        self._open: OrderedDict[int, Batcher] = OrderedDict()
        self._released: dict[str, Row] = {}  # all changes of them go through here
        self._releasing, self._setting = threading.Lock(), threading.Lock()
        self._facts: dict[tuple[int, float | None], Facts] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._again: threading.Thread | None = None
        self._to_draw: queue.Queue[Drawing | None] = queue.Queue(THUMBNAILS)
        self._painter = threading.Thread(target=self._paint, name="thumbnails", daemon=True)
        self._painter.start()
        self.find_models()

    def close(self) -> None:
        """Finish what waits."""
        with self._lock:
            self._closed = True
            batchers = list(self._open.values())
            self._open.clear()
        for batcher in batchers:
            batcher.close()
        with suppress(queue.Full):  # then there is something to wake it up
            self._to_draw.put_nowait(None)
        self._painter.join()
        if self._again is not None:
            self._again.join()

    # --- models

    def find_models(self) -> None:
        """Take up every model folder here; the first one of a name is released."""
        for folder in sorted(self.models.glob(f"*{SUFFIX}")):
            try:
                card = modelfile.read(folder)
            except BgadError as error:
                console.warn(f"{folder.name} is left out: {error}")
                continue
            name = folder.name.removesuffix(SUFFIX)
            known = self.store.versions(name)
            for old in known:
                if old["folder"] == folder.name and old["checksum"] != card.data["checksum"]:
                    if old["state"] != "discarded":
                        console.warn(f"{folder.name} is another model than before, which is gone")
                    self.store.lose(old["id"])
            released = any(v["state"] == "released" for v in self.store.versions(name))
            state = "candidate" if released else "released"
            row = self.store.add_version(name, card.data["checksum"], folder.name, state=state)
            if row["state"] == "discarded" and not released:  # it was gone and is back
                self.store.restore(row["id"])

    def names(self) -> list[str]:
        """Of the models that have a released version."""
        return sorted({v["name"] for v in self.store.versions() if v["state"] == "released"})

    def released(self, name: str) -> Row:
        """The version of a name that scores; the store is asked once."""
        with self._releasing:
            if name not in self._released:
                self._released[name] = self.store.released(name)
            return self._released[name]

    def batcher(self, version: Row) -> Batcher:
        """The version, ready to score."""
        with self._lock:
            if self._closed:
                raise BusyError("the service is being stopped")
            if version["id"] not in self._open:
                scorer = self._load(version)
                while len(self._open) >= LOADED:
                    _, oldest = self._open.popitem(last=False)
                    oldest.close()
                self._open[version["id"]] = Batcher(scorer)
            self._open.move_to_end(version["id"])
            return self._open[version["id"]]

    def _score(self, version: Row, path: Path, *, patient: bool, whole: bool = False) -> tuple[Answer, BaseScorer]:
        """By the version, opened again where it was put away in between; with a map of the model's size, unless
        `whole`."""
        while True:
            batcher = self.batcher(version)
            try:
                longest = 0 if whole else batcher.scorer.card.size
                return batcher.answer(path, patient=patient, longest=longest), batcher.scorer
            except ClosedError:
                continue

    def _load(self, version: Row) -> BaseScorer:
        folder = self.models / version["folder"]
        scorer = loading.load(folder, engine="onnx")
        _same(folder, scorer.card, version)
        rate = self.store.version(version["id"])["rate"]  # the row at hand may be from before it was set
        if rate is not None:
            scorer.set_rate(rate)
        return scorer

    def facts(self, version: Row) -> Facts:
        """Of the card alone: the model is not opened. Its files were checked when the service found it."""
        key = (version["id"], version["rate"])
        if key not in self._facts:
            folder = self.models / version["folder"]
            card = modelfile.Card(modelfile.peek(folder))
            _same(folder, card, version)
            rate = card.calibration["rate"] if version["rate"] is None else version["rate"]
            calibration = Calibration(tuple(card.calibration["scores"]), rate)
            self._facts[key] = Facts(calibration.threshold, rate, calibration.guarantee(), card.size)
        return self._facts[key]

    def set_rate(self, name: str, rate: float, who: str) -> Row:
        """Another false-reject rate for the released version; what it has scored is judged anew."""
        with self._setting:
            version = self.released(name)
            scorer = self.batcher(version).scorer
            scorer.set_rate(rate)  # says so where the held-out normals do not support it
            with self._releasing:
                self.store.set_rate(version["id"], rate, scorer.threshold, who)
                self._released.clear()
            with self._lock:
                now = self._open.get(version["id"])
            if now is not None and now.scorer is not scorer:  # it was put away and opened again in between
                now.scorer.set_rate(rate)
        return self.store.version(version["id"])

    def release(self, version: Row, who: str) -> None:
        """Let a version score from now on, once it is known that it can. Then, beside everything else, it scores what
        has been reviewed and the last of what the version before it has scored, so that the page stays full."""
        self.batcher(version)
        old = next((v for v in self.store.versions(version["name"]) if v["state"] == "released"), version)
        with self._releasing:
            self.store.release(version["id"], who)
            self._released.clear()
        times = {row["image"]: row["created"] for row in self.store.series(old["id"])}
        there = {row["image"] for row in self.store.series(version["id"])}
        reviewed = [row["image"] for row in self.store.reviewed(version["name"]) if row["image"] not in there]
        rest = [n for n in sorted(times, key=times.__getitem__, reverse=True) if n not in {*there, *reviewed}]

        def work() -> None:
            for number in [*reviewed, *rest[:AGAIN]]:
                if self._closed or self.store.version(version["id"])["state"] != "released":
                    return
                self._score_again(number, version, times.get(number))

        self._again = threading.Thread(target=work, name="score again", daemon=True)
        self._again.start()

    def _score_again(self, number: int, version: Row, created: float | None) -> None:
        """What was scored before, by another version; at its old time, as that is when the part was there."""
        try:
            answer, scorer = self.again(number, version)
            self.store.add_score(number, version["id"], _judged(answer.scores, scorer), created)
        except (BgadError, SQLAlchemyError) as error:
            if not self._closed:
                console.warn(f"image {number} is not scored again: {error}")

    def before(self, name: str) -> Row:
        """The version that was released before the one that is."""
        released = self.store.released(name)
        log = [e["detail"] for e in self.store.history(name, 1000, what="release")]
        numbers = [int(detail.removeprefix("version ")) for detail in log]
        usable = {v["id"]: v for v in self.store.versions(name) if v["state"] == "retired"}
        found = next((n for n in numbers if n in usable and n != released["id"]), None)
        if found is None:
            found = released["parent"] if released["parent"] in usable else None
        if found is None:
            raise MissingError(f"no other version of {name!r} has been released: there is no way back")
        return usable[found]

    def adopt(self, folder: Path, parent: Row, who: str) -> Row:
        """Take over a model folder that a job made, as a candidate."""
        card = modelfile.read(folder)
        place = Path(FOLDER) / "versions" / f"{parent['name']}-{card.data['checksum'][:16]}{SUFFIX}"
        to = self.models / place
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(to)
        checksum = card.data["checksum"]
        return self.store.add_version(
            parent["name"], checksum, place.as_posix(), state="candidate", parent=parent["id"], who=who
        )

    def waiting(self) -> int:
        """Pictures that wait to be scored."""
        with self._lock:
            return sum(batcher.waiting for batcher in self._open.values())

    # --- scoring

    def score(self, name: str, content: bytes, given_name: str, *, patient: bool = False) -> Scored:
        """Score a picture that was sent and keep both."""
        self._check(content)
        version = self.released(name)
        self.batcher(version)
        sha256 = hashlib.sha256(content).hexdigest()
        new = not self.files.has("pictures", sha256, len(content))
        if new:
            self.files.put_as("pictures", sha256, content)  # a review sees to it that it is on the disk
        try:
            answer, scorer = self._score(version, self.files.path("pictures", sha256), patient=patient)
        except ImageError as error:
            if new and not self.store.has_image(sha256):  # else another model has scored it
                self.files.drop("pictures", sha256)
            raise ImageError(str(error).replace(str(self.files.place("pictures", sha256)), "picture")) from error
        scores, (height, width) = answer.scores, answer.shape
        image = self.store.add_scored(sha256, shown_name(given_name), width, height, version["id"], scores)
        if scores.threshold != scorer.threshold:  # it was set while the picture was under way
            scores = _judged(scores, scorer)
            self.store.add_score(image, version["id"], scores)
        self._draw_later(sha256, version["id"], scores, scorer)
        return Scored(image, version, scores)

    def _check(self, content: bytes) -> None:
        """That the bytes are a picture, before they are kept: its kind and its size, without decoding it."""
        if not content:
            raise ImageError("the picture is empty: send its bytes")
        if len(content) > self.max_bytes:
            raise ImageError(f"the picture has {len(content)} bytes, more than {self.max_bytes}: send a smaller one")
        images.check_bytes(content, max_pixels=self.max_pixels)

    def picture(self, number: int) -> Path:
        """The file of an image, as it was sent."""
        return self.files.path("pictures", self.store.image(number)["sha256"])

    def view(self, number: int) -> bytes:
        """A PNG of an image, whatever kind of file it came as."""
        return png(images.to_uint8(images.read(self.picture(number))))

    def painted(self, number: int, kind: str) -> bytes:
        """What was painted with a review: a PNG."""
        name = self.store.review(number)[kind]
        if name is None:
            raise MissingError(f"no {kind} was painted with review {number}")
        return self.files.path("masks", name).read_bytes()

    def again(self, number: int, version: Row, *, whole: bool = False) -> tuple[Answer, BaseScorer]:
        """What a version says of an image that was sent before."""
        return self._score(version, self.picture(number), patient=True, whole=whole)

    def overlay(self, number: int, version: Row) -> bytes:
        """A PNG of the image with its map as heat."""
        answer, scorer = self.again(number, version, whole=True)
        picture = images.read(self.picture(number), bits=scorer.card.bits)
        return png(images.overlay(picture, answer.scores.map, scorer.card.map_boundary, scorer.card.map_centre))

    def map_picture(self, number: int, version: Row) -> tuple[bytes, float, float, float]:
        """The map of an image as a grey PNG of the model's size, and the values of black, white and the boundary."""
        answer, scorer = self.again(number, version)
        small = answer.scores.map
        low, high = float(small.min()), float(small.max())
        grey = np.rint((small - low) / max(high - low, 1e-9) * 255).astype(np.uint8)
        return png(grey), low, high, scorer.card.map_boundary

    def thumbnail(self, number: int, version: Row) -> bytes:
        """A small JPEG of the image with its heat; made again where it is missing."""
        sha256 = self.store.image(number)["sha256"]
        name = f"{sha256}.{version['id']}"
        if not self.files.has("thumbnails", name):
            answer, scorer = self.again(number, version)
            self._draw(Drawing(sha256, name, answer.scores.map, scorer.card))
        return self.files.path("thumbnails", name).read_bytes()

    def _draw_later(self, sha256: str, version: int, scores: Scores, scorer: BaseScorer) -> None:
        """When nobody waits for a score; in vain where too many are to be drawn already."""
        if self._to_draw.full() or self.files.has("thumbnails", f"{sha256}.{version}"):
            return
        small = images.resize_map(scores.map, fitted(scores.map.shape, THUMBNAIL))
        with suppress(queue.Full):
            self._to_draw.put_nowait(Drawing(sha256, f"{sha256}.{version}", small, scorer.card))

    def _paint(self) -> None:
        while (drawing := self._to_draw.get()) is not None:
            while self.waiting() and not self._closed:
                time.sleep(PAUSE)
            if self._closed:
                return
            try:
                self._draw(drawing)
            except (BgadError, OSError) as error:  # it is drawn when it is looked at, and then the error is heard
                console.warn(f"no thumbnail of {drawing.name[:12]}: {error}")

    def _draw(self, drawing: Drawing) -> None:
        if self.files.has("thumbnails", drawing.name):
            return
        buffer = io.BytesIO()
        small = images.resize_map(drawing.small, fitted(drawing.small.shape, THUMBNAIL))
        picture = images.fit(images.read(self.files.path("pictures", drawing.sha256), bits=drawing.card.bits),
                             small.shape)  # fmt: skip
        drawn = images.overlay(picture, small, drawing.card.map_boundary, drawing.card.map_centre)
        Image.fromarray(drawn).save(buffer, "JPEG", quality=80)
        self.files.put_as("thumbnails", drawing.name, buffer.getvalue())

    # --- reviews

    def review(
        self,
        number: int,
        verdict: str,
        who: str,
        *,
        note: str = "",
        mask: bytes | None = None,
        ignore: bytes | None = None,
        model: str = "",
    ) -> Row:
        """Keep a verdict, with what was painted: PNGs of the image's size, anything but black is marked. `model` is the
        one that was looked at, for the history."""
        if model:
            self.store.released(model)  # else it is a name that nobody finds
        image = self.store.image(number)
        self.files.sync("pictures", image["sha256"])
        kept = {}
        for kind, content in (("mask", mask), ("ignore", ignore)):
            if content is None:
                continue
            if len(content) > self.max_bytes:
                raise ImageError(f"the {kind} is larger than {self.max_bytes} bytes")
            marked = self._marked(kind, content)
            if marked.shape != (image["height"], image["width"]):
                size = f"{marked.shape[1]}x{marked.shape[0]}"
                raise ImageError(f"the {kind} is {size}, the image {image['width']}x{image['height']}: make them equal")
            if not marked.any():
                continue
            if kind == "mask" and verdict == "good":
                raise ImageError("a good part has no defect: leave the mask out, or call it bad")
            kept[kind] = self.files.put("masks", content)
        return self.store.add_review(number, verdict, who, note, kept.get("mask"), kept.get("ignore"), model)

    def _marked(self, kind: str, content: bytes) -> BoolArray:
        try:
            images.check_bytes(content, max_pixels=self.max_pixels)
            return images.mask_from_png(content)
        except ImageError as error:
            raise ImageError(str(error).replace("picture", f"the {kind}", 1)) from error
        except Exception as error:  # a decoder may throw anything
            raise ImageError(f"the {kind} is not a PNG that can be read") from error

    # --- what the page shows

    def threshold(self, name: str) -> dict[str, Any]:
        """The scores of calibration normals and of what was reviewed, and what the threshold promises."""
        version = self.store.released(name)
        scorer = self.batcher(version).scorer
        learnt = _learnt(scorer)
        verdicts = {r["image"]: r["verdict"] for r in self.store.reviewed() if r["sha256"] not in learnt}
        said = {"good": [], "bad": []}  # type: dict[str, list[float]]
        for row in self.store.series(version["id"]):
            verdict = verdicts.get(row["image"])
            if verdict in said:
                said[verdict].append(row["score"])
        calibration = list(scorer.calibration.scores)
        n = len(calibration)
        return {
            "rate": scorer.calibration.rate,
            "threshold": scorer.threshold,
            "calibration": sorted(calibration),
            "good": sorted(said["good"]),
            "bad": sorted(said["bad"]),
            "smallest_rate": smallest_rate(n),
            "worst_rate": rate_bound(n, max(1, int(scorer.calibration.rate * (n + 1) + 1e-9))),
            "guarantee": scorer.calibration.guarantee(),
        }

    def drift(
        self, name: str, since: float = 0.0, *, every: str = "auto", ahead: int = 0, last: int = summary.MOST
    ) -> dict[str, Any]:
        """How the scores of the released version have run, by hour or by day, and whether they have changed; images
        that a person called bad, and those that the version has learnt from, are left out of the test. `ahead`: seconds
        by which the local clock is ahead of UTC. `last`: how many scores to give one by one."""
        version = self.store.released(name)
        scorer = self.batcher(version).scorer
        series = self.store.series(version["id"], since)
        bad = {row["image"] for row in self.store.reviewed() if row["verdict"] == "bad"}
        learnt = _learnt(scorer)
        tested = [row for row in series if row["image"] not in bad and row["sha256"] not in learnt]
        found = drift.watch(scorer.calibration.scores, [row["score"] for row in tested], seed=version["id"])
        seconds = summary.width(every, series)
        return {
            "total": len(series),
            "tested": len(tested),
            "every": "hour" if seconds == summary.HOUR else "day",
            "bins": summary.binned(series, seconds, ahead),
            "series": series[max(0, len(series) - last) :],
            "levels": [
                {"created": tested[i]["created"], "level": found.levels[i]} for i in summary.thinned(found.levels)
            ],
            "alarms": [{"created": tested[i]["created"], "image": tested[i]["image"]} for i in found.alarms],
            "drivers": [tested[i]["image"] for i in found.drivers],
            "patience": found.patience,
            "promise": found.promise(),
        }


def _judged(scores: Scores, scorer: BaseScorer) -> Scores:
    """By the threshold of now, which may have been set while the picture was under way."""
    return replace(scores, threshold=scorer.threshold, is_anomaly=scores.score > scorer.threshold)


def _same(folder: Path, card: modelfile.Card, version: Row) -> None:
    """That the folder holds what it held when the version was taken up."""
    if card.data["checksum"] != version["checksum"]:
        raise ModelError(f"{folder} is not the model that it was: put it back, or start the service again")


def _learnt(scorer: BaseScorer) -> set[str]:
    """sha256 of the pictures that a model was trained or calibrated on: their scores say nothing of new parts."""
    listed = scorer.card.split.get("images", [])
    return {image["sha256"] for image in listed if image["role"] in ("train", "calibration", "known")}


def png(array: Any) -> bytes:
    """An 8-bit picture as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def version_named(workbench: Workbench, name: str, number: int | None) -> Row:
    """A version of a model by its number, or the released one."""
    if number is None:
        return workbench.store.released(name)
    version = workbench.store.version(number)
    if version["name"] != name:
        raise MissingError(f"there is no version {number} of {name!r}")
    if version["state"] == "discarded":
        raise ConfigError(f"version {number} has been discarded")
    return version
