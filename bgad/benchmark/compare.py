"""Compares methods on one data set by cross-validation over its known anomalies, and says which one to use."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bgad.benchmark.grid import Cost
from bgad.benchmark.paper_tables import IMAGE, PIXEL, PRO, Matrix, PaperTable, methods
from bgad.benchmark.plan import Outcome
from bgad.benchmark.uncertainty import CONFIDENCE, HeldOut, auroc_interval, difference_interval, fold_auroc
from bgad.data.cross_validation import CROSS_VALIDATION, FOLDS, NOT_DRAWN
from bgad.data.layouts import Dataset
from bgad.errors import DataError, OutputError
from bgad.io.files import write_atomic

DEFAULT_METHODS = ("bgad-plus", "nfad-plus", "patchcore", "padim", "devnet-frozen")
RESULTS = "results.json"
SUBJECT = "subject.json"  # which data the folder of a comparison is about
NEAR = 0.01  # image AUROC that a cheaper method may lie behind the leader and still be the advice
SIMILAR_COST = 1.1  # costs within this factor of the lowest do not decide
FEW_ANOMALIES = 20  # held out: below this, only large differences show


@dataclass(frozen=True)
class Standing:
    """What the cross-validation tells about one method."""

    method: str
    image_auroc: float
    interval: tuple[float, float]
    behind: tuple[float, float] | None  # interval of the distance to the leader; None for the leader
    tied: bool  # it cannot be told apart from the leader, or is the leader
    cost: Cost


@dataclass(frozen=True)
class Comparison:
    """The methods with the best first, and what follows from them."""

    data: str
    folds: int
    anomalies: int  # held out, each once
    normals: int
    standings: list[Standing]
    skipped: dict[str, str]  # method -> why it is not compared
    recommended: str
    test_took_part: bool = False  # the folds hold images of the data's test set
    undrawn: int = 0  # known anomalies that took no part, as their number was limited
    single_image_classes: tuple[str, ...] = ()  # the fold that tests such a class has no image of it to train on

    @property
    def known_to_train(self) -> int | None:
        """The known anomalies that a final model should have; None: all of those that training takes by itself.

        Where the data has anomalies in its test set alone, training must leave some of them: it then takes as many as
        the models of the folds had at most.
        """
        if self.undrawn:
            return self.anomalies
        return self.anomalies - self.anomalies // self.folds if self.test_took_part else None

    @property
    def leader(self) -> Standing:
        """The method with the highest image AUROC."""
        return self.standings[0]

    def verdict(self) -> list[str]:
        """Return in words which method to use, and how sure that is."""
        leader, of_leader = self.leader, self.leader.interval
        tied = [s.method for s in self.standings if s.tied and s is not leader]
        chosen = next(s for s in self.standings if s.method == self.recommended)
        lines = [
            f"{leader.method} has the highest image AUROC: {leader.image_auroc:.3f} ({100 * CONFIDENCE:g} % interval "
            f"{of_leader[0]:.3f} to {of_leader[1]:.3f}), over {self.anomalies} held-out anomalies and {self.normals} "
            f"normals in {self.folds} folds."
        ]
        if tied:
            lines.append(f"{_listed(tied)} cannot be told apart from it on these images.")
        elif len(self.standings) > 1:
            lines.append("It is ahead of all others by more than the uncertainty.")
        why = "the best of those compared"
        if chosen is not leader:
            why = f"which costs less and lies at most {NEAR:g} behind"
        fit, image, *_ = chosen.cost.texts()
        lines.append(f"Use {chosen.method}, {why}: {image} ms per image, fitted in {fit} s.")
        if self.anomalies < FEW_ANOMALIES:
            lines.append(
                f"With {self.anomalies} held-out anomalies, only large differences show; add anomalies to separate "
                "more methods."
            )
        if single := self.single_image_classes:
            classes, pronoun = ("class", "it") if len(single) == 1 else ("classes", "them")
            lines.append(
                f"The defect {classes} {_listed(single)} ha{'s' if len(single) == 1 else 've'} one image"
                f"{'' if len(single) == 1 else ' each'}, so the fold that tests {pronoun} trains without {pronoun}."
            )
        if self.test_took_part:
            lines.append("The test images took part in this choice, so a later evaluation on them is optimistic.")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the key `comparison` of results.json."""
        return asdict(self) | {"leader": self.leader.method, "verdict": self.verdict()}


def comparison_table(dataset: Dataset, names: Sequence[str], *, folds: int = FOLDS, known: int = 0) -> PaperTable:
    """Return the table whose cells are the methods in each fold; `known` limits the anomalies, 0: all."""
    masked = any(s.mask is not None for s in dataset.samples if s.label)
    matrix = Matrix(
        {dataset.name: ()},
        CROSS_VALIDATION,
        methods(*names),
        known=(known,),
        seeds=1,
        metrics=(IMAGE, PIXEL, PRO) if masked else (IMAGE,),
        folds=folds,
    )
    return PaperTable(f"{dataset.name}, cross-validation over the known anomalies", (matrix,))


def check_folder(out: Path, data: Path) -> None:
    """Mark a folder as that of the comparison on this data; OutputError where it has other results.

    Data that has gone, such as a folder that was moved, does not count.
    """
    path = out / SUBJECT
    if (out / RESULTS).exists() and not path.exists():
        raise OutputError(f"{out / RESULTS} is not of a comparison, and would be overwritten: give another --out")
    try:
        owner = str(json.loads(path.read_bytes())["data"])
    except (OSError, ValueError, KeyError, TypeError):
        owner = ""
    if owner and owner != str(data) and Path(owner).exists():
        raise OutputError(f"{out} holds the comparison on {owner}, not on {data}: give another --out")
    write_atomic(path, json.dumps({"data": str(data)}).encode())


def compare(outcomes: Sequence[Outcome], out: Path, *, test_took_part: bool = False) -> Comparison:
    """Rank the methods that ran in every fold and scored all images; DataError where there is none."""
    by_method: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_method.setdefault(outcome.request.column.method, []).append(outcome)
    skipped = {}
    for method, of_method in by_method.items():
        if missing := [outcome for outcome in of_method if outcome.cell is None]:
            skipped[method] = f"{missing[0].request.case}: {missing[0].reason}"
    scores: dict[str, list[HeldOut]] = {}
    for method in [method for method in by_method if method not in skipped]:
        held_out = [_held_out(outcome, out) for outcome in by_method[method]]
        scores[method] = [fold for fold in held_out if fold is not None]
        if len(scores[method]) < len(held_out):
            skipped[method] = "it gives no finite score to some of the images"
            del scores[method]
    if not scores:
        raise DataError(f"no method ran in all folds; {next(iter(skipped))}, {next(iter(skipped.values()))}")
    costs = {method: Cost.of([o.cell for o in by_method[method] if o.cell]) for method in scores}
    standings = _rank(scores, costs)
    folds = scores[standings[0].method]
    return Comparison(
        data=outcomes[0].request.data,
        folds=len(folds),
        anomalies=sum(len(fold.anomalous) for fold in folds),
        normals=sum(len(fold.normal) for fold in folds),
        standings=standings,
        skipped=skipped,
        recommended=_cheapest(_interchangeable(standings)).method,
        test_took_part=test_took_part,
        undrawn=_undrawn(by_method[standings[0].method][0], out),
        single_image_classes=_single_image_classes(by_method[standings[0].method], out),
    )


def write(out: Path, comparison: Comparison) -> None:
    """Add the comparison to the results.json of the run."""
    path = out / RESULTS
    content = json.loads(path.read_bytes()) | {"comparison": comparison.to_json()}
    write_atomic(path, json.dumps(content, indent=1).encode())


def _held_out(outcome: Outcome, out: Path) -> HeldOut | None:
    """Return the scores of a cell, in the order of the images' names; None where a test image has no finite score."""
    cell = json.loads((out / outcome.file).read_bytes())
    split = json.loads((out / cell["split"]).read_bytes())
    rows = sorted(cell["images"], key=lambda row: str(row["name"]))
    tested = sorted(image["name"] for image in split["images"] if image["role"] == "test")
    if [row["name"] for row in rows] != tested or not all(math.isfinite(row["score"]) for row in rows):
        return None
    normal, anomalous = (np.array([row["score"] for row in rows if row["label"] == label]) for label in (0, 1))
    return HeldOut(normal, anomalous)


def _undrawn(outcome: Outcome, out: Path) -> int:
    """Return how many anomalies took no part in the folds because their number was limited."""
    cell = json.loads((out / outcome.file).read_bytes())
    split = json.loads((out / cell["split"]).read_bytes())
    return sum(image["why"] == NOT_DRAWN for image in split["images"])


def _single_image_classes(folds: Sequence[Outcome], out: Path) -> tuple[str, ...]:
    """Return the defect classes of which the folds hold one image."""
    cells = [json.loads((out / fold.file).read_bytes()) for fold in folds]
    sizes = Counter(row["defect"] for cell in cells for row in cell["images"] if row["label"])
    return tuple(sorted(name for name, size in sizes.items() if size == 1))


def _rank(scores: dict[str, list[HeldOut]], costs: dict[str, Cost]) -> list[Standing]:
    """Return the standings, best first; methods with the same AUROC stay in the order in which they were given."""
    auroc = {method: fold_auroc(folds) for method, folds in scores.items()}
    order = sorted(scores, key=lambda method: -auroc[method])
    standings = []
    for method in order:
        behind = None if method == order[0] else difference_interval(scores[order[0]], scores[method])
        tied = behind is None or behind[0] <= 0
        standings.append(Standing(method, auroc[method], auroc_interval(scores[method]), behind, tied, costs[method]))
    return standings


def _interchangeable(standings: Sequence[Standing]) -> list[Standing]:
    """Return the leader and those of its rivals that cannot be told apart from it and lie hardly behind.

    With few anomalies nearly everything is tied; the higher figure is then still the better guess.
    """
    best = standings[0].image_auroc
    return [s for s in standings if s.tied and best - s.image_auroc <= NEAR]


def _cheapest(standings: Sequence[Standing]) -> Standing:
    """Return the method that scores an image fastest; of those about as fast, the one that is fitted fastest.

    Of those that are also fitted about as fast, the best one is taken: the noise of a clock decides nothing.
    """
    for key in ("image_ms", "fit_seconds"):
        costs = [getattr(s.cost, key) or 0.0 for s in standings]
        standings = [s for s, cost in zip(standings, costs, strict=True) if cost <= SIMILAR_COST * min(costs)]
    return standings[0]


def _listed(names: Sequence[str]) -> str:
    """Join names for a sentence.

    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
