"""Renders compare.html: which method to use, figures with their uncertainty and cost, and maps side by side."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bgad.benchmark.compare import Comparison, Standing
from bgad.benchmark.grid import Cost
from bgad.benchmark.plan import Outcome
from bgad.benchmark.runner import map_file
from bgad.benchmark.uncertainty import CONFIDENCE
from bgad.evaluation.report import page as report
from bgad.evaluation.report.html import caption, embedded_image, empty, table, text
from bgad.io.files import write_atomic

PAGE = "compare.html"
HEADS = ("method", "image AUROC", f"{100 * CONFIDENCE:g} % interval", "behind the best by", *Cost.TITLES.values())
EXPLANATION = (
    "Image AUROC: the share of pairs of a held-out anomaly and a normal of its fold that the scores put in order. "
    "Its interval is a score interval after Newcombe. The distance to the best has DeLong's interval with Student's "
    "quantile, paired over the images. Both hold for few anomalies. A method whose distance to the best may be 0 "
    "cannot be told apart from it. Each distance has an interval of its own, and the same images choose the best, so "
    "of several equal methods one may seem worse by chance. The intervals do not tell how a training varies with its "
    "seed."
)


def standing_line(standing: Standing) -> list[str]:
    """Return the line of a method, in the order of HEADS."""
    behind = "-" if standing.behind is None else f"{standing.behind[0]:.3f} to {standing.behind[1]:.3f}"
    low, high = standing.interval
    return [standing.method, f"{standing.image_auroc:.3f}", f"{low:.3f} to {high:.3f}", behind, *standing.cost.texts()]


def write(out: Path, comparison: Comparison, outcomes: Sequence[Outcome]) -> None:
    """Write the page into the folder of the run."""
    write_atomic(out / PAGE, render(comparison, outcomes, out).encode())


def render(comparison: Comparison, outcomes: Sequence[Outcome], out: Path) -> str:
    """Return the page as HTML."""
    verdict = "".join(f"<p>{text(line)}</p>" for line in comparison.verdict())
    rows = [[text(word) for word in standing_line(s)] for s in comparison.standings]
    skipped = "".join(f"<li>{text(name)} is not compared. {text(why)}</li>" for name, why in comparison.skipped.items())
    parts = [
        f'<section id="verdict"><h2>Which method to use</h2><div class="promise">{verdict}</div>',
        table([text(head) for head in HEADS], rows, 1),
        caption(EXPLANATION),
        caption(Cost.EXPLANATION),
        f'<ul class="notes">{skipped}</ul>' if skipped else "",
        "</section>",
        _maps([s.method for s in comparison.standings], outcomes, out),
    ]
    return report.page(f"bgad compare: {comparison.data}", "".join(parts))


def _maps(methods: Sequence[str], outcomes: Sequence[Outcome], out: Path) -> str:
    """Render a row for each anomaly whose maps were kept: the image, then the map of each method."""
    shown: dict[str, dict[str, dict[str, Any]]] = {}  # name -> method -> entry
    for outcome in outcomes:
        if outcome.cell is not None and outcome.request.column.method in methods:
            key = json.loads((out / outcome.file).read_bytes())["key"]
            for entry in json.loads(map_file(out, outcome.request, key).read_bytes()):
                shown.setdefault(entry["name"], {})[outcome.request.column.method] = entry
    if not shown:
        return empty("No anomaly maps were kept.")
    rows = []
    for name, entries in shown.items():
        first = next(iter(entries.values()))
        image = embedded_image(base64.b64decode(first["image"]), f"{name}, with the outline of its mask")
        rows.append([f"{image}<br>{text(name)}", *(_map(entries[m], m) if m in entries else "-" for m in methods)])
    words = (
        "Held-out anomalies, each scored by the models of its fold. The colours of a map begin at the model's own "
        "map threshold, so they compare places, not heights. Each model's own threshold decides."
    )
    heads = ["image", *map(text, methods)]
    return f'<section id="maps"><h2>Maps</h2>{caption(words)}{table(heads, rows, len(heads))}</section>'


def _map(entry: dict[str, Any], method: str) -> str:
    image = embedded_image(base64.b64decode(entry["map"]), f"anomaly map of {entry['name']} by {method}")
    decision = "detected" if entry["is_anomaly"] else "missed"
    return f"{image}<br>{decision} (p {entry['p_value']:.2g})"
