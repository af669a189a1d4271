"""The heads of the baselines, from feature maps to map and score; their fits are in `bgad/methods/baselines`."""

from __future__ import annotations

from bgad.model.heads.base import Head
from bgad.model.heads.padim import PadimHead
from bgad.model.heads.patchcore import PatchcoreHead

HEADS: dict[str, type[Head]] = {  # by baseline
    "padim": PadimHead,
    "patchcore": PatchcoreHead,
}
