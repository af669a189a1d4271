"""Settings, presets and entries of the supervised baselines: those that learn from known anomalies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bgad.config.baselines import FROZEN_INPUT, NO_PSEUDO, PIXEL_INPUT, Baseline, BaselineConfig, BaselineRecipe
from bgad.config.sections import BackboneConfig, PseudoConfig, need

# The printed input: the last feature map of ResNet-18, of images of 448 pixels.
RESNET_INPUT = BackboneConfig(name="resnet18", strides=(32,), image_head_strides=(), min_stride=0, size=448)
VGG_INPUT = BackboneConfig(name="vgg11_bn", strides=(8,), image_head_strides=(), min_stride=0, size=224)  # FCDD's
TRAINED_SIZE = 192  # pixels: a step on two CPU cores takes about a second; at 256 it takes two
CUTMIX = PseudoConfig(method="cutmix", count=256)


@dataclass(frozen=True)
class SupervisedConfig(BaselineConfig):
    """What all supervised baselines have: their features and the schedule. The printed schedule is DevNet's."""

    strides: tuple[int, ...] = (16, 32)  # of the features that are joined; printed: the last, 32
    steps: int = 600  # printed: 50 epochs of 20 steps
    images_per_step: int = 48  # as printed
    lr: float = 2e-3  # printed: 2e-4, for the whole network
    decay_steps: int = 200  # steps after which the learning rate falls to a tenth; as printed
    weight_decay: float = 1e-5  # as printed

    def check(self) -> None:
        """See BaselineConfig."""
        need(len(self.strides) > 0, "baseline.strides", "one or more strides")
        need(self.steps >= 1, "baseline.steps", "at least 1")
        need(self.images_per_step >= 4, "baseline.images_per_step", "at least 4")
        need(self.lr > 0, "baseline.lr", "above 0")
        need(self.decay_steps >= 1, "baseline.decay_steps", "at least 1")
        need(self.weight_decay >= 0, "baseline.weight_decay", "0 or more")


@dataclass(frozen=True)
class ScorerConfig(SupervisedConfig):
    """A scorer of positions whose highest values make the image score."""

    top_share: float = 0.1  # share of the positions whose highest values the image score is made of; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(0 < self.top_share <= 1, "baseline.top_share", "above 0, at most 1")


@dataclass(frozen=True)
class DevnetConfig(ScorerConfig):
    """DevNet."""

    margin: float = 5.0  # standard deviations that an anomaly must score above the reference; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.margin > 0, "baseline.margin", "above 0")


@dataclass(frozen=True)
class FlosConfig(ScorerConfig):
    """FLOS."""

    gamma: float = 2.0  # exponent that weakens the loss of images that are right already; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.gamma >= 0, "baseline.gamma", "0 or more")


@dataclass(frozen=True)
class DraConfig(DevnetConfig):
    """DRA."""

    references: int = 5  # normals whose mean feature map the residuals are taken from; as printed
    hidden: int = 256  # units of the normality head; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.references >= 1, "baseline.references", "at least 1")
        need(self.hidden >= 1, "baseline.hidden", "at least 1")


@dataclass(frozen=True)
class SaoeConfig(SupervisedConfig):
    """SAOE."""

    exposure_weight: float = 0.5  # weight of the loss of the outliers

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.exposure_weight >= 0, "baseline.exposure_weight", "0 or more")


@dataclass(frozen=True)
class MlepConfig(ScorerConfig):
    """MLEP."""

    dimensions: int = 16  # of the embedding; more of them keep more of what the margin does not ask for
    margin: float = 1.0  # by which an anomaly must be farther from a normal than another normal is; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.dimensions >= 1, "baseline.dimensions", "at least 1")
        need(self.margin > 0, "baseline.margin", "above 0")


@dataclass(frozen=True)
class FcddConfig(SupervisedConfig):
    """FCDD."""

    strides: tuple[int, ...] = (8, 16)  # of the features that are joined
    images_per_step: int = 16
    hidden: int = 64  # channels between the two trained convolutions
    sigma: float = 8.0  # of the Gaussian that upsamples the map, in pixels of the input

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.hidden >= 1, "baseline.hidden", "at least 1")
        need(self.sigma >= 0, "baseline.sigma", "0 or more")


@dataclass(frozen=True)
class TrainedNetwork(SupervisedConfig):
    """The network of a baseline that is trained with it, on pixels; `strides` are those of its feature maps."""

    network: str = "lite0"  # a name as of a backbone; printed: resnet18
    weights: str = ""  # weight file that the training starts from, instead of the package's or timm's own
    scales: int = 2  # input scales, each half as large as the one before; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        super().check()
        need(self.strides == tuple(sorted(set(self.strides))), "baseline.strides", "distinct and ascending")
        need(1 <= self.scales <= 3, "baseline.scales", "1 to 3")


@dataclass(frozen=True)
class TrainedDevnetConfig(DevnetConfig, TrainedNetwork):
    """DevNet, whose network is trained."""


@dataclass(frozen=True)
class TrainedFlosConfig(FlosConfig, TrainedNetwork):
    """FLOS, whose network is trained."""


@dataclass(frozen=True)
class TrainedDraConfig(DraConfig, TrainedNetwork):
    """DRA, whose network is trained."""


@dataclass(frozen=True)
class TrainedSaoeConfig(SaoeConfig, TrainedNetwork):
    """SAOE, whose network is trained."""


@dataclass(frozen=True)
class TrainedMlepConfig(MlepConfig, TrainedNetwork):
    """MLEP, whose network is trained."""


@dataclass(frozen=True)
class TrainedFcddConfig(FcddConfig, TrainedNetwork):
    """FCDD, whose network is trained."""


_SMOKE = {"steps": 60, "images_per_step": 16}
_TRAINED_SMOKE = {"steps": 20, "images_per_step": 8}


def _frozen(
    settings: SupervisedConfig,
    printed: SupervisedConfig,
    backbone: BackboneConfig = RESNET_INPUT,
    pseudo: PseudoConfig = NO_PSEUDO,
) -> dict[str, BaselineRecipe]:
    """Return the presets of a baseline on frozen features."""
    default = BaselineRecipe(settings, FROZEN_INPUT, pseudo)
    paper = BaselineRecipe(printed, backbone, pseudo)
    return {"default": default, "paper": paper, "smoke": default.smoke(**_SMOKE)}


def _trained(
    settings: SupervisedConfig, printed: SupervisedConfig, size: int = 448, pseudo: PseudoConfig = NO_PSEUDO
) -> dict[str, BaselineRecipe]:
    """Return the presets of a baseline that trains its network; `size` is the printed side of the input."""
    default = BaselineRecipe(settings, replace(PIXEL_INPUT, size=TRAINED_SIZE), pseudo)
    paper = BaselineRecipe(printed, replace(PIXEL_INPUT, size=size), pseudo)
    return {"default": default, "paper": paper, "smoke": default.smoke(**_TRAINED_SMOKE)}


# The printed schedule and features: values that differ from the defaults.
_DEVNET: dict[str, Any] = {"strides": (32,), "steps": 1000, "lr": 2e-4}
_DRA: dict[str, Any] = _DEVNET | {"steps": 600}
_FCDD: dict[str, Any] = {
    "strides": (8,),
    "steps": 3000,
    "images_per_step": 16,
    "lr": 1e-3,
    "decay_steps": 2000,
    "weight_decay": 1e-4,
}
# Of a trained network: a schedule of a few minutes on two CPU cores, and the printed network.
_TRAINED: dict[str, Any] = {"strides": (32,), "steps": 100, "images_per_step": 12, "lr": 5e-4, "decay_steps": 50}
_TRAINED_FCDD: dict[str, Any] = _TRAINED | {"strides": (8, 16), "scales": 1}
_RESNET: dict[str, Any] = {"network": "resnet18"}
_VGG: dict[str, Any] = {"network": "vgg11_bn", "scales": 1}


def _pair(
    name: str, about: str, source: str, frozen: dict[str, BaselineRecipe], trained: dict[str, BaselineRecipe]
) -> dict[str, Baseline]:
    """Return the entries of a baseline: as printed, with a trained network, and on frozen features."""
    return {
        f"{name}-frozen": Baseline(f"{about}, on frozen features", source, frozen, supervised=True),
        name: Baseline(f"{about}; trains its network", source, trained, supervised=True),
    }


SUPERVISED: dict[str, Baseline] = {
    **_pair(
        "devnet",
        "DevNet: scores of positions by the deviation loss",
        "Pang et al., Explainable deep few-shot anomaly detection with deviation networks, 2021",
        _frozen(DevnetConfig(), DevnetConfig(**_DEVNET)),
        _trained(TrainedDevnetConfig(**_TRAINED), TrainedDevnetConfig(**_DEVNET, **_RESNET)),
    ),
    **_pair(
        "flos",
        "FLOS: the scores of DevNet by the focal loss",
        "Lin et al., Focal loss for dense object detection, ICCV 2017, as Ding et al. (DRA) compare it",
        _frozen(FlosConfig(), FlosConfig(**_DEVNET)),
        _trained(TrainedFlosConfig(**_TRAINED), TrainedFlosConfig(**_DEVNET, **_RESNET)),
    ),
    **_pair(
        "dra",
        "DRA: heads of normality, known, pseudo and residual anomalies",
        "Ding et al., Catching both gray and black swans: open-set supervised anomaly detection, CVPR 2022",
        _frozen(DraConfig(), DraConfig(**_DRA), pseudo=CUTMIX),
        _trained(TrainedDraConfig(**_TRAINED), TrainedDraConfig(**_DRA, **_RESNET), pseudo=CUTMIX),
    ),
    **_pair(
        "saoe",
        "SAOE: a classifier of normal, known and pseudo anomalies, with outlier exposure",
        "Li et al. 2021, Hendrycks et al. 2019 and others, as Ding et al. (DRA), CVPR 2022, compare them",
        _frozen(SaoeConfig(), SaoeConfig(**_DRA), pseudo=CUTMIX),
        _trained(TrainedSaoeConfig(**_TRAINED), TrainedSaoeConfig(**_DRA, **_RESNET), pseudo=CUTMIX),
    ),
    **_pair(
        "mlep",
        "MLEP: a margin between normals and known anomalies in an embedding",
        "Liu et al., Margin learning embedded prediction for video anomaly detection, IJCAI 2019",
        _frozen(MlepConfig(), MlepConfig(**_DRA)),
        _trained(TrainedMlepConfig(**_TRAINED), TrainedMlepConfig(**_DRA, **_RESNET)),
    ),
    **_pair(
        "fcdd",
        "FCDD: a convolutional map that is near zero on normals, with masks where there are any",
        "Liznerski et al., Explainable deep one-class classification, ICLR 2021",
        _frozen(FcddConfig(), FcddConfig(**_FCDD), VGG_INPUT),
        _trained(TrainedFcddConfig(**_TRAINED_FCDD), TrainedFcddConfig(**_FCDD, **_VGG), 224),
    ),
}
