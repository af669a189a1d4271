"""The training of bgad-distance: which normals are stored, what moves the projection, and what cannot be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bgad import TrainOptions, train
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.config import Config, FlowConfig, override, preset_for
from bgad.errors import ConfigError, DataError
from bgad.features.cache import Features
from bgad.model.scoring import LevelModel
from bgad.training.fit_bank import sample_rows, spread_out
from bgad.training.loop import LoopData, TrainingLoop
from bgad.training.objective import NORMALISER
from bgad.training.training_set import TrainingSet, partition_normals
from bgad.training.update import NewImage, update
from tests.conftest import SIZE, distance_config
from tests.training.loops import DEFECT, EVERYWHERE, Stub, interrupted, known, log_rows, run, same, state, store


def recipe(*changes: str) -> Config:
    own = ["backbone.strides=[4, 8]", "train.positions_per_image=[8, 4]", "backbone.size=32", "distance.bank_size=256"]
    return override(preset_for("bgad-distance", None), [*own, "train.push_steps=60", "train.push_lr=0.02", *changes])


def make(work: Path, anomalies: list[Any], *changes: str) -> TrainingLoop:
    stub: Any = Stub()
    data = LoopData(store(30, seed=1), anomalies, bank=store(30, seed=5))
    return TrainingLoop(LevelModel(recipe(*changes), stub), data, work, torch.device("cpu"))


def value(loop: TrainingLoop, level: int, features: Features, positions: list[int]) -> float:
    return float(loop.likelihoods.of_images(level, features)[:, positions].mean())


# --- which normals are stored


def numbers(features: Features | None) -> set[int]:
    assert features is not None
    return set(features.index.tolist())


@pytest.mark.parametrize("validation", [[], [3, 10]])
def test_no_normal_is_compared_with_its_own_image(validation: list[int]) -> None:
    """Neither in training, nor for the constants; the tiles of an image stay together."""
    images = np.repeat(np.arange(8), 3)  # 8 images of 3 tiles
    training_set = TrainingSet(store(24, seed=1), [], lambda model, samples: iter(()), image_numbers=images)
    part = partition_normals(training_set, np.array(validation, np.int64), with_bank=True)
    stored, trained = numbers(part.bank), numbers(part.flow_normals)
    groups = [{int(images[i]) for i in group} for group in (stored, trained, part.reference_index, validation)]
    assert not groups[0] & groups[1]
    assert not groups[0] & groups[2]
    assert not (groups[0] | groups[1]) & groups[3]
    assert len(stored) + len(trained) + 3 * len(validation) == 24
    assert len(groups[0]) - len(groups[1]) in (0, 1)  # every second image
    plain = partition_normals(training_set, np.array(validation, np.int64))
    assert (plain.bank, numbers(plain.flow_normals)) == (None, stored | trained)


def test_one_image_is_too_few_to_store_and_compare() -> None:
    training_set = TrainingSet(store(3, seed=1), [], lambda model, samples: iter(()), image_numbers=np.zeros(3, int))
    with pytest.raises(DataError, match="at least 2 training images"):
        partition_normals(training_set, np.arange(0), with_bank=True)


def test_the_bank_is_drawn_from_its_images_and_positions() -> None:
    features, positions = store(5, seed=1), np.array([2, 7, 11])
    possible = features.levels[0][:, positions].reshape(-1, 6).astype(np.float32)
    few, many = (sample_rows(features, 0, positions, count, np.random.default_rng(4)) for count in (9, 40))
    for rows, count in ((few, 9), (many, 15)):
        assert (rows[:, None] == possible[None]).all(-1).any(1).all()
        assert len(np.unique(rows, axis=0)) == len(rows) == count  # none twice
    np.testing.assert_array_equal(few, sample_rows(features, 0, positions, 9, np.random.default_rng(4)))


def test_the_bank_covers_rare_features() -> None:
    """Each choice is the feature least similar to those before; of too few, some repeat."""
    rng = np.random.default_rng(0)
    angles = np.concatenate([rng.normal(0, 0.05, 95), [2.0, 2.1, 3.0, -1.5, -2.0]])  # 95 frequent ones, 5 rare ones
    unit = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], 1))
    chosen = spread_out(unit, 6).tolist()
    for k in range(1, 6):
        nearest = (unit @ unit[chosen[:k]].T).amax(1)
        assert nearest[chosen[k]] == nearest.min()
    assert {i for i in chosen if i >= 95} == {95, 97, 98, 99} or {i for i in chosen if i >= 95} == {96, 97, 98, 99}
    assert sorted(spread_out(unit[:3], 7).tolist()) == [0, 0, 0, 1, 1, 2, 2]


def test_the_loop_stores_normals_that_it_does_not_train_on(tmp_path: Path) -> None:
    loop = make(tmp_path, [known(DEFECT)], "train.push_steps=1")
    run(loop)
    assert loop.data.bank is not None
    for i, level in enumerate(loop.levels):
        bank = level.bank.numpy()  # type: ignore[operator]
        possible = loop.data.bank.levels[i].reshape(-1, bank.shape[1]).astype(np.float32)
        assert (bank[:, None] == possible[None]).all(-1).any(1).all()


# --- what moves the projection


def test_known_anomalies_leave_the_boundary(tmp_path: Path) -> None:
    """Also those that were not seen; the likelihood has no part in the loss."""
    unseen_normals, unseen_anomalies = store(20, seed=8), store(20, seed=9, centre=1.0)
    tmp_path.joinpath("before").mkdir()
    before = make(tmp_path / "before", [], "train.push_steps=0")
    after = make(tmp_path, [known(DEFECT)])
    run(before)
    run(after)
    for i, cells in enumerate(DEFECT):
        gaps = [
            value(loop, i, unseen_normals, EVERYWHERE[i]) - value(loop, i, unseen_anomalies, cells)
            for loop in (before, after)
        ]
        assert gaps[1] > 2 * gaps[0]
        assert gaps[1] > 0.5
    rows = log_rows(tmp_path)
    assert len(rows) == 60
    assert {float(row["likelihood"]) for row in rows} == {0.0}
    assert float(rows[-1]["push"]) < float(rows[0]["push"])
    b_n = after.likelihoods.constants(unseen_normals)[0].boundary / NORMALISER
    assert float(rows[-1]["boundary0"]) == pytest.approx(b_n, abs=0.1)


@pytest.mark.parametrize(
    ("with_anomalies", "change", "steps"),
    [(False, "loss.tau=0.1", 0), (True, "train.push_steps=0", 0), (True, "loss.push_pull_weight=0.0", 60)],
)
def test_plain_nearest_neighbours(tmp_path: Path, with_anomalies: bool, change: str, steps: int) -> None:
    """Without anomalies, without steps or without a weight the projection stays as it was made."""
    loop = make(tmp_path, [known(DEFECT)] if with_anomalies else [], change)
    untrained = {key: tensor for key, tensor in state(loop).items() if key.endswith("projection")}
    run(loop)
    assert len(log_rows(tmp_path)) == steps
    for key, tensor in untrained.items():
        assert torch.equal(state(loop)[key], tensor)


def test_anomalies_without_masks_push_their_least_similar_positions(tmp_path: Path) -> None:
    group = known(EVERYWHERE, marked=False, centre=4.0)
    loop = make(tmp_path, [group], "loss.instance_share=0.125", "train.push_steps=1")
    for _ in loop.phase(1):
        raise AssertionError("there is no phase 1")
    values = [loop.likelihoods.of_images(i, group.features) for i in range(2)]
    run(loop)
    for level_values, cells, count in zip(values, group.cells, (2, 1), strict=True):
        for image_values, chosen in zip(level_values, cells, strict=True):
            assert sorted(chosen) == sorted(np.argsort(image_values)[:count])
    assert float(log_rows(tmp_path)[0]["push"]) > 0


@pytest.mark.parametrize("at", [0, 7])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path, at: int) -> None:
    works = [tmp_path / name for name in ("complete", "stopped")]
    for work in works:
        work.mkdir()
    complete, stopped = (make(work, [known(DEFECT)], "train.push_steps=20") for work in works)
    run(complete)
    interrupted(stopped, at)
    resumed = make(works[1], [known(DEFECT)], "train.push_steps=20")
    assert resumed.restore()
    run(resumed)
    assert same(state(complete), state(resumed))
    assert log_rows(works[0]) == log_rows(works[1])


def test_features_are_standardised_whatever_the_flow_says(tmp_path: Path) -> None:
    loop = make(tmp_path, [known(DEFECT)], "train.push_steps=1")
    other = replace(loop.config, flow=FlowConfig(standardise=False))
    loop.model.config = other
    fresh = TrainingLoop(loop.model, loop.data, tmp_path, torch.device("cpu"))
    run(fresh)
    for i, level in enumerate(fresh.levels):
        mean, std = fresh.data.normals.moments(i, fresh.trained_positions[i])
        np.testing.assert_array_equal(level.mean.numpy(), mean)
        np.testing.assert_array_equal(level.std.numpy(), std)


# --- what cannot be done


@pytest.fixture(scope="module")
def trained(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("distance") / "plate.bgad"
    train(data_set, out, config=distance_config(), options=TrainOptions(known=4, device="cpu", export=False))
    return out


def test_the_card_names_method_and_unit(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(trained)]) == 0
    text = capsys.readouterr().out
    assert "bgad-distance on lite0" in text
    assert "(scaled similarity)" in text
    assert "log p" not in text


def test_the_report_names_the_value_of_a_level(trained: Path, data_set: Path, tmp_path: Path) -> None:
    assert main(["evaluate", str(trained), str(data_set), "--out", str(tmp_path), "--device", "cpu"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "Similarity by level" in page
    assert "og-likelihood" not in page


def test_it_cannot_be_updated(trained: Path, data_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["update", str(trained), "--good", str(data_set / "test/good")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bgad: error: a model of bgad-distance cannot be updated, as it has no flows")


def test_a_flow_model_does_not_start_one(model: Path, data_set: Path, tmp_path: Path) -> None:
    new = [NewImage(data_set / "test/blot/000.png", 1)]
    with pytest.raises(ConfigError, match="a model of bgad-distance cannot be updated"):
        update(model, new, tmp_path / "new.bgad", config=distance_config())
    assert not (tmp_path / "new.bgad").exists()


def test_figures_of_flows_need_flows(data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures"
    assert main(["figures", str(data_set), "--methods", "bgad-distance", "--out", str(out)]) == 2
    assert not out.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bgad: error: bgad-distance has no flows, which these figures show: choose from bgad-plus, ")
    assert not line.endswith("bgad-distance")
    assert main(["figures", str(data_set), "--methods", "bgad,bgda"]) == 2
    assert "unknown method 'bgda': choose from bgad-plus, " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["region", "tiles"])
def test_a_region_of_interest_and_tiles(data_set: Path, tmp_path: Path, kind: str) -> None:
    """The map outside of the region has its lowest value; a tiled image has a map of its own size."""
    config, roi = distance_config(train={"push_steps": 2}), None
    if kind == "tiles":
        config = override(config, ["tile.size=32"])
    else:
        inside = np.zeros((SIZE, SIZE), np.uint8)
        inside[:, :40] = 255
        roi = tmp_path / "left.png"
        Image.fromarray(inside).save(roi)
    options = TrainOptions(known=4, device="cpu", export=False, roi=roi)
    scores = train(data_set, tmp_path / "plate.bgad", config=config, options=options).score(
        data_set / "test/blot/000.png"
    )
    assert scores.map.shape == (SIZE, SIZE)
    assert np.isfinite(scores.map).all()
    assert np.ptp(scores.map[:, :40]) > 0
    assert (np.ptp(scores.map[:, 42:]) == 0) == (kind == "region")
    assert scores.score == pytest.approx(scores.parts["map"])


def test_without_known_anomalies_it_trains_in_no_steps(data_set: Path, tmp_path: Path) -> None:
    out = tmp_path / "plate.bgad"
    config = override(distance_config(), ["pseudo.method=none"])
    train(data_set, out, config=config, options=TrainOptions(known=0, device="cpu"))
    card = model_folder.read(out)
    assert card.training.steps == 0
    assert card.exports["onnx"].parity.score <= 1e-4
