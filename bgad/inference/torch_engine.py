"""Scoring with torch: for model folders without a graph, and for training and export."""

from __future__ import annotations

import threading
from pathlib import Path

import safetensors.torch
import torch

from bgad.artifact import folder as model_folder
from bgad.artifact.card import Card
from bgad.config import BASELINES, Config
from bgad.geometry.roi import Roi
from bgad.inference.base import BaseScorer, Outputs
from bgad.model import backbone as backbones
from bgad.model import device as devices
from bgad.model.heads import HEADS
from bgad.model.heads.base import HeadModel
from bgad.model.scoring import BACKBONE_FILE, FLOW_FILE, LevelModel, ScoringModel
from bgad.types import FloatArray


class Detector(BaseScorer):
    """Scores images with torch; `bgad.load` returns one for a model folder without a graph."""

    ENGINE = "torch"

    def __init__(
        self,
        model: ScoringModel,
        card: Card,
        device: torch.device,
        *,
        threads: int | None = None,
        batch: int | None = None,
    ) -> None:
        super().__init__(card, threads=threads, batch=batch, on_cpu=device.type == "cpu")
        self.model, self.device = model.to(device).eval(), device
        self._cores = threads  # for an image that is scored alone; None: as many as torch takes by itself
        self._thread = threading.local()

    def run(self, pixels: FloatArray) -> Outputs:
        """See BaseScorer."""
        if self._cores is None or getattr(self._thread, "one_core", False):
            return run_model(self.model, pixels, self.device)
        before = torch.get_num_threads()
        devices.set_thread_cores(self._cores)
        try:
            return run_model(self.model, pixels, self.device)
        finally:
            devices.set_thread_cores(before)

    def start_thread(self) -> None:
        """See BaseScorer."""
        devices.set_thread_cores(1)
        self._thread.one_core = True

    def tune_process(self) -> None:
        """See BaseScorer."""
        devices.tune_allocator()

    @classmethod
    def load(
        cls, folder: str | Path, device: str = "auto", *, threads: int | None = None, batch: int | None = None
    ) -> Detector:
        """Read a model folder; only the card, the split, the region of interest and the weights are verified."""
        folder = Path(folder)
        card = model_folder.read(folder, (FLOW_FILE, BACKBONE_FILE))
        config = card.config
        backbone = safetensors.torch.load_file(folder / BACKBONE_FILE)
        model = new_model(config, backbones.build(config.backbone, backbone))
        if card.roi_png is not None and not config.tile.size:
            model.set_region(Roi.from_png(card.roi_png).resized(config.backbone.size))
        flow = safetensors.torch.load_file(folder / FLOW_FILE)
        model.load_state_dict(flow | {f"backbone.{key}": value for key, value in backbone.items()})
        return cls(model, card, devices.pick(device), threads=threads, batch=batch)


def new_model(config: Config, backbone: backbones.Backbone) -> ScoringModel:
    """Return the untrained model of a recipe: our own, or a baseline's."""
    if config.method in BASELINES:
        return HeadModel(config, backbone, HEADS[config.method])
    return LevelModel(config, backbone)


def run_model(model: ScoringModel, pixels: FloatArray, device: torch.device) -> Outputs:
    """Run the scoring model on numpy arrays."""
    with torch.inference_mode():
        return to_numpy(*model(torch.from_numpy(pixels).to(device)))


def to_numpy(parts: torch.Tensor, maps: torch.Tensor, levels: list[torch.Tensor]) -> Outputs:
    """Return the outputs of a scoring model as arrays."""
    arrays = [level.cpu().numpy() for level in levels]
    return Outputs(parts.sum(1).cpu().numpy(), parts.cpu().numpy(), maps.cpu().numpy(), arrays)


def has_device(name: str) -> bool:
    """Tell whether torch can use an accelerator (`cuda` or `mps`) on this machine."""
    return torch.backends.mps.is_available() if name == "mps" else torch.cuda.is_available()
