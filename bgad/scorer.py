"""What every scorer shares, with or without torch: pictures in, batches through the model, Scores out."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

import numpy as np

from bgad import images
from bgad.calibration import Calibration
from bgad.errors import BgadError, ModelError
from bgad.modelfile import Card
from bgad.types import FloatArray, ImageLike, Scores

BATCH = 4

Shape = tuple[int, int]


class BaseScorer(ABC):
    """Reads, resizes, batches and calibrates; a subclass only runs pixels through its engine."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.calibration = Calibration(tuple(card.calibration["scores"]), card.calibration["rate"])
        self._threshold = self.calibration.threshold

    @abstractmethod
    def run(self, pixels: FloatArray) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """Pixels (B, S, S, 3) -> image scores (B,), maps (B, S, S), log-likelihoods of each level (B, h, w)."""

    @property
    def threshold(self) -> float:
        """Scores above it are called anomalous."""
        return self._threshold

    def set_rate(self, rate: float) -> None:
        """Use another false-reject rate from now on; ConfigError when the held-out normals do not support it."""
        self.calibration = Calibration(self.calibration.scores, rate)
        self._threshold = self.calibration.threshold

    def score(self, image: ImageLike) -> Scores:
        """Score one image: a path or an array."""
        return self.score_many([image])[0]

    def score_many(self, images: Sequence[ImageLike]) -> list[Scores]:
        """Score a list; the first image that cannot be read raises."""
        results = []
        for result in self.score_stream(images):
            if isinstance(result, BgadError):
                raise result
            results.append(result)
        return results

    def score_stream(self, images: Iterable[ImageLike]) -> Iterator[Scores | BgadError]:
        """Score any number of images in order at constant memory; an unreadable one yields its error."""
        if isinstance(images, (str, Path)):
            raise TypeError("score_stream takes several images; for one, use score")
        source = iter(images)
        first = list(islice(source, 2))
        if len(first) < 2:  # one image: here, with all cores on it
            yield from self._score_batch(first)
            return
        source = chain(first, source)
        threads = os.cpu_count() or 1
        with ThreadPoolExecutor(threads, initializer=self.start_thread) as pool:
            ahead: deque[Future[list[Scores | BgadError]]] = deque()
            while True:
                while len(ahead) <= threads and (batch := list(islice(source, BATCH))):
                    ahead.append(pool.submit(self._score_batch, batch))
                if not ahead:
                    return
                yield from ahead.popleft().result()

    def start_thread(self) -> None:  # noqa: B027  (most engines need nothing here)
        """Called once in every thread that scores batches beside others: one core is its share."""

    def _prepare(self, image: ImageLike) -> tuple[FloatArray, Shape] | BgadError:
        try:
            picture = images.read(image, bits=self.card.bits)
        except BgadError as error:
            return error
        size = self.card.size
        return images.fit(picture, (size, size)), (picture.shape[0], picture.shape[1])

    def _score_batch(self, batch: list[ImageLike]) -> list[Scores | BgadError]:
        items = [self._prepare(image) for image in batch]
        ready = [item for item in items if not isinstance(item, BgadError)]
        results: list[Scores | BgadError] = []
        if ready:
            scores, maps, levels = self.run(np.stack([pixels for pixels, _ in ready]))
            results = [
                self._finish(float(scores[i]), maps[i], tuple(level[i] for level in levels), shape)
                for i, (_, shape) in enumerate(ready)
            ]
        in_order = iter(results)
        return [item if isinstance(item, BgadError) else next(in_order) for item in items]

    def _finish(
        self, score: float, small: FloatArray, levels: tuple[FloatArray, ...], shape: Shape
    ) -> Scores | BgadError:
        if not math.isfinite(score):
            return ModelError("the model gives no finite score for this image: train it again with a lower train.lr")
        return Scores(
            score=score,
            p_value=self.calibration.p_value(score),
            threshold=self._threshold,
            is_anomaly=score > self._threshold,
            map=images.resize_map(small, shape),
            boundary=self.card.map_boundary,
            levels=levels,
        )
