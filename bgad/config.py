"""The recipe of a model as frozen dataclasses, read from and written to TOML.

An unknown key is an error that names the nearest known key; a value out of range is an error that says what is allowed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import tomli_w

from bgad.errors import ConfigError


@dataclass(frozen=True)
class Method:
    """What a method of this package is trained with, and the presets that it can be trained by."""

    about: str
    objective: str  # one of OBJECTIVES
    presets: tuple[str, ...]  # of PRESETS; the first is the default
    level: str = "flow"  # one of LEVELS

    @property
    def uses_anomalies(self) -> bool:
        """Whether the loss uses known and pseudo anomalies."""
        return self.objective in ("full-push-pull", "semi-push-pull", "boundary-only")

    @property
    def is_printed(self) -> bool:
        """Whether the method is the paper's: PRINTED fixes its features, flow, losses, map and image score."""
        return "paper" in self.presets


@dataclass(frozen=True)
class LevelKind:
    """What rates the features of a level: the name of its values, and their unit."""

    value: str
    unit: str


OBJECTIVES: dict[str, str] = {
    "likelihood": "likelihood of the normals",
    "semi-pull": "likelihood, and pull in the normals outside the boundary",
    "full-push-pull": "likelihood, pull in every normal and push every anomaly to a far bound",
    "semi-push-pull": "likelihood, pull in normals outside the boundary and push out anomalies inside the margin",
    "boundary-only": "semi-push-pull without the likelihood",
}
LEVELS: dict[str, LevelKind] = {
    "flow": LevelKind("log-likelihood", "log p / d"),
    "distance": LevelKind("similarity", "scaled similarity"),
}
_OURS, _PAPER, _DISTANCE = ("default",), ("paper-fast", "paper"), ("distance",)

METHODS: dict[str, Method] = {
    "bgad-plus": Method(
        "the default: bgad's boundary-guided semi-push-pull without asymmetric weights and with a wider margin, in a "
        "recipe of our own with an image head",
        "semi-push-pull",
        _OURS,
    ),
    "nfad-plus": Method("bgad-plus's recipe with the likelihood loss alone; uses no anomalies", "likelihood", _OURS),
    "bgad": Method("the paper's BGAD: boundary-guided semi-push-pull", "semi-push-pull", _PAPER),
    "bgad-full-push": Method("the paper's BGAD-dagger: contrastive, without a boundary", "full-push-pull", _PAPER),
    "bgad-wo": Method("the paper's BGAD-w/o: likelihood and semi-pull, without anomalies", "semi-pull", _PAPER),
    "nfad": Method("the paper's baseline NFAD: likelihood only; uses no anomalies", "likelihood", _PAPER),
    "bgad-distance": Method(
        "bgad's boundary on the similarity to stored normals, without a flow", "boundary-only", _DISTANCE, "distance"
    ),
}

PSEUDO_METHODS: dict[str, str] = {
    "rpag": "the known anomalies with masks, transformed, cut out and pasted on normals (the paper's)",
    "draem": "synthetic textures where Perlin noise is high (as DRAEM); needs no known anomalies",
    "nsa": "patches of other normals, blended in without a seam (as NSA); needs no known anomalies",
    "none": "no pseudo anomalies",
}


@dataclass(frozen=True)
class BackboneConfig:
    """The frozen feature extractor."""

    name: str = "lite0"  # lite0, lite1 and lite2 come with the package; any other name is a timm model
    strides: tuple[int, ...] = (4, 8, 16)  # one flow for each
    image_head_strides: tuple[int, ...] = (16, 32)  # features of the image head; empty switches it off
    min_stride: int = 8  # feature maps of finer strides are average-pooled to this stride; 0: not pooled
    size: int = 256  # side of the square input, in pixels
    crop: bool = False  # resize the central square of an image, as the paper's methods do; else stretch the whole image
    weights: str = ""  # weight file to use instead of the package's or timm's own

    @property
    def all_strides(self) -> tuple[int, ...]:
        """Strides of the flows, followed by those that only the image head uses."""
        return (*self.strides, *(s for s in self.image_head_strides if s not in self.strides))

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.size >= 32 and self.size % 16 == 0, "backbone.size", "a multiple of 16, at least 32")
        _need(len(self.strides) > 0 and _ascending(self.strides), "backbone.strides", "distinct and ascending")
        _need(_ascending(self.image_head_strides), "backbone.image_head_strides", "distinct and ascending")
        _need(self.min_stride in (0, 1, 2, 4, 8, 16), "backbone.min_stride", "0, 1, 2, 4, 8 or 16")


@dataclass(frozen=True)
class TileConfig:
    """Tiling of images that are much larger than the model's input; each tile is scored as an image."""

    size: int = 0  # side of a tile in image pixels; 0: the image is scored as a whole
    overlap: float = 0.25  # smallest share of a tile that its neighbour covers too

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.size == 0 or self.size >= 32, "tile.size", "0, or at least 32")
        _need(0 <= self.overlap <= 0.75, "tile.overlap", "0 to 0.75")


@dataclass(frozen=True)
class FlowConfig:
    """The conditional normalizing flow of each level."""

    blocks: int = 6  # coupling blocks
    hidden_ratio: float = 2.0  # hidden units of a sub-network, as a multiple of its inputs
    max_hidden_ratio: float = 4.0  # upper limit on hidden units, as a multiple of the channels; 0: no limit
    clamp: float = 1.9  # bound of a coupling's log-scale
    standardise: bool = False  # standardise each channel by the training normals before the flow

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.blocks >= 1, "flow.blocks", "at least 1")
        _need(self.hidden_ratio > 0, "flow.hidden_ratio", "above 0")
        _need(self.max_hidden_ratio >= 0, "flow.max_hidden_ratio", "0 or more")
        _need(self.clamp > 0, "flow.clamp", "above 0")


@dataclass(frozen=True)
class DistanceConfig:
    """The projection of each level and its stored normals, in a method without flows."""

    dimension: int = 0  # upper limit on the dimensions of the projection; 0: one for each channel
    bank_size: int = 2048  # stored features of each level
    scale: float = 10.0  # value of a feature: this times its cosine to the nearest stored normal less 1

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.dimension >= 0, "distance.dimension", "0 or more")
        _need(1 <= self.bank_size <= 65_536, "distance.bank_size", "1 to 65536")
        _need(0 < self.scale <= 1000, "distance.scale", "above 0, up to 1000")


@dataclass(frozen=True)
class LossConfig:
    """Boundary and loss; tau is in units of log p / d divided by the normaliser."""

    likelihood: str = "nll"  # the negative log-likelihood, or "logsigmoid": -logsigmoid(log p / d)
    boundary: str = "set"  # percentile over the whole normal set; "batch": over the normals of each step
    beta: float = 0.01  # share of normal features outside the normal boundary
    tau: float = 0.5  # margin between the normal and the abnormal boundary; 0: no margin
    push_pull_weight: float = 1.0  # weight of the boundary-guided loss, lambda in the paper
    asymmetric_weights: bool = False  # the paper's weights on hard normal and on anomalous features
    max_abnormal_weight: float = 20.0  # cap of the abnormal weight, which has a pole at log p = 0
    exclude_far: bool = True  # exclude features below -1, after the normaliser, from the boundary-guided loss
    instance_share: float = 0.0  # least likely share of an anomaly without a mask that is pushed; 0: none

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.likelihood in ("logsigmoid", "nll"), "loss.likelihood", "logsigmoid or nll")
        _need(self.boundary in ("set", "batch"), "loss.boundary", "set or batch")
        _need(0 < self.beta < 1, "loss.beta", "between 0 and 1")
        _need(self.tau >= 0, "loss.tau", "0 or more")
        _need(self.push_pull_weight >= 0, "loss.push_pull_weight", "0 or more")
        _need(self.max_abnormal_weight >= 1, "loss.max_abnormal_weight", "at least 1")
        _need(0 <= self.instance_share <= 1, "loss.instance_share", "0 to 1")


@dataclass(frozen=True)
class PseudoConfig:
    """Pseudo anomalies: made from known anomalies with masks (rpag), or from normals alone (draem, nsa)."""

    method: str = "rpag"  # one of PSEUDO_METHODS
    count: int = 160  # pseudo anomalies made for a training
    transforms: int = 3  # random transforms of each: S of the paper (rpag), changes of the texture (draem)
    share: float = 0.5  # share of pseudo anomalies among the anomalous features of a step

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.method in PSEUDO_METHODS, "pseudo.method", f"one of {', '.join(PSEUDO_METHODS)}")
        _need(self.count >= 0, "pseudo.count", "0 or more")
        _need(0 <= self.transforms <= 9, "pseudo.transforms", "0 to 9")
        _need(0 <= self.share <= 1, "pseudo.share", "0 to 1")


@dataclass(frozen=True)
class TrainConfig:
    """The schedule. A step draws `images_per_step` images and `positions_per_image` positions of each, per level."""

    steps: int = 800  # phase 1: normals only
    push_steps: int = 400  # phase 2: boundary guided
    epochs: int = 0  # passes over all normal features in both phases, in place of steps; 0: count steps
    push_start: float = 0.04  # with epochs: share of the schedule after which phase 2 begins
    images_per_step: int = 32
    positions_per_image: tuple[int, ...] = (16, 16, 16)  # one number for each level
    lr: float = 1e-2  # peak learning rate of phase 1
    push_lr: float = 2e-3  # peak learning rate of phase 2; 0: phase 2 continues the schedule of phase 1
    restore_best: bool = True  # a phase without a push ends with each level's best weights on the validation normals
    patience: int = 300  # with restore_best: steps without improvement after which a level stops; 0: it never stops
    warmup: float = 0.1  # share of a phase in which the learning rate rises from a tenth of its peak
    clip_norm: float = 1.0  # maximum gradient norm of a level; 0: no clipping

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.steps >= 0, "train.steps", "0 or more")
        _need(self.push_steps >= 0, "train.push_steps", "0 or more")
        _need(self.epochs >= 0, "train.epochs", "0 or more")
        _need(0 < self.push_start < 1, "train.push_start", "between 0 and 1")
        _need(self.images_per_step >= 1, "train.images_per_step", "at least 1")
        _need(min(self.positions_per_image, default=0) >= 1, "train.positions_per_image", "at least 1 each")
        _need(self.lr > 0, "train.lr", "above 0")
        _need(self.push_lr >= 0, "train.push_lr", "0 or more")
        _need(self.patience >= 0, "train.patience", "0 or more")
        _need(0 <= self.warmup < 1, "train.warmup", "0 or more, below 1")
        _need(self.clip_norm >= 0, "train.clip_norm", "0 or more")


@dataclass(frozen=True)
class ScoreConfig:
    """From the log-likelihoods of the levels to one anomaly map and one image score."""

    fusion: str = "p-value"  # of a level: -log p-value among normals; "probability": the paper's 1 - exp(log p)
    level_prior_power: float = 0.5  # in the image score, the prior weight of a level is its stride to this power
    top_share: float = 0.01  # map score: mean of this highest share of the weighted map; 0: its maximum
    image_head_weight: float = 0.5  # prior weight of the image head beside the map
    evidence_weight: float = 4.0  # weight of each known anomaly when level and image-head weights are fitted; 0: prior
    direction_weight: float = 0.5  # weight of each discriminant direction in the image head; 0 switches them off

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        _need(self.fusion in ("p-value", "probability"), "score.fusion", "p-value or probability")
        _need(0 <= self.level_prior_power <= 4, "score.level_prior_power", "0 to 4")
        _need(0 <= self.top_share <= 1, "score.top_share", "0 to 1")
        _need(self.image_head_weight >= 0, "score.image_head_weight", "0 or more")
        _need(0 <= self.evidence_weight <= 100, "score.evidence_weight", "0 to 100")
        _need(self.direction_weight >= 0, "score.direction_weight", "0 or more")

    @property
    def weighs_levels(self) -> bool:
        """Whether levels may count differently in the image score; in the map, they always count alike."""
        return self.level_prior_power > 0 or self.evidence_weight > 0


@dataclass(frozen=True)
class Config:
    """The whole recipe of a model."""

    method: str = "bgad-plus"  # one of METHODS
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    tile: TileConfig = field(default_factory=TileConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    distance: DistanceConfig = field(default_factory=DistanceConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    pseudo: PseudoConfig = field(default_factory=PseudoConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    seed: int = 0

    def check(self) -> Config:
        """Return self when every value is in range; ConfigError otherwise."""
        _need(self.method in METHODS, "method", f"one of {', '.join(METHODS)}")
        parts = (self.backbone, self.tile, self.flow, self.distance, self.loss, self.pseudo, self.train, self.score)
        for part in parts:
            part.check()
        self._check_printed()
        self._check_level()
        _need(
            len(self.train.positions_per_image) == len(self.backbone.strides),
            "train.positions_per_image",
            f"one number for each of the {len(self.backbone.strides)} strides",
        )
        _need(0 <= self.seed < 2**32, "seed", "0 or more, below 2 to the 32nd")
        return self

    @property
    def objective(self) -> str:
        """The loss of the method, one of OBJECTIVES."""
        return METHODS[self.method].objective

    @property
    def level(self) -> str:
        """What rates the features of a level, one of LEVELS."""
        return METHODS[self.method].level

    @property
    def uses_anomalies(self) -> bool:
        """Whether the method is trained with known and pseudo anomalies."""
        return METHODS[self.method].uses_anomalies

    def _check_printed(self) -> None:
        """ConfigError where one of the paper's methods has a value that the paper's does not have."""
        if not METHODS[self.method].is_printed:
            return
        for part, values in PRINTED.items():
            for name, printed in values.items():
                given = getattr(getattr(self, part), name)
                if given != printed:
                    text = f"{part}.{name} is {printed!r} in the paper's {self.method}, not {given!r}"
                    raise ConfigError(f"{text}: leave it, or change it in bgad-plus or nfad-plus")

    def _check_level(self) -> None:
        """ConfigError for a schedule that the levels cannot follow, and for keys of levels that the method lacks."""
        for part, default in (("flow", FlowConfig()), ("distance", DistanceConfig())):
            if part != self.level and getattr(self, part) != default:
                raise ConfigError(f"{part} has no effect in {self.method}, whose levels are of the kind {self.level}")
        if self.level == "flow":
            _need(self.train.steps >= 1 or self.train.epochs >= 1, "train.steps", "at least 1")
        elif self.train.steps or self.train.epochs:
            raise ConfigError(
                f"train.steps and train.epochs must be 0 in {self.method}: phase 1 maximises a likelihood, "
                "which it lacks"
            )


def _need(ok: bool, key: str, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{key} must be {allowed}")


def _ascending(strides: tuple[int, ...]) -> bool:
    return sorted(set(strides)) == list(strides)


# What the paper's methods have in common. The backbone's name, the input's size, the schedule, the hyper-parameters
# that the paper varies (beta, tau, lambda, weights, pseudo anomalies) and what it is silent about may be changed.
PRINTED: dict[str, dict[str, Any]] = {
    "backbone": {"strides": (4, 8, 16), "image_head_strides": (), "min_stride": 0, "crop": True},
    "flow": {"blocks": 8, "hidden_ratio": 2.0, "max_hidden_ratio": 0.0, "clamp": 1.9, "standardise": False},
    "loss": {"likelihood": "nll", "boundary": "set", "exclude_far": True, "max_abnormal_weight": 20.0},
    "train": {"restore_best": False},
    "score": {
        "fusion": "probability",
        "level_prior_power": 0.0,
        "top_share": 0.0,
        "image_head_weight": 0.0,
        "evidence_weight": 0.0,
        "direction_weight": 0.0,
    },
}
_PAPER_RECIPE = Config(
    method="bgad",
    backbone=BackboneConfig(name="tf_efficientnet_b6", **PRINTED["backbone"]),
    flow=FlowConfig(**PRINTED["flow"]),
    loss=LossConfig(**PRINTED["loss"], tau=0.1, asymmetric_weights=True, instance_share=0.1),
    pseudo=PseudoConfig(method="rpag"),
    train=TrainConfig(
        epochs=200,
        push_start=0.04,  # one meta epoch of 25
        positions_per_image=(128, 32, 8),  # 32 x 128 = 4,096 features a step at stride 4
        lr=2e-4,
        push_lr=0.0,
        warmup=0.08,  # two meta epochs of 25
        clip_norm=0.0,
        **PRINTED["train"],
    ),
    score=ScoreConfig(**PRINTED["score"]),
)
PRESETS: dict[str, Config] = {
    "default": Config(),
    "paper": _PAPER_RECIPE,
    "paper-fast": replace(_PAPER_RECIPE, train=TrainConfig(**PRINTED["train"])),
    "distance": Config(
        method="bgad-distance",
        backbone=BackboneConfig(image_head_strides=()),
        loss=LossConfig(tau=0.3, instance_share=0.1),
        train=TrainConfig(steps=0),
        score=ScoreConfig(
            level_prior_power=0.0,
            image_head_weight=0.0,
            evidence_weight=0.0,
            direction_weight=0.0,
        ),
    ),
}


def check_updatable(config: Config) -> None:
    """ConfigError where a model of this recipe cannot be updated: an update starts from its flows."""
    if config.level != "flow":
        text = f"a model of {config.method} cannot be updated, as it has no flows"
        raise ConfigError(f"{text}: train anew with all images")


def preset_for(method: str | None, preset: str | None) -> Config:
    """Return the recipe of a method and a preset, where None is the default; ConfigError where they do not fit.

    >>> preset_for("bgad", None) == PRESETS["paper-fast"], preset_for(None, "paper").method
    (True, 'bgad')
    """
    if method is None:
        return PRESETS[preset or "default"]
    allowed = METHODS[method].presets
    if preset is not None and preset not in allowed:
        raise ConfigError(f"{method} cannot be trained by the preset {preset}: use {' or '.join(allowed)}")
    return replace(PRESETS[preset or allowed[0]], method=method)


STEP_KEYS = ("train.steps", "train.push_steps")  # keys without effect where epochs are counted


def to_dict(config: Config) -> dict[str, Any]:
    """Convert a recipe to nested dictionaries for JSON and TOML."""
    return asdict(config)


def to_toml(config: Config) -> str:
    """Convert a recipe to TOML text.

    >>> from_dict(tomllib.loads(to_toml(Config(seed=3)))).seed
    3
    """
    return tomli_w.dumps(to_dict(config))


def from_dict(values: Mapping[str, Any], base: Config | None = None, source: str = "configuration") -> Config:
    """Return `base`, or the default recipe, with the given values replaced."""
    return _merge(base or Config(), values, source, "").check()  # type: ignore[no-any-return]


def read_toml(path: Path) -> dict[str, Any]:
    """Read the keys of a recipe from a TOML file, as `from_dict` takes them."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def override(config: Config, assignments: list[str]) -> Config:
    """Apply assignments of the form `loss.tau=0.2`, as given with --set; values are written as in TOML."""
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, such as loss.tau=0.2, not {text!r}")
        if key.strip() == "method":
            raise ConfigError("--set cannot change the method, which has a recipe of its own: use --method NAME")
        nested: Any = _toml_value(value.strip())
        for part in reversed(key.strip().split(".")):
            nested = {part: nested}
        config = _merge(config, nested, "--set", "")
    config.check()  # after all assignments: keys may depend on each other
    given = [text.partition("=")[0].strip() for text in assignments]
    if config.train.epochs and (without := [key for key in given if key in STEP_KEYS]):
        raise ConfigError(f"{without[0]} counts only without epochs ({config.train.epochs}): set train.epochs=0 first")
    return config


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def _merge(base: Any, values: Mapping[str, Any], source: str, prefix: str) -> Any:
    hints = get_type_hints(type(base))
    names = [f.name for f in fields(base)]
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known here: {', '.join(names)}"
            raise ConfigError(f"unknown key {prefix}{key} in {source}; {hint}")
        current = getattr(base, key)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{prefix}{key} in {source} must be a table, not {value!r}")
            changes[key] = _merge(current, value, source, f"{prefix}{key}.")
        else:
            changes[key] = _convert(value, hints[key], f"{prefix}{key}", source)
    return replace(base, **changes)


def _convert(value: Any, hint: Any, key: str, source: str) -> Any:
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{key} in {source} must be a list, not {value!r}")
        return tuple(_convert(item, get_args(hint)[0], key, source) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ConfigError(f"{key} in {source} must be of type {hint.__name__}, not {value!r}")
    return value
