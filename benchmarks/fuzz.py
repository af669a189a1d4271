"""Damaged and hostile files for every reader: each must be read, or refused with one line, and never crash.

`python -m benchmarks.fuzz --minutes 10` runs each reader for so long with random seeds, and prints how many files it
tried and what went wrong. `tests/test_fuzz.py` does the same for some seconds with a fixed seed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st
from PIL import Image

from bgad.artifact import folder as model_folder
from bgad.data import layouts
from bgad.data.manifest import read_manifest
from bgad.data.split import Split
from bgad.errors import BgadError
from bgad.io import image_file, images
from bgad.io.files import sha256_bytes

MAX_PIXELS = 1_000_000
SLOW_SECONDS = 5.0  # of a core, for one small file
ROUND = 500  # files between two looks at the clock


@dataclass(frozen=True)
class Reader:
    """A reader with valid files to start from, and how a file is given to it."""

    files: list[bytes]
    read: Callable[[bytes], object]
    is_json: bool = False


# --- files


def image_files() -> list[bytes]:
    """Small images of every format and of many kinds of pixels."""
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (19, 23, 4), np.uint8)
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (Image.fromarray(colour[..., :3]), kind, {}) for kind in image_file.FORMATS
    ]
    kinds += [(Image.fromarray(colour).convert(mode), "PNG", {}) for mode in ("1", "L", "P", "LA", "RGBA")]
    kinds += [(Image.fromarray(colour[..., 0].astype(np.uint16) * 200), kind, {}) for kind in ("PNG", "TIFF")]
    kinds += [(Image.fromarray(colour[..., :3]).convert(mode), "TIFF", {}) for mode in ("CMYK", "YCbCr", "LAB")]
    kinds += [(Image.fromarray(colour[..., 0] / np.float32(255)), "TIFF", {})]
    kinds += [
        (Image.fromarray(colour[..., :3]), "TIFF", {"compression": name})
        for name in ("tiff_deflate", "tiff_lzw", "packbits", "jpeg")
    ]
    kinds += [(Image.fromarray(colour[..., :3]), "JPEG", {"progressive": True})]
    kinds += [(Image.fromarray(colour), "WEBP", {"lossless": True})]
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    kinds += [(Image.fromarray(colour[..., :3]), kind, {"exif": exif}) for kind in ("JPEG", "PNG", "WEBP")]
    return [_encoded(*kind) for kind in kinds]


def mask_files() -> list[bytes]:
    """Small masks."""
    marked = np.zeros((19, 23), np.uint8)
    marked[3:9, 4:11] = 255
    image = Image.fromarray(marked)
    palette = image.convert("1").convert("P")
    return [
        *(_encoded(image.convert(mode), "PNG", {}) for mode in ("1", "L", "LA", "RGB", "RGBA")),
        _encoded(palette, "PNG", {"bits": 1, "transparency": 0}),
        _encoded(palette, "PNG", {"transparency": bytes(range(256))}),
        _encoded(Image.fromarray(marked.astype(np.uint16)), "PNG", {}),
    ]


def _encoded(image: Image.Image, kind: str, options: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


# --- readers


def make_readers(model: Path, work: Path) -> dict[str, Reader]:
    """Make the readers, by name; `model` is a valid model folder, `work` an empty folder."""
    data = work / "data"
    for i in range(6):
        path = data / ("good" if i < 4 else "bad") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * i, np.uint8)).save(path)
    dataset = layouts.load(data)
    rows = [{"path": f"good/{i}.png", "label": "good", "split": "train"} for i in range(3)]
    rows += [{"path": "bad/4.png", "label": "bad", "mask": "bad/5.png", "class": "scratch"}]
    split = (model / model_folder.SPLIT).read_bytes()
    card = (model / model_folder.CARD).read_bytes()
    copy = work / "model.bgad"
    shutil.copytree(model, copy)

    def read_in(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def run(content: bytes) -> object:
            path.write_bytes(content)
            return read(path)

        return run

    def read_mask(content: bytes) -> None:
        if images.check_bytes(content, max_pixels=MAX_PIXELS):
            images.mask_from_png(content)

    def read_mask_file(path: Path) -> None:
        if images.read_shape(path, max_pixels=MAX_PIXELS):  # the reader itself takes far larger ones
            images.read_mask(path)

    def read_card(content: bytes) -> None:
        (copy / model_folder.CARD).write_bytes(_with_checksum(content))
        assert model_folder.read(copy).used_sha256 is not None

    def read_model_split(content: bytes) -> None:
        """A split in a model whose card has its hash."""
        stored = json.loads(card)
        stored["files"][model_folder.SPLIT] = sha256_bytes(content)
        (copy / model_folder.SPLIT).write_bytes(content)
        (copy / model_folder.CARD).write_bytes(_with_checksum(json.dumps(stored).encode()))
        try:
            assert model_folder.read(copy).used_sha256 is not None
        finally:
            (copy / model_folder.SPLIT).write_bytes(split)

    return {
        "image": Reader(image_files(), lambda content: images.decode_bytes(content, "x", max_pixels=MAX_PIXELS).rgb()),
        "mask": Reader(mask_files(), read_mask),
        "mask file": Reader(image_files() + mask_files(), read_in(work / "mask.png", read_mask_file)),
        "card": Reader([card], read_card, is_json=True),
        "manifest, csv": Reader([_csv(rows)], read_in(data / "list.csv", read_manifest)),
        "manifest, jsonl": Reader(
            [json.dumps(row).encode() for row in rows], read_in(data / "list.jsonl", read_manifest), is_json=True
        ),
        "split": Reader(
            [_split_of(dataset)], read_in(work / "s.json", lambda path: Split.load(path, dataset)), is_json=True
        ),
        "split in a model": Reader([split], read_model_split, is_json=True),
    }


def _csv(rows: list[dict[str, str]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, ["path", "label", "mask", "class", "split"])
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def _split_of(dataset: layouts.Dataset) -> bytes:
    from bgad.data.sample_io import digest

    normals, bad = [s for s in dataset.samples if not s.label], [s for s in dataset.samples if s.label]
    hashes = {sample.name: digest(sample) for sample in dataset.samples}
    return Split(normals[:2], normals[2:3], bad[:1], [*normals[3:], *bad[1:]], hashes).to_bytes()


def _with_checksum(content: bytes) -> bytes:
    """Give a card the checksum of its content, so that it is read further."""
    try:
        card = json.loads(content)
        if not isinstance(card, dict):
            return content
        card["checksum"] = model_folder.checksum(card)
        return json.dumps(card).encode()
    except (ValueError, RecursionError):
        return content


# --- damage

SMALL_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(10**400)
    | st.just("../../x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn, reader: Reader) -> bytes:
    """Draw a valid file with damage: other bytes, a part left out or doubled, or another value in its JSON."""
    content = draw(st.sampled_from(reader.files))
    if reader.is_json and draw(st.booleans()):
        return _replaced(draw, json.loads(content))
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        near_start = draw(st.booleans())
        at = draw(st.integers(0, max(0, min(len(data), 200 if near_start else len(data)) - 1)))
        kind = draw(st.sampled_from(["byte", "number", "cut", "double", "insert", "end"]))
        if kind == "byte":
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "number":  # sizes, offsets and counts in headers
            value = draw(st.sampled_from([0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
            data[at : at + 4] = value.to_bytes(4, draw(st.sampled_from(["little", "big"])))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=16))
        else:
            del data[at:]
    return bytes(data)


def _replaced(draw: st.DrawFn, value: Any) -> bytes:
    """Replace or remove a value somewhere in JSON, or nest it deeply."""
    holder: Any = None
    key: Any = None
    inner = value
    while isinstance(inner, dict | list) and inner and (holder is None or draw(st.integers(0, 3))):
        keys: list[Any] = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        holder, key = inner, draw(st.sampled_from(keys))
        inner = holder[key]
    action = draw(st.sampled_from(["replace", "remove", "deep"]))
    if holder is None or action == "deep":
        return b'{"a":' * draw(st.sampled_from([10, 100_000])) + json.dumps(value).encode()[:1000]
    if action == "remove":
        del holder[key]
    else:
        holder[key] = draw(SMALL_JSON)
    return json.dumps(value).encode()


def check(reader: Reader, content: bytes) -> None:
    """Give a file to a reader; AssertionError unless it is read or refused in one line, and soon."""
    began = time.thread_time()
    try:
        reader.read(content)
    except BgadError as error:
        if not str(error) or "\n" in str(error):
            raise AssertionError(f"not one line: {error}") from error
    taken = time.thread_time() - began
    assert taken < SLOW_SECONDS, f"{taken:.1f} s for {len(content)} bytes"


def run(reader: Reader, examples: int, seed: int | None = None) -> None:
    """Try so many files, the same ones each time without a seed."""

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(damaged(reader))
    def attempt(content: bytes) -> None:
        check(reader, content)

    (attempt if seed is None else hypothesis.seed(seed)(attempt))()


def main() -> int:
    """Run every reader for some minutes; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each reader")
    parser.add_argument("--reader", action="append", help="by default all")
    parser.add_argument("--model", type=Path, help="a model folder; by default one is trained for a moment")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        readers = make_readers(arguments.model or _train(work), work / "fuzz")
        for reader in arguments.reader or readers:
            end, tried = time.monotonic() + 60 * arguments.minutes, 0
            while time.monotonic() < end:
                seed = random.SystemRandom().randrange(2**31)
                try:
                    run(readers[reader], ROUND, seed)
                except Exception as error:  # noqa: BLE001 - whatever a reader raises is what is looked for
                    failed = True
                    print(f"{reader}, seed {seed}: {type(error).__name__}: {error}", *getattr(error, "__notes__", []))
                    break
                tried += ROUND
            print(f"{reader}: {tried} files", flush=True)
    return int(failed)


def _train(work: Path) -> Path:
    from benchmarks.scoring import SHORT
    from bgad import TrainOptions, train
    from bgad.config import from_dict
    from bgad.data.synthetic.demo import write_demo

    data = write_demo(work / "demo")[0]
    train(data, work / "demo.bgad", config=from_dict(SHORT), options=TrainOptions(device="cpu"))
    return work / "demo.bgad"


if __name__ == "__main__":
    sys.exit(main())
