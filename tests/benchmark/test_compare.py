from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgad.benchmark.compare import Comparison, check_folder, compare
from bgad.benchmark.maps import selected
from bgad.benchmark.paper_tables import Column
from bgad.benchmark.plan import Outcome, Request
from bgad.data.cross_validation import NOT_DRAWN
from bgad.data.protocols import Case
from bgad.errors import DataError, OutputError
from tests.data.splits import sample

NORMALS = [0.1 * i for i in range(10)]
SPREAD_CLASSES = ((1, "dent,crack,hole"), (2, "dent"))  # fold and classes of its anomalies


def _words(found: Comparison) -> str:
    return " ".join(found.verdict())


def finished(
    out: Path,
    method: str,
    fold: int,
    anomalous: list[float],
    *,
    ms: float = 10.0,
    fit: float = 5.0,
    defects: str = "dent",
    undrawn: int = 0,
) -> Outcome:
    """The outcome of a cell with these scores, and its file; `defects` are the classes of the anomalies in turn."""
    request = Request(0, "plate", "plate", "cross-validation", Case(fold=fold, folds=2), Column(method, method), 0, 0)
    rows = [{"name": f"good{i}", "label": 0, "score": score, "defect": "good"} for i, score in enumerate(NORMALS)]
    classes = defects.split(",")
    rows += [
        {"name": f"bad{i}", "label": 1, "score": score, "defect": classes[i % len(classes)]}
        for i, score in enumerate(anomalous)
    ]
    file = f"cells/{request.name()}.json"
    (out / "cells").mkdir(exist_ok=True)
    images = [{"name": row["name"], "role": "test", "why": "held out"} for row in rows]
    images += [{"name": f"more{i}", "role": "unused", "why": NOT_DRAWN} for i in range(undrawn)]
    (out / f"split{fold}.json").write_text(json.dumps({"images": images}))
    cell = {"key": "k", "images": rows[::-1] if fold == 1 else rows, "split": f"split{fold}.json"}
    (out / file).write_text(json.dumps(cell))
    cost = {"image_ms": ms, "model_mb": 12.0, "fit_mb": None}
    return Outcome(request, request.facts() | {"seconds": {"train": fit}, "cost": cost}, file=file)


def both(out: Path, method: str, anomalous: list[float], **facts: Any) -> list[Outcome]:
    return [finished(out, method, fold, anomalous, **facts) for fold in (1, 2)]


def spread(share: float, count: int = 20) -> list[float]:
    """Scores of anomalies that are above this share of the normals, with some spread."""
    return [10 * share * 0.1 - 0.05 + 0.1 * (i % 3 - 1) for i in range(count)]


def test_a_method_that_is_ahead_is_recommended_whatever_it_costs(tmp_path: Path) -> None:
    outcomes = both(tmp_path, "bgad-plus", spread(0.9), ms=90.0) + both(tmp_path, "padim", spread(0.5), ms=10.0)
    found = compare(outcomes, tmp_path)
    assert [s.method for s in found.standings] == ["bgad-plus", "padim"]
    assert [s.tied for s in found.standings] == [True, False]
    assert found.recommended == "bgad-plus"
    assert (found.anomalies, found.normals, found.folds) == (40, 20, 2)
    behind = found.standings[1].behind
    assert behind is not None
    assert 0 < behind[0] < found.standings[0].image_auroc - found.standings[1].image_auroc < behind[1]
    words = " ".join(found.verdict())
    assert "bgad-plus has the highest image AUROC" in words
    assert "It is ahead of all others by more than the uncertainty." in words
    assert "Use bgad-plus, the best of those compared: 90.0 ms per image, fitted in 5.0 s." in words


def test_of_methods_about_as_good_the_cheapest_is_recommended(tmp_path: Path) -> None:
    outcomes = both(tmp_path, "bgad-plus", spread(0.9, 41), ms=90.0, fit=60.0)
    outcomes += both(tmp_path, "patchcore", [*spread(0.9, 40), 0.75], ms=10.5, fit=4.0)
    outcomes += both(tmp_path, "padim", [*spread(0.9, 40), 0.65], ms=10.0, fit=8.0)
    outcomes += both(tmp_path, "cfa", [*spread(0.9, 40), 0.05], ms=5.0, fit=1.0)  # tied, but .02 behind
    outcomes += both(tmp_path, "nfad-plus", spread(0.4, 41), ms=1.0)
    found = compare(outcomes, tmp_path)
    assert [(s.method, s.tied) for s in found.standings] == [
        ("bgad-plus", True),
        ("patchcore", True),
        ("padim", True),
        ("cfa", True),
        ("nfad-plus", False),
    ]
    # 10.5 and 10.0 ms are about the same, so that the shorter fit decides
    assert found.recommended == "patchcore"
    words = " ".join(found.verdict())
    assert "patchcore, padim and cfa cannot be told apart from it on these images." in words
    assert "Use patchcore, which costs less and lies at most 0.01 behind: 10.5 ms per image" in words


def test_few_and_perfect_anomalies_are_not_passed_off_as_certainty(tmp_path: Path) -> None:
    found = compare(both(tmp_path, "padim", [5.0, 6.0, 7.0]), tmp_path)
    low, high = found.leader.interval
    assert found.leader.image_auroc == high == 1
    assert 0.5 < low < 0.8
    words = " ".join(found.verdict())
    assert f"1.000 (95 % interval {low:.3f} to 1.000)" in words
    assert "With 6 held-out anomalies, only large differences show" in words
    words = " ".join(compare(both(tmp_path, "padim", spread(0.8)), tmp_path).verdict())
    assert "only large differences" not in words


def test_two_anomalies_do_not_tell_methods_apart(tmp_path: Path) -> None:
    outcomes = both(tmp_path, "padim", [0.75]) + both(tmp_path, "cfa", [0.25])
    assert [s.tied for s in compare(outcomes, tmp_path).standings] == [True, True]


def test_a_class_with_one_image_is_named(tmp_path: Path) -> None:
    """The fold that tests it cannot train on it."""
    outcomes = [finished(tmp_path, "padim", fold, [0.5] * 3, defects=names) for fold, names in SPREAD_CLASSES]
    found = compare(outcomes, tmp_path)
    assert found.single_image_classes == ("crack", "hole")
    assert "The defect classes crack and hole have one image each, so the fold that tests them" in _words(found)
    outcomes[1] = finished(tmp_path, "padim", 2, [0.5] * 3, defects="dent,dent,crack")
    line = "The defect class hole has one image, so the fold that tests it trains without it."
    assert line in _words(compare(outcomes, tmp_path))
    assert "one image" not in _words(compare(both(tmp_path, "padim", [0.5] * 3), tmp_path))


@pytest.mark.parametrize(
    ("test_took_part", "undrawn", "known"),
    [(False, 0, None), (False, 4, 14), (True, 0, 7), (True, 4, 14)],
)
def test_a_final_model_has_the_anomalies_that_were_compared(
    tmp_path: Path, test_took_part: bool, undrawn: int, known: int | None
) -> None:
    """14 anomalies in 2 folds: the models of the folds had 7 each."""
    outcomes = both(tmp_path, "padim", spread(0.5, 7), undrawn=undrawn)
    found = compare(outcomes, tmp_path, test_took_part=test_took_part)
    assert (found.undrawn, found.known_to_train) == (undrawn, known)


@pytest.mark.parametrize("marked", [False, True])
def test_results_of_a_benchmark_are_not_overwritten(tmp_path: Path, marked: bool) -> None:
    (tmp_path / "results.json").write_text("{}")
    if marked:
        (tmp_path / "subject.json").write_text(json.dumps({"data": str(tmp_path)}))
        check_folder(tmp_path, tmp_path)
        return
    with pytest.raises(OutputError, match=r"results\.json is not of a comparison.*: give another --out"):
        check_folder(tmp_path, tmp_path)
    assert not (tmp_path / "subject.json").exists()


def test_a_method_that_lacks_a_fold_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    outcomes = both(tmp_path, "padim", spread(0.5)) + both(tmp_path, "dra-frozen", spread(0.9))
    outcomes[3] = Outcome(outcomes[3].request, reason="dra-frozen needs known anomalies", failed=True)
    found = compare(outcomes, tmp_path)
    assert [s.method for s in found.standings] == ["padim"]
    assert found.skipped == {"dra-frozen": "fold 2 of 2: dra-frozen needs known anomalies"}
    with pytest.raises(DataError, match="no method ran in all folds; dra-frozen, fold 2 of 2: dra-frozen needs"):
        compare(outcomes[2:], tmp_path)


def test_a_method_that_gives_no_score_to_an_image_is_not_compared(tmp_path: Path) -> None:
    outcomes = both(tmp_path, "padim", spread(0.5)) + both(tmp_path, "cfa", spread(0.9))
    path = tmp_path / outcomes[3].file
    cell = json.loads(path.read_bytes())
    for images in (cell["images"][:-1], [*cell["images"][:-1], cell["images"][-1] | {"score": float("nan")}]):
        path.write_text(json.dumps(cell | {"images": images}))
        found = compare(outcomes, tmp_path)
        assert [s.method for s in found.standings] == ["padim"]
        assert found.skipped == {"cfa": "it gives no finite score to some of the images"}
        with pytest.raises(DataError, match="no method ran in all folds; cfa, it gives no finite score"):
            compare(outcomes[2:], tmp_path)


def test_noise_of_the_clock_decides_nothing(tmp_path: Path) -> None:
    outcomes = both(tmp_path, "bgad-plus", spread(0.9, 41), ms=10.0, fit=60.0)
    outcomes += both(tmp_path, "padim", [*spread(0.9, 40), 0.75], ms=10.9, fit=59.9)
    assert compare(outcomes, tmp_path).recommended == "bgad-plus"


def test_it_says_that_test_images_took_part(tmp_path: Path) -> None:
    outcomes = both(tmp_path, "padim", spread(0.8))
    for took_part in (False, True):
        words = " ".join(compare(outcomes, tmp_path, test_took_part=took_part).verdict())
        assert ("a later evaluation on them is optimistic" in words) == took_part


def test_results_hold_what_the_terminal_says(tmp_path: Path) -> None:
    found: Comparison = compare(both(tmp_path, "padim", spread(0.8)), tmp_path)
    stored = json.loads(json.dumps(found.to_json()))
    assert stored["verdict"] == found.verdict()
    assert (stored["leader"], stored["recommended"]) == ("padim", "padim")
    assert stored["standings"][0]["cost"]["image_ms"] == 10.0
    assert np.isclose(stored["standings"][0]["image_auroc"], found.leader.image_auroc)


def test_maps_are_of_the_same_anomalies_for_every_method() -> None:
    samples = [sample(f"bad/{c}/{i}.png", 1, c) for c in "ab" for i in range(3)] + [sample("good/0.png")]
    assert [samples[i].name for i in selected(samples, 3)] == ["bad/a/0.png", "bad/b/0.png", "bad/a/1.png"]
    turned = samples[::-1]
    assert [turned[i].name for i in selected(turned, 3)] == ["bad/a/0.png", "bad/b/0.png", "bad/a/1.png"]
    assert selected(samples[-1:], 3) == []
