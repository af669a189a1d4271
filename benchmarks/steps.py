"""From the paper to the default, step by step: `python -m benchmarks.steps` (needs data sets below $BGAD_DATA).

The first rung is the paper's method with the backbone of the default recipe; the last is the default recipe. Each rung
between them adds one group of keys of the recipe to the rung above. A finished cell is a file: the same command
continues. Rungs that change the score alone are not trained again. Writes steps.md and steps.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bgad.benchmark.grid import Stat
from bgad.benchmark.paper_tables import IMAGE, PIXEL, PRO, Column, Matrix, PaperTable
from bgad.benchmark.recipes import describe
from bgad.benchmark.runner import BenchmarkOptions, run
from bgad.cli import console
from bgad.config import METHODS, PRESETS, Config, preset_for, to_dict
from bgad.errors import BgadError
from bgad.evaluation.cells import METRIC_TITLES
from bgad.io.files import write_atomic
from bgad.model.device import tune_allocator


@dataclass(frozen=True)
class Rung:
    """One addition to the recipe; its values are those of the default."""

    name: str
    about: str
    keys: tuple[str, ...]  # keys that do not differ between both ends have no effect
    only_with_anomalies: bool = False  # no effect on a method that uses no anomalies


RUNGS = (
    Rung(
        "whole image",
        "The whole image is resized; the paper's methods crop it to its central square.",
        ("backbone.crop", "backbone.size"),
    ),
    Rung(
        "flow size",
        "Fewer coupling blocks, fewer hidden units, and stride 4 pooled to stride 8.",
        ("flow.blocks", "flow.hidden_ratio", "flow.max_hidden_ratio", "flow.clamp", "backbone.min_stride"),
    ),
    # Normals are held out where the model has an image head, so its strides belong here; its weight is still 0.
    Rung(
        "validation normals",
        "Some training normals are held out from the flows; they fix the constants of map and score.",
        ("backbone.image_head_strides",),
    ),
    Rung(
        "weights and margin",
        "No asymmetric weights, and a wider margin between the normal and the abnormal boundary.",
        ("loss.asymmetric_weights", "loss.tau"),
        only_with_anomalies=True,
    ),
    Rung(
        "unmasked anomalies",
        "Known anomalies without masks do not push the flows.",
        ("loss.instance_share",),
        only_with_anomalies=True,
    ),
    Rung(
        "fusion",
        "The map of a level is minus the logarithm of the share of normals that are less likely.",
        ("score.fusion",),
    ),
    Rung(
        "top share",
        "The image score is the mean of the highest values of the map in place of their maximum.",
        ("score.top_share",),
    ),
    Rung(
        "level weights",
        "The image score weighs levels: a prior by their stride, fitted to known anomalies if the method uses any.",
        ("score.level_prior_power", "score.evidence_weight"),
    ),
    Rung(
        "Mahalanobis distance",
        "The image head adds the Mahalanobis distance of the whole image.",
        ("score.image_head_weight",),
    ),
    Rung(
        "directions",
        "The image head adds discriminant directions to the known anomalies.",
        ("score.direction_weight",),
        only_with_anomalies=True,
    ),
)


@dataclass(frozen=True)
class Setting:
    """A column of the table: data and protocol."""

    data: dict[str, tuple[str, ...]]
    protocol: str


SETTINGS = {
    "screw": Setting({"mvtec": ("screw",)}, "multi-class"),
    "aitex": Setting({"aitex": ()}, "general"),
    "magnetic-tile": Setting({"magnetic-tile": ()}, "multi-class"),
    "elpv": Setting({"elpv": ()}, "one-class"),
    "headct": Setting({"headct": ()}, "general"),
    "brainmri": Setting({"brainmri": ()}, "general"),
    "aitex-one-class": Setting({"aitex": ()}, "one-class"),
    "elpv-general": Setting({"elpv": ()}, "general"),
}
DEFAULT_SETTINGS = ("screw", "aitex", "magnetic-tile", "elpv", "headct", "brainmri")  # one for each data set
METRICS = (IMAGE, PIXEL, PRO)
NAMES = ("bgad", "nfad")  # methods of the paper with a counterpart of ours


def flat(config: Config) -> dict[str, Any]:
    """Return the keys of a recipe, as --set takes them, with their values."""
    parts = to_dict(config).items()
    return {f"{part}.{key}": v for part, values in parts if isinstance(values, dict) for key, v in values.items()}


@dataclass(frozen=True)
class Ladder:
    """The recipes of both ends and the rungs between them."""

    paper: Config
    ours: Config
    rungs: tuple[Rung, ...]  # those with an effect

    @property
    def columns(self) -> tuple[Column, ...]:
        """The paper's method, then one column for each rung; the last one is our recipe without a change.

        A rung is our method with the paper's values for the keys of all later rungs.
        """
        before, titles = flat(self.paper), self.titles
        columns = [Column(titles[0], self.paper.method)]
        for number, title in enumerate(titles[1:], start=1):
            later = [key for rung in self.rungs[number:] for key in rung.keys if key in self.differing]
            changes = tuple(f"{key}={json.dumps(before[key])}" for key in later)
            columns.append(Column(title, self.ours.method, changes))
        return tuple(columns)

    @property
    def titles(self) -> list[str]:
        """Names of the rows."""
        *inner, last = [f"+ {rung.name}" for rung in self.rungs]
        return [f"{self.paper.method} (paper)", *inner, f"{last} = {self.ours.method}"]

    def additions(self) -> list[str]:
        """Return a line for each rung: what it adds, and which keys change from which value to which."""
        before, after = flat(self.paper), flat(self.ours)
        lines = []
        for rung in self.rungs:
            keys = [key for key in rung.keys if key in self.differing]
            changes = [f"`{key}`: {json.dumps(before[key])} → {json.dumps(after[key])}" for key in keys]
            lines.append(f"- **{rung.name}**: {rung.about} {'; '.join(changes)}")
        return lines

    @property
    def differing(self) -> list[str]:
        """Keys that differ between both ends."""
        after = flat(self.ours)
        return [key for key, value in flat(self.paper).items() if value != after[key]]


def ladder(paper: Config, ours: Config, rungs: Sequence[Rung] = RUNGS) -> Ladder:
    """Return the ladder between two recipes; ValueError where a key that differs is on no rung, or on two."""
    listed = [key for rung in rungs for key in rung.keys]
    if unknown := sorted(set(listed) - set(flat(ours))):
        raise ValueError(f"RUNGS has keys that no recipe has: {', '.join(unknown)}")
    if repeated := sorted({key for key in listed if listed.count(key) > 1}):
        raise ValueError(f"RUNGS has keys twice: {', '.join(repeated)}")
    differing = Ladder(paper, ours, ()).differing
    if missing := [key for key in differing if key not in listed]:
        raise ValueError(f"RUNGS lacks keys that differ between {paper.method} and {ours.method}: {', '.join(missing)}")
    effective = [
        rung
        for rung in rungs
        if set(rung.keys) & set(differing) and (ours.uses_anomalies or not rung.only_with_anomalies)
    ]
    return Ladder(paper, ours, tuple(effective))


def ladder_of(method: str) -> Ladder:
    """Return the ladder from a method of the paper to its counterpart by the default recipe."""
    ours = replace(PRESETS["default"], method=f"{method}-plus")
    paper = preset_for(method, METHODS[method].presets[0])
    return ladder(replace(paper, backbone=replace(paper.backbone, name=ours.backbone.name)).check(), ours)


def table_of(steps: Ladder, settings: Mapping[str, Setting], seeds: int, end_seeds: int, known: int = 10) -> PaperTable:
    """Return what is to run: both ends with `end_seeds`, the rungs between them with `seeds`."""
    first, *inner, last = steps.columns
    matrices = [
        Matrix(setting.data, setting.protocol, columns, (known,), number, METRICS, name)
        for name, setting in settings.items()
        for columns, number in (((first, last), end_seeds), (tuple(inner), seeds))
        if columns
    ]
    return PaperTable(f"from {steps.paper.method} to {steps.ours.method}", tuple(matrices))


Figures = dict[int, dict[str, float]]  # seed -> metric -> figure


def figures(cells: Sequence[Mapping[str, Any]], setting: Setting, title: str) -> Figures:
    """Return the figures of a rung by seed: means over the cases, of seeds that have all cases."""

    def case(cell: Mapping[str, Any]) -> tuple[Any, ...]:
        return cell["category"], cell["known_class"], cell["subset"]

    own = [cell for cell in cells if cell["data"] in setting.data and cell["protocol"] == setting.protocol]
    cases = {case(cell) for cell in own}
    by_seed: dict[int, list[dict[str, float]]] = {}
    for cell in own:
        if cell["setting"] == title:
            measured = {metric: value for metric, value in cell["metrics"].items() if value is not None}
            by_seed.setdefault(cell["seed"], []).append(measured)
    found: Figures = {}
    for seed, values in sorted(by_seed.items()):
        if len(values) == len(cases):
            common = [metric for metric in METRICS if all(metric in row for row in values)]
            found[seed] = {metric: mean(row[metric] for row in values) for metric in common}
    return found


def statistic(values: Figures, metric: str) -> Stat | None:
    """Return mean and standard deviation over the seeds; None where there is no figure."""
    numbers = [row[metric] for row in values.values() if metric in row]
    return Stat(mean(numbers), stdev(numbers) if len(numbers) > 1 else None) if numbers else None


def change(values: Figures, above: Figures, metric: str) -> float | None:
    """Return the mean difference to the rung above over the seeds that both have; None where there is none."""
    seeds = [seed for seed in values if metric in values[seed] and metric in above.get(seed, {})]
    return mean(values[seed][metric] - above[seed][metric] for seed in seeds) if seeds else None


def csv_rows(
    steps: Ladder, settings: Mapping[str, Setting], cells: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return one row for each rung: figure, deviation, number of seeds and change for each data set and metric."""
    rows: list[dict[str, str]] = [{"rung": title} for title in steps.titles]
    for name, setting in settings.items():
        above: Figures = {}
        for row, title in zip(rows, steps.titles, strict=True):
            values = figures(cells, setting, title)
            row[f"{name}: seeds"] = str(len(values))
            for metric in METRICS:
                stat, difference = statistic(values, metric), change(values, above, metric)
                row[f"{name}: {metric}"] = "" if stat is None else f"{stat.mean:.6f}"
                row[f"{name}: {metric} std"] = "" if stat is None or stat.spread is None else f"{stat.spread:.6f}"
                row[f"{name}: {metric} change"] = "" if difference is None else f"{difference:+.6f}"
            above = values
    return rows


def _entry(row: Mapping[str, str], name: str, metrics: Sequence[str]) -> str:
    """Return the figures of a rung on one data set, then the changes in parentheses."""

    def figure(metric: str) -> str:
        spread = row[f"{name}: {metric} std"]
        value = row[f"{name}: {metric}"]
        return str(Stat(float(value), float(spread) if spread else None)) if value else "-"

    changes = [row[f"{name}: {metric} change"] for metric in metrics]
    text = " / ".join(map(figure, metrics))
    return f"{text} ({' / '.join(f'{float(x):+.3f}' if x else '-' for x in changes)})" if any(changes) else text


def markdown(steps: Ladder, settings: Mapping[str, Setting], rows: Sequence[dict[str, str]], missing: set[str]) -> str:
    """Return steps.md: the table, what each rung adds, and the recipes of both ends."""
    shown = {name: [m for m in METRICS if any(row[f"{name}: {m}"] for row in rows)] or [IMAGE] for name in settings}
    heads = [
        f"{name}, {setting.protocol}: {' / '.join(METRIC_TITLES[m] for m in shown[name])}"
        for name, setting in settings.items()
    ]
    lines = [["rung", "seeds", *heads], ["---"] * (len(heads) + 2)]
    for row in rows:
        counts = sorted({row[f"{name}: seeds"] for name in settings})
        lines.append([row["rung"], " or ".join(counts), *(_entry(row, name, shown[name]) for name in settings)])
    text = [
        f"# From {steps.paper.method} to {steps.ours.method}, step by step",
        "",
        "Each row adds one group of keys to the row above. Mean ± standard deviation over the seeds; in parentheses "
        "the change against the row above, over the seeds that both rows have.",
        "",
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
        *steps.additions(),
        "",
        f"Recipe of {steps.paper.method}: {describe(steps.paper)}",
        "",
        f"Recipe of {steps.ours.method}: {describe(steps.ours)}",
        "",
        *(f"- missing: {reason}" for reason in sorted(missing)),
    ]
    return "\n".join(text).rstrip() + "\n"


def write(out: Path, steps: Ladder, settings: Mapping[str, Setting]) -> None:
    """Write steps.md and steps.csv from the cells that are finished."""
    results = json.loads((out / "results.json").read_bytes())
    rows = csv_rows(steps, settings, results["cells"])
    missing = {cell["reason"] for cell in results["missing"]}
    write_atomic(out / "steps.md", markdown(steps, settings, rows, missing).encode())
    with (out / "steps.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def run_ladder(steps: Ladder, settings: Mapping[str, Setting], out: Path, table: PaperTable, **options: Any) -> None:
    """Run the cells that are not finished and write the table, also where the run is interrupted."""
    configs = {config.method: config for config in (steps.paper, steps.ours)}
    try:
        with console.progress() as progress, console.stop_on_interrupt() as stop:
            chosen = BenchmarkOptions(share_pushed=True, **options)
            run(table, out, configs=configs, options=chosen, progress=progress, stop=stop)
    finally:
        if (out / "results.json").exists():
            write(out, steps, settings)


def main() -> None:
    """Run the ladder on the chosen data sets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", choices=NAMES, default=NAMES[0], help="of the paper; the last rung is METHOD-plus")
    parser.add_argument(
        "--data",
        default=",".join(DEFAULT_SETTINGS),
        metavar="A,B",
        help=f"of {', '.join(SETTINGS)} (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of the rungs between the ends (default 1)")
    parser.add_argument("--end-seeds", type=int, default=3, metavar="N", help="of both ends (default 3)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="folder of the data sets (default $BGAD_DATA)")
    parser.add_argument("--out", type=Path, default=Path("bgad-steps"), metavar="DIR", help="default ./bgad-steps")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--memory", type=float, default=4.0, metavar="GB", help="of cached features; beyond: on disk")
    parser.add_argument("--list", action="store_true", help="print the rungs and run nothing")
    arguments = parser.parse_args()
    steps = ladder_of(arguments.method)
    if arguments.list:
        print(*steps.additions(), sep="\n")
        return
    names = arguments.data.split(",")
    if unknown := [name for name in names if name not in SETTINGS]:
        parser.error(f"unknown data set {unknown[0]}: choose from {', '.join(SETTINGS)}")
    if min(arguments.seeds, arguments.end_seeds) < 1:
        parser.error("--seeds and --end-seeds must be at least 1")
    settings = {name: SETTINGS[name] for name in names}
    table = table_of(steps, settings, arguments.seeds, arguments.end_seeds)
    tune_allocator()
    try:
        run_ladder(
            steps,
            settings,
            arguments.out,
            table,
            root=arguments.root,
            device=arguments.device,
            memory_gb=arguments.memory,
        )
    except BgadError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "stopped: the same command continues\n")
    print((arguments.out / "steps.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
