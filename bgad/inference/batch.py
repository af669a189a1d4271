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

from bgad.calibration import percent
from bgad.errors import BgadError, DataError
from bgad.inference.base import BaseScorer, ImageArray, Result
from bgad.io import discover, render
from bgad.io.files import check_folder
from bgad.types import Scores

OVERLAY, MAP = ".overlay.png", ".map.tif"
CONTOURS = THRESHOLD, BOUNDARY = "threshold", "boundary"  # of the map: where the colour of an overlay begins


class Row(TypedDict):
    """The result of one image, as `bgad predict` prints it; an image with an error has no score."""

    path: str
    score: float | None
    p_value: float | None
    is_anomaly: bool | None
    threshold: float
    map_max: float | None  # highest value of the anomaly map; above map_threshold, the image shows a contour
    map_threshold: float
    error: str | None
    parts: dict[str, float] | None  # contributions to the score, which add up to it
    reason: str | None  # in words, why the image is called anomalous
    region: list[int] | None  # left, top, right, bottom of the contour around the map's maximum; None without any
    precision: str  # in which the image was scored
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
    scorer: BaseScorer,
    paths: Sequence[Path],
    out: Path | None = None,
    stems: Sequence[Path] | None = None,
    contour: str = THRESHOLD,
) -> Iterator[Row]:
    """Yield one row for each path, in order; with `out`, a row has a stem too.

    With `out`, overlay and map of an image are written under its stem before its row is yielded, while the next images
    are scored. The overlay is drawn on the image that was decoded for scoring; `contour`, one of CONTOURS, says where
    its colour begins.
    """
    if out is None:
        for path, result in zip(paths, scorer.score_stream(paths), strict=True):
            yield _row(path, result, scorer)
        return
    legend, names = map_legend(scorer, contour), output_stems(paths) if stems is None else stems
    yield from _predict_and_draw(scorer, paths, [out / stem for stem in names], names, legend)


def _predict_and_draw(
    scorer: BaseScorer, paths: Sequence[Path], targets: Sequence[Path], stems: Sequence[Path], legend: render.Legend
) -> Iterator[Row]:
    """Yield the rows of images whose overlays and maps are written to `targets`, at most `threads` ahead."""
    results = scorer.score_with_images(paths)
    ahead: deque[tuple[Row, Future[None] | None]] = deque()
    pool = ThreadPoolExecutor(scorer.threads)
    try:
        for path, target, stem, (result, image) in zip(paths, targets, stems, results, strict=True):
            row, drawing = _row(path, result, scorer), None
            row["stem"] = None
            if isinstance(result, Scores) and image is not None:
                row["stem"] = str(stem)
                drawing = pool.submit(_draw, image, result, legend, target)
            ahead.append((row, drawing))
            while ahead and (len(ahead) > scorer.threads or _is_drawn(ahead[0][1])):
                yield _when_drawn(*ahead.popleft())
        while ahead:
            yield _when_drawn(*ahead.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _row(path: Path, result: Result, scorer: BaseScorer) -> Row:
    row: Row = {
        "path": str(path),
        "score": None,
        "p_value": None,
        "is_anomaly": None,
        "threshold": scorer.threshold,
        "map_max": None,
        "map_threshold": scorer.map_threshold,
        "error": None,
        "parts": None,
        "reason": None,
        "region": None,
        "precision": scorer.precision,
    }
    if isinstance(result, BgadError):
        row["error"] = str(result)
    else:
        row["score"], row["p_value"], row["is_anomaly"] = result.score, result.p_value, result.is_anomaly
        row["map_max"] = float(result.map.max())
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


def map_legend(scorer: BaseScorer, contour: str = THRESHOLD) -> render.Legend:
    """Return where the colours of a model's overlays begin, and what they mean."""
    card, tile = scorer.card, scorer.tile.size
    if contour == BOUNDARY:
        meaning = f"{percent(card.config.loss.beta)} of the map values of normals lie above it"
        return render.Legend(card.map.mean, card.map.boundary, "the normal boundary", meaning)
    rate, confidence = scorer.map_calibration.rate, scorer.map_calibration.confidence
    meaning = f"at most {percent(rate)} of good images show any contour"
    if confidence is not None:
        meaning += f" ({confidence:.12g} confidence)"
    if tile != card.config.tile.size:
        meaning = f"not calibrated with tiles of {tile} pixels"
    return render.Legend(card.map.mean, scorer.map_threshold, "the map threshold", meaning)


def _draw(image: ImageArray, scores: Scores, legend: render.Legend, target: Path) -> None:
    overlay = render.overlay_with_legend(image, scores.map, legend)
    render.save_png(overlay, target.with_name(f"{target.name}{OVERLAY}"))
    render.save_map(scores.map, target.with_name(f"{target.name}{MAP}"))
