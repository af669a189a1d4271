"""The weights of the score: when they are fitted, and to what."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bgad import TrainOptions, train
from bgad.methods.checkpoint import LogRow
from bgad.model.scoring import LevelModel, default_score_weights
from bgad.training import fit_score_weights, training_set
from bgad.training.fit_image_head import fit_image_head
from bgad.training.fit_model import validation_normals
from bgad.training.fit_score_weights import MAX_HEAD_WEIGHT_FACTOR, MIN_LEVEL_PRIOR, ScoreWeightFitter
from bgad.training.loop import LoopData, TrainingLoop
from bgad.training.objective import LevelLikelihoods
from bgad.training.training_set import TrainingSet, partition_normals
from bgad.training.warm_start import WarmStart
from tests.conftest import level_model, tiny_config, write_set
from tests.training.prepared import CPU, prepared

OPTIONS = TrainOptions(known=4, device="cpu", export=False)


def fitter_of(model: LevelModel, features: TrainingSet, warm_start: WarmStart | None = None) -> ScoreWeightFitter:
    """A fitter with its partition and the scores of a fitted image head, as the training of a model makes it."""
    partition = partition_normals(features, validation_normals(model, features, warm_start))
    head, new = model.image_head, None if warm_start is None else warm_start.new_anomalies
    scores = None
    if head is not None:
        scores = fit_image_head(model, head, features.normals, features.known, partition.reference_index)
    return ScoreWeightFitter(model, features, partition, scores, new)


def loop_of(fitter: ScoreWeightFitter, work: Path) -> TrainingLoop:
    data = LoopData(fitter.partition.flow_normals, validation=fitter.partition.validation)
    return TrainingLoop(fitter.model, data, work, CPU)


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the 20 normals of the small sets are for validation."""
    monkeypatch.setattr(training_set, "MIN_TRAINING_NORMALS", 16)


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
    detector = train(data_set, tmp_path / "a.bgad", config=tiny_config(), options=OPTIONS)
    normals_only = train(data_set, tmp_path / "b.bgad", config=tiny_config(train={"push_steps": 0}), options=OPTIONS)
    (step, levels), _ = fits
    assert step == 30
    for key, value in level_model(normals_only).levels.state_dict().items():
        if not key.endswith("constants"):
            assert torch.equal(levels[key], value), key
    weights = level_model(detector).score_weights.tolist()
    assert detector.card.part_weight("image") == pytest.approx(weights[-1])
    assert [level.weight for level in detector.card.levels] == pytest.approx(weights[:-1])


def test_without_a_push_the_weights_are_fitted_at_the_end(
    tmp_path: Path, fits: list[tuple[int, dict[str, torch.Tensor]]]
) -> None:
    bare = write_set(tmp_path / "bare", masks=False)
    train(bare, tmp_path / "a.bgad", config=tiny_config(), options=OPTIONS)
    assert [step for step, _ in fits] == [50]
    fits.clear()
    config = tiny_config(train={"push_steps": 0})
    train(write_set(tmp_path / "marked"), tmp_path / "b.bgad", config=config, options=OPTIONS)
    assert [step for step, _ in fits] == [30]


def test_without_validation_normals_the_weights_keep_their_priors(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_set, "MIN_TRAINING_NORMALS", 32)
    model, features = prepared(data_set, tiny_config(), tmp_path)
    fitter = fitter_of(model, features)
    partition = fitter.partition
    assert partition.validation is None
    assert partition.flow_normals.count == partition.reference.count == features.normals.count
    model.score_weights.zero_()
    fitter.fit(loop_of(fitter, tmp_path).likelihoods)
    assert model.score_weights.tolist() == pytest.approx(default_score_weights(model.config))


def test_there_are_validation_normals_for_what_needs_them(data_set: Path, tmp_path: Path) -> None:
    plain: dict[str, Any] = {"backbone": {"image_head_strides": []}}
    for number, (config, count) in enumerate(
        (
            (tiny_config(), 6),
            (tiny_config(score={"evidence_weight": 0.0}), 6),
            (tiny_config(**plain), 6),
            (tiny_config(**plain, score={"evidence_weight": 0.0}), 0),
        )
    ):
        model, features = prepared(data_set, config, tmp_path / str(number))
        partition = fitter_of(model, features).partition
        assert partition.flow_normals.count == features.normals.count - count
        assert (partition.validation is None) == (count == 0)
        if partition.validation is not None:
            assert not set(partition.validation.index) & set(partition.flow_normals.index)


@pytest.mark.parametrize("changes", [{"method": "nfad-plus"}, {"score": {"evidence_weight": 0.0}}])
def test_without_known_anomalies_or_evidence_weight_the_weights_keep_their_priors(
    data_set: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = tiny_config(**changes, train={"steps": 4, "push_steps": 2}, pseudo={"count": 2})
    detector = train(data_set, tmp_path / "a.bgad", config=config, options=OPTIONS)
    assert level_model(detector).score_weights.tolist() == pytest.approx(default_score_weights(config))


def test_the_fine_level_counts_more_where_only_it_sees_the_defect(data_set: Path, tmp_path: Path) -> None:
    """Known anomalies whose coarse features are those of normals leave it to the fine level."""
    config = tiny_config()
    model, features = prepared(data_set, config, tmp_path)
    (known, _) = features.anomalies
    for i in (1, 2):
        known.features.levels[i][:] = features.normals.levels[i][: known.features.count]
    fitter = fitter_of(model, features)
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
    model, features = prepared(data_set, tiny_config(), tmp_path)
    parent = [0.0, 0.25, 0.75, 0.125]
    asked: list[tuple[list[float], int]] = []
    level_weights = fit_score_weights.level_weights

    def recorded(prior: list[float], normals: Any, known: list[Any], **rest: Any) -> list[float]:
        asked.append((prior, len(known[0])))
        return level_weights(prior, normals, known, **rest)

    monkeypatch.setattr(fit_score_weights, "level_weights", recorded)
    for new, voters in (([], []), ([1, 4, 5], [3])):
        model.score_weights.copy_(torch.tensor(parent))
        validation = training_set.choose_validation_normals(features.normals.count)
        warm_start = WarmStart(validation, np.array(new, np.int64), np.zeros(0, np.int64))
        fitter = fitter_of(model, features, warm_start)
        fitter.fit(loop_of(fitter, tmp_path).likelihoods)
        assert [number for _, number in asked] == voters
        assert (model.score_weights.tolist() == parent) == (not new)
    assert asked[0][0] == [MIN_LEVEL_PRIOR, 0.25, 0.75]  # a level without weight may get some again
    prior = model.config.score.image_head_weight
    assert prior / MAX_HEAD_WEIGHT_FACTOR <= float(model.score_weights[-1]) <= prior * MAX_HEAD_WEIGHT_FACTOR


Floats = npt.NDArray[np.float32]
EQUAL = [1 / 3] * 3


def maps(count: int, seed: int, lift: float = 0.0, where: slice = slice(0, 4)) -> Floats:
    values = np.random.default_rng(seed).normal(size=(count, 50)).astype(np.float32)
    values[:, where] += lift
    return values


def levels(count: int, seed: int, lifts: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> list[Floats]:
    return [maps(count, 10 * seed + i, lift) for i, lift in enumerate(lifts)]


def fitted(known: int, lifts: tuple[float, float, float], *, evidence_weight: float = 4.0) -> list[float]:
    return fit_score_weights.level_weights(
        EQUAL, levels(40, 1), levels(known, 2, lifts), top_share=0.05, evidence_weight=evidence_weight
    )


def test_above_by_hand() -> None:
    """Normals 0 and 2 have a deviation of 1, so a step is half as wide."""
    found = fit_score_weights.share_below(np.array([1.0, 2.0, 100.0]), np.array([0.0, 2.0]))
    expected = [0.5, (1 / (1 + np.exp(-4)) + 0.5) / 2, 1.0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_top_mean_by_hand() -> None:
    rows = np.array([[1.0, 5.0, 3.0, 4.0], [0.0, 0.0, 0.0, 2.0]])
    assert fit_score_weights.map_scores(rows, 0.5).tolist() == [4.5, 1.0]
    assert fit_score_weights.map_scores(rows, 0.0).tolist() == [5.0, 2.0]


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_level_that_finds_the_known_anomalies_counts_most(best: int) -> None:
    lifts = tuple(4.0 if i == best else 0.0 for i in range(3))
    assert len(lifts) == 3
    found = fitted(10, lifts)
    assert sum(found) == pytest.approx(1)
    assert min(found) > 0
    assert np.argmax(found) == best
    assert found[best] > 0.5


def test_one_anomaly_moves_less_than_ten_and_none_nothing() -> None:
    lifts = (0.0, 3.0, 0.0)
    none, one, ten = (fitted(k, lifts)[1] for k in (0, 1, 10))
    assert none == pytest.approx(1 / 3)
    assert 1 / 3 + 0.05 < one < ten - 0.05
    assert fitted(10, lifts, evidence_weight=0.0) == pytest.approx(EQUAL)


def test_without_evidence_the_prior_is_kept_exactly() -> None:
    prior = [0.2, 0.3, 0.5]
    empty = [x[:0] for x in levels(1, 2)]
    assert fit_score_weights.level_weights(
        prior, levels(20, 1), empty, top_share=0.05, evidence_weight=4.0
    ) == pytest.approx(prior)


def test_levels_that_do_equally_well_keep_the_prior() -> None:
    same = maps(40, 1)
    found = fit_score_weights.level_weights(
        [0.2, 0.3, 0.5], [same] * 3, [maps(10, 2, 2.0)] * 3, top_share=0.05, evidence_weight=4.0
    )
    assert found == pytest.approx([0.2, 0.3, 0.5], abs=1e-6)


def test_weights_by_an_independent_slow_version() -> None:
    """The posterior mean over all numbers of sixths, with a multinomial prior, by drawing them one by one."""
    prior, normals, known = [0.5, 0.5], [maps(30, 1), maps(30, 2)], [maps(3, 3, 2.0), maps(3, 4)]
    total, weights = np.zeros(2), 0.0
    for draws in itertools.product((0, 1), repeat=6):  # each sixth to one of two levels, equally likely
        share = np.bincount(draws, minlength=2) / 6
        ours = share[0] * normals[0] + share[1] * normals[1]
        theirs = share[0] * known[0] + share[1] * known[1]
        found = 0.0
        for row in theirs:
            peak, peaks = np.sort(row)[-5:].mean(), np.sort(ours, axis=1)[:, -5:].mean(axis=1)
            found += float(np.mean(1 / (1 + np.exp(-(peak - peaks) / (0.5 * peaks.std())))))
        total += share * np.exp(2.0 * found)
        weights += float(np.exp(2.0 * found))
    expected = total / weights
    assert fit_score_weights.level_weights(prior, normals, known, top_share=0.1, evidence_weight=2.0) == pytest.approx(
        expected, rel=1e-4
    )


def test_the_image_as_a_whole_counts_by_what_it_tells() -> None:
    rng = np.random.default_rng(0)
    normals = (rng.normal(size=60).astype(np.float32), rng.normal(size=60).astype(np.float32))
    noise, clear = rng.normal(size=10).astype(np.float32), rng.normal(size=10).astype(np.float32) + 3
    more = fit_score_weights.image_head_weight(0.5, normals, (noise, clear), evidence_weight=4.0)
    less = fit_score_weights.image_head_weight(0.5, normals, (clear, noise), evidence_weight=4.0)
    assert less < 0.3 < 0.5 < 1.0 < more
    one = fit_score_weights.image_head_weight(0.5, normals, (noise[:1], clear[:1]), evidence_weight=4.0)
    assert 0.5 < one < more
    none = (noise[:0], clear[:0])
    assert fit_score_weights.image_head_weight(0.5, normals, none, evidence_weight=4.0) == pytest.approx(0.5)
    assert fit_score_weights.image_head_weight(0.5, normals, (noise, clear), evidence_weight=0.0) == pytest.approx(0.5)
    assert fit_score_weights.image_head_weight(0.0, normals, (noise, clear), evidence_weight=4.0) == 0.0


def test_normals_that_are_all_alike_do_no_harm() -> None:
    flat = [np.zeros((10, 50), np.float32)] * 3
    found = fit_score_weights.level_weights(
        EQUAL, flat, levels(3, 2, (1.0, 0.0, 0.0)), top_share=0.05, evidence_weight=4.0
    )
    assert np.isfinite(found).all()
    weight = fit_score_weights.image_head_weight(
        0.5, (np.zeros(5, np.float32), np.zeros(5, np.float32)), (np.ones(2, np.float32),) * 2, evidence_weight=4.0
    )
    assert np.isfinite(weight)
