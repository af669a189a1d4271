"""Training that starts from the flows of another model, as an update does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from bgad.artifact import folder as model_folder
from bgad.config import Config
from bgad.data import tiled_split
from bgad.data.split import Split
from bgad.features.cache import even_pick
from bgad.model.scoring import BACKBONE_FILE, FLOW_FILE
from bgad.training.training_set import MAX_VALIDATION
from bgad.types import TAUGHT, Index, SplitRecord

# When updating a model, the old and the newly trained flow weights are averaged with equal shares; this reduces
# forgetting of the anomalies that the model knew before.
NEW_WEIGHT_SHARE = 0.5


@dataclass(frozen=True)
class WarmStart:
    """What the flows of the parent model have seen of the samples of this training."""

    validation: Index  # normals that they were not trained on
    new_anomalies: Index  # known anomalies that they were not trained on, neither as such nor as normals
    taught_anomalies: Index  # known anomalies that this update or an earlier one has added

    @classmethod
    def from_model(cls, folder: Path, split: Split, config: Config) -> WarmStart:
        """Compare a split with the one that a model was trained on; of tiles, take a sample of those of its images."""
        card = model_folder.read(folder)
        roles = SplitRecord.from_json(card.split).roles()
        known = [roles.get(split.hashes[tiled_split.image_name_of(s.name, config.tile)]) for s in split.known]
        new = np.flatnonzero([role not in ("train", "known") for role in known])
        taught = np.flatnonzero([s.defect == TAUGHT for s in split.known])
        names = card.training.validation_normals
        images = [tiled_split.image_name_of(s.name, config.tile) for s in split.train]
        validation = np.flatnonzero(np.isin(images, names))
        return cls(validation[even_pick(len(validation), MAX_VALIDATION)], new, taught)


def load_flows(folder: Path) -> dict[str, torch.Tensor]:
    """Return the trained weights of a model, without its backbone."""
    model_folder.read(folder, (FLOW_FILE, BACKBONE_FILE))
    return safetensors.torch.load_file(folder / FLOW_FILE)


def average_with_parent(parameters: Sequence[torch.Tensor], parent: Sequence[torch.Tensor]) -> None:
    """Move newly trained weights towards those of the parent model, in place."""
    with torch.no_grad():
        for new, old in zip(parameters, parent, strict=True):
            new.lerp_(old, 1 - NEW_WEIGHT_SHARE)
