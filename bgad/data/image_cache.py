"""Decoded images at the size of the model's input, so that training decodes an image once."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bgad.data.sample_io import read
from bgad.io import images
from bgad.types import AnyArray, FloatArray, Sample

MAX_BYTES = 128 << 20  # 680 images of 256 x 256 pixels; the images beyond are decoded again


class ImageCache:
    """Keeps the 8-bit images that validation has decoded, and decodes all others.

    Tiles, images with a region of interest and images of more than 8 bits are not kept: the pixels of the first two
    depend on more than the file, and the scale of the last on the whole data set.
    """

    def __init__(self, size: int, max_bytes: int = MAX_BYTES) -> None:
        self.size = (size, size)
        self._left = max_bytes
        self._pixels: dict[Path, npt.NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    def add(self, sample: Sample, pixels: AnyArray) -> None:
        """Keep a decoded image if training may need it and the memory lasts."""
        is_test_normal = sample.split == "test" and not sample.label
        if is_test_normal or pixels.dtype != np.uint8 or sample.box is not None or sample.roi is not None:
            return
        with self._lock:
            needed = 3 * self.size[0] * self.size[1]
            if needed > self._left or sample.path in self._pixels:
                return
            self._left -= needed
        self._pixels[sample.path] = images.to_uint8(images.fit(pixels, self.size))

    def read(self, sample: Sample, bits: int | None = None) -> FloatArray:
        """A sample at the size of the model's input, float32 in 0..1; cache and file give the same bits."""
        if sample.box is None and sample.roi is None and sample.path in self._pixels:
            return self._pixels[sample.path].astype(np.float32) / np.float32(255)
        return images.fit(read(sample, bits), self.size)
