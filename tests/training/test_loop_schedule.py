"""Steps, phases and learning rates of the training loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bgad.config import TrainConfig
from bgad.training.loop import Schedule

BASE = TrainConfig(
    steps=100,
    push_steps=50,
    epochs=0,
    push_start=0.04,
    images_per_step=32,
    positions_per_image=(128, 32, 8),
    lr=1.0,
    push_lr=0.5,
    warmup=0.1,
    clip_norm=0.0,
)


def plan(images: int = 100, positions: int = 4096, **values: Any) -> Schedule:
    return Schedule.plan(replace(BASE, **values), images, positions)


def test_steps_and_phases() -> None:
    both = plan()
    assert (both.steps, both.push_at) == (150, 100)
    assert plan(push_steps=0).push_at == 100


def test_epochs_show_every_feature_once() -> None:
    # 100 images by 32: 4 steps; 4096 positions by 128: 32 steps; 128 steps an epoch
    schedule = plan(epochs=2)
    assert (schedule.steps, schedule.push_at) == (256, 10)  # 0.04 x 256 = 10.24
    assert plan(1, 1, epochs=1).push_at == 1  # phase 1 is never empty


def test_learning_rate_of_two_phases_by_hand() -> None:
    lr = plan().lr
    assert lr(0) == pytest.approx(0.1)
    assert lr(5) == pytest.approx(0.55)  # half of the warm-up from 0.1 to 1
    assert lr(10) == pytest.approx(1.0)
    assert lr(55) == pytest.approx(0.001 + 0.999 * 0.5)  # half of the cosine
    assert lr(85) == pytest.approx(0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * 75 / 90)))
    assert lr(100) == pytest.approx(0.05)  # phase 2 warms up again, to its own peak
    assert lr(105) == pytest.approx(0.5)
    assert lr(149) == pytest.approx(0.5 * (0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * 44 / 45))))
    assert all(lr(step) > lr(step + 1) for step in [*range(10, 99), *range(105, 149)])


def test_learning_rate_of_one_schedule() -> None:
    lr = plan(push_lr=0.0).lr
    assert lr(15) == pytest.approx(1.0)  # a tenth of all 150 steps
    assert all(lr(step) > lr(step + 1) for step in range(15, 149))
