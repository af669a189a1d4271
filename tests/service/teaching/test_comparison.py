from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bgad.inference import load as loading
from bgad.service.teaching import comparison
from bgad.service.teaching.comparison import Comparison, validation_images
from tests.conftest import write_set


def test_versions_are_compared_on_the_same_test_images_each_time(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = loading.load(model, engine="onnx")
    everyone, why = validation_images(scorer, data_set)
    assert (len(everyone), why) == (14, "")
    monkeypatch.setattr(comparison, "MAX_VALIDATION", 6)
    some, _ = validation_images(scorer, data_set)
    taught = {some[0][1]}
    rows = [row | {"role": "known" if row["sha256"] in taught else row["role"]} for row in scorer.card.split["images"]]
    monkeypatch.setattr(scorer, "card", replace(scorer.card, split={"images": rows}))
    later, _ = validation_images(scorer, data_set)
    assert [s.name for s, _ in later[:5]] == [s.name for s, _ in some[1:]]
    assert len(later) == 6
    # and where there are none, it is said why
    assert "The data set cannot be read: " in validation_images(scorer, tmp_path)[1]
    other = write_set(tmp_path / "other", train=1, good=8, bad=8)
    for path in other.rglob("*.png"):
        Image.fromarray(np.zeros((64, 64), np.uint8)).save(path)
    assert "are not those of the training any more" in validation_images(scorer, other)[1]
    none = [row for row in rows if row["role"] != "test"]
    monkeypatch.setattr(scorer, "card", replace(scorer.card, split={"images": none}))
    assert "bgad train --test keeps some" in validation_images(scorer, data_set)[1]


def test_a_comparison_without_room_for_its_images(model: Path, data_set: Path, tmp_path: Path) -> None:
    drawings = tmp_path / "drawings"
    told: list[float] = []
    scorer = loading.load(model, engine="onnx")
    (_, unlucky), *_ = validation_images(scorer, data_set)[0]
    (drawings / f"{unlucky}.before").mkdir(parents=True)  # where a file should go: writing fails
    found = Comparison(model, model, None, drawings).run([], data_set, told.append)
    assert (found["validation"]["images"], told[-1]) == (14, 1.0)
    assert len([path for path in drawings.iterdir() if path.is_file()]) == 27
