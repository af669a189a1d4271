"""Evaluation results -> one self-contained page: tables, charts and pictures, no script and no network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bgad.calibration import p_words
from bgad.evaluation.report.svg import STYLE, Marker, Series, curve, histogram, number, picture, table, text
from bgad.io.files import write_atomic
from bgad.metrics import METRICS as ALL_METRICS
from bgad.metrics import PRO_LIMIT

WORST = 6  # how many of the highest-scoring normals and of the lowest-scoring anomalies are shown
BINS = 30
METRICS = {name: metric.title for name, metric in ALL_METRICS.items()}
TIMES = {"train": "Training", "score": "Scoring"}
KEYS = ("data", "category", "protocol", "method", "known", "seed")


@dataclass(frozen=True)
class ImageRow:
    """One scored test image; the pictures are small JPEG or PNG files, None when not in the gallery."""

    name: str
    defect: str
    label: int
    score: float
    p_value: float
    is_anomaly: bool
    picture: bytes | None = None
    heat: bytes | None = None
    truth: bytes | None = None


@dataclass(frozen=True)
class LevelHistogram:
    """Log-likelihoods of normal and anomalous features at one level, as counts or shares per bin."""

    title: str
    edges: list[float]
    normal: list[float]
    anomalous: list[float]
    normal_boundary: float
    abnormal_boundary: float


@dataclass(frozen=True)
class ClassRow:
    """How one defect class fares; `missed` counts its images that passed as good."""

    defect: str
    images: int
    image_auroc: float | None
    pixel_auroc: float | None
    pro: float | None
    missed: int


@dataclass(frozen=True)
class RateRow:
    """A requested false-reject rate, the threshold that it gives and what was measured with it."""

    rate: float
    threshold: float
    miss_rate: float | None
    false_rejects: float | None
    supported: bool


@dataclass(frozen=True)
class Section:
    """Everything that the page tells about one category or model."""

    title: str
    facts: list[tuple[str, str]]
    metrics: dict[str, float | None]
    images: list[ImageRow]
    threshold: float
    boundary: float
    levels: list[LevelHistogram]
    roc: tuple[list[float], list[float]]  # false-positive rates, true-positive rates
    pro: tuple[list[float], list[float]] | None  # false-positive rates, mean region overlap
    classes: list[ClassRow]
    rates: list[RateRow]
    notes: list[str]
    guarantee: str  # the sentence that states what the threshold promises
    held_out: int = 0  # normals that the p-values compare with; 0: unknown


def worst(images: Sequence[ImageRow], count: int = WORST) -> tuple[list[ImageRow], list[ImageRow]]:
    """The highest-scoring normals and the lowest-scoring anomalies, worst first."""
    normals = sorted((i for i in images if i.label == 0), key=lambda i: -i.score)
    anomalies = sorted((i for i in images if i.label == 1), key=lambda i: i.score)
    return normals[:count], anomalies[:count]


def score_bins(images: Sequence[ImageRow], threshold: float) -> tuple[list[float], list[float], list[float], int]:
    """Bin edges, normal counts, anomalous counts, and how many images lie beyond the last edge.

    Far-away anomalies would squeeze everything near the threshold into one bar, so the axis ends at five
    times the way from the lowest score to the threshold; the last bar also holds what is beyond.
    """
    scores = np.array([i.score for i in images if math.isfinite(i.score)])
    labels = np.array([i.label for i in images if math.isfinite(i.score)])
    if not scores.size:
        return [0.0, 1.0], [0.0], [0.0], 0
    low, high = float(scores.min()), float(scores.max())
    if math.isfinite(threshold) and low < threshold:
        high = min(high, low + 5 * (threshold - low))
    high = high if high > low else low + 1.0
    edges = np.linspace(low, high, BINS + 1)
    inside = np.clip(scores, low, high)
    normal, anomalous = (np.histogram(inside[labels == label], edges)[0] for label in (0, 1))
    return edges.tolist(), normal.tolist(), anomalous.tolist(), int((scores > high).sum())


def _why(metric: str) -> str:
    return "needs normal and anomalous images" if metric.startswith("image") else "no masks"


def cell_time(cell: Mapping[str, Any], key: str) -> str:
    seconds = (cell.get("seconds") or {}).get(key)
    return "–" if seconds is None else f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _mean(group: Sequence[Mapping[str, Any]], part: str, keys: Iterable[str]) -> dict[str, float | None]:
    """The mean of each value, None where a cell lacks it: a mean over fewer would not compare."""
    means: dict[str, float | None] = {}
    for key in keys:
        values = [v for cell in group if (v := (cell.get(part) or {}).get(key)) is not None]
        means[key] = float(np.mean(values)) if len(values) == len(group) else None
    return means


def mean_cells(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A cell of means for each data set, protocol, method and number known that has several cells."""
    shared = ("data", "protocol", "method", "known")
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(str(cell.get(key, "")) for key in shared), []).append(cell)
    return [
        {
            **dict(zip(shared, names, strict=True)),
            "category": f"mean of {len(group)}",
            "metrics": _mean(group, "metrics", METRICS),
            "seconds": _mean(group, "seconds", TIMES),
        }
        for names, group in groups.items()
        if len(group) > 1
    ]


def _summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The table of result cells, with a mean wherever several belong together."""

    def row(cell: Mapping[str, Any]) -> list[str]:
        metrics = cell.get("metrics") or {}
        names, times = (text(cell.get(k, "")) for k in KEYS), (cell_time(cell, k) for k in TIMES)
        return [*names, *(number(metrics.get(k), _why(k)) for k in METRICS), *times]

    if not cells:
        return ""
    heads = [*(k.capitalize() for k in KEYS), *METRICS.values(), *TIMES.values()]
    shown = table(heads, [row(c) for c in cells], 4, [row(c) for c in mean_cells(cells)])
    how = (
        "One line per run. 1.000 is perfect; an AUROC of 0.500 is no better than a coin. Image figures ask "
        "“is this part bad?”, pixel figures and PRO ask “is the defect marked in the right place?”."
    )
    return f'<section id="summary"><h2>Summary</h2>{_how(how)}{shown}</section>'


def _how(words: str) -> str:
    return f'<p class="how">{text(words)}</p>'


def _figure(heading: str, chart: str, how: str) -> str:
    return f"<figure><h4>{text(heading)}</h4>{chart}<figcaption>{text(how)}</figcaption></figure>"


def _empty(words: str) -> str:
    return f'<p class="empty">{text(words)}</p>'


def _outcomes(section: Section) -> tuple[int, int, int, int]:
    """False rejects, normals, misses, anomalies."""
    normals = [i for i in section.images if i.label == 0]
    anomalies = [i for i in section.images if i.label == 1]
    return (
        sum(i.is_anomaly for i in normals),
        len(normals),
        sum(not i.is_anomaly for i in anomalies),
        len(anomalies),
    )


def _headline(section: Section) -> str:
    rejects, normals, misses, anomalies = _outcomes(section)
    tiles = [(METRICS.get(k, k.replace("_", " ")), number(v, _why(k)), "") for k, v in section.metrics.items()]
    for name, part, whole in (
        ("False rejects", rejects, normals),
        ("Misses", misses, anomalies),
    ):
        share = number(part / whole, unit="%") if whole else "no such images"
        tiles.append((name, f"{part}<small> of {whole}</small>", share))
    shown = (
        f'<div class="tile"><dt>{text(name)}</dt><dd class="value">{value}</dd><dd>{sub}</dd></div>'
        for name, value, sub in tiles
    )
    return f'<dl class="tiles">{"".join(shown)}</dl>'


def _charts(section: Section, key: str) -> str:
    """Image scores, ROC and PRO."""
    edges, normal, anomalous, beyond = score_bins(section.images, section.threshold)
    rejects, normals, misses, anomalies = _outcomes(section)
    series = [Series("normal images", "normal", normal), Series("anomalous images", "anomalous", anomalous)]
    marks = [Marker(section.threshold, f"threshold {section.threshold:.3f}")]
    how = "Each bar counts images. Good parts should lie left of the dashed line, defects right of it."
    if beyond:
        how += f" The last bar also holds {beyond} image{'s' if beyond > 1 else ''} beyond the axis."
    chart = histogram(f"{key}-scores", "Image scores", edges, series, marks, "image score (higher is stranger)")
    figures = [_figure("Image scores", chart if section.images else _empty("No images were scored."), how)]

    labels = ("good parts rejected", "defects found")
    dot = (rejects / normals, 1 - misses / anomalies) if normals and anomalies else None
    chart = curve(f"{key}-roc", "ROC curve of images", section.roc, labels, chance=True, dot=dot)
    if not section.roc[0]:
        chart = _empty("Needs normal and anomalous images.")
    how = "Moving the threshold walks along the curve. The closer to the top left corner, the better; the "
    figures.append(_figure("ROC, images", chart, how + "dotted diagonal is guessing."))

    if section.pro is not None and section.pro[0]:
        labels = ("good area marked by mistake", "defect area found")
        chart = curve(f"{key}-pro", "PRO curve", section.pro, labels, x_max=PRO_LIMIT)
    else:
        chart = _empty("No masks: nobody marked where the defects are.")
    how = "How much of each defect is marked, every defect counting alike, until 30 % of the good area is too. "
    figures.append(_figure("PRO, defect areas", chart, how + "PRO is the filled share of this chart."))
    return f'<h3>Scores and curves</h3><div class="charts">{"".join(figures)}</div>'


def _levels(section: Section, key: str) -> str:
    """Log-likelihoods of the features with both boundaries."""
    if not section.levels:
        return ""
    figures = []
    for position, level in enumerate(section.levels):
        series = [Series("normal", "normal", level.normal), Series("anomalous", "anomalous", level.anomalous)]
        marks = [
            Marker(level.normal_boundary, f"normal boundary bₙ {level.normal_boundary:.3f}"),
            Marker(level.abnormal_boundary, f"abnormal boundary bₐ {level.abnormal_boundary:.3f}"),
        ]
        title = f"Log-likelihoods, {level.title}"
        name = f"{key}-level{position}"
        chart = histogram(name, title, level.edges, series, marks, "log-likelihood", shares=True)
        figures.append(f"<figure><h4>{text(level.title)}</h4>{chart}</figure>")
    how = (
        "How usual the model finds each position of the pictures, at each scale it looks at: right is usual, "
        "left is strange. Normal (blue) should end near the normal boundary bₙ, and defects (orange) lie "
        "left of it; marked ones are pushed towards the abnormal boundary bₐ. Each colour adds up to 100 %; the "
        "scale is logarithmic, which keeps small shares visible."
    )
    return f'<h3>Log-likelihood by level</h3>{_how(how)}<div class="charts">{"".join(figures)}</div>'


def _classes(section: Section) -> str:
    """Defect classes, worst first: by image AUROC, then by the share missed."""
    if not section.classes:
        return ""
    order = sorted(
        section.classes,
        key=lambda c: (
            math.inf if c.image_auroc is None else c.image_auroc,
            -c.missed / max(c.images, 1),
            c.defect,
        ),
    )
    rows = [
        [
            text(c.defect),
            str(c.images),
            f"{c.missed} ({100 * c.missed / max(c.images, 1):.0f} %)",
            *(
                number(v, w)
                for v, w in ((c.image_auroc, _why("image")), (c.pixel_auroc, "no masks"), (c.pro, "no masks"))
            ),
        ]
        for c in order
    ]
    heads = ["Defect", "Images", "Missed", "Image AUROC", "Pixel AUROC", "PRO"]
    how = "Worst first. “Missed” passed as good at the threshold: if it is high, show the model some of these."
    return f"<div><h3>By defect class</h3>{_how(how)}{table(heads, rows, 1)}</div>"


def _rates(section: Section) -> str:
    """What each false-reject rate costs in missed defects."""
    if not section.rates:
        return ""
    rows = []
    for r in sorted(section.rates, key=lambda r: r.rate):
        measured = [
            number(r.threshold, "no finite threshold"),
            number(r.false_rejects, "no normal images", "%"),
            number(r.miss_rate, "no anomalous images", "%"),
        ]
        promise = "" if r.supported else '<span class="warn">not supported by so few held-out normals</span>'
        rows.append([f"{100 * r.rate:g} %{' ' + promise if promise else ''}", *measured])
    heads = ["Asked false-reject rate", "Threshold", "Rejected here", "Missed here"]
    how = "Rejecting fewer good parts lets more defects pass: choose the line that you can live with."
    return f"<div><h3>False-reject rate and misses</h3>{_how(how)}{table(heads, rows, 1)}</div>"


def _card(image: ImageRow, held_out: int) -> str:
    views = ((image.picture, "picture"), (image.heat, "heat map"), (image.truth, "marked defect"))
    pictures = "".join(picture(data, f"{image.name}: {what}") for data, what in views)
    group = "anomalous" if image.label else "normal"
    verdict = ("false reject" if image.is_anomaly else "passed", "found" if image.is_anomaly else "missed")[image.label]
    badge = "badge bad" if image.is_anomaly != bool(image.label) else "badge"
    words = p_words(image.p_value, held_out)
    return "".join(
        (
            f'<article class="card {group}">',
            f'<div class="views">{pictures}</div>' if pictures else "",
            f'<p class="head"><b>{text(image.defect)}</b><span class="{badge}">{verdict}</span>',
            f'<span class="num">{number(image.score, "not a number")}</span></p>',
            f"<p>{words[0].upper()}{words[1:]} (p = {image.p_value:.3g})</p>" if words else "",
            f'<p class="name">{text(image.name)}</p></article>',
        )
    )


def _cards(images: Sequence[ImageRow], held_out: int, empty: str) -> str:
    cards = "".join(_card(image, held_out) for image in images)
    return f'<div class="cards">{cards}</div>' if images else _empty(empty)


def _mistakes(section: Section) -> str:
    rejects, normals, misses, anomalies = _outcomes(section)
    strange, quiet = worst(section.images)
    look = "Look for dirt, light or a wrong label: a good part that scores high is often a surprise in the data."
    teach = "These look most like good parts to the model: teach it some of them, or give it more pixels."
    return (
        f"<h3>Worst mistakes</h3><h4>Highest-scoring good parts: {rejects} of {normals} rejected</h4>"
        f"{_how(look)}{_cards(strange, section.held_out, 'No normal images in this test.')}"
        f"<h4>Lowest-scoring defects: {misses} of {anomalies} missed</h4>"
        f"{_how(teach)}{_cards(quiet, section.held_out, 'No anomalous images in this test.')}"
    )


def _gallery(section: Section) -> str:
    images = sorted((i for i in section.images if i.picture or i.heat), key=lambda i: -i.score)
    how = (
        "Strangest first: picture, heat map and, where it is known, the outline of the true defect. Heat "
        f"above {section.boundary:.3f} lies outside the boundary of normal."
    )
    count = f"{len(images)} of {len(section.images)} images"
    cards = _cards(images, section.held_out, "No pictures were kept for this section.")
    return f"<details open><summary><h3>Gallery</h3> <span>{count}</span></summary>{_how(how)}{cards}</details>"


def _section(section: Section, key: str) -> str:
    facts = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in section.facts)
    notes = "".join(f"<li>{text(note)}</li>" for note in section.notes)
    return "".join(
        (
            f'<section id="{key}"><h2>{text(section.title)}</h2>',
            f'<dl class="facts">{facts}</dl>' if facts else "",
            _headline(section),
            f'<p class="promise">{text(section.guarantee)}</p>' if section.guarantee else "",
            f'<ul class="notes">{notes}</ul>' if notes else "",
            _charts(section, key),
            _levels(section, key),
            f'<div class="tables">{_rates(section)}{_classes(section)}</div>',
            _mistakes(section),
            _gallery(section),
            "</section>",
        )
    )


def render(title: str, sections: Sequence[Section], cells: Sequence[Mapping[str, Any]]) -> str:
    """The whole page as one string of HTML."""
    links = "".join(f'<li><a href="#s{i}">{text(s.title)}</a></li>' for i, s in enumerate(sections))
    contents = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if len(sections) > 1 else ""
    body = "".join(_section(s, f"s{i}") for i, s in enumerate(sections))
    return page(title, _summary(cells) + body, contents)


def page(title: str, body: str, contents: str = "") -> str:
    """A page around ready HTML; its security policy forbids scripts and any request."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{text(title)}</title><style>{STYLE}</style>'
    )
    top = f"<header><h1>{text(title)}</h1>{contents}</header>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{top}<main>{body}</main></body></html>\n'


def write(path: str | Path, title: str, sections: Sequence[Section], cells: Sequence[Mapping[str, Any]]) -> None:
    """Render to `path`; a crash leaves the old page or the new one."""
    write_atomic(Path(path), render(title, sections, cells).encode())
