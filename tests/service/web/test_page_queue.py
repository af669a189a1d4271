"""The queue while images come in, by keyboard, by touch; and what is told of what happens elsewhere."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

import numpy as np

from bgad.client import Client
from tests.service.conftest import Live, as_file, png
from tests.service.web.pages import Start, ask, said, sync_api

expect = sync_api.expect


def look(page: Any) -> None:
    """Ask for news now, as when the tab is seen again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def verdicts(service: Live, number: int) -> list[str]:
    return [review["verdict"] for review in ask(service, f"images/{number}")["reviews"]]


def chosen(page: Any) -> str:
    """The name of the image that is selected."""
    return str(page.locator(".cell[aria-selected=true] .name").text_content())


def test_images_that_come_in(page: Any, live: Start) -> None:
    service = live()
    camera = Client(service.address)
    page.goto(service.address)
    expect(page.locator(".empty")).to_contain_text("No images yet")
    camera.score("plate", png(0), "0.png")
    expect(page.locator("#count")).to_have_text("1 image")  # by itself
    page.get_by_label("Sort").select_option("newest")
    for i in (1, 2):
        camera.score("plate", png(i), f"{i}.png")
    look(page)
    expect(page.locator("#cell-2 .name")).to_have_text("0.png")

    # who has gone on is asked
    page.locator(".grid").focus()
    page.keyboard.press("ArrowRight")
    for i in (3, 4):
        camera.score("plate", png(i), f"{i}.png")
    look(page)
    more = page.locator("#more")
    expect(more).to_have_text("2 new images: show")
    expect(page.locator("#count")).to_have_text("3 images")
    more.click()
    expect(page.locator("#count")).to_have_text("5 images")
    expect(more).to_be_hidden()
    expect(page.locator("#cell-0 .name")).to_have_text("4.png")

    # the queue is new whenever it is entered, and the selection stays
    page.keyboard.press("ArrowRight")
    assert chosen(page) == "3.png"
    page.get_by_role("link", name="History").click()
    page.locator("h1", has_text="History").wait_for()
    camera.score("plate", png(5), "5.png")
    page.get_by_role("link", name="Queue").click()
    expect(page.locator("#count")).to_have_text("6 images")
    expect(page.locator("#cell-2")).to_have_attribute("aria-selected", "true")
    assert chosen(page) == "3.png"
    page.get_by_label("Review", exact=True).select_option("none")
    expect(page.locator("#cell-0")).to_have_attribute("aria-selected", "true")
    page.locator(".grid").focus()
    page.keyboard.press("g")
    expect(page.locator("#cell-0 .badge.good")).to_be_visible()  # it stays under the eyes
    page.get_by_role("link", name="History").click()
    page.locator("h1", has_text="History").wait_for()
    page.get_by_role("link", name="Queue").click()
    expect(page.locator("#count")).to_have_text("5 images")
    page.reload()
    expect(page.locator("#count")).to_have_text("5 images")
    expect(page.get_by_label("Review", exact=True)).to_have_value("none")

    # another threshold, by somebody else
    body = json.dumps({"rate": 0.4}).encode()
    address, kind = f"{service.address}/v1/models/plate/threshold", {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(address, body, kind, method="PUT")).close()
    look(page)
    said(page, "The threshold of plate has changed.")


def test_a_list_does_not_move_while_it_is_read(page: Any, live: Start) -> None:
    service = live()
    camera = Client(service.address)
    rng = np.random.default_rng(0)
    for size in (60, 42):
        camera.batch("plate", [as_file(rng.integers(0, 255, (4, 4), np.uint8)) for _ in range(size)])
    everyone = [image.id for image in camera.images("plate", order="newest")]
    page.goto(service.address)
    page.get_by_label("Sort").select_option("newest")
    page.reload()  # so that there is no other list
    page.locator("#cell-0 .name").wait_for()
    page.evaluate("(id) => { location.hash = `#/image/${id}` }", everyone[98])

    def shown(number: int) -> None:
        page.locator(f"a[href='/v1/images/{number}/original']").wait_for()

    shown(everyone[98])
    camera.score("plate", png(1))
    for number in everyone[99:]:  # over the end of the first page
        page.keyboard.press("n")
        shown(number)
    page.keyboard.press("n")
    said(page, "This is the last image.")


def test_the_filters_and_the_verdicts_by_keyboard(page: Any, live: Start) -> None:
    service = live()
    number = Client(service.address).score("plate", png(1), "1.png").image
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/v1/images?" in request.url else None)
    page.goto(service.address)
    page.locator("#cell-0 .name").wait_for()
    expect(page.locator(".grid")).to_be_focused()
    review = page.get_by_label("Review", exact=True)
    review.focus()
    page.keyboard.type("unsure")
    expect(review).to_have_value("unsure")
    expect(page.locator(".empty")).to_have_text("No image matches these filters.")
    expect(review).to_be_focused()
    review.select_option("")
    expect(page.locator("#count")).to_have_text("1 image")
    asked.clear()
    page.get_by_label("From", exact=True).focus()
    with page.expect_request(lambda request: "since" in request.url):
        page.keyboard.type("01022020")
    expect(page.get_by_label("From", exact=True)).to_have_value("2020-01-02")
    page.wait_for_timeout(200)  # for those that should not come
    assert len([url for url in asked if "since" in url]) == 1
    expect(page.locator("#message")).to_be_hidden()
    page.get_by_label("To", exact=True).focus()
    page.keyboard.type("0102202")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_label("To", exact=True)).to_have_value("")  # it was not whole
    page.get_by_role("link", name="Teach").focus()
    for key in ("g", "b", "u", "Control+z"):
        page.keyboard.press(key)
    assert verdicts(service, number) == []

    # undo
    grid, badges = page.locator(".grid"), page.locator("#cell-0 .said")
    grid.focus()
    page.keyboard.press("b")
    expect(badges).to_have_text("bad")
    page.get_by_role("button", name="Undo").click()
    said(page, "1.png: not reviewed")
    expect(badges).to_have_count(0)
    assert verdicts(service, number) == ["bad", "withdrawn"]
    for key, text in (("u", "unsure"), ("g", "good")):
        page.keyboard.press(key)
        expect(badges).to_have_text(text)
    page.keyboard.press("Control+z")
    said(page, "1.png: unsure again")
    expect(badges).to_have_text("unsure")
    page.keyboard.press("Control+z")  # one step only
    assert verdicts(service, number)[2:] == ["unsure", "good", "unsure"]
    page.keyboard.press("b")
    expect(badges).to_have_text("bad")
    Client(service.address).review(number, "good")  # by somebody else
    page.get_by_role("button", name="Undo").click()
    said(page, "was not undone")


def test_the_queue_by_touch(page: Any, live: Start) -> None:
    service = live()
    camera = Client(service.address)
    for i in range(3):
        camera.score("plate", png(i), f"{i}.png")
    context = page.context.browser.new_context(viewport={"width": 820, "height": 1180}, has_touch=True, is_mobile=True)
    tablet = context.new_page()
    tablet.goto(service.address)
    tablet.locator("#cell-1 .name").wait_for()
    bar = tablet.get_by_role("toolbar", name="The selected image")
    expect(bar).to_be_visible()
    expect(tablet.locator(".hint")).to_have_text(re.compile("Tap an image to select it, and again to open it.$"))
    expect(tablet.locator(".hint .keys")).to_be_hidden()
    for one in tablet.locator("button:visible, select:visible, .tabs a:visible, form input:visible").all():
        assert one.bounding_box()["height"] >= 44, one.evaluate("one => one.outerHTML")
    tablet.locator("#cell-1").tap()
    expect(tablet.locator("#cell-1")).to_have_attribute("aria-selected", "true")
    bar.get_by_role("button", name="Bad").tap()
    expect(tablet.locator("#cell-1 .badge.bad")).to_be_visible()
    expect(tablet.locator("#cell-2")).to_have_attribute("aria-selected", "true")
    assert "#/image" not in tablet.url
    tablet.locator("#cell-2").tap()
    expect(tablet.locator(".side")).to_be_visible()
    tablet.go_back()
    tablet.locator("#cell-2[aria-selected=true] .name").wait_for()
    bar.get_by_role("button", name="Open").tap()
    expect(tablet.locator(".side")).to_be_visible()
    context.close()


def test_what_happens_elsewhere(page: Any, live: Start) -> None:
    service = live()
    number = Client(service.address).score("plate", png(1), "1.png").image
    changed: dict[str, Any] = {"jobs": [7]}

    def news(route: Any) -> None:
        found = route.fetch()
        route.fulfill(response=found, json=found.json() | changed)

    def drift(route: Any) -> None:
        found = route.fetch()
        alarms = {"alarms": [{"number": 1, "created": 1.0, "image": number}], "since_alarm": 0, "recent_alarm": True}
        route.fulfill(response=found, json=found.json() | alarms)

    page.route("**/plate/changes*", news)
    page.route("**/plate/drift*", drift)
    page.route("**/v1/jobs/7", lambda route: route.fulfill(json={"state": "failed", "message": "no room"}))
    page.goto(service.address)
    teach, tab = page.get_by_role("link", name="Teach"), page.get_by_role("link", name="Drift")
    expect(teach).to_have_accessible_name("Teach (a job is running)")
    changed |= {"jobs": [], "candidates": [3]}
    look(page)
    said(page, "Job 7: failed. no room")
    expect(teach).to_have_accessible_name("Teach (a new version awaits your decision)")
    expect(tab).to_have_accessible_name("Drift (an alarm you have not seen yet)")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/#/teach/7")
    tab.click()
    expect(page.locator(".alarm")).to_be_visible()
    expect(tab).to_have_accessible_name("Drift")
    page.reload()
    page.locator(".alarm").wait_for()
    look(page)
    expect(tab).to_have_accessible_name("Drift")

    # somebody releases another version
    page.get_by_role("link", name="Queue").click()
    page.locator("#cell-0 img").wait_for()

    def models(route: Any) -> None:
        found = route.fetch()
        (model,) = found.json()
        version = model["version"] | {"id": 2}
        route.fulfill(response=found, json=[model | {"version": version, "versions": [version]}])

    page.route("**/v1/models", models)
    changed |= {"version": 2, "candidates": []}
    with page.expect_request(lambda request: "/v1/images?" in request.url):  # with the thumbnails of that version
        look(page)
    said(page, "Model plate now scores with version")
    expect(teach).to_have_accessible_name("Teach")


def test_drift_is_asked_again_where_the_answer_did_not_come(page: Any, live: Start) -> None:
    service = live()
    number = Client(service.address).score("plate", png(1), "1.png").image
    asked: list[int] = []

    def drift(route: Any) -> None:
        asked.append(1)
        if len(asked) == 1:
            route.abort()
            return
        found = route.fetch()
        alarms = {"alarms": [{"number": 1, "created": 1.0, "image": number}], "since_alarm": 0, "recent_alarm": True}
        route.fulfill(response=found, json=found.json() | alarms)

    page.route("**/plate/drift*", drift)
    page.goto(service.address)
    page.locator("#cell-0 img").wait_for()
    for _ in range(100):
        if asked:
            break
        look(page)
        page.wait_for_timeout(50)
    look(page)
    expect(page.get_by_role("link", name="Drift")).to_have_accessible_name("Drift (an alarm you have not seen yet)")
    assert len(asked) == 2
