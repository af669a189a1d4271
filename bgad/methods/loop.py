"""The step loop of baselines that are trained by gradient descent; killed, it continues to the same bits.

Every random draw of step s comes from generators seeded by (seed, s), torch's global one included. The checkpoint holds
the weights, the optimiser's state and the number of steps, so nothing else has to be remembered.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bgad.errors import ModelError
from bgad.methods import checkpoint
from bgad.methods.checkpoint import CHECKPOINT, LogRow, TrainingLog
from bgad.methods.fitting import FitData
from bgad.types import ProgressTask, StopRequest

COLUMNS = ("step", "lr", "loss")  # of the log


@dataclass(frozen=True)
class Step:
    """One step: its number, and the generator of its random draws."""

    number: int
    rng: np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to train, and how."""

    steps: int
    lr: Callable[[int], float]  # learning rate of a step
    clip_norm: float = 0.0  # maximum gradient norm; 0: no clipping
    stage: int = 0  # number of this training among those of one fit, which run one after the other


def constant(lr: float) -> Callable[[int], float]:
    """Return a learning rate that does not change."""
    return lambda step: lr


def stepped(lr: float, every: int, factor: float) -> Callable[[int], float]:
    """Return a learning rate that is multiplied by a factor every so many steps.

    >>> [stepped(1.0, 10, 0.5)(step) for step in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """
    return lambda step: lr * factor ** (step // every)


def train_steps(
    head: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: Callable[[Step], Tensor],
    data: FitData,
    schedule: Schedule,
) -> Iterator[LogRow]:
    """Minimise `loss(step)` over the parameters of the optimiser; yields the log row of each step.

    All of `head` goes into the checkpoint. A fit of several trainings numbers them by `schedule.stage`; a stage that a
    checkpoint has passed is skipped. A loop that was asked to stop saves a checkpoint and raises KeyboardInterrupt.
    """
    log = TrainingLog(data.work, COLUMNS)
    state = _restore(head, optimiser, data, log, schedule.stage)
    if state is None:
        return
    progress = ProgressTask(data.control.progress, "training", schedule.steps, done=state.step)
    stop = data.control.stop or StopRequest()
    head.train()
    began = saved = time.monotonic()
    earlier, rows = state.seconds, list[LogRow]()
    with stop.honour():
        while state.step < schedule.steps and not stop.requested:
            row = _step(optimiser, loss, data.seed, state.step, schedule)
            rows.append(row | {"step": float(state.before + state.step)})
            state.step += 1
            state.seconds = earlier + time.monotonic() - began
            yield rows[-1]
            progress.advance(1, f"loss {row['loss']:.3f}")
            if time.monotonic() - saved > checkpoint.CHECKPOINT_SECONDS:
                _save(head, optimiser, data, log, rows, state)
                rows, saved = [], time.monotonic()
        _save(head, optimiser, data, log, rows, state)
        if stop.requested:
            raise KeyboardInterrupt
    head.eval()


@dataclass
class _State:
    stage: int
    step: int  # steps of this stage that are done
    before: int  # steps of earlier stages
    seconds: float  # of all stages, earlier runs included


def _step(
    optimiser: torch.optim.Optimizer, loss: Callable[[Step], Tensor], seed: int, number: int, schedule: Schedule
) -> LogRow:
    """Run one step and return its log row."""
    lr = schedule.lr(number)
    for group in optimiser.param_groups:
        group["lr"] = lr
    draws = np.random.SeedSequence([seed, schedule.stage, number])
    with torch.random.fork_rng():
        torch.manual_seed(int(draws.generate_state(1)[0]))
        value = loss(Step(number, np.random.default_rng(draws)))
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        if schedule.clip_norm:
            parameters = [p for group in optimiser.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, schedule.clip_norm)
        optimiser.step()
    result = value.item()
    if not math.isfinite(result):
        raise ModelError(f"training diverged at step {number}: lower baseline.lr")
    return {"step": float(number), "lr": lr, "loss": result}


def _save(
    head: nn.Module,
    optimiser: torch.optim.Optimizer,
    data: FitData,
    log: TrainingLog,
    rows: list[LogRow],
    state: _State,
) -> None:
    """Append the log, then replace the checkpoint."""
    log.append(rows)
    tensors = {f"model.{key}": value for key, value in head.state_dict().items()}
    for number, values in optimiser.state_dict()["state"].items():
        stored = {key: value for key, value in values.items() if value is not None}
        tensors |= {f"optimiser.{number}.{key}": torch.as_tensor(value) for key, value in stored.items()}
    checkpoint.write_state(data.work / CHECKPOINT, tensors, vars(state))


def _restore(
    head: nn.Module, optimiser: torch.optim.Optimizer, data: FitData, log: TrainingLog, stage: int
) -> _State | None:
    """Return the state that a stage starts from or continues with; None where it has been passed."""
    path = data.work / CHECKPOINT
    if not path.exists():
        log.delete()
        log.append([])
        return _State(stage, 0, 0, 0.0)
    tensors, note = checkpoint.read_state(path)
    stored = _State(**note)
    if stored.stage > stage:
        return None
    log.truncate(stored.before + stored.step)
    if stored.stage < stage:  # the earlier stage has loaded or trained the weights
        return _State(stage, 0, log.count(), stored.seconds)
    head.load_state_dict({key[6:]: value for key, value in tensors.items() if key.startswith("model.")})
    states: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, number, name = key.split(".")
            states.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict(optimiser.state_dict() | {"state": states})
    return stored
