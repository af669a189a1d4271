"""What the fits of the supervised baselines have in common: the images of a step, and the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from bgad.config.supervised import SupervisedConfig
from bgad.errors import ConfigError
from bgad.features.cache import AnomalyFeatures, Features, even_pick
from bgad.methods.checkpoint import LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, stepped, train_steps
from bgad.model.heads.joined import JoinedFeatures, TrainedFeatures
from bgad.model.heads.supervised import SupervisedHead
from bgad.types import Index

DECAY = 0.1  # factor of the learning rate every `decay_steps`; as printed
MAX_NORMALS = 256  # whose features give the standardisation
MIN_STD_SHARE = 1e-3  # of the mean standard deviation: a channel that hardly varies on normals must not decide alone


class Draws:
    """Draws the images of a step, with replacement, as the feature maps that a head is trained on."""

    def __init__(self, head: SupervisedHead, data: FitData) -> None:
        assert data.known is not None  # noqa: S101 - check_split ensures it
        self.data, self.known = data, data.known
        self.levels = head.features.levels

    @property
    def pseudo(self) -> AnomalyFeatures:
        """The pseudo anomalies of the recipe; ConfigError where it makes none."""
        if self.data.pseudo is None:
            raise ConfigError("this baseline learns from pseudo anomalies: set pseudo.method=cutmix, pseudo.count=256")
        return self.data.pseudo

    def maps(self, features: Features, images: Index) -> list[Tensor]:
        """Return the maps (B, C, h, w) of these images."""
        return self.data.maps(features, images, self.levels)

    def sample(self, step: Step, features: Features, count: int) -> list[Tensor]:
        """Return the maps (count, C, h, w) of images drawn at random."""
        return self.maps(features, step.rng.integers(features.count, size=count))


def joined(*groups: Sequence[Tensor]) -> list[Tensor]:
    """Join groups of images, each a list of maps by level, to one batch."""
    return [torch.cat(level) for level in zip(*groups, strict=True)]


def labels_of(groups: Sequence[tuple[int, int]], like: Tensor) -> Tensor:
    """Return the labels of groups of images: the label and the number of each.

    >>> labels_of([(0, 2), (1, 1)], torch.zeros(1))
    tensor([0., 0., 1.])
    """
    return torch.cat([like.new_full((count,), float(label)) for label, count in groups])


def halves(head: SupervisedHead, draws: Draws, step: Step) -> tuple[list[Tensor], Tensor]:
    """Draw a batch of which half is normal and half known anomalies; return its features by scale, and its labels."""
    settings = settings_of(head)
    anomalous = settings.images_per_step // 2
    normal = settings.images_per_step - anomalous
    data = draws.data
    maps = joined(draws.sample(step, data.normals, normal), draws.sample(step, draws.known.features, anomalous))
    return head.features(maps), labels_of([(0, normal), (1, anomalous)], maps[0])


def thirds(head: SupervisedHead, draws: Draws, step: Step) -> tuple[list[Tensor], tuple[int, int, int]]:
    """Draw a batch of a third normals, then known anomalies, then pseudo anomalies; return its maps and the counts.

    Of the anomalies, the share that the recipe's section `pseudo` says is pseudo.
    """
    total = settings_of(head).images_per_step
    normal = total // 3
    pseudo = min(max(1, round(head.config.pseudo.share * (total - normal))), total - normal - 1)
    counts = normal, total - normal - pseudo, pseudo
    groups = (draws.data.normals, draws.known.features, draws.pseudo.features)
    drawn = [draws.sample(step, features, count) for features, count in zip(groups, counts, strict=True)]
    return joined(*drawn), counts


def settings_of(head: SupervisedHead) -> SupervisedConfig:
    """Return the settings that all supervised baselines have."""
    settings = head.config.baseline
    assert isinstance(settings, SupervisedConfig)  # noqa: S101 - Config.check ensures it
    return settings


def train(head: SupervisedHead, data: FitData, loss: Callable[[Step], Tensor]) -> Iterator[LogRow]:
    """Standardise the features by the normals, then minimise `loss(step)` over the head with the settings' schedule."""
    settings = settings_of(head)
    if isinstance(head.features, TrainedFeatures):
        head.features.load_pretrained()
    _standardise(head.features, data)
    optimiser = torch.optim.Adam(head.parameters(), weight_decay=settings.weight_decay)
    schedule = Schedule(steps=settings.steps, lr=stepped(settings.lr, settings.decay_steps, DECAY))
    return train_steps(head, optimiser, loss, data, schedule)


def _standardise(features: JoinedFeatures, data: FitData) -> None:
    """Take mean and standard deviation of each channel from an even sample of the normals, over all scales."""
    sample = data.normals.select(even_pick(data.normals.count, MAX_NORMALS))
    total = square = torch.zeros_like(features.mean, dtype=torch.float64)
    count = 0
    with torch.inference_mode():
        for maps in data.batches(sample, features.levels):
            for scale in features(maps):
                rows = scale.double()
                total, square = total + rows.sum((0, 2, 3)), square + rows.square().sum((0, 2, 3))
                count += scale.shape[0] * scale.shape[2] * scale.shape[3]
        mean = total / count
        std = (square / count - mean.square()).clamp(min=1e-12).sqrt()
        features.mean.copy_(mean)
        features.std.copy_(std.clamp(min=MIN_STD_SHARE * float(std.mean())))
