"""Where to look: a picture's region of interest. What lies outside of it is painted over before the model sees it."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from bgad.errors import DataError, ImageError
from bgad.geometry.grid import defect_cells
from bgad.io import images
from bgad.types import BoolArray, FloatArray

GREY = 0.5

AnyArray = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


Polygon = tuple[tuple[float, float], ...]  # x and y of each corner, in pixels


@dataclass(frozen=True)
class Polygons:
    """A region of interest as polygons: those to look at (none: everywhere), less those to ignore."""

    look: tuple[Polygon, ...]
    ignore: tuple[Polygon, ...]


@dataclass(frozen=True)
class Roi:
    """The pixels to look at, (H, W), and the polygons that they were drawn from, if any."""

    mask: BoolArray
    polygons: Polygons | None = None

    @classmethod
    def load(cls, path: Path) -> Roi:
        """A picture (all but black is looked at), or a JSON file with size [width, height] and polygons to look at
        (`look`, else everywhere) and to ignore (`ignore`)."""
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
        """What `png` gave."""
        return cls(images.mask_from_png(content))

    def png(self) -> bytes:
        """For the model folder."""
        buffer = io.BytesIO()
        Image.fromarray(self.mask).save(buffer, "PNG", optimize=True)
        return buffer.getvalue()

    def blank(self, picture: AnyArray, where: object) -> AnyArray:
        """The picture with all that is ignored painted over; ImageError where it has another size than the region."""
        return blank(picture, self.mask, where)

    def floor(self, anomaly: FloatArray) -> FloatArray:
        """A map with nothing to see outside of the region."""
        return np.where(self.mask, anomaly, anomaly[self.mask].min())

    def fitted(self, size: int) -> BoolArray:
        """The region in a square of so many pixels; where it is too thin for that, what shows most of it."""
        small = images.resize_mask(self.mask, (size, size))
        if not small.any():
            small.flat[self.cells((size, size))] = True
        return small

    def cells(self, grid: tuple[int, int]) -> Index:
        """The positions of a level that show the region: half of them or more."""
        return defect_cells(self.mask, grid)


def blank(picture: AnyArray, mask: BoolArray, where: object) -> AnyArray:
    """See Roi."""
    if picture.shape[:2] != mask.shape:
        size = f"{picture.shape[1]}x{picture.shape[0]}"
        region = f"{mask.shape[1]}x{mask.shape[0]}"
        raise ImageError(f"{where}: is {size}, the model's region of interest {region}: give pictures of that size")
    grey = round(GREY * 255) if picture.dtype == np.uint8 else GREY
    return np.where(mask[..., None], picture, np.asarray(grey, picture.dtype))


def _draw(path: Path) -> tuple[Polygons, BoolArray]:
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
