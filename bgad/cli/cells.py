"""Runs the cells of a benchmark or a comparison, here or on a cluster, with progress and Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bgad.benchmark.paper_tables import PaperTable
from bgad.benchmark.plan import Group, Outcome
from bgad.cli import console
from bgad.cli.options import add_cluster_tasks, add_recipe, add_root, number, on_cluster
from bgad.config import Config, read_toml
from bgad.errors import ConfigError

EXIT_FAILED_CELLS = 1
MEMORY_GB = 4.0  # default of --memory, here and in `bgad train`


def add_running(parser: argparse.ArgumentParser, *, out: str, root: bool = True) -> Any:
    """Add the recipe and the options that say how cells run; return the group, for further ones."""
    add_recipe(parser, one_model=False)
    how = parser.add_argument_group("run")
    if root:
        add_root(how)
    how.add_argument("--out", type=Path, metavar="DIR", help=f"default ./{out}")
    how.add_argument("--device", default="auto", help="auto (CUDA or MPS where there is one), cpu, cuda, mps")
    how.add_argument(
        "--memory", type=number(float, 0), default=MEMORY_GB, metavar="GB", help="of cached features; beyond: on disk"
    )
    add_cluster_tasks(parser, "every node must see the data and --out under the same paths")
    return how


def check_recipe(
    arguments: argparse.Namespace, options: Mapping[str, str], columns: Mapping[str, str] | None = None
) -> None:
    """ConfigError for keys of the recipe that the cells set themselves; both maps say what to do instead.

    `columns` are keys that the columns of a table set; a file may have them for the columns that do not.
    """
    fixed = {**options, **(columns or {})}
    for text in arguments.set:
        if (key := text.partition("=")[0].strip()) in fixed:
            raise ConfigError(f"--set {key} has no effect in this command: {fixed[key]}")
    values = read_toml(arguments.config) if arguments.config else {}
    for key, instead in options.items():
        if key in values:
            raise ConfigError(f"{key} of {arguments.config} has no effect in this command: leave it out, {instead}")


def run_cells(
    arguments: argparse.Namespace,
    table: PaperTable,
    out: Path,
    configs: Mapping[str, Config],
    *,
    groups: Sequence[Group] | None = None,
    **options: Any,
) -> list[Outcome]:
    """Run the cells of a table; `options` are those of BenchmarkOptions that the command sets itself."""
    from bgad.benchmark.runner import BenchmarkOptions, run
    from bgad.model.device import tune_allocator

    tune_allocator()
    chosen = BenchmarkOptions(root=arguments.root, device=arguments.device, memory_gb=arguments.memory, **options)
    with (
        on_cluster(arguments) as resources,
        console.progress() as progress,
        console.stop_on_interrupt(terminate=resources is not None) as stop,
    ):
        run_groups = None
        if resources is not None:
            from bgad.cluster.cells import run_groups_with

            run_groups, out = run_groups_with(resources), out.absolute()
        return run(
            table,
            out,
            configs=configs,
            options=chosen,
            progress=progress,
            stop=stop,
            run_groups=run_groups,
            groups=groups,
        )
