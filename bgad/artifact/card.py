"""The model card: what a model is, how it was trained and what its scores mean, as a tree of frozen dataclasses.

`card.json` mirrors the tree field by field. `from_json` is its one reader and `to_json` its one writer.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from bgad.calibration import Calibration, effective_rate
from bgad.config import BASELINES, Config, to_dict
from bgad.errors import ConfigError, ModelError
from bgad.geometry.roi import Polygons
from bgad.types import PARTS, USED_ROLES, FloatArray, Shape

FORMAT = 9  # version of the card's fields
FLOAT32 = "float32"  # the precision of training, which every model is calibrated for

_TYPE_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string", dict: "an object"}
_Node = TypeVar("_Node")


@dataclass(frozen=True)
class ProvenanceCard:
    """When and with which version the model was trained, and which model it was updated from."""

    bgad: str  # version of the package
    created: str  # ISO 8601, in UTC
    parent: str | None = None  # checksum of the card of the model that this one updates


@dataclass(frozen=True)
class DataCard:
    """The data set and the protocol that split it."""

    name: str
    layout: str
    protocol: str
    known_class: str  # defect class of the known anomalies where the protocol allows only one
    subset: int  # 1 or 2: which class list of the protocols `hard` and `unseen`; 0 for other protocols
    known: int  # known anomalies
    notes: tuple[str, ...] = ()  # warnings of reading and splitting the data


@dataclass(frozen=True)
class InputCard:
    """The images that the model takes, after resizing."""

    height: int
    width: int
    bits: int  # bit depth of the training images
    mean: tuple[float, ...]  # of each channel, for normalisation
    std: tuple[float, ...]
    largest_image: Shape | None = None  # height and width of the training image with most pixels; None: not known

    @property
    def shape(self) -> Shape:
        """Height and width in pixels."""
        return self.height, self.width


@dataclass(frozen=True)
class LevelCard:
    """One level of the feature pyramid; its statistics are those of log p / d over the normals."""

    stride: int
    weight: float  # in the map's part of the score; in the map, all levels count alike
    channels: int
    grid: tuple[int, int]  # rows and columns of the feature map
    mean: float
    std: float
    max: float
    normal_boundary: float
    abnormal_boundary: float
    block: int | None = None  # of a vision transformer, from 0; None: the level is a stage of the backbone

    @property
    def title(self) -> str:
        """What tells the level from the others of its model."""
        return f"stride {self.stride}" if self.block is None else f"block {self.block}"


@dataclass(frozen=True)
class MapCard:
    """Reference values of the anomaly map."""

    mean: float  # over the normals
    boundary: float  # 1 - loss.beta quantile over the normals


@dataclass(frozen=True)
class ScorePart:
    """One term of the image score and its weight."""

    name: str  # one of types.PARTS
    weight: float


@dataclass(frozen=True)
class RoiCard:
    """The region of interest, which is stored as an image in a file of its own."""

    height: int
    width: int
    share: float  # of the image's pixels
    polygons: Polygons | None = None  # None where the region was given as an image


class CalibrationNormal(NamedTuple):
    """What a model gives for a calibration normal."""

    score: float
    parts: FloatArray  # of the score, those of types.PARTS
    map_max: float  # maximum of the map from which every map of the image is drawn


@dataclass(frozen=True)
class CalibrationCard:
    """What the calibration normals give at one precision: scores, map maxima, and what follows from them."""

    scores: tuple[float, ...]  # ascending
    map_maxima: tuple[float, ...]  # maximum of each calibration normal's anomaly map, ascending
    false_reject_rate: float
    threshold: float
    map_threshold: float  # map value above which a contour is drawn
    part_limits: dict[str, float]  # by name: calibration normals stay at or below it, but for the false-reject rate
    guarantee: str
    is_default_rate: bool = False  # nobody asked for the rate
    confidence: float | None = None  # with which the rate holds for these normals; None: on average over such sets

    @classmethod
    def of(
        cls, calibration: Calibration, map_calibration: Calibration, part_limits: dict[str, float]
    ) -> CalibrationCard:
        """Describe the calibration of the score and that of the map, which have one rate."""
        return cls(
            tuple(sorted(calibration.scores)),
            tuple(sorted(map_calibration.scores)),
            calibration.rate,
            calibration.threshold,
            map_calibration.threshold,
            part_limits,
            calibration.guarantee(),
            is_default_rate=calibration.is_default,
            confidence=calibration.confidence,
        )

    @classmethod
    def from_normals(
        cls,
        normals: Iterable[CalibrationNormal],
        parts: Sequence[ScorePart],
        asked_rate: float | None,
        confidence: float | None = None,
    ) -> CalibrationCard:
        """Calibrate the score, the map and the given parts of it, all at one false-reject rate."""
        scores, values, maxima = zip(*normals, strict=True)
        rate, is_default = effective_rate(len(scores), asked_rate, confidence), asked_rate is None
        limits = np.quantile(np.stack(values), 1 - rate, axis=0, method="higher")
        return cls.of(
            Calibration.from_scores(scores, rate, is_default=is_default, confidence=confidence),
            Calibration.from_scores(maxima, rate, is_default=is_default, confidence=confidence),
            {part.name: float(limits[PARTS.index(part.name)]) for part in parts},
        )

    def calibration(self, rate: float | None = None) -> Calibration:
        """Return the calibration of the score at the card's false-reject rate, or at another one."""
        return self._at(self.scores, rate)

    def map_calibration(self, rate: float | None = None) -> Calibration:
        """Return the calibration of the map, whose scores are the map maxima, at the same rates."""
        return self._at(self.map_maxima, rate)

    def _at(self, values: tuple[float, ...], rate: float | None) -> Calibration:
        if rate is not None:
            return Calibration(values, rate, confidence=self.confidence)
        return Calibration(values, self.false_reject_rate, self.is_default_rate, self.confidence)


@dataclass(frozen=True)
class TrainingCard:
    """Facts of the training run."""

    seconds: float  # from the start of the command to the card
    loop_seconds: float  # of them, in the training loop
    steps: int
    device: str
    torch: str  # version
    python: str  # version
    validation_normals: tuple[str, ...] = ()  # names of the normals held out from the flows


@dataclass(frozen=True)
class ParityCard:
    """Largest difference between an exported graph and torch, as a share of the range of the values."""

    images: int  # that were compared
    score: float
    map: float
    tolerance: float


@dataclass(frozen=True)
class ExportCard:
    """An exported graph: how its weights are stored, what made it and how it compares with torch."""

    weights: str  # data type of the stored weights
    parity: ParityCard
    torch: str  # version
    engine: str  # name and version


@dataclass(frozen=True)
class AgreementCard:
    """How a precision agrees with float32, measured when it was calibrated; the AUROCs are float32's and its own."""

    engine: str  # name and version
    device: str  # the only one that the calibration is for: CPU, GPU or NPU
    images: int  # calibration normals and known anomalies, scored at both precisions
    rank_correlation: float  # Spearman's, of their scores
    changed_decisions: int  # on these images, each precision by its own threshold
    known_auroc: tuple[float, float] | None  # known anomalies against calibration normals
    test_auroc: tuple[float, float] | None  # on the test images that were there; nothing is chosen by it


@dataclass(frozen=True)
class Card:
    """The model card. `split` and `roi_png` come from files of their own and are not part of card.json."""

    name: str
    method: str
    provenance: ProvenanceCard
    data: DataCard
    config: Config
    input: InputCard
    levels: tuple[LevelCard, ...]
    map: MapCard
    score_parts: tuple[ScorePart, ...]
    calibration: dict[str, CalibrationCard]  # by precision: float32, and those that `bgad export --precision` adds
    training: TrainingCard
    roi: RoiCard | None = None
    exports: dict[str, ExportCard] = field(default_factory=dict)  # by format: onnx, openvino
    agreement: dict[str, AgreementCard] = field(default_factory=dict)  # by precision, without float32
    licences: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # sha256 of each other file of the folder
    format: int = FORMAT
    checksum: str = ""  # sha256 of the card without this field; empty before it is written
    split: dict[str, Any] = field(default_factory=dict, metadata={"file": "split.json"})
    roi_png: bytes | None = field(default=None, metadata={"file": "roi.png"})

    def calibration_at(self, precision: str = FLOAT32) -> CalibrationCard:
        """Return the calibration of a precision; ModelError where the model has none."""
        if precision not in self.calibration:
            known = ", ".join(self.calibration) or "none"
            raise ModelError(
                f"{self.name} is not calibrated for {precision} (it is for: {known}): "
                f"run `bgad export {self.name}.bgad --precision {precision}`"
            )
        return self.calibration[precision]

    def part_weight(self, name: str) -> float | None:
        """Return the weight of a part of the score; None where the score has no such part."""
        return next((part.weight for part in self.score_parts if part.name == name), None)

    @property
    def used_sha256(self) -> set[str]:
        """sha256 of the images used for training or calibration; their scores do not predict those of new images."""
        return {image["sha256"] for image in self.split["images"] if image["role"] in USED_ROLES}


def to_json(card: Card) -> dict[str, Any]:
    """Convert a card to the content of card.json."""
    return {f.name: _plain(getattr(card, f.name)) for f in fields(card) if "file" not in f.metadata}


def from_json(content: Mapping[str, Any], source: str) -> Card:
    """Read the content of card.json; ModelError naming the field where one is missing or has the wrong type."""
    card = _read_node(Card, content, source, "")
    try:
        card.config.check()
    except ConfigError as error:
        raise ModelError(f"{source} is not a valid model card: config.{error}") from error
    if not card.levels and card.config.method not in BASELINES:
        raise _invalid(source, "levels", "is empty")
    if card.calibration.keys() != {FLOAT32, *card.agreement}:
        raise _invalid(source, "calibration", f"must have {FLOAT32} and what the field agreement has")
    return card


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return _plain(to_dict(value))
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _read_node(kind: type[_Node], content: Any, source: str, path: str) -> _Node:
    """Build a dataclass from a JSON object that has all of its fields and no others."""
    if not isinstance(content, Mapping):
        raise _invalid(source, path, f"must be an object, not {content!r:.60}")
    hints = get_type_hints(kind)
    stored = [f for f in fields(kind) if "file" not in f.metadata]  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    if unknown := sorted(set(content) - {f.name for f in stored}):
        raise _invalid(source, f"{prefix}{unknown[0]}", "is unknown")
    values: dict[str, Any] = {}
    for f in stored:
        hint = hints[f.name]
        if kind is Config and f.name == "baseline":  # its type depends on the method
            if (entry := BASELINES.get(values["method"])) is None and f.name not in content:
                continue
            hint = hint if entry is None else type(entry.default.settings)
        if f.name not in content:
            raise _invalid(source, f"{prefix}{f.name}", "is missing")
        values[f.name] = _read_value(hint, content[f.name], source, f"{prefix}{f.name}")
    return kind(**values)


def _read_value(hint: Any, value: Any, source: str, path: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _read_node(hint, value, source, path)  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):  # X | None
        return None if value is None else _read_value(arguments[0], value, source, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise _invalid(source, path, f"must be a list, not {value!r:.60}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise _invalid(source, path, f"must have {len(arguments)} items, not {len(value)}")
        return tuple(_read_value(arguments[0], item, source, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise _invalid(source, path, f"must be an object, not {value!r:.60}")
        return {key: _read_value(arguments[1], item, source, f"{path}.{key}") for key, item in value.items()}
    if hint is float and type(value) is int and abs(value) < 2**63:  # a larger one may have no float
        return float(value)
    if type(value) is not hint:
        raise _invalid(source, path, f"must be {_TYPE_NAMES[hint]}, not {value!r:.60}")
    return value


def _invalid(source: str, path: str, problem: str) -> ModelError:
    return ModelError(f"{source} is not a valid model card: the field {path or 'card'} {problem}")
