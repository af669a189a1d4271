"""The objective: every equation with numbers worked by hand, and the positions of anomalies without masks.

Gradients are where the paper wants them and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bgad.config import OBJECTIVES, LossConfig, preset_for
from bgad.features.cache import Features
from bgad.training import objective as loss
from bgad.training.objective import select_instances
from tests.training.loops import (
    DEFECT,
    ELSEWHERE,
    EVERYWHERE,
    SHORT,
    gaps,
    known,
    log_p,
    log_rows,
    make,
    run,
    same,
    state,
    watch_rows,
)

B_N, TAU = -0.30, 0.10


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradient(value: Tensor, at: Tensor) -> list[float]:
    value.backward()  # type: ignore[no-untyped-call]
    assert at.grad is not None
    return [float(g) for g in at.grad]


def test_likelihood_loss_both_kinds() -> None:
    log_p = torch.tensor([-1.0, -3.0], dtype=torch.float64)
    assert loss.likelihood_loss(log_p, "nll").item() == pytest.approx(2.0)
    expected = (math.log(1 + math.e) + math.log(1 + math.e**3)) / 2
    assert loss.likelihood_loss(log_p, "logsigmoid").item() == pytest.approx(expected)
    weighted = loss.likelihood_loss(log_p, "nll", torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert weighted.item() == pytest.approx(3.5)


def test_semi_pull_by_hand() -> None:
    """Inside b_n nothing happens; outside, |log p - b_n|, as a mean over those that violate."""
    log_p = leaf(-0.10, -0.30, -0.40, -0.70)
    value = loss.semi_pull(log_p, B_N)
    assert value.item() == pytest.approx((0.10 + 0.40) / 2)
    assert gradient(value, log_p) == pytest.approx([0.0, 0.0, -0.5, -0.5])  # descent raises the likelihood


def test_semi_push_by_hand() -> None:
    """Beyond b_a = b_n - tau nothing happens; inside it or in the margin, |log p - b_n + tau|."""
    log_p = leaf(-0.10, -0.35, -0.40, -0.80)
    value = loss.semi_push(log_p, B_N - TAU)
    assert value.item() == pytest.approx((0.30 + 0.05) / 2)
    assert gradient(value, log_p) == pytest.approx([0.5, 0.5, 0.0, 0.0])  # descent lowers the likelihood


def test_left_alone_means_exactly_zero() -> None:
    for value, features in (
        (loss.semi_pull(a := leaf(-0.1, -0.29), B_N), a),
        (loss.semi_push(b := leaf(-0.41, -0.9), B_N - TAU), b),
        (loss.semi_pull(c := leaf(-1.5, -3.0), B_N), c),  # far below -1: left out
    ):
        assert value.item() == 0.0
        assert gradient(value, features) == [0.0, 0.0]


def test_far_features_come_back_when_not_excluded() -> None:
    log_p = leaf(-1.5, -0.4)
    value = loss.semi_pull(log_p, B_N, exclude_far=False)
    assert value.item() == pytest.approx((1.2 + 0.1) / 2)
    assert gradient(value, log_p) == pytest.approx([-0.5, -0.5])


def test_weights_multiply_but_have_no_gradient_of_their_own() -> None:
    log_p = leaf(-0.5)
    value = loss.semi_pull(log_p, B_N, weight=loss.normal_weight(log_p))
    weight = 11.7 * math.sqrt(1 - math.exp(-0.5)) * 0.5
    assert value.item() == pytest.approx(0.2 * weight)
    assert gradient(value, log_p) == pytest.approx([-weight])


def test_normal_weight_by_hand_and_continuous() -> None:
    found = loss.normal_weight(torch.tensor([0.3, -0.1, -0.2, -1.0], dtype=torch.float64)).tolist()
    assert found[:2] == [1.0, 1.0]
    assert found[2] == pytest.approx(11.7 * math.sqrt(1 - math.exp(-0.2)) * 0.2)
    assert found[2] == pytest.approx(1.0, abs=0.01)  # meets 1 at the threshold
    assert found[3] == pytest.approx(11.7 * math.sqrt(1 - math.exp(-1.0)))


def test_abnormal_weight_by_hand_continuous_and_capped() -> None:
    values = torch.tensor([-2.0, -1.0, -0.9999999, -0.5, -0.01, 0.0, 0.4], dtype=torch.float64)
    found = loss.abnormal_weight(values, cap=20.0).tolist()
    assert found[:2] == [1.0, 1.0]
    assert found[2] == pytest.approx(1.0, abs=0.01)
    assert found[3] == pytest.approx(0.53 * (1 + math.exp(-0.5)) ** 2 / 0.5)
    assert found[4:] == [20.0, 20.0, 20.0]  # the pole at 0 and what lies beyond
    assert loss.abnormal_weight(values, cap=5.0).max().item() == 5.0


def test_full_push_pull_touches_every_feature() -> None:
    normal, abnormal = leaf(-0.1, -0.5), leaf(-0.2, -0.9)
    pull, push = loss.full_pull(normal), loss.full_push(abnormal)
    assert pull.item() == pytest.approx(0.3)
    assert push.item() == pytest.approx((0.8 + 0.1) / 2)
    assert gradient(pull, normal) == pytest.approx([-0.5, -0.5])
    assert gradient(push, abnormal) == pytest.approx([0.5, 0.5])


def test_objective_two_phases_and_lambda_by_hand() -> None:
    """log p / d in, normaliser 10: normals at -1 and -5, anomalies at -2 and -9, b_n = -0.3."""
    config = LossConfig(likelihood="nll", asymmetric_weights=False, push_pull_weight=2.0, tau=0.1)
    normal = torch.tensor([-1.0, -5.0], dtype=torch.float64)
    abnormal = torch.tensor([-2.0, -9.0], dtype=torch.float64)
    first = loss.objective("semi-push-pull", config, normal, None, None)
    assert first.total.item() == pytest.approx(3.0)
    assert (first.pull.item(), first.push.item()) == (0.0, 0.0)
    second = loss.objective("semi-push-pull", config, normal, abnormal, B_N)
    assert second.pull.item() == pytest.approx(0.2)
    assert second.push.item() == pytest.approx(0.2)
    assert second.total.item() == pytest.approx(3.0 + 2.0 * (0.2 + 0.2))


def test_asymmetric_weights_enter_every_term() -> None:
    config = LossConfig(likelihood="nll", tau=0.1, asymmetric_weights=True)
    normal = torch.tensor([-1.0, -5.0], dtype=torch.float64)
    abnormal = torch.tensor([-2.0], dtype=torch.float64)
    parts = loss.objective("semi-push-pull", config, normal, abnormal, B_N)
    hard = 11.7 * math.sqrt(1 - math.exp(-0.5)) * 0.5
    reversed_ = 0.53 * (1 + math.exp(-0.2)) ** 2 / 0.2
    assert parts.likelihood.item() == pytest.approx((1.0 + 5.0 * hard) / 2)
    assert parts.pull.item() == pytest.approx(0.2 * hard)
    assert parts.push.item() == pytest.approx(0.2 * reversed_)


def test_full_push_weighs_every_feature_by_hand() -> None:
    """Normals at -0.1 (easy) and -0.5 (hard), anomalies at -0.2 and -2 (beyond the far bound: no push left)."""
    config = LossConfig(likelihood="nll", asymmetric_weights=True, push_pull_weight=3.0)
    normal, abnormal = leaf(-1.0, -5.0), leaf(-2.0, -20.0)
    parts = loss.objective("full-push-pull", config, normal, abnormal, B_N)
    hard = 11.7 * math.sqrt(1 - math.exp(-0.5)) * 0.5
    inside = 0.53 * (1 + math.exp(-0.2)) ** 2 / 0.2
    assert parts.likelihood.item() == pytest.approx((1.0 + 5.0 * hard) / 2)
    assert parts.pull.item() == pytest.approx((0.1 + 0.5 * hard) / 2)
    assert parts.push.item() == pytest.approx(0.8 * inside / 2)
    assert parts.total.item() == pytest.approx(parts.likelihood.item() + 3 * (parts.pull.item() + parts.push.item()))
    # the normaliser divides the gradient by 10; the weights have none of their own
    assert gradient(parts.push, abnormal) == pytest.approx([inside / 20, 0.0])


def test_full_push_weights_have_no_gradient_of_their_own() -> None:
    log_p = leaf(-0.5)
    assert gradient(loss.full_pull(log_p, weight=loss.normal_weight(log_p)), log_p) == pytest.approx(
        [-11.7 * math.sqrt(1 - math.exp(-0.5)) * 0.5]
    )


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_the_objective_is_one_switch(kind: str) -> None:
    config = LossConfig(asymmetric_weights=False)
    normal, abnormal = leaf(-1.0, -5.0), leaf(-2.0, -9.5)
    parts = loss.objective(kind, config, normal, abnormal, B_N)
    parts.total.backward()  # type: ignore[no-untyped-call]
    pushed = [] if abnormal.grad is None else [float(g) > 0 for g in abnormal.grad]
    expected = {"likelihood": [], "semi-pull": [], "full-push-pull": [True, True]}
    assert pushed == expected.get(kind, [True, False])  # semi-push-pull, with the likelihood or without it
    assert (parts.likelihood.item() == 0) == (kind == "boundary-only")
    assert (parts.pull.item() > 0) == (kind != "likelihood")
    assert (parts.push.item() > 0) == (kind not in ("likelihood", "semi-pull"))


def test_no_anomalies_no_push() -> None:
    normal = leaf(-1.0, -5.0)
    for kind in OBJECTIVES:
        assert loss.objective(kind, LossConfig(), normal, None, B_N).push.item() == 0.0


def test_without_a_mask_the_least_likely_positions_are_taken(tmp_path: Path) -> None:
    group = known(EVERYWHERE, marked=False, centre=4.0)
    group.marked[2] = True
    for level, cells in zip(group.cells, ELSEWHERE, strict=True):
        level[2] = np.array(cells)
    made = make(tmp_path, [group], loss={"instance_share": 0.125})
    select_instances(made.anomalies, made.likelihoods, made.instance_share)
    for i in range(2):
        found = log_p(made.model, group.features.levels[i], i)
        for image in range(6):
            if image == 2:
                assert group.cells[i][image].tolist() == ELSEWHERE[i]  # has a mask: left as it is
            else:
                count = 2 if i == 0 else 1  # an eighth of 16; of 4, at least one
                assert sorted(group.cells[i][image]) == sorted(np.argsort(found[image])[:count])
                assert sorted(group.cells[i][image]) == DEFECT[i]  # the cluster is far away, so it is found


def test_only_those_positions_are_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = known(EVERYWHERE, marked=False, centre=4.0)
    made = make(tmp_path, [group], train=SHORT)
    rows = made._rows
    used: dict[int, set[int]] = {0: set(), 1: set()}

    def watched(source: Features, level: int, image: Any, position: Any) -> Tensor:
        if source is group.features:
            used[level] |= set(position.tolist())
        return rows(source, level, image, position)

    monkeypatch.setattr(made, "_rows", watched)
    made.run_step(made.schedule.push_at)
    assert used == {0: {5, 6}, 1: {3}}


def test_bad_images_without_masks_teach_too(tmp_path: Path) -> None:
    marked_by_hand = make(tmp_path / "plain", [known(EVERYWHERE, centre=1.5)], method="nfad-plus")
    without = make(tmp_path / "without", [known(EVERYWHERE, marked=False, centre=1.5)])
    for made in (marked_by_hand, without):
        made.work.mkdir()
        run(made)
    for level in range(2):
        assert gaps(without, 1.5)[level] > gaps(marked_by_hand, 1.5)[level] + 0.7


def test_without_a_share_unmarked_anomalies_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phase 2 then runs without a push, and makes the model that it makes of normals alone."""
    trained = {}
    unmarked = known(EVERYWHERE, marked=False)
    for name, groups, method in (
        ("unmarked", [unmarked], "bgad-plus"),
        ("none", [], "bgad-plus"),
        ("wo", [], "bgad-wo"),
    ):
        (tmp_path / name).mkdir()
        made = make(tmp_path / name, groups, method=method, loss={"instance_share": 0.0}, train=SHORT)
        taken = watch_rows(made, monkeypatch)
        run(made)
        assert {id(source) for source, *_ in taken} == {id(made.data.normals)}
        trained[name] = state(made)
        logged = log_rows(made.work)
        assert {float(row["push"]) for row in logged} == {0.0}
        assert all(math.isfinite(float(row["boundary0"])) for row in logged[SHORT["steps"] :])
        assert max(float(row["pull"]) for row in logged[SHORT["steps"] :]) > 0
    assert same(trained["unmarked"], trained["none"])
    assert same(trained["unmarked"], trained["wo"])


@pytest.mark.parametrize("method", ["bgad", "bgad-full-push"])
@pytest.mark.parametrize(("share", "counts"), [(0.1, [2, 1]), (0.25, [4, 1])])
def test_the_share_of_the_recipe_is_pushed_by_every_method(
    tmp_path: Path, method: str, share: float, counts: list[int]
) -> None:
    """Of 4 positions, at least one; the paper's presets take a tenth."""
    assert preset_for(method, None).loss.instance_share == preset_for(method, "paper").loss.instance_share == 0.1
    group = known(EVERYWHERE, marked=False, centre=4.0)
    made = make(tmp_path, [group], method=method, loss={"instance_share": share})
    row = made.run_step(made.schedule.push_at)
    assert row["push"] > 0 or method == "bgad"  # which may leave those beyond the margin alone
    assert [[len(cells) for cells in level] for level in group.cells] == [[count] * 6 for count in counts]


def test_of_a_mix_only_the_marked_are_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = known(EVERYWHERE, marked=False)
    own = {1: [[5, 6], [3]], 4: [[9], [0, 2]]}  # image -> positions of each level
    for image, places in own.items():
        group.marked[image] = True
        for level, place in zip(group.cells, places, strict=True):
            level[image] = np.array(place)
    for share, images in ((0.0, {1, 4}), (0.5, set(range(6)))):
        made = make(tmp_path, [group], loss={"instance_share": share})
        taken = watch_rows(made, monkeypatch)
        made.run_step(made.schedule.push_at)
        for i in range(2):
            ((image_index, position),) = [
                (source.index[chosen], at)
                for source, level_index, chosen, at in taken
                if level_index == i and source is not made.data.normals
            ]
            used = set(zip(image_index.tolist(), position.tolist(), strict=True))
            assert {image for image, _ in used} == images
            marked = {(image, place) for image, place in used if image in own}
            assert marked == {(image, place) for image, places in own.items() for place in places[i]}


def test_the_marked_alone() -> None:
    group = replace(known(DEFECT), pseudo=True, marked=[False, True, False, True, True, False])
    (chosen,) = group.only_marked()
    assert chosen.pseudo
    assert chosen.marked == [True] * 3
    assert [len(level) for level in chosen.cells] == [3, 3]
    every = np.arange(3)
    assert np.array_equal(chosen.features.rows(1, every), group.features.rows(1, np.array([1, 3, 4])))
    assert known(DEFECT, marked=False).only_marked() == []
