from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bgad import train
from bgad.config import Config
from bgad.data import layouts
from bgad.data.sample_io import read
from bgad.data.split import make_split
from bgad.io import images
from bgad.model import backbone as backbones
from bgad.model.scoring import ScoringModel, default_score_weights
from bgad.training import image_head_statistics as head_statistics
from bgad.training import score_weights, validation_normals
from bgad.training.fit_image_head import fit_image_head, summarise
from bgad.training.fit_score_weights import MAX_HEAD_WEIGHT_FACTOR, MIN_LEVEL_PRIOR, ScoreWeightFitter
from bgad.training.likelihoods import LevelLikelihoods
from bgad.training.loop import FlowData, TrainingLoop
from bgad.training.training_log import LogRow
from bgad.training.training_set import CacheOptions, TrainingSet, build_training_set
from bgad.training.warm_start import WarmStart
from bgad.types import FloatArray, Sample
from tests.conftest import tiny_config, write_set

CPU = torch.device("cpu")


def prepared(root: Path, config: Config, work: Path, known: int = 6) -> tuple[ScoringModel, TrainingSet]:
    """A model with random flows, and the features of a small set."""
    split = make_split(layouts.load(root), seed=0, known=known, holdout=4)
    model = ScoringModel(config, backbones.build(config.backbone))
    size = config.backbone.size

    def read_image(sample: Sample) -> FloatArray:
        return images.fit(read(sample, 8), (size, size))

    return model, build_training_set(model, split, read_image, 8, CPU, CacheOptions(work, "key", 1.0))


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
    detector = train(data_set, tmp_path / "a.bgad", config=tiny_config(), known=4, device="cpu", export=False)
    normals_only = train(
        data_set, tmp_path / "b.bgad", config=tiny_config(train={"push_steps": 0}), known=4, device="cpu", export=False
    )
    (step, levels), _ = fits
    assert step == 30
    for key, value in normals_only.model.levels.state_dict().items():
        if not key.endswith("constants"):
            assert torch.equal(levels[key], value), key
    assert detector.card.part_weight("image_head") == pytest.approx(float(detector.model.score_weights[-1]))
    level_weights = [level.weight for level in detector.card.levels]
    assert level_weights == pytest.approx(detector.model.score_weights[:-1].tolist())


def test_without_a_push_the_weights_are_fitted_at_the_end(
    tmp_path: Path, fits: list[tuple[int, dict[str, torch.Tensor]]]
) -> None:
    bare = write_set(tmp_path / "bare", masks=False)
    train(bare, tmp_path / "a.bgad", config=tiny_config(), known=4, device="cpu", export=False)
    assert [step for step, _ in fits] == [50]
    fits.clear()
    config = tiny_config(train={"push_steps": 0})
    train(write_set(tmp_path / "marked"), tmp_path / "b.bgad", config=config, known=4, device="cpu", export=False)
    assert [step for step, _ in fits] == [30]


def test_without_validation_normals_the_weights_keep_their_priors(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation_normals, "MIN_TRAINING_NORMALS", 32)
    model, training_set = prepared(data_set, tiny_config(), tmp_path)
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
            (tiny_config(), 6),
            (tiny_config(score={"evidence_weight": 0.0}), 6),
            (tiny_config(**plain), 6),
            (tiny_config(**plain, score={"evidence_weight": 0.0}), 0),
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
    config = tiny_config(**changes, train={"steps": 4, "push_steps": 2}, pseudo={"count": 2})
    detector = train(data_set, tmp_path / "a.bgad", config=config, known=4, device="cpu", export=False)
    assert detector.model.score_weights.tolist() == pytest.approx(default_score_weights(config))


def test_the_fine_level_counts_more_where_only_it_sees_the_defect(data_set: Path, tmp_path: Path) -> None:
    """Known anomalies whose coarse features are those of normals leave it to the fine level."""
    config = tiny_config()
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
    model, training_set = prepared(data_set, tiny_config(), tmp_path)
    parent = [0.0, 0.25, 0.75, 0.125]
    asked: list[tuple[list[float], int]] = []
    level_weights = score_weights.level_weights

    def recorded(prior: list[float], normals: Any, known: list[Any], cells: list[Any], **rest: Any) -> list[float]:
        asked.append((prior, len(known[0])))
        return level_weights(prior, normals, known, cells, **rest)

    monkeypatch.setattr(score_weights, "level_weights", recorded)
    for new, voters in (([], []), ([1, 4, 5], [3])):
        model.score_weights.copy_(torch.tensor(parent))
        warm_start = WarmStart(np.zeros(0, np.int64), np.array(new, np.int64), np.zeros(0, np.int64))
        fitter = ScoreWeightFitter(model, training_set, warm_start)
        fitter.fit(loop_of(fitter, tmp_path).likelihoods)
        assert [number for _, number in asked] == voters
        assert (model.score_weights.tolist() == parent) == (not new)
    assert asked[0][0] == [MIN_LEVEL_PRIOR, 0.25, 0.75]  # a level without weight may get some again
    prior = model.config.score.image_head_weight
    assert prior / MAX_HEAD_WEIGHT_FACTOR <= float(model.score_weights[-1]) <= prior * MAX_HEAD_WEIGHT_FACTOR


def test_known_anomalies_are_scored_out_of_fold(data_set: Path, tmp_path: Path) -> None:
    config = tiny_config()
    model, training_set = prepared(data_set, config, tmp_path)
    head, known = model.image_head, training_set.anomalies[0]
    assert head is not None
    reference = np.arange(5)
    scores = fit_image_head(model, head, training_set.normals, known, reference)
    assert scores is not None
    assert (scores.normals.shape, scores.known.shape) == ((5,), (6,))
    # the first of six, by hand: directions from those that are not in its fold
    rest = np.array([1, 2, 3, 4])  # 0 and 5 are one fold of five
    summaries = summarise(model, head, known.features)
    fitted = head_statistics.DescriptorStatistics(summarise(model, head, training_set.normals))
    direction, _ = fitted.direction(summaries[rest])
    total = float(fitted.distances(summaries[:1])[0])
    places = [float(direction.excess(summaries[:1] @ direction.vector)[0])]
    for i in (2, 3):
        cells = [known.cells[i][k] for k in rest]
        along = head_statistics.FeatureStatistics(
            training_set.normals.rows(i, np.arange(training_set.normals.count))
        ).direction(known.features.rows(i, rest), cells)
        places.append(
            float(
                along.excess(head_statistics.direction_peaks(known.features.rows(i, np.array([0])) @ along.vector))[0]
            )
        )
    assert max(places) > 0
    expected = total + config.score.direction_weight * sum(max(place, 0.0) for place in places)
    assert scores.known[0] == pytest.approx(expected, rel=1e-3)
    # a single one says nothing of its own direction
    alone = type(known)(known.features.select([0]), [c[:1] for c in known.cells], known.marked[:1])
    scores = fit_image_head(model, head, training_set.normals, alone, reference)
    assert scores is not None
    assert scores.known.tolist() == pytest.approx([total], rel=1e-4)
    assert scores.normals.tolist() == pytest.approx(fitted.normal_distances[reference].tolist(), rel=1e-3)


def test_taught_anomalies_have_directions_of_their_own(data_set: Path, tmp_path: Path) -> None:
    config = tiny_config()
    model, training_set = prepared(data_set, config, tmp_path)
    head, known = model.image_head, training_set.anomalies[0]
    assert head is not None
    reference, first, taught = np.arange(5), np.array([0, 1, 3, 4]), np.array([2, 5])
    scores = fit_image_head(model, head, training_set.normals, known, reference, taught)
    assert scores is not None
    summaries = summarise(model, head, known.features)
    fitted = head_statistics.DescriptorStatistics(summarise(model, head, training_set.normals))
    places = {
        i: head_statistics.FeatureStatistics(training_set.normals.rows(i, np.arange(training_set.normals.count)))
        for i in model.image_head_maps
    }

    def along(kinds: list[Any], k: int) -> list[float]:
        """How far beyond an anomaly lies in the farthest direction of the kinds."""
        chosen = [fitted.direction(summaries[kind])[0] for kind in kinds]
        far = [max(float(d.excess(summaries[k : k + 1] @ d.vector)[0]) for d in chosen)]
        for i in model.image_head_maps:
            of_map = [
                places[i].direction(known.features.rows(i, kind), [known.cells[i][n] for n in kind]) for kind in kinds
            ]
            rows = known.features.rows(i, np.array([k]))
            far.append(max(float(d.excess(head_statistics.direction_peaks(rows @ d.vector))[0]) for d in of_map))
        return far

    with torch.inference_mode():
        rows = [torch.from_numpy(known.features.rows(i, np.arange(6))) for i in model.image_head_maps]
        beyond = head(rows)[1].numpy()
    np.testing.assert_allclose(beyond, [along([first, taught], k) for k in range(6)], rtol=1e-2, atol=1e-2)
    # as if they had not been seen: 0 and 5 are one fold, so 0 is judged by 1, 3 and 4, and by 2
    for k, kinds in ((0, [first[1:], taught[:1]]), (2, [first, taught[1:]])):
        far = along(kinds, k)
        expected = float(fitted.distances(summaries[k : k + 1])[0]) + config.score.direction_weight * sum(
            max(place, 0.0) for place in far
        )
        assert scores.known[k] == pytest.approx(expected, rel=1e-3)
    # where all were taught, there is one kind
    fit_image_head(model, head, training_set.normals, known, reference, np.arange(6))
    assert head.get_buffer("direction0").shape[0] == 1
