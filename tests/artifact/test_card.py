from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bgad.artifact.card import (
    FLOAT32,
    AgreementCard,
    CalibrationCard,
    Card,
    DataCard,
    ExportCard,
    InputCard,
    LevelCard,
    MapCard,
    ParityCard,
    ProvenanceCard,
    RoiCard,
    ScorePart,
    TrainingCard,
    from_json,
    to_json,
)
from bgad.calibration import Calibration
from bgad.config import Config
from bgad.errors import ModelError
from bgad.geometry.roi import Polygons


def sample_card(**changes: Any) -> Card:
    """A complete card of a model that does not exist."""
    card = Card(
        name="gear",
        method="bgad",
        provenance=ProvenanceCard("0.1.0", "2026-01-01T00:00:00+00:00"),
        data=DataCard("gear", "folders", "multi-class", "", 0, 4, ("a note",)),
        config=Config(),
        input=InputCard(256, 256, 8, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        levels=(LevelCard(8, 1.0, 24, (32, 32), -1.0, 0.5, 0.25, -2.0, -7.0),),
        map=MapCard(0.1, 0.5),
        score_parts=(ScorePart("map", 1.0), ScorePart("image", 0.5)),
        calibration={
            FLOAT32: CalibrationCard.of(
                Calibration((3.0, 1.0, 2.0), 0.25), Calibration((0.7, 0.9, 0.8), 0.25), {"map": 3.5, "image": 1.25}
            )
        },
        training=TrainingCard(1.5, 1.0, 10, "cpu", "2.4", "3.11", ("a.png",)),
        roi=None,
        exports={"onnx": ExportCard("float32", ParityCard(23, 1e-6, 1e-6, 1e-4), "2.4", "onnxruntime 1.20")},
        licences={"bgad": "Apache-2.0"},
    )
    return replace(card, **changes)


def with_bf16(card: Card) -> Card:
    """The card with a second precision, whose scores are higher."""
    own = CalibrationCard.of(
        Calibration((4.0, 2.0, 3.0), 0.25), Calibration((0.8, 1.0, 0.9), 0.25), {"map": 4.5, "image": 2.25}
    )
    found = AgreementCard("openvino 2026.4", "CPU", 23, 0.99, 1, (1.0, 0.99), None)
    return replace(card, calibration={**card.calibration, "bf16": own}, agreement={"bf16": found})


def written(card: Card) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(to_json(card)))
    return content


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"roi": RoiCard(6, 8, 0.5)},
        {"roi": RoiCard(6, 8, 0.5, Polygons((((0.0, 0.0), (1.5, 0.0), (1.0, 1.0)),), ()))},
        {"map": MapCard(0.1, 0.75), "exports": {}},
        {"input": InputCard(128, 512, 16, (0.5,), (0.25,))},
        {"input": InputCard(128, 512, 8, (0.5,), (0.25,), (480, 640))},
        {"provenance": ProvenanceCard("0.1.0", "now", "0" * 64)},
    ],
)
def test_what_is_written_is_read(changes: dict[str, Any]) -> None:
    card = sample_card(**changes)
    assert from_json(written(card), "card.json") == card


def test_files_of_their_own_are_not_in_the_card() -> None:
    content = written(sample_card(split={"images": []}, roi_png=b"png"))
    assert "split" not in content
    assert "roi_png" not in content


def _without(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        node = content
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


def _with(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        node = content
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_without("name"), "the field name is missing"),
        (_without("exports"), "the field exports is missing"),
        (_without("calibration", "float32", "scores"), "the field calibration.float32.scores is missing"),
        (_without("config", "loss", "tau"), "the field config.loss.tau is missing"),
        (_with("8", "levels", 0, "stride"), "the field levels[0].stride must be an integer, not '8'"),
        (_with(True, "data", "known"), "the field data.known must be an integer, not True"),
        (_with(None, "map", "boundary"), "the field map.boundary must be a number, not None"),
        (_with([1], "levels", 0, "grid"), "the field levels[0].grid must have 2 items, not 1"),
        (_with({}, "levels"), "the field levels must be a list, not {}"),
        (_with([], "levels"), "the field levels is empty"),
        (_with([], "training"), "the field training must be an object, not []"),
        (_with({}, "calibration"), "the field calibration must have float32 and what the field agreement has"),
        (_without("agreement", "bf16"), "the field calibration must have float32 and what the field agreement has"),
        (_without("calibration", "bf16"), "the field calibration must have float32 and what the field agreement has"),
        (_with(1.0, "agreement", "bf16", "images"), "the field agreement.bf16.images must be an integer, not 1.0"),
        (_with(3, "exports"), "the field exports must be an object, not 3"),
        (_with(1, "colour"), "the field colour is unknown"),
        (_with(-1.0, "config", "loss", "tau"), "config.loss.tau must be 0 or more"),
    ],
)
def test_a_field_that_is_wrong_is_named_in_one_line(change: Callable[[dict[str, Any]], None], problem: str) -> None:
    content = written(with_bf16(sample_card()))
    change(content)
    with pytest.raises(ModelError) as caught:
        from_json(content, "gear.bgad/card.json")
    assert str(caught.value) == f"gear.bgad/card.json is not a valid model card: {problem}"


def test_integers_count_as_numbers() -> None:
    content = written(sample_card())
    content["map"]["mean"] = 1
    mean = from_json(content, "card.json").map.mean
    assert (mean, type(mean)) == (1.0, float)


def test_calibration_belongs_to_a_precision() -> None:
    card = sample_card()
    assert card.calibration_at().scores == (1.0, 2.0, 3.0)
    assert card.calibration_at().calibration().threshold == card.calibration_at().threshold == 3.0
    assert card.calibration_at().calibration(0.5).threshold == 2.0
    both = with_bf16(card)
    assert from_json(written(both), "card.json") == both
    assert (both.calibration_at().threshold, both.calibration_at("bf16").threshold) == (3.0, 4.0)
    with pytest.raises(ModelError, match=r"gear is not calibrated for bf16 \(it is for: float32\): run `bgad export"):
        card.calibration_at("bf16")


def test_weights_of_the_parts_of_a_score() -> None:
    card = sample_card()
    assert (card.part_weight("map"), card.part_weight("image"), card.part_weight("other")) == (1.0, 0.5, None)
    assert card.calibration_at().part_limits == {"map": 3.5, "image": 1.25}


def test_images_that_were_used_for_training_or_calibration() -> None:
    roles = ("train", "calibration", "known", "test", "unused")
    split = {"images": [{"sha256": role, "role": role} for role in roles]}
    assert sample_card(split=split).used_sha256 == {"train", "calibration", "known"}
