"""The options of commands that can run their work as tasks on a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bgad.cli.options import number
from bgad.errors import ConfigError

if TYPE_CHECKING:
    from bgad.cluster.tasks import Resources


def add_cluster_tasks(parser: argparse.ArgumentParser, needs: str) -> None:
    """Add --cluster and the resources of a task; `needs` says what the nodes must have."""
    group = parser.add_argument_group("cluster (needs bgad[ray])")
    group.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help=f"run on a Ray cluster: HOST:PORT, auto (the one that runs here) or local (start one here); {needs}",
    )
    group.add_argument("--cpus-per-task", type=number(int, 1), metavar="N", help="threads of a task (default 1)")
    group.add_argument("--gpus-per-task", type=number(float, 0), metavar="N", help="such as 0.5 (default 0)")


@contextmanager
def on_cluster(arguments: argparse.Namespace) -> Iterator[Resources | None]:
    """Connect to the cluster that was asked for and yield the resources of a task; None where none was."""
    if not arguments.cluster:
        for name in ("cpus_per_task", "gpus_per_task"):
            if getattr(arguments, name):
                raise ConfigError(f"--{name.replace('_', '-')} needs --cluster ADDRESS")
        yield None
        return
    from bgad.cluster.connection import connected

    with connected(arguments.cluster):
        from bgad.cluster.tasks import Resources

        yield Resources(arguments.cpus_per_task or 1, arguments.gpus_per_task or 0.0)
