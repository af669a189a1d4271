"""The command `bgad compare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import Any

from bgad.benchmark.compare import DEFAULT_METHODS, comparison_table
from bgad.benchmark.plan import plan_dataset
from bgad.cli import console, tables
from bgad.cli.cells import EXIT_FAILED_CELLS, MEMORY_GB, add_running, check_recipe, run_cells
from bgad.cli.options import DATA_HELP, add_command, add_data, names, number, read_config
from bgad.config import ALL_METHODS
from bgad.data import layouts
from bgad.data.cross_validation import FOLDS, MIN_FOLDS, test_takes_part

NORMALS_NOTE = "(trains on the normals of the training set alone; the folds trained on those of the test set, too)"
MAPS_OF_A_FOLD = 3  # held-out anomalies of each fold that the page shows


def add_compare(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "compare",
        _compare,
        "Find out which method suits your images. "
        "Trains each method several times, each time without a part of the known anomalies and of the normals, and "
        "tests it on that part, so that every image is tested once by a model that has not seen it. Says which method "
        "is best, which ones cannot be told apart from it, what each costs, and which one to use. "
        "Finished cells are kept: the same command continues after Ctrl-C or a crash.",
        DATA_HELP + "\nhow it works:\n"
        "  It needs 2 or more known anomalies, and more are better: below 20, only large differences show.\n"
        "  Where the data has anomalies outside of its test split, the test split stays unseen; otherwise all images\n"
        "  take part. The time is about that of (methods x folds) trainings; the progress bar shows what is left.\n"
        "\nexamples:\n  bgad compare parts/\n"
        "  bgad compare parts/ --methods bgad-plus,patchcore,dra-frozen --folds 3\n"
        "  bgad compare parts/ --preset smoke          (a first look, with short trainings on small images)\n"
        "  bgad compare mvtec/screw --root ~/data --known 20",
    )
    add_data(parser)
    what = parser.add_argument_group("what to compare")
    what.add_argument(
        "--methods",
        default=",".join(DEFAULT_METHODS),
        metavar="A,B",
        help=f"of {', '.join(ALL_METHODS)} (default {','.join(DEFAULT_METHODS)})",
    )
    what.add_argument(
        "--folds",
        type=number(int, MIN_FOLDS),
        default=FOLDS,
        metavar="N",
        help=f"parts that are held out in turn (default {FOLDS}; not more than known anomalies)",
    )
    what.add_argument(
        "--known",
        type=number(int, MIN_FOLDS),
        default=0,
        metavar="N",
        help="known anomalies that take part, drawn with the classes in turn (default: all)",
    )
    add_running(parser, out="NAME-compare", root=False)


def _compare(arguments: argparse.Namespace) -> int:
    listed = names(arguments.methods, "method", ALL_METHODS)
    configs = {method: read_config(arguments, method) for method in listed}
    dataset = layouts.locate(arguments.data, arguments.root)
    check_recipe(arguments, {"seed": "the folds have one seed", "method": "use --methods A,B"})
    table = comparison_table(dataset, listed, folds=arguments.folds, known=arguments.known)
    groups = plan_dataset(table.matrices[0], dataset)
    out = arguments.out or Path(f"{layouts.model_folder(arguments.data).stem}-compare")
    from bgad.benchmark import compare, compare_page

    compare.check_folder(out, (arguments.data if arguments.data.exists() else dataset.root).resolve())
    (out / compare_page.PAGE).unlink(missing_ok=True)  # of an earlier run: this one may end without a comparison
    outcomes = run_cells(arguments, table, out, configs, groups=groups, maps=MAPS_OF_A_FOLD)
    comparison = compare.compare(outcomes, out, test_took_part=test_takes_part(dataset))
    compare.write(out, comparison)
    compare_page.write(out, comparison, outcomes)
    page = console.stdout_console()
    page.print(tables.comparison_table(comparison))
    for line in comparison.verdict():
        page.print(line, soft_wrap=True)
    for method, why in comparison.skipped.items():
        console.warn(f"{method} is not compared. {why}")
    console.say(f"next:    {_next_step(arguments, comparison.recommended, comparison.known_to_train)}")
    if comparison.test_took_part:
        console.say(f"         {NORMALS_NOTE}")
    console.say(f"figures: {out / 'results.json'}, {out / 'table.md'}")
    console.say(f"page:    {out / compare_page.PAGE}   (open it in a browser)")
    return EXIT_FAILED_CELLS if comparison.skipped else 0


def _next_step(arguments: argparse.Namespace, method: str, known: int | None) -> str:
    """Return the command that trains a model by the method, with the recipe and the anomalies that were compared."""
    words = ["bgad", "train", str(arguments.data), "--method", method]
    if known is not None:
        words += ["--known", str(known)]
    if arguments.memory != MEMORY_GB:
        words += ["--memory", f"{arguments.memory:g}"]
    for option in ("root", "preset", "backbone", "weights", "size", "config"):
        if (value := getattr(arguments, option)) is not None:
            words += [f"--{option}", str(value)]
    words += [word for change in arguments.set for word in ("--set", change)]
    return " ".join(map(quote, words))
