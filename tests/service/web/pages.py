"""What the tests of the page do in a browser."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.service.conftest import Live

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

SECONDS = 1000  # of a timeout, in milliseconds
PATIENCE = 60 * SECONDS  # with a machine that does other things, too

sync_api.expect.set_options(timeout=PATIENCE)

Start = Callable[..., Live]


def ask(service: Live, route: str) -> Any:
    with urllib.request.urlopen(f"{service.address}/v1/{route}", timeout=60) as answer:
        return json.load(answer)


def add_images(page: Any, images: dict[str, bytes]) -> None:
    """By the button, as people do; until they are scored."""
    sync_api.expect(page.locator("#add")).to_be_enabled()
    page.set_input_files(
        "#files", [{"name": name, "mimeType": "image/png", "buffer": content} for name, content in images.items()]
    )
    said(page, f"{len(images)} images scored." if len(images) > 1 else "1 image scored.")


def said(page: Any, text: str, timeout: float = PATIENCE) -> None:
    sync_api.expect(page.locator("#message-text")).to_contain_text(text, timeout=timeout)


def cell(page: Any, name: str) -> Any:
    return page.locator(".cell", has_text=name)


def middle(page: Any) -> tuple[float, float]:
    box = page.locator(".canvas").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def paint_ring(page: Any) -> None:
    """A closed outline by the brush, then its inside by the fill."""
    x, y = middle(page)
    page.get_by_role("button", name="Paint").click()
    page.mouse.move(x - 60, y - 60)
    page.mouse.down()
    for dx, dy in ((60, -60), (60, 60), (-60, 60), (-60, -60)):
        page.mouse.move(x + dx, y + dy, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="Fill").click()
    page.mouse.click(x, y)


def open_first(page: Any) -> None:
    """The first image of the queue, with its map."""
    page.locator("#cell-0 .name").click()
    sync_api.expect(page.locator(".side")).to_contain_text("map threshold")


def marked(page: Any) -> int:
    """Pixels of the image's own that are painted as the defect in what was sent last."""
    count: int = page.evaluate(
        """async () => {
            const id = location.hash.split("/")[2];
            const detail = await (await fetch(`/v1/images/${id}`)).json();
            const blob = await (await fetch(detail.reviews.at(-1).mask)).blob();
            const image = await createImageBitmap(blob);
            const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
            context.drawImage(image, 0, 0);
            const { data } = context.getImageData(0, 0, image.width, image.height);
            return data.filter((value, i) => i % 4 === 0 && value > 0).length;
        }"""
    )
    return count
