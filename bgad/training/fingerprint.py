"""What two trainings must have in common to be the same: how unfinished and shared work is recognised."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch

from bgad._version import __version__
from bgad.config import Config, PseudoConfig, ScoreConfig, to_dict
from bgad.data import layouts
from bgad.data.split import Split
from bgad.geometry.roi import Roi
from bgad.io.files import sha256_bytes, sha256_json
from bgad.model.weights import FLOW_FILE
from bgad.training.training_set import PUSHING, RECIPE, pseudo_count

PHASE_TWO: dict[str, tuple[str, ...]] = {  # what of the recipe only phase 2 or scoring looks at
    "loss": (
        "method",
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


def run_key(
    config: Config, split: Split, device: torch.device, roi: Roi | None = None, start: Path | None = None
) -> str:
    """Two runs with the same key make the same model."""
    masks = [[layouts.hash_file(path) for path in (s.mask, *s.more_masks)] if s.mask else None for s in split.known]
    weights_file = layouts.hash_file(Path(config.backbone.weights)) if config.backbone.weights else ""
    parts = [to_dict(config), split.to_json(), masks, weights_file, device.type, torch.__version__, __version__]
    ignored = {s.name: layouts.hash_file(s.ignore) for s in (*split.train, *split.known) if s.ignore is not None}
    if ignored:
        parts.append(ignored)
    if roi is not None:
        parts.append(sha256_bytes(roi.png()))
    if start is not None:
        parts.append(layouts.hash_file(start / FLOW_FILE))
    return sha256_json(parts)


def phase_key(config: Config, split: Split, device: torch.device) -> str:
    """Two runs with the same key are the same run until phase 2 begins."""
    recipe = to_dict(config)
    for part, names in PHASE_TWO.items():
        recipe[part] = {name: value for name, value in recipe[part].items() if name not in names}
    normals = [(s.name, split.hashes[s.name]) for s in split.train]  # their order decides what a step draws
    weights_file = layouts.hash_file(Path(config.backbone.weights)) if config.backbone.weights else ""
    aside = config.score.evidence_weight > 0  # see Weighing
    parts = [RECIPE, recipe, aside, normals, weights_file, device.type, torch.__version__, __version__]
    return sha256_json(parts)


def flow_key(config: Config, split: Split, device: torch.device) -> str | None:
    """Two runs with the same key train the same flows: no anomaly pushes them. None where anomalies do."""
    full_push = config.loss.method == "bgad-full-push"
    pushed = [s for s in split.known if s.mask is not None or config.loss.instance_share or full_push]
    if config.loss.method in PUSHING and (pushed or pseudo_count(split, config)):
        return None
    method = "bgad-wo" if config.loss.method == "bgad" else config.loss.method
    kept = replace(config, loss=replace(config.loss, method=method), pseudo=PseudoConfig(), score=ScoreConfig())
    parts = [to_dict(kept), phase_key(config, split, device)]
    return sha256_json(parts)
