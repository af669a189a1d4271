"""Anomalies without masks: which of their positions are pushed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from bgad.config import preset_for
from bgad.features.cache import Features
from bgad.training.sampling import select_instances
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
