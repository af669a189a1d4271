"""The demo: make the data, train, measure, and leave a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bgad.cli import console
from bgad.config import Config
from bgad.data import layouts
from bgad.data.synthetic.demo import write_demo
from bgad.evaluation.evaluate import evaluate, write_results
from bgad.evaluation.report import page as report
from bgad.io.files import check_folder
from bgad.training.pipeline import train
from bgad.training.run import unfinished
from bgad.training.stop import StopRequest
from bgad.types import Progress


def run_demo(
    out: Path, methods: list[str], seeds: int, known: int, device: str, progress: Progress, stop: StopRequest
) -> list[dict[str, Any]]:
    """Train every method and seed on both categories; the result cells, also in results.json and report.html."""
    check_folder(out)
    console.say(f"making pictures in {out / 'data'}")
    categories = write_demo(out / "data")
    cells: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    sections = []
    for method in methods:
        for seed in range(seeds):
            for category in categories:
                config = Config(seed=seed)
                config = replace(config, loss=replace(config.loss, method=method))
                first = method == methods[-1] and seed == 0
                model = out / (f"{category.name}.bgad" if first else f"{category.name}-{method}-{seed}.bgad")
                again = unfinished(model)
                detector = train(
                    category,
                    model,
                    resume=again,
                    config=config,
                    known=known,
                    device=device,
                    overwrite=True,
                    progress=progress,
                    stop=stop,
                )
                cell, section, images = evaluate(detector, layouts.load(category), data="demo", progress=progress)
                cells.append(cell)
                rows += [{"category": category.name, "method": method, "seed": seed, **row} for row in images]
                if seed == 0:
                    sections.append(section)
                report.write(out / "report.html", "bgad demo", sections, cells)
                write_results(out, cells, rows)
    return cells
