"""Batch scoring: a row for each image file, with an overlay and the raw anomaly map on request."""

from __future__ import annotations

import glob
import heapq
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import NotRequired, TypedDict

from bgad.artifact.card import Card
from bgad.errors import BgadError, DataError
from bgad.inference.base import BaseScorer, ImageArray, Result, ResultWithImage
from bgad.io import discover, render
from bgad.io.files import check_folder
from bgad.types import Scores

OVERLAY, MAP = ".overlay.png", ".map.tif"


class Row(TypedDict):
    """The result of one image, as `bgad predict` prints it; an image with an error has no score."""

    path: str
    score: float | None
    p_value: float | None
    is_anomaly: bool | None
    threshold: float
    error: str | None
    parts: dict[str, float] | None  # contributions to the score, which add up to it
    reason: str | None  # in words, why the image is called anomalous
    region: list[int] | None  # left, top, right, bottom of the region that stands out, whatever the decision
    stem: NotRequired[str | None]  # of the names of its overlay and map


def input_images(given: Sequence[str | Path], out: Path | None = None) -> list[Path]:
    """Return the images of files, folders and patterns, without overlays and maps of an earlier run in `out`.

    A file that is missing among others gets a row with an error. A missing folder raises DataError, and so do
    arguments of which none exists.
    """
    missing = [str(path) for path in given if not glob.has_magic(str(path)) and not os.path.lexists(Path(path))]
    folder = next((path for path in missing if path.endswith(("/", os.sep))), None)
    if folder or (missing and len(missing) == len(given)):
        more = f", nor any of the {len(missing) - 1} others given" if not folder and len(missing) > 1 else ""
        raise DataError(f"{folder or missing[0]}: no such {'folder' if folder else 'file or folder'}{more}")
    paths = discover.expand(given, missing_ok=True)
    if out is None:
        return paths
    check_folder(out)
    output = out.absolute()
    return [p for p in paths if not (p.name.endswith((OVERLAY, MAP)) and p.absolute().is_relative_to(output))]


def predict(
    scorer: BaseScorer, paths: Sequence[Path], out: Path | None = None, stems: Sequence[Path] | None = None
) -> Iterator[Row]:
    """Yield one row for each path, in order; with `out`, a row has a stem too.

    With `out`, overlay and map of an image are written under its stem before its row is yielded, while the next images
    are scored. The overlay is drawn on the image that was decoded for scoring.
    """
    if out is None:
        for path, result in zip(paths, scorer.score_stream(paths), strict=True):
            yield _row(path, result, scorer.threshold)
        return
    names = output_stems(paths) if stems is None else stems
    yield from _predict_and_draw(scorer, paths, scorer.score_with_images(paths), [out / stem for stem in names], names)


def _predict_and_draw(
    scorer: BaseScorer,
    paths: Sequence[Path],
    results: Iterable[ResultWithImage],
    targets: Sequence[Path],
    stems: Sequence[Path],
) -> Iterator[Row]:
    """Yield the rows of results whose overlays and maps are written to `targets`, at most `threads` ahead."""
    ahead: deque[tuple[Row, Future[None] | None]] = deque()
    pool = ThreadPoolExecutor(scorer.threads)
    try:
        for path, target, stem, (result, image) in zip(paths, targets, stems, results, strict=True):
            row, drawing = _row(path, result, scorer.threshold), None
            row["stem"] = None
            if isinstance(result, Scores) and image is not None:
                row["stem"] = str(stem)
                drawing = pool.submit(_draw, scorer, image, result, target)
            ahead.append((row, drawing))
            while ahead and (len(ahead) > scorer.threads or _is_drawn(ahead[0][1])):
                yield _when_drawn(*ahead.popleft())
        while ahead:
            yield _when_drawn(*ahead.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _row(path: Path, result: Result, threshold: float) -> Row:
    row: Row = {
        "path": str(path),
        "score": None,
        "p_value": None,
        "is_anomaly": None,
        "threshold": threshold,
        "error": None,
        "parts": None,
        "reason": None,
        "region": None,
    }
    if isinstance(result, BgadError):
        row["error"] = str(result)
    else:
        row["score"], row["p_value"], row["is_anomaly"] = result.score, result.p_value, result.is_anomaly
        row["parts"], row["reason"] = dict(result.parts), result.reason or None
        row["region"] = None if result.region is None else list(result.region)
    return row


def _is_drawn(drawing: Future[None] | None) -> bool:
    return drawing is None or drawing.done()


def _when_drawn(row: Row, drawing: Future[None] | None) -> Row:
    if drawing is not None:
        drawing.result()
    return row


def most_anomalous(rows: Iterable[Row], count: int) -> list[Row]:
    """Return up to `count` rows: those with errors first, then by falling score."""
    return heapq.nsmallest(count, rows, key=lambda r: (r["error"] is None, -(r["score"] or 0.0)))


def output_stems(paths: Sequence[Path], known: Mapping[str, str] | None = None) -> list[Path]:
    """Return a distinct name below the output folder for each image: its path below the images' common folder.

    `known` maps absolute paths to the names that earlier runs gave them; these stay.
    """
    if not paths:
        return []
    known = known or {}
    used = {stem.casefold() for stem in known.values()}
    absolute = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - resolve would follow links
    top = Path(os.path.commonpath([path.parent for path in absolute]))
    stems = []
    for path in absolute:
        if str(path) in known:
            stems.append(Path(known[str(path)]))
            continue
        name = path.relative_to(top)
        # a for a.png, then a.jpg for an a.jpg beside it, then numbers for whatever would overwrite one of them
        candidates = chain((name.with_suffix(""), name), (name.with_name(f"{name.name}-{n}") for n in count(2)))
        stems.append(next(stem for stem in candidates if str(stem).casefold() not in used))
        used.add(str(stems[-1]).casefold())
    return stems


def map_legend(card: Card) -> render.Legend:
    """Return what the colours of a model's overlays mean."""
    return render.Legend(card.map.mean, card.map.boundary, card.config.loss.beta)


def _draw(scorer: BaseScorer, image: ImageArray, scores: Scores, target: Path) -> None:
    overlay = render.overlay_with_legend(image, scores.map, map_legend(scorer.card))
    render.save_png(overlay, target.with_name(f"{target.name}{OVERLAY}"))
    render.save_map(scores.map, target.with_name(f"{target.name}{MAP}"))
