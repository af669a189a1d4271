"""Charts of the report as inline SVG: histograms, ROC and PRO curves, and line charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bgad.evaluation.report.html import text

WIDTH, HEIGHT = 400, 280
LEFT, RIGHT, BOTTOM, ROW = 68, 12, 44, 17  # margins of the plot; ROW: height of one line of text above the plot


@dataclass(frozen=True)
class Series:
    """One group of a chart; `style` is a CSS class of the page, such as "normal" or "anomalous"."""

    name: str
    style: str
    values: Sequence[float]


@dataclass(frozen=True)
class Marker:
    """A labelled dashed line at a value of the x axis."""

    value: float
    label: str


@dataclass(frozen=True)
class Line:
    """One of the curves of a line chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers inside [low, high].

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> nice_ticks(-7.0, 23.0)
    [-5.0, 0.0, 5.0, 10.0, 15.0, 20.0]
    """
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]  # + 0.0 turns -0.0 into 0.0


@dataclass(frozen=True)
class _Axis:
    """Maps the range [low, high] to the coordinates [start, end] of the chart, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of a value; values outside of the range are clipped to its ends."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the values of the ticks with their labels; a logarithmic axis has powers of ten as per cent."""
        if self.log:
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [(10.0**p, f"{100 * 10.0**p:g} %") for p in powers]
        return [(v, f"{v:g}") for v in nice_ticks(self.low, self.high)]


def _tag(name: str, body: str | None = None, **attributes: object) -> str:
    """Return one SVG element; numbers get two decimals, `cls` stands for class, and `_` for a dash."""
    parts = [name]
    for key, value in attributes.items():
        shown = f"{value:.2f}" if isinstance(value, float) else text(value)
        parts.append(f'{"class" if key == "cls" else key.replace("_", "-")}="{shown}"')
    return f"<{' '.join(parts)}/>" if body is None else f"<{' '.join(parts)}>{body}</{name}>"


def _frame(x: _Axis, y: _Axis, x_label: str, y_label: str) -> list[str]:
    """Draw grid, tick labels and axis titles."""
    items: list[str] = []
    for value, label in y.ticks():
        at = y.at(value)
        items.append(_tag("line", cls="grid", x1=x.start, x2=x.end, y1=at, y2=at))
        items.append(_tag("text", text(label), x=x.start - 7, y=at + 4, text_anchor="end"))
    for value, label in x.ticks():
        at = x.at(value)
        items.append(_tag("line", cls="axis", x1=at, x2=at, y1=y.start, y2=y.start + 4))
        items.append(_tag("text", text(label), x=at, y=y.start + 17, text_anchor="middle"))
    items.append(_tag("line", cls="axis", x1=x.start, x2=x.end, y1=y.start, y2=y.start))
    middle = (x.start + x.end) / 2
    items.append(_tag("text", text(x_label), cls="label", x=middle, y=HEIGHT - 6, text_anchor="middle"))
    turned = f"translate(10 {(y.start + y.end) / 2:.2f}) rotate(-90)"
    items.append(_tag("text", text(y_label), cls="label", transform=turned, text_anchor="middle"))
    return items


def _legend(series: Sequence[Series]) -> list[str]:
    """Draw colour and name of each group, on the first line above the plot."""
    items, x = [], float(LEFT)
    for group in series:
        items.append(_tag("rect", cls=f"key {group.style}", x=x, y=4.0, width=11.0, height=11.0, rx=2))
        items.append(_tag("text", text(group.name), x=x + 16, y=14.0))
        x += 34 + 6.6 * len(group.name)
    return items


def _markers(markers: Sequence[Marker], x: _Axis, y: _Axis) -> list[str]:
    """Draw dashed lines; each label has its own line of text, so that labels of close lines do not overlap."""
    items = []
    for row, marker in enumerate(markers, start=1):
        at, base = x.at(marker.value), row * ROW + 14.0
        left = at > (x.start + x.end) / 2
        items.append(_tag("line", cls="marker", x1=at, x2=at, y1=base - 9, y2=y.start))
        side = {"x": at - 5 if left else at + 5, "text_anchor": "end" if left else "start"}
        items.append(_tag("text", text(marker.label), cls="mark", y=base, **side))
    return items


def _chart(key: str, title: str, desc: str, items: Sequence[str]) -> str:
    """Return the SVG image with title and description for screen readers; `key` must be unique on the page."""
    head = _tag("title", text(title), id=f"{key}-t") + _tag("desc", text(desc), id=f"{key}-d")
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{key}-t" aria-describedby="{key}-d">{head}{"".join(items)}</svg>'
    )


def histogram(
    key: str,
    title: str,
    edges: Sequence[float],
    series: Sequence[Series],
    markers: Sequence[Marker],
    x_label: str,
    *,
    shares: bool = False,
) -> str:
    """Draw bars of each group over shared bins; bars show their values as tooltips.

    Heights are counts. With `shares`, each group adds up to 100 % and the y axis is logarithmic, because a tail of one
    in a thousand features separates the groups.
    """
    markers = [m for m in markers if math.isfinite(m.value)]
    low, high = min([edges[0], *(m.value for m in markers)]), max([edges[-1], *(m.value for m in markers)])
    x = _Axis(low, high if high > low else low + 1.0, LEFT, WIDTH - RIGHT)
    bottom, top = float(HEIGHT - BOTTOM), ROW * (len(markers) + 1) + 6.0
    if shares:
        series = [Series(s.name, s.style, [v / (sum(s.values) or 1) for v in s.values]) for s in series]
        smallest = min((v for s in series for v in s.values if v > 0), default=0.1)
        floor = 10.0 ** max(-5, min(-1, math.floor(math.log10(smallest) - 1e-9)))
        y = _Axis(floor, 1.0, bottom, top, log=True)
    else:
        y = _Axis(0.0, max([4.0, *(v for s in series for v in s.values)]), bottom, top)
    items = _frame(x, y, x_label, "share of positions (log)" if shares else "images")
    for group in series:
        for left, right, value in zip(edges[:-1], edges[1:], group.values, strict=True):
            if value <= 0:
                continue
            amount = f"{100 * value:.2g} % of {group.name}" if shares else f"{value:g} {group.name}"
            tooltip = _tag("title", text(f"{amount}: {left:.4g} to {right:.4g}"))
            start, end = x.at(left), x.at(right)
            box = {"x": start, "width": max(end - start - 0.6, 0.5)}
            box |= {"y": y.at(value), "height": bottom - y.at(value)}
            items.append(_tag("rect", tooltip, cls=f"bar {group.style}", **box))
    items += [*_legend(series), *_markers(markers, x, y)]
    reach = f"from {edges[0]:.4g} to {edges[-1]:.4g}"
    groups = " and ".join(s.name for s in series)
    return _chart(key, title, "; ".join([f"Histogram of {groups} {reach}", *(m.label for m in markers)]), items)


def curve(
    key: str,
    title: str,
    points: tuple[Sequence[float], Sequence[float]],
    labels: tuple[str, str],
    *,
    x_max: float = 1.0,
    chance: bool = False,
    dot: tuple[float, float] | None = None,
) -> str:
    """Draw a curve over [0, x_max] x [0, 1]; `chance` adds the diagonal, `dot` marks the point of the threshold."""
    x = _Axis(0.0, x_max, LEFT, WIDTH - RIGHT)
    y = _Axis(0.0, 1.0, HEIGHT - BOTTOM, ROW + 6.0)
    items = _frame(x, y, *labels)
    if chance:
        ends = {"x1": x.at(0), "y1": y.at(0), "x2": x.at(x_max), "y2": y.at(min(x_max, 1.0))}
        items.append(_tag("line", None, cls="chance", **ends))
    places = list(dict.fromkeys(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in zip(*points, strict=True)))
    if places:
        base = f"{x.at(points[0][-1]):.1f},{y.at(0):.1f}"
        area = " ".join([f"{x.at(points[0][0]):.1f},{y.at(0):.1f}", *places, base])
        items.append(_tag("polygon", cls="area", points=area))
        items.append(_tag("polyline", cls="line", points=" ".join(places)))
    if dot:
        items.append(_tag("circle", cls="dot", cx=x.at(dot[0]), cy=y.at(dot[1]), r=4.5))
        items.append(_tag("circle", cls="dot", cx=LEFT + 6.0, cy=9.5, r=4.5))
        items.append(_tag("text", "at the threshold", x=LEFT + 16.0, y=14.0))
    where = f" At the threshold: {dot[0]:.3f}, {dot[1]:.3f}." if dot else ""
    return _chart(key, title, f"{labels[1]} over {labels[0]}, up to {x_max:g}.{where}", items)


def line_chart(
    key: str, title: str, series: Sequence[Line], labels: tuple[str, str], markers: Sequence[Marker] = ()
) -> str:
    """Draw up to four curves over shared axes that fit the values; each point has a dot with a tooltip."""
    xs, ys = [x for s in series for x in s.x], [y for s in series for y in s.y]
    low, high = min(ys), max(ys)
    edge = 0.05 * (high - low) or 0.05
    x = _Axis(0.0, max(xs) or 1.0, LEFT, WIDTH - RIGHT)
    y = _Axis(low - edge, high + edge, HEIGHT - BOTTOM, ROW * (len(markers) + 1) + 6.0)
    items = _frame(x, y, *labels)
    for number, line in enumerate(series):
        places = [(x.at(a), y.at(b)) for a, b in zip(line.x, line.y, strict=True)]
        items.append(_tag("polyline", cls=f"line c{number}", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in places)))
        for (a, b), step, value in zip(places, line.x, line.y, strict=True):
            tooltip = _tag("title", text(f"{line.name}: {value:.4f} at {step:g}"))
            items.append(_tag("circle", tooltip, cls=f"point c{number}", cx=a, cy=b, r=2.5))
    items += _legend([Series(s.name, f"c{i}", s.y) for i, s in enumerate(series)]) + _markers(markers, x, y)
    ends = "; ".join(f"{s.name} ends at {s.y[-1]:.3f}" for s in series if s.y)
    return _chart(key, title, f"{labels[1]} over {labels[0]}. {ends}.", items)
