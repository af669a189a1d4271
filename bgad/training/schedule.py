"""The schedule of a training: its steps, its two phases, the learning rate of each step, and early stopping.

Each level keeps the weights with the best likelihood on validation normals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bgad.config import Config, TrainConfig
from bgad.features.cache import Features
from bgad.training.objective import LevelLikelihoods, likelihood_loss, sample_positions


@dataclass(frozen=True)
class Schedule:
    """Number of steps, the first step of phase 2, and the learning rate of each step."""

    steps: int
    push_at: int  # first step of phase 2
    config: TrainConfig

    @classmethod
    def plan(cls, config: TrainConfig, images: int, positions: int) -> Schedule:
        """Plan by steps, or by epochs over `images` normals with `positions` features at the finest level."""
        if config.epochs:
            per_epoch = math.ceil(images / config.images_per_step) * math.ceil(
                positions / config.positions_per_image[0]
            )
            steps = config.epochs * per_epoch
            return cls(steps, max(1, round(config.push_start * steps)), config)
        return cls(config.steps + config.push_steps, config.steps, config)

    def lr(self, step: int) -> float:
        """Linear warm-up from a tenth, then cosine decay to a thousandth; in each phase, or once if push_lr is 0."""
        config = self.config
        start, length, peak = 0, self.steps, config.lr
        if config.push_lr and self.push_at < self.steps:
            if step < self.push_at:
                length = self.push_at
            else:
                start, length, peak = self.push_at, self.steps - self.push_at, config.push_lr
        return peak * warm_cosine((step - start) / length, config.warmup)


def warm_cosine(done: float, warmup: float) -> float:
    """Factor of the learning rate after the share `done` of a schedule.

    >>> warm_cosine(0.0, 0.1), warm_cosine(0.1, 0.1), round(warm_cosine(1.0, 0.1), 6)
    (0.1, 1.0, 0.001)
    """
    if done < warmup:
        return 0.1 + 0.9 * done / warmup
    return 0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))


CHECK_STEPS = 50  # steps between two evaluations: a phase of 800 steps has 16 of them
POSITIONS_PER_IMAGE = 64  # of each validation normal: 64 normals give the mean over 4096 features


@dataclass
class BestWeights:
    """The weights of a level's flow with the lowest validation loss so far."""

    loss: float = math.inf
    step: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)


class EarlyStopping:
    """Evaluates each level on validation normals, restores its best weights, and stops it when they stay the best.

    Few normals are soon overfitted, and levels of different sizes overfit at different times.
    """

    def __init__(self, likelihoods: LevelLikelihoods, validation: Features | None, config: Config) -> None:
        self.likelihoods, self.config = likelihoods, config
        self.validation = validation if config.train.restore_best else None
        levels = likelihoods.levels
        self.best = [BestWeights() for _ in levels]
        self.stopped = [False for _ in levels]  # levels that do not train before the phase ends

    def check(self, step: int, *, phase_ends: bool) -> None:
        """Evaluate every level that still trains; at the end of a phase, restore the best weights of all."""
        if self.validation is None:
            return
        validation, patience = self.validation, self.config.train.patience

        def check_level(i: int) -> None:
            if not self.stopped[i]:
                self._evaluate(i, step, validation)
            best = self.best[i]
            if phase_ends and best.weights:
                self.likelihoods.levels[i].load_state_dict(best.weights, strict=False)
                self.best[i], self.stopped[i] = BestWeights(), False
            elif patience and step - best.step >= patience:
                self.stopped[i] = True

        self.likelihoods.workers.each(check_level)

    def _evaluate(self, i: int, step: int, validation: Features) -> None:
        """Keep the weights of a level where its validation loss is the lowest so far."""
        level, best, roi = self.likelihoods.levels[i], self.best[i], self.likelihoods.roi_positions
        rng = np.random.default_rng([self.config.seed, i])  # the same positions every time
        positions = sample_positions(np.arange(level.positions) if roi is None else roi[i], POSITIONS_PER_IMAGE, rng)
        device = self.likelihoods.device
        with torch.inference_mode():
            rows = torch.from_numpy(validation.rows(i, np.arange(validation.count)[:, None], positions)).to(device)
            log_p = level(rows, torch.from_numpy(positions).to(device))
            loss = likelihood_loss(log_p, self.config.loss.likelihood).item()
        if loss < best.loss:
            best.loss, best.step = loss, step
            best.weights = {name: value.detach().clone() for name, value in level.named_parameters()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, for a checkpoint."""
        return {f"best.{i}.{name}": value for i, best in enumerate(self.best) for name, value in best.weights.items()}

    def note(self) -> dict[str, Any]:
        """Return the rest of the state, for a checkpoint."""
        best = [None if math.isinf(best.loss) else [best.loss, best.step] for best in self.best]
        return {"best": best, "stopped": self.stopped}

    def load(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.stopped = list(note["stopped"])
        for i, best in enumerate(note["best"]):
            prefix = f"best.{i}."
            weights = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            self.best[i] = BestWeights() if best is None else BestWeights(float(best[0]), int(best[1]), weights)
