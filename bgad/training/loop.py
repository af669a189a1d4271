"""The training loop over cached features, in two phases, and its schedule.

Phase 1 fits the distribution of the normals by maximum likelihood. Phase 2 takes the boundary from it and adds the
boundary-guided semi-push-pull loss. The loop returns control after every step and between the phases. Random
draws come from generators seeded by seed, step and level, so a run that was killed continues from its checkpoint as if
it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bgad.config import Config, TrainConfig
from bgad.errors import ModelError
from bgad.features.cache import AnomalyFeatures, Features
from bgad.methods import checkpoint
from bgad.methods.checkpoint import CHECKPOINT, LogRow, TrainingLog
from bgad.model.boundary import RunningBoundary, normal_boundary
from bgad.model.device import WorkerPool
from bgad.model.distance import DistanceLevel
from bgad.model.flow import Level, LevelConstants
from bgad.model.scoring import LevelModel
from bgad.training.fit_bank import fill_bank
from bgad.training.objective import (
    NORMALISER,
    REFRESH_STEPS,
    LevelLikelihoods,
    objective,
    sample_anomalies,
    sample_positions,
    select_instances,
    usable_anomalies,
    without_masks,
)
from bgad.training.shared_phases import SharedPhase
from bgad.types import FloatArray, Index, ProgressTask, RunControl, StopRequest

COLUMNS = ("step", "lr", "loss", "likelihood", "pull", "push")  # of the log; then one boundary for each level
DIVERGED_LOSS = 1e6  # the loss of a sound run stays orders of magnitude below


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


@dataclass(frozen=True)
class LoopData:
    """The features that the levels are trained on, and those that give their constants."""

    normals: Features
    anomalies: Sequence[AnomalyFeatures] = ()
    validation: Features | None = None  # normals that no flow is trained on
    roi_positions: Sequence[Index] | None = None  # of each level, those inside the region of interest; None: all
    trained_positions: Sequence[Index] | None = None  # of each level, those that the map in the region needs; None: all
    bank: Features | None = None  # normals that distance levels store; none of them is among the others


class TrainingLoop:
    """Trains the levels of a model; its state (weights, optimisers, boundaries, step) goes into checkpoints."""

    def __init__(
        self,
        model: LevelModel,
        data: LoopData,
        work: Path,
        device: torch.device,
        *,
        shared_phases: Mapping[int, SharedPhase] | None = None,
        warm_start: bool = False,
        control: RunControl | None = None,
    ) -> None:
        """With `warm_start`, the levels are trained already, and their channel statistics are kept."""
        self.config: Config = model.config
        self.model, self.data, self.work, self.device = model, data, work, device
        self.shared_phases, self.control = shared_phases or {}, control or RunControl()
        self.levels: list[Level] = list(model.levels)  # type: ignore[arg-type]
        self.instance_share = self.config.loss.instance_share
        self.anomalies = usable_anomalies(data.anomalies, self.instance_share)
        self.trained_positions = data.trained_positions or [np.arange(level.positions) for level in self.levels]
        self.schedule = Schedule.plan(self.config.train, data.normals.count, len(self.trained_positions[0]))
        if self.config.objective == "boundary-only" and not self.anomalies:
            self.schedule = Schedule(0, 0, self.config.train)  # a pull alone would draw all features together
        self.workers = WorkerPool(len(self.levels), device)
        self.likelihoods = LevelLikelihoods(
            self.levels, self.config.loss.beta, device, self.workers, data.roi_positions
        )
        self.optimisers = self._new_optimisers()
        self.boundaries = [RunningBoundary(self.config.loss.beta) for _ in self.levels]
        self.log = TrainingLog(work, [*COLUMNS, *(f"boundary{i}" for i in range(len(self.levels)))])
        self.step = 0
        self.seconds = 0.0  # spent in the loop, earlier runs that this one resumes included
        self.resumed_seconds = 0.0  # the part of these that earlier runs have spent
        self._boundaries_started = False
        self._standardise = (self.config.flow.standardise or self.config.level != "flow") and not warm_start
        self._progress: ProgressTask | None = None

    def phase(self, number: int) -> Iterator[LogRow]:
        """Run the remaining steps of phase 1 or 2, and yield the log row of each.

        Where the caller has asked to stop, the loop saves a checkpoint after the current step and raises
        KeyboardInterrupt.
        """
        self.model.levels.train()
        if number == 1 and self.step == 0:
            self._prepare()
        if self._progress is None:  # one task for both phases
            self._progress = ProgressTask(self.control.progress, "training", self.schedule.steps, done=self.step)
        if number == 2 and self.step == self.schedule.push_at < self.schedule.steps:
            self._take_over(2)
            self._progress.advance(self.step - self.schedule.push_at)
        end = self.schedule.push_at if number == 1 else self.schedule.steps
        stop = self.control.stop or StopRequest()
        with stop.honour():
            if self.step < end:
                yield from self._steps(end, stop, self._progress)
            if stop.requested:
                raise KeyboardInterrupt
        if number == 2:
            self.model.levels.eval()

    def _steps(self, end: int, stop: StopRequest, progress: ProgressTask) -> Iterator[LogRow]:
        """Run steps up to `end`, with checkpoints on the way and at the end."""
        started, saved, earlier_seconds = time.monotonic(), time.monotonic(), self.seconds
        rows: list[LogRow] = []
        while self.step < end and not stop.requested:
            row = self.run_step(self.step)
            rows.append(row)
            self.step += 1
            self.seconds = earlier_seconds + time.monotonic() - started
            yield row
            boundary = row["boundary0"]
            phase = "normals" if math.isnan(boundary) else f"boundary {boundary:+.3f}"
            progress.advance(1, f"loss {row['loss']:.3f}  {phase}")
            if time.monotonic() - saved > checkpoint.CHECKPOINT_SECONDS:
                self.save(rows)
                rows, saved = [], time.monotonic()
        self.save(rows)
        for number, last in ((1, self.schedule.push_at), (2, self.schedule.steps)):
            shared = self.shared_phases.get(number)
            if shared is not None and self.step == last:
                shared.path.parent.mkdir(parents=True, exist_ok=True)
                self._write(shared.path, {"key": shared.key, "log": self.log.read()})

    def _prepare(self) -> None:
        """Before the first step: take over phase 1 from a shared file, or standardise features and store normals."""
        self.log.append([])  # a schedule without steps has a log, too
        self._take_over(1)
        if self.step == 0 and self._standardise:
            for i, level in enumerate(self.levels):
                mean, std = self.data.normals.moments(i, self.trained_positions[i])
                level.mean.copy_(torch.from_numpy(mean))
                level.std.copy_(torch.from_numpy(std))
        if self.step == 0 and self.data.bank is not None:
            for i, level in enumerate(self.levels):
                if isinstance(level, DistanceLevel):
                    fill_bank(level, i, self.data.bank, self.trained_positions[i], self.config.seed)

    def _take_over(self, number: int) -> None:
        """Continue after a phase that another run has shared, if there is such a file; score weights are not shared."""
        shared = self.shared_phases.get(number)
        if shared is not None and shared.is_usable():
            score_weights = self.model.score_weights.clone()
            self.log.replace(self._load(shared.path)["log"])
            self.model.score_weights.copy_(score_weights)

    def _new_optimisers(self) -> list[torch.optim.Adam]:
        return [torch.optim.Adam(level.parameters(), fused=True) for level in self.levels]

    def run_step(self, step: int) -> LogRow:
        """Run one step of all levels and return its log row."""
        if step == self.schedule.push_at and self.config.train.push_lr:
            # Adam remembers the small gradients at the end of phase 1 for a thousand steps. With them it would take
            # far too long steps along the larger gradients of the push.
            self.optimisers = self._new_optimisers()
        with_boundary = step >= self.schedule.push_at and self.config.objective != "likelihood"
        if with_boundary and not self._boundaries_started:
            self._start_boundaries()
        if with_boundary and (step - self.schedule.push_at) % REFRESH_STEPS == 0:
            select_instances(self.anomalies, self.likelihoods, self.instance_share)
        lr = self.schedule.lr(step)
        rng = np.random.default_rng([self.config.seed, step])
        count = min(self.config.train.images_per_step, self.data.normals.count)
        images = rng.choice(self.data.normals.count, count, replace=False)
        row = {"step": float(step), "lr": lr, "loss": 0.0, "likelihood": 0.0, "pull": 0.0, "push": 0.0}
        for level_row in self.workers.each(lambda i: self._level_step(i, step, lr, images, with_boundary)):
            for name, value in level_row.items():
                row[name] = row.get(name, 0.0) + value
        if not row["loss"] < DIVERGED_LOSS:  # also true for nan
            raise ModelError(f"training diverged at step {step}: lower train.lr or set train.clip_norm")
        return row

    def _level_step(self, i: int, step: int, lr: float, images: Index, with_boundary: bool) -> LogRow:
        """Forward pass, backward pass and optimiser step of one level; the levels share no weights."""
        level, optimiser, train = self.levels[i], self.optimisers[i], self.config.train
        rng = np.random.default_rng([self.config.seed, step, i])
        positions = sample_positions(self.trained_positions[i], train.positions_per_image[i], rng)
        rows = self._rows(self.data.normals, i, images[:, None], positions)
        normal = level(rows, torch.from_numpy(positions).to(self.device))
        abnormal = self._abnormal_log_p(i, max(1, len(images) // 2) * len(positions), rng) if with_boundary else None
        b_n = self._update_boundary(i, normal, positions) if with_boundary else None
        parts = objective(self.config.objective, self.config.loss, normal, abnormal, b_n)
        optimiser.zero_grad(set_to_none=True)
        parts.total.backward()  # type: ignore[no-untyped-call]
        if train.clip_norm:
            torch.nn.utils.clip_grad_norm_(level.parameters(), train.clip_norm)
        optimiser.param_groups[0]["lr"] = lr
        optimiser.step()
        return {
            "loss": parts.total.item(),
            "likelihood": parts.likelihood.item(),
            "pull": parts.pull.item(),
            "push": parts.push.item(),
            f"boundary{i}": math.nan if b_n is None else b_n,
        }

    def _rows(self, features: Features, level: int, image: Index, position: Index) -> Tensor:
        """Return features at broadcast indices, on the device; the last axis is the channels."""
        return torch.from_numpy(features.rows(level, image, position)).to(self.device)

    def _abnormal_log_p(self, i: int, count: int, rng: np.random.Generator) -> Tensor | None:
        """log p / d of `count` anomalous features, (1, count); None where the method uses none."""
        if not self.config.uses_anomalies or not self.anomalies:
            return None
        drawn = sample_anomalies(self.anomalies, i, count, self.config.pseudo.share, rng)
        rows, positions, repeats, distinct = [], [], [], 0
        for group, image, position in drawn:  # of small masks, most cells are drawn several times and computed once
            cells, repeat = np.unique(image * self.levels[i].positions + position, return_inverse=True)
            image, position = np.divmod(cells, self.levels[i].positions)
            rows.append(self._rows(group.features, i, image, position))
            positions.append(position)
            repeats.append(distinct + repeat)
            distinct += len(cells)
        at, again = (torch.from_numpy(np.concatenate(index)).to(self.device) for index in (positions, repeats))
        log_p: Tensor = self.levels[i](torch.cat(rows)[None], at)  # (1, distinct)
        return log_p.index_select(1, again)

    def _update_boundary(self, i: int, normal: Tensor, positions: Index) -> float:
        """Add the normals of a step to the running window and return b_n, normalised; or b_n of these normals alone."""
        roi = self.data.roi_positions
        inside = normal if roi is None else normal[:, np.isin(positions, roi[i])]
        values: FloatArray = (inside.detach().flatten() / NORMALISER).cpu().numpy()
        if self.config.loss.boundary == "batch" and len(values):
            return normal_boundary(values, self.config.loss.beta)
        self.boundaries[i].update(values)
        return self.boundaries[i].value()

    def _start_boundaries(self) -> None:
        """Fill the running windows with the log-likelihoods of the training normals."""
        values = self.workers.each(lambda i: self.likelihoods.of_set(i, self.data.normals))
        for boundary, log_p in zip(self.boundaries, values, strict=True):
            boundary.start(log_p / NORMALISER)
        self._boundaries_started = True

    def set_constants(self) -> list[LevelConstants]:
        """Set and return the constants of each level, from validation normals, or from training normals without."""
        normals = self.data.normals if self.data.validation is None else self.data.validation
        constants = self.likelihoods.constants(normals)
        for level, level_constants in zip(self.levels, constants, strict=True):
            level.set_constants(level_constants)
        return constants

    def save(self, rows: Sequence[LogRow]) -> None:
        """Append the log, then replace the checkpoint."""
        self.log.append(rows)
        self._write(self.work / CHECKPOINT, {})

    def _write(self, path: Path, note: dict[str, Any]) -> None:
        tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in self.model.levels.state_dict().items()}
        for i, optimiser in enumerate(self.optimisers):
            for number, state in optimiser.state_dict()["state"].items():
                tensors |= {f"adam.{i}.{number}.{key}": torch.as_tensor(value) for key, value in state.items()}
        tensors["score_weights"] = self.model.score_weights
        for i, boundary in enumerate(self.boundaries):
            tensors[f"window.{i}"] = torch.from_numpy(boundary.window[: boundary.filled].copy())
        selected = without_masks(self.anomalies) if self._boundaries_started else []  # in phase 1 nothing is selected
        note |= {
            "step": self.step,
            "seconds": self.seconds,
            "boundaries_started": self._boundaries_started,
            "next": [boundary.next for boundary in self.boundaries],
            "cells": [[[cells.tolist() for cells in level] for level in group.cells] for group in selected],
        }
        checkpoint.write_state(path, tensors, note)

    def restore(self) -> bool:
        """Continue from the checkpoint if there is one; False where the run starts anew.

        The work folder is that of one run: its owner has compared the fingerprint, or has named the folder by it.
        """
        path = self.work / CHECKPOINT
        if not path.exists():
            self.log.delete()  # its steps are lost and will be logged again
            return False
        self._load(path)
        self.log.truncate(self.step)
        return True

    def _load(self, path: Path) -> dict[str, Any]:
        """Take over the state in a file; returns its note."""
        tensors, note = checkpoint.read_state(path)
        self.model.levels.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        for i, optimiser in enumerate(self.optimisers):
            state = optimiser.state_dict()
            for key, value in tensors.items():
                if key.startswith(f"adam.{i}."):
                    _, _, number, name = key.split(".")
                    state["state"].setdefault(int(number), {})[name] = value
            optimiser.load_state_dict(state)
        for i, boundary in enumerate(self.boundaries):
            window = tensors[f"window.{i}"].numpy()
            boundary.window[: len(window)] = window
            boundary.filled, boundary.next = len(window), note["next"][i]
        selected = without_masks(self.anomalies) if note["boundaries_started"] else []
        for group, cells in zip(selected, note["cells"], strict=True):
            group.cells = [[np.array(c, np.int64) for c in level] for level in cells]
        self.step, self.seconds, self._boundaries_started = note["step"], note["seconds"], note["boundaries_started"]
        if self.step > self.schedule.push_at:  # before that, the file may come from another recipe
            self.model.score_weights.copy_(tensors["score_weights"])
        self.resumed_seconds = self.seconds
        return note
