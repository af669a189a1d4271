"""Work that several runs share: the state at the end of a phase, and the fingerprints of runs that have it in common.

Equal fingerprints mean equal results. A benchmark trains what its runs have in common once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bgad._version import __version__
from bgad.config import Config, LossConfig, PseudoConfig, ScoreConfig, to_dict
from bgad.data.sample_io import hash_masks
from bgad.data.split import Split
from bgad.io.files import sha256_json
from bgad.methods.checkpoint import hash_weights, read_note
from bgad.training.training_set import pseudo_count

# Raise it when a change to the code changes features, models or figures: what is stored is then computed again.
RECIPE_VERSION = 13


@dataclass(frozen=True)
class SharedPhase:
    """A file with the state at the end of a phase, for runs that have everything up to there in common.

    `key` is the fingerprint of what these runs have in common: `phase_key` or `phase_two_key`.
    """

    path: Path
    key: str

    def is_usable(self) -> bool:
        """Return whether the file exists and belongs to such a run."""
        return self.path.exists() and read_note(self.path)["key"] == self.key


def phase_key(config: Config, split: Split, device: torch.device) -> str:
    """Return the fingerprint of phase 1: two runs with the same one do not differ before phase 2 begins."""
    loss = LossConfig(likelihood=config.loss.likelihood)  # only phase 2 reads the other keys of the loss
    recipe = to_dict(replace(config, method="", loss=loss, pseudo=PseudoConfig(), score=ScoreConfig()))
    normals = [(s.name, split.hashes[s.name]) for s in split.train]  # in order, as steps draw them by number
    weights = hash_weights(config.backbone)
    has_validation = config.score.evidence_weight > 0 or bool(config.backbone.image_head_levels)
    return sha256_json(
        [RECIPE_VERSION, recipe, has_validation, normals, weights, device.type, torch.__version__, __version__]
    )


def flow_key(config: Config, split: Split, device: torch.device) -> str | None:
    """Return the fingerprint of flows that no anomaly pushes, which equal runs share; None where anomalies push."""
    pushed = [s for s in split.known if s.mask is not None or config.loss.instance_share]
    if config.uses_anomalies and (pushed or pseudo_count(split, config)):
        return None
    objective = "semi-pull" if config.objective == "semi-push-pull" else config.objective  # nothing is pushed
    recipe = to_dict(replace(config, method="", pseudo=PseudoConfig(), score=ScoreConfig()))
    return sha256_json([recipe, objective, phase_key(config, split, device)])


def phase_two_key(config: Config, split: Split, device: torch.device) -> str:
    """Return the fingerprint of phase 2: runs with it have the same flows and differ at most in their scores."""
    known = [(s.name, split.hashes[s.name]) for s in split.known]
    masks = hash_masks(split.known)
    # keys without effect on this split
    loss = config.loss if None in masks else replace(config.loss, instance_share=0.0)
    pseudo = config.pseudo if pseudo_count(split, config) else PseudoConfig()
    recipe = to_dict(replace(config, method="", loss=loss, pseudo=pseudo, score=ScoreConfig()))
    return sha256_json([recipe, config.objective, known, masks, phase_key(config, split, device)])
