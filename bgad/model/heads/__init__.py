"""The heads of the baselines, from feature maps to map and score; their fits are in `bgad/methods/baselines`."""

from __future__ import annotations

from bgad.model.heads.autoencoder import AeMseHead, AeSsimHead
from bgad.model.heads.base import Head
from bgad.model.heads.cfa import CfaHead
from bgad.model.heads.devnet import DevnetHead, FlosHead
from bgad.model.heads.distillation import KdadHead, MsfdHead
from bgad.model.heads.dra import DraHead
from bgad.model.heads.draem import DraemHead
from bgad.model.heads.fcdd import FcddHead
from bgad.model.heads.mlep import MlepHead
from bgad.model.heads.padim import PadimHead
from bgad.model.heads.patchcore import PatchcoreHead
from bgad.model.heads.saoe import SaoeHead
from bgad.model.heads.vt_adl import VtAdlHead

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
    **dict.fromkeys(("devnet-frozen", "devnet"), DevnetHead),
    **dict.fromkeys(("flos-frozen", "flos"), FlosHead),
    **dict.fromkeys(("dra-frozen", "dra"), DraHead),
    **dict.fromkeys(("saoe-frozen", "saoe"), SaoeHead),
    **dict.fromkeys(("mlep-frozen", "mlep"), MlepHead),
    **dict.fromkeys(("fcdd-frozen", "fcdd"), FcddHead),
}
