"""The view of one image: tools that stay, fingers, other models and versions, and the way back."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from bgad.artifact.folder import checksum
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.folders import WORKSPACE
from bgad.service.store.scores import NewImage
from bgad.service.store.store import Store
from bgad.service.store.tables import images
from bgad.types import Scores
from tests.service.conftest import Live, as_file, png, sqlite_address, wait_for
from tests.service.web.pages import Start, ask, middle, said, sync_api

expect = sync_api.expect


def post(service: Live, route: str, body: bytes | dict[str, Any]) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{service.address}/v1/{route}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def sent(service: Live, content: bytes, name: str, model: str = "plate") -> int:
    return int(post(service, f"models/{model}/score?filename={name}", content)["image"])


def opened(page: Any, service: Live, rest: str) -> None:
    """With its map."""
    page.goto(f"{service.address}/#/image/{rest}")
    expect(page.locator(".side")).to_contain_text("map threshold")


def verdicts(service: Live, image: int) -> list[str]:
    return [review["verdict"] for review in ask(service, f"images/{image}")["reviews"]]


def pressed(page: Any) -> list[str]:
    return list(page.locator(".toolbar [aria-pressed=true]").all_text_contents())


def drawn(page: Any) -> str:
    return str(page.locator(".canvas").evaluate("canvas => canvas.toDataURL()"))


def test_tools_stay_and_keys_reach_the_image(page: Any, live: Start) -> None:
    service = live()
    one, two = sent(service, png(1), "one.png"), sent(service, png(2), "two.png")
    wide = sent(service, as_file(np.tile(np.arange(5000, dtype=np.uint8), (100, 1))), "wide.png")
    opened(page, service, str(one))
    assert pressed(page) == ["Move", "Defect"]
    for layer, colour in (("defect", "rgb(255, 0, 200)"), ("ignore", "rgb(0, 140, 255)")):
        expect(page.locator(f"[data-layer={layer}] .swatch")).to_have_css("background-color", colour)
    module = "await import('/static/views/image_details.js')"
    line = f"async (said) => ({module}).contourText({{ high: 2, threshold: said.line, rate: 0.05 }}, said)"
    by_score = "The decision is made by the score, not by this line."
    cases = [{"line": at, "is_anomaly": bad} for at in (1, 3) for bad in (True, False)]
    assert [by_score in page.evaluate(line, case) for case in cases] == [True, True, True, False]
    for key in ("2", "]", "]", "]", "l", "o"):
        page.keyboard.press(key)
    page.get_by_label("Strength of the map").fill("30")
    opened(page, service, str(two))
    assert pressed(page) == ["Paint", "Ignore"]
    expect(page.locator(".number")).to_have_text("6 px")
    expect(page.get_by_label("Map", exact=True)).not_to_be_checked()
    expect(page.get_by_label("Strength of the map")).to_have_value("30")

    # the brush is as large a part of a large image, and its range fits
    opened(page, service, str(wide))
    for key, size in (("", "469 px"), ("[", "426 px"), ("]", "469 px"), ("]", "500 px"), ("]", "500 px")):
        if key:
            page.keyboard.press(key)
        expect(page.locator(".number")).to_have_text(size)
    expect(page.get_by_label("Brush size in pixels")).to_have_attribute("max", "500")

    # arrows pan what is zoomed
    page.mouse.move(1, 1)  # no brush in the image
    for _ in range(4):
        page.keyboard.press("+")
    wait_for(lambda: len({drawn(page) for _ in range(3)}) == 1)
    before = drawn(page)
    page.keyboard.press("Shift+ArrowRight")
    wait_for(lambda: drawn(page) != before)
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    wait_for(lambda: drawn(page) == before)

    # keys are for the view, and not for the links above it
    page.get_by_role("link", name="History").focus()
    page.keyboard.press("g")
    page.locator(".canvas").focus()
    page.keyboard.press("u")
    said(page, "wide.png: unsure.")
    assert verdicts(service, wide) == ["unsure"]


def test_fingers(page: Any, live: Start) -> None:
    """A pinch is no corner and no fill; a polygon can be drawn and closed without a keyboard."""
    service = live()
    number = sent(service, png(1), "one.png")
    opened(page, service, str(number))
    fingers = page.context.new_cdp_session(page)
    x, y = middle(page)

    def touch(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x + dx, "y": y + dy, "id": i} for i, (dx, dy) in enumerate(places)]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def tap(dx: float, dy: float) -> None:
        touch("touchStart", (dx, dy))
        touch("touchEnd")

    def pinch() -> None:
        touch("touchStart", (-30, 0))
        touch("touchStart", (-30, 0), (30, 0))
        touch("touchMove", (-60, 0), (60, 0))
        touch("touchMove", (-30, 0), (30, 0))
        touch("touchEnd")

    undo, close = page.get_by_role("button", name="Undo"), page.get_by_role("button", name="Close polygon")
    expect(close).to_be_hidden()
    page.keyboard.press("5")
    pinch()
    expect(page.locator(".help")).to_have_text("Tap inside a closed outline.")
    page.keyboard.press("4")
    pinch()
    expect(page.locator("#message")).to_be_hidden()
    expect(undo).to_be_disabled()
    for place in ((-90, -90), (90, -90), (90, 90)):
        tap(*place)
    expect(close).to_be_enabled()
    undo.click()
    expect(close).to_be_disabled()  # two corners are left
    tap(0, 90)  # elsewhere: two taps at one place would be a double click
    tap(-80, -75)  # not right on the first one
    expect(close).to_be_disabled()
    undo.click()
    expect(undo).to_be_disabled()  # the polygon was one step
    for place in ((-60, -60), (60, -60), (60, 60)):
        tap(*place)
    close.click()
    page.get_by_role("button", name="Unsure").click()
    expect(page.locator(".side")).to_contain_text("· painted")


def candidate(models: Path) -> int:
    """A version of `plate` that rejects more."""
    place = Path(WORKSPACE) / "versions" / "taught.bgad"
    shutil.copytree(models / "plate.bgad", models / place)
    card = models / place / "card.json"
    data = json.loads(card.read_text())
    data["calibration"]["float32"]["false_reject_rate"] = 0.5
    data["checksum"] = checksum(data)
    card.unlink()
    card.write_text(json.dumps(data))
    store = Store(sqlite_address(models))
    row = store.versions.add("plate", data["checksum"], place.as_posix(), state="candidate")
    store.close()
    return row.id


def test_the_model_the_version_and_the_way_back(page: Any, live: Start, models: Path) -> None:
    shutil.copytree(models / "plate.bgad", models / "disk.bgad", copy_function=os.link)
    service = live()
    new = candidate(models)
    one, two = sent(service, png(1), "one.png"), sent(service, png(2), "two.png")
    post(service, f"images/{one}/reviews", {"verdict": "bad"})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    # a link of the history brings its model, and leads back
    model, side = page.locator("#model"), page.locator(".side")
    page.goto(f"{service.address}/#/history")
    page.get_by_role("link", name="one.png").click()
    expect(side).to_contain_text("map threshold")
    expect(model).to_have_value("plate")
    assert page.url.endswith(f"#/image/{one}/plate")
    page.reload()
    expect(side).to_contain_text("map threshold")
    page.get_by_role("button", name="Back").click()
    expect(page.locator("h1")).to_have_text("History")

    # where a model has not scored the image, there is no map until it is asked for
    model.select_option("disk")
    wait_for(lambda: bool(page.evaluate("localStorage.getItem('bgad-model') === 'disk'")))
    page.goto(f"{service.address}/#/image/{two}")
    expect(model).to_have_value("plate")  # the only one that knows it
    page.goto(f"{service.address}/#/image/{two}/disk")
    expect(side).to_contain_text("of disk has not scored this image")
    expect(model).to_have_value("disk")
    assert not [url for url in asked if "map.png?model=disk" in url]
    page.get_by_role("button", name="Score it now").click()
    expect(side).to_contain_text("map threshold")
    expect(side).to_contain_text("the score is not stored")

    # a candidate says what it thinks
    opened(page, service, f"{two}/plate")
    facts = page.locator(".facts")
    released = facts.text_content()
    page.get_by_label("Version").select_option(str(new))
    expect(facts).to_contain_text(f"version {new}")
    assert page.url.endswith(f"#/image/{two}/plate/{new}")
    assert facts.text_content().split("p-value")[0] != released.split("p-value")[0], "it has another threshold"
    expect(side).to_contain_text("map threshold")
    assert new not in [score["version"] for score in ask(service, f"images/{two}")["scores"]]

    # the images nearby say their verdict; from one of them the way back leads here
    page.locator(".near a", has_text="bad").click()
    expect(page.locator("h1")).to_have_text("one.png")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text("two.png")
    expect(facts).to_contain_text(f"version {new}")

    # a verdict on what is not in the queue stays with it
    page.goto(f"{service.address}/#/queue")
    page.get_by_label("Review", exact=True).select_option("unsure")
    expect(page.locator(".empty")).to_be_visible()
    page.get_by_role("link", name="History").click()
    page.get_by_role("link", name="one.png").click()
    expect(side).to_contain_text("map threshold")
    page.keyboard.press("g")
    said(page, "one.png: good. This image is not in the queue with its present filters")
    expect(side).to_contain_text("2 reviews")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text("History")
    expect(page.locator("tbody tr").first).to_contain_text("one.png: good")
    expect(page.locator("tbody tr").first).to_contain_text("plate")


def test_a_image_that_was_dropped(page: Any, live: Start) -> None:
    service = live()
    number = sent(service, png(1), "one.png")
    store = Store(sqlite_address(service.models))
    with store.database.engine.begin() as connection:
        connection.execute(images.update().values(dropped=time.time()))
    store.close()
    page.goto(f"{service.address}/#/image/{number}")
    expect(page.locator(".side")).to_contain_text("because nobody had reviewed it. Add it again to see it.")
    expect(page.locator(".side")).to_contain_text("p-value")  # what was said of it
    expect(page.locator("#message-text")).to_be_empty()
    expect(page.locator(".side button")).to_have_text(["Back"])
    page.keyboard.press("g")
    said(page, "is kept no more: send the image again")
    assert verdicts(service, number) == []


def test_next_from_a_image_far_down_the_queue(page: Any, live: Start) -> None:
    """The list is fetched page by page: one that was opened by its address may be on any of them."""
    service = live()
    store, files = Store(sqlite_address(service.models)), BlobStore(service.models / WORKSPACE)
    version = store.versions.released("plate").id
    none = np.zeros((2, 2), np.float32)
    numbers = []
    for i in range(450):
        sha256 = files.put(BlobKind.IMAGE, png(i)) if i in (420, 421) else f"{i:064x}"
        said_of_it = Scores(
            1.0 + i, 0.5, 1.0, i > 0, none, 0.0, 0.0, parts={"map": 1.0 + i, "image": 0.0, "known": 0.0}
        )
        numbers.append(store.scores.add_image(NewImage(sha256, f"{i}.png", 64, 64), version, said_of_it))
    store.close()
    opened(page, service, str(numbers[420]))
    page.keyboard.press("n")
    expect(page.locator(".side h1")).to_have_text("421.png")
