from __future__ import annotations

import importlib
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import BackboneConfig
from bgad.errors import ModelError
from bgad.model import backbone as backbones
from bgad.model.backbone import BACKBONES, Backbone, build

PIXELS = torch.rand(2, 64, 64, 3, generator=torch.Generator().manual_seed(1))


def config(name: str = "lite0", **values: Any) -> BackboneConfig:
    given: dict[str, Any] = {"image_head_strides": (), "min_stride": 0} | values
    return BackboneConfig(name=name, size=64, **given)


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    return build(config())


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    """A timm network with batch norms that do something."""
    torch.manual_seed(0)
    net: nn.Module = timm.create_model("resnet18", pretrained=False)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
            nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return net.eval()


@pytest.fixture(scope="module")
def resnet_file(resnet: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    safetensors.torch.save_file(resnet.state_dict(), path)
    return path


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


def timm_features(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Stages 1 to 3 of a timm ResNet, written out."""
    n: Any = net
    with torch.no_grad():
        x = n.maxpool(n.act1(n.bn1(n.conv1(x))))
        first = n.layer1(x)
        second = n.layer2(first)
        return [first, second, n.layer3(second)]


@pytest.mark.parametrize(
    ("name", "channels"), [("lite0", [24, 40, 112]), ("lite1", [24, 40, 112]), ("lite2", [24, 48, 120])]
)
def test_packaged_weights_load_and_folding_changes_nothing(name: str, channels: list[int]) -> None:
    backbone = build(config(name))
    assert backbone.channels == channels
    assert backbone.strides == [4, 8, 16]
    assert backbone.grids(64) == [(16, 16), (8, 8), (4, 4)]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in backbone.modules())

    packaged = BACKBONES[name]
    state = backbones._packaged_state(packaged)
    net = timm.create_model(packaged.timm_name, features_only=True, out_indices=(1, 2, 3)).eval()
    assert not net.load_state_dict(state, strict=False).missing_keys
    with torch.no_grad():
        expected = net((PIXELS.permute(0, 3, 1, 2) - 127 / 255) / (128 / 255))
    assert_same(backbone(PIXELS), expected)


def _original_file(name: str) -> Path:
    packaged = BACKBONES[name]
    module = importlib.import_module(packaged.module)
    return Path(getattr(module, packaged.cls).get_model_file_path())


def test_every_packaged_weight_is_in_its_place(lite0: Backbone) -> None:
    """The network run by hand from the names in the package's own file."""
    state = torch.load(_original_file("lite0"), weights_only=True)

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        size = weight.shape[2]
        need = max((-(-x.shape[2] // stride) - 1) * stride + size - x.shape[2], 0)  # as TensorFlow pads
        x = F.pad(x, (need // 2, need - need // 2, need // 2, need - need // 2))
        return F.conv2d(x, weight, stride=stride, groups=x.shape[1] if weight.shape[1] == 1 else 1)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, mean, var, weight, bias, eps=1e-3)

    x = (PIXELS.permute(0, 3, 1, 2) - 127 / 255) / (128 / 255)
    x = F.relu6(norm(conv(x, "_conv_stem", 2), "_bn0"))
    found = {}
    for block in range(11):  # 1 of 16, 2 of 24, 2 of 40, 3 of 80 and 3 of 112 channels
        before, name = x, f"_blocks.{block}"
        if block:
            x = F.relu6(norm(conv(x, f"{name}._expand_conv"), f"{name}._bn0"))
        x = F.relu6(norm(conv(x, f"{name}._depthwise_conv", 2 if block in (1, 3, 5) else 1), f"{name}._bn1"))
        x = norm(conv(x, f"{name}._project_conv"), f"{name}._bn2")
        if x.shape == before.shape:
            x = x + before
        found[block] = x
    assert_same(lite0(PIXELS), [found[2], found[4], found[10]])


def test_rename_loses_nothing() -> None:
    state = torch.load(_original_file("lite0"), weights_only=True)
    renamed = backbones.rename_lite(state, SimpleNamespace(blocks=[[None] * n for n in (1, 2, 2, 3, 3, 4, 1)]))
    assert len(renamed) == len(state)
    assert {value.data_ptr() for value in renamed.values()} == {value.data_ptr() for value in state.values()}
    assert renamed["blocks.2.1.conv_dw.weight"] is state["_blocks.4._depthwise_conv.weight"]
    assert renamed["blocks.0.0.conv_pw.weight"] is state["_blocks.0._project_conv.weight"]
    assert renamed["classifier.bias"] is state["_fc.bias"]


def test_a_changed_weights_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = bytearray(_original_file("lite0").read_bytes())
    content[len(content) // 2] ^= 1
    changed = tmp_path / "weights.pth"
    changed.write_bytes(content)
    package = importlib.import_module(BACKBONES["lite0"].module)
    monkeypatch.setattr(getattr(package, BACKBONES["lite0"].cls), "get_model_file_path", lambda: str(changed))
    with pytest.raises(ModelError, match="sha256"):
        build(config())


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, BACKBONES["lite1"].module, None)
    with pytest.raises(ModelError, match=r"pip install 'bgad\[train\]'"):
        build(config("lite1"))


def test_frozen_and_always_in_eval_mode(lite0: Backbone) -> None:
    before = lite0(PIXELS)
    around = nn.Sequential(lite0)
    around.train()
    lite0.train()
    assert around.training
    assert not any(module.training for module in lite0.modules())
    assert not any(parameter.requires_grad for parameter in lite0.parameters())
    assert not any(features.requires_grad for features in lite0(PIXELS))
    assert all(torch.equal(a, b) for a, b in zip(before, lite0(PIXELS), strict=True))


def test_batch_norms_that_stay_do_not_move(resnet: nn.Module) -> None:
    n: Any = timm.create_model("resnet18", features_only=True, out_indices=(1,), pretrained=False)
    kept = Backbone(n, [0], [0.5] * 3, [0.5] * 3)
    kept.train()
    running = n.bn1.running_mean.clone()
    kept(PIXELS)
    assert torch.equal(n.bn1.running_mean, running)


def test_strides_are_a_choice() -> None:
    backbone = build(config(strides=(8, 32)))
    assert backbone.channels == [40, 320]
    assert backbone.grids(64) == [(8, 8), (2, 2)]
    assert backbone.grids(80) == [(10, 10), (3, 3)]
    maps = backbone(PIXELS)
    assert [tuple(m.shape) for m in maps] == [(2, 40, 8, 8), (2, 320, 2, 2)]
    with pytest.raises(ModelError, match="no stride 64; it has 2, 4, 8, 16, 32"):
        build(config(strides=(8, 64)))


def test_strides_of_the_image_head_come_last() -> None:
    backbone = build(config(strides=(8, 16), image_head_strides=(4, 16, 32)))
    assert backbone.strides == [8, 16, 4, 32]
    assert backbone.channels == [40, 112, 24, 320]
    assert backbone.grids(64) == [(8, 8), (4, 4), (16, 16), (2, 2)]
    plain = build(config(strides=(4, 8, 16, 32)))(PIXELS)
    for found, expected in zip(backbone(PIXELS), [plain[i] for i in (1, 2, 0, 3)], strict=True):
        torch.testing.assert_close(found, expected)
    with pytest.raises(ModelError, match="no stride 64; it has 2, 4, 8, 16, 32"):
        build(config(image_head_strides=(64,)))
    with pytest.raises(
        ModelError,
        match=r"has no stride 2; it has 4, 8, 16, 32: set backbone\.strides and backbone\.image_head_strides",
    ):
        build(config(name="convnext_atto", strides=(4,), image_head_strides=(2,)))


def test_deeper_stages_are_not_run(lite0: Backbone) -> None:
    net: Any = lite0.net
    assert len(net.blocks) == 5


def test_pixels_are_normalised(lite0: Backbone, resnet_file: Path) -> None:
    assert lite0.mean.flatten().tolist() == pytest.approx([127 / 255] * 3)
    assert lite0.std.flatten().tolist() == pytest.approx([128 / 255] * 3)
    other = build(config("resnet18", weights=str(resnet_file)))
    assert other.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert other.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])


def test_a_copy_of_its_own_state_gives_the_same_features(lite0: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "_packaged_state", lambda packaged: pytest.fail("a saved model has its weights"))
    again = build(config(), {key: value.clone() for key, value in lite0.state_dict().items()})
    assert all(torch.equal(a, b) for a, b in zip(lite0(PIXELS), again(PIXELS), strict=True))
    state = lite0.state_dict()
    del state["net.conv_stem.weight"]
    with pytest.raises(ModelError, match="saved backbone lite0 does not hold"):
        build(config(), state)


@pytest.mark.parametrize("form", ["safetensors", "state dict", "checkpoint", "data parallel"])
def test_weights_from_a_file(resnet: nn.Module, resnet_file: Path, tmp_path: Path, form: str) -> None:
    path = tmp_path / "weights.pth"
    state = resnet.state_dict()
    if form == "safetensors":
        path = resnet_file
    elif form == "state dict":
        torch.save(state, path)
    elif form == "checkpoint":
        torch.save({"state_dict": state}, path)
    else:
        torch.save({f"module.{key}": value for key, value in state.items()}, path)
    backbone = build(config("resnet18", weights=str(path)))
    assert backbone.channels == [64, 128, 256]
    x = (PIXELS.permute(0, 3, 1, 2) - backbone.mean) / backbone.std
    assert_same(backbone(PIXELS), timm_features(resnet, x))


def test_weights_for_a_network_that_timm_renames(tmp_path: Path) -> None:
    """timm's extractor calls stages.0 stages_0; a state dict of the whole network still fits."""
    torch.manual_seed(0)
    net: Any = timm.create_model("convnext_atto", pretrained=False).eval()
    torch.save(net.state_dict(), tmp_path / "weights.pth")
    backbone = build(config("convnext_atto", weights=str(tmp_path / "weights.pth")))
    with torch.no_grad():
        x = net.stem((PIXELS.permute(0, 3, 1, 2) - backbone.mean) / backbone.std)
        expected = [x := net.stages[i](x) for i in range(3)]
    assert_same(backbone(PIXELS), expected)


class _Code:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_pickled_code_is_never_run(tmp_path: Path) -> None:
    mark, path = tmp_path / "was-run", tmp_path / "weights.pth"
    torch.save({"conv1.weight": _Code(mark)}, path)
    with pytest.raises(ModelError, match="cannot read the weights") as caught:
        build(config("resnet18", weights=str(path)))
    assert not mark.exists()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("gone.pth", None, "cannot read the weights"),
        ("gone.safetensors", None, "cannot read the weights"),
        ("noise.pth", b"no weights", "cannot read the weights"),
        ("noise.safetensors", b"no weights", "cannot read the weights"),
        ("list.pth", [1, 2], "is not a state dict"),
        ("other.pth", {"a.weight": torch.ones(3)}, "does not hold the weights of this backbone"),
    ],
)
def test_a_wrong_weights_file_is_one_clear_line(tmp_path: Path, file: str, content: object, message: str) -> None:
    path = tmp_path / file
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ModelError, match=message) as caught:
        build(config("resnet18", weights=str(path)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_of_another_shape_are_refused(resnet: nn.Module, tmp_path: Path) -> None:
    state = resnet.state_dict() | {"conv1.weight": torch.zeros(64, 1, 7, 7)}
    torch.save(state, tmp_path / "grey.pth")
    with pytest.raises(ModelError, match=r"1 of another shape, the first is conv1\.weight"):
        build(config("resnet18", weights=str(tmp_path / "grey.pth")))


@pytest.mark.parametrize(
    ("name", "near"), [("resnt18", "resnet18"), ("lit0", "lite0"), ("lite3", "tf_efficientnet_lite3")]
)
def test_an_unknown_name_gets_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(ModelError, match=rf"unknown backbone '{name}': did you mean .*{near}"):
        build(config(name))


def test_a_hopeless_name_says_what_there_is() -> None:
    with pytest.raises(ModelError, match="take lite0, lite1, lite2 or a name of timm's"):
        build(config("zzzz????"))


def test_a_network_without_feature_maps_is_refused() -> None:
    with pytest.raises(ModelError, match="coat_tiny gives no feature maps"):
        build(config("coat_tiny"))


def _no_network(*_: object, **__: object) -> None:
    raise socket.gaierror("no network")


def test_without_a_network_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _no_network)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"cannot download the weights of resnet18 .*--weights FILE") as caught:
        build(config("resnet18"))
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 10
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_the_packaged_ones_never_look_for_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **_: asked.append(a))
    build(config())
    assert not asked


class _Odd(nn.Module):
    """Declares convolution and norm in another order than it runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        nn.init.constant_(self.norm.running_mean, 2.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> list[Tensor]:
        if x.shape[2] > 64:
            raise AssertionError("input height does not match")
        return [self.conv(self.norm(x))]


def test_a_network_that_cannot_be_folded_stays_as_it_is() -> None:
    net = _Odd().eval()
    assert backbones._fused(net, config()) is net


def test_a_size_that_the_network_does_not_take() -> None:
    with pytest.raises(ModelError, match=r"odd cannot take images of 96 x 96 .*choose another --size"):
        backbones._fused(_Odd().eval(), BackboneConfig(name="odd", size=96))


@pytest.mark.parametrize("min_stride", [4, 8, 16])
def test_fine_maps_are_averaged_to_the_finest_grid(lite0: Backbone, min_stride: int) -> None:
    fine, averaged = lite0(PIXELS), build(config(min_stride=min_stride))(PIXELS)
    for whole, found, stride in zip(fine, averaged, (4, 8, 16), strict=True):
        factor = max(1, min_stride // stride)
        b, c, h, w = whole.shape
        means = whole.reshape(b, c, h // factor, factor, w // factor, factor).mean((3, 5))
        torch.testing.assert_close(found, means)
