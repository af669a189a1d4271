"""What every scorer shares, with or without torch: pictures in, batches through the model, Scores out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from bgad.artifact.card import Card
from bgad.calibration import Calibration
from bgad.errors import BgadError, ImageError, ModelError
from bgad.geometry import tiles
from bgad.geometry.roi import Roi
from bgad.io import images
from bgad.io.cpus import usable_cpus
from bgad.types import Box, FloatArray, ImageLike, Scores, Shape

BATCH = 4


class BaseScorer(ABC):
    """Reads, resizes, batches and calibrates; a subclass only runs pixels through its engine."""

    def __init__(self, card: Card, *, threads: int | None = None, batch: int | None = None) -> None:
        self.card = card
        self.threads, self.batch = threads or usable_cpus(), batch or BATCH
        self.roi = Roi.from_png(card.roi_png) if card.roi_png else None
        self.tile = card.config.tile
        self.calibration = card.calibration_at().calibration()
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

    def set_tile(self, size: int) -> None:
        """Cut pictures into tiles of so many pixels from now on (0: into none), whatever the model was trained on."""
        self.tile = replace(self.tile, size=size)
        self.tile.check()

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
        together = 1 if self.tile.size else self.batch  # a picture that is cut into tiles is a batch of its own
        with ThreadPoolExecutor(self.threads, initializer=self.start_thread) as pool:
            ahead: deque[Future[list[Scores | BgadError]]] = deque()
            while True:
                while len(ahead) <= self.threads and (batch := list(islice(source, together))):
                    ahead.append(pool.submit(self._score_batch, batch))
                if not ahead:
                    return
                yield from ahead.popleft().result()

    def start_thread(self) -> None:  # noqa: B027  (most engines need nothing here)
        """Called once in every thread that scores batches beside others: one core is its share."""

    def inputs(self, image: ImageLike) -> tuple[Shape, Iterator[tuple[Box, FloatArray]]]:
        """The size of an image, and what the model gets to see of it: the whole, or tile after tile."""
        picture = images.read(image, bits=self.card.input.bits)
        name = "array" if isinstance(image, np.ndarray) else str(image)
        region = None
        if self.roi is not None:
            picture, region = self.roi.mask_image(picture, name), self.roi.mask
        shape = (picture.shape[0], picture.shape[1])
        if self.tile.size and min(shape) < self.tile.size:
            raise ImageError(f"{name}: {tiles.too_small(shape, self.tile)}")
        return shape, tiles.model_inputs(picture, self.tile, region, self.card.config.backbone.size)

    def _score_tiles(self, image: ImageLike) -> Scores | BgadError:
        """A picture cut into tiles: the score is that of its strangest tile."""
        try:
            shape, parts = self.inputs(image)
        except BgadError as error:
            return error
        blend = tiles.Blend(shape, self.tile)
        highest = -math.inf
        while some := list(islice(parts, self.batch)):
            scores, maps, _ = self.run(np.stack([pixels for _, pixels in some]))
            if not np.isfinite(scores).all():
                return self.finish_one(math.nan, blend.map, (), shape)
            highest = max(highest, float(scores.max()))
            for (box, _), small in zip(some, maps, strict=True):
                blend.add(box, images.resize_map(small, (self.tile.size, self.tile.size)))
        return self.finish_one(highest, blend.map, (), shape)

    def prepare(self, image: ImageLike) -> tuple[FloatArray, Shape] | BgadError:
        """What the model gets to see of an image as a whole, and the size of the image."""
        try:
            shape, parts = self.inputs(image)
        except BgadError as error:
            return error
        return next(parts)[1], shape

    def _score_batch(self, batch: list[ImageLike]) -> list[Scores | BgadError]:
        if self.tile.size:
            return [self._score_tiles(image) for image in batch]
        items = [self.prepare(image) for image in batch]
        ready = [item for item in items if not isinstance(item, BgadError)]
        results: list[Scores | BgadError] = []
        if ready:
            found = self.run(np.stack([pixels for pixels, _ in ready]))
            results = self.finish(found, [shape for _, shape in ready])
        in_order = iter(results)
        return [item if isinstance(item, BgadError) else next(in_order) for item in items]

    def finish(
        self, found: tuple[FloatArray, FloatArray, list[FloatArray]], shapes: Sequence[Shape]
    ) -> list[Scores | BgadError]:
        """From what `run` gives for some images to what is said of each."""
        scores, maps, levels = found
        return [
            self.finish_one(float(scores[i]), maps[i], tuple(level[i] for level in levels), shape)
            for i, shape in enumerate(shapes)
        ]

    def finish_one(
        self, score: float, small: FloatArray, levels: tuple[FloatArray, ...], shape: Shape
    ) -> Scores | BgadError:
        """Calibrate one image's score and bring its map to the size of the image."""
        if not math.isfinite(score):
            return ModelError("the model gives no finite score for this image: train it again with a lower train.lr")
        anomaly = small if small.shape == shape else images.resize_map(small, shape)
        return Scores(
            score=score,
            p_value=self.calibration.p_value(score),
            threshold=self._threshold,
            is_anomaly=score > self._threshold,
            map=anomaly if self.roi is None else self.roi.mask_map(anomaly),
            boundary=self.card.map.boundary,
            levels=levels,
        )
