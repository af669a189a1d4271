"""The building blocks of the report: HTML tables and pictures, charts as inline SVG, and the style sheet."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

WIDTH, HEIGHT = 400, 280
LEFT, RIGHT, BOTTOM, ROW = 68, 12, 44, 17  # ROW: height of one line of text above the plot


@dataclass(frozen=True)
class Series:
    """One group of a chart; `style` is a CSS class of the page: "normal", "anomalous" or "curve"."""

    name: str
    style: str
    values: Sequence[float]


@dataclass(frozen=True)
class Marker:
    """A value on the x axis that gets a dashed line and a label."""

    value: float
    label: str


@dataclass(frozen=True)
class Line:
    """One curve of a chart with several."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def text(value: object) -> str:
    """Anything as HTML text; broken characters of file names are spelt out, so it stays UTF-8.

    >>> text('<b> & "quotes"')
    '&lt;b&gt; &amp; &quot;quotes&quot;'
    """
    return escape(str(value).encode("utf-8", "backslashreplace").decode("utf-8"))


def number(value: float | None, why: str = "no masks", unit: str = "") -> str:
    """Three decimals, or a dash that says on hover why there is no number; "%" shows a share as per cent.

    >>> number(0.98765), number(0.0125, unit="%")
    ('0.988', '1.2 %')
    """
    if value is None or not math.isfinite(value):
        return f'<span class="none" title="{text(why)}">–</span>'
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.3f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int, foot: Sequence[Sequence[str]] = ()) -> str:
    """A table of ready HTML cells; the first `words` columns are text, the others are numbers."""

    def row(cells: Sequence[str], tag: str = "td") -> str:
        kinds = ("" if i < words else ' class="num"' for i in range(len(cells)))
        return f"<tr>{''.join(f'<{tag}{k}>{cell}</{tag}>' for k, cell in zip(kinds, cells, strict=True))}</tr>"

    tail = f"<tfoot>{''.join(map(row, foot))}</tfoot>" if foot else ""
    inner = f"<thead>{row(heads, 'th')}</thead><tbody>{''.join(map(row, rows))}</tbody>{tail}"
    return f'<div class="scroll"><table>{inner}</table></div>'


def picture(data: bytes | None, words: str) -> str:
    """An embedded thumbnail; anything but a JPEG or PNG file is left out."""
    if data is None:
        return ""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            kind, (width, height) = str(image.format).lower(), image.size
    except (OSError, ValueError):
        return ""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    return f'<img src="{source}" alt="{text(words)}" title="{text(words)}" width="{width}" height="{height}">'


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers inside [low, high], about `count` of them.

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
    """A stretch of numbers laid on a stretch of the picture; `log` takes powers of ten."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a number lies in the picture; what is outside sticks to the edge."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Values with their labels."""
        if self.log:
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [(10.0**p, f"{100 * 10.0**p:g} %") for p in powers]
        return [(v, f"{v:g}") for v in nice_ticks(self.low, self.high)]


def _tag(name: str, body: str | None = None, **attributes: object) -> str:
    """One SVG element; numbers get two decimals; `cls` stands for class and `_` for a dash."""
    parts = [name]
    for key, value in attributes.items():
        shown = f"{value:.2f}" if isinstance(value, float) else text(value)
        parts.append(f'{"class" if key == "cls" else key.replace("_", "-")}="{shown}"')
    return f"<{' '.join(parts)}/>" if body is None else f"<{' '.join(parts)}>{body}</{name}>"


def _frame(x: _Axis, y: _Axis, x_label: str, y_label: str) -> list[str]:
    """Grid, tick labels and axis titles."""
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
    """Colour and name of each group, on the first line above the plot."""
    items, x = [], float(LEFT)
    for one in series:
        items.append(_tag("rect", cls=f"key {one.style}", x=x, y=4.0, width=11.0, height=11.0, rx=2))
        items.append(_tag("text", text(one.name), x=x + 16, y=14.0))
        x += 34 + 6.6 * len(one.name)
    return items


def _markers(markers: Sequence[Marker], x: _Axis, y: _Axis) -> list[str]:
    """Dashed lines; each label has a line of text of its own, so that near neighbours stay readable."""
    items = []
    for row, marker in enumerate(markers, start=1):
        at, base = x.at(marker.value), row * ROW + 14.0
        left = at > (x.start + x.end) / 2
        items.append(_tag("line", cls="marker", x1=at, x2=at, y1=base - 9, y2=y.start))
        side = {"x": at - 5 if left else at + 5, "text_anchor": "end" if left else "start"}
        items.append(_tag("text", text(marker.label), cls="mark", y=base, **side))
    return items


def _chart(key: str, title: str, desc: str, items: Sequence[str]) -> str:
    """The picture with its name and description for screen readers; `key` must be unique on the page."""
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
    """Bars of each group over shared bins.

    With `shares`, each group adds up to 100 % and the y axis is logarithmic (a tail of one in a thousand
    features is what tells the groups apart); otherwise heights are counts. Bars name themselves on hover.
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
    for one in series:
        for left, right, value in zip(edges[:-1], edges[1:], one.values, strict=True):
            if value <= 0:
                continue
            amount = f"{100 * value:.2g} % of {one.name}" if shares else f"{value:g} {one.name}"
            name = _tag("title", text(f"{amount}: {left:.4g} to {right:.4g}"))
            start, end = x.at(left), x.at(right)
            place = {"x": start, "width": max(end - start - 0.6, 0.5)}
            place |= {"y": y.at(value), "height": bottom - y.at(value)}
            items.append(_tag("rect", name, cls=f"bar {one.style}", **place))
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
    """A curve over [0, x_max] x [0, 1]; `chance` adds the diagonal, `dot` marks where the threshold works."""
    x = _Axis(0.0, x_max, LEFT, WIDTH - RIGHT)
    y = _Axis(0.0, 1.0, HEIGHT - BOTTOM, ROW + 6.0)
    items = _frame(x, y, *labels)
    if chance:
        ends = {"x1": x.at(0), "y1": y.at(0), "x2": x.at(x_max), "y2": y.at(min(x_max, 1.0))}
        items.append(_tag("line", None, cls="chance", **ends))
    inside = _cut(points, x_max)
    places = list(dict.fromkeys(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in inside))
    if places:
        base = f"{x.at(inside[-1][0]):.1f},{y.at(0):.1f}"
        area = " ".join([f"{x.at(inside[0][0]):.1f},{y.at(0):.1f}", *places, base])
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
    """Up to four curves over shared axes that end where the values do; a dot for each point names it on hover."""
    xs, ys = [x for s in series for x in s.x], [y for s in series for y in s.y]
    low, high = min(ys), max(ys)
    edge = 0.05 * (high - low) or 0.05
    x = _Axis(0.0, max(xs) or 1.0, LEFT, WIDTH - RIGHT)
    y = _Axis(low - edge, high + edge, HEIGHT - BOTTOM, ROW * (len(markers) + 1) + 6.0)
    items = _frame(x, y, *labels)
    for number, one in enumerate(series):
        places = [(x.at(a), y.at(b)) for a, b in zip(one.x, one.y, strict=True)]
        items.append(_tag("polyline", cls=f"line c{number}", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in places)))
        for (a, b), step, value in zip(places, one.x, one.y, strict=True):
            name = _tag("title", text(f"{one.name}: {value:.4f} at {step:g}"))
            items.append(_tag("circle", name, cls=f"point c{number}", cx=a, cy=b, r=2.5))
    items += _legend([Series(s.name, f"c{i}", s.y) for i, s in enumerate(series)]) + _markers(markers, x, y)
    ends = "; ".join(f"{s.name} ends at {s.y[-1]:.3f}" for s in series if s.y)
    return _chart(key, title, f"{labels[1]} over {labels[0]}. {ends}.", items)


def _cut(points: tuple[Sequence[float], Sequence[float]], x_max: float) -> list[tuple[float, float]]:
    """The points up to x_max, with the crossing interpolated.

    >>> _cut(([0.0, 0.2, 0.4], [0.0, 0.5, 0.7]), 0.3)
    [(0.0, 0.0), (0.2, 0.5), (0.3, 0.6)]
    """
    kept: list[tuple[float, float]] = []
    for a, b in zip(*points, strict=True):
        if a > x_max:
            if kept:
                (a0, b0) = kept[-1]
                kept.append((x_max, round(b0 + (b - b0) * (x_max - a0) / (a - a0), 6)))
            break
        kept.append((a, b))
    return kept


# Blue and vermilion of Okabe and Ito's palette, lighter on dark: told apart with common colour blindness.
STYLE = """
:root{--bg:#fff;--panel:#f6f7f9;--ink:#1b1f24;--soft:#5b6470;--rule:#dfe3e8;--grid:#e8ebef;
--normal:#0072b2;--anomalous:#d55e00;--bad:#a63f00;--badbg:#fdeee3;--ok:#00527f;--okbg:#e5f1f8}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14171b;--panel:#1d2127;--ink:#e6e9ed;--soft:#9aa4b0;
--rule:#323942;--grid:#282e36;--normal:#56a9e0;--anomalous:#f08a3c;--bad:#ffb27d;--badbg:#43260f;--ok:#9dd0f2;
--okbg:#12334a}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0 auto;max-width:1200px;padding:2.5rem clamp(1rem,4vw,2.5rem) 4rem;background:var(--bg);
color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1,h2,h3,h4{line-height:1.25;margin:0;font-weight:600;overflow-wrap:anywhere}
h1{font-size:1.9rem;letter-spacing:-.015em}
h2{font-size:1.45rem;letter-spacing:-.01em;margin-bottom:.75rem}
h3{font-size:1.1rem;margin:2.5rem 0 .35rem}
h4{font-size:.95rem;margin:1.25rem 0 .35rem}
section{margin-top:2.5rem}
section+section{border-top:1px solid var(--rule);padding-top:2.5rem}
a{color:var(--ok)}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1.25rem;list-style:none;margin:.75rem 0 0;padding:0}
.how,figcaption,.empty{color:var(--soft);font-size:.9rem;margin:.25rem 0 .75rem;max-width:75ch}
.empty{padding:1.25rem;border:1px dashed var(--rule);border-radius:8px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.45rem .9rem .45rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:500;vertical-align:bottom}
tfoot td{font-weight:600}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th.num{white-space:normal}
#summary td{white-space:nowrap}
td:last-child,th:last-child{padding-right:0}
.none{color:var(--soft);cursor:help}
.warn{display:block;color:var(--bad);font-size:.85em}
dl,dd{margin:0}
.facts{display:flex;flex-wrap:wrap;gap:.2rem 1.75rem;font-size:.9rem}
.facts div{display:flex;gap:.4rem;min-width:0}
.facts dt{color:var(--soft)}
.facts dd{overflow-wrap:anywhere;min-width:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(7.4rem,1fr));gap:.75rem;margin:1.25rem 0}
.tile{background:var(--panel);border-radius:10px;padding:.8rem .95rem}
.tile dt,.tile dd{color:var(--soft);font-size:.82rem}
.tile .value{color:var(--ink);
font-size:1.55rem;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums}
.tile small{font-size:.9rem;font-weight:400;color:var(--soft)}
.promise{border-left:3px solid var(--normal);padding:.15rem 0 .15rem .9rem;margin:1.25rem 0;max-width:80ch}
.notes{color:var(--soft);padding-left:1.2rem;margin:.75rem 0;max-width:80ch}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:1rem 2rem}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 2.5rem}
.tables>div{min-width:0}
figure{margin:0;max-width:560px;min-width:0}
figure h4{margin:.75rem 0 .4rem}
.chart{display:block;width:100%;height:auto;overflow:visible}
.chart text{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.chart .mark{fill:var(--ink)}
.grid{stroke:var(--grid)}
.axis{stroke:var(--soft)}
.bar{fill-opacity:.62}
.bar:hover{fill-opacity:1}
.bar.normal,.key.normal{fill:var(--normal)}
.bar.anomalous,.key.anomalous{fill:var(--anomalous)}
.marker{stroke:var(--ink);stroke-width:1.3;stroke-dasharray:5 3}
.chance{stroke:var(--soft);stroke-dasharray:2 4}
.line{fill:none;stroke:var(--normal);stroke-width:2.2;stroke-linejoin:round}
.line.c1{stroke:var(--anomalous)}.line.c2{stroke:var(--soft)}.line.c3{stroke:var(--ink)}
.key.c0,.point.c0{fill:var(--normal)}.key.c1,.point.c1{fill:var(--anomalous)}
.key.c2,.point.c2{fill:var(--soft)}.key.c3,.point.c3{fill:var(--ink)}
.area{fill:var(--normal);fill-opacity:.1}
.dot{fill:var(--anomalous);stroke:var(--bg);stroke-width:1.5}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:1rem}
.card{background:var(--panel);border-radius:10px;padding:.7rem;font-size:.85rem;
border-top:3px solid var(--normal)}
.card.anomalous{border-color:var(--anomalous)}
.card p{margin:.15rem 0}
.views{display:grid;grid-template-columns:repeat(3,1fr);gap:.35rem;margin-bottom:.5rem}
.views img{display:block;width:100%;height:auto;border-radius:5px}
.head{display:flex;gap:.6rem;align-items:baseline}
.head b{overflow-wrap:anywhere}
.head .num{margin-left:auto;font-weight:600}
.badge{border-radius:99px;padding:0 .55rem;font-size:.78rem;white-space:nowrap;
background:var(--okbg);color:var(--ok)}
.badge.bad{background:var(--badbg);color:var(--bad);font-weight:600}
.name{color:var(--soft);overflow-wrap:anywhere}
summary{cursor:pointer;margin-top:2.5rem}
summary h3{display:inline;margin:0}
summary span{color:var(--soft);font-size:.9rem}
@media print{body{max-width:none;padding:0;font-size:11px}figure,.card,.tile,tr{break-inside:avoid}
h2,h3,h4{break-after:avoid}nav{display:none}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
.scroll{overflow:visible}.cards{grid-template-columns:repeat(3,1fr)}.charts{grid-template-columns:repeat(3,1fr)}}
"""
