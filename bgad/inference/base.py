"""What every engine shares, with or without torch: images in, batches through the model, Scores out."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FLOAT32, CalibrationNormal, Card
from bgad.calibration import Calibration
from bgad.config import TileConfig
from bgad.errors import BgadError, ImageError, ModelError
from bgad.geometry import tiles
from bgad.geometry.crop import central_box, uncrop_map
from bgad.geometry.roi import Roi, mask_outside
from bgad.inference import explain
from bgad.io import images
from bgad.io.cpus import usable_cpus
from bgad.types import PARTS, BoolArray, Box, FloatArray, ImageLike, Scores, Shape

logger = logging.getLogger(__name__)

# Images that run through the model together. On a CPU, larger batches are hardly faster, and the last digits of a score
# would depend on the neighbours of its image.
CPU_BATCH = 1
ACCELERATOR_BATCH = 4
LARGER = 4  # times the pixels of the largest training image: beyond, a warning

ImageArray = npt.NDArray[Any]  # a decoded image (H, W, 3)
Result = Scores | BgadError
_Parts = tuple[Shape, Callable[[Box], ImageArray]]  # the size of an image, and what returns any box of it as RGB
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
ResultWithImage = tuple[Result, ImageArray | None]  # the image is None where it could not be read


class Outputs(NamedTuple):
    """What an engine computes of a batch of images."""

    scores: FloatArray  # (B,)
    parts: FloatArray  # (B, 3): those of types.PARTS, whose sum is the score
    maps: FloatArray  # (B, S, S)
    levels: list[FloatArray]  # log p / d of each level, (B, h, w)

    def select(self, images: slice) -> Outputs:
        """Return the outputs of some of the images."""
        return Outputs(self.scores[images], self.parts[images], self.maps[images], [x[images] for x in self.levels])

    def one(self, image: int) -> Output:
        """Return the output of one image."""
        levels = tuple(level[image] for level in self.levels)
        return Output(float(self.scores[image]), self.parts[image], self.maps[image], levels)


class Output(NamedTuple):
    """What an engine computes of one image."""

    score: float
    parts: FloatArray  # (3,)
    map: FloatArray  # (S, S)
    levels: tuple[FloatArray, ...] = ()


class JoinedTiles:
    """Joins the outputs of an image's tiles: the one with the highest score, and one map of the image."""

    def __init__(self, shape: Shape, config: TileConfig) -> None:
        self._blend, self._side = tiles.Blend(shape, config), config.size
        self._highest: Output | None = None

    def add(self, boxes: Sequence[Box], outputs: Outputs) -> None:
        """Add the outputs of the tiles at these boxes."""
        best = outputs.one(int(outputs.scores.argmax()))
        if self._highest is None or best.score > self._highest.score:
            self._highest = best
        for box, tile_map in zip(boxes, outputs.maps, strict=True):
            self._blend.add(box, images.resize_map(tile_map, (self._side, self._side)))

    @property
    def highest(self) -> Output:
        """Output of the tile with the highest score."""
        assert self._highest is not None  # noqa: S101 - every image has a tile
        return self._highest

    @property
    def map(self) -> FloatArray:
        """Anomaly map of the image, at its resolution."""
        return self._blend.map


class SampleScore(NamedTuple):
    """The output of a model for a sample, and the maximum of the map from which every map of it is drawn.

    Resizing averages map values, so no map that is drawn of the sample exceeds `map_max`, at whatever resolution.
    """

    output: Output  # of an image that is cut into tiles: that of its highest tile
    map_max: float  # of an image that is cut into tiles: of its joined map, inside the region of interest

    @property
    def calibrating(self) -> CalibrationNormal:
        """What a calibration keeps of it, which is not the map."""
        return CalibrationNormal(self.output.score, self.output.parts, self.map_max)


def score_tiles(
    run: Callable[[FloatArray], Outputs],
    shape: Shape,
    inputs: Iterable[tuple[Box, FloatArray]],
    tile: TileConfig,
    inside: BoolArray | None,
) -> SampleScore:
    """Score an image of this shape by its tiles; `inside` is its region of interest."""
    joined = JoinedTiles(shape, tile)
    for box, pixels in inputs:
        joined.add([box], run(pixels[None]))
    values = joined.map if inside is None else joined.map[inside]
    return SampleScore(joined.highest, float(values.max()))


class BaseScorer(ABC):
    """Decodes, resizes, batches and calibrates; a subclass runs pixels through its engine."""

    ENGINE: ClassVar[str]  # its name in `load`

    def __init__(
        self,
        card: Card,
        *,
        threads: int | None = None,
        batch: int | None = None,
        on_cpu: bool = True,
        precision: str = FLOAT32,
    ) -> None:
        self.card, self.on_cpu, self.precision = card, on_cpu, precision
        self.threads, self.batch = threads or usable_cpus(), CPU_BATCH if on_cpu else batch or ACCELERATOR_BATCH
        if on_cpu and batch not in (None, CPU_BATCH):
            logger.warning(f"a batch of {batch} has no effect: a CPU scores one image at a time on each core")
        self.roi = Roi.from_png(card.roi_png) if card.roi_png else None
        self.tile = card.config.tile
        own = card.calibration_at(precision)
        self.part_limits = own.part_limits  # a part of the score above its limit stands out
        self._calibrate(own.calibration(), own.map_calibration())
        self._has_warned_of_size = False

    def _calibrate(self, calibration: Calibration, map_calibration: Calibration) -> None:
        self.calibration, self.map_calibration = calibration, map_calibration
        self._threshold, self._map_threshold = calibration.threshold, map_calibration.threshold

    @abstractmethod
    def run(self, pixels: FloatArray) -> Outputs:
        """Run a batch of pixels (B, S, S, 3) through the model."""

    def start_thread(self) -> None:  # noqa: B027  (most engines need nothing here)
        """Prepare the calling thread to score batches on one core, beside other threads."""

    def tune_process(self) -> None:  # noqa: B027  (most engines need nothing here)
        """Change settings of the whole process that make the engine faster; only the process's own command calls it."""

    @property
    def threshold(self) -> float:
        """Images with scores above it are called anomalous."""
        return self._threshold

    @property
    def map_threshold(self) -> float:
        """Map values above it are inside a contour."""
        return self._map_threshold

    def set_rate(self, rate: float) -> None:
        """Change the false-reject rate of both thresholds; ConfigError when the normals do not support it."""
        own = self.card.calibration_at(self.precision)
        self._calibrate(own.calibration(rate), own.map_calibration(rate))

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
        batches = iter(lambda: list(islice(source, batch_size)), [])
        for results in self.in_threads(lambda batch: self._score_batch(batch, keep_images), batches):
            yield from results

    def calibrating(self, images: Iterable[ImageLike]) -> Iterator[CalibrationNormal]:
        """Yield what a calibration needs of images, in order; the first that cannot be read raises."""

        def score(image: ImageLike) -> CalibrationNormal:
            shape, inputs = self.inputs(image)
            if self.tile.size:
                inside = None if self.roi is None else self.roi.mask
                return score_tiles(self.run, shape, inputs, self.tile, inside).calibrating
            output = self.run(next(inputs)[1][None]).one(0)
            return SampleScore(output, float(output.map.max())).calibrating

        return self.in_threads(score, images)

    def in_threads(self, work: Callable[[_Item], _Made], items: Iterable[_Item]) -> Iterator[_Made]:
        """Yield what `work` makes of each item, in order, in threads of one core each; at most threads + 1 ahead."""
        source = iter(items)
        with ThreadPoolExecutor(self.threads, initializer=self.start_thread) as pool:
            ahead: deque[Future[_Made]] = deque()
            while True:
                ahead.extend(pool.submit(work, item) for item in islice(source, self.threads + 1 - len(ahead)))
                if not ahead:
                    return
                yield ahead.popleft().result()

    def inputs(self, image: ImageLike) -> tuple[Shape, Iterator[tuple[Box, FloatArray]]]:
        """Return the size of an image and the model's inputs for it: the resized image, or one tile after another."""
        return self._inputs(self._load(image), image)

    def prepare(self, image: ImageLike) -> tuple[FloatArray, Shape]:
        """Return the model's input for an image that is not cut into tiles, and the size of the image."""
        return self._prepare(self._load(image), image)

    def _decode(self, image: ImageLike) -> ImageArray:
        return images.read(image, bits=self.card.input.bits)

    def _load(self, image: ImageLike) -> _Parts:
        """Load an image for scoring alone, of which only parts are converted to RGB at a time."""
        loaded = images.load(image)
        return loaded.shape, partial(loaded.rgb, bits=self.card.input.bits)

    def _inputs(self, parts: _Parts, image: ImageLike) -> tuple[Shape, Iterator[tuple[Box, FloatArray]]]:
        name = "array" if isinstance(image, np.ndarray) else str(image)
        shape, part = parts
        region = None
        if self.roi is not None:
            self.roi.check_shape(shape, name)
            part, region = partial(self._masked, part), self.roi.mask
        if self.tile.size and min(shape) < self.tile.size:
            raise ImageError(f"{name}: {tiles.too_small(shape, self.tile)}")
        backbone = self.card.config.backbone
        if self.tile.size:
            return shape, tiles.model_inputs(part, shape, self.tile, region, backbone.size)
        if not backbone.crop:
            images.check_aspect(shape, name)
        self._check_size(name, shape)
        complete = (0, 0, shape[1], shape[0])
        pixels = images.fit_parts(
            part, central_box(shape) if backbone.crop else complete, (backbone.size, backbone.size)
        )
        return shape, iter([(complete, pixels)])

    def _check_size(self, name: str, shape: Shape) -> None:
        """Warn, once, of an image that is much larger than those of training: resizing may hide its defects."""
        trained = self.card.input.largest_image
        if trained is None or self._has_warned_of_size or math.prod(shape) <= LARGER * math.prod(trained):
            return
        self._has_warned_of_size = True
        logger.warning(
            f"{name} is {shape[1]}x{shape[0]}, training images were {trained[1]}x{trained[0]} at most: if it shows "
            "a larger area than they did, its defects may vanish when it is resized; train with --tile for such images"
        )

    def _masked(self, part: Callable[[Box], ImageArray], box: Box) -> ImageArray:
        assert self.roi is not None  # noqa: S101 - called for models with a region of interest only
        return mask_outside(part(box), images.cut(self.roi.mask, box), "part")

    def _prepare(self, parts: _Parts, image: ImageLike) -> tuple[FloatArray, Shape]:
        shape, inputs = self._inputs(parts, image)
        return next(inputs)[1], shape

    def _score_batch(self, batch: list[ImageLike], keep_images: bool) -> list[ResultWithImage]:
        if self.tile.size:
            return [self._score_tiled(image, keep_images) for image in batch]
        kept: list[ImageArray | None] = []
        inputs: list[tuple[FloatArray, Shape] | BgadError] = []
        for image in batch:
            try:
                decoded = self._decode(image) if keep_images else None
                inputs.append(self._prepare(self._load(image) if decoded is None else _array_parts(decoded), image))
                kept.append(decoded)
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
            kept = self._decode(image) if keep_image else None
            shape, parts = self._inputs(self._load(image) if kept is None else _array_parts(kept), image)
        except BgadError as error:
            return error, None
        joined = JoinedTiles(shape, self.tile)
        while True:
            try:
                batch = list(islice(parts, self.batch))  # pixels are converted here
            except BgadError as error:
                return error, kept
            if not batch:
                break
            outputs = self.run(np.stack([pixels for _, pixels in batch]))
            if not np.isfinite(outputs.scores).all():
                return self._no_score(), kept
            joined.add([box for box, _ in batch], outputs)
        highest = joined.highest
        return self.finish_one(Output(highest.score, highest.parts, joined.map), shape), kept

    def finish(self, outputs: Outputs, shapes: Sequence[Shape]) -> list[Result]:
        """Turn the outputs of `run` into the results of images of these sizes."""
        return [self.finish_one(outputs.one(i), shape) for i, shape in enumerate(shapes)]

    def finish_one(self, output: Output, shape: Shape) -> Result:
        """Calibrate one image's score and resize its map to the size of the image."""
        if not math.isfinite(output.score):
            return self._no_score()
        score, model_map = self.calibration.rounded(output.score), output.map
        if self.card.config.backbone.crop and not self.tile.size:
            anomaly_map = uncrop_map(model_map, shape)
        else:
            anomaly_map = model_map if model_map.shape == shape else images.resize_map(model_map, shape)
        anomaly_map = anomaly_map if self.roi is None else self.roi.mask_map(anomaly_map)
        parts = dict(zip(PARTS, output.parts.tolist(), strict=True))
        threshold, map_threshold = self._threshold, self._map_threshold
        region = explain.region_at_peak(anomaly_map, map_threshold)
        return Scores(
            score=score,
            p_value=self.calibration.p_value(score),
            threshold=threshold,
            is_anomaly=score > threshold,
            map=anomaly_map,
            map_threshold=map_threshold,
            boundary=self.card.map.boundary,
            levels=output.levels,
            parts=parts,
            reason=explain.explain(self.part_limits, score > threshold, parts, has_region=region is not None),
            region=region,
            precision=self.precision,
        )

    @staticmethod
    def _no_score() -> ModelError:
        return ModelError("the model gives no finite score for this image: train it again with a lower train.lr")


def _array_parts(image: ImageArray) -> _Parts:
    return (image.shape[0], image.shape[1]), partial(images.cut, image)


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
        on_cpu: bool = True,
        precision: str = FLOAT32,
    ) -> None:
        """Declare what every graph engine takes: the content of FILES, a device, and whether to fail without it."""
        super().__init__(card, threads=threads, batch=batch, on_cpu=on_cpu, precision=precision)

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
        card, graph = cls.read_graph(Path(folder))
        return cls(card, *graph, device=device, threads=threads, batch=batch, strict=strict)

    @classmethod
    def read_graph(cls, folder: Path) -> tuple[Card, list[bytes]]:
        """Read and verify the card and the files of the graph; ModelError where there is none."""
        if any(name not in model_folder.read_card(folder).files for name in cls.FILES):
            raise cls.not_exported(folder)
        card, files = model_folder.read_files(folder, cls.FILES)
        return card, [files[name] for name in cls.FILES]
