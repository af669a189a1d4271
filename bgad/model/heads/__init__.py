"""The heads of the baselines, from feature maps to map and score; their fits are in `bgad/methods/baselines`."""

from __future__ import annotations

from bgad.config import BASELINES, Config
from bgad.model.backbone import Backbone
from bgad.model.heads.base import Head, HeadModel
from bgad.model.heads.devnet import DevnetHead, FlosHead
from bgad.model.heads.dra import DraHead
from bgad.model.heads.fcdd import FcddHead
from bgad.model.heads.mlep import MlepHead
from bgad.model.heads.padim import PadimHead
from bgad.model.heads.patchcore import PatchcoreHead
from bgad.model.heads.saoe import SaoeHead
from bgad.model.scoring import LevelModel, ScoringModel

HEADS: dict[str, type[Head]] = {  # by baseline
    "padim": PadimHead,
    "patchcore": PatchcoreHead,
    **dict.fromkeys(("devnet-frozen", "devnet"), DevnetHead),
    **dict.fromkeys(("flos-frozen", "flos"), FlosHead),
    **dict.fromkeys(("dra-frozen", "dra"), DraHead),
    **dict.fromkeys(("saoe-frozen", "saoe"), SaoeHead),
    **dict.fromkeys(("mlep-frozen", "mlep"), MlepHead),
    **dict.fromkeys(("fcdd-frozen", "fcdd"), FcddHead),
}


def new_model(config: Config, backbone: Backbone) -> ScoringModel:
    """Return the untrained model of a recipe: our own, or a baseline's."""
    if config.method in BASELINES:
        return HeadModel(config, backbone, HEADS[config.method])
    return LevelModel(config, backbone)
