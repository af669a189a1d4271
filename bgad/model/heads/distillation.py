"""Heads of a teacher and a student: the student learns, on normals, to predict deep features of the teacher.

The teacher is the backbone. The student is given the teacher's features of the finest stride.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bgad.config import Config
from bgad.config.unsupervised import DistillationConfig, KdadConfig
from bgad.model.heads.base import FeatureSpec, Head, HeadOutput
from bgad.model.scoring import map_score, resize_maps


class Student(nn.Module):
    """Convolutions from the first of several feature maps to the others, one stage for each."""

    def __init__(self, channels: Sequence[int], grids: Sequence[tuple[int, int]], width: float) -> None:
        super().__init__()
        self.stages, self.outputs = nn.ModuleList(), nn.ModuleList()
        inputs = channels[0]
        for number, out in enumerate(channels[1:], 1):
            hidden = max(1, round(width * out))
            stride = -(-grids[number - 1][0] // grids[number][0])
            self.stages.append(nn.Sequential(*_block(inputs, hidden, stride), *_block(hidden, hidden, 1)))
            self.outputs.append(nn.Conv2d(hidden, out, 1))
            inputs = hidden

    def forward(self, features: Tensor) -> list[Tensor]:
        """Features of the first map -> predictions of the others."""
        predictions = []
        for stage, output in zip(self.stages, self.outputs, strict=True):
            features = stage(features)
            predictions.append(output(features))
        return predictions


def _block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


class DistillationHead(Head):
    """The student, and pairs of what it gives and what the teacher gives."""

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, DistillationConfig)  # noqa: S101 - Config.check ensures it
        self.maps = spec.chosen(settings.strides)
        channels, grids = [spec.channels[i] for i in self.maps], [spec.grids[i] for i in self.maps]
        self.student = Student(channels, grids, settings.width)

    def pairs(self, maps: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the student's and the teacher's features (B, C, h, w) of every stride but the first."""
        first, *others = (maps[i] for i in self.maps)
        return list(zip(self.student(first), others, strict=True))

    def resized(self, errors: Tensor) -> Tensor:
        """Bring the errors of a stride (B, h, w) to the size of the input."""
        return resize_maps(errors, (self.spec.size, self.spec.size))


class MsfdHead(DistillationHead):
    """The product over the strides of 1 - cosine, and its maximum."""

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head."""
        first, *others = (self.resized(cosine_error(*pair)) for pair in self.pairs(maps))
        for error in others:
            first = first * error
        return HeadOutput(map_score(first, 0.0), first)


class KdadHead(DistillationHead):
    """The sum over the strides of the errors of values and directions, of each position and of the whole image."""

    value_weight: Tensor  # of the squared error beside the error of direction

    def __init__(self, config: Config, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        settings = config.baseline
        assert isinstance(settings, KdadConfig)  # noqa: S101 - Config.check ensures it
        self.sigma = settings.sigma
        self.register_buffer("value_weight", torch.ones(()))

    def forward(self, maps: Sequence[Tensor]) -> HeadOutput:
        """See Head. The image score is the loss of the image: its squared error is the part of the map."""
        pairs = self.pairs(maps)
        errors = [self.value_weight * (a - b).square().mean(1) + cosine_error(a, b) for a, b in pairs]
        total = torch.stack([self.resized(error) for error in errors]).sum(0)
        values, directions = distillation_errors(pairs)
        return HeadOutput(self.value_weight * values, resize_maps(total, (self.spec.size,) * 2, self.sigma), directions)


def cosine_error(student: Tensor, teacher: Tensor) -> Tensor:
    """Feature maps (B, C, h, w) -> 1 - cosine of the features at each position (B, h, w).

    It is half the squared distance of the features scaled to length 1.
    """
    return 1 - (F.normalize(student, dim=1) * F.normalize(teacher, dim=1)).sum(1)


def distillation_errors(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the mean squared error and 1 - cosine of the activations of each image (B,), summed over the pairs."""
    values = torch.stack([(a - b).square().mean((1, 2, 3)) for a, b in pairs]).sum(0)
    directions = torch.stack([cosine_error(a.flatten(1), b.flatten(1)) for a, b in pairs]).sum(0)
    return values, directions
