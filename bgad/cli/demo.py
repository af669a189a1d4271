"""The command `bgad demo`: write the synthetic data, train, measure, and leave a report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from bgad.cli import console
from bgad.cli.options import add_command, names, number
from bgad.cli.tables import decision_table, evaluation_table
from bgad.config import ALL_METHODS, Config, preset_for
from bgad.data import layouts
from bgad.data.synthetic.demo import write_demo
from bgad.evaluation.evaluate import evaluate, write_results
from bgad.evaluation.report import page as report
from bgad.io.files import check_folder
from bgad.methods.checkpoint import unfinished
from bgad.model.device import tune_allocator
from bgad.training.pipeline import TrainOptions, train
from bgad.types import Progress, StopRequest


def add_demo(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "demo",
        _demo,
        "Write a small data set, train on it and show the results. Takes some minutes on two cores.",
        "examples:\n  bgad demo\n  bgad demo --methods nfad-plus,bgad-plus --seeds 3",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("bgad-demo"), metavar="DIR", help="folder to write (default ./bgad-demo)"
    )
    parser.add_argument(
        "--methods",
        default=Config().method,
        metavar="A,B",
        help=f"methods to train, of {', '.join(ALL_METHODS)} (default {Config().method})",
    )
    parser.add_argument(
        "--seeds", type=number(int, 1), default=1, metavar="N", help="train with seeds 0 to N-1 (default 1)"
    )
    parser.add_argument("--known", type=number(int, 0), default=10, metavar="N", help="known anomalies (default 10)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")


def _demo(arguments: argparse.Namespace) -> int:
    methods = names(arguments.methods, "method", ALL_METHODS)
    with console.progress() as progress, console.stop_on_interrupt() as stop:
        cells = run_demo(arguments.out, methods, arguments.seeds, arguments.known, arguments.device, progress, stop)
    console.stdout_console().print(evaluation_table(cells), "", decision_table(cells))
    for cell in cells:
        if cell["decisions"]["warning"]:
            console.warn(f"{cell['category']}: {cell['decisions']['warning']}")
    out = quote(str(arguments.out))
    console.say(f"figures: {out}/results.json\nreport:  {out}/report.html   (open it in a browser)")
    console.say(f"next: bgad predict {out}/washer.bgad {out}/data/washer/test/scratch --out {out}/scored")
    return 0


def run_demo(
    out: Path, methods: Sequence[str], seeds: int, known: int, device: str, progress: Progress, stop: StopRequest
) -> list[dict[str, Any]]:
    """Train every method and seed on both categories; write results.json and report.html, and return the cells."""
    check_folder(out)
    tune_allocator()
    console.say(f"writing images to {out / 'data'}")
    categories = write_demo(out / "data")
    cells: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    sections = []
    for method in methods:
        for seed in range(seeds):
            for category in categories:
                config = replace(preset_for(method, None), seed=seed)
                config = replace(config, backbone=replace(config.backbone, name="lite0"))  # installed with the package
                is_main = method == methods[-1] and seed == 0  # `bgad serve` and the tutorial use this one
                model = out / (f"{category.name}.bgad" if is_main else f"{category.name}-{method}-{seed}.bgad")
                options = TrainOptions(known=known, device=device, resume=unfinished(model), overwrite=True)
                detector = train(category, model, config=config, options=options, progress=progress, stop=stop)
                cell, section, images = evaluate(detector, layouts.load(category), data="demo", progress=progress)
                cells.append(cell)
                rows += [{"category": category.name, "method": method, "seed": seed, **row} for row in images]
                if seed == 0:
                    sections.append(section)
                report.write(out / "report.html", "bgad demo", sections, cells)
                write_results(out, cells, rows)
    return cells
