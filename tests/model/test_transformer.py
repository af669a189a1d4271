from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from bgad.config import BackboneConfig, Config, from_dict, override, preset_for, to_dict
from bgad.errors import BgadError, ConfigError, ModelError
from bgad.model.backbone import Backbone, build, resolve
from bgad.model.scoring import LevelModel, default_score_weights

SMALL = "vit_small_patch14_dinov2.lvd142m"
TINY = "test_vit2"  # timm's: 8 blocks of 64 channels, patches of 16 pixels, one register


def recipe(name: str, *changes: str, method: str | None = None) -> Config:
    return override(preset_for(method, None), [f'backbone.name="{name}"', *changes])


def blocks_of(name: str, **values: Any) -> BackboneConfig:
    given: dict[str, Any] = {"blocks": (1, 3), "size": 64} | values
    return BackboneConfig(name=name, strides=(), image_head_strides=(), **given)


@pytest.fixture(scope="module")
def tiny() -> Any:
    torch.manual_seed(0)
    return timm.create_model(TINY, img_size=64).eval()


@pytest.fixture(scope="module")
def tiny_file(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    safetensors.torch.save_file(tiny.state_dict(), path)
    return path


def tokens_by_hand(net: Any, pixels: Tensor, backbone: Backbone, blocks: tuple[int, ...]) -> list[Tensor]:
    """Run timm's whole network, keep what its blocks return, and drop class and register tokens."""
    kept: list[Tensor] = []
    hooks = [net.blocks[i].register_forward_hook(lambda *call: kept.append(call[2])) for i in blocks]
    with torch.no_grad():
        net.forward_features((pixels.permute(0, 3, 1, 2) - backbone.mean) / backbone.std)
    for hook in hooks:
        hook.remove()
    side = pixels.shape[1] // net.patch_embed.patch_size[0]
    patches = [tokens[:, net.num_prefix_tokens :] for tokens in kept]
    return [F.layer_norm(x, x.shape[-1:]).transpose(1, 2).reshape(len(x), -1, side, side) for x in patches]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "mean", "size", "blocks", "head"),
    [
        (SMALL, 0.485, 252, (2, 5, 8), (8, 11)),
        ("vit_large_patch14_reg4_dinov2.lvd142m", 0.485, 252, (5, 11, 17), (17, 23)),
        ("vit_small_patch16_dinov3.lvd1689m", 0.485, 256, (2, 5, 8), (8, 11)),
        ("vit_base_patch16_siglip_256.v2_webli", 0.5, 256, (2, 5, 8), (8, 11)),
    ],
)
def test_the_levels_are_the_ends_of_the_quarters(
    name: str, mean: float, size: int, blocks: tuple[int, ...], head: tuple[int, ...]
) -> None:
    backbone = resolve(recipe(name)).backbone
    assert (backbone.blocks, backbone.image_head_blocks) == (blocks, head)
    assert (backbone.strides, backbone.image_head_strides) == ((), ())
    assert backbone.size == size
    assert timm.get_pretrained_cfg(name).mean[0] == mean


def test_resolving_again_and_storing_the_recipe_change_nothing() -> None:
    once = resolve(recipe(SMALL))
    assert resolve(once) == once
    assert from_dict(to_dict(once)) == once
    cnn = Config()
    assert resolve(cnn) is cnn


def test_blocks_are_a_choice() -> None:
    changes = ["backbone.blocks=[3, 11]", "train.positions_per_image=[8, 4]"]
    assert resolve(recipe(SMALL, *changes)).backbone.image_head_blocks == (11,)
    own = resolve(recipe(SMALL, *changes, "backbone.image_head_blocks=[4, 6]")).backbone
    assert (own.blocks, own.image_head_blocks, own.all_levels) == ((3, 11), (4, 6), (3, 11, 4, 6))
    assert resolve(recipe(SMALL, "backbone.image_head_strides=[]")).backbone.image_head_blocks == ()
    assert resolve(recipe(SMALL, method="bgad")).backbone.image_head_blocks == ()  # the paper scores maps alone


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (SMALL, ["backbone.blocks=[2, 5, 12]"], r"backbone\.blocks has 12, but the blocks of .* are 0 to 11"),
        (SMALL, ["backbone.image_head_blocks=[13]"], r"backbone\.image_head_blocks has 13, but the blocks .* 0 to 11"),
        (
            SMALL,
            ["backbone.image_head_strides=[32]"],
            r"image_head_strides has no effect on .*: set backbone\.image_head_b",
        ),
        (SMALL, ["backbone.strides=[8, 16, 32]"], r"backbone\.strides has no effect on .* one stride 14: set backbone"),
        (SMALL, ["backbone.size=33"], r"backbone\.size must be at least 42 .* a multiple of its patch of 14"),
        ("lite0", ["backbone.blocks=[2, 5, 8]"], r"backbone\.blocks is for vision transformers, and lite0 is none"),
        ("resnet18", ["backbone.image_head_blocks=[8]"], r"backbone\.image_head_blocks is for vision transformers"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(name: str, changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(recipe(name, *changes))
    assert "\n" not in str(caught.value)


def test_strides_of_a_baseline_have_no_effect() -> None:
    assert resolve(recipe(SMALL, method="patchcore")).backbone.blocks == (2, 5, 8)
    with pytest.raises(ConfigError, match=r"baseline\.strides has no effect on vit_small"):
        resolve(recipe(SMALL, "baseline.strides=[16]", method="patchcore"))


@pytest.mark.parametrize(("size", "expected"), [(252, 252), (256, 252), (265, 252), (266, 266), (45, 42)])
def test_the_input_is_cut_to_a_multiple_of_the_patch(
    size: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert resolve(recipe(SMALL, f"backbone.size={size}")).backbone.size == expected
    notes = [record.getMessage() for record in caplog.records]
    if size == expected:
        assert not notes
    else:
        assert f"the input is {expected} x {expected} pixels in place of {size} x {size}" in notes[0]
        assert f"its patch of 14; the next is --size {expected + 14}" in notes[0]


def test_tokens_of_the_blocks(tiny: Any, tiny_file: Path) -> None:
    pixels = torch.rand(2, 64, 64, 3, generator=torch.Generator().manual_seed(1))
    backbone = build(blocks_of(TINY, weights=str(tiny_file), blocks=(1, 5), image_head_blocks=(3, 5)))
    assert backbone.channels == [64, 64, 64]
    assert backbone.strides == [16, 16, 16]
    assert backbone.grids(64) == [(4, 4)] * 3
    assert_same(backbone(pixels), [tokens_by_hand(tiny, pixels, backbone, (i,))[0] for i in (1, 5, 3)])
    net: Any = backbone.net
    assert len(net.model.blocks) == 6  # deeper ones are not run


def test_position_embeddings_are_resampled_to_the_input(tiny: Any, tiny_file: Path) -> None:
    pixels = torch.rand(1, 96, 96, 3, generator=torch.Generator().manual_seed(1))
    backbone = build(blocks_of(TINY, weights=str(tiny_file), size=96))
    larger: Any = timm.create_model(TINY, img_size=96).eval()
    state = tiny.state_dict()
    prefix, grid = state["pos_embed"][:, :1], state["pos_embed"][:, 1:].transpose(1, 2).unflatten(2, (4, 4))
    finer = F.interpolate(grid, (6, 6), mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    larger.load_state_dict(state | {"pos_embed": torch.cat([prefix, finer], 1)})
    assert_same(backbone(pixels), tokens_by_hand(larger, pixels, backbone, (1, 3)))


def test_a_copy_of_its_own_state_gives_the_same_tokens(tiny_file: Path) -> None:
    pixels = torch.rand(1, 64, 64, 3)
    config = blocks_of(TINY, weights=str(tiny_file))
    backbone = build(config)
    again = build(replace(config, weights=""), {key: value.clone() for key, value in backbone.state_dict().items()})
    assert all(torch.equal(a, b) for a, b in zip(backbone(pixels), again(pixels), strict=True))


def test_official_names_of_dinov2(tmp_path: Path) -> None:
    """Registers of their own, position embeddings with a class token, a mask token, and another input size."""
    name = "vit_small_patch14_reg4_dinov2"
    torch.manual_seed(0)
    net: Any = timm.create_model(name, depth=2, img_size=56).eval()
    official = net.state_dict()
    of_class = torch.randn(1, 1, 384)
    official["register_tokens"] = official.pop("reg_token")
    official["cls_token"] = official["cls_token"] - of_class
    official["pos_embed"] = torch.cat([of_class, official["pos_embed"]], 1)
    official["mask_token"] = torch.zeros(1, 384)
    torch.save(official, tmp_path / "official.pth")
    backbone = build(blocks_of(name, weights=str(tmp_path / "official.pth"), blocks=(0, 1), size=56))
    pixels = torch.rand(1, 56, 56, 3, generator=torch.Generator().manual_seed(1))
    assert_same(backbone(pixels), tokens_by_hand(net, pixels, backbone, (0, 1)))
    assert backbone.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


@pytest.mark.parametrize(
    "state",
    [
        {"a.weight": torch.ones(3)},
        {"patch_embed.proj.weight": torch.ones(64, 5)},  # timm's converter fails
        {"mask_token": torch.ones(1, 64)},
    ],
)
def test_a_wrong_weights_file_is_one_clear_line(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = tmp_path / "other.pth"
    torch.save(state, path)
    with pytest.raises(ModelError, match="does not hold the weights of this backbone") as caught:
        build(blocks_of(TINY, weights=str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_network_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"cannot download the weights of test_vit2 .*--weights FILE") as caught:
        build(blocks_of(TINY))
    assert "\n" not in str(caught.value)


def test_a_network_that_is_trained_is_no_transformer() -> None:
    with pytest.raises(BgadError, match=r"test_vit2 is a vision transformer.*baseline\.network takes other networks"):
        build(BackboneConfig(TINY, (32,), (), min_stride=0, size=64), random_weights=True)


def test_levels_weigh_alike_and_the_image_head_takes_its_blocks() -> None:
    config = resolve(recipe(TINY, "backbone.size=64", "flow.blocks=1"))
    model = LevelModel(config, build(config.backbone, random_weights=True))
    assert config.backbone.blocks == (1, 3, 5)
    assert [level.channels for level in model.levels] == [64] * 3
    assert model.image_head_maps == [2, 3]
    assert default_score_weights(config) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.5])
