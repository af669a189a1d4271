from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import bgad
from bgad.artifact import folder as model_folder
from bgad.config import BackboneConfig, Config, from_dict, preset_for
from bgad.export.export import ExportOptions, export
from bgad.inference.load import load
from bgad.inference.torch_engine import Detector
from bgad.training.update import NewImage, UpdateOptions, update
from tests.conftest import SIZE, level_model, tiny_config

OPTIONS = bgad.TrainOptions(known=4, device="cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights of timm's small test transformer: 6 blocks of 64 channels, patches of 16 pixels."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "vit.pth"
    torch.save(timm.create_model("test_vit").state_dict(), path)
    return str(path)


def recipe(weights: str, **values: Any) -> Config:
    """A recipe of ours on the transformer; its quarters end at blocks 0, 2, 3 and 5."""
    short = {"train": {"steps": 6, "push_steps": 4}, "pseudo": {"count": 4}}
    config = tiny_config(**(short | values))
    usual = BackboneConfig().image_head_strides  # others would have no effect
    return replace(
        config, backbone=replace(config.backbone, name="test_vit", weights=weights, image_head_strides=usual)
    )


@pytest.fixture(scope="module")
def trained(weights: str, data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vit") / "plate.bgad"
    bgad.train(data_set, out, config=recipe(weights), options=OPTIONS)
    export(out, options=ExportOptions(to="openvino"))
    return out


def test_all_engines_give_the_same_scores(trained: Path, data_set: Path) -> None:
    card = model_folder.read(trained)
    assert card.exports.keys() == {"onnx", "openvino"}
    images = sorted((data_set / "test").rglob("*.png"))
    engines = ("torch", "onnx", "openvino")
    found = {engine: load(trained, engine=engine).score_many(images) for engine in engines}
    scores = {engine: np.array([result.score for result in results]) for engine, results in found.items()}
    spread = np.ptp(card.calibration_at().scores)
    for engine in ("onnx", "openvino"):
        np.testing.assert_allclose(scores[engine], scores["torch"], atol=1e-4 * spread, rtol=1e-4)
    assert np.ptp(scores["torch"]) > 0


def test_the_card_names_the_blocks(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bgad.cli.main import main

    card = model_folder.read(trained)
    backbone = card.config.backbone
    assert (backbone.blocks, backbone.image_head_blocks, backbone.strides) == ((0, 2, 3), (3, 5), ())
    assert [(level.block, level.stride, level.channels) for level in card.levels] == [(i, 16, 64) for i in (0, 2, 3)]
    assert {level.grid for level in card.levels} == {(SIZE // 16, SIZE // 16)}
    assert card.input.mean == (0.5, 0.5, 0.5)
    assert main(["info", str(trained)]) == 0
    assert "level       block 2: b_n" in capsys.readouterr().out


def test_an_update_starts_from_the_stored_backbone(trained: Path, data_set: Path, tmp_path: Path) -> None:
    new = [NewImage(path, 0) for path in sorted((data_set / "test/good").glob("*.png"))[:2]]
    short = replace(recipe("", train={"steps": 2, "push_steps": 2}), backbone=bgad.load(trained).card.config.backbone)
    options = UpdateOptions(device="cpu", export=False, data=data_set)
    update(trained, new, tmp_path / "new.bgad", config=short, options=options)
    before, after = (level_model(Detector.load(folder, "cpu")) for folder in (trained, tmp_path / "new.bgad"))
    pixels = torch.rand(1, SIZE, SIZE, 3)
    for a, b in zip(before.backbone(pixels), after.backbone(pixels), strict=True):
        assert torch.equal(a, b)


def test_tiles_and_a_region_of_interest(weights: str, data_set: Path, tmp_path: Path) -> None:
    region = np.zeros((SIZE, SIZE), np.uint8)
    region[:, : SIZE * 3 // 4] = 255
    Image.fromarray(region).save(tmp_path / "roi.png")
    options = replace(OPTIONS, roi=tmp_path / "roi.png")
    for name, tile in (("roi", {}), ("tiles", {"size": 48})):
        detector = bgad.train(data_set, tmp_path / name, config=recipe(weights, tile=tile), options=options)
        assert detector.card.exports["onnx"].parity.images > 0
        result = detector.score(data_set / "test/blot/000.png")
        assert result.map.shape == (SIZE, SIZE)
        assert np.isfinite(result.score)


@pytest.mark.parametrize("method", ["bgad", "bgad-distance", "patchcore", "devnet-frozen", "kdad"])
def test_other_methods_take_its_blocks(weights: str, data_set: Path, tmp_path: Path, method: str) -> None:
    values: dict[str, Any] = {"backbone": {"size": SIZE, "name": "test_vit", "weights": weights}}
    if method.startswith("bgad"):
        values |= {"pseudo": {"count": 2}, "train": {"push_steps": 2}}
        values["train"] |= {"steps": 2, "epochs": 0} if method == "bgad" else {}
    elif method != "patchcore":
        values["baseline"] = {"steps": 3, "images_per_step": 4}
    config = from_dict(values, preset_for(method, "smoke"))
    detector = bgad.train(data_set, tmp_path / "model", config=config, options=OPTIONS)
    assert detector.card.config.backbone.blocks == (0, 2, 3)
    assert detector.card.exports["onnx"].parity.score < 1e-4
