"""The weights of the score: when they are fitted, and to what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bgad import TrainOptions, train
from bgad.artifact.card import IMAGE_HEAD_PART
from bgad.model.scoring import default_score_weights
from bgad.training import score_weights, validation_normals
from bgad.training.fit_score_weights import MAX_HEAD_WEIGHT_FACTOR, MIN_LEVEL_PRIOR, ScoreWeightFitter
from bgad.training.likelihoods import LevelLikelihoods
from bgad.training.loop import FlowData, TrainingLoop
from bgad.training.training_log import LogRow
from bgad.training.warm_start import WarmStart
from tests.conftest import write_set
from tests.training.prepared import CPU, one_stride, prepared

OPTIONS = TrainOptions(known=4, device="cpu", export=False)


def loop_of(fitter: ScoreWeightFitter, work: Path) -> TrainingLoop:
    data = FlowData(fitter.partition.flow_normals, validation=fitter.partition.validation)
    return TrainingLoop(fitter.model, data, work, CPU, "k")


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the 20 normals of the small sets are for validation."""
    monkeypatch.setattr(validation_normals, "MIN_TRAINING_NORMALS", 16)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, torch.Tensor]]]:
    """The number of steps after which the weights of the score are fitted, and the levels as they were then."""
    seen: list[tuple[int, dict[str, torch.Tensor]]] = []
    fit, run_step, steps = ScoreWeightFitter.fit, TrainingLoop.run_step, [0]

    def counted(self: TrainingLoop, step: int) -> LogRow:
        steps[0] = step + 1
        return run_step(self, step)

    def recorded(self: ScoreWeightFitter, likelihoods: LevelLikelihoods) -> None:
        seen.append((steps[0], {k: v.clone() for k, v in self.model.levels.state_dict().items()}))
        fit(self, likelihoods)

    monkeypatch.setattr(TrainingLoop, "run_step", counted)
    monkeypatch.setattr(ScoreWeightFitter, "fit", recorded)
    return seen


def test_the_weights_are_fitted_before_anomalies_push(
    data_set: Path, tmp_path: Path, fits: list[tuple[int, dict[str, torch.Tensor]]]
) -> None:
    detector = train(data_set, tmp_path / "a.bgad", config=one_stride(), options=OPTIONS)
    normals_only = train(data_set, tmp_path / "b.bgad", config=one_stride(train={"push_steps": 0}), options=OPTIONS)
    (step, levels), _ = fits
    assert step == 30
    for key, value in normals_only.model.levels.state_dict().items():
        if not key.endswith("constants"):
            assert torch.equal(levels[key], value), key
    weights = detector.model.score_weights.tolist()
    assert detector.card.part_weight(IMAGE_HEAD_PART) == pytest.approx(weights[-1])
    assert [level.weight for level in detector.card.levels] == pytest.approx(weights[:-1])


def test_without_a_push_the_weights_are_fitted_at_the_end(
    tmp_path: Path, fits: list[tuple[int, dict[str, torch.Tensor]]]
) -> None:
    bare = write_set(tmp_path / "bare", masks=False)
    train(bare, tmp_path / "a.bgad", config=one_stride(), options=OPTIONS)
    assert [step for step, _ in fits] == [50]
    fits.clear()
    config = one_stride(train={"push_steps": 0})
    train(write_set(tmp_path / "marked"), tmp_path / "b.bgad", config=config, options=OPTIONS)
    assert [step for step, _ in fits] == [30]


def test_without_validation_normals_the_weights_keep_their_priors(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation_normals, "MIN_TRAINING_NORMALS", 32)
    model, training_set = prepared(data_set, one_stride(), tmp_path)
    fitter = ScoreWeightFitter(model, training_set)
    partition = fitter.partition
    assert partition.validation is None
    assert partition.flow_normals.count == partition.reference.count == training_set.normals.count
    model.score_weights.zero_()
    fitter.fit(loop_of(fitter, tmp_path).likelihoods)
    assert model.score_weights.tolist() == pytest.approx(default_score_weights(model.config))


def test_there_are_validation_normals_for_what_needs_them(data_set: Path, tmp_path: Path) -> None:
    plain: dict[str, Any] = {"backbone": {"image_head_strides": []}}
    for number, (config, count) in enumerate(
        (
            (one_stride(), 6),
            (one_stride(score={"evidence_weight": 0.0}), 6),
            (one_stride(**plain), 6),
            (one_stride(**plain, score={"evidence_weight": 0.0}), 0),
        )
    ):
        model, training_set = prepared(data_set, config, tmp_path / str(number))
        partition = ScoreWeightFitter(model, training_set).partition
        assert partition.flow_normals.count == training_set.normals.count - count
        assert (partition.validation is None) == (count == 0)
        if partition.validation is not None:
            assert not set(partition.validation.index) & set(partition.flow_normals.index)


@pytest.mark.parametrize("changes", [{"loss": {"method": "nfad"}}, {"score": {"evidence_weight": 0.0}}])
def test_without_known_anomalies_or_evidence_weight_the_weights_keep_their_priors(
    data_set: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = one_stride(**changes, train={"steps": 4, "push_steps": 2}, pseudo={"count": 2})
    detector = train(data_set, tmp_path / "a.bgad", config=config, options=OPTIONS)
    assert detector.model.score_weights.tolist() == pytest.approx(default_score_weights(config))


def test_the_fine_level_counts_more_where_only_it_sees_the_defect(data_set: Path, tmp_path: Path) -> None:
    """Known anomalies whose coarse features are those of normals leave it to the fine level."""
    config = one_stride()
    model, training_set = prepared(data_set, config, tmp_path)
    (known, _) = training_set.anomalies
    for i in (1, 2):
        known.features.levels[i][:] = training_set.normals.levels[i][: known.features.count]
    fitter = ScoreWeightFitter(model, training_set)
    loop = loop_of(fitter, tmp_path)
    for number in (1, 2):
        for _ in loop.phase(number):
            pass
    fitter.fit(loop.likelihoods)
    weights = model.score_weights.tolist()[:-1]
    prior = default_score_weights(config)
    assert weights[0] > prior[0] + 0.1
    assert weights[2] < prior[2] - 0.02


def test_an_update_fits_the_weights_to_new_anomalies_only(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of the parent are the prior, and stay as they are where nothing is new."""
    model, training_set = prepared(data_set, one_stride(), tmp_path)
    parent = [0.0, 0.25, 0.75, 0.125]
    asked: list[tuple[list[float], int]] = []
    level_weights = score_weights.level_weights

    def recorded(prior: list[float], normals: Any, known: list[Any], cells: list[Any], **rest: Any) -> list[float]:
        asked.append((prior, len(known[0])))
        return level_weights(prior, normals, known, cells, **rest)

    monkeypatch.setattr(score_weights, "level_weights", recorded)
    for new, voters in (([], []), ([1, 4, 5], [3])):
        model.score_weights.copy_(torch.tensor(parent))
        validation = validation_normals.choose_validation_normals(training_set.normals.count)
        warm_start = WarmStart(validation, np.array(new, np.int64), np.zeros(0, np.int64))
        fitter = ScoreWeightFitter(model, training_set, warm_start)
        fitter.fit(loop_of(fitter, tmp_path).likelihoods)
        assert [number for _, number in asked] == voters
        assert (model.score_weights.tolist() == parent) == (not new)
    assert asked[0][0] == [MIN_LEVEL_PRIOR, 0.25, 0.75]  # a level without weight may get some again
    prior = model.config.score.image_head_weight
    assert prior / MAX_HEAD_WEIGHT_FACTOR <= float(model.score_weights[-1]) <= prior * MAX_HEAD_WEIGHT_FACTOR
