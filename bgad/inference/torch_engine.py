"""Scoring with torch; for model folders without a graph, and for training and export."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from bgad.artifact import folder as model_folder
from bgad.artifact.folder import Card
from bgad.config import from_dict
from bgad.geometry.roi import Roi
from bgad.inference.base import BaseScorer
from bgad.model import backbone as backbones
from bgad.model import device as devices
from bgad.model.scoring import ScoringModel
from bgad.model.weights import BACKBONE_FILE, FLOW_FILE
from bgad.types import FloatArray


class Detector(BaseScorer):
    """Scores images with torch; `bgad.load` gives one for a model folder without a graph."""

    def __init__(
        self,
        model: ScoringModel,
        card: Card,
        device: torch.device,
        *,
        threads: int | None = None,
        batch: int | None = None,
    ) -> None:
        super().__init__(card, threads=threads, batch=batch)
        self.model, self.device = model.to(device).eval(), device

    def run(self, pixels: FloatArray) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """See BaseScorer."""
        return run_model(self.model, pixels, self.device)

    def start_thread(self) -> None:
        """See BaseScorer."""
        torch.set_num_threads(1)

    @classmethod
    def load(
        cls, folder: str | Path, device: str = "auto", *, threads: int | None = None, batch: int | None = None
    ) -> Detector:
        """Read a model folder and check every byte of it."""
        devices.keep_memory()
        folder = Path(folder)
        card = model_folder.read(folder, needs=(FLOW_FILE, BACKBONE_FILE))
        config = from_dict(card.data["config"], source=str(folder / model_folder.CARD))
        state = safetensors.torch.load_file(folder / BACKBONE_FILE)
        model = ScoringModel(config, backbones.build(config.backbone, state))
        learnt = safetensors.torch.load_file(folder / FLOW_FILE)
        if card.roi and not config.tile.size:
            model.set_region(Roi.from_png(card.roi).fitted(config.backbone.size))
        model.load_state_dict(learnt | {f"backbone.{key}": value for key, value in state.items()})
        if threads is not None:
            torch.set_num_threads(threads)
        return cls(model, card, devices.pick(device), threads=threads, batch=batch)


def run_model(
    model: ScoringModel, pixels: FloatArray, device: torch.device
) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
    """The scoring model on numpy arrays."""
    with torch.inference_mode():
        scores, maps, levels = model(torch.from_numpy(pixels).to(device))
        return scores.cpu().numpy(), maps.cpu().numpy(), [level.cpu().numpy() for level in levels]


def has_device(name: str) -> bool:
    """Whether torch can use an accelerator (`cuda` or `mps`) on this machine."""
    return torch.backends.mps.is_available() if name == "mps" else torch.cuda.is_available()
