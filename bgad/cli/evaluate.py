"""The command `bgad evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bgad.cli import console
from bgad.cli.options import DATA_HELP, add_command, add_contour, add_data, add_engine, add_model, load_scorer
from bgad.cli.predict import EXIT_BAD_IMAGES
from bgad.io.files import check_folder


def add_evaluate(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "evaluate",
        _evaluate,
        "Measure a model on labelled images that it has not seen. Writes results.json and report.html.",
        DATA_HELP
        + "\nImages that the model was trained or calibrated on are recognised by their content and left out.\n"
        + "\nexamples:\n  bgad evaluate gear.bgad gears\n"
        + "  bgad evaluate screw.bgad mvtec/screw --root ~/data --out screw-report",
    )
    add_model(parser)
    add_data(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (default: ./MODEL-DATA-evaluation, or ./NAME-evaluation where both have one name)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the results of another model or of other data in --out"
    )
    parser.add_argument(
        "--false-reject-rate", type=float, metavar="RATE", help="false-reject rate to use instead of the model's"
    )
    add_contour(parser, "where the colours of the report's anomaly maps begin")
    add_engine(parser)


def _evaluate(arguments: argparse.Namespace) -> int:
    from bgad.data import layouts
    from bgad.evaluation.evaluate import Subject, check_results_folder, evaluate, write_results
    from bgad.evaluation.report import page as report
    from bgad.inference.batch import THRESHOLD

    public = layouts.set_name(arguments.data)
    out = arguments.out or _default_folder(arguments.model, arguments.data)
    check_folder(out)
    dataset = layouts.locate(arguments.data, arguments.root, need_normals=False)
    scorer = load_scorer(arguments)
    where = arguments.data if public else arguments.data.resolve()
    subject = Subject(scorer.card.checksum, where.as_posix(), scorer.precision)
    check_results_folder(out, subject, overwrite=arguments.overwrite)
    with console.progress() as progress:
        cell, section, rows = evaluate(
            scorer, dataset, data=public, contour=arguments.contour or THRESHOLD, progress=progress
        )
    report.write(out / "report.html", f"bgad: {section.title}", [section], [cell])
    results = write_results(out, [cell], rows, subject)
    from bgad.cli.tables import decision_table, evaluation_table

    console.stdout_console().print(evaluation_table([cell]), "", decision_table([cell]))
    if cell["decisions"]["warning"]:
        console.warn(cell["decisions"]["warning"])
    console.say(f"figures: {results}\nreport:  {out / 'report.html'}")
    return EXIT_BAD_IMAGES if any(note.startswith("left out:") for note in section.notes) else 0


def _default_folder(model: Path, data: Path) -> Path:
    """Return the folder of the results in the current directory: named after the model and the data."""
    from bgad.data.layouts import model_folder

    names = dict.fromkeys((model.resolve().stem, model_folder(data).stem))
    return Path(f"{'-'.join(names)}-evaluation")
