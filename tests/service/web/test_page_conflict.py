"""Two people at one image: neither overwrites what the other has said without having seen it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bgad.client import Client
from tests.conftest import SIZE
from tests.service.conftest import png
from tests.service.web.pages import Start, ask, cell, marked, paint_ring, said, sync_api
from tests.service.web.test_page_image import opened, sent, verdicts

expect = sync_api.expect


def test_an_image_that_a_colleague_has_reviewed_meanwhile(page: Any, live: Start) -> None:
    service = live()
    colleague = Client(service.address)
    number = sent(service, png(1), "one.png")
    opened(page, service, str(number))
    paint_ring(page)
    page.get_by_label("Note").fill("a blot")
    mask = np.zeros((SIZE, SIZE), bool)
    mask[:9, :9] = True
    colleague.review(number, "bad", note="a corner", mask=mask)
    page.keyboard.press("Escape")
    page.keyboard.press("b")

    # both are shown, and nothing is saved before the choice
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("one.png was changed by local at")
    mine, theirs = dialog.get_by_role("region", name="Yours"), dialog.get_by_role("region", name="By local")
    for side, note in ((mine, "a blot"), (theirs, "a corner")):
        expect(side.locator(".badge")).to_have_text("bad")
        expect(side.locator(".note")).to_have_text(note)
        expect(side.get_by_role("img")).to_be_visible()
    paintings = [side.locator("canvas").evaluate("canvas => canvas.toDataURL()") for side in (mine, theirs)]
    assert paintings[0] != paintings[1]
    expect(dialog.get_by_role("button", name="Keep the one by local")).to_be_focused()
    page.keyboard.press("g")  # no key reaches the image below
    assert verdicts(service, number) == ["bad"]

    # later: what was painted stays; the next time it is asked again
    page.keyboard.press("Escape")
    said(page, "one.png was not saved as bad: you wanted to decide later")
    expect(page.get_by_label("Note")).to_have_value("a blot")
    page.get_by_role("link", name="History").click()
    page.locator("h1", has_text="History").wait_for()
    page.go_back()
    said(page, "your unsaved painting is back")  # a draft is as old as what it was made of
    page.get_by_role("button", name="Bad (B)").click()
    dialog.get_by_role("button", name="Use mine").click()
    said(page, "one.png: bad.")
    reviews = ask(service, f"images/{number}")["reviews"]
    assert [review["note"] for review in reviews] == ["a corner", "a blot"]
    assert marked(page) > 50

    # theirs
    expect(page.locator(".side")).to_contain_text("2 reviews")
    page.get_by_label("Note").fill("something else")
    colleague.review(number, "good", note="it was dust")
    page.get_by_role("button", name="Unsure (U)").click()
    dialog.get_by_role("button", name="Keep the one by local").click()
    said(page, "one.png: good, as local said.")
    expect(page.get_by_label("Note")).to_have_value("it was dust")
    expect(page.locator(".side")).to_contain_text("3 reviews")
    assert verdicts(service, number) == ["bad", "bad", "good"]


def test_a_list_that_a_colleague_works_on_too(page: Any, live: Start) -> None:
    service = live()
    colleague = Client(service.address)
    numbers = {name: sent(service, png(i), name) for i, name in enumerate(("one.png", "two.png"))}
    page.goto(service.address)
    expect(page.locator(".cell .name")).to_have_count(2)
    dialog = page.get_by_role("dialog")
    for name, button, counts in (
        ("one.png", "Keep the one by local", ["unsure"]),
        ("two.png", "Use mine", ["unsure", "bad"]),
    ):
        colleague.review(numbers[name], "unsure", note="by ann")
        place = int(str(cell(page, name).get_attribute("id")).split("-")[1])
        page.locator(".grid").focus()
        page.keyboard.press("Home")
        for _ in range(place):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("b")
        expect(dialog).to_contain_text(f"{name} was changed by local at")
        expect(dialog.get_by_role("region", name="By local")).to_contain_text("by ann")
        dialog.get_by_role("button", name=button).click()
        expect(cell(page, name).locator(".said")).to_have_text(counts[-1])
        assert verdicts(service, numbers[name]) == counts
    assert ask(service, f"images/{numbers['two.png']}")["reviews"][-1]["note"] == "by ann"
    page.keyboard.press("Home")
    page.keyboard.press("g")  # what the page has just shown has been seen
    expect(page.locator("#cell-0 .said")).to_have_text("good")
