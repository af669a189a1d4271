"""The cells of a benchmark on a cluster: one task for the cells of a category, a seed and a case, which share work.

All nodes must see the data and the output folder under the same paths. The cells, the splits and the models are the
files that a run on one machine writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bgad.benchmark.plan import Group, Outcome, Request
from bgad.cluster.paths import absolute_data
from bgad.cluster.tasks import Resources, run_tasks
from bgad.types import RunControl, StopRequest

if TYPE_CHECKING:
    from bgad.benchmark.runner import Setup


def run_groups_with(resources: Resources) -> Callable[[Sequence[Group], Setup], Iterator[Outcome]]:
    """Return what runs the groups of a benchmark as tasks with these resources."""

    def run_groups(groups: Sequence[Group], setup: Setup) -> Iterator[Outcome]:
        parts = [part for group in groups for part in divided(group)]
        there = replace(setup, control=RunControl())
        pieces = [(part, there) for part in parts]
        stop = setup.control.stop or StopRequest()
        with stop.honour():
            for done in run_tasks(_run, pieces, resources, stop):
                if done.error is None:
                    yield from done.result or []
                else:
                    reason = str(done.error)
                    yield from (Outcome(r, reason=reason, failed=True) for r in parts[done.index].requests)
        if stop.requested:
            raise KeyboardInterrupt

    return run_groups


def divided(group: Group) -> list[Group]:
    """Return the parts of a group that share no training: those of a seed and a case."""
    if group.dataset is None:
        return []

    def key(request: Request) -> tuple[Any, ...]:
        return request.seed, request.protocol, request.case.known_class, request.case.subset, request.case.fold

    dataset = absolute_data(group.dataset)
    parts = groupby(sorted(group.requests, key=key), key)
    return [replace(group, dataset=dataset, requests=list(part), impossible=[]) for _, part in parts]


def _run(piece: tuple[Group, Setup]) -> list[Outcome]:
    from bgad.benchmark.runner import run_group
    from bgad.model.device import tune_allocator

    tune_allocator()
    return list(run_group(*piece))
