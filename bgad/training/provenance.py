"""What a model was made of: the fingerprint of its training, and where its images are on this machine.

Equal fingerprints mean equal results, so unfinished and shared work is recognised.

Where the images are is kept outside of the model, so that a model does not tell where it was made: one small file
for each model in the user's state folder ($BGAD_STATE, or bgad in $XDG_STATE_HOME), named by the checksum of the card.
It only saves typing: without it, `bgad update` asks for --data.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bgad._version import __version__
from bgad.config import BackboneConfig, Config, LossConfig, PseudoConfig, ScoreConfig, to_dict
from bgad.data import layouts, locate
from bgad.data.datasets import registry
from bgad.data.layouts import Dataset
from bgad.data.sample_io import hash_masks
from bgad.data.split import Split
from bgad.errors import OutputError
from bgad.geometry.roi import Roi
from bgad.io.files import sha256_bytes, sha256_json, write_atomic
from bgad.model.scoring import FLOW_FILE
from bgad.training.training_set import pseudo_count

# Raise it when a change to the code changes features, models or figures: what is stored is then computed again.
RECIPE_VERSION = 12


def hash_weights(config: BackboneConfig) -> str:
    """Return the sha256 of the file with the weights of a backbone; empty where the recipe names none."""
    return layouts.hash_file(Path(config.weights)) if config.weights else ""


def run_key(
    config: Config, split: Split, device: torch.device, roi: Roi | None = None, parent: Path | None = None
) -> str:
    """Return the fingerprint of a run: two runs with the same one make the same model."""
    masks, weights = hash_masks(split.known), hash_weights(config.backbone)
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
    loss = LossConfig(likelihood=config.loss.likelihood)  # only phase 2 reads the other keys of the loss
    recipe = to_dict(replace(config, method="", loss=loss, pseudo=PseudoConfig(), score=ScoreConfig()))
    normals = [(s.name, split.hashes[s.name]) for s in split.train]  # in order, as steps draw them by number
    weights = hash_weights(config.backbone)
    has_validation = config.score.evidence_weight > 0 or bool(config.backbone.image_head_strides)
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


_PATHS = ("taught", "masks", "ignored")


@dataclass(frozen=True)
class Provenance:
    """The data set of a model, and the images that updates have added; the dictionaries go by names in the split."""

    data: Path  # a folder or a manifest; or the name of a public data set
    root: Path | None = None  # the folder of the public data sets; None: `data` is a path
    taught: dict[str, Path] = field(default_factory=dict)
    masks: dict[str, Path] = field(default_factory=dict)
    ignored: dict[str, Path] = field(default_factory=dict)  # regions to ignore

    def load(self) -> Dataset:
        """Load the data set; DataError where it does not exist any more."""
        if self.root is None:
            return locate.load(self.data)
        return registry.load(self.data.parts[0], "".join(self.data.parts[1:]), self.root)


def provenance_of(data: str | Path, root: str | Path | None) -> Provenance:
    """Return the provenance of a data set given by the user, independent of the working directory."""
    if locate.set_name(data) is None:
        return Provenance(Path(data).absolute())
    return Provenance(Path(data), (registry.default_root() if root is None else Path(root)).absolute())


def remember(checksum: str, provenance: Provenance) -> None:
    """Store the provenance of a model; without write access it is silently left out, as it is only a convenience."""
    content = {
        "data": str(provenance.data),
        "root": None if provenance.root is None else str(provenance.root),
        **{kind: {name: str(path.absolute()) for name, path in getattr(provenance, kind).items()} for kind in _PATHS},
    }
    with suppress(OutputError, OSError, RuntimeError):  # RuntimeError: a user without a home
        write_atomic(_file(checksum), json.dumps(content, indent=1).encode())


def recall(checksum: str) -> Provenance | None:
    """Return the stored provenance of a model; None where there is none that can be read."""
    try:
        stored = json.loads(_file(checksum).read_bytes())
        paths = {kind: {n: Path(p) for n, p in stored[kind].items()} for kind in _PATHS}
        root = stored["root"]
        return Provenance(Path(stored["data"]), None if root is None else Path(root), **paths)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def _file(checksum: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return Path(os.environ.get("BGAD_STATE") or base / "bgad") / "provenance" / f"{checksum}.json"
