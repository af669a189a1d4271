"""Peak memory of turning large image files into the model's input, each in a process of its own.

python -m benchmarks.decoding
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import machine
from bgad.inference.base import BaseScorer, Outputs
from bgad.types import FloatArray

INPUT = 256  # side of the model's input in pixels


def _texture(side: int, *channels: int, dtype: type = np.uint8) -> np.ndarray[Any, Any]:
    """Return an image of one random patch, repeated, so that it is compressed quickly."""
    patch = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (64, 64, *channels), dtype)
    repeats = side // 64 + 1
    return np.tile(patch, (repeats, repeats, *[1] * len(channels)))[:side, :side]


def save_deep(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    """Write a PNG of 16 bits and 2 to 4 channels, which Pillow does not write."""
    height, width, channels = pixels.shape
    rows = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    body = zlib.compress(np.pad(rows, ((0, 0), (1, 0))).tobytes(), 1)  # every row begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    packed = (struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


def _save_deep(path: Path, side: int, channels: int) -> None:
    save_deep(path, _texture(side, channels, dtype=np.uint16))


def _save(array: np.ndarray[Any, Any]) -> Callable[[Path], None]:
    return lambda path: Image.fromarray(array).save(path, compress_level=1)


# Name -> side, bytes of a pixel in the file's own form, and how the file is written.
KINDS: dict[str, tuple[int, float, Callable[[Path, int], None]]] = {
    "8-bit RGB": (7071, 3, lambda path, side: _save(_texture(side, 3))(path)),
    "16-bit grey": (7071, 2, lambda path, side: _save(_texture(side, dtype=np.uint16))(path)),
    "16-bit grey and alpha": (7071, 4, lambda path, side: _save_deep(path, side, 2)),
    "16-bit RGB": (7071, 6, lambda path, side: _save_deep(path, side, 3)),
    "16-bit RGBA": (7071, 8, lambda path, side: _save_deep(path, side, 4)),
    "1-bit": (14000, 1, lambda path, side: Image.new("1", (side, side), 1).save(path)),
}


class Preparing(BaseScorer):
    """The part of a scorer that comes before its engine."""

    ENGINE = "none"

    def __init__(self) -> None:
        backbone = SimpleNamespace(size=INPUT, crop=False)
        inputs = SimpleNamespace(bits=8, largest_image=None)
        self.card: Any = SimpleNamespace(input=inputs, config=SimpleNamespace(backbone=backbone))
        self.roi, self.tile = None, SimpleNamespace(size=0)  # type: ignore[assignment]
        self._has_warned_of_size = False

    def run(self, pixels: FloatArray) -> Outputs:
        """Not part of it."""
        raise NotImplementedError


def child(path: Path) -> None:
    """Print the megabytes by which preparing an image raises the peak of this process."""
    before = _peak()
    Preparing().prepare(path)
    print(_peak() - before)


def _peak() -> float:
    """Return the peak of this process in MB; that of `getrusage` would be its parent's at first."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def main() -> None:
    """Measure every kind and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--child", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for name, (side, pixel_bytes, write) in KINDS.items():
            write(path := Path(folder) / "image.png", side)
            command = [sys.executable, "-m", "benchmarks.decoding", "--child", str(path)]
            peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            pixels = side * side / 1e6
            print(f"{name}, {pixels:.0f} MP, {pixels * pixel_bytes:.0f} MB of pixels: peak +{peak:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
