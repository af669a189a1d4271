"""Vision transformers as backbones: which blocks are the levels, which inputs they take, and whose weight names fit.

A vision transformer has one stride, its patch, so its levels are the tokens of several blocks. Where the recipe names
none, they are the ends of the four quarters of its depth, in the roles of a CNN's strides 4, 8, 16 and 32: a flow for
each of the first three, and the image head on the last two. Class and register tokens are dropped.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import timm
import torch
from torch import Tensor, nn

from bgad.config import ALL_METHODS, BackboneConfig, Config, preset_for
from bgad.errors import ConfigError, ModelError, first_line

logger = logging.getLogger(__name__)

MIN_SIZE = 32  # pixels; as of any backbone
QUARTERS = 4


@dataclass(frozen=True)
class Transformer:
    """A vision transformer whose blocks all keep the grid of its patches."""

    name: str
    patch: int
    depth: int  # number of blocks

    @property
    def quarter_ends(self) -> tuple[int, ...]:
        """The last block of each quarter.

        >>> Transformer("vit_small", 14, 12).quarter_ends, Transformer("vit_large", 14, 24).quarter_ends
        ((2, 5, 8, 11), (5, 11, 17, 23))
        """
        return tuple(self.depth * (i + 1) // QUARTERS - 1 for i in range(QUARTERS))

    def fitting_size(self, size: int) -> int:
        """Return the largest multiple of the patch that is at most `size`; ConfigError where that is too small."""
        fitting = size // self.patch * self.patch
        if fitting < MIN_SIZE:
            smallest = -(-MIN_SIZE // self.patch) * self.patch
            raise ConfigError(
                f"backbone.size must be at least {smallest} for {self.name}: a multiple of its patch of {self.patch}"
            )
        return fitting


@lru_cache(maxsize=16)
def find(name: str) -> Transformer | None:
    """Return the vision transformer of a timm name; None where the network is another, or no network of timm."""
    if not timm.is_model(name):
        return None
    try:
        with torch.device("meta"):  # no memory for weights
            net: Any = timm.create_model(name)
        strides, blocks = {info["reduction"] for info in net.feature_info}, net.blocks
    except Exception:  # noqa: BLE001 - such a network has no blocks that timm knows; building it says what is wrong
        return None
    has_one_grid = len(strides) == 1 and len(net.feature_info) == len(blocks) >= QUARTERS
    return Transformer(name, strides.pop(), len(blocks)) if has_one_grid else None


def resolved(config: Config, transformer: Transformer) -> Config:
    """Return a recipe that names the blocks of a vision transformer in place of strides, and an input that it takes."""
    _refuse_strides(config, transformer)
    given = config.backbone
    ends = transformer.quarter_ends
    blocks = given.blocks or ends[:-1]
    head = given.image_head_blocks or ((*blocks[-1:], *ends[-1:]) if given.image_head_strides else ())
    for key, chosen in (("blocks", blocks), ("image_head_blocks", head)):
        if chosen and chosen[-1] >= transformer.depth:
            raise ConfigError(
                f"backbone.{key} has {chosen[-1]}, but the blocks of {given.name} are 0 to {transformer.depth - 1}"
            )
    size = transformer.fitting_size(given.size)
    if size != given.size:
        logger.warning(
            f"the input is {size} x {size} pixels in place of {given.size} x {given.size}: {given.name} takes "
            f"multiples of its patch of {transformer.patch}; the next is --size {size + transformer.patch}"
        )
    chosen_levels = replace(
        given,
        strides=(),
        image_head_strides=(),
        blocks=blocks,
        image_head_blocks=tuple(sorted(set(head))),
        size=size,
    )
    return replace(config, backbone=chosen_levels).check()


def _refuse_strides(config: Config, transformer: Transformer) -> None:
    """ConfigError for strides that were set: they would have no effect."""
    presets = [preset_for(config.method, preset) for preset in ALL_METHODS[config.method].presets]
    for section in ("backbone", "baseline"):
        strides = getattr(getattr(config, section), "strides", ())
        if strides and strides not in [getattr(getattr(preset, section), "strides", ()) for preset in presets]:
            raise ConfigError(
                f"{section}.strides has no effect on {transformer.name}, which has the one stride {transformer.patch}: "
                "set backbone.blocks"
            )
    head = config.backbone.image_head_strides
    if head and head not in [preset.backbone.image_head_strides for preset in presets]:
        raise ConfigError(
            f"backbone.image_head_strides has no effect on {transformer.name}: set backbone.image_head_blocks"
        )


def token_net(name: str, config: BackboneConfig, *, pretrained: bool) -> nn.Module:
    """Return timm's extractor of the tokens of the blocks in use, cut after the last of them.

    Its position embeddings are those of the input's size.
    """
    net: nn.Module = timm.create_model(
        name,
        features_only=True,
        out_indices=sorted(config.all_levels),
        img_size=config.size,
        pretrained=pretrained,
    )
    return net


def with_timm_names(net: nn.Module, state: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return the state dict of a vision transformer under timm's names, by timm's own converter.

    It takes the official names of DINOv2, DINOv3 and others as well as timm's, and resamples position embeddings.
    """
    model: Any = net.model
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return state
    try:
        converted: dict[str, Tensor] = convert(dict(state), model)
    except Exception as error:
        raise ModelError(f"{source} does not hold the weights of this backbone: {first_line(error)}") from error
    return converted
