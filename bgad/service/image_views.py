"""Renders stored images for people: as they were sent, as a browser can show them, and with their anomaly maps."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags
from PIL import Image as Pillow

from bgad.errors import ImageError
from bgad.inference.base import BaseScorer
from bgad.inference.batch import BOUNDARY, THRESHOLD
from bgad.io import images, render
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.scoring.batcher import Answer, decide_again
from bgad.service.scoring.decoding import DecodingBudget
from bgad.service.scoring.model_cache import ModelCache
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.store.images import Images
from bgad.service.store.versions import Version

PATIENCE_SECONDS = 5.0  # that a person waits for a rendered image before the service says that it is busy
PNG_ORIENTATION_MARKS = (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp")  # where a PNG may hold an orientation


@dataclass(frozen=True)
class GreyMap:
    """An anomaly map as a grey PNG, with the map values of black, white, the map threshold and the normal boundary.

    At most the false-reject rate `rate` of good images has a value above the map threshold.
    """

    png: bytes
    low: float
    high: float
    map_threshold: float
    rate: float
    boundary: float


class ImageViews:
    """Renders stored images."""

    def __init__(
        self, stored: Images, blobs: BlobStore, cache: ModelCache, thumbnails: Thumbnails, budget: DecodingBudget
    ) -> None:
        self._images, self._blobs, self._cache, self._thumbnails = stored, blobs, cache, thumbnails
        self._budget = budget

    def path(self, number: int) -> Path:
        """Return the path of an image file as it was sent."""
        return self._blobs.path(BlobKind.IMAGE, self._images.get_kept(number).sha256)

    @contextmanager
    def reading(self, number: int) -> Iterator[Path]:
        """Yield the path of an image file; an error of a file that retention removes meanwhile says so."""
        path = self.path(number)
        try:
            yield path
        except (ImageError, FileNotFoundError) as error:
            self._images.get_kept(number)
            raise ImageError(str(error).replace(str(path), f"image {number}")) from error

    def original(self, number: int) -> bytes:
        """Return an image file as it was sent."""
        with self.reading(number) as path:
            return path.read_bytes()

    def for_browser(self, number: int) -> tuple[bytes, str]:
        """Return an image that any browser shows correctly, and its media type: the file itself, or else a PNG."""
        with self.reading(number) as path:
            content = path.read_bytes()
            media_type = _browser_type(content)
            if media_type:
                return content, media_type
            with self._budget.hold_file(path):
                return render.encode(images.load(path).uint8(), "PNG", compress_level=1), "image/png"

    def score(self, number: int, version: Version, *, full_size_map: bool = False) -> tuple[Answer, BaseScorer]:
        """Score a stored image with any version, for a person who waits; the score is not recorded."""
        with self.reading(number) as path:
            return self._cache.score(version, path, patient=True, timeout=PATIENCE_SECONDS, full_size_map=full_size_map)

    def overlay(self, number: int, version: Version, contour: str = THRESHOLD) -> bytes:
        """Return a PNG of an image with its anomaly map as a heat map; `contour` says where colour begins."""
        answer, scorer = self.score(number, version, full_size_map=True)
        with self.reading(number) as path, self._budget.hold_file(path):
            image = images.load(path).uint8(scorer.card.input.bits)
            scores = decide_again(answer.scores, scorer)
            begins_at = scores.boundary if contour == BOUNDARY else scores.map_threshold
            render.overlay(image, scores.map, begins_at, scorer.card.map.mean, out=image)
            del answer, scores  # a map of this size takes more than the image
            return render.encode(image, "PNG")

    def grey_map(self, number: int, version: Version) -> GreyMap:
        """Return the anomaly map of an image at the model's input size."""
        answer, scorer = self.score(number, version)
        scores, values = decide_again(answer.scores, scorer), answer.scores.map
        low, high = float(values.min()), float(values.max())
        grey = np.rint((values - low) / max(high - low, 1e-9) * 255).astype(np.uint8)
        return GreyMap(
            png=render.encode(grey, "PNG"),
            low=low,
            high=high,
            map_threshold=scores.map_threshold,
            rate=scorer.map_calibration.rate,
            boundary=scores.boundary,
        )

    def drawn_thumbnail(self, number: int, version: Version, map_threshold: float | None) -> bytes | None:
        """Return the thumbnail of an image if it has been drawn with a map threshold (None: with any)."""
        with self.reading(number) as path:
            return self._thumbnails.read(path.name, version.id, map_threshold)

    def thumbnail(self, number: int, version: Version) -> bytes:
        """Score an image and return its thumbnail, drawing it if necessary."""
        with self.reading(number) as path:
            answer, scorer = self.score(number, version)
            return self._thumbnails.draw(path.name, version.id, decide_again(answer.scores, scorer), scorer.card)


def _browser_type(content: bytes) -> str:
    """Return the media type of a PNG or JPEG that browsers show as it is: 8 bits, opaque, upright; else nothing."""
    try:
        with Pillow.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            plain = image.mode in ("1", "L", "P", "RGB") and "transparency" not in image.info
            if image.format == "PNG":  # 16 bits are shown by their range; Pillow would decode a PNG to read its Exif
                plain = plain and content[24] <= 8 and not any(mark in content for mark in PNG_ORIENTATION_MARKS)
            else:
                plain = plain and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
            return {"PNG": "image/png", "JPEG": "image/jpeg"}.get(image.format or "", "") if plain else ""
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError):
        return ""
