"""The report page: well formed, safe, complete, and its bars and curves show the numbers that went in."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from bgad.calibration import odds, p_words
from bgad.cli.tables import evaluation_table
from bgad.errors import OutputError
from bgad.evaluation.report import page as report
from bgad.evaluation.report.page import ClassRow, ImageRow, LevelHistogram, RateRow, Section
from bgad.evaluation.report.svg import Line, Marker, Series, curve, histogram, line_chart, nice_ticks

VOID = {"meta", "img", "br", "hr"}
HOSTILE = "\"><script>alert('x')</script><img src=http://evil.example/a.png onerror=alert(1)>.png"


class Page(HTMLParser):
    """Checks that tags balance and gathers tags, ids and links."""

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
        """Attributes of all elements with this tag and, if given, this class."""
        return [a for t, a in self.tags if t == tag and (style is None or style in a.get("class", "").split())]


def thumbnail(kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (32, 24), (200, 90, 30)).save(stream, kind)
    return stream.getvalue()


def section(**changes: Any) -> Section:
    """A plausible section: 20 normals with one false reject, 10 anomalies with two misses at threshold 1."""
    picture = thumbnail()
    normals = [ImageRow(f"good/{i}.png", "good", 0, 0.04 * i, 0.9, False) for i in range(19)]
    normals.append(ImageRow("good/strange.png", "good", 0, 1.2, 1 / 301, True, picture, picture))
    defects = [
        ImageRow(f"cut/{i}.png", "cut", 1, 0.8 + 0.2 * i, 1 / 301, i > 1, picture, picture, picture) for i in range(10)
    ]
    values: dict[str, Any] = {
        "title": "screw",
        "facts": [("Model", "screw.bgad")],
        "metrics": {"image_auroc": 0.98765, "pixel_auroc": 0.9, "pro": 0.8},
        "images": normals + defects,
        "threshold": 1.0,
        "boundary": 0.5,
        "levels": [LevelHistogram("stride 8", [-2.0, -1.0, 0.0], [10.0, 990.0], [60.0, 40.0], -0.9, -1.1)],
        "roc": ([0.0, 0.05, 1.0], [0.0, 0.8, 1.0]),
        "pro": ([0.0, 0.2, 1.0], [0.0, 0.9, 1.0]),
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
    """The visible text and the tooltips of charts, without tags."""
    return unescape(re.sub(r"<[^>]+>", " ", page.split("</style>")[1]))


def test_page_is_well_formed_and_complete() -> None:
    page = report.render("All", [section(), section(title="cable")], [cell(), cell(category="cable")])
    parsed = Page(page)
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for a in parsed.find("a")} == {"#s0", "#s1"} <= {f"#{i}" for i in ids}
    for chart in parsed.find("svg"):
        assert {chart["aria-labelledby"], chart["aria-describedby"]} <= set(ids)
    assert len(parsed.find("svg")) == 2 * 4  # scores, ROC, PRO and one level, in each of two sections
    shown = words(page)
    headings = "Summary|Image scores|ROC|PRO|Log-likelihood|By defect class|False-reject rate|Worst mistakes|Gallery"
    for heading in (*headings.split("|"), "At most 5 % of good parts", "one note", "screw.bgad"):
        assert heading in shown
    assert "0.988" in shown
    assert "0.98765" not in shown
    assert "mean of 2" in shown
    assert "1 of 20 rejected" in shown
    assert "2 of 10 missed" in shown
    assert "1 in 300 good parts looks this strange" in shown
    assert "images from 0 to 2.6; threshold 1.000" in shown  # what a screen reader hears about the histogram


def test_nothing_is_loaded_or_run() -> None:
    page = report.render("All", [section()], [cell()])
    parsed = Page(page)
    for _, attributes in parsed.tags:
        assert not [k for k in attributes if k.startswith("on")]
        for key in ("src", "href", "data", "action", "poster", "srcset", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:image/jpeg;base64,", "data:image/png;base64,"))
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    assert "@import" not in page
    assert "url(" not in page
    policy = next(a["content"] for a in parsed.find("meta") if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_hostile_names_stay_text() -> None:
    row = ImageRow(HOSTILE, HOSTILE, 1, 2.0, 0.01, True, thumbnail("PNG"), thumbnail())
    level = LevelHistogram(HOSTILE, [0.0, 1.0], [1.0], [1.0], 0.5, 0.4)
    bad = section(
        title=HOSTILE,
        facts=[(HOSTILE, HOSTILE)],
        metrics={HOSTILE: 0.5},
        images=[row],
        levels=[level],
        classes=[ClassRow(HOSTILE, 1, None, None, None, 0)],
        notes=[HOSTILE],
        guarantee=HOSTILE,
    )
    parsed = Page(page := report.render(HOSTILE, [bad, bad], [cell(**dict.fromkeys(report.KEYS, HOSTILE))]))
    assert parsed.find("script") == []
    assert all("onerror" not in attributes for _, attributes in parsed.tags)
    assert len(parsed.find("img")) == 2 * (2 + 2)  # the same card among the mistakes and in the gallery
    assert HOSTILE in words(page)


def test_broken_file_name_can_be_written(tmp_path: Path) -> None:
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    bad = section(images=[ImageRow(name, "cut", 1, 1.0, 0.1, True)])
    report.write(tmp_path / "r.html", "t", [bad], [])
    assert r"caf\udce9.png" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_missing_values() -> None:
    normals = [i for i in section().images if i.label == 0]
    bare = section(
        metrics={"image_auroc": None, "pro": None, "pixel_ap": float("nan")},
        images=[replace(i, picture=None, heat=None) for i in normals],
        threshold=float("inf"),
        levels=[],
        roc=([], []),
        pro=None,
        classes=[],
        rates=[RateRow(0.01, float("inf"), None, None, False)],
        facts=[],
        notes=[],
        guarantee="",
    )
    page = report.render("bare", [bare, section(images=[])], [])
    Page(page)
    assert page.count('title="no masks">–<') >= 2
    assert 'title="needs normal and anomalous images">–<' in page
    assert 'title="no anomalous images">–<' in page
    shown = words(page)
    for message in (
        "No masks",
        "Needs normal and anomalous images",
        "No anomalous images",
        "No pictures were kept",
    ):
        assert message in shown
    assert "not supported by so few held-out normals" in shown
    assert "Summary" not in shown
    assert "No images were scored" in shown
    assert "inf" not in re.findall(r"\w+", shown)
    assert "nan" not in re.findall(r"\w+", shown)


def test_bars_hold_the_counts() -> None:
    bars = re.findall(r"<title>(\d+) (normal|anomalous) images:", report.render("t", [section()], []))
    assert sum(int(n) for n, group in bars if group == "normal") == 20
    assert sum(int(n) for n, group in bars if group == "anomalous") == 10


def test_bar_heights_are_proportional_to_counts() -> None:
    chart = histogram("k", "t", [0.0, 1.0, 2.0, 3.0], [Series("n", "normal", [2, 0, 8])], [], "x")
    heights = [float(bar["height"]) for bar in Page(chart).find("rect", "bar")]
    assert heights[1] == pytest.approx(4 * heights[0], rel=1e-3)
    assert len(heights) == 2


def test_shares_are_normalised_and_logarithmic() -> None:
    series = [Series("n", "normal", [1, 9, 90]), Series("a", "anomalous", [500, 500, 0])]
    chart = histogram("k", "t", [0.0, 1.0, 2.0, 3.0], series, [], "x", shares=True)
    shares = [float(s) for s in re.findall(r"<title>([\d.]+) % of n:", chart)]
    assert shares == [1, 9, 90]
    assert "50 % of a" in chart
    height = [float(b["height"]) for b in Page(chart).find("rect", "bar")]
    scale = np.log10(np.array([0.01, 0.09, 0.9, 0.5, 0.5]) / 0.001)  # the floor lies below the smallest share
    np.testing.assert_allclose(np.array(height) / height[0], scale / scale[0], rtol=1e-3)


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 1)), max_size=60),
    st.floats(-10, 10) | st.just(float("inf")),
)
def test_score_bins_lose_no_image(scored: list[tuple[float, int]], threshold: float) -> None:
    images = [ImageRow("n", "d", label, score, 0.5, False) for score, label in scored]
    edges, normal, anomalous, beyond = report.score_bins(images, threshold)
    assert sum(normal) == sum(label == 0 for _, label in scored)
    assert sum(anomalous) == sum(label == 1 for _, label in scored)
    assert beyond == sum(score > edges[-1] for score, _ in scored)


def test_far_anomaly_does_not_squeeze_the_histogram() -> None:
    images = [*section().images, ImageRow("far", "cut", 1, 1e6, 0.01, True)]
    edges, normal, _, beyond = report.score_bins(images, 1.0)
    assert edges[-1] == pytest.approx(5.0)
    assert beyond == 1
    assert sum(n > 0 for n in normal) > 4


def test_threshold_line_stands_where_the_axis_says() -> None:
    chart = Page(report.render("t", [section(levels=[])], []))
    line = float(chart.find("line", "marker")[0]["x1"])
    bars = chart.find("rect", "bar")
    rejected = [float(b["x"]) > line for b in bars if "normal" in b["class"]]
    assert rejected.count(True) == 1  # the bar of the false reject


def test_curve_ends_at_the_limit_with_the_interpolated_value() -> None:
    drawn = Page(curve("k", "t", ([0.0, 0.2, 1.0], [0.0, 0.5, 0.9]), ("x", "y"), x_max=0.3))
    points = [tuple(map(float, p.split(","))) for p in drawn.find("polyline")[0]["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert (x1 - x0) / (x2 - x0) == pytest.approx(2 / 3, abs=0.01)
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.55 / 0.5, abs=0.01)


def test_lines_of_a_chart_pass_through_their_points() -> None:
    series = [Line("one <b>", [0, 5, 10], [0.5, 0.6, 0.9]), Line("two", [0, 10], [0.9, 0.7])]
    chart = line_chart("c", "title", series, ("step", "figure"), [Marker(5, "half")])
    first, second = (
        [tuple(map(float, point.split(","))) for point in found.split()]
        for found in re.findall(r'class="line c\d" points="([^"]*)"', chart)
    )
    assert first[1][0] - first[0][0] == pytest.approx(first[2][0] - first[1][0], abs=0.11)  # even steps
    assert first[0][0] == second[0][0]
    assert (first[0][1] - first[1][1]) * 3 == pytest.approx(first[1][1] - first[2][1], abs=0.5)  # up is less y
    assert first[2][1] == second[0][1]  # both 0.9
    assert "one &lt;b&gt;: 0.6000 at 5" in chart
    assert "half" in chart
    flat = line_chart("c", "title", [Line("one", [3], [0.5])], ("step", "figure"))  # one point has no extent
    assert "nan" not in flat


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_inside_even_and_few(low: float, width: float) -> None:
    high = low + width
    ticks = nice_ticks(low, high)
    slack = 1e-6 * width
    assert 2 <= len(ticks) <= 9
    assert low - slack <= ticks[0] < ticks[-1] <= high + slack
    np.testing.assert_allclose(np.diff(ticks), ticks[1] - ticks[0], rtol=1e-6)


def test_order_of_classes_rates_mistakes_and_gallery() -> None:
    strange, quiet = report.worst(section().images, 2)
    assert [i.name for i in strange] == ["good/strange.png", "good/18.png"]
    assert [i.name for i in quiet] == ["cut/0.png", "cut/1.png"]
    page = report.render("t", [section()], [])
    assert page.index("<td>dent</td>") < page.index("<td>cut</td>")
    assert page.index("0.1 %") < page.index("<td>5 %</td>")
    gallery = re.findall(r'class="name">([^<]+)<', page.split("<details")[1])
    assert gallery[0] == "cut/9.png"
    assert gallery[-1] == "cut/0.png"
    assert gallery.index("good/strange.png") < gallery.index("cut/1.png")
    assert len(gallery) == 11


def test_only_real_pictures_are_embedded() -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'
    row = ImageRow("a", "cut", 1, 1.0, 0.1, True, svg, thumbnail("PNG"))
    images = Page(report.render("t", [section(images=[row])], [])).find("img")
    assert {i["src"].split(";")[0] for i in images} == {"data:image/png"}
    assert {(i["width"], i["height"]) for i in images} == {("32", "24")}


@pytest.mark.parametrize(
    ("p_value", "sentence"),
    [
        (1 / 3, "1 in 3 good parts looks this strange"),
        (1 / 57, "1 in 57 good parts looks this strange"),
        (1 / 12345, "1 in 12,000 good parts looks this strange"),
        (1.0, "looks like most good parts"),
        (float("nan"), ""),
    ],
)
def test_p_value_in_words(p_value: float, sentence: str) -> None:
    assert p_words(p_value) == sentence


def test_beyond_all_held_out_normals() -> None:
    """24 of them say nothing rarer than 1 in 25, so nothing is said of a share."""
    assert [odds(k / 25, 24) for k in (1, 2, 3, 20)] == ["none of 24", "1 in 12", "1 in 8", "most"]
    assert odds(1 / 2, 1) == "none of 1"
    words = "tranger than all 24 good parts it was compared with"
    assert p_words(1 / 25, 24) == f"s{words}"
    row = ImageRow("a", "cut", 1, 1.0, 1 / 25, True)
    assert f"<p>S{words} (p" in report.render("t", [section(images=[row], held_out=24)], [])


def test_write_replaces_the_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    report.write(path, "first", [], [])
    report.write(path, "second", [section()], [cell()])
    assert path.read_text(encoding="utf-8") == report.render("second", [section()], [cell()])
    assert list(path.parent.iterdir()) == [path]


def test_failed_write_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    report.write(path, "old", [], [])

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OutputError, match="No space left"):
        report.write(path, "new", [], [])
    assert "old" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(OutputError, match="cannot write") as caught:
            report.write(place, "t", [], [])
        assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_terminal_table() -> None:
    cells = [
        cell(category="[red]screw"),
        cell(category="cable", metrics={"image_auroc": 0.7}),
        cell(method="nfad"),
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(evaluation_table(cells))
    lines = console.export_text().splitlines()
    assert "[red]screw" in lines[1]
    assert "0.900" in lines[1]
    assert "120 s" in lines[1]
    assert "–" in lines[1]
    assert "mean of 2" in lines[-1]
    assert "0.800" in lines[-1]  # mean image AUROC of the two bgad cells
    assert "0.700" not in lines[-1]  # F1 is missing in one of them, so it has no mean
