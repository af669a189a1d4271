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

from bgad.config.baselines import PIXELS, SMOKE_SIZE, UNSUPERVISED, Baseline, BaselineConfig
from bgad.config.sections import PSEUDO_METHODS as PSEUDO_METHODS
from bgad.config.sections import BackboneConfig as BackboneConfig
from bgad.config.sections import DistanceConfig as DistanceConfig
from bgad.config.sections import FlowConfig as FlowConfig
from bgad.config.sections import LossConfig as LossConfig
from bgad.config.sections import PseudoConfig as PseudoConfig
from bgad.config.sections import ScoreConfig as ScoreConfig
from bgad.config.sections import TileConfig as TileConfig
from bgad.config.sections import TrainConfig as TrainConfig
from bgad.config.sections import need
from bgad.config.supervised import SUPERVISED
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
SMOKE = "smoke"  # the preset for trying out, which every method has
_OURS, _PAPER, _DISTANCE = ("default", SMOKE), ("paper-fast", "paper", SMOKE), ("distance", SMOKE)

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
BASELINES: dict[str, Baseline] = {**UNSUPERVISED, **SUPERVISED}
ALL_METHODS: dict[str, Method | Baseline] = {**METHODS, **BASELINES}


@dataclass(frozen=True)
class Config:
    """The whole recipe of a model."""

    method: str = "bgad-plus"  # one of ALL_METHODS
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    tile: TileConfig = field(default_factory=TileConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    distance: DistanceConfig = field(default_factory=DistanceConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    pseudo: PseudoConfig = field(default_factory=PseudoConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    baseline: BaselineConfig | None = None  # settings of a baseline; None in our own methods
    seed: int = 0

    def check(self) -> Config:
        """Return self when every value is in range; ConfigError otherwise."""
        need(self.method in ALL_METHODS, "method", f"one of {', '.join(ALL_METHODS)}")
        parts = (self.backbone, self.tile, self.flow, self.distance, self.loss, self.pseudo, self.train, self.score)
        for part in parts:
            part.check()
        if self.method in BASELINES:
            self._check_baseline(BASELINES[self.method])
        else:
            self._check_ours()
        need(0 <= self.seed < 2**32, "seed", "0 or more, below 2 to the 32nd")
        return self

    @property
    def objective(self) -> str:
        """The loss of one of our methods, one of OBJECTIVES; empty in a baseline."""
        return METHODS[self.method].objective if self.method in METHODS else ""

    @property
    def level(self) -> str:
        """What rates the features of a level, one of LEVELS; empty in a baseline, which has no levels."""
        return METHODS[self.method].level if self.method in METHODS else ""

    @property
    def uses_anomalies(self) -> bool:
        """Whether the method is trained with known anomalies."""
        return ALL_METHODS[self.method].uses_anomalies

    @property
    def uses_pseudo(self) -> bool:
        """Whether the method is trained with pseudo anomalies, where they can be made."""
        return self.pseudo.count > 0 and (self.uses_anomalies or self.method in BASELINES)

    def _check_ours(self) -> None:
        """ConfigError for what our own methods cannot be trained with."""
        need(self.baseline is None, "baseline", f"left out: {self.method} is no baseline")
        need(self.backbone.name != PIXELS, "backbone.name", f"a network: {self.method} learns from features")
        self._check_printed()
        self._check_level()
        need(
            len(self.train.positions_per_image) == len(self.backbone.levels),
            "train.positions_per_image",
            f"one number for each of the {len(self.backbone.levels)} {'blocks' if self.backbone.blocks else 'strides'}",
        )

    def _check_baseline(self, entry: Baseline) -> None:
        """ConfigError for settings out of range, and for keys that a baseline does not read."""
        if self.baseline is None or type(self.baseline) is not type(entry.default.settings):
            raise ConfigError(f"the recipe lacks the settings of {self.method}: start from its preset")
        self.baseline.check()
        default = preset_for(self.method, None)
        for part in unread_sections(entry):
            if getattr(self, part) != getattr(default, part):
                raise ConfigError(f"{part} has no effect in {self.method}: its own settings are in `baseline`")
        if entry.learns_from_pixels:
            fixed = replace(entry.default.backbone, size=self.backbone.size, crop=self.backbone.crop)
            if self.backbone != fixed:
                raise ConfigError(f"{self.method} learns from pixels: of the backbone, only size and crop can be set")
        else:
            need(self.backbone.name != PIXELS, "backbone.name", f"a network: {self.method} learns from features")
        has_strides = not (entry.learns_from_pixels or self.backbone.blocks)
        wanted = getattr(self.baseline, "strides", ()) if has_strides else ()
        if missing := [stride for stride in wanted if stride not in self.backbone.all_levels]:
            raise ConfigError(f"baseline.strides has {missing[0]}, which is not in backbone.strides: add it there")

    def _check_printed(self) -> None:
        """ConfigError where one of the paper's methods has a value that the paper's does not have."""
        if not METHODS[self.method].is_printed:
            return
        for part, values in PRINTED.items():
            for name, printed in values.items():
                given = getattr(getattr(self, part), name)
                if given != printed and not (name == "strides" and self.backbone.blocks):  # a ViT has blocks
                    text = f"{part}.{name} is {printed!r} in the paper's {self.method}, not {given!r}"
                    raise ConfigError(f"{text}: leave it, or change it in bgad-plus or nfad-plus")

    def _check_level(self) -> None:
        """ConfigError for a schedule that the levels cannot follow, and for keys of levels that the method lacks."""
        for part, default in (("flow", FlowConfig()), ("distance", DistanceConfig())):
            if part != self.level and getattr(self, part) != default:
                raise ConfigError(f"{part} has no effect in {self.method}, whose levels are of the kind {self.level}")
        if self.level == "flow":
            need(self.train.steps >= 1 or self.train.epochs >= 1, "train.steps", "at least 1")
        elif self.train.steps or self.train.epochs:
            raise ConfigError(
                f"train.steps and train.epochs must be 0 in {self.method}: phase 1 maximises a likelihood, "
                "which it lacks"
            )


# What the paper's methods have in common. The backbone's name, the input's size, the schedule, the hyper-parameters
# that the paper varies (beta, tau, lambda, weights, pseudo anomalies) and what it is silent about may be changed.
PRINTED: dict[str, dict[str, Any]] = {
    "backbone": {
        "strides": (4, 8, 16),
        "image_head_strides": (),
        "image_head_blocks": (),
        "min_stride": 0,
        "crop": True,
    },
    "flow": {"blocks": 8, "hidden_ratio": 2.0, "max_hidden_ratio": 0.0, "clamp": 1.9, "standardise": False},
    "loss": {"likelihood": "nll", "boundary": "set", "exclude_far": True, "max_abnormal_weight": 20.0},
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
    ),
    score=ScoreConfig(**PRINTED["score"]),
)


def unread_sections(entry: Baseline) -> list[str]:
    """Return the sections of a recipe that a baseline does not read."""
    pseudo = [] if entry.default.pseudo.count else ["pseudo"]
    return ["flow", "distance", "loss", "train", "score", *pseudo]


def _smoke(config: Config) -> Config:
    """Return a recipe of our own with an input and a schedule for trying out."""
    train = replace(config.train, steps=60 if config.train.steps else 0, push_steps=30, epochs=0)
    backbone = replace(config.backbone, name="lite0", size=SMOKE_SIZE)
    return replace(config, backbone=backbone, train=train, pseudo=replace(config.pseudo, count=16))


PRESETS: dict[str, Config] = {  # of our own methods; those of a baseline are in its entry
    "default": Config(),
    "paper": _PAPER_RECIPE,
    "paper-fast": replace(_PAPER_RECIPE, train=TrainConfig()),
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
    SMOKE: _smoke(Config()),
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
    allowed = ALL_METHODS[method].presets
    if preset is not None and preset not in allowed:
        raise ConfigError(f"{method} cannot be trained by the preset {preset}: use {' or '.join(allowed)}")
    chosen = preset or allowed[0]
    if method in BASELINES:
        recipe = BASELINES[method].recipes[chosen]
        return Config(method, backbone=recipe.backbone, pseudo=recipe.pseudo, baseline=recipe.settings)
    if chosen == SMOKE:
        return _smoke(preset_for(method, None))
    return replace(PRESETS[chosen], method=method)


STEP_KEYS = ("train.steps", "train.push_steps")  # keys without effect where epochs are counted


def to_dict(config: Config) -> dict[str, Any]:
    """Convert a recipe to nested dictionaries for JSON and TOML."""
    values = asdict(config)
    if config.baseline is None:
        del values["baseline"]
    return values


def to_toml(config: Config) -> str:
    """Convert a recipe to TOML text; sections that a baseline does not read are left out.

    >>> from_dict(tomllib.loads(to_toml(Config(seed=3)))).seed
    3
    """
    unread = unread_sections(BASELINES[config.method]) if config.method in BASELINES else []
    return tomli_w.dumps({key: value for key, value in to_dict(config).items() if key not in unread})


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
        if current is None:
            raise ConfigError(f"{prefix}{key} in {source} has no effect in {base.method}, which is no baseline")
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
