"""Everything that shapes a model, as frozen dataclasses; one TOML file in and out.

An unknown key is an error that names the nearest one, a value out of range says what is allowed.
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

METHODS: dict[str, str] = {
    "nfad": "likelihood of the normals only (the paper's baseline)",
    "bgad-wo": "nfad, then the semi-pull of normals outside the boundary; uses no anomalies",
    "bgad-full-push": "pull every normal and push every anomaly to a far bound (the paper's BGAD-dagger)",
    "bgad": "boundary-guided semi-push-pull with the known anomalies",
}


PSEUDO_METHODS: dict[str, str] = {
    "rpag": "the known anomalies with masks, transformed and pasted on normals (the paper's)",
    "draem": "made textures where Perlin noise is high (as DRAEM); needs no known anomalies",
    "nsa": "patches of other normals, blended in without a seam (as NSA); needs no known anomalies",
    "none": "no pseudo anomalies",
}


@dataclass(frozen=True)
class BackboneConfig:
    """The frozen feature extractor."""

    name: str = "lite0"  # lite0, lite1, lite2 come with the package; any other name is timm's
    strides: tuple[int, ...] = (4, 8, 16)
    summary: tuple[int, ...] = (16, 32)  # strides that tell of the image as a whole; none switches that off
    finest: int = 8  # maps of finer strides are averaged to the grid of this one; 0: as they are
    size: int = 256  # pixels, both sides
    weights: str = ""  # file with the weights, instead of the package's or timm's own

    @property
    def all_strides(self) -> tuple[int, ...]:
        """Those of the flows, then those that only the image as a whole needs."""
        return (*self.strides, *(s for s in self.summary if s not in self.strides))

    def check(self) -> None:
        _need(self.size >= 32 and self.size % 16 == 0, "backbone.size", "a multiple of 16, at least 32")
        _need(
            len(self.strides) > 0 and sorted(set(self.strides)) == list(self.strides),
            "backbone.strides",
            "distinct and ascending",
        )
        _need(sorted(set(self.summary)) == list(self.summary), "backbone.summary", "distinct and ascending")
        _need(self.finest in (0, 1, 2, 4, 8, 16), "backbone.finest", "0, 1, 2, 4, 8 or 16")


@dataclass(frozen=True)
class TileConfig:
    """Pictures cut into tiles, each of which is what the model looks at."""

    size: int = 0  # side in pixels of the picture; 0: the model looks at the picture as a whole
    overlap: float = 0.25  # share of a tile that the next one shows too, at least

    def check(self) -> None:
        _need(self.size == 0 or self.size >= 32, "tile.size", "0, or at least 32")
        _need(0 <= self.overlap <= 0.75, "tile.overlap", "0 to 0.75")


@dataclass(frozen=True)
class FlowConfig:
    """The conditional flow of each level."""

    blocks: int = 6
    width: float = 2.0  # hidden units per input of a sub-network
    most: float = 4.0  # but at most so many for each channel of a feature; 0: as many as that
    clamp: float = 1.9
    standardise: bool = True  # each channel by the training normals, before the flow

    def check(self) -> None:
        _need(self.blocks >= 1, "flow.blocks", "at least 1")
        _need(self.width > 0, "flow.width", "above 0")
        _need(self.most >= 0, "flow.most", "0 or more")
        _need(self.clamp > 0, "flow.clamp", "above 0")


@dataclass(frozen=True)
class LossConfig:
    """Boundary, semi-push-pull and weights; log-likelihoods are log p / d, divided by the normaliser."""

    method: str = "bgad"
    likelihood: str = "logsigmoid"  # or "nll"
    boundary: str = "set"  # percentile over the whole normal set; "batch": inside each step
    beta: float = 0.01  # share of normal features outside the normal boundary
    tau: float = 0.5  # margin between normal and abnormal boundary, after the normaliser; 0 switches it off
    weight: float = 1.0  # the paper's lambda
    asymmetric: bool = False  # the paper's weights on hard normal and on anomalous features
    weight_cap: float = 20.0  # the abnormal weight has a pole at log p = 0
    exclude_far: bool = True  # leave features below -1 after the normaliser alone
    instance_share: float = 0.0  # of a bad image without a mask: the least likely share that is pushed; 0: none of it

    def check(self) -> None:
        _need(self.method in METHODS, "loss.method", f"one of {', '.join(METHODS)}")
        _need(self.likelihood in ("logsigmoid", "nll"), "loss.likelihood", "logsigmoid or nll")
        _need(self.boundary in ("set", "batch"), "loss.boundary", "set or batch")
        _need(0 < self.beta < 1, "loss.beta", "between 0 and 1")
        _need(self.tau >= 0, "loss.tau", "0 or more")
        _need(self.weight >= 0, "loss.weight", "0 or more")
        _need(self.weight_cap >= 1, "loss.weight_cap", "at least 1")
        _need(0 <= self.instance_share <= 1, "loss.instance_share", "0 to 1")


@dataclass(frozen=True)
class PseudoConfig:
    """Pseudo anomalies: made of the known ones with masks (rpag), or of normals alone (draem, nsa)."""

    method: str = "rpag"  # "none" switches them off
    count: int = 160
    transforms: int = 3  # S of the paper (rpag); changes of a texture (draem)
    share: float = 0.5  # of the anomalous images in a step, where there are known ones too

    def check(self) -> None:
        _need(self.method in PSEUDO_METHODS, "pseudo.method", f"one of {', '.join(PSEUDO_METHODS)}")
        _need(self.count >= 0, "pseudo.count", "0 or more")
        _need(0 <= self.transforms <= 9, "pseudo.transforms", "0 to 9")
        _need(0 <= self.share <= 1, "pseudo.share", "0 to 1")


@dataclass(frozen=True)
class TrainConfig:
    """The schedule. A step takes `images` x `positions` features of each level."""

    steps: int = 800  # phase 1: normals only
    push_steps: int = 400  # phase 2: boundary guided
    passes: int = 0  # most times that phase 1 shows an image, fewer steps in both phases; 0: no limit
    epochs: int = 0  # instead of steps: passes over all features of all normals, both phases together
    push_start: float = 0.04  # with epochs: the share of the schedule that is phase 1
    images: int = 32
    positions: tuple[int, ...] = (16, 16, 16)  # per level
    lr: float = 1e-2
    push_lr: float = 2e-3  # 0: phase 2 goes on with the one schedule of lr
    best: bool = True  # put a level back to where the normals set aside were most likely; false: keep its last state
    patience: int = 300  # steps without a better likelihood of these after which a level rests; 0: it never does
    warmup: float = 0.1  # share of a phase (of the whole where there is one schedule), from lr / 10
    clip: float = 1.0  # gradient norm per level; 0 switches it off

    def check(self) -> None:
        _need(self.steps >= 1 or self.epochs >= 1, "train.steps", "at least 1")
        _need(self.push_steps >= 0, "train.push_steps", "0 or more")
        _need(self.passes >= 0, "train.passes", "0 or more")
        _need(self.epochs >= 0, "train.epochs", "0 or more")
        _need(0 < self.push_start < 1, "train.push_start", "between 0 and 1")
        _need(self.images >= 1, "train.images", "at least 1")
        _need(min(self.positions, default=0) >= 1, "train.positions", "at least 1 each")
        _need(self.lr > 0, "train.lr", "above 0")
        _need(self.push_lr >= 0, "train.push_lr", "0 or more")
        _need(self.patience >= 0, "train.patience", "0 or more")
        _need(0 <= self.warmup < 1, "train.warmup", "0 or more, below 1")
        _need(self.clip >= 0, "train.clip", "0 or more")


@dataclass(frozen=True)
class ScoreConfig:
    """From log-likelihood maps to one map and one score."""

    fusion: str = "boundary"  # how far beyond the boundary; "standard": in deviations; "probability": the paper's
    sharpness: float = 3.0  # of the step from inside the boundary to outside, per unit of log p / d
    level_power: float = 0.5  # a level counts by its stride to this power; 0: all alike
    top_share: float = 0.01  # image score: mean of the highest share of the map; 0: the maximum
    image_weight: float = 0.5  # of the image as a whole beside its map
    trust: float = 4.0  # in each known anomaly, where it says that levels and image should count otherwise; 0: none
    known_weight: float = 0.5  # of each direction towards the known anomalies in it; 0 switches them off

    def check(self) -> None:
        _need(
            self.fusion in ("boundary", "standard", "probability"),
            "score.fusion",
            "boundary, standard or probability",
        )
        _need(0 < self.sharpness <= 100, "score.sharpness", "above 0, up to 100")
        _need(0 <= self.level_power <= 4, "score.level_power", "0 to 4")
        _need(0 <= self.top_share <= 1, "score.top_share", "0 to 1")
        _need(self.image_weight >= 0, "score.image_weight", "0 or more")
        _need(0 <= self.trust <= 100, "score.trust", "0 to 100")
        _need(self.known_weight >= 0, "score.known_weight", "0 or more")


@dataclass(frozen=True)
class Config:
    """One model's whole recipe."""

    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    tile: TileConfig = field(default_factory=TileConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    pseudo: PseudoConfig = field(default_factory=PseudoConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    seed: int = 0

    def check(self) -> Config:
        """Return self when every value is in range; ConfigError otherwise."""
        for part in (self.backbone, self.tile, self.flow, self.loss, self.pseudo, self.train, self.score):
            part.check()
        _need(
            len(self.train.positions) == len(self.backbone.strides),
            "train.positions",
            f"one number for each of the {len(self.backbone.strides)} strides",
        )
        _need(0 <= self.seed < 2**32, "seed", "0 or more, below 2 to the 32nd")
        return self


def _need(ok: bool, key: str, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{key} must be {allowed}")


PRESETS: dict[str, Config] = {
    "default": Config(),
    "paper": Config(
        backbone=BackboneConfig(name="tf_efficientnet_b6", summary=(), finest=0),
        flow=FlowConfig(blocks=8, most=0.0, standardise=False),
        loss=LossConfig(likelihood="nll", tau=0.1, asymmetric=True),
        train=TrainConfig(
            epochs=200,
            push_start=0.04,  # one meta epoch of 25
            positions=(
                128,
                32,
                8,
            ),  # 32 x 128 = 4,096 features a step at stride 4; an epoch draws as many as there are
            lr=2e-4,
            push_lr=0.0,
            best=False,
            warmup=0.08,  # two meta epochs of 25
            clip=0.0,
        ),
        score=ScoreConfig(fusion="probability", level_power=0.0, top_share=0.0, trust=0.0),
    ),
}


BY_STEPS = ("train.steps", "train.push_steps", "train.passes")  # what epochs take the place of

# What keys mean that a model's card does not have: the model is older than they are
OLDER = Config(
    backbone=BackboneConfig(summary=(), finest=0),
    flow=FlowConfig(most=0.0),
    train=TrainConfig(passes=0, best=False),
    score=ScoreConfig(sharpness=4.0, level_power=0.0, trust=0.0),
)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dictionaries, for JSON and TOML."""
    return asdict(config)


def to_toml(config: Config) -> str:
    """The configuration as TOML text.

    >>> from_dict(tomllib.loads(to_toml(Config(seed=3)))).seed
    3
    """
    return tomli_w.dumps(to_dict(config))


def from_dict(values: Mapping[str, Any], base: Config | None = None, source: str = "configuration") -> Config:
    """`base` (the default recipe) with the given values put in."""
    return _merge(base or Config(), values, source, "").check()  # type: ignore[no-any-return]


def read_toml(path: Path, base: Config | None = None) -> Config:
    """Read a TOML file on top of `base`."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return from_dict(values, base, str(path))


def override(config: Config, assignments: list[str]) -> Config:
    """Apply `key.sub=value` texts, as given with --set; values are written as in TOML."""
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, such as loss.tau=0.2, not {text!r}")
        nested: Any = _toml_value(value.strip())
        for part in reversed(key.strip().split(".")):
            nested = {part: nested}
        config = _merge(config, nested, "--set", "")
    config.check()  # only now: keys that depend on each other are set one after the other
    given = [text.partition("=")[0].strip() for text in assignments]
    if config.train.epochs and (without := [key for key in given if key in BY_STEPS]):
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
