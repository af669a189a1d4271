"""What every engine shares, with or without torch: images in, batches through the model, Scores out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from bgad.artifact import folder as model_folder
from bgad.artifact.card import Card
from bgad.calibration import Calibration
from bgad.errors import BgadError, ImageError, ModelError
from bgad.geometry import tiles
from bgad.geometry.crop import crop, uncrop_map
from bgad.geometry.roi import Roi
from bgad.io import images
from bgad.io.cpus import usable_cpus
from bgad.types import Box, FloatArray, ImageLike, Scores, Shape

BATCH = 4  # images; on a CPU larger batches are no faster and take more memory

Outputs = tuple[FloatArray, FloatArray, list[FloatArray]]  # scores (B,), maps (B, S, S), log p / d of each level
ImageArray = npt.NDArray[Any]  # a decoded image (H, W, 3)
Result = Scores | BgadError
ResultWithImage = tuple[Result, ImageArray | None]  # the image is None where it could not be read


class BaseScorer(ABC):
    """Decodes, resizes, batches and calibrates; a subclass runs pixels through its engine."""

    def __init__(self, card: Card, *, threads: int | None = None, batch: int | None = None) -> None:
        self.card = card
        self.threads, self.batch = threads or usable_cpus(), batch or BATCH
        self.roi = Roi.from_png(card.roi_png) if card.roi_png else None
        self.tile = card.config.tile
        self.calibration = card.calibration_at().calibration()
        self._threshold = self.calibration.threshold

    @abstractmethod
    def run(self, pixels: FloatArray) -> Outputs:
        """Pixels (B, S, S, 3) -> image scores (B,), maps (B, S, S), log-likelihoods of each level (B, h, w)."""

    def start_thread(self) -> None:  # noqa: B027  (most engines need nothing here)
        """Prepare the calling thread to score batches on one core, beside other threads."""

    def tune_process(self) -> None:  # noqa: B027  (most engines need nothing here)
        """Change settings of the whole process that make the engine faster; only the process's own command calls it."""

    @property
    def threshold(self) -> float:
        """Images with scores above it are called anomalous."""
        return self._threshold

    def set_rate(self, rate: float) -> None:
        """Change the false-reject rate; ConfigError when the calibration normals do not support it."""
        self.calibration = Calibration(self.calibration.scores, rate)
        self._threshold = self.calibration.threshold

    def set_tile(self, size: int) -> None:
        """Cut images into tiles of so many pixels (0: do not cut), whatever the model was trained on."""
        self.tile = replace(self.tile, size=size)
        self.tile.check()

    def score(self, image: ImageLike) -> Scores:
        """Score one image: a path or an array."""
        return self.score_many([image])[0]

    def score_many(self, images: Sequence[ImageLike]) -> list[Scores]:
        """Score a list of images; the first that cannot be read raises."""
        results = []
        for result in self.score_stream(images):
            if isinstance(result, BgadError):
                raise result
            results.append(result)
        return results

    def score_stream(self, images: Iterable[ImageLike]) -> Iterator[Result]:
        """Score any number of images in order at constant memory; an unreadable one yields its error."""
        for result, _ in self._stream(images, keep_images=False):
            yield result

    def score_with_images(self, images: Iterable[ImageLike]) -> Iterator[ResultWithImage]:
        """Score as `score_stream` does, and yield each result with its decoded image.

        At most threads + 1 batches of images are in memory, besides those that the caller keeps.
        """
        return self._stream(images, keep_images=True)

    def _stream(self, images: Iterable[ImageLike], *, keep_images: bool) -> Iterator[ResultWithImage]:
        if isinstance(images, (str, Path)):
            raise TypeError("score_stream takes several images; for one, use score")
        source = iter(images)
        first = list(islice(source, 2))
        if len(first) < 2:  # one image: in the calling thread, on all cores
            yield from self._score_batch(first, keep_images)
            return
        source = chain(first, source)
        batch_size = 1 if self.tile.size else self.batch  # the tiles of one image make batches of their own
        with ThreadPoolExecutor(self.threads, initializer=self.start_thread) as pool:
            ahead: deque[Future[list[ResultWithImage]]] = deque()
            while True:
                while len(ahead) <= self.threads and (batch := list(islice(source, batch_size))):
                    ahead.append(pool.submit(self._score_batch, batch, keep_images))
                if not ahead:
                    return
                yield from ahead.popleft().result()

    def inputs(self, image: ImageLike) -> tuple[Shape, Iterator[tuple[Box, FloatArray]]]:
        """Return the size of an image and the model's inputs for it: the resized image, or one tile after another."""
        return self._inputs(self._decode(image), image)

    def prepare(self, image: ImageLike) -> tuple[FloatArray, Shape] | BgadError:
        """Return the model's input for an image that is not cut into tiles, and the size of the image."""
        try:
            return self._prepare(self._decode(image), image)
        except BgadError as error:
            return error

    def _decode(self, image: ImageLike) -> ImageArray:
        return images.read(image, bits=self.card.input.bits)

    def _inputs(self, decoded: ImageArray, image: ImageLike) -> tuple[Shape, Iterator[tuple[Box, FloatArray]]]:
        name = "array" if isinstance(image, np.ndarray) else str(image)
        region = None
        if self.roi is not None:
            decoded, region = self.roi.mask_image(decoded, name), self.roi.mask
        shape = (decoded.shape[0], decoded.shape[1])
        if self.tile.size and min(shape) < self.tile.size:
            raise ImageError(f"{name}: {tiles.too_small(shape, self.tile)}")
        backbone = self.card.config.backbone
        if self.tile.size:
            return shape, tiles.model_inputs(decoded, self.tile, region, backbone.size)
        pixels = images.fit(crop(decoded) if backbone.crop else decoded, (backbone.size, backbone.size))
        return shape, iter([((0, 0, shape[1], shape[0]), pixels)])

    def _prepare(self, decoded: ImageArray, image: ImageLike) -> tuple[FloatArray, Shape]:
        shape, parts = self._inputs(decoded, image)
        return next(parts)[1], shape

    def _score_batch(self, batch: list[ImageLike], keep_images: bool) -> list[ResultWithImage]:
        if self.tile.size:
            return [self._score_tiled(image, keep_images) for image in batch]
        kept: list[ImageArray | None] = []
        inputs: list[tuple[FloatArray, Shape] | BgadError] = []
        for image in batch:
            try:
                decoded = self._decode(image)
                inputs.append(self._prepare(decoded, image))
                kept.append(decoded if keep_images else None)
            except BgadError as error:
                inputs.append(error)
                kept.append(None)
        ready = [item for item in inputs if not isinstance(item, BgadError)]
        results: list[Result] = []
        if ready:
            outputs = self.run(np.stack([pixels for pixels, _ in ready]))
            results = self.finish(outputs, [shape for _, shape in ready])
        in_order = iter(results)
        return [
            (item if isinstance(item, BgadError) else next(in_order), image)
            for item, image in zip(inputs, kept, strict=True)
        ]

    def _score_tiled(self, image: ImageLike, keep_image: bool) -> ResultWithImage:
        """Score an image that is cut into tiles: its score is the highest of its tiles."""
        try:
            decoded = self._decode(image)
            shape, parts = self._inputs(decoded, image)
        except BgadError as error:
            return error, None
        kept = decoded if keep_image else None
        del decoded
        blend = tiles.Blend(shape, self.tile)
        highest = -math.inf
        while batch := list(islice(parts, self.batch)):
            scores, maps, _ = self.run(np.stack([pixels for _, pixels in batch]))
            if not np.isfinite(scores).all():
                return self.finish_one(math.nan, blend.map, (), shape), kept
            highest = max(highest, float(scores.max()))
            for (box, _), tile_map in zip(batch, maps, strict=True):
                blend.add(box, images.resize_map(tile_map, (self.tile.size, self.tile.size)))
        return self.finish_one(highest, blend.map, (), shape), kept

    def finish(self, outputs: Outputs, shapes: Sequence[Shape]) -> list[Result]:
        """Turn the outputs of `run` into the results of images of these sizes."""
        scores, maps, levels = outputs
        return [
            self.finish_one(float(scores[i]), maps[i], tuple(level[i] for level in levels), shape)
            for i, shape in enumerate(shapes)
        ]

    def finish_one(self, score: float, model_map: FloatArray, levels: tuple[FloatArray, ...], shape: Shape) -> Result:
        """Calibrate one image's score and resize its map to the size of the image."""
        if not math.isfinite(score):
            return ModelError("the model gives no finite score for this image: train it again with a lower train.lr")
        if self.card.config.backbone.crop and not self.tile.size:
            anomaly_map = uncrop_map(model_map, shape)
        else:
            anomaly_map = model_map if model_map.shape == shape else images.resize_map(model_map, shape)
        return Scores(
            score=score,
            p_value=self.calibration.p_value(score),
            threshold=self._threshold,
            is_anomaly=score > self._threshold,
            map=anomaly_map if self.roi is None else self.roi.mask_map(anomaly_map),
            boundary=self.card.map.boundary,
            levels=levels,
        )


class GraphScorer(BaseScorer):
    """Scores images with an exported graph; a subclass names the graph's files and runs them."""

    FILES: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        card: Card,
        *graph: bytes,
        device: str = "auto",
        threads: int | None = None,
        batch: int | None = None,
        strict: bool = False,
    ) -> None:
        """Declare what every graph engine takes: the content of FILES, a device, and whether to fail without it."""
        super().__init__(card, threads=threads, batch=batch)

    @staticmethod
    @abstractmethod
    def not_exported(folder: Path) -> ModelError:
        """Return the error of a model folder without the graph's files."""

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "auto",
        *,
        threads: int | None = None,
        batch: int | None = None,
        strict: bool = False,
    ) -> Self:
        """Read a model folder; only the card, the split, the region of interest and the graph are read and verified."""
        folder = Path(folder)
        if any(name not in model_folder.read_card(folder).files for name in cls.FILES):
            raise cls.not_exported(folder)
        card, files = model_folder.read_files(folder, cls.FILES)
        graph = (files[name] for name in cls.FILES)
        return cls(card, *graph, device=device, threads=threads, batch=batch, strict=strict)
