"""The command `bgad predict`."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bgad.cli import console
from bgad.cli.options import add_command, add_engine, add_model, load_scorer
from bgad.errors import ConfigError, OutputError
from bgad.types import ProgressTask

EXIT_BAD_IMAGES = 1
TABLE_ROWS = 1000  # rows that the table on a terminal shows at most


def add_predict(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "predict",
        _predict,
        "Score images with a model. Prints a table on a terminal and JSON lines into a pipe.",
        "A JSON line has path, score, p_value, is_anomaly, threshold, error and, with --out, stem. The exit code is 1\n"
        "when an image could not be scored.\n\n"
        "examples:\n  bgad predict gear.bgad new/ --out scored/\n"
        "  bgad predict gear.bgad 'new/**/*.png' | jq 'select(.is_anomaly)'",
    )
    add_model(parser)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, folders or glob patterns")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for overlays (.png), anomaly maps (.tif) and rows (scores.jsonl); the same command continues "
        "a run that was stopped",
    )
    parser.add_argument(
        "--no-overlays", action="store_true", help="with --out: write rows only, without overlays and maps"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="with --out: score images again that have a row there, and drop rows of another model or of other options",
    )
    parser.add_argument(
        "--false-reject-rate", type=float, metavar="RATE", help="false-reject rate to use instead of the model's"
    )
    parser.add_argument("--json", action="store_true", help="print JSON lines on a terminal too")
    add_engine(parser)


def _predict(arguments: argparse.Namespace) -> int:
    from bgad.cli.tables import score_table
    from bgad.inference import score_log
    from bgad.inference.batch import Row, input_images, most_anomalous, output_stems, predict

    out = arguments.out
    if out is None and (arguments.no_overlays or arguments.overwrite):
        raise ConfigError("--no-overlays and --overwrite need --out: give it, or leave them out")
    paths = input_images(arguments.paths, out)
    scorer = load_scorer(arguments)  # after the paths are known to be good
    terminal = bool(sys.stdout and sys.stdout.isatty())
    as_table = terminal and not arguments.json
    rows: list[Row] = []
    failed = 0

    def show(row: Row) -> None:
        nonlocal rows
        if not as_table:
            print(json.dumps(row), flush=True)  # noqa: T201
            return
        rows.append(row)
        rows = most_anomalous(rows, TABLE_ROWS) if len(rows) > 2 * TABLE_ROWS else rows

    about = {
        "model": scorer.card.checksum,
        "threshold": scorer.threshold,
        "engine": type(scorer).__name__,
        "tile": scorer.tile.size,
        "overlays": not arguments.no_overlays,
    }
    drawn = None if arguments.no_overlays else out
    with ExitStack() as stack:
        kept = (
            stack.enter_context(score_log.open_log(out, about, paths, overwrite=arguments.overwrite)) if out else None
        )
        stems = dict(zip(paths, output_stems(paths, kept.stems), strict=True)) if kept and drawn else {}
        left = paths if kept is None else [path for path in paths if not score_log.is_done(path, kept.done)]
        if len(left) < len(paths):
            console.say(f"{len(paths) - len(left)} of {len(paths)} images have their rows in {out} already")
        display = stack.enter_context(console.progress(show=as_table or not terminal))
        task = ProgressTask(display, "scoring", len(paths), len(paths) - len(left))
        for row in kept.rows() if kept else ():
            show(row)
        try:
            for row in predict(scorer, left, drawn, [stems[path] for path in left] if stems else None):
                if kept:
                    row.setdefault("stem", None)
                    kept.append(row)
                failed += row["error"] is not None
                show(row)
                task.advance()
        except KeyboardInterrupt:
            if out:
                console.say(f"stopped; what was scored is in {out}: go on with the same command")
            raise
        except OutputError as error:
            raise error if score_log.KEPT in str(error) else OutputError(f"{error}; {score_log.KEPT}") from error
    scored = len(left)
    if as_table:
        console.stdout_console().print(score_table(most_anomalous(rows, TABLE_ROWS), len(scorer.calibration.scores)))
        if len(paths) > TABLE_ROWS:
            console.say(f"{len(paths) - TABLE_ROWS} images with lower scores are not shown")
    what = "rows are in" if arguments.no_overlays else "rows, overlays and maps are in"
    images = f"{scored} image{'' if scored == 1 else 's'}"
    flagged = f"{failed} of {images} could not be scored" if failed else f"{images} scored"
    console.say(flagged + (f"; {what} {out}" if out else ""))
    return EXIT_BAD_IMAGES if failed else 0
