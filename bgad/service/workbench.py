"""What the service does, without HTTP: models and their versions, scoring, pictures of what was found, reviews."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from bgad.artifact import folder as model_folder
from bgad.artifact.card import Card
from bgad.cli import console
from bgad.errors import BgadError, ConfigError, ImageError
from bgad.inference.base import BaseScorer
from bgad.io import images, render
from bgad.io.files import sha256_bytes
from bgad.service.blobs import Files, shown_name
from bgad.service.drift.monitor import Watch
from bgad.service.retention import Keeping
from bgad.service.scoring.batcher import Answer, Batcher, BusyError, ClosedError, judged
from bgad.service.scoring.model_cache import LOADED, Loaded, same
from bgad.service.scoring.rescore import Again
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.store.store import MissingError, Row, Store, dropped
from bgad.types import BoolArray, Scores

DATA = "data"  # beside the models: their data sets, as after `bgad demo`
FOLDER = ".workbench"  # beside the models: the store and all files
SUFFIX = ".bgad"
MAX_BYTES = 64 * 2**20  # of a picture that is sent
MAX_PIXELS = 50_000_000
PNG_TURNED = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")  # where a PNG may say that it is to be turned
PATIENCE = 5.0  # seconds that somebody waits for a picture of what was found


@dataclass(frozen=True)
class Scored:
    """A picture that was sent, and what the released version says of it."""

    image: int
    version: Row
    scores: Scores


@dataclass(frozen=True)
class Facts:
    """What the card of a version says of its decisions."""

    threshold: float
    rate: float
    guarantee: str
    calibration: int  # held-out normals
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
        loaded: int = LOADED,
        keep_days: float | None = None,
    ) -> None:
        """`data` is the folder where the data sets of the models are, by their names, for teaching; `loaded`: how many
        released versions are kept in memory; `keep_days`: how long pictures are kept that nobody reviews."""
        self.models, self.store = models, store
        self.data = data or models / DATA
        self.max_bytes, self.max_pixels = max_bytes, max_pixels
        self.files = Files(models / FOLDER)
        self._loaded = Loaded(models, store, loaded)
        self._released: dict[str, Row] = {}  # all changes of them go through here
        self._releasing, self._setting = threading.Lock(), threading.Lock()
        self._facts: dict[tuple[int, float | None], Facts] = {}
        self._sent: Counter[str] = Counter()  # pictures that are on their way, by their sha256
        self._sending = threading.Lock()
        self.scored: Counter[tuple[str, str]] = Counter()  # pictures that were sent, by model and decision
        self.thumbnails, self.again = Thumbnails(self.files, self.waiting), Again(self)
        self.watch, self.keeping = Watch(self), Keeping(self, keep_days)
        self.find_models()

    def close(self) -> None:
        """Finish what waits."""
        self.keeping.close()
        self.again.close()
        self.watch.close()
        self._loaded.close()
        self.thumbnails.close()

    # --- models

    def find_models(self) -> None:
        """Take up every model folder here; the first one of a name is released."""
        for folder in sorted(self.models.glob(f"*{SUFFIX}")):
            try:
                card = model_folder.verify(folder)
            except BgadError as error:
                console.warn(f"{folder.name} is left out: {error}")
                continue
            name = folder.name.removesuffix(SUFFIX)
            known = self.store.versions(name)
            for old in known:
                if old["folder"] == folder.name and old["checksum"] != card.checksum:
                    if old["state"] != "discarded":
                        console.warn(f"{folder.name} is another model than before, which is gone")
                    self.store.lose(old["id"])
            released = any(v["state"] == "released" for v in self.store.versions(name))
            state = "candidate" if released else "released"
            row = self.store.add_version(name, card.checksum, folder.name, state=state)
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
        return self._loaded.batcher(version)

    def answer(
        self, version: Row, path: Path, *, patient: bool, seconds: float | None = None, whole: bool = False
    ) -> tuple[Answer, BaseScorer]:
        """By the version, opened again where it was put away in between; with a map of the model's size, unless
        `whole`. A patient one waits for a place, but no longer than so many `seconds`."""
        while True:
            batcher = self.batcher(version)
            try:
                longest = 0 if whole else batcher.scorer.card.config.backbone.size
                return batcher.answer(path, patient=patient, seconds=seconds, longest=longest), batcher.scorer
            except ClosedError:
                continue

    def card(self, version: Row) -> Card:
        """Whole, with the split; the model is not opened."""
        folder = self.models / version["folder"]
        card = model_folder.read(folder)
        same(folder, card, version)
        return card

    def facts(self, version: Row) -> Facts:
        """Of the card alone: the model is not opened. Its files were checked when the service found it."""
        key = (version["id"], version["rate"])
        if key not in self._facts:
            folder = self.models / version["folder"]
            card = model_folder.read_card(folder)
            same(folder, card, version)
            calibration = card.calibration_at().calibration(version["rate"])
            normals, size = len(calibration.scores), card.config.backbone.size
            self._facts[key] = Facts(calibration.threshold, calibration.rate, calibration.guarantee(), normals, size)
        return self._facts[key]

    def set_rate(self, name: str, rate: float, who: str) -> Row:
        """Another false-reject rate for the released version; what it has scored is judged anew."""
        with self._setting:
            version = self.released(name)
            scorer = self.batcher(version).scorer
            wanted = replace(scorer.calibration, rate=rate)  # says so where the held-out normals do not support it
            with self._releasing:
                self.store.set_rate(version["id"], rate, wanted.threshold, who)
                self._released.clear()
            scorer.set_rate(rate)
            now = self._loaded.scorer(version["id"])
            if now is not None and now is not scorer:  # it was put away and opened again in between
                now.set_rate(rate)
        return self.store.version(version["id"])

    def release(self, version: Row, who: str) -> None:
        """Let a version score from now on, once it is known that it can; then it also scores what it missed."""
        self.batcher(version)
        with self._releasing:
            self.store.release(version["id"], who)
            self._released.clear()
        self.again.release(version)
        self.watch.came(version["name"])

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

    def adopt(self, folder: Path, name: str) -> tuple[str, str]:
        """Take over a model folder that a job made; where it is now, and its checksum."""
        checksum = model_folder.verify(folder).checksum
        to = self.own("versions") / f"{name}-{checksum[:16]}{SUFFIX}"
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(to)
        return to.relative_to(self.models).as_posix(), checksum

    def own(self, kind: str) -> Path:
        """A folder of the workbench's own: `jobs` or `versions`."""
        return self.models / FOLDER / kind

    def waiting(self) -> int:
        """Pictures that wait to be scored."""
        return self._loaded.waiting()

    # --- scoring

    def score(self, name: str, content: bytes, given_name: str, *, patient: bool = False) -> Scored:
        """Score a picture that was sent and keep both."""
        self._check(content)
        version = self.released(name)
        self.batcher(version)
        sha256 = sha256_bytes(content)
        with self._file(sha256, content) as path:
            try:
                answer, scorer = self._answer_of(version, path, content, patient=patient)
            except ImageError as error:
                raise ImageError(str(error).replace(str(path), "picture")) from error
            scores, (height, width) = answer.scores, answer.shape
            image = self.store.add_scored(sha256, shown_name(given_name), width, height, version["id"], scores)
        if self._setting.locked():
            with self._setting:
                pass  # what is being set is in force when it is done
        if scores.threshold != scorer.threshold:  # it was set while the picture was under way
            scores = judged(scores, scorer)
            self.store.add_score(image, version["id"], scores)
        self.thumbnails.later(sha256, version["id"], scores.map, scorer.card)
        now = self.released(name)
        if now["id"] != version["id"]:  # released while the picture was under way: it was not listed
            self.again.also(now, image)
        self.watch.came(name)
        with self._sending:
            self.scored[name, "anomalous" if scores.is_anomaly else "normal"] += 1
        return Scored(image, version, scores)

    def _answer_of(self, version: Row, path: Path, content: bytes, *, patient: bool) -> tuple[Answer, BaseScorer]:
        try:
            return self.answer(version, path, patient=patient)
        except ImageError:
            if not self.files.mend("pictures", path.name, content):
                raise
        return self.answer(version, path, patient=patient)  # a power cut had left another file there

    @contextmanager
    def _file(self, sha256: str, content: bytes) -> Iterator[Path]:
        """The file of a picture that is sent. It goes again where the picture is not taken, unless it is known, or sent
        by somebody else as well."""
        with self._sending:
            self._sent[sha256] += 1
        try:
            if not self.files.has("pictures", sha256, len(content)):
                self.files.put_as("pictures", sha256, content)  # a review sees to it that it is on the disk
            yield self.files.path("pictures", sha256)
        except (ImageError, BusyError):
            with self._sending:
                if self._sent[sha256] == 1 and not self.store.has_image(sha256):
                    self.files.drop("pictures", sha256)
            raise
        finally:
            with self._sending:
                self._sent[sha256] -= 1
                if not self._sent[sha256]:
                    del self._sent[sha256]

    @contextmanager
    def unsent(self, sha256: str) -> Iterator[bool]:
        """Whether nobody is sending a picture; nor does anybody begin to meanwhile."""
        with self._sending:
            yield sha256 not in self._sent

    def _check(self, content: bytes) -> None:
        """That the bytes are a picture, before they are kept: its kind and its size, without decoding it."""
        if not content:
            raise ImageError("the picture is empty: send its bytes")
        if len(content) > self.max_bytes:
            raise ImageError(f"the picture has {len(content)} bytes, more than {self.max_bytes}: send a smaller one")
        images.check_bytes(content, max_pixels=self.max_pixels)

    def picture(self, number: int) -> Path:
        """The file of an image, as it was sent."""
        return self.files.path("pictures", self._kept(number)["sha256"])

    def _kept(self, number: int) -> Row:
        """An image whose picture has not been dropped."""
        image = self.store.image(number)
        if image["dropped"] is not None:
            raise dropped(number)
        return image

    @contextmanager
    def _reading(self, number: int) -> Iterator[Path]:
        """The file of an image, which may go meanwhile."""
        path = self.picture(number)
        try:
            yield path
        except (ImageError, FileNotFoundError) as error:
            self._kept(number)
            raise ImageError(str(error).replace(str(path), f"image {number}")) from error

    def content(self, number: int) -> bytes:
        """An image as it was sent."""
        with self._reading(number) as path:
            return path.read_bytes()

    def view(self, number: int) -> tuple[bytes, str]:
        """An image as any browser shows it, and its media type: as it was sent where that will do, else a PNG."""
        with self._reading(number) as path:
            content = path.read_bytes()
            kind = _shown_as_it_is(content)
            if kind:
                return content, kind
            return png(images.to_uint8(images.read(path)), quickly=True), "image/png"

    def painted(self, number: int, kind: str) -> bytes:
        """What was painted with a review: a PNG."""
        name = self.store.review(number)[kind]
        if name is None:
            raise MissingError(f"no {kind} was painted with review {number}")
        return self.files.path("masks", name).read_bytes()

    def said(self, number: int, version: Row, *, whole: bool = False) -> tuple[Answer, BaseScorer]:
        """What a version says of an image that was sent before, for somebody who waits."""
        with self._reading(number) as path:
            return self.answer(version, path, patient=True, seconds=PATIENCE, whole=whole)

    def overlay(self, number: int, version: Row) -> bytes:
        """A PNG of the image with its map as heat."""
        answer, scorer = self.said(number, version, whole=True)
        with self._reading(number) as path:
            picture = images.read(path, bits=scorer.card.input.bits)
        return png(render.overlay(picture, answer.scores.map, scorer.card.map.boundary, scorer.card.map.mean))

    def map_picture(self, number: int, version: Row) -> tuple[bytes, float, float, float]:
        """The map of an image as a grey PNG of the model's size, and the values of black, white and the boundary."""
        answer, scorer = self.said(number, version)
        small = answer.scores.map
        low, high = float(small.min()), float(small.max())
        grey = np.rint((small - low) / max(high - low, 1e-9) * 255).astype(np.uint8)
        return png(grey), low, high, scorer.card.map.boundary

    def drawn(self, number: int, version: Row) -> bytes | None:
        """A small JPEG of the image with its heat, if it is there."""
        with self._reading(number) as path:
            there = self.thumbnails.has(path.name, version["id"])
            return self.thumbnails.read(path.name, version["id"]) if there else None

    def thumbnail(self, number: int, version: Row) -> bytes:
        """As `drawn`; made again where it is missing."""
        with self._reading(number) as path:
            if not self.thumbnails.has(path.name, version["id"]):
                answer, scorer = self.said(number, version)
                self.thumbnails.draw(path.name, version["id"], answer.scores.map, scorer.card)
            return self.thumbnails.read(path.name, version["id"])

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
        image = self._kept(number)
        with self._reading(number):
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

    def take_back(self, number: int, who: str, model: str = "") -> Row:
        """Take back a review; `model` as with one."""
        if model:
            self.store.released(model)
        return self.store.take_back(number, who, model)

    def _marked(self, kind: str, content: bytes) -> BoolArray:
        try:
            images.check_bytes(content, max_pixels=self.max_pixels, name=f"the {kind}")
            return images.mask_from_png(content)
        except ImageError:
            raise
        except Exception as error:  # a decoder may throw anything
            raise ImageError(f"the {kind} is not a PNG that can be read") from error


def _shown_as_it_is(content: bytes) -> str:
    """The media type of a PNG or JPEG that needs nothing: 8 bits, opaque, upright. Nothing for any other file."""
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            plain = image.mode in ("1", "L", "P", "RGB") and "transparency" not in image.info
            if image.format == "PNG":  # whose 16 bits are shown by their own range; to ask for Exif would decode it
                plain = plain and content[24] <= 8 and not any(mark in content for mark in PNG_TURNED)
            else:
                plain = plain and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
            return {"PNG": "image/png", "JPEG": "image/jpeg"}.get(image.format or "", "") if plain else ""
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return ""


def png(array: Any, *, quickly: bool = False) -> bytes:
    """An 8-bit picture as PNG; larger where it is made quickly."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", compress_level=1 if quickly else 6)
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
