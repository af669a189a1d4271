"""The command `bgad predict`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bgad.cli import console
from bgad.cli.options import add_command, add_contour, add_engine, load_scorer
from bgad.cli.predict_cluster import add_cluster, predict_on_cluster, refuse_without_cluster, report
from bgad.errors import ConfigError, OutputError
from bgad.types import Progress, ProgressTask

if TYPE_CHECKING:
    from bgad.inference.base import BaseScorer
    from bgad.inference.batch import Row
    from bgad.inference.score_log import ScoreLog

EXIT_BAD_IMAGES = 1
TABLE_ROWS = 1000  # rows that the table on a terminal shows at most


def add_predict(commands: Any) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "predict",
        _predict,
        "Score images with a model. Prints a table on a terminal and JSON lines into a pipe.",
        "A JSON line has path, score, p_value, is_anomaly, threshold, map_max, map_threshold, error, parts, reason,\n"
        "region, precision and, with --out, stem. The exit code is 1 when an image could not be scored.\n\n"
        "examples:\n  bgad predict gear.bgad new/ --out scored/\n"
        "  bgad predict gear.bgad 'new/**/*.png' | jq 'select(.is_anomaly)'",
    )
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL", help="the folder of a trained model, NAME.bgad")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders or glob patterns")
    parser.add_argument(
        "--out",
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
    add_contour(parser, "with --out: where the colour of an overlay begins")
    parser.add_argument("--json", action="store_true", help="print JSON lines on a terminal too")
    add_engine(parser)
    add_cluster(parser)


def _predict(arguments: argparse.Namespace) -> int:
    if arguments.report:
        return report(arguments)
    missing = [name for name, value in (("MODEL", arguments.model), ("PATH", arguments.paths)) if not value]
    if missing:
        raise ConfigError(f"the following arguments are required: {', '.join(missing)}; see bgad predict --help")
    if arguments.cluster:
        return predict_on_cluster(arguments)
    refuse_without_cluster(arguments)
    arguments.out = Path(arguments.out) if arguments.out else None
    from bgad.inference.batch import input_images

    out: Path | None = arguments.out
    if out is None and (arguments.no_overlays or arguments.overwrite):
        raise ConfigError("--no-overlays and --overwrite need --out: give it, or leave them out")
    if arguments.contour and (out is None or arguments.no_overlays):
        raise ConfigError("--contour is for overlays: give --out, without --no-overlays")
    paths = input_images(arguments.paths, out)
    scorer = load_scorer(arguments)  # after the paths, whose errors come sooner
    is_terminal = bool(sys.stdout and sys.stdout.isatty())
    printer = _RowPrinter(as_table=is_terminal and not arguments.json)
    with console.progress(show=printer.as_table or not is_terminal) as progress:
        counts = _score(arguments, scorer, paths, printer, progress)
    printer.finish(len(paths), len(scorer.calibration.scores))
    content = "rows are in" if arguments.no_overlays else "rows, overlays and maps are in"
    images = f"{counts.scored} image{'' if counts.scored == 1 else 's'}"
    summary = f"{counts.failed} of {images} could not be scored" if counts.failed else f"{images} scored"
    console.say(summary + (f"; {content} {out}" if out else ""))
    return EXIT_BAD_IMAGES if counts.failed else 0


class _Counts(NamedTuple):
    """Images of a run: those that it handled, and those of them that could not be scored."""

    scored: int
    failed: int


class _RowPrinter:
    """Prints rows: as JSON lines at once, or as a table of the most anomalous ones at the end."""

    def __init__(self, *, as_table: bool) -> None:
        self.as_table = as_table
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        """Print a row, or keep it for the table."""
        from bgad.inference.batch import most_anomalous

        if not self.as_table:
            print(json.dumps(row), flush=True)  # noqa: T201
            return
        self._rows.append(row)
        if len(self._rows) > 2 * TABLE_ROWS:  # so that memory does not grow with the number of images
            self._rows = most_anomalous(self._rows, TABLE_ROWS)

    def finish(self, images: int, calibration_normals: int) -> None:
        """Print the table, if there is one."""
        if not self.as_table:
            return
        from bgad.cli.tables import score_table
        from bgad.inference.batch import most_anomalous

        console.stdout_console().print(score_table(most_anomalous(self._rows, TABLE_ROWS), calibration_normals))
        if images > TABLE_ROWS:
            console.say(f"{images - TABLE_ROWS} images with lower scores are not shown")


def _score(
    arguments: argparse.Namespace, scorer: BaseScorer, paths: list[Path], printer: _RowPrinter, progress: Progress
) -> _Counts:
    """Score the images that have no row yet, and print the rows of all."""
    if arguments.out is None:
        return _run(scorer, paths, printer, ProgressTask(progress, "scoring", len(paths)))
    from bgad.inference import score_log
    from bgad.inference.batch import THRESHOLD, output_stems

    contour = arguments.contour or THRESHOLD
    about = {
        "model": scorer.card.checksum,
        "threshold": scorer.threshold,
        "map_threshold": scorer.map_threshold,
        "engine": type(scorer).__name__,
        "precision": scorer.precision,
        "tile": scorer.tile.size,
        "overlays": not arguments.no_overlays and contour,
    }
    with score_log.open_log(arguments.out, about, paths, overwrite=arguments.overwrite) as log:
        todo = [path for path in paths if not score_log.is_done(path, log.done)]
        done = len(paths) - len(todo)
        if done:
            console.say(f"{done} of {len(paths)} images have their rows in {arguments.out} already")
        task = ProgressTask(progress, "scoring", len(paths), done)
        for row in log.rows():
            printer.add(row)
        stems = None
        if not arguments.no_overlays:
            all_stems = dict(zip(paths, output_stems(paths, log.stems), strict=True))
            stems = [all_stems[path] for path in todo]
        try:
            return _run(scorer, todo, printer, task, log, None if stems is None else arguments.out, stems, contour)
        except KeyboardInterrupt:
            console.say(f"stopped; the rows so far are in {arguments.out}: run the same command to continue")
            raise
        except OutputError as error:
            raise error if score_log.KEPT in str(error) else OutputError(f"{error}; {score_log.KEPT}") from error


def _run(
    scorer: BaseScorer,
    paths: Sequence[Path],
    printer: _RowPrinter,
    task: ProgressTask,
    log: ScoreLog | None = None,
    overlays: Path | None = None,
    stems: Sequence[Path] | None = None,
    contour: str = "",
) -> _Counts:
    """Score images; append their rows to the log and print them."""
    from bgad.inference.batch import predict

    failed = 0
    for row in predict(scorer, paths, overlays, stems, contour):
        if log is not None:
            row.setdefault("stem", None)
            log.append(row)
        failed += row["error"] is not None
        printer.add(row)
        task.advance()
    return _Counts(len(paths), failed)
