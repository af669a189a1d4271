"""The contract of a baseline's head: from the backbone's feature maps to an anomaly map and an image score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bgad.config import Config
from bgad.model.backbone import Backbone
from bgad.model.scoring import ScoringModel


class FeatureSpec(NamedTuple):
    """The feature maps that a head takes. Of a baseline on pixels, it is one: the image, with stride 1."""

    strides: tuple[int, ...]
    channels: tuple[int, ...]
    grids: tuple[tuple[int, int], ...]  # height and width
    size: int  # side of the input and of the anomaly map, in pixels
    blocks: int = 0  # number of levels of a vision transformer, whose maps come first; 0: maps are chosen by stride

    def chosen(self, strides: Sequence[int]) -> list[int]:
        """Return the indices of the maps of these strides; of a vision transformer, of all its levels."""
        return list(range(self.blocks)) or [self.strides.index(stride) for stride in strides]


class HeadOutput(NamedTuple):
    """What a head gives for a batch; its parts add up to the image score."""

    score: Tensor  # (B,): the part that comes from the map
    map: Tensor  # (B, S, S): higher is more anomalous
    image: Tensor | None = None  # (B,): the part of the image as a whole, where the baseline has one


class Head(nn.Module):
    """Scores feature maps. What a fit learns is in parameters and buffers, and is stored in the model folder.

    A subclass sets `config` and `spec`, and must not mix the images of a batch: a score belongs to its image alone.
    A buffer whose size depends on the data, such as a memory bank, takes the shape of what is loaded.
    """

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """Feature maps (B, C, h, w) of each stride -> scores and anomaly maps."""
        raise NotImplementedError

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for name, buffer in list(self.named_buffers(recurse=False)):
            if (stored := state_dict.get(prefix + name)) is not None and stored.shape != buffer.shape:
                self.register_buffer(name, buffer.new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class HeadModel(ScoringModel):
    """A baseline: the head of its method on the backbone."""

    def __init__(self, config: Config, backbone: Backbone, head: type[Head]) -> None:
        super().__init__(config, backbone)
        spec = FeatureSpec(
            tuple(backbone.strides),
            tuple(backbone.channels),
            tuple(self.grids),
            config.backbone.size,
            len(config.backbone.blocks),
        )
        with torch.random.fork_rng(devices=[]):  # initial weights depend on the seed alone
            torch.manual_seed(config.seed)
            self.head = head(config, spec)

    def score_features(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """See ScoringModel."""
        return self.score_maps(rows_to_maps(features, self.grids))

    def score_maps(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Feature maps (B, C, h, w) of each stride -> the outputs of `forward`; a head has no levels.

        A region of interest restricts the map. The score needs no restriction: images are blank outside of the region.
        """
        output = self.head(maps)
        zero = torch.zeros_like(output.score)
        parts = [output.score, zero if output.image is None else output.image, zero]
        return torch.stack(parts, 1), self._inside(output.map), []

    def for_export(self) -> nn.Module:
        """See ScoringModel."""
        return _HeadOfMaps(self)


class _HeadOfMaps(nn.Module):
    def __init__(self, model: HeadModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, maps: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
        return self.model.score_maps(maps)


def rows_to_maps(rows: Sequence[Tensor], grids: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Feature rows (B, h * w, C) of each stride -> feature maps (B, C, h, w)."""
    return [x.transpose(1, 2).reshape(x.shape[0], x.shape[2], *grid) for x, grid in zip(rows, grids, strict=True)]
