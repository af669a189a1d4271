"""How much memory uploads take: the header comes first, and what is decoded at a time is limited."""

from __future__ import annotations

import base64
import functools
import io
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bgad.errors import ImageError
from bgad.io import image_file, images
from bgad.service.scoring.decoding import DecodingBudget
from tests.conftest import SIZE
from tests.service.conftest import SCORE, Maker, Service, as_file, png, problem, wait_for

SIDE = 7071  # the largest square within 50 megapixels


def palette_png(side: int) -> bytes:
    """A few kilobytes that decode to a large image: one bit a pixel, with a palette and transparency."""
    image = Image.new("P", (side, side))
    image.putpalette([0, 0, 0, 255, 255, 255])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", bits=1, transparency=0)
    return buffer.getvalue()


def grown(before: int) -> float:
    """MB by which the memory of this process, or its highest level since `reset_peak`, has grown."""
    return (memory("VmHWM") - before) / 1000


def memory(field: str) -> int:
    """Kilobytes of this process."""
    return int(Path("/proc/self/status").read_text().partition(f"{field}:")[2].split()[0])


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


measures_memory = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak")


@measures_memory
def test_masks_of_another_size_take_no_memory(make: Maker) -> None:
    service = make(max_pixels=50_000_000)
    number = service.score(png())
    body = {"verdict": "bad", "mask": base64.b64encode(palette_png(SIDE)).decode()}
    assert len(body["mask"]) < 10_000

    def refused(_: int) -> None:
        answer = service.client.post(f"/v1/images/{number}/reviews", json=body)
        assert f"the mask is {SIDE}x{SIDE}, the image {SIZE}x{SIZE}" in problem(answer, 422)

    refused(0)
    before = reset_peak()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(refused, range(200)))
    assert grown(before) < 40  # decoding one of them took 334 MB


@measures_memory
def test_an_image_takes_its_pixels_once_and_its_colours_once(tmp_path: Path) -> None:
    (path := tmp_path / "large.png").write_bytes(palette_png(SIDE))
    before = reset_peak()
    decoded = images.read(path)
    assert decoded.shape == (SIDE, SIDE, 3)
    assert decoded.dtype == np.uint8
    assert grown(before) < 250  # 4 bytes a pixel, and a band; 954 MB before


@measures_memory
def test_a_mask_takes_its_pixels_and_no_colours() -> None:
    content = palette_png(SIDE)
    before = reset_peak()
    assert not images.mask_from_png(content).any()
    assert grown(before) < 130  # 2 bytes a pixel, and a band; 334 MB before


@measures_memory
def test_a_header_is_read_without_pixels() -> None:
    buffer = io.BytesIO()
    Image.new("L", (10_000, 10_000)).save(buffer, "TIFF", compression="tiff_deflate")
    before = reset_peak()
    assert images.check_bytes(buffer.getvalue()) == (10_000, 10_000)
    assert grown(before) < 20  # a TIFF beyond Pillow's own limit had its 100 MB allocated


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "PA"])
def test_bands_are_seamless(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (23, 17, 4), np.uint8)).convert("RGB" if mode == "CMYK" else "RGBA")
    image = image.convert("P").convert("PA") if mode == "PA" else image.convert(mode)
    kind = "TIFF" if mode in ("CMYK", "PA") else "PNG"
    image.save(path := tmp_path / f"a.{kind.lower()}", kind)
    expected, marked = images.read(path), images.read_mask(path)
    monkeypatch.setattr(image_file, "BAND_PIXELS", 40)  # two rows
    assert np.array_equal(images.read(path), expected)
    assert np.array_equal(images.read_mask(path), marked)
    if kind == "PNG":
        assert np.array_equal(images.mask_from_png(path.read_bytes()), marked)


def test_a_tile_that_is_larger_than_its_image_is_refused() -> None:
    tags = {256: 64, 257: 64, 258: 8, 259: 1, 262: 1, 277: 1, 322: 32768, 323: 32768, 324: 8, 325: 4096}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    content = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    with pytest.raises(ImageError, match="its tiles of 32768 x 32768 pixels are larger than itself"):
        images.check_bytes(content)


# --- how much is decoded at a time


def test_large_images_are_decoded_two_at_a_time_and_nobody_is_overtaken() -> None:
    budget, order, may_end = DecodingBudget(100), list[str](), threading.Event()

    def decode(name: str, pixels: int) -> None:
        with budget.hold(pixels):
            order.append(name)
            assert may_end.wait(60)

    names = [("first", 100), ("second", 60), ("too large now", 100), ("small", 10), ("larger than any", 999)]
    threads = [threading.Thread(target=decode, args=pair) for pair in names]
    for i, thread in enumerate(threads):
        thread.start()
        wait_for(functools.partial(lambda count: len(order) + len(budget._queue) == count, i + 1))
    assert (order, budget.used) == (["first", "second"], 160)
    may_end.set()
    for thread in threads:
        thread.join()
    assert order == [name for name, _ in names]
    assert budget.used == 0


def test_all_decoding_of_a_service_is_counted(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    real_load, real_mask = image_file.load, images.mask_from_png

    def count(*args: object, **options: object) -> object:
        held.append(service.bench.decoding.used)
        return real_load(*args, **options)  # type: ignore[arg-type]

    def count_mask(content: bytes) -> object:
        held.append(service.bench.decoding.used)
        return real_mask(content)

    monkeypatch.setattr(image_file, "load", count)
    monkeypatch.setattr(images, "mask_from_png", count_mask)
    answer = service.client.post(SCORE, content=as_file(np.zeros((30, 20, 4), np.uint8))).json()
    number = answer["image"]
    for path in (answer["overlay"], f"/v1/images/{number}/view.png", f"/v1/images/{number}/thumbnail.jpg?model=plate"):
        assert service.client.get(path).status_code == 200
    mask = base64.b64encode(as_file(np.full((30, 20), 255, np.uint8))).decode()
    assert service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "bad", "mask": mask}).is_success
    assert len(held) >= 5
    assert min(held) >= 600


def test_images_in_tiles_are_counted_over_all_models_and_keep_no_other_waiting(
    make: Maker, models: Path, gate: threading.Event
) -> None:
    names = ["plate", "gear", "wheel"]
    for name in names[1:]:
        shutil.copytree(models / "plate.bgad", models / f"{name}.bgad")
    service = make(max_pixels=SIZE * SIZE)
    for name in names:
        service.bench.models.batcher(service.store.versions.released(name)).scorer.set_tile(SIZE)
    budget = service.bench.models.tile_budget
    gate.clear()
    with ThreadPoolExecutor(len(names)) as pool:
        answers = [pool.submit(service.client.post, SCORE.replace("plate", name), content=png()) for name in names]
        try:
            wait_for(lambda: (budget.used, len(budget._queue)) == (2 * SIZE * SIZE, 1))
            assert service.bench.decoding.used == 0
        finally:
            gate.set()
        assert [answer.result().status_code for answer in answers] == [200] * len(names)
    assert budget.used == 0
