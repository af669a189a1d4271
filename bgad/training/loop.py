"""Training: one visible loop over cached features.

Phase 1 learns the normal distribution by likelihood. Phase 2 takes the boundary from it and adds the
boundary-guided semi-push-pull. Every random draw of step s comes from a generator seeded by (seed, s), so a
run that was killed goes on from its checkpoint as if nothing had happened.
"""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bgad.config import Config
from bgad.errors import ModelError
from bgad.features.cache import Features, Index, chunks, even_pick
from bgad.model.boundary import NORMALISER, RunningBoundary, normal_boundary
from bgad.model.device import WorkerPool
from bgad.model.scoring import Level, LevelConstants, ScoringModel
from bgad.training.objective import objective
from bgad.training.schedule import Schedule
from bgad.types import FloatArray, Progress, ProgressTask

CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_SECONDS = 20.0
LOG = "train.csv"
DIVERGED = 1e6  # a loss that no sound run comes near
WHOLE_SET_IMAGES = 400  # beyond, quantiles and moments come from an even pick of that many images
LOOK_BACK = 50  # steps between two looks at the normals that no level learns
UNSEEN = 64  # positions of each that are looked at
INSTANCE_REFRESH = 20  # steps between two choices of the least likely positions of images without masks
FULL_PUSH_SHARE = 0.1  # of an anomaly without a mask, where no share is given to the method without a boundary


@dataclass
class Anomalies:
    """Known or pseudo anomalies: features, and per level and image the positions that show the defect.

    `cells[level][image]` is empty-free; `marked[image]` is False where there was no mask, and the positions
    are then the least likely ones, chosen anew while training (only where `loss.instance_share` is set).
    """

    store: Features
    cells: list[list[Index]]
    marked: list[bool]
    pseudo: bool = False  # made, not real

    def only_marked(self) -> list[Anomalies]:
        """The images with a mask; nothing where there are none."""
        at = np.flatnonzero(self.marked)
        cells = [[level[i] for i in at] for level in self.cells]
        return [Anomalies(self.store.select(at), cells, [True] * len(at), self.pseudo)] if len(at) else []


@dataclass(frozen=True)
class PhaseOne:
    """A file for the state at the end of phase 1, which runs with the same normals, recipe and seed share."""

    path: Path
    key: str

    def fits(self) -> bool:
        """True when the file is there and belongs to such a run."""
        return self.path.exists() and _note(self.path)["key"] == self.key


@dataclass
class Best:
    """The state of a level's flow at which the normals that it does not learn were most likely."""

    loss: float = math.inf
    step: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of breaking into the middle of a step."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class Trainer:
    """State of one run: model, optimiser, boundaries, step; all of it goes into a checkpoint."""

    def __init__(
        self,
        model: ScoringModel,
        normals: Features,
        anomalies: list[Anomalies],
        *,
        work: Path,
        device: torch.device,
        run_key: str,
        unseen: Features | None = None,
        inside: Sequence[Index] | None = None,
        near: Sequence[Index] | None = None,
        phase_one: PhaseOne | None = None,
        before_push: Callable[[Trainer], None] | None = None,
        watch: Callable[[Trainer, dict[str, float]], None] | None = None,
        warm: bool = False,
    ) -> None:
        """`warm`: the flows have been trained before, on features that were standardised as theirs are."""
        self.config: Config = model.config
        full_push = self.config.loss.method == "bgad-full-push"
        self.instance_share = self.config.loss.instance_share or (FULL_PUSH_SHARE if full_push else 0.0)
        self.model, self.normals, self.unseen = model, normals, unseen
        self.inside = inside  # positions of each level that are judged; None: all
        self.anomalies = anomalies if self.instance_share else [g for group in anomalies for g in group.only_marked()]
        self.work, self.device, self.run_key, self.watch = work, device, run_key, watch
        self.phase_one, self.before_push = phase_one, before_push
        self.levels: list[Level] = list(model.levels)  # type: ignore[arg-type]
        self.near = near or [np.arange(len(level.position)) for level in self.levels]  # positions that are learnt
        self.schedule = Schedule.plan(self.config.train, normals.count, len(self.near[0]))
        self.optimisers = self._fresh_optimisers()
        self.workers = WorkerPool(len(self.levels), device)
        self.boundaries = [RunningBoundary(self.config.loss.beta) for _ in self.levels]
        self.best = [Best() for _ in self.levels]
        self.resting = [False] * len(self.levels)  # learn no more before the phase ends
        self.step, self.seconds = 0, 0.0
        self.seconds_before = 0.0  # of the loop, in earlier runs that this one goes on with
        self._started = False
        self._standardise = self.config.flow.standardise and not warm

    def run(self, progress: Progress | None = None) -> None:
        """Train from where we are to the end; Ctrl-C ends the step, saves a checkpoint and then interrupts."""
        self.model.levels.train()
        if self.step == 0 and self.phase_one is not None and self.phase_one.fits():
            log = self._load(self.phase_one.path)["log"]
            (self.work / LOG).write_text(log)
        if self.step == 0 and self._standardise:
            for i, level in enumerate(self.levels):
                mean, std = self.normals.moments(i, self.near[i])
                level.mean.copy_(torch.from_numpy(mean))
                level.std.copy_(torch.from_numpy(std))
        total = self.schedule.steps
        begun, saved = time.monotonic(), time.monotonic()
        before = self.seconds
        rows: list[dict[str, float]] = []
        task = ProgressTask(progress, "training", total, done=self.step)
        with _asked_to_stop() as asked:
            while self.step < total and not asked.is_set():
                row = self._one_step(self.step)
                rows.append(row)
                self.step += 1
                self._look_back(ends=self.step in (self.schedule.push_at, total))
                skipped = self._skip()
                self.seconds = before + time.monotonic() - begun
                if self.watch is not None:
                    self.watch(self, row)
                edge = row["boundary0"]
                phase = "normals" if math.isnan(edge) else f"boundary {edge:+.3f}"
                task.advance(1 + skipped, f"loss {row['loss']:.3f}  {phase}")
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save(rows)
                    rows, saved = [], time.monotonic()
                if self.step == self.schedule.push_at and self.phase_one is not None:
                    self.save(rows)
                    rows, saved = [], time.monotonic()
                    self.phase_one.path.parent.mkdir(parents=True, exist_ok=True)
                    self._write(self.phase_one.path, {"key": self.phase_one.key, "log": (self.work / LOG).read_text()})
            self.save(rows)
        if asked.is_set():
            raise KeyboardInterrupt
        self.model.levels.eval()

    def _fresh_optimisers(self) -> list[torch.optim.Adam]:
        """At the start, and where phase 2 has a schedule of its own: Adam remembers the small gradients with which
        phase 1 ended for a thousand steps, and would take far too long steps along the larger ones of the push."""
        return [torch.optim.Adam(level.parameters(), fused=True) for level in self.levels]

    def _one_step(self, step: int) -> dict[str, float]:
        if step == self.schedule.push_at and self.config.train.push_lr:
            self.optimisers = self._fresh_optimisers()
        if step == self.schedule.push_at and not self.anomalies:
            self._look_back(ends=False)  # phase 2 may gain nothing
        if step == self.schedule.push_at and self.anomalies and self.before_push is not None:
            self.before_push(self)
        pushing = step >= self.schedule.push_at and self.config.loss.method != "nfad"
        if pushing and not self._started:
            self._start_boundaries()
        if pushing and (step - self.schedule.push_at) % INSTANCE_REFRESH == 0:
            self._choose_instances()
        lr = self.schedule.lr(step)
        rng = np.random.default_rng([self.config.seed, step])
        images = min(self.config.train.images_per_step, self.normals.count)
        chosen = rng.choice(self.normals.count, images, replace=False)
        row = {"step": float(step), "lr": lr, "loss": 0.0, "likelihood": 0.0, "pull": 0.0, "push": 0.0}
        for found in self.workers.each(lambda i: self._level_step(i, step, lr, chosen, pushing)):
            for name, value in found.items():
                row[name] = row.get(name, 0.0) + value
        if not row["loss"] < DIVERGED:  # true for nan, too
            raise ModelError(f"training diverged at step {step}: lower train.lr or set train.clip_norm")
        return row

    def _level_step(self, i: int, step: int, lr: float, chosen: Index, pushing: bool) -> dict[str, float]:
        """Forward, backward and optimiser step of one level; the levels share no weights."""
        if self.resting[i]:
            loss = self.best[i].loss
            return {"loss": loss, "likelihood": loss, "pull": 0.0, "push": 0.0, f"boundary{i}": math.nan}
        level, optimiser, train = self.levels[i], self.optimisers[i], self.config.train
        rng = np.random.default_rng([self.config.seed, step, i])
        near = self.near[i]
        at = near[np.sort(rng.choice(len(near), min(train.positions_per_image[i], len(near)), replace=False))]
        normal = level(self._rows(self.normals, i, chosen[:, None], at), torch.from_numpy(at).to(self.device))
        abnormal = self._abnormal_log_p(i, max(1, len(chosen) // 2) * len(at), rng) if pushing else None
        b_n = (
            self._boundary(i, normal if self.inside is None else normal[:, np.isin(at, self.inside[i])])
            if pushing
            else None
        )
        parts = objective(self.config.loss, normal, abnormal, b_n)
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

    def _look_back(self, *, ends: bool) -> None:
        """Every so often, see how likely the normals are that no level learns; where a phase ends, put each level back
        to where they were most likely. A phase that pushes anomalies is not judged by normals alone. A level that has
        not become better for `train.patience` steps rests until then: few normals are soon learnt by heart."""
        unseen, step, push_at = self.unseen, self.step, self.schedule.push_at
        if unseen is None or not self.config.train.restore_best or (step > push_at and self.anomalies):
            return
        if step % LOOK_BACK and step != push_at and not ends:
            return
        patience = self.config.train.patience

        def look(i: int) -> None:
            if not self.resting[i]:
                judge(i)
            best = self.best[i]
            if ends and best.weights:
                self.levels[i].flow.load_state_dict(best.weights)
                self.best[i], self.resting[i] = Best(), False
            elif patience and step - best.step >= patience:
                self.resting[i] = True

        def judge(i: int) -> None:
            level, best = self.levels[i], self.best[i]
            looked_at = np.arange(len(level.position)) if self.inside is None else self.inside[i]
            rng = np.random.default_rng([self.config.seed, i])
            at = looked_at[np.sort(rng.choice(len(looked_at), min(UNSEEN, len(looked_at)), replace=False))]
            with torch.inference_mode():
                rows = self._rows(unseen, i, np.arange(unseen.count)[:, None], at)
                log_p = level(rows, torch.from_numpy(at).to(self.device))
                loss = objective(self.config.loss, log_p, None, None).total.item()
            if loss < best.loss:
                best.loss, best.step = loss, step
                best.weights = {k: v.detach().clone() for k, v in level.flow.state_dict().items()}

        self.workers.each(look)

    def _skip(self) -> int:
        """Go to the end of the phase where no level learns any more; how many steps that saves."""
        if not all(self.resting):
            return 0
        before, push_at = self.step, self.schedule.push_at
        self.step = push_at if before < push_at else self.schedule.steps
        self._look_back(ends=True)
        return self.step - before

    def looked_at(self, i: int, log_p: FloatArray) -> FloatArray:
        """Of a level's log p / d (images, positions), the positions that are looked at."""
        return log_p if self.inside is None else log_p[:, self.inside[i]]

    def _rows(self, store: Features, level: int, image: Index, position: Index) -> Tensor:
        """Features at broadcast indices on the device; the last axis is the channels."""
        return torch.from_numpy(store.rows(level, image, position)).to(self.device)

    def _abnormal_log_p(self, i: int, count: int, rng: np.random.Generator) -> Tensor | None:
        """log p / d of `count` anomalous features, (1, count): each image alike, real ones and pseudo by share."""
        if self.config.loss.method == "bgad-wo" or not self.anomalies:
            return None
        made = round(self.config.pseudo.share * count)
        both = len({group.pseudo for group in self.anomalies}) == 2  # where there is one kind, all come from it
        rows, places = [], []
        for group in self.anomalies:
            number = count if not both else made if group.pseudo else count - made
            image = rng.integers(group.store.count, size=number)
            draw = rng.random(number)
            cells = group.cells[i]
            place = np.array([cells[k][int(u * len(cells[k]))] for k, u in zip(image, draw, strict=True)], np.int64)
            rows.append(self._rows(group.store, i, image, place))
            places.append(place)
        at = torch.from_numpy(np.concatenate(places)).to(self.device)
        return self.levels[i](torch.cat(rows)[None], at)  # type: ignore[no-any-return]

    def _boundary(self, i: int, normal: Tensor) -> float:
        """b_n of the level, normalised: from the running window over the set, or from this step alone."""
        values: FloatArray = (normal.detach().flatten() / NORMALISER).cpu().numpy()
        if self.config.loss.boundary == "batch" and len(values):
            return normal_boundary(values, self.config.loss.beta)
        self.boundaries[i].update(values)
        return self.boundaries[i].value()

    def _start_boundaries(self) -> None:
        for boundary, values in zip(self.boundaries, self.workers.each(self.whole_set), strict=True):
            boundary.start(values / NORMALISER)
        self._started = True

    def _choose_instances(self) -> None:
        """For anomalies without a mask: the least likely share of their positions, as the model sees them now."""

        def choose(i: int) -> None:
            for group in self._unmarked():
                unmarked = np.flatnonzero(~np.array(group.marked))
                for image, log_p in zip(unmarked, self.log_p(group.store, i, unmarked), strict=True):
                    at = np.arange(len(log_p)) if self.inside is None else self.inside[i]
                    count = max(1, round(self.instance_share * len(at)))
                    group.cells[i][image] = at[np.argpartition(log_p[at], count - 1)[:count]]

        self.workers.each(choose)

    def log_p(self, store: Features, i: int, chosen: Index | None = None) -> FloatArray:
        """log p / d of every position of the chosen images, or of all, (images, positions)."""
        level = self.levels[i]
        chosen = np.arange(store.count) if chosen is None else chosen
        with torch.inference_mode():
            parts = [
                level(torch.from_numpy(store.rows(i, chosen[part])).to(self.device)).cpu().numpy()
                for part in chunks(len(chosen), 2)
            ]
        return np.concatenate(parts)

    def whole_set(self, i: int, normals: Features | None = None) -> FloatArray:
        """log p / d of all normal features at a level, flat; an even pick of images where there are very many."""
        normals = self.normals if normals is None else normals
        return self.looked_at(i, self.log_p(normals, i, even_pick(normals.count, WHOLE_SET_IMAGES))).ravel()

    def constants(self) -> list[LevelConstants]:
        """What the model must remember of the normals that it does not learn, or of all where there are none."""
        return [self.constants_of(x) for x in self.workers.each(lambda i: self.whole_set(i, self.unseen))]

    def constants_of(self, log_p: FloatArray) -> LevelConstants:
        """What a level must remember of normals with these log p / d."""
        x = log_p.astype(np.float64)
        boundary = normal_boundary(x, self.config.loss.beta)
        return LevelConstants(float(x.mean()), float(max(x.std(), 1e-6)), float(x.max()), boundary)

    def steps_run(self) -> int:
        """Steps that are in the log: fewer than `step` where a phase ended early."""
        return len((self.work / LOG).read_bytes().splitlines()) - 1

    def save(self, rows: list[dict[str, float]]) -> None:
        """Append the log and replace the checkpoint, atomically."""
        log = self.work / LOG
        fresh = not log.exists()
        with log.open("a", newline="") as file:
            names = ["step", "lr", "loss", "likelihood", "pull", "push"]
            columns = [*names, *(f"boundary{i}" for i in range(len(self.levels)))]
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows({k: f"{v:.8g}" for k, v in row.items()} for row in rows)
        self._write(self.work / CHECKPOINT, {"key": self.run_key})

    def _write(self, path: Path, note: dict[str, Any]) -> None:
        """The whole state into a file, atomically."""
        tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in self.model.levels.state_dict().items()}
        for i, optimiser in enumerate(self.optimisers):
            for number, state in optimiser.state_dict()["state"].items():
                tensors |= {f"adam.{i}.{number}.{key}": torch.as_tensor(value) for key, value in state.items()}
        tensors["score_weights"] = self.model.score_weights
        for i, best in enumerate(self.best):
            tensors |= {f"best.{i}.{key}": value for key, value in best.weights.items()}
        for i, boundary in enumerate(self.boundaries):
            tensors[f"window.{i}"] = torch.from_numpy(boundary.window[: boundary.filled].copy())
        note |= {
            "step": self.step,
            "seconds": self.seconds,
            "started": self._started,
            "next": [b.next for b in self.boundaries],
            "best": [None if math.isinf(best.loss) else [best.loss, best.step] for best in self.best],
            "resting": self.resting,
            "cells": [
                [[c.tolist() for c in level] for level in group.cells]
                for group in (self._unmarked() if self._started else [])  # before phase 2 nothing has been chosen
            ],
        }
        temporary = path.with_name(f"{path.name}.new")
        content = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        with temporary.open("wb") as output:  # by hand: safetensors does not raise OSError on a full disk
            output.write(safetensors.torch.save(content, metadata={"note": json.dumps(note)}))
            output.flush()
            os.fsync(output.fileno())
        temporary.replace(path)

    def _unmarked(self) -> list[Anomalies]:
        return [group for group in self.anomalies if not all(group.marked)]

    def restore(self) -> bool:
        """Go back to the checkpoint if there is one; False when the run starts afresh."""
        path = self.work / CHECKPOINT
        if not path.exists():
            (self.work / LOG).unlink(missing_ok=True)  # its steps are lost and come again
            return False
        if _note(path)["key"] != self.run_key:
            raise ModelError(
                f"{self.work} belongs to a run with other data or settings: give the same ones, or delete it"
            )
        self._load(path)
        self._trim_log()
        return True

    def _load(self, path: Path) -> dict[str, Any]:
        """Take over the state in a file; its note, which says more."""
        note = _note(path)
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
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
        self.resting = list(note["resting"])
        for i, best in enumerate(note["best"]):
            prefix = f"best.{i}."
            weights = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            self.best[i] = Best() if best is None else Best(float(best[0]), int(best[1]), weights)
        for group, cells in zip(self._unmarked() if note["started"] else [], note["cells"], strict=True):
            group.cells = [[np.array(c, np.int64) for c in level] for level in cells]
        self.step, self.seconds, self._started = note["step"], note["seconds"], note["started"]
        if self.step > self.schedule.push_at:  # before, it is not decided; the file may come from another recipe
            self.model.score_weights.copy_(tensors["score_weights"])
        self.seconds_before = self.seconds
        return note

    def _trim_log(self) -> None:
        """Drop rows that were logged after the checkpoint was taken."""
        log = self.work / LOG
        if log.exists():
            lines = log.read_text().splitlines(keepends=True)
            kept = [line for line in lines[1:] if line.endswith("\n") and float(line.split(",")[0]) < self.step]
            log.write_text("".join(lines[:1] + kept))


def _note(path: Path) -> dict[str, Any]:
    """What a file of training state says of itself."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            note: dict[str, Any] = json.loads(file.metadata()["note"])
    except safetensors.SafetensorError as error:
        raise ModelError(f"{path} is damaged ({error}): delete {path.parent} and start again") from error
    return note
