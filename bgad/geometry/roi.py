"""The region of interest: the pixels of an image that a model looks at.

Pixels outside the region are painted grey before the model sees them, and its anomaly map is flat there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from bgad.errors import DataError, ImageError
from bgad.io import images
from bgad.io.masks import defect_cells, resize_mask
from bgad.io.render import encode
from bgad.types import AnyArray, BoolArray, FloatArray, Index, Shape

GREY = 0.5  # value of the pixels outside the region, as a share of the full scale

Polygon = tuple[tuple[float, float], ...]  # x and y of each corner, in pixels


@dataclass(frozen=True)
class Polygons:
    """A region of interest as polygons: those to look at (none: the image), less those to ignore."""

    look: tuple[Polygon, ...]
    ignore: tuple[Polygon, ...]


@dataclass(frozen=True)
class Roi:
    """A region of interest: a mask (H, W) that is true inside, and the polygons that it was drawn from, if any."""

    mask: BoolArray
    polygons: Polygons | None = None

    @classmethod
    def load(cls, path: Path) -> Roi:
        """Read an image, where black is outside, or a JSON file.

        The JSON file has the size [width, height] of the images, and lists of polygons to look at (`look`, by default
        the image) and to ignore (`ignore`).
        """
        polygons = None
        if path.suffix.lower() == ".json":
            polygons, mask = _draw(path)
        else:
            mask = images.read_mask(path)
        if not mask.any():
            raise DataError(f"{path} leaves nothing to look at: black is ignored, all else is looked at")
        return cls(mask, polygons)

    @classmethod
    def from_png(cls, content: bytes) -> Roi:
        """Read what `png` returned."""
        return cls(images.mask_from_png(content))

    def png(self) -> bytes:
        """Return the mask as a PNG file, for the model folder."""
        return encode(self.mask, "PNG", optimize=True)

    def mask_image(self, image: AnyArray, name: object) -> AnyArray:
        """Paint everything outside the region grey; ImageError where the image has another size than the region."""
        return mask_outside(image, self.mask, name)

    def check_shape(self, shape: Shape, name: object) -> None:
        """Raise ImageError, with the image's name, where an image of this shape has another size than the region."""
        _check_shape(shape, self.mask, name)

    def mask_map(self, anomaly_map: FloatArray) -> FloatArray:
        """Set an anomaly map (H, W) to its minimum inside the region everywhere outside it."""
        return np.where(self.mask, anomaly_map, anomaly_map[self.mask].min())

    def resized(self, size: int) -> BoolArray:
        """Resize the region to a square of `size` pixels; a thin one keeps the pixels that show most of it."""
        small = resize_mask(self.mask, (size, size))
        if not small.any():
            small.flat[self.cells((size, size))] = True
        return small

    def cells(self, grid: tuple[int, int]) -> Index:
        """Return the flat indices of the grid cells of which half or more lies in the region."""
        return defect_cells(self.mask, grid)


def mask_outside(image: AnyArray, mask: BoolArray, name: object) -> AnyArray:
    """Paint an image (H, W, 3) grey outside a mask; ImageError, with the image's name, where the sizes differ."""
    _check_shape(image.shape[:2], mask, name)
    grey = round(GREY * 255) if image.dtype == np.uint8 else GREY
    return np.where(mask[..., None], image, np.asarray(grey, image.dtype))


def _check_shape(shape: tuple[int, ...], mask: BoolArray, name: object) -> None:
    if shape != mask.shape:
        size, region = f"{shape[1]}x{shape[0]}", f"{mask.shape[1]}x{mask.shape[0]}"
        raise ImageError(f"{name}: is {size}, the model's region of interest {region}: give images of that size")


def _draw(path: Path) -> tuple[Polygons, BoolArray]:
    """Read the polygons of a JSON file and draw them as a mask."""
    try:
        given = json.loads(path.read_bytes())
        width, height = (int(x) for x in given["size"])
        look, ignore = (
            tuple(tuple((float(x), float(y)) for x, y in polygon) for polygon in given.get(key, []))
            for key in ("look", "ignore")
        )
        if not (width > 0 and height > 0 and width * height <= images.MAX_PIXELS):
            raise ValueError(f"a size of {width}x{height}")
        if any(len(polygon) < 3 for polygon in (*look, *ignore)):
            raise ValueError("a polygon with fewer than 3 points")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f'{path}: a region of interest in JSON is {{"size": [width, height], "look": [[[x, y], ...], ...], '
            f'"ignore": [...]}} with polygons of 3 or more points ({error})'
        ) from error
    canvas = Image.new("L", (width, height), 0 if look else 1)
    pen = ImageDraw.Draw(canvas)
    for polygons, value in ((look, 1), (ignore, 0)):
        for polygon in polygons:
            pen.polygon(polygon, fill=value)
    return Polygons(look, ignore), np.asarray(canvas) > 0
