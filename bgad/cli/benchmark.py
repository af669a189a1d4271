"""The command `bgad benchmark`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgad.benchmark import plan as benchmark_plan
from bgad.benchmark import tables as benchmark_tables
from bgad.benchmark.grid import Grid
from bgad.benchmark.paper_tables import TABLES, Matrix, PaperTable, methods
from bgad.benchmark.systems import has_systems, with_systems
from bgad.cli import console, tables
from bgad.cli.cells import EXIT_FAILED_CELLS, add_running, check_recipe, run_cells
from bgad.cli.options import add_command, names, number, read_config
from bgad.config import ALL_METHODS, BASELINES, PRESETS, Config
from bgad.data.datasets import registry
from bgad.data.protocols import PROTOCOLS
from bgad.errors import ConfigError, DataError

DEFAULT_OUT = "bgad-benchmark"
PAPER_FAST = "paper-fast"
DEFAULTS = {"protocol": "multi-class", "methods": "nfad-plus,bgad-plus", "known": "10"}  # options that --paper fixes


def add_benchmark(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "benchmark",
        _benchmark,
        "Run methods x data sets x protocols x seeds and show the figures beside the printed ones. "
        "Finished cells are kept: the same command continues after Ctrl-C or a crash.",
        "protocols:\n" + "".join(f"  {name:<13} {text}\n" for name, text in PROTOCOLS.items()) + "\nexamples:\n"
        "  bgad benchmark --data elpv --protocol one-class --methods nfad-plus,bgad-plus --known 10 --seeds 3\n"
        "  bgad benchmark --data mvtec --category screw,grid --known 10,1 --root ~/data\n"
        "  bgad benchmark --paper main --root ~/data      (--paper list names the tables)\n"
        "  bgad benchmark --paper main --root ~/data --backbone lite0      (needs no network)\n"
        "  bgad benchmark --paper btad --with-baselines --root ~/data      (also the other systems that it prints)",
    )
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--data", metavar="A,B", help=f"of {', '.join(registry.DATASETS)}; or a folder or manifest, as for train"
    )
    what.add_argument("--category", metavar="A,B", help="of these data sets (default: all)")
    what.add_argument(
        "--protocol", metavar="NAME", help=f"one of {', '.join(PROTOCOLS)} (default {DEFAULTS['protocol']})"
    )
    what.add_argument(
        "--methods", metavar="A,B", help=f"of {', '.join(ALL_METHODS)}; or all (default {DEFAULTS['methods']})"
    )
    what.add_argument("--known", metavar="N,M", help=f"numbers of known anomalies (default {DEFAULTS['known']})")
    what.add_argument("--seeds", type=number(int, 1), metavar="N", help="seeds 0 to N-1 (default 3)")
    what.add_argument(
        "--paper",
        metavar="TABLE",
        help=f"a table of the paper: {', '.join(TABLES)}; or list, which describes them; its methods are the paper's, "
        "by --preset paper-fast or paper",
    )
    what.add_argument(
        "--with-baselines",
        action="store_true",
        help="with --paper: also run the other systems that the table prints, on the same splits; on a CPU, those "
        "that train their backbone run on frozen features",
    )
    what.add_argument("--list", action="store_true", help="print the cells and run nothing")
    how = add_running(parser, out=DEFAULT_OUT)
    how.add_argument("--keep-models", action="store_true", help="keep every model in OUT/models")


def _benchmark(arguments: argparse.Namespace) -> int:
    if arguments.paper == "list":
        for name, table in TABLES.items():
            print(f"{name:<15} {table.about}")  # noqa: T201
        return 0
    table = _table(arguments)
    _check_recipe(arguments, table)
    configs = {method: _config(arguments, method) for method in table.methods}
    if arguments.list:
        return _list(table, arguments.root)
    out = arguments.out or Path(DEFAULT_OUT)
    outcomes = run_cells(arguments, table, out, configs, keep_models=arguments.keep_models)
    if arguments.paper is None and all(outcome.cell is None for outcome in outcomes):
        raise DataError(f"no cell could be run: {outcomes[0].reason}")
    _print(benchmark_tables.grids(table, outcomes, configs), table.notes)
    console.say(f"figures: {out / 'results.json'}\ntables:  {out / 'table.md'}, {out / 'table.csv'}")
    console.say(f"page:    {out / 'benchmark.html'}   (open it in a browser)")
    failed = sum(o.failed for o in outcomes)
    missing = sum(o.cell is None for o in outcomes) - failed
    if missing:
        why = "their data is missing or cannot serve them (see the notes)"
        console.warn(f"{missing} of {len(outcomes)} cells are missing: {why}")
    if failed:
        console.warn(f"{failed} of {len(outcomes)} cells failed (see the notes); the same command tries them again")
    return EXIT_FAILED_CELLS if failed else 0


def _print(grids: list[Grid], notes: Sequence[str]) -> None:
    page = console.stdout_console()
    for grid in grids:
        page.print(tables.benchmark_table(grid))
        if (costs := tables.cost_table(grid)) is not None:
            page.print(costs)
        for line in grid.recipes:
            page.print(console.printable(line), soft_wrap=True)
        for i, note in enumerate(grid.notes, start=1):
            page.print(f"[{i}] {console.printable(note)}", soft_wrap=True)
        page.print()
    for note in notes:
        page.print(note, soft_wrap=True)


def _list(table: PaperTable, root: Path | None) -> int:
    for group in benchmark_plan.plan(table.matrices, root):
        for request in group.requests:
            print(request.name())  # noqa: T201
        for outcome in group.impossible:
            print(f"{outcome.request.name()}: missing: {console.printable(outcome.reason)}")  # noqa: T201
    return 0


def _one(text: str, option: str, what: str, allowed: Collection[str]) -> str:
    listed = names(text, what, allowed)
    if len(listed) > 1:
        raise ConfigError(f"--{option} takes one {what}, not {text!r}: run the command once for each")
    return listed[0]


def _numbers(text: str) -> tuple[int, ...]:
    listed = names(text, "number")
    if not all(number.isdecimal() for number in listed):
        raise ConfigError(f"--known takes whole numbers with commas between, such as 10,5,1, not {text!r}")
    return tuple(int(number) for number in listed)


def _table(arguments: argparse.Namespace) -> PaperTable:
    """Return the table that the options describe: one of the paper, perhaps on other data, or a custom one."""
    categories = names(arguments.category, "category") if arguments.category else ()
    data = dict.fromkeys(names(arguments.data, "data set"), categories) if arguments.data else {}
    if categories and len(data) != 1:
        raise ConfigError("--category needs one data set: give --data NAME")
    if arguments.paper is not None:
        return _paper_table(arguments, data)
    if arguments.with_baselines:
        raise ConfigError("--with-baselines adds to a table of the paper: give --paper TABLE, or --methods without it")
    if not data:
        raise ConfigError("give --data NAME (`bgad datasets` lists them), or --paper TABLE (--paper list lists those)")
    chosen = {key: getattr(arguments, key) or value for key, value in DEFAULTS.items()}
    listed = ALL_METHODS if chosen["methods"] == "all" else names(chosen["methods"], "method", ALL_METHODS)
    matrix = Matrix(
        data,
        _one(chosen["protocol"], "protocol", "protocol", PROTOCOLS),
        methods(*listed),
        known=_numbers(chosen["known"]),
        seeds=arguments.seeds or 3,
    )
    return PaperTable(", ".join(data), (matrix,))


def _check_recipe(arguments: argparse.Namespace, table: PaperTable) -> None:
    """Refuse settings that the cells of the benchmark override."""
    changes = (change for matrix in table.matrices for column in matrix.columns for change in column.changes)
    columns = {change.partition("=")[0]: "the columns of this table set it" for change in changes}
    check_recipe(arguments, {"seed": "use --seeds N", "method": "use --methods A,B"}, columns)


def _paper_table(arguments: argparse.Namespace, data: dict[str, tuple[str, ...]]) -> PaperTable:
    name = _one(arguments.paper, "paper", "table", TABLES)
    if fixed := [key for key in DEFAULTS if getattr(arguments, key) is not None]:
        raise ConfigError(f"--paper {name} fixes --{fixed[0]}: leave it out, or describe the run without --paper")
    changed = []
    for matrix in TABLES[name].matrices:
        wanted = {other: chosen or matrix.data.get(other, ()) for other, chosen in data.items()} or matrix.data
        changed.append(replace(matrix, data=wanted, seeds=arguments.seeds or matrix.seeds))
    table = replace(TABLES[name], matrices=tuple(changed))
    if not arguments.with_baselines:
        return table
    if not has_systems(table):
        fitting = ", ".join(other for other in TABLES if has_systems(TABLES[other]))
        raise ConfigError(f"--with-baselines has no other systems for this --paper {name}: it is for {fitting}")
    return with_systems(table, frozen=_on_cpu(arguments.device))


def _on_cpu(device: str) -> bool:
    from bgad.model.device import pick

    return pick(device).type == "cpu"


def _config(arguments: argparse.Namespace, method: str) -> Config:
    """Return the recipe of a method; in a table of the paper, baselines have the backbone of its methods.

    Baselines have no preset paper-fast, so they then have their default.
    """
    if arguments.paper is None or method not in BASELINES:
        return read_config(arguments, method)
    preset = None if arguments.preset == PAPER_FAST else arguments.preset
    backbone = arguments.backbone or (PRESETS[PAPER_FAST].backbone.name if preset is None else None)
    return read_config(argparse.Namespace(**vars(arguments) | {"preset": preset, "backbone": backbone}), method)
