"""Score files one after the other: a row for each, and pictures of where it looks strange."""

from __future__ import annotations

import glob
import heapq
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import Any

from bgad.errors import BgadError, DataError
from bgad.inference.base import BaseScorer
from bgad.io import discover, images, render
from bgad.io.files import check_folder
from bgad.types import Scores

OVERLAY, MAP = ".overlay.png", ".map.tif"


def find(given: Sequence[str | Path], out: Path | None = None) -> list[Path]:
    """The images to score: files, folders and patterns, without what an earlier run wrote to `out`.

    A file that is missing among others is for its row to tell; a folder that is, or all that was given, is an error.
    """
    lost = [str(one) for one in given if not glob.has_magic(str(one)) and not os.path.lexists(Path(one))]
    folder = next((one for one in lost if one.endswith(("/", os.sep))), None)
    if folder or (lost and len(lost) == len(given)):
        more = f", nor any of the {len(lost) - 1} others given" if not folder and len(lost) > 1 else ""
        raise DataError(f"{folder or lost[0]}: no such {'folder' if folder else 'file or folder'}{more}")
    paths = discover.expand(given, missing_ok=True)
    if out is None:
        return paths
    check_folder(out)
    own = out.absolute()
    return [p for p in paths if not (p.name.endswith((OVERLAY, MAP)) and p.absolute().is_relative_to(own))]


def predict(
    scorer: BaseScorer, paths: Sequence[Path], out: Path | None = None, stems: Sequence[Path] | None = None
) -> Iterator[dict[str, Any]]:
    """One row per path, in order: path, score, p_value, is_anomaly, threshold, error; with `out` also stem.

    With `out`, the pictures of an image are there before its row is given, under its stem. They are drawn while the
    next images are scored.
    """
    if stems is None:
        stems = output_stems(paths) if out else []
    ahead: deque[tuple[dict[str, Any], Future[None] | None]] = deque()
    pool = ThreadPoolExecutor(scorer.threads)
    try:
        for i, result in enumerate(scorer.score_stream(paths)):
            row: dict[str, Any] = {
                "path": str(paths[i]),
                "score": None,
                "p_value": None,
                "is_anomaly": None,
                "threshold": scorer.threshold,
                "error": None,
            } | ({"stem": None} if out else {})
            drawing = None
            if isinstance(result, BgadError):
                row["error"] = str(result)
            else:
                row |= {"score": result.score, "p_value": result.p_value, "is_anomaly": result.is_anomaly}
                if out is not None:
                    row["stem"] = str(stems[i])
                    drawing = pool.submit(_draw, scorer, paths[i], result, out / stems[i])
            ahead.append((row, drawing))
            while ahead and (len(ahead) > scorer.threads or _is_there(ahead[0][1])):
                yield _when_there(*ahead.popleft())
        while ahead:
            yield _when_there(*ahead.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _is_there(drawing: Future[None] | None) -> bool:
    return drawing is None or drawing.done()


def _when_there(row: dict[str, Any], drawing: Future[None] | None) -> dict[str, Any]:
    if drawing is not None:
        drawing.result()
    return row


def strangest(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """What could not be read, then the strangest first."""
    return heapq.nsmallest(count, rows, key=lambda r: (r["error"] is None, -(r["score"] or 0.0)))


def output_stems(paths: Sequence[Path], known: Mapping[str, str] | None = None) -> list[Path]:
    """Names below the output folder: the inputs' own sub-folders from where they part, each name once. A file keeps the
    one that is `known` of it."""
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
        # a.png, then a.jpg beside it, then whatever else would be written over one of them
        tries = chain((name.with_suffix(""), name), (name.with_name(f"{name.name}-{n}") for n in count(2)))
        stems.append(next(t for t in tries if str(t).casefold() not in used))
        used.add(str(stems[-1]).casefold())
    return stems


def _draw(scorer: BaseScorer, path: Path, result: Scores, stem: Path) -> None:
    picture = images.read(path, bits=scorer.card.input.bits)
    heat = render.overlay(picture, result.map, scorer.card.map.boundary, scorer.card.map.mean)
    render.save_png(heat, stem.with_name(f"{stem.name}{OVERLAY}"))
    render.save_map(result.map, stem.with_name(f"{stem.name}{MAP}"))
