from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bgad import train
from bgad.artifact.card import IMAGE_HEAD_PART
from bgad.config import Config
from bgad.data import layouts
from bgad.data.split import make_split
from bgad.model import backbone as backbones
from bgad.model.scoring import ScoringModel, default_score_weights
from bgad.training import fit_image_head as weighing
from bgad.training import image_head_statistics as statistics
from bgad.training import score_weights
from bgad.training import training_set as material
from bgad.training.fit_image_head import Weighing
from bgad.training.loop import Trainer
from bgad.training.training_set import Material
from tests.conftest import tiny_config, write_set

CPU = torch.device("cpu")


def gathered(root: Path, config: Config, work: Path, known: int = 6) -> tuple[ScoringModel, Material]:
    split = make_split(layouts.load(root), seed=0, known=known, holdout=4)
    model = ScoringModel(config, backbones.build(config.backbone))
    return model, material.gather(model, split, 8, CPU, work, "key", 1.0)


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the 20 normals of the small sets are set aside."""
    monkeypatch.setattr(weighing, "MIN_ASIDE", 16)


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, torch.Tensor]]]:
    """The steps at which the parts of the score are weighed, and the levels as they were then."""
    seen: list[tuple[int, dict[str, torch.Tensor]]] = []
    weigh = Weighing.weigh

    def watched(self: Weighing, trainer: Trainer) -> None:
        seen.append((trainer.step, {k: v.clone() for k, v in trainer.model.levels.state_dict().items()}))
        weigh(self, trainer)

    monkeypatch.setattr(Weighing, "weigh", watched)
    return seen


def test_marked_anomalies_weigh_before_they_push(
    data_set: Path, tmp_path: Path, weighed: list[tuple[int, dict[str, torch.Tensor]]]
) -> None:
    detector = train(data_set, tmp_path / "a.bgad", config=tiny_config(), known=4, device="cpu", export=False)
    normals_only = train(
        data_set, tmp_path / "b.bgad", config=tiny_config(train={"push_steps": 0}), known=4, device="cpu", export=False
    )
    (step, levels), _ = weighed
    assert step == 30
    for key, value in normals_only.model.levels.state_dict().items():
        if not key.endswith("constants"):
            assert torch.equal(levels[key], value), key
    assert detector.card.part_weight(IMAGE_HEAD_PART) == pytest.approx(float(detector.model.mix[-1]))
    assert [level.weight for level in detector.card.levels] == pytest.approx(detector.model.mix[:-1].tolist())


def test_anomalies_that_do_not_push_weigh_at_the_end(
    tmp_path: Path, weighed: list[tuple[int, dict[str, torch.Tensor]]]
) -> None:
    bare = write_set(tmp_path / "bare", masks=False)
    train(bare, tmp_path / "a.bgad", config=tiny_config(), known=4, device="cpu", export=False)
    assert [step for step, _ in weighed] == [50]
    weighed.clear()
    config = tiny_config(train={"push_steps": 0})
    train(write_set(tmp_path / "marked"), tmp_path / "b.bgad", config=config, known=4, device="cpu", export=False)
    assert [step for step, _ in weighed] == [30]


def test_where_no_normals_can_be_set_aside_the_mix_is_the_default(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weighing, "MIN_ASIDE", 32)
    model, stuff = gathered(data_set, tiny_config(), tmp_path)
    weigh = Weighing(model, stuff)
    assert weigh.unseen is None
    assert weigh.learnt.count == weigh.sample.count == stuff.normals.count
    trainer = Trainer(model, weigh.learnt, [], work=tmp_path, device=CPU, run_key="k")
    model.score_weights.zero_()
    weigh.weigh(trainer)
    assert model.score_weights.tolist() == pytest.approx(default_score_weights(model.config))


def test_normals_are_set_aside_for_what_needs_them(data_set: Path, tmp_path: Path) -> None:
    plain: dict[str, Any] = {"backbone": {"image_head_strides": []}}
    for number, (config, aside) in enumerate(
        (
            (tiny_config(), 6),
            (tiny_config(score={"evidence_weight": 0.0}), 6),
            (tiny_config(**plain), 6),
            (tiny_config(**plain, score={"evidence_weight": 0.0}), 0),
        )
    ):
        model, stuff = gathered(data_set, config, tmp_path / str(number))
        weigh = Weighing(model, stuff)
        assert weigh.learnt.count == stuff.normals.count - aside
        assert (weigh.unseen is None) == (aside == 0)
        if weigh.unseen is not None:
            assert not set(weigh.unseen.index) & set(weigh.learnt.index)


@pytest.mark.parametrize("changes", [{"loss": {"method": "nfad"}}, {"score": {"evidence_weight": 0.0}}])
def test_without_known_anomalies_or_trust_in_them_the_mix_is_the_default(
    data_set: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = tiny_config(**changes, train={"steps": 4, "push_steps": 2}, pseudo={"count": 2})
    detector = train(data_set, tmp_path / "a.bgad", config=config, known=4, device="cpu", export=False)
    assert detector.model.score_weights.tolist() == pytest.approx(default_score_weights(config))


def test_the_fine_level_counts_more_where_only_it_sees_the_defect(data_set: Path, tmp_path: Path) -> None:
    """Known anomalies whose coarse features are those of normals leave it to the fine level."""
    config = tiny_config()
    model, stuff = gathered(data_set, config, tmp_path)
    (known, _) = stuff.anomalies
    for i in (1, 2):
        known.store.levels[i][:] = stuff.normals.levels[i][: known.store.count]
    weigh = Weighing(model, stuff)
    trainer = Trainer(model, weigh.learnt, [], unseen=weigh.unseen, work=tmp_path, device=CPU, run_key="k")
    trainer.run()
    weigh.weigh(trainer)
    shares = model.score_weights.tolist()[:-1]
    prior = default_score_weights(config)
    assert shares[0] > prior[0] + 0.1
    assert shares[2] < prior[2] - 0.02


def test_flows_of_another_model_are_weighed_by_what_they_have_not_learnt(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mix of that model counts beforehand, and alone where nothing is new."""
    model, stuff = gathered(data_set, tiny_config(), tmp_path)
    parent = [0.0, 0.25, 0.75, 0.125]
    asked: list[tuple[list[float], int]] = []
    shares = score_weights.level_shares

    def watched(prior: list[float], normals: Any, known: list[Any], cells: list[Any], **rest: Any) -> list[float]:
        asked.append((prior, len(known[0])))
        return shares(prior, normals, known, cells, **rest)

    monkeypatch.setattr(score_weights, "level_shares", watched)
    for new, voters in (([], []), ([1, 4, 5], [3])):
        model.score_weights.copy_(torch.tensor(parent))
        weigh = Weighing(model, stuff, new=np.array(new, np.int64))
        weigh.weigh(Trainer(model, weigh.learnt, [], work=tmp_path, device=CPU, run_key="k"))
        assert [number for _, number in asked] == voters
        assert (model.score_weights.tolist() == parent) == (not new)
    assert asked[0][0] == [weighing.LEAST, 0.25, 0.75]  # a level that is ruled out may come back
    assert (
        model.config.score.image_head_weight / 8
        <= float(model.score_weights[-1])
        <= model.config.score.image_head_weight * 8
    )


def test_known_anomalies_are_judged_by_directions_that_they_did_not_give(data_set: Path, tmp_path: Path) -> None:
    config = tiny_config()
    model, stuff = gathered(data_set, config, tmp_path)
    level, known = model.image_head, stuff.anomalies[0]
    assert level is not None
    sample = np.arange(5)
    found = weighing.fit_image_level(model, level, stuff.normals, known, sample)
    assert found is not None
    ours, theirs = found
    assert (ours.shape, theirs.shape) == ((5,), (6,))
    # the first of six, by hand: directions from those that are not in its fold
    rest = np.array([1, 2, 3, 4])  # 0 and 5 are one fold of five
    summaries = weighing._summaries(model, level, known.store)
    fitted = statistics.DescriptorStatistics(weighing._summaries(model, level, stuff.normals))
    direction, _ = fitted.direction(summaries[rest])
    total = float(fitted.distances(summaries[:1])[0])
    places = [float(direction.excess(summaries[:1] @ direction.vector)[0])]
    for i in (2, 3):
        cells = [known.cells[i][k] for k in rest]
        along = statistics.FeatureStatistics(stuff.normals.rows(i, np.arange(stuff.normals.count))).direction(
            known.store.rows(i, rest), cells
        )
        places.append(
            float(along.excess(statistics.direction_peaks(known.store.rows(i, np.array([0])) @ along.vector))[0])
        )
    assert max(places) > 0
    expected = total + config.score.direction_weight * sum(max(place, 0.0) for place in places)
    assert theirs[0] == pytest.approx(expected, rel=1e-3)
    # a single one says nothing of its own direction
    alone = Material(stuff.normals, [known], stuff.run)
    alone.anomalies[0] = type(known)(known.store.select([0]), [c[:1] for c in known.cells], known.marked[:1])
    found = weighing.fit_image_level(model, level, stuff.normals, alone.anomalies[0], sample)
    assert found is not None
    assert found[1].tolist() == pytest.approx([total], rel=1e-4)
    assert found[0].tolist() == pytest.approx(fitted.normal_distances[sample].tolist(), rel=1e-3)


def test_what_was_taught_has_directions_of_its_own(data_set: Path, tmp_path: Path) -> None:
    config = tiny_config()
    model, stuff = gathered(data_set, config, tmp_path)
    level, known = model.image_head, stuff.anomalies[0]
    assert level is not None
    sample, first, taught = np.arange(5), np.array([0, 1, 3, 4]), np.array([2, 5])
    found = weighing.fit_image_level(model, level, stuff.normals, known, sample, taught)
    assert found is not None
    summaries = weighing._summaries(model, level, known.store)
    fitted = statistics.DescriptorStatistics(weighing._summaries(model, level, stuff.normals))
    places = {
        i: statistics.FeatureStatistics(stuff.normals.rows(i, np.arange(stuff.normals.count)))
        for i in model.image_head_maps
    }

    def along(kinds: list[Any], k: int) -> list[float]:
        """How far beyond an anomaly lies in the farthest direction of the kinds."""
        chosen = [fitted.direction(summaries[kind])[0] for kind in kinds]
        far = [max(float(d.excess(summaries[k : k + 1] @ d.vector)[0]) for d in chosen)]
        for i in model.image_head_maps:
            of_map = [
                places[i].direction(known.store.rows(i, kind), [known.cells[i][n] for n in kind]) for kind in kinds
            ]
            rows = known.store.rows(i, np.array([k]))
            far.append(max(float(d.excess(statistics.direction_peaks(rows @ d.vector))[0]) for d in of_map))
        return far

    with torch.inference_mode():
        rows = [torch.from_numpy(known.store.rows(i, np.arange(6))) for i in model.image_head_maps]
        beyond = level(rows)[1].numpy()
    np.testing.assert_allclose(beyond, [along([first, taught], k) for k in range(6)], rtol=1e-2, atol=1e-2)
    # as if they had not been seen: 0 and 5 are one fold, so 0 is judged by 1, 3 and 4, and by 2
    for k, kinds in ((0, [first[1:], taught[:1]]), (2, [first, taught[1:]])):
        far = along(kinds, k)
        expected = float(fitted.distances(summaries[k : k + 1])[0]) + config.score.direction_weight * sum(
            max(place, 0.0) for place in far
        )
        assert found[1][k] == pytest.approx(expected, rel=1e-3)
    # where all were taught, there is one kind
    weighing.fit_image_level(model, level, stuff.normals, known, sample, np.arange(6))
    assert level.get_buffer("direction0").shape[0] == 1
