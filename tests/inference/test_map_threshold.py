"""The promise of the map threshold: at most the false-reject rate of good images shows any contour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import bgad
from bgad.calibration import Calibration, rank
from bgad.inference.base import BaseScorer
from bgad.io.images import resize_map, shrink_map
from bgad.types import AnyArray, FloatArray, Scores
from tests.conftest import SIZE, draw_image

SHAPES = ((32, 32), (90, 50), (20, 24), (32, 7))  # at which maps of 32 x 32 are drawn
SPLITS = 3_000


def four_deviations(rate: float, draws: int) -> float:
    return 4 * float(np.sqrt(rate * (1 - rate) / draws))


def shares_with_contour(
    maxima: AnyArray, drawn: AnyArray, n: int, rate: float, *, training_normals: bool = False
) -> AnyArray:
    """Over many random splits: how often a good image shows a contour, at each resolution; `drawn` is (images, sizes).

    The first n of a split calibrate, as training does it, and the next one is a new image.
    """
    rng, shown = np.random.default_rng(0), []
    for _ in range(SPLITS):
        chosen = rng.permutation(len(maxima))[: n + 1]
        values = maxima[chosen[:n]] - (0.5 if training_normals else 0.0)
        shown.append(drawn[chosen[n]] > Calibration.from_scores(values.tolist(), rate).threshold)
    shares: AnyArray = np.mean(shown, axis=0)
    return shares


@pytest.fixture(scope="module")
def synthetic() -> tuple[AnyArray, AnyArray]:
    """Maxima of smooth maps, some with a speck of dust, and the maxima of what is drawn of them."""
    rng = np.random.default_rng(5)
    maps = []
    for _ in range(600):
        smooth = resize_map(rng.gamma(2.0, 1.0, (8, 8)).astype(np.float32), (32, 32))
        if rng.random() < 0.03:
            smooth[tuple(rng.integers(0, 32, 2))] += 8
        maps.append(smooth)
    drawn = [[float(resize_map(m, shape).max()) for shape in SHAPES] for m in maps]
    return np.array([float(m.max()) for m in maps]), np.array(drawn)


@pytest.mark.parametrize(("rate", "n"), [(0.01, 99), (0.05, 60), (0.1, 25)])
def test_no_more_good_images_show_a_contour_than_promised(
    synthetic: tuple[AnyArray, AnyArray], rate: float, n: int
) -> None:
    maxima, drawn = synthetic
    shares = shares_with_contour(maxima, drawn, n, rate)
    assert (shares <= rate + four_deviations(rate, SPLITS)).all()
    exact = rank(n, rate) / (n + 1)  # what is drawn at the model's own resolution wastes nothing of the promise
    assert shares[0] == pytest.approx(exact, abs=four_deviations(exact, SPLITS) + 0.002)


def test_a_biased_map_threshold_would_be_noticed(synthetic: tuple[AnyArray, AnyArray]) -> None:
    """The statistical test has power: maxima of training normals are lower, and break the promise."""
    shares = shares_with_contour(*synthetic, 60, 0.05, training_normals=True)
    assert shares[0] > 0.05 + four_deviations(0.05, SPLITS)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.floats(-9, 9, width=32)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_resizing_a_map_never_raises_its_maximum(anomaly_map: FloatArray, shape: tuple[int, int]) -> None:
    assert resize_map(anomaly_map, shape).max() <= anomaly_map.max() + 1e-5
    assert shrink_map(anomaly_map, shape).max() <= anomaly_map.max() + 1e-5


@given(st.integers(1, 50), st.integers(1, 50), st.data())
def test_a_small_map_still_shows_a_single_pixel(height: int, width: int, data: st.DataObject) -> None:
    shape = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    row, column = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    anomaly_map = np.zeros((height, width), np.float32)
    anomaly_map[row, column] = 1
    small = shrink_map(anomaly_map, shape)
    assert small.shape == shape
    ((top,), (left,)) = np.nonzero(small)
    assert abs((top + 0.5) / shape[0] - (row + 0.5) / height) <= 1 / shape[0]
    assert abs((left + 0.5) / shape[1] - (column + 0.5) / width) <= 1 / shape[1]


def pixels(scorer: BaseScorer, image: AnyArray) -> FloatArray:
    return scorer.prepare(image)[0][None]


def test_the_promise_holds_for_a_real_model(model: Path) -> None:
    """Good images of several sizes, each scored once; the splits are of their maps."""
    scorer = bgad.load(model, "cpu", threads=1)
    rng = np.random.default_rng(11)
    maxima, drawn = [], []
    for i in range(80):
        image, _ = draw_image(rng, defect=False)
        image = image.repeat(2, axis=i % 2)  # 128 x 64 or 64 x 128
        maxima.append(float(scorer.run(pixels(scorer, image)).maps.max()))
        drawn.append([float(scorer.score(image).map.max())])
    shares = shares_with_contour(np.array(maxima), np.array(drawn), 39, 0.05)
    assert 0.01 < shares[0] <= 0.05 + four_deviations(0.05, SPLITS)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_the_card_holds_the_maxima_of_the_calibration_normals(engine: str, model: Path, data_set: Path) -> None:
    """By every engine; and the image that sets the threshold shows no contour."""
    scorer = bgad.load(model, "cpu", engine=engine)
    stored = scorer.card.calibration_at()
    names = [image["name"] for image in scorer.card.split["images"] if image["role"] == "calibration"]
    found = scorer.score_many([data_set / name for name in names])
    maxima = sorted(float(s.map.max()) for s in found)
    assert maxima == pytest.approx(stored.map_maxima, rel=1e-4)
    assert all(own <= raised for own, raised in zip(maxima, stored.map_maxima, strict=True))
    k = rank(len(names), stored.false_reject_rate)
    assert scorer.map_threshold == stored.map_threshold == stored.map_maxima[-k]
    assert sum(s.region is not None for s in found) == k - 1


def test_words_and_contour_say_the_same_at_every_rate(model: Path, data_set: Path) -> None:
    scorer = bgad.load(model, "cpu")
    files = sorted((data_set / "test").rglob("*.png"))
    before = scorer.map_threshold
    contours = []
    for rate in (None, 0.5):
        if rate is not None:
            scorer.set_rate(rate)
        results = scorer.score_many(files)
        contours.append(sum(_agrees(s, scorer.map_threshold) for s in results))
    assert scorer.map_threshold == scorer.card.calibration_at().map_calibration(0.5).threshold < before
    assert 0 < contours[0] <= contours[1]


def _agrees(scores: Scores, map_threshold: float) -> bool:
    assert scores.map_threshold == map_threshold
    has_contour = bool(scores.map.max() > map_threshold)
    assert (scores.region is not None) == has_contour
    assert scores.reason.startswith("a region stands out") == (scores.is_anomaly and has_contour)
    if scores.region is not None:
        left, top, right, bottom = scores.region
        assert 0 <= left < right <= SIZE
        assert scores.map[top:bottom, left:right].max() == scores.map.max()
    return has_contour
