"""Building blocks of a report page: escaped text, numbers, tables, figures and embedded images."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape

from PIL import Image


def text(value: object) -> str:
    """Escape a value as HTML text; invalid characters of file names are spelt out, so that the page stays UTF-8.

    >>> text('<b> & "quotes"')
    '&lt;b&gt; &amp; &quot;quotes&quot;'
    """
    return escape(str(value).encode("utf-8", "backslashreplace").decode("utf-8"))


def number(value: float | None, why: str = "no masks", unit: str = "") -> str:
    """Format a number with three decimals, or a dash with the reason as tooltip; unit "%" formats a share as per cent.

    >>> number(0.98765), number(0.0125, unit="%")
    ('0.988', '1.2 %')
    """
    if value is None or not math.isfinite(value):
        return f'<span class="none" title="{text(why)}">–</span>'
    return f"{100 * value:.1f} %" if unit == "%" else f"{value:.3f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int, foot: Sequence[Sequence[str]] = ()) -> str:
    """Return a table of ready HTML cells; the first `words` columns are text, the others are numbers."""

    def row(cells: Sequence[str], tag: str = "td") -> str:
        kinds = ("" if i < words else ' class="num"' for i in range(len(cells)))
        return f"<tr>{''.join(f'<{tag}{k}>{cell}</{tag}>' for k, cell in zip(kinds, cells, strict=True))}</tr>"

    tail = f"<tfoot>{''.join(map(row, foot))}</tfoot>" if foot else ""
    inner = f"<thead>{row(heads, 'th')}</thead><tbody>{''.join(map(row, rows))}</tbody>{tail}"
    return f'<div class="scroll"><table>{inner}</table></div>'


def embedded_image(data: bytes | None, words: str) -> str:
    """Return an image element with embedded data; anything but a JPEG or PNG file is left out."""
    if data is None:
        return ""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            kind, (width, height) = str(image.format).lower(), image.size
    except (OSError, ValueError):
        return ""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    return f'<img src="{source}" alt="{text(words)}" title="{text(words)}" width="{width}" height="{height}">'


def caption(words: str) -> str:
    """Return a paragraph that explains how to read what follows."""
    return f'<p class="how">{text(words)}</p>'


def empty(words: str) -> str:
    """Return the placeholder of a chart or gallery that has no content."""
    return f'<p class="empty">{text(words)}</p>'


def figure(heading: str, chart: str, words: str) -> str:
    """Return a chart with its heading and caption."""
    return f"<figure><h4>{text(heading)}</h4>{chart}<figcaption>{text(words)}</figcaption></figure>"
