"""Score files one after the other: a row for each, and pictures of where it looks strange."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.table import Table
from rich.text import Text

from bgad import images
from bgad.errors import BgadError, OutputError
from bgad.report import p_words
from bgad.scorer import BaseScorer
from bgad.types import FloatArray, Scores


def predict(scorer: BaseScorer, paths: Sequence[Path], out: Path | None = None) -> Iterator[dict[str, Any]]:
    """One row per path, in order: path, score, p_value, is_anomaly, threshold, error."""
    names = _output_names(paths) if out else []
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
                _draw(scorer, paths[i], result, out / names[i])
        yield row


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """For the terminal: strangest first."""
    drawn = Table("image", "score", "verdict", "how strange")
    ranked = sorted(rows, key=lambda r: (r["error"] is None, -(r["score"] or 0.0)))
    for row in ranked:
        if row["error"] is not None:
            drawn.add_row(Text(row["path"]), "-", Text("error", "red"), Text(row["error"]))
            continue
        verdict = Text("anomalous", "bold red") if row["is_anomaly"] else Text("normal", "green")
        drawn.add_row(Text(row["path"]), f"{row['score']:.3f}", verdict, p_words(row["p_value"]))
    return drawn


def _output_names(paths: Sequence[Path]) -> list[str]:
    """Names below the output folder: the inputs' own sub-folders from where they part, unique."""
    resolved = [path.resolve() for path in paths]
    top = Path(os.path.commonpath([p.parent for p in resolved]))
    names, taken = [], set()
    for path in resolved:
        name = str(path.relative_to(top).with_suffix(""))
        if name in taken:
            name = str(path.relative_to(top)).replace(".", "_")  # a.png and a.jpg side by side
        taken.add(name)
        names.append(name)
    return names


def _draw(scorer: BaseScorer, path: Path, result: Scores, stem: Path) -> None:
    picture = images.read(path, bits=scorer.card.bits)
    heat = images.overlay(picture, result.map, scorer.card.map_boundary, scorer.card.map_centre)
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {stem.parent}: {error.strerror or error}") from error
    images.save_png(heat, stem.with_name(f"{stem.name}.overlay.png"))
    _save_map(result.map, stem.with_name(f"{stem.name}.map.tif"))


def _save_map(values: FloatArray, path: Path) -> None:
    """32-bit float TIFF: every image tool reads it, and nothing is rounded."""
    try:
        Image.fromarray(np.ascontiguousarray(values)).save(path, compression="tiff_adobe_deflate")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
