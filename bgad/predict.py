"""Score files one after the other: a row for each, and pictures of where it looks strange."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from bgad import images
from bgad.console import printable
from bgad.errors import BgadError
from bgad.outputs import check_folder
from bgad.report import odds
from bgad.scorer import BaseScorer
from bgad.types import Scores

OVERLAY, MAP = ".overlay.png", ".map.tif"


def find(given: Sequence[str | Path], out: Path | None = None) -> list[Path]:
    """The images to score: files, folders and patterns, without what an earlier run wrote to `out`."""
    paths = images.expand(given, missing_ok=True)
    if out is None:
        return paths
    check_folder(out)
    own = out.absolute()
    return [p for p in paths if not (p.name.endswith((OVERLAY, MAP)) and p.absolute().is_relative_to(own))]


def predict(
    scorer: BaseScorer, paths: Sequence[Path], out: Path | None = None, stems: Sequence[Path] | None = None
) -> Iterator[dict[str, Any]]:
    """One row per path, in order: path, score, p_value, is_anomaly, threshold, error.

    With `out`, the pictures of an image are there before its row is given, under its stem.
    """
    if stems is None:
        stems = output_stems(paths) if out else []
    for i, result in enumerate(scorer.score_stream(paths)):
        row: dict[str, Any] = {
            "path": str(paths[i]),
            "score": None,
            "p_value": None,
            "is_anomaly": None,
            "threshold": scorer.threshold,
            "error": None,
        }
        if isinstance(result, BgadError):
            row["error"] = str(result)
        else:
            row |= {"score": result.score, "p_value": result.p_value, "is_anomaly": result.is_anomaly}
            if out is not None:
                _draw(scorer, paths[i], result, out / stems[i])
        yield row


def strangest(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """What could not be read, then the strangest first."""
    return heapq.nsmallest(count, rows, key=lambda r: (r["error"] is None, -(r["score"] or 0.0)))


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """For the terminal, the strangest first; the path, however long, comes last."""
    drawn = Table("verdict", "score", "good parts\nso strange", "image", box=None, pad_edge=False)
    drawn.columns[1].justify = "right"
    drawn.columns[3].overflow = "fold"
    for row in strangest(rows, len(rows)):
        if row["error"] is not None:
            drawn.add_row(Text("error", "red"), "", "", Text(printable(row["error"])))
            continue
        verdict = Text("anomalous", "bold red") if row["is_anomaly"] else Text("normal", "green")
        drawn.add_row(verdict, f"{row['score']:.3f}", odds(row["p_value"]), Text(printable(row["path"])))
    return drawn


def output_stems(paths: Sequence[Path], taken: Iterable[str] = ()) -> list[Path]:
    """Names below the output folder: the inputs' own sub-folders from where they part, each name once, and none that is
    taken."""
    if not paths:
        return []
    used = {name.casefold() for name in taken}
    absolute = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - resolve would follow links
    top = Path(os.path.commonpath([path.parent for path in absolute]))
    stems: dict[str, Path] = {}
    for path in absolute:
        name = path.relative_to(top)
        # a.png, then a.jpg beside it, then whatever else would be written over one of them
        tries = chain((name.with_suffix(""), name), (name.with_name(f"{name.name}-{n}") for n in count(2)))
        stem = next(t for t in tries if str(t).casefold() not in stems and str(t).casefold() not in used)
        stems[str(stem).casefold()] = stem
    return list(stems.values())


def _draw(scorer: BaseScorer, path: Path, result: Scores, stem: Path) -> None:
    picture = images.read(path, bits=scorer.card.bits)
    heat = images.overlay(picture, result.map, scorer.card.map_boundary, scorer.card.map_centre)
    images.save_png(heat, stem.with_name(f"{stem.name}{OVERLAY}"))
    images.save_map(result.map, stem.with_name(f"{stem.name}{MAP}"))
