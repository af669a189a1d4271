"""The page when answers come late or not at all, when others work beside, and with much to keep."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from pathlib import Path
from typing import Any

from bgad.service.access import new_token
from bgad.service.store.store import Store
from tests.service.conftest import png, sqlite_address, wait_for
from tests.service.web.pages import (
    Start,
    add_images,
    ask,
    marked,
    middle,
    open_first,
    paint_ring,
    said,
    sync_api,
)


def hold(page: Any, pattern: str, method: str = "POST") -> list[Any]:
    """Requests of a kind, which wait here until somebody goes on with them."""
    held: list[Any] = []
    page.route(pattern, lambda route: held.append(route) if route.request.method == method else route.fallback())
    return held


def next_of(page: Any, held: list[Any]) -> Any:
    for _ in range(1000):
        if held:
            return held.pop(0)
        page.wait_for_timeout(20)
    raise AssertionError("nothing was asked")


def asks_before_it_closes(page: Any) -> bool:
    asks: bool = page.evaluate(
        "() => !dispatchEvent(new Event('beforeunload', { cancelable: true }))"  # false: somebody has prevented it
    )
    return asks


def test_images_that_are_added_before_the_models_are_known_wait_for_them(page: Any, live: Start) -> None:
    service = live()
    held = hold(page, "**/v1/models", "GET")
    page.goto(service.address)
    models = next_of(page, held)
    page.set_input_files("#files", [{"name": "one.png", "mimeType": "image/png", "buffer": png(1)}])
    sync_api.expect(page.locator("#message-text")).to_be_empty()
    models.continue_()
    said(page, "1 image scored.")


def test_an_upload_stays_with_its_model(page: Any, live: Start, models: Path) -> None:
    shutil.copytree(models / "plate.bgad", models / "disk.bgad", copy_function=os.link)
    service = live()
    page.goto(service.address)
    held = hold(page, "**/batches")
    page.get_by_label("Model").select_option("disk")
    sync_api.expect(page.locator(".empty")).to_be_visible()
    files = [{"name": f"{i}.png", "mimeType": "image/png", "buffer": png(1)} for i in range(9)]
    page.set_input_files("#files", files)  # sent in two parts
    first = next_of(page, held)
    page.get_by_label("Model").select_option("plate")
    # not wait_for_function: where it must ask twice, it evaluates text in the page, which the page forbids
    wait_for(lambda: bool(page.evaluate("localStorage.getItem('bgad-model') === 'plate'")))
    first.fulfill(json={"results": []})
    second = next_of(page, held)
    assert [route.request.url.split("/")[-2] for route in (first, second)] == ["disk", "disk"]
    second.fulfill(json={"results": []})
    said(page, "9 images scored.")


def test_a_verdict_that_is_being_saved_moves_nobody(page: Any, live: Start) -> None:
    service = live()
    page.goto(service.address)
    add_images(page, {"one.png": png(1), "two.png": png(2)})
    open_first(page)
    number = page.url.split("/")[-1]
    held = hold(page, "**/reviews")
    page.get_by_label("Note").fill("a blot")
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    saving = next_of(page, held)
    page.get_by_role("link", name="History").click()
    page.locator("h1", has_text="History").wait_for()
    assert asks_before_it_closes(page)
    saving.continue_()
    said(page, ".png: bad.")
    page.wait_for_timeout(200)
    assert page.url.endswith("#/history")
    assert not asks_before_it_closes(page), "what was saved is no draft"
    assert ask(service, f"images/{number}")["reviews"][-1]["note"] == "a blot"


def test_what_was_not_saved_is_back(page: Any, live: Start) -> None:
    service = live()
    page.goto(service.address)
    add_images(page, {"one.png": png(1), "two.png": png(2)})
    open_first(page)
    first = page.url
    paint_ring(page)
    page.get_by_label("Note").fill("a blot")
    page.keyboard.press("Escape")
    assert asks_before_it_closes(page)
    page.keyboard.press("n")
    page.wait_for_url(lambda address: address != first)
    sync_api.expect(page.get_by_label("Note")).to_have_value("")
    assert asks_before_it_closes(page), "it waits for its picture"
    page.get_by_role("link", name="History").click()
    page.goto(first)
    said(page, "your unsaved painting is back")
    sync_api.expect(page.get_by_label("Note")).to_have_value("a blot")
    undo = page.get_by_role("button", name="Undo")
    undo.click()
    sync_api.expect(undo).to_be_disabled()
    page.keyboard.press("Control+y")
    held = hold(page, "**/reviews")
    page.keyboard.press("b")
    next_of(page, held).fulfill(status=507, json={"detail": "the disk is full"})
    said(page, "was not saved as bad: the disk is full")
    assert page.url == first
    page.keyboard.press("b")
    next_of(page, held).continue_()
    page.wait_for_url(lambda address: address != first)
    assert not asks_before_it_closes(page)
    page.goto(first)
    sync_api.expect(page.get_by_label("Note")).to_have_value("a blot")
    assert 50 < marked(page) < 64 * 64 / 2
    sync_api.expect(page.locator("#message-text")).not_to_contain_text("unsaved")


def test_verdicts_in_the_queue(page: Any, live: Start) -> None:
    """A key that is held judges once; what was not saved says so; note and masks of a review stay."""
    service = live()
    page.goto(service.address)
    add_images(page, {f"{i}.png": png(i) for i in range(3)})
    numbers = [row["id"] for row in ask(service, "images?model=plate")["images"]]

    def verdicts(number: int) -> list[str]:
        return [review["verdict"] for review in ask(service, f"images/{number}")["reviews"]]

    said_by_others = json.dumps({"verdict": "unsure", "note": "by ann"}).encode()
    address = f"{service.address}/v1/images/{numbers[0]}/reviews"
    urllib.request.urlopen(
        urllib.request.Request(address, said_by_others, {"Content-Type": "application/json"})
    ).close()
    page.reload()
    sync_api.expect(page.locator(".cell .name")).to_have_count(3)
    for _ in range(3):
        page.keyboard.down("b")
    page.keyboard.up("b")
    sync_api.expect(page.locator("#cell-0 .badge.bad")).to_be_visible()
    assert ask(service, f"images/{numbers[0]}")["reviews"][-1]["note"] == "by ann"
    sync_api.expect(page.locator("#cell-1")).to_have_attribute("aria-selected", "true")

    held = hold(page, "**/reviews")
    page.keyboard.press("g")
    next_of(page, held).fulfill(status=507, json={"detail": "the disk is full"})
    name = page.locator("#cell-1 .name").text_content()
    said(page, f"{name} was not saved as good: the disk is full")
    sync_api.expect(page.locator("#cell-1 .said")).to_have_text("not saved")
    page.unroute("**/reviews")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("g")
    sync_api.expect(page.locator("#cell-1 .said")).to_have_text("good")

    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator(".side")).to_contain_text("map threshold")
    first = page.url
    page.keyboard.down("u")
    page.wait_for_url(lambda address: address != first)
    sync_api.expect(page.locator(".side")).to_contain_text("map threshold")
    page.keyboard.down("u")
    page.wait_for_timeout(200)
    assert [verdicts(number) for number in numbers] == [["unsure", "bad", "unsure"], ["good"], []]


def test_progress_goes_on(page: Any, live: Start) -> None:
    """Events change what is there, so that the focus stays; a line that is lost is taken up again."""
    service = live()
    job = {"id": 1, "name": "plate", "version": 1, "new_version": None, "images": [1], "who": "ann", "created": 0.0,
           "message": "", "result": None, "state": "running"}  # fmt: skip

    def event(**changes: object) -> str:
        return f": \n\ndata: {json.dumps(job | changes)}\n\n"

    jobs = hold(page, "**/v1/jobs?*", "GET")
    events = hold(page, "**/v1/jobs/1/events", "GET")
    page.goto(f"{service.address}/#/teach")
    next_of(page, jobs).fulfill(json=[job | {"progress": 0.1}])
    line = page.locator("[data-job='1']")
    sync_api.expect(line).to_contain_text("10 %")
    cancel = line.get_by_role("button", name="Cancel")
    cancel.focus()
    next_of(page, events).fulfill(body=event(progress=0.4) + event(progress=0.5, message="learns", seconds_left=41.2))
    sync_api.expect(line).to_contain_text("50 % learns, about 40 s left")
    assert line.locator("progress").evaluate("bar => bar.value") == 0.5
    sync_api.expect(cancel).to_be_focused()
    next_of(page, jobs).fulfill(json=[job | {"progress": 0.6}])  # the line had ended
    next_of(page, events).abort()
    said(page, "The connection to the service was lost")
    sync_api.expect(line).to_contain_text("60 %")
    sync_api.expect(cancel).to_be_focused()
    next_of(page, jobs).fulfill(json=[job | {"progress": 0.7}])
    next_of(page, events).fulfill(body=event(progress=0.8, state="failed", message="no room"))
    said(page, "Job 1: failed. no room")
    sync_api.expect(line.get_by_role("button", name="Resume")).to_be_visible()


def test_images_are_fetched_when_they_are_seen(page: Any, live: Start, models: Path) -> None:
    """With a token, too, and no longer than their view is there."""
    store = Store(sqlite_address(models))
    token = new_token(store.tokens, "ann", "review")
    store.close()
    service = live()
    rows = [{"id": i, "name": f"{i}.png", "verdict": "good"} for i in range(1, 301)]
    asked: list[str] = []

    def busy(route: Any) -> None:
        found = route.fetch()
        route.fulfill(response=found, json=[model | {"rescoring": {"done": 1, "total": 3}} for model in found.json()])

    page.add_init_script(f"sessionStorage.setItem('bgad-token', '{token}')")
    page.route("**/v1/models", busy)
    page.route("**/lessons", lambda route: route.fulfill(json=rows))
    images = hold(page, "**/thumbnail.jpg?*", "GET")
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{service.address}/#/teach")
    sync_api.expect(page.get_by_role("button", name="Teach 300 images")).to_be_visible()
    sync_api.expect(page.locator(".rescore")).to_have_text("1 of 3 images rescored")
    next_of(page, images).fulfill(body=png(1), content_type="image/png")
    sync_api.expect(page.locator(".lesson img[src]").first).to_have_js_property("naturalWidth", 64)
    seen = len([url for url in asked if "thumbnail" in url])
    assert 0 < seen < 100
    ended: list[str] = []
    page.on("requestfailed", lambda request: ended.append(request.url))
    page.get_by_role("link", name="Queue").click()
    sync_api.expect(page.locator(".rescore")).to_have_text("1 of 3 images rescored")
    sync_api.expect(page.locator(".rescore")).to_be_hidden()  # nothing is to be scored again, says the service
    assert len(ended) == seen - 1
    assert not [url for url in asked if "plate/threshold" in url]


def test_steps_that_can_be_taken_back_are_small(page: Any, live: Start) -> None:
    service = live()
    page.goto(service.address)
    add_images(page, {"one.png": png(1)})
    open_first(page)
    undo = page.get_by_role("button", name="Undo")
    page.get_by_role("button", name="Clear").click()
    sync_api.expect(undo).to_be_disabled()  # there was nothing
    box = page.locator(".canvas").bounding_box()
    page.get_by_role("button", name="Paint").click()
    page.mouse.move(*middle(page))
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2, steps=8)  # over the border of the image
    page.mouse.up()
    undo.click()
    sync_api.expect(undo).to_be_disabled()
    sizes = page.evaluate(
        """async () => {
            const { Painting } = await import("/static/image/painting.js");
            const painting = new Painting(2000, 2000);
            const bytes = (step) => step.before.length + step.after.length;
            painting.polygon([[10, 10], [60, 10], [60, 60], [10, 60]]);
            painting.currentLayer = "ignore";
            painting.begin();
            for (const [x, y] of [[10, 10], [60, 10], [60, 60], [10, 60], [10, 10]]) painting.brush(x, y, 5, 1);
            painting.end();
            painting.fill(30, 30);
            painting.clear();
            const small = painting.undoSteps.map(bytes);
            for (let i = 0; i < 5; i += 1) {
                painting.polygon([[0, 0], [2000, 0], [2000, 2000], [0, 2000]]);
                painting.clear();
            }
            const all = painting.undoSteps.map(bytes).reduce((sum, one) => sum + one);
            return [small, all, painting.undoSteps.length, painting.revision];
        }"""
    )
    assert max(sizes[0]) < 10_000
    assert sizes[1] <= 64 * 2**20
    assert sizes[2:] == [8, 14]
