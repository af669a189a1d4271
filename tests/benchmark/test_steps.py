"""The ladder of recipes from the paper's methods to ours: its ends, its rungs, and its table."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import steps as script
from benchmarks.steps import RUNGS, Ladder, Rung, Setting, change, figures, flat, ladder, ladder_of, table_of
from bgad.benchmark.paper_tables import Matrix, PaperTable
from bgad.benchmark.runner import BenchmarkOptions, run
from bgad.config import PRESETS, Config, override, preset_for
from bgad.evaluation.cells import METRIC_TITLES
from bgad.training.loop import TrainingLoop
from tests.benchmark.runs import CLASSES, SIZE, category, timeless, tiny
from tests.conftest import save


def recipes(steps: Ladder) -> list[Config]:
    """The recipe of every row."""
    configs = {steps.paper.method: steps.paper, steps.ours.method: steps.ours}
    return [override(configs[column.method], list(column.changes)) for column in steps.columns]


# --- the ladder of the recipes as they are


@pytest.mark.parametrize("method", script.NAMES)
def test_the_ends_are_the_paper_and_the_default(method: str) -> None:
    steps = ladder_of(method)
    first, *_, last = recipes(steps)
    assert last == replace(PRESETS["default"], method=f"{method}-plus")
    assert first.backbone.name == PRESETS["default"].backbone.name
    assert replace(first, backbone=preset_for(method, "paper-fast").backbone) == preset_for(method, "paper-fast")


@pytest.mark.parametrize("method", script.NAMES)
def test_each_rung_changes_its_own_keys_and_all_keys_that_differ_are_on_one(method: str) -> None:
    steps = ladder_of(method)
    rows = [flat(config) for config in recipes(steps)]
    changed = [{key for key in row if row[key] != above[key]} for above, row in pairwise(rows)]
    silent = {key for rung in RUNGS if rung not in steps.rungs for key in rung.keys}  # without effect for this method
    assert [keys - silent for keys in changed] == [set(rung.keys) & set(steps.differing) for rung in steps.rungs]
    assert set().union(*changed) == set(steps.differing)


def test_a_method_without_anomalies_has_no_rungs_for_them() -> None:
    names = [[rung.name for rung in ladder_of(method).rungs] for method in ("bgad", "nfad")]
    left_out = [name for name in names[0] if name not in names[1]]
    assert left_out == [rung.name for rung in RUNGS if rung.only_with_anomalies and rung.name in names[0]]
    assert left_out


def test_rungs_that_change_nothing_are_skipped() -> None:
    ours = preset_for("bgad-plus", None)
    paper = override(ours, ["loss.tau=0.1", "score.top_share=0"])
    assert [rung.name for rung in ladder(paper, ours).rungs] == ["weights and margin", "top share"]


def test_a_key_that_no_rung_has_is_an_error() -> None:
    ours = preset_for("bgad-plus", None)
    paper = override(ours, ["loss.beta=0.5", "loss.tau=0.1"])
    with pytest.raises(ValueError, match=r"lacks keys that differ between bgad-plus and bgad-plus: loss\.beta$"):
        ladder(paper, ours)
    with pytest.raises(ValueError, match=r"no recipe has: loss\.tua$"):
        ladder(ours, ours, (Rung("x", "y", ("loss.tua",)),))
    with pytest.raises(ValueError, match=r"keys twice: loss\.tau$"):
        ladder(ours, ours, (Rung("x", "y", ("loss.tau",)), Rung("z", "y", ("loss.tau",))))


# --- figures


def cell(title: str, seed: int, value: float | None, known_class: str = "a", data: str = "aitex") -> dict[str, Any]:
    return {
        "data": data,
        "category": data,
        "protocol": "one-class",
        "known_class": known_class,
        "subset": None,
        "setting": title,
        "seed": seed,
        "metrics": {"image_auroc": value, "pro": None},
    }


def test_figures_are_means_over_all_cases_of_a_seed() -> None:
    setting = Setting({"aitex": ()}, "one-class")
    cells = [
        *(cell("x", 0, 0.5), cell("x", 0, 0.7, "b")),
        *(cell("x", 1, 0.9), cell("y", 0, 0.0), cell("y", 0, 0.5, "b")),  # seed 1 of x lacks the class b
        *(cell("x", 0, 0.1, data="elpv"), cell("z", 0, 0.9), cell("z", 0, None, "b")),
    ]
    assert figures(cells, setting, "x") == {0: {"image_auroc": pytest.approx(0.6)}}
    assert figures(cells, setting, "y") == {0: {"image_auroc": 0.25}}
    assert figures(cells, setting, "z") == {0: {}}


def test_a_change_is_over_the_seeds_that_both_have() -> None:
    ends = {seed: {"pro": value} for seed, value in enumerate((0.5, 0.9, 0.9))}
    assert change({0: {"pro": 0.6}}, ends, "pro") == pytest.approx(0.1)
    assert change(ends, {0: {"pro": 0.6}}, "pro") == pytest.approx(-0.1)
    assert change(ends, {}, "pro") is None


# --- a run


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A category with enough normals for validation normals."""
    category(tmp_path / "data/mvtec/carpet", CLASSES["carpet"], 1)
    rng = np.random.default_rng(5)
    for i in range(40):
        image = rng.integers(90, 140, (SIZE, SIZE, 3), dtype=np.uint8)
        save(tmp_path / f"data/mvtec/carpet/train/good/more{i}.png", image)
    return tmp_path / "data"


SETTINGS = {"carpet": Setting({"mvtec": ("carpet",)}, "multi-class")}
ADDED = [
    *("backbone.image_head_strides=[16]", "loss.tau=0.5", "loss.instance_share=0"),
    *("score.top_share=0.01", "score.evidence_weight=4"),
]


def test_rungs_of_the_score_are_not_trained_again(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    one_step = TrainingLoop.run_step

    def stepped(self: TrainingLoop, step: int) -> dict[str, float]:
        trained.append(step)
        return one_step(self, step)

    monkeypatch.setattr(TrainingLoop, "run_step", stepped)
    paper = tiny("bgad")
    steps = ladder(paper, override(replace(paper, method="bgad-plus"), ADDED))
    names = ["validation normals", "weights and margin", "unmasked anomalies", "top share", "level weights"]
    assert [rung.name for rung in steps.rungs] == names
    out = tmp_path / "out"

    def run_all(end_seeds: int) -> list[dict[str, str]]:
        table = table_of(steps, SETTINGS, seeds=1, end_seeds=end_seeds, known=2)
        script.run_ladder(steps, SETTINGS, out, table, root=many, device="cpu")
        return list(csv.DictReader((out / "steps.csv").read_text("utf-8").splitlines()))

    rows = run_all(end_seeds=1)
    # bgad; validation normals; then phase 2 with another margin: all anomalies have masks, and the rest is the score
    assert sorted(trained) == sorted([0, 1, 2, 0, 1, 2, 2])
    assert [row["rung"] for row in rows] == steps.titles
    assert all(row["carpet: pro"] and row["carpet: image_auroc"] for row in rows)
    assert [bool(row["carpet: pixel_auroc change"]) for row in rows] == [False] + [True] * len(names)
    titles = " / ".join(METRIC_TITLES[metric] for metric in script.METRICS)
    text = (out / "steps.md").read_text("utf-8")
    assert sum(line.startswith(("| + ", "| bgad (paper) |")) for line in text.splitlines()) == len(rows)
    assert f"carpet, multi-class: {titles} |" in text
    assert "Recipe of bgad: paper-fast, lite0 at 64 x 64, 2 + 1 steps; " in text
    assert "`loss.tau`: 0.1 → 0.5" in text

    # the last rung is the model that our recipe makes alone
    alone = PaperTable("alone", (Matrix(SETTINGS["carpet"].data, "multi-class", steps.columns[-1:], (2,), 1),))
    options = BenchmarkOptions(root=many, device="cpu")
    run(alone, tmp_path / "alone", configs={"bgad-plus": steps.ours}, options=options)
    (lonely,) = timeless(tmp_path / "alone")["cells"]
    assert lonely in timeless(out)["cells"]

    trained.clear()
    assert [row["carpet: seeds"] for row in run_all(end_seeds=2)] == ["2", *"1" * (len(names) - 1), "2"]
    assert len(trained) == 6  # finished cells are files: only the second seed of both ends is new
