"""The bias towards known anomalies: `python -m benchmarks.bias` (needs data sets below $BGAD_DATA).

A method that learns from anomalies of one class may find that class better and others worse. For each supervised
method, this measures the image AUROC of the known class and of the unseen classes, each against the same test normals,
and how much both gain over the method's unsupervised base.

The protocol one-class tests the unseen classes alone: the anomalies of the known class that it does not draw have no
role. They are scored here, with the test normals, by the model of each cell; the cells themselves are those of
`bgad benchmark --protocol one-class --keep-models`.

The base of a method is what remains of it without labels:

- `bgad` and `bgad-full-push`: `nfad`, the same flows without the push; `bgad-plus`: `nfad-plus`, the same recipe.
- The frozen baselines have no such variant: their loss is made of labels. Their base is PatchCore on the features that
  they join (the same backbone, input and strides). It is fitted to normals alone, so that a gain over it is what labels
  add, and a loss on unseen classes is what they take away. But it is also another way to score, so that gains of the
  same method on known and unseen classes may be compared with each other; those of two families may not.

All methods have the backbone of the default recipe. A finished cell is a file: the same command continues. Writes
bias.md and bias.csv.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import read_stored
from bgad import metrics
from bgad.benchmark.paper_tables import IMAGE, Column, Matrix, PaperTable
from bgad.benchmark.plan import Group, Outcome, plan
from bgad.benchmark.runner import BenchmarkOptions, kept_model, run
from bgad.cli import console
from bgad.config import PRESETS, Config, preset_for
from bgad.config.supervised import SupervisedConfig
from bgad.data.layouts import Dataset
from bgad.data.sample_io import read
from bgad.errors import BgadError, DataError
from bgad.inference.torch_engine import Detector
from bgad.io.files import write_atomic
from bgad.model.device import tune_allocator
from bgad.types import Sample

PROTOCOL = "one-class"
SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "screw": {"mvtec": ("screw",)},
    "elpv": {"elpv": ()},
    "aitex": {"aitex": ()},
    "magnetic-tile": {"magnetic-tile": ()},
}
OURS = {"bgad": "nfad", "bgad-full-push": "nfad", "bgad-plus": "nfad-plus"}  # method -> its base
FROZEN = tuple(f"{name}-frozen" for name in ("devnet", "dra", "flos", "saoe", "mlep", "fcdd"))
SUPERVISED = (*OURS, *FROZEN)


def recipe(method: str) -> Config:
    """Return the recipe of a method with the backbone of the default recipe."""
    config = preset_for(method, None)
    return replace(config, backbone=replace(config.backbone, name=PRESETS["default"].backbone.name)).check()


def base_of(method: str, config: Config) -> Column:
    """Return the unsupervised base of a method as a column."""
    if method in OURS:
        return Column(OURS[method], OURS[method])
    assert isinstance(config.baseline, SupervisedConfig)
    strides = [int(stride) for stride in config.baseline.strides]
    words = " and ".join(map(str, strides))
    return Column(f"patchcore of strides {words}", "patchcore", (f"baseline.strides={json.dumps(strides)}",))


@dataclass(frozen=True)
class Study:
    """The methods with their recipes and bases."""

    methods: tuple[str, ...]
    configs: Mapping[str, Config]  # of the methods and of their bases

    @property
    def bases(self) -> dict[str, Column]:
        """The base of each method."""
        return {method: base_of(method, self.configs[method]) for method in self.methods}

    def table(self, data: Mapping[str, tuple[str, ...]], known: int, seeds: int) -> PaperTable:
        """Return the cells: the bases first, because others share their flows."""
        columns = dict.fromkeys([*self.bases.values(), *(Column(method, method) for method in self.methods)])
        matrix = Matrix(dict(data), PROTOCOL, tuple(columns), (known,), seeds, (IMAGE,))
        return PaperTable("bias towards the known class", (matrix,))


def study_of(methods: Sequence[str]) -> Study:
    """Return the study of these methods by their default recipes."""
    names = dict.fromkeys([*methods, *(OURS.get(method, "patchcore") for method in methods)])
    return Study(tuple(methods), {name: recipe(name) for name in names})


def planned(table: PaperTable, root: Path | None, classes: Sequence[str]) -> list[Group]:
    """Return the cells, those of the known `classes` alone where there are some."""
    groups = plan(table.matrices, root)
    for group in groups:
        group.requests = [r for r in group.requests if not classes or r.case.known_class in classes]
        group.impossible = [o for o in group.impossible if not classes or o.request.case.known_class in classes]
    if not any(group.requests for group in groups):
        reasons = [outcome.reason for group in groups for outcome in group.impossible]
        raise DataError(reasons[0] if reasons else f"no known class {', '.join(classes)}: leave out --classes")
    return groups


# --- the known class


def rest_of(dataset: Dataset, split: Mapping[str, Any], known_class: str) -> tuple[list[Sample], list[Sample]]:
    """Return the test normals of a split, and the anomalies of the known class that are left for test.

    Those are not marked as training images by the data set, and not the content of a drawn one.
    """
    rows = {row["name"]: row for row in split["images"]}
    drawn = {row["sha256"] for row in rows.values() if row["role"] == "known"}
    normals, rest = [], []
    for sample in dataset.samples:
        row = rows.get(sample.name)
        if row is None:  # unreadable
            continue
        if row["role"] == "test" and not sample.label:
            normals.append(sample)
        if sample.defect == known_class and sample.split != "train" and row["sha256"] not in drawn:
            rest.append(sample)
    return normals, rest


def known_class_scores(outcome: Outcome, dataset: Dataset, out: Path, device: str) -> dict[str, Any]:
    """Score test normals and the rest of the known class by the model of a cell; the scores are kept in a file."""
    cell = json.loads((out / outcome.file).read_bytes())
    key = cell["key"]
    path = out / "known" / Path(outcome.file).name
    stored = read_stored(path, key)
    if stored is not None:
        return stored
    split = json.loads((out / cell["split"]).read_bytes())
    normals, rest = rest_of(dataset, split, outcome.request.case.known_class)
    detector = Detector.load(kept_model(out, outcome.request, key), device)
    bits = detector.card.input.bits
    images = [sample.path if sample.box is None else read(sample, bits) for sample in [*normals, *rest]]
    scores = [float(result.score) for result in detector.score_many(images)] if rest else []
    stored = {"key": key, "normal": scores[: len(normals)], "known": scores[len(normals) :]}
    write_atomic(path, json.dumps(stored).encode())
    return stored


# --- figures


def auroc(normal: Sequence[float], anomalous: Sequence[float]) -> float | None:
    """Return the image AUROC; None without images of either kind."""
    return metrics.auroc([*normal, *anomalous], [0] * len(normal) + [1] * len(anomalous))


def row_of(outcome: Outcome, scores: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Return the figures of one cell."""
    request = outcome.request
    rows = json.loads((out / outcome.file).read_bytes())["images"]
    normal, unseen = ([row["score"] for row in rows if row["label"] == label] for label in (0, 1))
    return {
        "data": request.data,
        "category": request.category,
        "known_class": request.case.known_class,
        "seed": request.seed,
        "column": request.column.title,
        "test_normals": len(normal),
        "known_images": len(scores["known"]),
        "unseen_images": len(unseen),
        "known_auroc": auroc(scores["normal"], scores["known"]),
        "unseen_auroc": auroc(normal, unseen),
    }


def with_gains(rows: Sequence[Mapping[str, Any]], bases: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the supervised methods with the figures of their bases and the gains over them.

    A gain is None where the known class has no images left, or the base was not measured.
    """
    keys = ("data", "category", "known_class", "seed")
    measured = {(*(row[key] for key in keys), row["column"]): row for row in rows}
    for row in rows:
        if (base := bases.get(row["column"])) is None:
            continue
        reference = measured.get((*(row[key] for key in keys), base), {})
        figures: dict[str, Any] = {"base": base}
        for part in ("known", "unseen"):
            own, other = row[f"{part}_auroc"], reference.get(f"{part}_auroc")
            figures[f"base_{part}_auroc"] = other
            figures[f"{part}_gain"] = None if own is None or other is None else own - other
        yield {("method" if key == "column" else key): value for key, value in row.items()} | figures


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return bias.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["data"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown(rows: Sequence[Mapping[str, Any]], known: int, missing: Sequence[str]) -> str:
    """Return bias.md: a table for each category, with means over known classes and seeds.

    A mean is over the cells that have all figures of the method and of its base.
    """
    lines = ["# Known and unseen classes", ""]
    lines += [
        f"Image AUROC with {known} known anomalies of one class. Known: the other anomalies of that class; unseen: all "
        "other classes; both against the same test normals. Gain: over the base, which uses no anomalies. Means over "
        "cells (a known class and a seed each).",
    ]
    for data, category in dict.fromkeys((row["data"], row["category"]) for row in rows):
        title = data if data == category else f"{data}, {category}"
        lines += ["", f"## {title}", ""]
        lines += ["| method | base | cells | known | gain | unseen | gain |", "|---|---|---|---|---|---|---|"]
        here = [row for row in rows if (row["data"], row["category"]) == (data, category)]
        for method in dict.fromkeys(row["method"] for row in here):
            lines.append(_line(method, [row for row in here if row["method"] == method]))
    if missing:
        lines += ["", "Not measured:", "", *(f"- {reason}" for reason in dict.fromkeys(missing))]
    return "\n".join(lines) + "\n"


def _line(method: str, cells: Sequence[Mapping[str, Any]]) -> str:
    complete = [cell for cell in cells if cell["known_gain"] is not None and cell["unseen_gain"] is not None]
    words = ["–"] * 4
    if complete:
        figures = (("known_auroc", ".3f"), ("known_gain", "+.3f"), ("unseen_auroc", ".3f"), ("unseen_gain", "+.3f"))
        words = [format(mean(cell[name] for cell in complete), spec) for name, spec in figures]
    return f"| `{method}` | {cells[0]['base']} | {len(complete)} | {' | '.join(words)} |"


def write(
    study: Study, outcomes: Sequence[Outcome], groups: Sequence[Group], out: Path, known: int, device: str
) -> None:
    """Score the known classes of all finished cells and write bias.md and bias.csv."""
    datasets = {(group.data, group.category): group.dataset for group in groups}
    rows = []
    for outcome in outcomes:
        dataset = datasets[outcome.request.data, outcome.request.category]
        if outcome.cell is not None and dataset is not None:
            rows.append(row_of(outcome, known_class_scores(outcome, dataset, out, device), out))
    bases = {method: column.title for method, column in study.bases.items()}
    complete = list(with_gains(rows, bases))
    missing = [f"{outcome.request.name()}: {outcome.reason}" for outcome in outcomes if outcome.cell is None]
    write_atomic(out / "bias.md", markdown(complete, known, missing).encode())
    write_atomic(out / "bias.csv", csv_text(complete).encode())


def run_study(
    study: Study,
    table: PaperTable,
    groups: list[Group],
    out: Path,
    known: int,
    **options: Any,
) -> None:
    """Run the cells that are not finished, then write the tables."""
    chosen = BenchmarkOptions(keep_models=True, **options)
    with console.progress() as progress, console.stop_on_interrupt() as stop:
        outcomes = run(table, out, configs=study.configs, options=chosen, progress=progress, stop=stop, groups=groups)
    write(study, outcomes, groups, out, known, chosen.device)


def main() -> None:
    """Run the study on the chosen data sets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bias", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", default="screw", metavar="A,B", help=f"of {', '.join(SETTINGS)} (default %(default)s)"
    )
    parser.add_argument("--classes", default="", metavar="A,B", help="known classes (default: each in turn)")
    parser.add_argument("--methods", default=",".join(SUPERVISED), metavar="A,B", help="default %(default)s")
    parser.add_argument("--known", type=int, default=10, metavar="N", help="known anomalies (default 10)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N-1 (default 1)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="folder of the data sets (default $BGAD_DATA)")
    parser.add_argument("--out", type=Path, default=Path("bgad-bias"), metavar="DIR", help="default ./bgad-bias")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--memory", type=float, default=4.0, metavar="GB", help="of cached features; beyond: on disk")
    parser.add_argument("--list", action="store_true", help="print the cells and run nothing")
    arguments = parser.parse_args()
    chosen = {name: _names(getattr(arguments, name)) for name in ("data", "methods", "classes")}
    for option, allowed in (("data", tuple(SETTINGS)), ("methods", SUPERVISED)):
        if unknown := [name for name in chosen[option] if name not in allowed]:
            parser.error(f"--{option} {unknown[0]}: choose from {', '.join(allowed)}")
    if not chosen["data"] or not chosen["methods"] or min(arguments.known, arguments.seeds) < 1:
        parser.error("give one or more data sets and methods, and --known and --seeds of 1 or more")
    study = study_of(chosen["methods"])
    data = {name: categories for key in chosen["data"] for name, categories in SETTINGS[key].items()}
    table = study.table(data, arguments.known, arguments.seeds)
    tune_allocator()
    try:
        groups = planned(table, arguments.root, chosen["classes"])
        if arguments.list:
            print(*(request.name() for group in groups for request in group.requests), sep="\n")
            return
        options = {"root": arguments.root, "device": arguments.device, "memory_gb": arguments.memory}
        run_study(study, table, groups, arguments.out, arguments.known, **options)
    except BgadError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped: the same command continues\n")
    print((arguments.out / "bias.md").read_text("utf-8"))


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    main()
