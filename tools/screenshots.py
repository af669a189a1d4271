"""Takes the screenshots of the workbench in docs/images, from the models of `bgad demo`.

    python tools/screenshots.py bgad-demo               # docs/images
    python tools/screenshots.py bgad-demo --all DIR     # every view in light, dark and tablet size, to look at

It works on a copy: reviews as an engineer would, teaches once, and sends blurred images so that the drift test has
something to say. The times of the scores are spread over a week. Needs Playwright and Chromium.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from PIL import Image, ImageFilter

from bgad.client import Client
from bgad.client import Image as ListedImage
from bgad.service.folders import DATA, WORKSPACE
from bgad.service.store import tables
from bgad.types import GOOD

ROOT = Path(__file__).parents[1]
WEEK = 7 * 86400
BLURRED = 40  # images that the drift test is to notice
SEEDED = 48  # images that a fresh demo shows
SIZES = {"desktop": (1280, 800), "tablet": (820, 1180)}
MAX_BYTES = 300_000
MAX_TEXT_COLOURS = 10_000  # of a screenshot without photographs, which need no dithering
LOWER = {"queue": 600}  # pixels: thumbnails take many bytes
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def serving(models: Path) -> Iterator[str]:
    """Run `bgad serve` on a copy of the demo; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "bgad", "serve", "--models", str(models), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: _answers(address), "the service does not start")
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5):
            return True
    except OSError:
        return False


def _wait(done: Any, problem: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            sys.exit(problem)
        time.sleep(0.5)


def work(client: Client, data: Path) -> None:
    """Do what the tutorial does: review, teach once; then let the focus of the other camera slip."""
    for model in ("fabric", "washer"):
        _wait(lambda name=model: client.model(name).scored >= SEEDED, f"the images of {model} are not scored")
    rows = list(client.images("washer", order="uncertain"))
    defects = [row for row in rows if not row.name.startswith(f"{GOOD}-")]  # some are not uncertain at all
    for row in {row.id: row for row in (*rows[2:24], *defects)}.values():
        _review(client, row, data / "washer")
    job = client.wait(client.teach("washer"), timeout=1800)
    print(f"job {job.id}: version {job.new_version}")
    for path in sorted((data / "fabric" / "test" / "good").glob("*.png"))[:BLURRED]:
        buffer = io.BytesIO()
        Image.open(path).convert("RGB").filter(ImageFilter.GaussianBlur(1)).save(buffer, "PNG")
        client.score("fabric", buffer.getvalue(), f"camera-2-{path.name}")


def _review(client: Client, row: ListedImage, data: Path) -> None:
    """Review a demo image as its name says; defects with their mask."""
    kind, _, name = row.name.partition("-")
    mask = data / "ground_truth" / kind / f"{Path(name).stem}_mask.png"
    if kind == GOOD:
        client.review(row.id, "good", seen=row.review)
    else:
        client.review(row.id, "bad", note=kind, mask=mask, seen=row.review)


def spread_times(models: Path) -> None:
    """Spread the scores of each version over the last week, in their order."""
    engine = sa.create_engine(f"sqlite:///{models / WORKSPACE / 'store.sqlite'}")
    with engine.begin() as connection:
        end = time.time() - 600
        for version in connection.execute(sa.select(tables.scores.c.version).distinct()).scalars().all():
            query = sa.select(tables.scores.c.id).where(tables.scores.c.version == version).order_by(tables.scores.c.id)
            numbers = connection.execute(query).scalars().all()
            for place, number in enumerate(numbers, 1):
                created = end - WEEK * (1 - place / len(numbers))
                update = tables.scores.update().where(tables.scores.c.id == number)
                connection.execute(update.values(created=created))
    engine.dispose()


def views(client: Client) -> dict[str, tuple[str, str, str]]:
    """Return what to take: by name the model, the address and a selector that the view is complete with."""
    defects = [row for row in client.images("washer", order="anomalous", review="bad") if row.has_mask]
    image = defects[len(defects) // 2].id
    return {
        "queue": ("washer", "/#/queue", "#cell-7 img"),
        "image": ("washer", f"/#/image/{image}/washer", ".side .parts"),
        "threshold": ("washer", "/#/threshold", "rect.bar"),
        "teach": ("washer", "/#/teach", "[aria-label=Comparison] table"),
        "drift": ("fabric", "/#/drift", ".drivers img"),
        "history": ("washer", "/#/history", "tbody tr"),
        "api": ("washer", "/v1/docs", ".operation"),
    }


def take(page: Any, address: str, view: tuple[str, str, str], path: Path) -> None:
    """Open a view, wait for its images, and save what is seen of it."""
    model, route, selector = view
    page.goto(f"{address}/v1/docs")
    page.evaluate("(model) => localStorage.setItem('bgad-model', model)", model)
    page.goto(f"{address}{route}")
    page.reload()
    page.locator(selector).first.wait_for()
    page.wait_for_load_state("networkidle")
    if "/#/image" in route:
        page.get_by_text("map threshold").first.wait_for()
    if "/#/teach" in route:
        page.locator("[aria-label=Comparison]").evaluate("box => box.scrollIntoView()")
    page.wait_for_timeout(300)  # for lazy images that came into view
    page.screenshot(path=path)
    _shrink(path)


def _shrink(path: Path) -> None:
    """Store a screenshot with a palette; fail if it is still too large for the repository."""
    with Image.open(path) as image:
        full = image.convert("RGB")
    has_photographs = full.getcolors(MAX_TEXT_COLOURS) is None
    dither = Image.Dither.FLOYDSTEINBERG if has_photographs else Image.Dither.NONE
    full.quantize(palette=_palette(full), dither=dither).save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        sys.exit(f"{path} has {path.stat().st_size} bytes, more than {MAX_BYTES}: take a smaller part")


def _palette(image: Image.Image) -> Image.Image:
    """Return 256 colours: the exact ones of text and background, those of the photographs, and rare ones."""
    pixels = np.asarray(image).reshape(-1, 3)  # (H W, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    common = colours[np.argsort(counts)[::-1][:64]].ravel().tolist()
    methods = (Image.Quantize.MEDIANCUT, Image.Quantize.MAXCOVERAGE)
    shades, rare = (image.quantize(96, method).getpalette() or [] for method in methods)
    palette = Image.new("P", (1, 1))
    palette.putpalette([*common, *shades[: 3 * 96], *rare[: 3 * 96]])
    return palette


def main() -> None:
    """Prepare a copy of the demo, serve it and take all screenshots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", type=Path, help="folder of `bgad demo`")
    parser.add_argument("--all", type=Path, metavar="DIR", help="take every view in light, dark and tablet size")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep the copy here, and reuse it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models = arguments.work or Path(scratch) / "demo"
        if not (models / WORKSPACE).is_dir():
            shutil.copytree(arguments.demo, models, ignore=shutil.ignore_patterns(WORKSPACE, "*.html", "results.json"))
            with serving(models) as address:
                work(Client(address), models / DATA)
            spread_times(models)
        with serving(models) as address:
            _take_all(address, arguments.all)


def _take_all(address: str, folder: Path | None) -> None:
    from playwright.sync_api import sync_playwright

    wanted = views(Client(address))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                touch = size == "tablet"
                context = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=touch, is_mobile=touch
                )
                page = context.new_page()
                for name, view in wanted.items():
                    path = _path(folder, name, size, scheme)
                    page.set_viewport_size({"width": width, "height": height if touch else LOWER.get(name, height)})
                    if path is not None:
                        take(page, address, view, path)
                        print(path)
                context.close()
        browser.close()


def _path(folder: Path | None, name: str, size: str, scheme: str) -> Path | None:
    """Return where a screenshot goes; None if the documentation does not show it."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}-{size}-{scheme}.png"
    images = ROOT / "docs" / "images"
    if size == "desktop" and scheme == "light":
        return images / f"workbench-{name}.png"
    shown = {("queue", "desktop", "dark"): "dark", ("image", "tablet", "light"): "tablet"}
    found = shown.get((name, size, scheme))
    return images / f"workbench-{found}.png" if found else None


if __name__ == "__main__":
    os.environ.setdefault("TZ", "UTC")
    main()
