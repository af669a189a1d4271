"""Types that packages exchange: label, sample, scores of an image, scorer, progress callback, request to stop."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from bgad.errors import BgadError, DataError

AnyArray = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LazyImage:
    """An image that is read elsewhere, such as by another thread."""

    name: str  # for messages
    load: Callable[[], Any]  # waits for the image; returns what `io.images.decode` returns, or raises ImageError

    def __str__(self) -> str:
        return self.name


ImageLike = str | Path | AnyArray | LazyImage

Box = tuple[int, int, int, int]  # left, top, right, bottom, in pixels
Shape = tuple[int, int]  # height, width

GOOD = "good"
TAUGHT = "taught"  # defect class, and first part of the names, of images given to `bgad update`


# The words that folders and manifests use for normal and anomalous images; `label_of` compares them.
NORMAL_NAMES = (
    *("good", "ok", "normal", "normals", "pass", "passed", "no", "io", "gut", "bon", "bons", "bueno", "buenos"),
    *("buono", "buoni", "bom", "goed", "dobry", "годен", "良品", "正常", "合格", "양품", "정상"),
)
ANOMALOUS_NAMES = (
    *("bad", "ng", "nok", "ko", "not ok", "not good", "defect", "defects", "defective", "anomaly", "anomalies"),
    *("anomalous", "abnormal", "fail", "failed", "fault", "faulty", "reject", "rejects", "rejected", "scrap"),
    *("broken", "yes", "nio", "schlecht", "fehler", "fehlerhaft", "defekt", "ausschuss", "mauvais", "défaut"),
    *("rebut", "malo", "malos", "defecto", "difetto", "scarto", "ruim", "defeito", "slecht", "zły", "wada", "брак"),
    *("不良", "不良品", "缺陷", "异常", "異常", "불량"),
)


def label_of(name: str) -> int | None:
    """Return the label that a word stands for: 0 normal, 1 anomalous, None where it is no label.

    Case, accents, blanks and punctuation do not matter, but a leading _ makes any word no label.

    >>> label_of("OK"), label_of("n.i.O."), label_of("Defaut"), label_of("scratch"), label_of("_ng")
    (0, 1, 1, None, None)
    """
    return None if name.startswith("_") else _LABELS.get(_letters(name))


def _letters(name: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", name.casefold()) if c.isalnum())


_LABELS = {_letters(name): label for label, names in enumerate((NORMAL_NAMES, ANOMALOUS_NAMES)) for name in names}


@dataclass(frozen=True, slots=True)
class Sample:
    """One image of a data set, or one tile of it, with its label and annotations."""

    path: Path
    name: str  # path relative to the data root, with forward slashes; identifies the sample in reports and splits
    label: int  # 0 normal, 1 anomalous
    defect: str = GOOD  # defect class; GOOD for a normal image
    mask: Path | None = None  # image that marks the defect; None where it is not marked
    split: str = ""  # "train", "test", or "" where the layout does not say
    box: Box | None = None  # the tile of the image; None: the image itself
    more_masks: tuple[Path, ...] = ()  # further masks of the same defect
    roi: Path | None = None  # mask of the region of interest: black is outside
    ignore: Path | None = None  # mask of what training ignores: all but black


# The parts of an anomaly score, in the order in which a model gives them; they add up to the score.
PARTS = (
    "map",  # the highest values of the anomaly map
    "image",  # how unusual the image is as a whole: the Mahalanobis distance of the image head
    "known",  # resemblance to known anomalies: the discriminant directions of the image head
)


@dataclass(frozen=True, slots=True)
class Scores:
    """The anomaly score and anomaly map of one image, and the decision that follows."""

    score: float  # higher is more anomalous
    p_value: float  # conformal: share of normal images that score at least as high
    threshold: float
    is_anomaly: bool  # score > threshold
    map: FloatArray  # (H, W) at the resolution of the given image; higher is more anomalous
    map_threshold: float  # a map value above it is inside a contour; at most the false-reject rate of normals has one
    boundary: float  # of the map: a share loss.beta of the normals' map values lies above it
    levels: tuple[FloatArray, ...] = ()  # log p / d or scaled similarity of each level, (h, w), before fusion
    parts: Mapping[str, float] = field(default_factory=dict)  # of PARTS: contributions that add up to the score
    reason: str = ""  # in words, why the image is called anomalous; empty where it is not
    region: Box | None = None  # bounding box of the contour around the map's maximum, whatever the decision
    precision: str = "float32"  # in which the score was computed; each has its own thresholds


class Progress(Protocol):
    """Callback for long work: the task, the units done, the total, and a note on the current state."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None: ...


class ProgressTask:
    """Counts the finished units of one task and reports each change to a callback, if given."""

    def __init__(self, report: Progress | None, task: str, total: int, done: int = 0) -> None:
        self._report, self._task, self._total, self._done = report, task, total, done
        self.advance(0)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Add finished units."""
        self._done += units
        if self._report is not None:
            self._report(self._task, self._done, self._total, note)


class StopRequest:
    """Asks a training to stop; the caller sets it, for example on Ctrl-C, and the loop looks at it after every step.

    While `honoured` is true, the loop ends the current step, saves a checkpoint and raises KeyboardInterrupt. At other
    times nobody looks at the request, and a caller has to interrupt the work itself.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.honoured = False

    @property
    def requested(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask the training to stop."""
        self._requested.set()

    @contextmanager
    def honour(self) -> Iterator[None]:
        """Mark the time during which the loop looks at the request."""
        self.honoured = True
        try:
            yield
        finally:
            self.honoured = False


@dataclass(frozen=True)
class RunControl:
    """How a caller follows a run and ends it."""

    progress: Progress | None = None
    stop: StopRequest | None = None


class Scorer(Protocol):
    """Scores images; the score of an image does not depend on the others in its batch."""

    @property
    def threshold(self) -> float: ...

    def score(self, image: ImageLike) -> Scores: ...

    def score_many(self, images: Sequence[ImageLike]) -> list[Scores]: ...

    def score_stream(self, images: Iterable[ImageLike]) -> Iterator[Scores | BgadError]: ...


USED_ROLES = ("train", "calibration", "known")  # of images that a model is trained or calibrated on
ROLES = (*USED_ROLES, "test")
UNUSED = "unused"  # the role of an image that is neither trained on nor tested
SPLIT_FORMAT = 1  # of split.json


@dataclass(frozen=True, slots=True)
class SplitImage:
    """The role of one image in a split, the reason for it, and the hash that identifies the image."""

    name: str
    sha256: str
    role: str
    defect: str = ""  # empty: not stated
    why: str = ""
    box: Box | None = None

    @classmethod
    def from_json(cls, stored: Any, number: int) -> Self:
        """Read one entry of split.json; DataError names the entry by its number."""
        if not isinstance(stored, dict) or not {"name", "sha256", "role"} <= stored.keys():
            raise DataError(f"image {number} needs name, sha256 and role")
        texts = {key: stored.get(key, "") for key in ("name", "sha256", "role", "defect", "why")}
        if not all(isinstance(text, str) for text in texts.values()):
            raise DataError(f"image {number} has something other than text in one of its fields")
        box = stored.get("box")
        if box is not None and not (isinstance(box, list) and [type(side) for side in box] == [int] * 4):
            raise DataError(f"image {number} has a box that is not four whole numbers")
        image = cls(**texts, box=None if box is None else (box[0], box[1], box[2], box[3]))
        if image.role not in (*ROLES, UNUSED):
            raise DataError(f"{image.name} has the unknown role {image.role!r}; use {', '.join((*ROLES, UNUSED))}")
        return image

    def to_json(self) -> dict[str, Any]:
        """Return the entry as split.json holds it."""
        box = {} if self.box is None else {"box": list(self.box)}
        return {
            "name": self.name,
            **box,
            "sha256": self.sha256,
            "role": self.role,
            "defect": self.defect,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """The content of split.json: how a data set was divided, and the role of every image."""

    images: list[SplitImage]
    data: str = ""
    protocol: str = "given"
    known_class: str = ""
    subset: int = 0
    seed: int = 0
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Check what a split file holds; fields other than format and images may be missing."""
        version = stored.get("format") if isinstance(stored, dict) else None
        if not isinstance(version, int) or version < 1 or not isinstance(stored.get("images"), list):
            raise DataError("is not a split file: it needs format and images")
        if version > SPLIT_FORMAT:
            raise DataError(f"has format {version}, this bgad reads up to {SPLIT_FORMAT}: upgrade bgad to use it")
        defaults = cls([])._facts()
        facts = {key: stored.get(key, default) for key, default in defaults.items()}
        for key, default in defaults.items():
            if type(facts[key]) is not type(default):
                raise DataError(f"{key} must be of type {type(default).__name__}")
        if not all(isinstance(note, str) for note in facts["notes"]):
            raise DataError("notes must be a list of texts")
        return cls([SplitImage.from_json(image, i) for i, image in enumerate(stored["images"], start=1)], **facts)

    def to_json(self) -> dict[str, Any]:
        """Return what the split file holds."""
        return {"format": SPLIT_FORMAT, **self._facts(), "images": [image.to_json() for image in self.images]}

    def _facts(self) -> dict[str, Any]:
        """Return the fields other than the images."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "images"}

    def roles(self) -> dict[str, str]:
        """Return sha256 -> role; of several names of one image, a name with a role takes precedence over unused."""
        images = sorted(self.images, key=lambda image: image.role != UNUSED)
        return {image.sha256: image.role for image in images}
