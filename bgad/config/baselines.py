"""The baselines: systems of other papers that run beside ours, with their settings and their presets.

A baseline is an entry of UNSUPERVISED or, where it learns from known anomalies, of `supervised.SUPERVISED`. Its
settings are a frozen dataclass, which is the section `baseline` of its recipe. The defaults are for two CPU cores; the
preset `paper` has the printed values, and `smoke` is for trying out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bgad.config.sections import BackboneConfig, PseudoConfig, need
from bgad.config.sections import BaselineConfig as BaselineConfig
from bgad.config.unsupervised import AutoencoderConfig, CfaConfig, DraemConfig, KdadConfig, MsfdConfig, VtAdlConfig

PIXELS = "pixels"  # the name of the backbone of a baseline that learns from pixels: its feature map is the image
FROZEN_INPUT = BackboneConfig()  # that of the default method, so that all of them share one feature cache
PIXEL_INPUT = BackboneConfig(name=PIXELS, strides=(1,), image_head_strides=(), min_stride=0)
# The printed input of most baselines: ImageNet's 224 pixels on the features of a wide ResNet.
PRINTED_INPUT = BackboneConfig(
    name="wide_resnet50_2", strides=(4, 8, 16), image_head_strides=(), min_stride=0, size=224, crop=True
)
NO_PSEUDO = PseudoConfig(method="none", count=0)
SMOKE_SIZE = 128  # pixels: side of the input in the preset `smoke` of every method


@dataclass(frozen=True)
class BaselineRecipe:
    """What a preset of a baseline sets; the other sections of a recipe have no effect on it."""

    settings: BaselineConfig
    backbone: BackboneConfig = FROZEN_INPUT
    pseudo: PseudoConfig = NO_PSEUDO  # pseudo anomalies that are made before the fit, with their features

    def smoke(self, **settings: object) -> BaselineRecipe:
        """Return the recipe for trying out: a small input, and these settings."""
        pseudo = replace(self.pseudo, count=min(self.pseudo.count, 16))
        backbone = replace(self.backbone, size=SMOKE_SIZE)
        return BaselineRecipe(replace(self.settings, **settings), backbone, pseudo)


@dataclass(frozen=True)
class Baseline:
    """A system of another paper: what it learns from, and the presets that it can be trained by."""

    about: str
    source: str  # the paper that it was written from
    recipes: Mapping[str, BaselineRecipe] = field(hash=False)  # by preset; the first is the default
    supervised: bool = False  # learns from known anomalies, and cannot do without
    needs_masks: bool = False  # uses only known anomalies with masks

    @property
    def presets(self) -> tuple[str, ...]:
        """Names of the presets; the first is the default."""
        return tuple(self.recipes)

    @property
    def uses_anomalies(self) -> bool:
        """Whether known anomalies are used."""
        return self.supervised

    @property
    def default(self) -> BaselineRecipe:
        """The recipe of the default preset."""
        return self.recipes[self.presets[0]]

    @property
    def learns_from_pixels(self) -> bool:
        """Whether it takes the image itself, not the features of a frozen backbone."""
        return self.default.backbone.name == PIXELS


@dataclass(frozen=True)
class PadimConfig(BaselineConfig):
    """PaDiM."""

    strides: tuple[int, ...] = (4, 8, 16)  # of the features that are joined; printed: the same
    channels: int = 100  # drawn at random from the joined ones; printed: 100 (ResNet-18) and 550 (wide ResNet-50)
    regularisation: float = 0.01  # added to the diagonal of each covariance; as printed
    sigma: float = 4.0  # of the Gaussian that smooths the map, in pixels of the input; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        need(len(self.strides) > 0, "baseline.strides", "one or more strides")
        need(self.channels >= 1, "baseline.channels", "at least 1")
        need(self.regularisation > 0, "baseline.regularisation", "above 0")
        need(self.sigma >= 0, "baseline.sigma", "0 or more")


@dataclass(frozen=True)
class PatchcoreConfig(BaselineConfig):
    """PatchCore."""

    strides: tuple[int, ...] = (8, 16)  # of the features that are joined; as printed
    coreset_share: float = 0.01  # share of the patch features that is stored; printed: 0.25, 0.1 and 0.01
    projection: int = 128  # dimensions of the random projection in which the coreset is chosen; as printed
    neighbours: int = 9  # stored neighbours of the nearest patch that re-weight the image score; 0: not re-weighted
    sigma: float = 4.0  # of the Gaussian that smooths the map, in pixels of the input; as printed

    def check(self) -> None:
        """See BaselineConfig."""
        need(len(self.strides) > 0, "baseline.strides", "one or more strides")
        need(0 < self.coreset_share <= 1, "baseline.coreset_share", "above 0, at most 1")
        need(self.projection >= 1, "baseline.projection", "at least 1")
        need(self.neighbours >= 0, "baseline.neighbours", "0 or more")
        need(self.sigma >= 0, "baseline.sigma", "0 or more")


def _frozen(
    settings: BaselineConfig,
    printed: BaselineConfig,
    printed_input: BackboneConfig = PRINTED_INPUT,
    **smoke: object,
) -> dict[str, BaselineRecipe]:
    """Return the presets of a baseline on frozen features; `smoke` are its settings for trying out."""
    default = BaselineRecipe(settings)
    return {"default": default, "paper": BaselineRecipe(printed, printed_input), "smoke": default.smoke(**smoke)}


def _pixels(
    settings: BaselineConfig, size: int, printed: BaselineConfig, printed_size: int, **smoke: object
) -> dict[str, BaselineRecipe]:
    """Return the presets of a baseline on pixels, whose input has another size in print."""
    default = BaselineRecipe(settings, replace(PIXEL_INPUT, size=size))
    paper = BaselineRecipe(printed, replace(PIXEL_INPUT, size=printed_size))
    return {"default": default, "paper": paper, "smoke": default.smoke(**smoke)}


_AUTOENCODER_SOURCE = "Bergmann et al., Improving unsupervised defect segmentation by structural similarity, 2019"
_AUTOENCODER = _pixels(AutoencoderConfig(), 128, AutoencoderConfig(epochs=200), 256, steps=100)
UNSUPERVISED: dict[str, Baseline] = {
    "padim": Baseline(
        "PaDiM: a Gaussian of the normal features at every position, and the Mahalanobis distance from it",
        "Defard et al., PaDiM: a patch distribution modeling framework, ICPR workshops 2021",
        _frozen(PadimConfig(), PadimConfig(channels=550), channels=40),
    ),
    "patchcore": Baseline(
        "PatchCore: the distance of every patch from the nearest of a coreset of normal patches",
        "Roth et al., Towards total recall in industrial anomaly detection, CVPR 2022",
        _frozen(PatchcoreConfig(), PatchcoreConfig(coreset_share=0.1)),
    ),
    "cfa": Baseline(
        "CFA: features adapted to lie near a memory bank of normal ones, and the distance from it",
        "Lee et al., CFA: coupled-hypersphere-based feature adaptation, IEEE Access 2022",
        _frozen(CfaConfig(), CfaConfig(epochs=30), steps=60),
    ),
    "msfd": Baseline(
        "multi-scale feature distillation: where a student does not reproduce the teacher's features, on all scales",
        "Wang et al., Student-teacher feature pyramid matching, BMVC 2021",
        _frozen(
            MsfdConfig(),
            MsfdConfig(epochs=100),
            replace(PRINTED_INPUT, name="resnet18", size=256, crop=False),
            steps=100,
        ),
    ),
    "kdad": Baseline(
        "KDAD: how far a small student misses the values and the directions of the teacher's activations",
        "Salehi et al., Multiresolution knowledge distillation for anomaly detection, CVPR 2021",
        _frozen(
            KdadConfig(),
            KdadConfig(epochs=200),
            replace(PRINTED_INPUT, name="vgg16", strides=(4, 8, 16, 32), size=128, crop=False),
            steps=100,
        ),
    ),
    "ae-mse": Baseline("autoencoder: the squared error of its reconstruction", _AUTOENCODER_SOURCE, _AUTOENCODER),
    "ae-ssim": Baseline(
        "autoencoder: the structural dissimilarity of its reconstruction", _AUTOENCODER_SOURCE, _AUTOENCODER
    ),
    "draem": Baseline(
        "DRAEM: a network that compares an image with its reconstruction, trained on synthetic anomalies",
        "Zavrtanik et al., DRAEM: a discriminatively trained reconstruction embedding, ICCV 2021",
        _pixels(
            DraemConfig(),
            128,
            DraemConfig(epochs=700, lr=1e-4, reconstructive_width=128, discriminative_width=64),
            256,
            steps=60,
        ),
    ),
    "vt-adl": Baseline(
        "VT-ADL: a vision transformer autoencoder, and the likelihood of each patch under a mixture of Gaussians",
        "Mishra et al., VT-ADL: a vision transformer network for anomaly detection and localization, ISIE 2021",
        _pixels(
            VtAdlConfig(),
            256,
            VtAdlConfig(epochs=400, lr=1e-4, patch=64, width=512, blocks=6, heads=8, decoder_width=512),
            512,
            steps=100,
            patch=16,
        ),
    ),
}
