"""Keys, focus and messages, and what axe finds in every view."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgad.artifact import folder as model_folder
from bgad.client import Client
from tests.service.conftest import Live, png
from tests.service.web.pages import Start, said, sync_api
from tests.service.web.test_page_figures import filled, result
from tests.service.web.test_page_image import candidate, opened, sent, verdicts

expect = sync_api.expect

AXE = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = """async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.filter((one) => ["serious", "critical"].includes(one.impact))
        .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
}"""


def check(page: Any, view: str) -> None:
    """Nothing serious or critical, in the light and in the dark."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE.read_text(encoding="utf-8"))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(GRAVE) == [], f"{view}, {scheme}"


@pytest.fixture
def busy(live: Start, models: Path) -> Live:
    """A service with scores of some days, an alarm, reviews, a job and its candidate, and three images with files."""
    scores = model_folder.read(models / "plate.bgad").calibration_at().scores
    rng = np.random.default_rng(3)
    usual = rng.uniform(min(scores), max(scores), 100)
    store = filled(models, [*usual, *(max(scores) + 3 + rng.uniform(0, 1, 60))], time.time() - 86400, 60)
    for number, verdict in ((1, "good"), (2, "bad"), (3, "unsure")):
        store.reviews.add(number, verdict, "ann", note="a note")
    job = store.jobs.add("teach", store.versions.released("plate"), [1], "ann").id
    done = {"state": "done", "progress": 1.0, "message": "done", "new_version": candidate(models)}
    store.jobs.update(job, result=result([2, 3]), **done)
    store.jobs.update(store.jobs.add("teach", store.versions.released("plate"), [1], "ann").id, state="failed")
    store.close()
    service = live()
    for i in range(3):
        sent(service, png(i, defect=i == 0), f"{i}.png")
    return service


def test_axe_finds_nothing_serious_in_any_view(page: Any, busy: Live) -> None:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm install")
    page.goto(f"{busy.address}/#/queue")
    page.get_by_label("Sort").select_option("newest")
    page.locator("#cell-0 img").wait_for()
    check(page, "queue")
    page.locator(".grid").focus()
    page.keyboard.press("u")
    said(page, ": unsure")
    check(page, "queue with a message")
    page.keyboard.press("Enter")
    expect(page.locator(".side")).to_contain_text("map threshold")
    check(page, "image")
    number = int(page.url.split("/")[-1])
    Client(busy.address).review(number, "bad", note="a blot")
    page.keyboard.press("g")
    expect(page.get_by_role("dialog")).to_be_visible()
    check(page, "two reviews")
    page.keyboard.press("Escape")
    for view, there in (
        ("threshold", "rect.bar.bad"),
        ("teach", ".compared"),
        ("drift", ".drivers"),
        ("history", "tbody tr"),
    ):
        page.goto(f"{busy.address}/#/{view}")
        page.locator(there).first.wait_for()
        check(page, view)
    page.goto(f"{busy.address}/v1/docs")
    page.locator(".operation summary").first.click()
    check(page, "API")
    page.route("**/v1/me", lambda route: route.fulfill(status=401, json={"detail": "a token is needed"}))
    page.goto(f"{busy.address}/#/queue")
    expect(page.get_by_role("dialog")).to_be_visible()
    check(page, "token")


def test_a_verdict_is_undone_where_it_was_given(page: Any, live: Start) -> None:
    service = live()
    numbers = [sent(service, png(i), f"{i}.png") for i in range(3)]
    page.goto(service.address)
    page.get_by_label("Sort").select_option("newest")
    expect(page.locator(".cell .name")).to_have_text(["2.png", "1.png", "0.png"])
    page.locator(".grid").focus()
    page.keyboard.press("Enter")
    place, heading, side = page.locator(".place"), page.locator("h1"), page.locator(".side")
    expect(place).to_have_text("1 of 3")
    page.keyboard.press("b")
    expect(heading).to_have_text("1.png")
    expect(place).to_have_text("2 of 3")
    page.locator("#message-act").click()
    said(page, "2.png: not reviewed")
    expect(heading).to_have_text("2.png")  # where it was given
    expect(place).to_have_text("1 of 3")
    assert verdicts(service, numbers[2]) == ["bad", "withdrawn"]

    # later, from the list of reviews
    page.keyboard.press("g")
    expect(heading).to_have_text("1.png")
    opened(page, service, str(numbers[2]))
    undo = side.get_by_role("button", name="Undo the last verdict")
    undo.click()
    expect(side).to_contain_text("4 reviews")
    expect(undo).to_have_count(0)
    assert verdicts(service, numbers[2])[2:] == ["good", "withdrawn"]

    # not where a colleague has spoken since
    page.keyboard.press("u")
    expect(heading).to_have_text("1.png")
    Client(service.address).review(numbers[2], "good")
    page.locator("#message-act").click()
    said(page, "The verdict on 2.png was not undone: the review of image 3 was changed by local at")
    assert verdicts(service, numbers[2])[-1] == "good"

    # an image that the queue does not show has no place in it
    page.get_by_role("link", name="Queue").click()
    page.get_by_label("Review", exact=True).select_option("unsure")
    expect(page.locator(".empty")).to_be_visible()
    opened(page, service, str(numbers[0]))
    expect(place).to_have_text("Not in the queue")


@pytest.mark.parametrize("tablet", [False, True])
def test_no_message_covers_a_score(page: Any, live: Start, tablet: bool) -> None:
    service = live()
    for i in range(12):
        sent(service, png(i), f"{i}.png")
    size = {"width": 820, "height": 1180} if tablet else {"width": 1280, "height": 620}
    context = page.context.browser.new_context(viewport=size, has_touch=tablet, is_mobile=tablet)
    shown = context.new_page()
    shown.goto(service.address)
    shown.locator("#cell-0 .name").wait_for()
    shown.locator(".grid").focus()
    before = shown.locator("main").bounding_box()
    shown.keyboard.press("b")
    expect(shown.locator("#message")).to_be_visible()
    message, main = shown.locator("#message").bounding_box(), shown.locator("main").bounding_box()
    assert message["y"] >= main["y"] + main["height"] - 1, "it is below everything that a view shows"
    assert main == before, "and nothing moves when it comes"
    shown.goto(f"{service.address}/#/image/1")
    expect(shown.locator(".side")).to_contain_text("map threshold")
    shown.keyboard.press("u")
    expect(shown.locator("#message")).to_contain_text("unsure")
    message, main = shown.locator("#message").bounding_box(), shown.locator("main").bounding_box()
    assert message["y"] >= main["y"] + main["height"] - 1
    context.close()


def test_the_keys_of_verdicts_can_be_switched_off(page: Any, live: Start) -> None:
    service = live()
    number = sent(service, png(1), "one.png")
    page.goto(service.address)
    page.locator("#cell-0 .name").wait_for()
    switch = page.get_by_role("checkbox", name="G good")
    expect(switch).to_be_checked()
    switch.uncheck()
    page.reload()  # it is remembered
    page.locator("#cell-0 .name").wait_for()
    expect(switch).not_to_be_checked()
    page.locator(".grid").focus()
    for key in ("g", "b", "u"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    expect(page.locator(".side")).to_contain_text("map threshold")
    for key in ("g", "b", "u"):
        page.keyboard.press(key)
    page.keyboard.press("2")  # other keys work
    expect(page.get_by_role("button", name="Paint")).to_have_attribute("aria-pressed", "true")
    assert verdicts(service, number) == []
    expect(page.locator(".verdict")).to_have_text(["Good", "Bad", "Unsure"])
    switch.check()
    expect(page.locator(".verdict")).to_have_text(["Good (G)", "Bad (B)", "Unsure (U)"])
    page.locator(".canvas").focus()
    page.keyboard.press("b")
    said(page, "one.png: bad.")


def test_another_view_gets_the_focus(page: Any, live: Start) -> None:
    service = live()
    for i in range(2):
        sent(service, png(i), f"{i}.png")
    page.goto(service.address)
    expect(page.locator(".grid")).to_be_focused()
    for name in ("Threshold", "Teach", "Drift", "History"):
        page.get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name, level=1)).to_be_focused()
    page.get_by_role("link", name="Queue").click()
    expect(page.locator(".grid")).to_be_focused()  # its keys go through the images
    page.locator("#cell-0 .name").wait_for()
    page.keyboard.press("Enter")
    expect(page.locator(".side h1")).to_be_focused()
    first = page.locator("h1").text_content()
    page.keyboard.press("n")
    expect(page.locator("h1")).not_to_have_text(str(first))
    expect(page.locator("h1")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".grid")).to_be_focused()

    # who has gone on elsewhere meanwhile stays there
    page.route("**/threshold", lambda route: (page.locator("#add").focus(), route.continue_()))
    page.get_by_role("link", name="Threshold").click()
    expect(page.locator("h1")).to_have_text("Threshold")
    expect(page.locator("#add")).to_be_focused()
