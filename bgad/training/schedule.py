"""The schedule of a training: its steps, its two phases and the learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bgad.config import TrainConfig


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
