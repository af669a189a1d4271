"""What the contract promises to a new baseline, shown by a small one: it learns from pixels, masks and by steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad import TrainOptions, load, train
from bgad.config import ALL_METHODS, BASELINES, Config, override, preset_for
from bgad.config.baselines import PIXEL_INPUT, Baseline, BaselineConfig, BaselineRecipe
from bgad.errors import ConfigError, DataError
from bgad.methods.baselines import FITS
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, constant, train_steps
from bgad.model.heads import HEADS
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.scoring import map_score
from tests.conftest import write_set


@dataclass(frozen=True)
class ToyConfig(BaselineConfig):
    """Settings of the small baseline."""

    steps: int = 60
    lr: float = 0.3


class ToyHead(Head):
    """A colour filter, and the brightness of the image as a part of its own."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        self.net = nn.Conv2d(3, 1, 1)

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        anomaly_map = self.net(maps[0])[:, 0].sigmoid()
        return HeadOutput(map_score(anomaly_map, 0.01), anomaly_map, 0.1 * maps[0].mean((1, 2, 3)))


def fit_toy(head: ToyHead, data: FitData) -> Iterator[LogRow]:
    """Binary cross-entropy of the masks."""
    settings, known = head.config.baseline, data.known
    assert isinstance(settings, ToyConfig)
    assert known is not None

    def loss(step: Step) -> Tensor:
        normal = step.rng.integers(data.normals.count, size=2)
        chosen = step.rng.integers(known.features.count, size=2)
        pixels = torch.cat([data.maps(data.normals, normal)[0], data.maps(known.features, chosen)[0]])
        masks = data.masks(known, 0, chosen)
        target = torch.cat([torch.zeros_like(masks), masks])
        return F.binary_cross_entropy_with_logits(head.net(pixels)[:, 0], target, pos_weight=torch.tensor(10.0))

    schedule = Schedule(steps=settings.steps, lr=constant(settings.lr))
    return train_steps(head, torch.optim.Adam(head.parameters()), loss, data, schedule)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Config:
    recipe = BaselineRecipe(ToyConfig(), replace(PIXEL_INPUT, size=64))
    entry = Baseline("a toy", "none", {"default": recipe}, supervised=True, needs_masks=True)
    for methods in (BASELINES, ALL_METHODS):
        monkeypatch.setitem(methods, "toy", entry)
    monkeypatch.setitem(HEADS, "toy", ToyHead)
    monkeypatch.setitem(FITS, "toy", fit_toy)
    return preset_for("toy", None).check()


def test_a_baseline_on_pixels_is_an_ordinary_model(toy: Config, data_set: Path, tmp_path: Path) -> None:
    out = tmp_path / "toy.bgad"
    detector = train(data_set, out, config=toy, options=TrainOptions(known=4, device="cpu"))
    card = detector.card
    assert card.method == "toy"
    assert (card.training.steps, card.exports["onnx"].parity.images) == (60, 23)
    assert {part.name for part in card.score_parts} == {"map", "image"}
    assert len((out / "train.csv").read_text().splitlines()) == 61
    paths = [*sorted((data_set / "test/blot").iterdir()), *sorted((data_set / "test/good").iterdir())]
    scores = {engine: load(out, "cpu", engine=engine).score_many(paths) for engine in ("torch", "onnx")}
    bad, good = scores["onnx"][:8], scores["onnx"][8:]
    assert min(s.parts["map"] for s in bad) > max(s.parts["map"] for s in good)
    assert all(s.score == pytest.approx(sum(s.parts.values()), rel=1e-4) for s in bad)
    held_out = [data_set / image["name"] for image in card.split["images"] if image["role"] == "calibration"]
    maxima = sorted(float(s.map.max()) for s in load(out, "cpu").score_many(held_out))
    assert maxima == pytest.approx(card.calibration_at().map_maxima, rel=1e-3)
    np.testing.assert_allclose([s.score for s in scores["torch"]], [s.score for s in scores["onnx"]], rtol=1e-4)


def test_what_a_supervised_baseline_lacks_is_one_line(toy: Config, data_set: Path, tmp_path: Path) -> None:
    options = TrainOptions(known=0, device="cpu")
    with pytest.raises(DataError, match="toy needs known anomalies, and there are none: add some, or train padim"):
        train(data_set, tmp_path / "x.bgad", config=toy, options=options)
    bare = write_set(tmp_path / "bare", train=12, good=2, bad=4, masks=False)
    with pytest.raises(DataError, match="toy needs known anomalies with masks, and none has one"):
        train(bare, tmp_path / "x.bgad", config=toy, options=replace(options, known=2))


def test_a_baseline_on_pixels_has_no_backbone(toy: Config) -> None:
    assert override(toy, ["backbone.size=128"]).backbone.size == 128
    with pytest.raises(ConfigError, match="toy learns from pixels: of the backbone, only size and crop can be set"):
        override(toy, ["backbone.name=lite1"])
    with pytest.raises(ConfigError, match=r"backbone\.name must be a network"):
        override(preset_for("padim", None), ["backbone.name=pixels", "backbone.strides=[1]", "baseline.strides=[1]"])
    with pytest.raises(ConfigError, match=r"unknown key baseline\.stpes in --set; did you mean baseline\.steps"):
        override(toy, ["baseline.stpes=3"])
    with pytest.raises(ConfigError, match="baseline in --set has no effect in bgad-plus, which is no baseline"):
        override(Config(), ["baseline.steps=3"])
