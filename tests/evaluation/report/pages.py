"""A parser of report pages, and made-up content for them."""

from __future__ import annotations

import io
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

from PIL import Image

from bgad.evaluation.report.contents import ClassRow, ImageRow, LevelHistogram, RateRow, Section

VOID = {"meta", "img", "br", "hr"}


class Page(HTMLParser):
    """Parses a page, checks that its tags balance, and collects tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def find(self, tag: str, style: str | None = None) -> list[dict[str, str]]:
        """Return the attributes of all elements with this tag and, if given, this class."""
        return [a for t, a in self.tags if t == tag and (style is None or style in a.get("class", "").split())]


def thumbnail(kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (32, 24), (200, 90, 30)).save(stream, kind)
    return stream.getvalue()


def section(**changes: Any) -> Section:
    """Return a plausible section: 20 normals with one false reject, 10 anomalies with two misses at threshold 1."""
    image = thumbnail()
    normals = [ImageRow(f"good/{i}.png", "good", 0, 0.04 * i, 0.9, False) for i in range(19)]
    normals.append(ImageRow("good/odd.png", "good", 0, 1.2, 1 / 301, True, image, image))
    defects = [
        ImageRow(f"cut/{i}.png", "cut", 1, 0.8 + 0.2 * i, 1 / 301, i > 1, image, image, image) for i in range(10)
    ]
    values: dict[str, Any] = {
        "title": "screw",
        "facts": [("Model", "screw.bgad")],
        "metrics": {"image_auroc": 0.98765, "pixel_auroc": 0.9, "pro": 0.8},
        "images": normals + defects,
        "threshold": 1.0,
        "map_threshold": 0.5,
        "with_contour": (1, 20),
        "levels": [LevelHistogram("stride 8", [-2.0, -1.0, 0.0], [10.0, 990.0], [60.0, 40.0], -0.9, -1.1)],
        "roc": ([0.0, 0.05, 1.0], [0.0, 0.8, 1.0]),
        "pro": ([0.0, 0.2, 0.3], [0.0, 0.9, 1.0]),
        "classes": [ClassRow("cut", 5, 0.99, 0.9, 0.8, 0), ClassRow("dent", 5, 0.7, None, None, 2)],
        "rates": [RateRow(0.05, 0.9, 0.1, 0.05, True), RateRow(0.001, 1.5, 0.4, 0.0, False)],
        "notes": ["one note"],
        "guarantee": "At most 5 % of good parts are rejected.",
    }
    return Section(**(values | changes))


def cell(**changes: Any) -> dict[str, Any]:
    metrics = {"image_auroc": 0.9, "image_ap": 0.8, "image_f1_max": 0.7, "pixel_auroc": None, "pro": None}
    names = {
        "data": "mvtec",
        "category": "screw",
        "protocol": "multi",
        "method": "bgad",
        "known": 10,
        "seed": 0,
    }
    return {**names, "metrics": metrics, "seconds": {"train": 120.4, "score": 0.05}, **changes}


def words(page: str) -> str:
    """Return the visible text and the tooltips of charts, without tags."""
    return unescape(re.sub(r"<[^>]+>", " ", page.split("</style>")[1]))
