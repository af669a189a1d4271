"""Charts: bars, curves and ticks are where the numbers say."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgad.evaluation.report.charts import Line, Marker, Series, curve, histogram, line_chart, nice_ticks
from tests.evaluation.report.pages import Page


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


def test_a_curve_passes_through_its_points() -> None:
    drawn = Page(curve("k", "t", ([0.0, 0.2, 0.3], [0.0, 0.5, 0.55]), ("x", "y"), x_max=0.3))
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
