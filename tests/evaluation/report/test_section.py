"""Sections of the report: counts, order of rows and images, and what is embedded."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgad.calibration import odds, p_words
from bgad.evaluation.build_section import _frame
from bgad.evaluation.report import page as report
from bgad.evaluation.report.contents import ImageRow, worst
from bgad.evaluation.report.section import score_bins
from bgad.types import Scores
from tests.evaluation.report.pages import Page, section, thumbnail


def test_bars_hold_the_counts() -> None:
    bars = re.findall(r"<title>(\d+) (normal|anomalous) images:", report.render("t", [section()], []))
    assert sum(int(n) for n, group in bars if group == "normal") == 20
    assert sum(int(n) for n, group in bars if group == "anomalous") == 10


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 1)), max_size=60),
    st.floats(-10, 10) | st.just(float("inf")),
)
def test_score_bins_lose_no_image(scored: list[tuple[float, int]], threshold: float) -> None:
    images = [ImageRow("n", "d", label, score, 0.5, False) for score, label in scored]
    edges, normal, anomalous, beyond = score_bins(images, threshold)
    assert sum(normal) == sum(label == 0 for _, label in scored)
    assert sum(anomalous) == sum(label == 1 for _, label in scored)
    assert beyond == sum(score > edges[-1] for score, _ in scored)


def test_far_anomaly_does_not_squeeze_the_histogram() -> None:
    images = [*section().images, ImageRow("far", "cut", 1, 1e6, 0.01, True)]
    edges, normal, _, beyond = score_bins(images, 1.0)
    assert edges[-1] == pytest.approx(5.0)
    assert beyond == 1
    assert sum(n > 0 for n in normal) > 4


def test_threshold_line_stands_where_the_axis_says() -> None:
    chart = Page(report.render("t", [section(levels=[])], []))
    line = float(chart.find("line", "marker")[0]["x1"])
    bars = chart.find("rect", "bar")
    rejected = [float(b["x"]) > line for b in bars if "normal" in b["class"]]
    assert rejected.count(True) == 1  # the bar of the false reject


def test_order_of_classes_rates_mistakes_and_gallery() -> None:
    high_normals, low_anomalies = worst(section().images, 2)
    assert [i.name for i in high_normals] == ["good/odd.png", "good/18.png"]
    assert [i.name for i in low_anomalies] == ["cut/0.png", "cut/1.png"]
    page = report.render("t", [section()], [])
    assert page.index("<td>dent</td>") < page.index("<td>cut</td>")
    assert page.index("0.1 %") < page.index("<td>5 %</td>")
    gallery = re.findall(r'class="name">([^<]+)<', page.split("<details")[1])
    assert gallery[0] == "cut/9.png"
    assert gallery[-1] == "cut/0.png"
    assert gallery.index("good/odd.png") < gallery.index("cut/1.png")
    assert len(gallery) == 11


def test_only_real_images_are_embedded() -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'
    row = ImageRow("a", "cut", 1, 1.0, 0.1, True, svg, thumbnail("PNG"))
    images = Page(report.render("t", [section(images=[row])], [])).find("img")
    assert {i["src"].split(";")[0] for i in images} == {"data:image/png"}
    assert {(i["width"], i["height"]) for i in images} == {("32", "24")}


@pytest.mark.parametrize(
    ("p_value", "sentence"),
    [
        (1 / 3, "1 in 3 good parts scores this high"),
        (1 / 57, "1 in 57 good parts scores this high"),
        (1 / 12345, "1 in 12,000 good parts scores this high"),
        (1.0, "scores like most good parts"),
        (float("nan"), ""),
    ],
)
def test_p_value_in_words(p_value: float, sentence: str) -> None:
    assert p_words(p_value) == sentence


def test_beyond_all_held_out_normals() -> None:
    """24 normals support no share below 1 in 25, so none is stated."""
    assert [odds(k / 25, 24) for k in (1, 2, 3, 20)] == ["none of 24", "1 in 12", "1 in 8", "most"]
    assert odds(1 / 2, 1) == "none of 1"
    words = "cores higher than all 24 good parts it was compared with"
    assert p_words(1 / 25, 24) == f"s{words}"
    row = ImageRow("a", "cut", 1, 1.0, 1 / 25, True)
    assert f"<p>S{words} (p" in report.render("t", [section(images=[row], held_out=24)], [])


def test_a_rejected_image_says_why() -> None:
    parts = {"map": 3.0, "image": 0.5, "known": 0.0}
    rejected = ImageRow("a", "cut", 1, 3.5, 0.1, True, parts=parts, reason="a region stands out", region=[1, 2, 3, 4])
    passed = ImageRow("b", "good", 0, 0.5, 0.9, False, parts=parts, region=[1, 2, 3, 4])
    page = report.render("t", [section(images=[rejected, passed])], [])
    words = '<p class="why" title="map 3 + image 0.5 + known 0 = 3.5">A region stands out</p>'
    assert page.count('<p class="why"') == page.count(words) == 1


def test_a_frame_is_around_the_region_of_a_rejected_image() -> None:
    scores = Scores(2.0, 0.1, 1.0, True, np.zeros((100, 200), np.float32), 1.0, 1.0, region=(80, 40, 120, 60))
    frame = _frame(scores, (100, 200), (50, 100))
    assert frame is not None
    rows, columns = np.nonzero(frame)
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (38, 18, 62, 32)
    assert _frame(replace(scores, is_anomaly=False), (100, 200), (50, 100)) is None
    assert _frame(replace(scores, region=None), (100, 200), (50, 100)) is None
    at_the_border = _frame(replace(scores, region=(0, 0, 200, 100)), (100, 200), (50, 100))
    assert at_the_border is not None
    assert at_the_border.all()
