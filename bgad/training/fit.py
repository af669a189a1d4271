"""Starts the fit of a model: that of our own methods, or a baseline's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from bgad.inference.torch_engine import Detector
from bgad.methods.checkpoint import LogRow, SharedPhase
from bgad.model.heads.base import HeadModel
from bgad.model.scoring import LevelModel, ScoringModel
from bgad.training.fit_baseline import BaselineFit
from bgad.training.fit_model import ModelFit
from bgad.training.run import TrainingRun
from bgad.training.training_set import TrainingSet


class Fit(Protocol):
    """Fits one model: run through `steps`, then call `finish`."""

    @property
    def step(self) -> int: ...

    def steps(self) -> Iterator[LogRow]: ...

    def finish(self) -> Detector: ...


def new_fit(
    run: TrainingRun,
    model: ScoringModel,
    training_set: TrainingSet,
    *,
    resume: bool,
    shared_phases: Mapping[int, SharedPhase] | None = None,
) -> Fit:
    """Return the fit of a model; with `resume`, it continues from the checkpoint in the work folder."""
    if isinstance(model, HeadModel):
        return BaselineFit(run, model, training_set)
    assert isinstance(model, LevelModel)  # noqa: S101 - `new_model` builds nothing else
    fit = ModelFit(run, model, training_set, shared_phases=shared_phases)
    if resume:
        fit.resume()
    return fit
