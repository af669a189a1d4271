"""Fingerprints of trainings: equal fingerprints mean equal results, so unfinished and shared work is recognised."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch

from bgad._version import __version__
from bgad.config import Config, PseudoConfig, ScoreConfig, to_dict
from bgad.data import layouts
from bgad.data.sample_io import hash_masks
from bgad.data.split import Split
from bgad.geometry.roi import Roi
from bgad.io.files import sha256_bytes, sha256_json
from bgad.model.weights import FLOW_FILE
from bgad.training.training_set import pseudo_count

# Raise it when a change to the code changes features, models or figures: what is stored is then computed again.
RECIPE_VERSION = 10

# Keys of the recipe that only phase 2 or scoring reads.
PHASE_TWO_KEYS: dict[str, tuple[str, ...]] = {
    "loss": (
        "boundary",
        "beta",
        "tau",
        "push_pull_weight",
        "asymmetric_weights",
        "max_abnormal_weight",
        "exclude_far",
        "instance_share",
    ),
    "pseudo": tuple(f.name for f in fields(PseudoConfig)),
    "score": tuple(f.name for f in fields(ScoreConfig)),
}


def _hash_backbone_weights(config: Config) -> str:
    return layouts.hash_file(Path(config.backbone.weights)) if config.backbone.weights else ""


def run_key(
    config: Config, split: Split, device: torch.device, roi: Roi | None = None, parent: Path | None = None
) -> str:
    """Return the fingerprint of a run: two runs with the same one make the same model."""
    masks, weights = hash_masks(split.known), _hash_backbone_weights(config)
    parts = [to_dict(config), split.to_json(), masks, weights, device.type, torch.__version__, __version__]
    ignored = {s.name: layouts.hash_file(s.ignore) for s in (*split.train, *split.known) if s.ignore is not None}
    if ignored:
        parts.append(ignored)
    if roi is not None:
        parts.append(sha256_bytes(roi.png()))
    if parent is not None:
        parts.append(layouts.hash_file(parent / FLOW_FILE))
    return sha256_json(parts)


def phase_key(config: Config, split: Split, device: torch.device) -> str:
    """Return the fingerprint of phase 1: two runs with the same one do not differ before phase 2 begins."""
    recipe = to_dict(config)
    del recipe["method"]
    for part, names in PHASE_TWO_KEYS.items():
        recipe[part] = {name: value for name, value in recipe[part].items() if name not in names}
    normals = [(s.name, split.hashes[s.name]) for s in split.train]  # in order, as steps draw them by number
    weights = _hash_backbone_weights(config)
    has_validation = config.score.evidence_weight > 0  # one of the two reasons to hold out validation normals
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
