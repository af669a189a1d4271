"""Metrics against scikit-learn, against a slow, independent PRO, and against what holds for any scores."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, stats
from sklearn import metrics as reference

from bgad import metrics
from bgad.types import BoolArray, FloatArray

Maps = list[FloatArray]
Masks = list[BoolArray | None]
quick = settings(deadline=None, max_examples=50)


def slow_pro(maps: Maps, masks: Masks, limit: float) -> float:
    """PRO by its definition: one pass over every region for every distinct score."""
    regions: list[npt.NDArray[Any]] = []
    normals: list[float] = []
    for values, mask in zip(maps, masks, strict=True):
        truth = np.zeros(values.shape, dtype=np.bool_) if mask is None else mask
        normals += values[~truth].tolist()
        found, count = ndimage.label(truth, structure=np.ones((3, 3)))
        regions += [values[found == k] for k in range(1, count + 1)]
    normal = np.array(normals)
    points = [(0.0, 0.0)]
    for threshold in sorted({v for values in maps for v in values.ravel().tolist()}, reverse=True):
        overlap = sum(float(np.mean(region >= threshold)) for region in regions) / len(regions)
        points.append((float(np.mean(normal >= threshold)), overlap))
    area = 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 >= limit:
            break
        if x1 > limit:
            x1, y1 = limit, y0 + (y1 - y0) * (limit - x0) / (x1 - x0)
        area += (x1 - x0) * (y0 + y1) / 2
    return area / limit


def example(seed: int, levels: int | None = None) -> tuple[Maps, Masks]:
    """Maps of several sizes; masks with a ring, border contact and a diagonal pair; two normal images."""
    rng = np.random.default_rng(seed)
    sizes = [(12, 17), (9, 9), (16, 8), (11, 13), (7, 20)]
    maps = [rng.normal(size=size).astype(np.float32) for size in sizes]
    ring, border, pair = (np.zeros(size, dtype=np.bool_) for size in sizes[:3])
    ring[2:8, 3:9] = True
    ring[4:6, 5:7] = False  # a hole: normal pixels
    ring[10, 15] = True
    border[0, :4] = border[5:, 8] = True
    pair[2:4, 2:4] = pair[4:6, 4:6] = pair[12:, :3] = True  # the first two touch at a corner only
    masks: Masks = [ring, border, pair, None, np.zeros(sizes[4], dtype=np.bool_)]
    for values, mask in zip(maps, masks, strict=True):
        if mask is not None:
            values[mask] += 1
    if levels is not None:
        maps = [np.round(values * levels) / np.float32(levels) for values in maps]
    return maps, masks


def flat(maps: Maps, masks: Masks) -> tuple[FloatArray, BoolArray]:
    truth = [
        np.zeros(values.shape, dtype=np.bool_) if mask is None else mask
        for values, mask in zip(maps, masks, strict=True)
    ]
    return np.concatenate(maps, axis=None), np.concatenate(truth, axis=None)


@st.composite
def scored(draw: st.DrawFn) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Scores and labels of both classes; few distinct values, so ties are common."""
    values = draw(st.lists(st.integers(-6, 6), min_size=2, max_size=40))
    labels = draw(st.lists(st.integers(0, 1), min_size=len(values), max_size=len(values)))
    labels[:2] = [0, 1]
    return np.array(values, dtype=np.float64) / 4, np.array(labels)


@quick
@given(scored())
def test_image_metrics_equal_scikit_learn(data: tuple[Any, Any]) -> None:
    scores, labels = data
    assert metrics.auroc(scores, labels) == pytest.approx(reference.roc_auc_score(labels, scores), abs=1e-12)
    expected = reference.average_precision_score(labels, scores)
    assert metrics.average_precision(scores, labels) == pytest.approx(expected, abs=1e-12)


@quick
@given(scored())
def test_roc_curve_equals_scikit_learn(data: tuple[Any, Any]) -> None:
    scores, labels = data
    fpr, tpr, _ = reference.roc_curve(labels, scores, drop_intermediate=False)
    curve = metrics.roc_curve(scores, labels)
    assert curve is not None
    theirs = set(zip(np.round(fpr, 9), np.round(tpr, 9), strict=True))
    ours = set(zip(np.round(curve[0], 9), np.round(curve[1], 9), strict=True))
    assert ours <= theirs
    for x, y in theirs - ours:  # what we leave out lies on a level part of the curve
        assert curve[0].min() < x < curve[0].max()
        assert np.interp(x, *curve) == pytest.approx(y, abs=1e-8)
    assert reference.auc(*curve) == pytest.approx(metrics.auroc(scores, labels), abs=1e-12)


@quick
@given(scored())
def test_best_f1_is_the_best_and_its_threshold_gives_it(data: tuple[Any, Any]) -> None:
    scores, labels = data
    best = metrics.f1_best(scores, labels)
    assert best is not None
    every = [reference.f1_score(labels, scores >= t) for t in set(scores)]
    assert best[0] == pytest.approx(max(every), abs=1e-12)
    assert reference.f1_score(labels, scores > best[1]) == pytest.approx(best[0], abs=1e-12)
    assert metrics.f1_max(scores, labels) == best[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("low", [0.0, 1.0, 1 + 2**-23, 1 + 2**-52, -np.inf, -3e38])
def test_best_threshold_separates_neighbouring_and_extreme_scores(dtype: type, low: float) -> None:
    high = np.nextafter(dtype(low), dtype(np.inf)) if abs(low) < 2 else dtype(3e38)
    scores: npt.NDArray[Any] = np.array([low, high], dtype=dtype)
    best = metrics.f1_best(scores, [0, 1])
    assert best is not None
    assert best[0] == 1.0
    assert (scores > dtype(best[1])).tolist() == [False, True]
    everything = metrics.f1_best(scores[::-1], [0, 1])  # the anomaly is the lowest: call all of them anomalous
    assert everything is not None
    assert everything[0] == pytest.approx(2 / 3)
    assert np.isinf(low) or (scores > dtype(everything[1])).all()


@quick
@given(scored())
def test_metrics_see_only_the_order(data: tuple[Any, Any]) -> None:
    scores, labels = data
    moved = np.exp(scores) * 7 - 100
    for function in (metrics.auroc, metrics.average_precision, metrics.f1_max):
        assert function(moved, labels) == function(scores, labels)
    flipped = metrics.auroc(-scores, labels)
    assert flipped == pytest.approx(1 - (metrics.auroc(scores, labels) or 0.0), abs=1e-12)


@pytest.mark.parametrize("levels", [None, 4, 1], ids=["distinct", "ties", "heavy ties"])
@pytest.mark.parametrize("seed", [0, 1])
def test_pixel_metrics_equal_the_references(seed: int, levels: int | None) -> None:
    maps, masks = example(seed, levels)
    scores, truth = flat(maps, masks)
    result = metrics.pixel_metrics(maps, masks)
    assert result.auroc == pytest.approx(reference.roc_auc_score(truth, scores), abs=1e-12)
    assert result.ap == pytest.approx(reference.average_precision_score(truth, scores), abs=1e-12)
    for limit in (0.01, 0.05, 0.3, 1.0):
        pro = metrics.pixel_metrics(maps, masks, limit).pro
        assert pro == pytest.approx(slow_pro(maps, masks, limit), abs=1e-12)


@quick
@given(st.data())
def test_pro_equals_the_slow_one_on_any_masks(data: st.DataObject) -> None:
    maps: Maps = []
    masks: Masks = []
    for _ in range(data.draw(st.integers(1, 3))):
        height, width = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 5))
        bits = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
        cells = data.draw(st.lists(st.integers(0, 5), min_size=height * width, max_size=height * width))
        masks.append(np.array(bits, dtype=np.bool_).reshape(height, width))  # (H, W)
        maps.append(np.array(cells, dtype=np.float32).reshape(height, width))  # (H, W)
    limit = data.draw(st.floats(0.01, 1.0))
    truth = flat(maps, masks)[1]
    result = metrics.pixel_metrics(maps, masks, limit)
    if truth.all() or not truth.any():
        assert result == metrics.PixelMetrics(None, None, None, None)
    else:
        assert result.pro == pytest.approx(slow_pro(maps, masks, limit), abs=1e-9)


def test_pro_by_hand() -> None:
    # Two regions, of 1 and 2 pixels, and 5 normal pixels. Going down: 5 finds the first region (overlap 1/2),
    # 4 is one false alarm, 3 finds half of the second region (3/4), 2 ties its rest with a false alarm.
    values = np.array([[5, 4, 3, 2], [0, 2, 0, 0]], dtype=np.float32)
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0]], dtype=np.bool_)
    # corners: (0, 0) (0, 1/2) (1/5, 1/2) (1/5, 3/4) (2/5, 1) (1, 1)
    assert metrics.pixel_metrics([values], [mask], limit=0.2).pro == pytest.approx(0.5)
    assert metrics.pixel_metrics([values], [mask], limit=0.3).pro == pytest.approx((0.1 + 0.1 * 0.8125) / 0.3)
    assert metrics.pixel_metrics([values], [mask], limit=1.0).pro == pytest.approx(0.1 + 0.175 + 0.6)


def test_regions_join_at_corners_and_weigh_the_same() -> None:
    mask = np.zeros((6, 6), dtype=np.bool_)
    mask[0, 0] = mask[1, 1] = True  # one region
    mask[3:, 3:] = True
    values = np.zeros((6, 6), dtype=np.float32)
    values[0, 0] = 1
    curve = metrics.pixel_metrics([values], [mask]).pro_curve
    assert curve is not None
    assert curve[1][1] == pytest.approx(1 / 4)  # half of one of two regions
    mask[1, 1], mask[1, 2] = False, True  # now apart
    curve = metrics.pixel_metrics([values], [mask]).pro_curve
    assert curve is not None
    assert curve[1][1] == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", [0, 1])
def test_pro_curve_spans_the_limit_and_holds_the_area(seed: int) -> None:
    maps, masks = example(seed)
    result = metrics.pixel_metrics(maps, masks, limit=0.25)
    assert result.pro_curve is not None
    fpr, overlap = result.pro_curve
    assert fpr[0] == overlap[0] == 0
    assert fpr[-1] == 0.25
    assert (np.diff(fpr) >= 0).all()
    assert (np.diff(overlap) >= 0).all()
    assert reference.auc(fpr, overlap) / 0.25 == pytest.approx(result.pro, abs=1e-9)


def test_perfect_and_useless_maps() -> None:
    masks = example(0)[1][:3]
    perfect = [np.asarray(mask, dtype=np.float32) for mask in masks if mask is not None]
    result = metrics.pixel_metrics(perfect, masks)
    assert (result.auroc, result.ap) == (1.0, 1.0)
    assert result.pro == pytest.approx(1.0, abs=1e-12)
    constant = metrics.pixel_metrics([values * 0 for values in perfect], masks)
    assert constant.auroc == 0.5
    assert constant.ap == pytest.approx(flat(perfect, masks)[1].mean())
    assert constant.pro == pytest.approx(0.15)  # the diagonal up to 0.3


@quick
@given(st.integers(0, 100), st.sampled_from([None, 2]))
def test_pixel_metrics_see_only_the_order(seed: int, levels: int | None) -> None:
    maps, masks = example(seed, levels)
    before = metrics.pixel_metrics(maps, masks)
    bent = [np.where(values > 0, values * 8, values / 2) for values in maps]  # exact in floats: no new ties
    after = metrics.pixel_metrics(bent, masks)
    assert (after.auroc, after.ap, after.pro) == (before.auroc, before.ap, before.pro)
    turned = metrics.pixel_metrics(maps[::-1], masks[::-1])
    assert (turned.auroc, turned.ap) == (before.auroc, before.ap)
    assert turned.pro == pytest.approx(before.pro, abs=1e-12)


def test_doubles_keep_their_precision() -> None:
    values = np.array([[1.0, 1.0 + 1e-12]])
    mask = np.array([[False, True]])
    assert metrics.pixel_metrics([values.astype(np.float64)], [mask]).auroc == 1.0


def test_larger_maps_equal_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    maps = [rng.normal(size=(200, 300)).astype(np.float32) for _ in range(8)]
    masks: Masks = []
    for values in maps:
        mask = np.asarray(ndimage.gaussian_filter(rng.normal(size=values.shape), 6) > 0.08)
        values[mask] += 1.5
        masks.append(mask)
    scores, truth = flat(maps, masks)
    assert 0.005 < truth.mean() < 0.2
    result = metrics.pixel_metrics(maps, masks)
    assert result.auroc == pytest.approx(reference.roc_auc_score(truth, scores), abs=1e-10)
    assert result.ap == pytest.approx(reference.average_precision_score(truth, scores), abs=1e-10)
    assert result.pro_curve is not None
    assert len(result.pro_curve[0]) <= 400
    assert reference.auc(*result.pro_curve) / 0.3 == pytest.approx(result.pro, abs=0.005)


@pytest.mark.parametrize("n", [2, 10, 400])
def test_thin_keeps_ends_and_stays_close(n: int) -> None:
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.random(5000)) ** 4, np.sort(rng.random(5000)) ** 0.2
    few_x, few_y = metrics.thin(x, y, n)
    assert n // 2 <= len(few_x) <= n
    assert (few_x[0], few_y[0], few_x[-1], few_y[-1]) == (x[0], y[0], x[-1], y[-1])
    assert set(zip(few_x, few_y, strict=True)) <= set(zip(x, y, strict=True))
    # distance of each point to the thinned curve, both ways round: never more than one step along the way
    sideways = np.abs(np.interp(y, few_y, few_x) - x)
    upwards = np.abs(np.interp(x, few_x, few_y) - y)
    assert np.minimum(sideways, upwards).max() <= 2 / (n - 1)


def test_thin_leaves_short_curves_and_refuses_one_point() -> None:
    x, y = metrics.thin([0, 0.5, 1], [0, 1, 1])
    assert x.tolist() == [0, 0.5, 1]
    assert y.tolist() == [0, 1, 1]
    flat_x, flat_y = metrics.thin(np.zeros(1000), np.linspace(0, 1, 1000), 5)
    assert flat_x.tolist() == [0] * 5
    assert flat_y == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.002)
    with pytest.raises(ValueError, match="at least 2"):
        metrics.thin([0, 1], [0, 1], 1)


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1], []])
def test_one_class_has_no_metric(labels: list[int]) -> None:
    scores = [0.1, 0.2, 0.3][: len(labels)]
    for function in (
        metrics.auroc,
        metrics.average_precision,
        metrics.f1_max,
        metrics.f1_best,
        metrics.roc_curve,
    ):
        assert function(scores, labels) is None


def test_wrong_image_input_is_refused() -> None:
    with pytest.raises(ValueError, match="score 1 is not a number"):
        metrics.auroc([0.1, np.nan], [0, 1])
    with pytest.raises(ValueError, match="one length"):
        metrics.auroc([0.1, 0.2], [0, 1, 1])
    with pytest.raises(ValueError, match="labels must be 0"):
        metrics.auroc([0.1, 0.2], [0, 2])


def test_wrong_pixel_input_is_refused() -> None:
    values, mask = np.zeros((4, 5), dtype=np.float32), np.zeros((4, 5), dtype=np.bool_)
    with pytest.raises(ValueError, match=r"mask 1 has shape \(5, 4\)"):
        metrics.pixel_metrics([values, values], [mask, mask.T])
    with pytest.raises(ValueError, match="2 maps and 1 masks"):
        metrics.pixel_metrics([values, values], [mask])
    with pytest.raises(ValueError, match="height, width"):
        metrics.pixel_metrics([values[None]], [mask[None]])
    with pytest.raises(ValueError, match="limit"):
        metrics.pixel_metrics([values], [mask], limit=0)
    broken = values.copy()
    broken[3, 3] = np.nan
    for masks in ([None, None], [mask, ~mask]):
        with pytest.raises(ValueError, match="map 1 holds"):
            metrics.pixel_metrics([values, broken], masks)
    with pytest.raises(ValueError, match="for 1 images"):
        metrics.compute([0.0], [0], [values, values], [mask, mask])


def test_missing_pixels_give_none() -> None:
    values, mask = np.zeros((4, 5), dtype=np.float32), np.ones((4, 5), dtype=np.bool_)
    nothing = metrics.PixelMetrics(None, None, None, None)
    assert metrics.pixel_metrics([], []) == nothing
    assert metrics.pixel_metrics([values], [None]) == nothing
    assert metrics.pixel_metrics([values], [~mask]) == nothing
    assert metrics.pixel_metrics([values], [mask]) == nothing


NAMES = ["image_auroc", "image_ap", "image_f1_max", "pixel_auroc", "pixel_ap", "pro"]


@pytest.mark.parametrize("name", NAMES)
def test_registry(name: str) -> None:
    maps, masks = example(0)
    scores, labels = [2.0, 3.0, 1.0, 0.5, 1.0], [1, 1, 1, 0, 0]
    assert list(metrics.METRICS) == NAMES
    assert list(metrics.compute(scores, labels, maps, masks)) == NAMES
    pixels = metrics.pixel_metrics(maps, masks)
    expected = {
        "image_auroc": 5.5 / 6,
        "image_ap": (1 + 1 + 3 / 4) / 3,
        "image_f1_max": 6 / 7,
        "pixel_auroc": pixels.auroc,
        "pixel_ap": pixels.ap,
        "pro": pixels.pro,
    }
    assert metrics.compute(scores, labels, maps, masks)[name] == pytest.approx(expected[name])
    for partial in (metrics.compute(scores, labels), metrics.compute(scores, labels, maps, None)):
        assert partial[name] == (pytest.approx(expected[name]) if name.startswith("image") else None)


def test_compute_leaves_out_anomalies_without_mask() -> None:
    maps, masks = example(0)
    scores = np.arange(5.0)
    unknown: Masks = [None, *masks[1:]]
    result = metrics.compute(scores, [1, 1, 1, 0, 0], maps, unknown)
    kept = metrics.pixel_metrics(maps[1:], masks[1:])
    assert (result["pixel_auroc"], result["pixel_ap"], result["pro"]) == (kept.auroc, kept.ap, kept.pro)
    counted = metrics.compute(scores, [0, 1, 1, 0, 0], maps, unknown)  # the same image called normal
    assert counted["pixel_auroc"] == metrics.pixel_metrics(maps, unknown).auroc
    assert counted["pixel_auroc"] != kept.auroc
    nobody = metrics.compute(scores, [1, 1, 1, 0, 0], maps, [None] * 5)
    assert nobody["image_auroc"] is not None
    assert nobody["pixel_auroc"] is nobody["pro"] is None


@quick
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30))
def test_spearman_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = ([float(value) for value in values] for values in zip(*pairs, strict=True))
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert metrics.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-9)
    else:
        assert metrics.spearman(a, b) == float(len(set(a)) == len(set(b)))


def test_spearman_of_nothing() -> None:
    assert metrics.spearman([], []) == metrics.spearman([1.0], [2.0]) == 1.0
