"""The sections of a recipe as frozen dataclasses; each checks its own values."""

from __future__ import annotations

from dataclasses import dataclass

from bgad.errors import ConfigError

PSEUDO_METHODS: dict[str, str] = {
    "rpag": "the known anomalies with masks, transformed, cut out and pasted on normals (the paper's)",
    "draem": "synthetic textures where Perlin noise is high (as DRAEM); needs no known anomalies",
    "nsa": "patches of other normals, blended in without a seam (as NSA); needs no known anomalies",
    "cutmix": "rectangles of other normals, pasted as they are (as DRA); needs no known anomalies",
    "none": "no pseudo anomalies",
}


def need(ok: bool, key: str, allowed: str) -> None:
    """ConfigError that says what is allowed, unless a value is."""
    if not ok:
        raise ConfigError(f"{key} must be {allowed}")


def _ascending(values: tuple[int, ...]) -> bool:
    return sorted(set(values)) == list(values)


@dataclass(frozen=True)
class BaselineConfig:
    """Settings of a baseline; a subclass adds the keys."""

    def check(self) -> None:
        """ConfigError when a value is out of range."""


@dataclass(frozen=True)
class BackboneConfig:
    """The frozen feature extractor."""

    name: str = "lite0"  # lite0, lite1 and lite2 come with the package; any other name is a timm model
    strides: tuple[int, ...] = (4, 8, 16)  # one flow for each; of a vision transformer, `blocks` take their place
    image_head_strides: tuple[int, ...] = (16, 32)  # features of the image head; empty switches it off
    blocks: tuple[
        int, ...
    ] = ()  # of a vision transformer, from 0: one flow for the tokens of each; empty: by its depth
    image_head_blocks: tuple[int, ...] = ()  # of a vision transformer: features of the image head; empty: by its depth
    min_stride: int = 8  # feature maps of finer strides are average-pooled to this stride; 0: not pooled
    size: int = 256  # side of the square input, in pixels
    crop: bool = False  # resize the central square of an image, as the paper's methods do; else stretch the whole image
    weights: str = ""  # weight file to use instead of the package's or timm's own

    @property
    def levels(self) -> tuple[int, ...]:
        """Blocks of a vision transformer or strides of another network: one flow for each."""
        return self.blocks or self.strides

    @property
    def image_head_levels(self) -> tuple[int, ...]:
        """Blocks or strides whose features the image head takes."""
        return self.image_head_blocks if self.blocks else self.image_head_strides

    @property
    def all_levels(self) -> tuple[int, ...]:
        """Blocks or strides of the flows, followed by those that only the image head uses."""
        return (*self.levels, *(level for level in self.image_head_levels if level not in self.levels))

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        has_patches = bool(self.blocks) or "patch" in self.name  # the input is then cut to a multiple of the patch
        need(self.size >= 32 and (has_patches or self.size % 16 == 0), "backbone.size", "a multiple of 16, at least 32")
        need(len(self.levels) > 0 and _ascending(self.strides), "backbone.strides", "distinct and ascending")
        need(_ascending(self.image_head_strides), "backbone.image_head_strides", "distinct and ascending")
        for key, blocks in (("blocks", self.blocks), ("image_head_blocks", self.image_head_blocks)):
            need(
                _ascending(blocks) and min(blocks, default=0) >= 0, f"backbone.{key}", "distinct and ascending, from 0"
            )
        need(self.min_stride in (0, 1, 2, 4, 8, 16), "backbone.min_stride", "0, 1, 2, 4, 8 or 16")


@dataclass(frozen=True)
class TileConfig:
    """Tiling of images that are much larger than the model's input; each tile is scored as an image."""

    size: int = 0  # side of a tile in image pixels; 0: the image is scored as a whole
    overlap: float = 0.25  # smallest share of a tile that its neighbour covers too

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        need(self.size == 0 or self.size >= 32, "tile.size", "0, or at least 32")
        need(0 <= self.overlap <= 0.75, "tile.overlap", "0 to 0.75")


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
        need(self.blocks >= 1, "flow.blocks", "at least 1")
        need(self.hidden_ratio > 0, "flow.hidden_ratio", "above 0")
        need(self.max_hidden_ratio >= 0, "flow.max_hidden_ratio", "0 or more")
        need(self.clamp > 0, "flow.clamp", "above 0")


@dataclass(frozen=True)
class DistanceConfig:
    """The projection of each level and its stored normals, in a method without flows."""

    dimension: int = 0  # upper limit on the dimensions of the projection; 0: one for each channel
    bank_size: int = 2048  # stored features of each level
    scale: float = 10.0  # value of a feature: this times its cosine to the nearest stored normal less 1

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        need(self.dimension >= 0, "distance.dimension", "0 or more")
        need(1 <= self.bank_size <= 65_536, "distance.bank_size", "1 to 65536")
        need(0 < self.scale <= 1000, "distance.scale", "above 0, up to 1000")


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
        need(self.likelihood in ("logsigmoid", "nll"), "loss.likelihood", "logsigmoid or nll")
        need(self.boundary in ("set", "batch"), "loss.boundary", "set or batch")
        need(0 < self.beta < 1, "loss.beta", "between 0 and 1")
        need(self.tau >= 0, "loss.tau", "0 or more")
        need(self.push_pull_weight >= 0, "loss.push_pull_weight", "0 or more")
        need(self.max_abnormal_weight >= 1, "loss.max_abnormal_weight", "at least 1")
        need(0 <= self.instance_share <= 1, "loss.instance_share", "0 to 1")


@dataclass(frozen=True)
class PseudoConfig:
    """Pseudo anomalies: made from known anomalies with masks (rpag), or from normals alone (the others)."""

    method: str = "rpag"  # one of PSEUDO_METHODS
    count: int = 160  # pseudo anomalies made for a training
    transforms: int = 3  # random transforms of each: S of the paper (rpag), changes of the texture (draem)
    share: float = 0.5  # share of pseudo anomalies among the anomalous features of a step

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        need(self.method in PSEUDO_METHODS, "pseudo.method", f"one of {', '.join(PSEUDO_METHODS)}")
        need(self.count >= 0, "pseudo.count", "0 or more")
        need(0 <= self.transforms <= 9, "pseudo.transforms", "0 to 9")
        need(0 <= self.share <= 1, "pseudo.share", "0 to 1")


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
    warmup: float = 0.1  # share of a phase in which the learning rate rises from a tenth of its peak
    clip_norm: float = 1.0  # maximum gradient norm of a level; 0: no clipping

    def check(self) -> None:
        """ConfigError when a value is out of range."""
        need(self.steps >= 0, "train.steps", "0 or more")
        need(self.push_steps >= 0, "train.push_steps", "0 or more")
        need(self.epochs >= 0, "train.epochs", "0 or more")
        need(0 < self.push_start < 1, "train.push_start", "between 0 and 1")
        need(self.images_per_step >= 1, "train.images_per_step", "at least 1")
        need(min(self.positions_per_image, default=0) >= 1, "train.positions_per_image", "at least 1 each")
        need(self.lr > 0, "train.lr", "above 0")
        need(self.push_lr >= 0, "train.push_lr", "0 or more")
        need(0 <= self.warmup < 1, "train.warmup", "0 or more, below 1")
        need(self.clip_norm >= 0, "train.clip_norm", "0 or more")


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
        need(self.fusion in ("p-value", "probability"), "score.fusion", "p-value or probability")
        need(0 <= self.level_prior_power <= 4, "score.level_prior_power", "0 to 4")
        need(0 <= self.top_share <= 1, "score.top_share", "0 to 1")
        need(self.image_head_weight >= 0, "score.image_head_weight", "0 or more")
        need(0 <= self.evidence_weight <= 100, "score.evidence_weight", "0 to 100")
        need(self.direction_weight >= 0, "score.direction_weight", "0 or more")

    @property
    def weighs_levels(self) -> bool:
        """Whether levels may count differently in the image score; in the map, they always count alike."""
        return self.level_prior_power > 0 or self.evidence_weight > 0
