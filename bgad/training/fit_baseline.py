"""The training of a baseline on cached features: its fit, calibration and the card."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bgad.artifact.card import CalibrationCard, MapCard
from bgad.config import BASELINES
from bgad.inference.torch_engine import Detector
from bgad.methods.baselines import FITS, check_split
from bgad.methods.checkpoint import CHECKPOINT, LogRow, TrainingLog, read_note
from bgad.methods.fitting import FitData
from bgad.methods.loop import COLUMNS
from bgad.model.heads.base import HeadModel
from bgad.training.fit_model import (
    FitFacts,
    LoopSeconds,
    TrainingRun,
    build_card,
    score_parts,
    training_card,
)
from bgad.training.training_set import TrainingSet
from bgad.types import ProgressTask


class BaselineFit:
    """Fits one baseline: run through `steps`, then call `finish`. It goes on from the checkpoint in the work folder."""

    def __init__(self, run: TrainingRun, model: HeadModel, training_set: TrainingSet) -> None:
        check_split(model.config, run.training_split)
        self.run, self.model, self.training_set = run, model, training_set
        self.step = 0
        known = training_set.known
        if known is not None and BASELINES[model.config.method].needs_masks:
            known = next(iter(known.only_marked()), None)
        self.data = FitData(
            training_set.normals,
            known,
            next((group for group in training_set.anomalies if group.pseudo), None),
            model.grids,
            model.config.seed,
            run.device,
            run.work,
            run.memory_gb * 1e9,
            run.control,
        )
        self._log = TrainingLog(run.work, COLUMNS)
        checkpoint = run.work / CHECKPOINT
        self._resumed = float(read_note(checkpoint)["seconds"]) if checkpoint.exists() else 0.0
        self._seconds = self._resumed

    def steps(self) -> Iterator[LogRow]:
        """Fit the head; yields the log row of every training step, if it has any."""
        began = time.monotonic()
        for row in FITS[self.model.config.method](self.model.head, self.data):
            self.step = int(row["step"]) + 1
            yield row
        self._seconds += time.monotonic() - began

    def finish(self) -> Detector:
        """Calibrate the model and build its card; nothing is written.

        The calibration normals also give the reference values of the map: a head may have stored training normals.
        """
        run, model = self.run, self.model.eval()
        if not self._log.path.exists():
            self._log.append([])
        task = ProgressTask(run.control.progress, "calibrating", len(run.split.calibration))
        scored = []
        for result in self.training_set.score(model, run.split.calibration):
            scored.append(result)
            task.advance()
        maps = [output.map for output, _ in scored]
        inside = None if model.region is None else model.region.cpu().numpy()
        values = np.stack(maps) if inside is None else np.stack(maps)[:, inside]
        map_card = MapCard(float(values.mean()), float(np.quantile(values, 1 - model.config.loss.beta)))
        parts = score_parts((1.0, float(any(output.parts[1] for output, _ in scored)), 0.0))
        facts = FitFacts(
            (),
            map_card,
            parts,
            CalibrationCard.from_normals(
                (one.calibrating for one in scored), parts, run.false_reject_rate, run.confidence
            ),
            training_card(run, LoopSeconds(self._seconds, self._resumed), self._log.count()),
        )
        return Detector(model, build_card(run, model, facts), run.device)
