"""Renders one section of the report: headline figures, charts, tables, worst mistakes and gallery."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bgad.calibration import p_words
from bgad.evaluation.cells import METRIC_TITLES
from bgad.evaluation.decisions import share_words
from bgad.evaluation.report.charts import Marker, Series, curve, histogram
from bgad.evaluation.report.contents import ImageRow, Section, worst
from bgad.evaluation.report.html import caption, embedded_image, empty, figure, number, table, text
from bgad.metrics import PRO_LIMIT

BINS = 30


def render_section(section: Section, key: str) -> str:
    """Return a section as HTML; `key` is its id on the page."""
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


def score_bins(images: Sequence[ImageRow], threshold: float) -> tuple[list[float], list[float], list[float], int]:
    """Return bin edges, normal counts, anomalous counts, and the number of images beyond the last edge.

    Very high scores would squeeze everything near the threshold into one bar. The axis therefore ends at five times
    the distance from the lowest score to the threshold, and the last bar also counts the images beyond it.
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
    clipped = np.clip(scores, low, high)
    normal, anomalous = (np.histogram(clipped[labels == label], edges)[0] for label in (0, 1))
    return edges.tolist(), normal.tolist(), anomalous.tolist(), int((scores > high).sum())


def missing_reason(metric: str) -> str:
    """Say why a metric has no value."""
    return "needs normal and anomalous images" if metric.startswith("image") else "no masks"


def _outcomes(section: Section) -> tuple[int, int, int, int]:
    """Return the numbers of false rejects, normals, misses and anomalies."""
    normals = [i for i in section.images if i.label == 0]
    anomalies = [i for i in section.images if i.label == 1]
    false_rejects, misses = sum(i.is_anomaly for i in normals), sum(not i.is_anomaly for i in anomalies)
    return false_rejects, len(normals), misses, len(anomalies)


def _headline(section: Section) -> str:
    false_rejects, normals, misses, anomalies = _outcomes(section)
    tiles = [
        (METRIC_TITLES.get(key, key.replace("_", " ")), number(value, missing_reason(key)), "")
        for key, value in section.metrics.items()
    ]
    for name, count, total in (("False rejects", false_rejects, normals), ("Misses", misses, anomalies)):
        tiles.append((name, f"{count}<small> of {total}</small>", _share(count, total)))
    shown = (
        f'<div class="tile"><dt>{text(name)}</dt><dd class="value">{value}</dd><dd>{share}</dd></div>'
        for name, value, share in tiles
    )
    return f'<dl class="tiles">{"".join(shown)}</dl>'


def _share(count: int, total: int) -> str:
    """Return a measured rate with its interval, as HTML."""
    rate, interval = share_words(count, total)
    return f'{rate} <span title="95 % Clopper-Pearson interval">({interval})</span>' if total else rate


def _charts(section: Section, key: str) -> str:
    figures = _score_figure(section, key) + _roc_figure(section, key) + _pro_figure(section, key)
    return f'<h3>Scores and curves</h3><div class="charts">{figures}</div>'


def _score_figure(section: Section, key: str) -> str:
    words = "Each bar counts images. Good parts should lie left of the dashed line, defects right of it."
    if not section.images:
        return figure("Image scores", empty("No images were scored."), words)
    edges, normal, anomalous, beyond = score_bins(section.images, section.threshold)
    if beyond:
        words += f" The last bar also holds {beyond} image{'s' if beyond > 1 else ''} beyond the axis."
    series = [Series("normal images", "normal", normal), Series("anomalous images", "anomalous", anomalous)]
    marks = [Marker(section.threshold, f"threshold {section.threshold:.3f}")]
    chart = histogram(f"{key}-scores", "Image scores", edges, series, marks, "image score (higher: more anomalous)")
    return figure("Image scores", chart, words)


def _roc_figure(section: Section, key: str) -> str:
    false_rejects, normals, misses, anomalies = _outcomes(section)
    words = (
        "Another threshold is another point of the curve. The closer to the top left corner, the better; the dotted "
        "diagonal is chance."
    )
    if not section.roc[0]:
        return figure("ROC, images", empty("Needs normal and anomalous images."), words)
    labels = ("good parts rejected", "defects found")
    dot = (false_rejects / normals, 1 - misses / anomalies) if normals and anomalies else None
    return figure(
        "ROC, images", curve(f"{key}-roc", "ROC curve of images", section.roc, labels, chance=True, dot=dot), words
    )


def _pro_figure(section: Section, key: str) -> str:
    words = (
        "The mean share of each defect that is marked, every defect with the same weight, against the share of normal "
        "pixels that is marked, up to 30 %. PRO is the filled share of this chart."
    )
    if section.pro is not None and section.pro[0]:
        labels = ("normal pixels marked", "defect area marked")
        chart = curve(f"{key}-pro", "PRO curve", section.pro, labels, x_max=PRO_LIMIT)
    else:
        chart = empty("No masks: it is not known where the defects are.")
    return figure("PRO, defect areas", chart, words)


def _levels(section: Section, key: str) -> str:
    """Render the values of the features at each level, with both boundaries."""
    if not section.levels:
        return ""
    figures = []
    for position, level in enumerate(section.levels):
        series = [Series("normal", "normal", level.normal), Series("anomalous", "anomalous", level.anomalous)]
        marks = [
            Marker(level.normal_boundary, f"normal boundary bₙ {level.normal_boundary:.3f}"),
            Marker(level.abnormal_boundary, f"abnormal boundary bₐ {level.abnormal_boundary:.3f}"),
        ]
        title = f"{section.level_value.capitalize()}, {level.title}"
        name = f"{key}-level{position}"
        chart = histogram(name, title, level.edges, series, marks, section.level_value, shares=True)
        figures.append(f"<figure><h4>{text(level.title)}</h4>{chart}</figure>")
    words = (
        f"The {section.level_value} of the features at every position, for each level of the model. Normal features "
        "(blue) should end near the normal boundary bₙ. Features of defects (orange) should lie left of it; training "
        "pushes those of known anomalies towards the abnormal boundary bₐ. Each colour adds up to 100 %; the "
        "logarithmic scale keeps small shares visible."
    )
    heading = f"<h3>{section.level_value.capitalize()} by level</h3>"
    return f'{heading}{caption(words)}<div class="charts">{"".join(figures)}</div>'


def _classes(section: Section) -> str:
    """Render the defect classes, worst first: by image AUROC, then by the share missed."""
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
            number(c.image_auroc, missing_reason("image_auroc")),
            number(c.pixel_auroc, missing_reason("pixel_auroc")),
            number(c.pro, missing_reason("pro")),
        ]
        for c in order
    ]
    heads = ["Defect", "Images", "Missed", *(METRIC_TITLES[key] for key in ("image_auroc", "pixel_auroc", "pro"))]
    words = (
        "Worst first. “Missed” images score below the threshold. If many images of a class are missed, train with some "
        "of them as known anomalies."
    )
    return f"<div><h3>By defect class</h3>{caption(words)}{table(heads, rows, 1)}</div>"


def _rates(section: Section) -> str:
    """Render the share of missed defects at each false-reject rate."""
    if not section.rates:
        return ""
    rows = []
    for r in sorted(section.rates, key=lambda r: r.rate):
        measured = [
            number(r.threshold, "no finite threshold"),
            number(r.false_rejects, "no normal images", "%"),
            number(r.miss_rate, "no anomalous images", "%"),
        ]
        warning = "" if r.supported else ' <span class="warn">not supported by so few held-out normals</span>'
        rows.append([f"{100 * r.rate:g} %{warning}", *measured])
    heads = ["Requested false-reject rate", "Threshold", "Rejected here", "Missed here"]
    words = "A lower false-reject rate lets more defects pass: choose the row with the better trade-off."
    return f"<div><h3>False-reject rate and misses</h3>{caption(words)}{table(heads, rows, 1)}</div>"


def _card(image: ImageRow, held_out: int) -> str:
    views = ((image.thumbnail, "image"), (image.heat_map, "anomaly map"), (image.mask_outline, "marked defect"))
    shown = "".join(embedded_image(data, f"{image.name}: {what}") for data, what in views)
    group = "anomalous" if image.label else "normal"
    verdict = ("false reject" if image.is_anomaly else "passed", "found" if image.is_anomaly else "missed")[image.label]
    badge = "badge bad" if image.is_anomaly != bool(image.label) else "badge"
    words = p_words(image.p_value, held_out)
    return "".join(
        (
            f'<article class="card {group}">',
            f'<div class="views">{shown}</div>' if shown else "",
            f'<p class="head"><b>{text(image.defect)}</b><span class="{badge}">{verdict}</span>',
            f'<span class="num">{number(image.score, "not a number")}</span></p>',
            f"<p>{_sentence(words)} (p = {image.p_value:.3g})</p>" if words else "",
            f'<p class="why" title="{_parts(image)}">{text(_sentence(image.reason))}</p>' if image.reason else "",
            f'<p class="name">{text(image.name)}</p></article>',
        )
    )


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _parts(image: ImageRow) -> str:
    """Return the parts of a score as text, for example `map 3.1 + image 0.4 + known 0 = 3.5`."""
    return f"{' + '.join(f'{name} {part:.3g}' for name, part in image.parts.items())} = {image.score:.3g}"


def _cards(images: Sequence[ImageRow], held_out: int, placeholder: str) -> str:
    cards = "".join(_card(image, held_out) for image in images)
    return f'<div class="cards">{cards}</div>' if images else empty(placeholder)


def _mistakes(section: Section) -> str:
    false_rejects, normals, misses, anomalies = _outcomes(section)
    high_normals, low_anomalies = worst(section.images)
    check = "Check these for dirt, light or a wrong label: a good part with a high score is often an error in the data."
    teach = "These are the hardest to tell from good parts: teach the model some of them, or train at a larger size."
    return (
        f"<h3>Worst mistakes</h3><h4>Highest-scoring good parts: {false_rejects} of {normals} rejected</h4>"
        f"{caption(check)}{_cards(high_normals, section.held_out, 'No normal images in this test.')}"
        f"<h4>Lowest-scoring defects: {misses} of {anomalies} missed</h4>"
        f"{caption(teach)}{_cards(low_anomalies, section.held_out, 'No anomalous images in this test.')}"
    )


def _gallery(section: Section) -> str:
    images = sorted((i for i in section.images if i.thumbnail or i.heat_map), key=lambda i: -i.score)
    contours, normals = section.with_contour
    words = (
        "Highest score first: image, anomaly map and, where there is a mask, the outline of the defect. The map "
        f"exceeds the map threshold, {section.map_threshold:.3f}, on {contours} of {normals} good images. A rejected "
        "image says why; a frame in its anomaly map is around the region that stands out. Point at the words to see "
        "the parts of the score."
    )
    count = f"{len(images)} of {len(section.images)} images"
    cards = _cards(images, section.held_out, "No thumbnails were kept for this section.")
    legend = embedded_image(section.legend, "colours of the anomaly maps") if images else ""
    head = f"<summary><h3>Gallery</h3> <span>{count}</span></summary>"
    return f"<details open>{head}{caption(words)}{legend}{cards}</details>"
