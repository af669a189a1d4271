"""The torch weight files of a model folder."""

from __future__ import annotations

import safetensors.torch

from bgad.model.scoring import ScoringModel

FLOW_FILE, BACKBONE_FILE = "flow.safetensors", "backbone.safetensors"


def weight_files(model: ScoringModel) -> dict[str, bytes]:
    """Serialise a model: the bytes of each weight file, by file name."""
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    backbone = {key.removeprefix("backbone."): state.pop(key) for key in list(state) if key.startswith("backbone.")}
    return {FLOW_FILE: safetensors.torch.save(state), BACKBONE_FILE: safetensors.torch.save(backbone)}
