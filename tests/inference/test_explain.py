from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bgad
from bgad.artifact.card import FLOAT32, CalibrationCard, Card, MapCard, ScorePart
from bgad.calibration import Calibration
from bgad.config import Config
from bgad.geometry.roi import Roi
from bgad.geometry.tiles import boxes
from bgad.inference import explain
from bgad.inference.base import BaseScorer, Outputs
from bgad.types import PARTS, BoolArray, FloatArray, Scores
from tests.artifact.test_card import sample_card
from tests.conftest import draw_image

LIMITS = {"map": 1.0, "image": 2.0, "known": 0.5}
REGION = (2, 1, 5, 3)
SIZE = 8


def assert_adds_up(parts: Mapping[str, float], score: float) -> None:
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == pytest.approx(score, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("parts", "has_region", "reason"),
    [
        ((1.1, 0.0, 0.0), True, "a region stands out"),
        ((1.1, 2.1, 0.0), True, "a region stands out, and the image as a whole is unusual"),
        ((0.0, 2.1, 0.0), False, "the image as a whole is unusual; no region stands out"),
        ((1.1, 2.1, 0.0), False, "the image as a whole is unusual; no region stands out"),
        ((0.0, 0.0, 0.6), False, "resembles known defects"),
        ((1.1, 0.0, 0.6), True, "a region stands out; resembles known defects"),
        ((1.1, 0.0, 0.0), False, "the anomaly map is higher than on good parts; no region stands out"),
        ((1.0, 2.0, 0.5), False, "no single part stands out, but together they exceed the threshold"),
    ],
)
def test_reasons_by_hand(parts: tuple[float, ...], has_region: bool, reason: str) -> None:
    named = dict(zip(PARTS, parts, strict=True))
    assert explain.explain(LIMITS, True, named, has_region=has_region) == reason
    assert explain.explain(LIMITS, False, named, has_region=has_region) == ""


def test_a_score_of_one_part_is_no_sum() -> None:
    """A higher false-reject rate moves the threshold below the limit."""
    parts = {"map": 0.9, "image": 0.0, "known": 0.0}
    assert explain.explain({"map": 1.0}, True, parts, has_region=False) == explain.SLIGHTLY


def test_the_region_is_the_one_around_the_peak() -> None:
    anomaly_map = np.zeros((6, 8), np.float32)
    anomaly_map[0, 0] = 1.5
    anomaly_map[2, 4], anomaly_map[3, 5], anomaly_map[4, 5] = 1.2, 3.0, 1.1  # connected over a corner
    assert explain.region_at_peak(anomaly_map, 1.0) == (4, 2, 6, 5)
    assert explain.region_at_peak(anomaly_map, 3.0) is None


def test_a_region_keeps_every_pixel_that_it_touches() -> None:
    assert explain.scale_region(None, (4, 6), (8, 9)) is None
    assert explain.scale_region(REGION, (4, 6), (4, 6)) == REGION
    assert explain.scale_region((0, 0, 6, 4), (4, 6), (40, 60)) == (0, 0, 60, 40)
    assert explain.scale_region((31, 31, 32, 32), (64, 64), (5, 5)) == (2, 2, 3, 3)


class Fixed(BaseScorer):
    """Gives every image the same map and parts."""

    def __init__(self, card: Card, anomaly_map: FloatArray, parts: tuple[float, float, float]) -> None:
        super().__init__(card)
        self._output = anomaly_map, np.array(parts, np.float32)

    def run(self, pixels: FloatArray) -> Outputs:
        anomaly_map, parts = self._output
        shown = len(pixels)
        return Outputs(np.full(shown, parts.sum()), np.stack([parts] * shown), np.stack([anomaly_map] * shown), [])


def fixed_card(*, crop: bool = False, roi: BoolArray | None = None) -> Card:
    config = Config()
    config = replace(config, backbone=replace(config.backbone, size=SIZE, crop=crop))
    score_parts = tuple(ScorePart(name, 1.0) for name in LIMITS)
    normals, maxima = tuple(float(i) for i in range(1, 20)), tuple(0.5 - 0.01 * i for i in range(19))
    calibration = CalibrationCard.of(Calibration(normals, 0.05), Calibration(maxima, 0.05), LIMITS)
    card = sample_card(
        config=config, score_parts=score_parts, map=MapCard(0.0, 0.1), calibration={FLOAT32: calibration}
    )
    return replace(card, roi_png=None if roi is None else Roi(roi).png())


def blot() -> FloatArray:
    """A map with one region in its upper right quarter: columns 4 to 6, rows 2 and 3."""
    anomaly_map = np.zeros((SIZE, SIZE), np.float32)
    anomaly_map[2:4, 4:7] = 1.0
    return anomaly_map


def scored(card: Card, shape: tuple[int, int], parts: tuple[float, float, float] = (5.0, 0.0, 0.0)) -> Scores:
    scorer = Fixed(card, blot(), parts)
    scorer._threshold = 1.5
    return scorer.score(np.zeros((*shape, 3), np.uint8))


def test_a_region_is_in_the_pixels_of_the_image() -> None:
    found = scored(fixed_card(), (SIZE, SIZE))
    assert (found.region, found.reason) == ((4, 2, 7, 4), "a region stands out")
    assert found.parts == {"map": 5.0, "image": 0.0, "known": 0.0}
    found = scored(fixed_card(), (10 * SIZE, 20 * SIZE))
    assert found.region == pytest.approx((80, 20, 140, 40), abs=2)


def test_a_region_of_a_cropped_image() -> None:
    found = scored(fixed_card(crop=True), (10 * SIZE, 20 * SIZE))  # the square begins at column 40
    assert found.region == pytest.approx((80, 20, 110, 40), abs=2)


def test_a_region_stays_inside_the_region_of_interest() -> None:
    inside = np.zeros((10 * SIZE, 10 * SIZE), np.bool_)
    inside[:, :50] = True
    found = scored(fixed_card(roi=inside), (10 * SIZE, 10 * SIZE))
    assert found.region is not None
    left, top, right, bottom = found.region
    assert right == 50
    assert (left, top, bottom) == pytest.approx((40, 20, 40), abs=1)


def test_the_region_does_not_depend_on_the_decision() -> None:
    found = scored(fixed_card(), (SIZE, SIZE), (1.2, 0.0, 0.0))  # above its limit, below the threshold
    assert (found.is_anomaly, found.reason, found.region) == (False, "", (4, 2, 7, 4))
    found = scored(fixed_card(), (SIZE, SIZE), (0.9, 1.0, 0.0))  # no part above its limit, and yet a contour
    assert (found.is_anomaly, found.reason, found.region) == (True, explain.REGION, (4, 2, 7, 4))


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_parts_add_up_alone_and_in_a_batch(engine: str, model: Path, data_set: Path) -> None:
    scorer = bgad.load(model, "cpu", engine=engine)
    files = sorted((data_set / "test").rglob("*.png"))
    together = scorer.score_many(files)
    for scores in together:
        assert_adds_up(scores.parts, scores.score)
        assert bool(scores.reason) == scores.is_anomaly
    alone = scorer.score(files[0])
    assert_adds_up(alone.parts, alone.score)
    assert alone.parts == pytest.approx(together[0].parts, rel=1e-4, abs=1e-4)
    assert scorer.part_limits.keys() == set(PARTS)


def test_the_parts_of_tiles_are_those_of_the_highest(model: Path) -> None:
    rng = np.random.default_rng(3)
    image = np.concatenate([draw_image(rng, defect=defect)[0] for defect in (False, True)], axis=1)
    scorer = bgad.load(model, "cpu")
    scorer.set_tile(64)
    found = scorer.score(image)
    tiles = [image[top:bottom, left:right] for left, top, right, bottom in boxes((64, 128), scorer.tile)]
    assert len(tiles) > 1
    highest = max((scorer.score(tile) for tile in tiles), key=lambda scores: scores.score)
    assert found.parts == pytest.approx(highest.parts, rel=1e-4, abs=1e-4)
    assert_adds_up(found.parts, found.score)
    assert found.is_anomaly
    if found.region is not None:
        assert 64 <= (found.region[0] + found.region[2]) / 2 <= 128  # in the half with the defect


def test_limits_are_those_of_the_calibration_normals(model: Path, data_set: Path) -> None:
    scorer = bgad.load(model, "cpu")
    names = [image["name"] for image in scorer.card.split["images"] if image["role"] == "calibration"]
    held_out = scorer.score_many([data_set / name for name in names])
    rate = scorer.card.calibration_at().false_reject_rate
    for name, limit in scorer.part_limits.items():
        expected = np.quantile([s.parts[name] for s in held_out], 1 - rate, method="higher")
        assert limit == pytest.approx(expected, rel=1e-3, abs=1e-3)
