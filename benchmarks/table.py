"""The bars that we hold ourselves to, with the last figures of results.jsonl, as a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import RESULTS, machine

Row = dict[str, float]


@dataclass(frozen=True)
class Bar:
    """What is measured, by the beginning of its name in results.jsonl."""

    title: str
    name: str
    least: str
    goal: str
    value: Callable[[Row], float]
    unit: str
    higher: bool = False  # is better
    holds: float = 0.0
    reaches: float = 0.0


def _ratio(row: Row) -> float:
    return row["ratio"]


def _share(row: Row) -> float:
    return row["ours"] / row["other"]


def _ours(row: Row) -> float:
    return row["ours"]


BARS = (
    Bar(
        "scoring against the plain way, batch 1, the paper's flows",
        "scoring, batch 1, against the plain way with the paper's flows",
        "4 x",
        "6 x",
        _ratio,
        " x as fast",
        True,
        4,
        6,
    ),
    Bar(
        "the same, FrEIA with our smaller flows, many pictures",
        "scoring, many of batch 1, against the plain way with our flows",
        "4 x",
        "6 x",
        _ratio,
        " x as fast",
        True,
        4,
        6,
    ),
    Bar(
        "the same, FrEIA with our smaller flows, one picture at a time",
        "scoring, batch 1, against the plain way with our flows",
        "4 x",
        "6 x",
        _ratio,
        " x as fast",
        True,
        4,
        6,
    ),
    Bar(
        "scoring against the bare backbone, batch 1",
        "scoring, batch 1, against the bare backbone",
        "3 x its time",
        "1.5 x",
        _share,
        " x its time",
        False,
        3,
        1.5,
    ),
    Bar(
        "the same, batch 16",
        "scoring, batch 16, against the bare backbone",
        "3 x its time",
        "1.5 x",
        _share,
        " x its time",
        False,
        3,
        1.5,
    ),
    Bar(
        "training, time to quality against the plain loop",
        "training to an AUROC of",
        "30 x",
        "100 x",
        _ratio,
        " x",
        True,
        30,
        100,
    ),
    Bar(
        "peak memory, training on 300 pictures of 512 x 512, input 256",
        "peak memory, training on 300 pictures of 512 x 512, input 256",
        "under 3 GB",
        "under 1.5 GB",
        _ours,
        " GiB",
        False,
        2.79,
        1.39,
    ),
    Bar(
        "the same, input 512",
        "peak memory, training on 300 pictures of 512 x 512, input 512",
        "under 3 GB",
        "under 1.5 GB",
        _ours,
        " GiB",
        False,
        2.79,
        1.39,
    ),
    Bar("pixel AUROC, AP and PRO of 200 maps of 512 x 512", "metrics", "10 s", "2 s", _ours, " s", False, 10, 2),
)


def verdict(bar: Bar, value: float) -> str:
    """Whether a figure is good enough.

    >>> verdict(BARS[0], 4.5), verdict(BARS[3], 3.5), verdict(BARS[3], 1.2)
    ('holds', 'missed', 'goal reached')
    """
    sign = 1 if bar.higher else -1
    if sign * value >= sign * bar.reaches:
        return "goal reached"
    return "holds" if sign * value >= sign * bar.holds else "missed"


def table(rows: list[dict[str, object]]) -> str:
    """Markdown; what was not measured says so."""
    lines = ["| bar | at least | the goal | today | |", "|---|---|---|---|---|"]
    for bar in BARS:
        found = [row for row in rows if str(row["name"]).startswith(bar.name)]
        if not found:
            lines.append(f"| {bar.title} | {bar.least} | {bar.goal} | not measured | |")
            continue
        last = found[-1]
        value = bar.value({key: float(str(last[key])) for key in ("ours", "other", "ratio")})
        bound = "at least " if "lower bound" in str(last["name"]) else ""
        lines.append(
            f"| {bar.title} | {bar.least} | {bar.goal} | {bound}{value:.3g}{bar.unit} | {verdict(bar, value)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print it."""
    print(machine())
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    print(table([json.loads(line) for line in lines]))


if __name__ == "__main__":
    main()
