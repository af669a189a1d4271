"""The images that the report shows, and their thumbnails, which are made while the images are scored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bgad.evaluation.report.contents import WORST
from bgad.io import images
from bgad.types import AnyArray, Sample, Scores

SIZE = 30  # images that are shown, or more
THUMBNAIL_SIDE = 224

Thumbnail = npt.NDArray[np.uint8]


def select(samples: Sequence[Sample], names: Iterable[str] = ()) -> set[str]:
    """Return the names of images to show: those given, and a selection over the classes."""
    shown = set(names)
    by_class: dict[str, list[Sample]] = {}
    for sample in samples:
        by_class.setdefault(sample.defect, []).append(sample)
    rank = 0
    while len(shown) < min(SIZE, len(samples)):
        shown |= {members[rank].name for members in by_class.values() if rank < len(members)}
        rank += 1
    return shown


def thumbnail(image: AnyArray) -> Thumbnail:
    """Return an image as a small one."""
    size = images.fit_shape(image.shape[:2], THUMBNAIL_SIDE)
    return (images.fit(image, size) * 255).round().astype(np.uint8)


class Gallery:
    """Keeps the thumbnails of the images that may be shown: a selection over the classes, and the worst so far."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._selected = select(samples)
        self._worst: tuple[list[tuple[float, str]], list[tuple[float, str]]] = ([], [])  # of each label, worst first
        self.thumbnails: dict[str, Thumbnail] = {}

    def add(self, sample: Sample, result: Scores, image: AnyArray) -> None:
        """Make the thumbnail of a scored image if it may be shown; drop that of an image that no longer is."""
        worst = self._worst[sample.label]
        worst.append((result.score if sample.label else -result.score, sample.name))
        worst.sort(key=lambda entry: entry[0])
        shown = self._selected | {name for _, name in worst[:WORST]}
        if sample.name in shown:
            self.thumbnails[sample.name] = thumbnail(image)
        for _, name in worst[WORST:]:
            if name not in shown:
                self.thumbnails.pop(name, None)
        del worst[WORST:]
