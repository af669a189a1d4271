"""The heads of the baselines, from feature maps to map and score; their fits are in `bgad/methods/baselines`."""

from __future__ import annotations

from bgad.config import BASELINES, Config
from bgad.model.backbone import Backbone
from bgad.model.heads.autoencoder import AeMseHead, AeSsimHead
from bgad.model.heads.base import Head, HeadModel
from bgad.model.heads.cfa import CfaHead
from bgad.model.heads.distillation import KdadHead, MsfdHead
from bgad.model.heads.draem import DraemHead
from bgad.model.heads.padim import PadimHead
from bgad.model.heads.patchcore import PatchcoreHead
from bgad.model.heads.vt_adl import VtAdlHead
from bgad.model.scoring import LevelModel, ScoringModel

HEADS: dict[str, type[Head]] = {  # by baseline
    "padim": PadimHead,
    "patchcore": PatchcoreHead,
    "cfa": CfaHead,
    "msfd": MsfdHead,
    "kdad": KdadHead,
    "ae-mse": AeMseHead,
    "ae-ssim": AeSsimHead,
    "draem": DraemHead,
    "vt-adl": VtAdlHead,
}


def new_model(config: Config, backbone: Backbone) -> ScoringModel:
    """Return the untrained model of a recipe: our own, or a baseline's."""
    if config.method in BASELINES:
        return HeadModel(config, backbone, HEADS[config.method])
    return LevelModel(config, backbone)
