"""The page in a real browser: the whole loop, and that nobody's words run as script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bgad.service.access import new_token
from bgad.service.store.store import Store
from tests.service.conftest import png, sqlite_address
from tests.service.web.pages import (
    SECONDS,
    Start,
    add_images,
    ask,
    cell,
    marked,
    open_first,
    paint_ring,
    said,
    sync_api,
)

SCRIPT = "<img src=x onerror=window.ran=1><script>window.ran=1<"
TEACHING = 100 * SECONDS


def test_the_whole_loop(page: Any, live: Start) -> None:
    """Upload, look, paint, confirm, teach, compare, release, roll back."""
    service = live()
    page.goto(service.address)
    sync_api.expect(page.locator(".empty")).to_contain_text("No images yet")
    add_images(page, {f"bad-{i}.png": png(i, defect=True) for i in range(3)})
    add_images(page, {f"good-{i}.png": png(i) for i in range(6)})
    sync_api.expect(page.locator(".cell img")).to_have_count(9)
    sync_api.expect(page.locator("#count")).to_have_text("9 images")

    # look
    page.get_by_label("Sort").select_option("anomalous")
    sync_api.expect(page.locator("#cell-0")).to_contain_text("bad-")
    page.keyboard.press("Tab")
    page.locator(".grid").focus()
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator("#cell-1")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator(".words")).to_contain_text("good parts")
    sync_api.expect(page.locator(".side")).to_contain_text("map threshold")  # the map has come
    first = page.url

    # paint and confirm
    paint_ring(page)
    page.keyboard.press("Control+z")
    sync_api.expect(page.get_by_role("button", name="Redo")).to_be_enabled()
    page.keyboard.press("Control+y")
    sync_api.expect(page.get_by_role("button", name="Redo")).to_be_disabled()
    page.get_by_label("Note").fill("a blot")
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    page.wait_for_url(lambda address: address != first)  # on to the next one
    page.goto(first)
    sync_api.expect(page.get_by_label("Note")).to_have_value("a blot")
    assert 50 < marked(page) < 64 * 64 / 2, "the ring is filled, and nothing outside of it"
    page.keyboard.press("Escape")
    cell(page, "bad-0").wait_for()
    sync_api.expect(page.locator(".cell .painted")).to_have_count(1)
    judge_all(page)
    assert len(ask(service, "images?model=plate&review=good")["images"]) == 6
    assert len(ask(service, "images?model=plate&review=bad")["images"]) == 3

    # teach
    page.get_by_role("link", name="Teach").click()
    page.get_by_role("button", name="Teach 9 images").click()
    page.locator("[data-job] progress").wait_for()
    said(page, "Job 1: done.", TEACHING)

    # compare, release, roll back
    compared = page.get_by_label("Comparison")
    sync_api.expect(compared).to_contain_text("AUROC")
    sync_api.expect(compared).to_contain_text("What got worse")
    page.reload()
    sync_api.expect(compared).to_contain_text("What got worse")
    versions = page.locator("[data-version]")
    sync_api.expect(versions.first).to_contain_text("candidate")
    compared.get_by_role("button", name="Release").click()
    sync_api.expect(versions.first).to_contain_text("scores now")
    assert ask(service, "models/plate")["version"]["id"] == 2
    sync_api.expect(page.get_by_role("button", name="Teach 9 images")).to_be_enabled()  # all, scored again or not
    page.get_by_role("button", name="Roll back").click()
    sync_api.expect(versions.last).to_contain_text("scores now")
    assert ask(service, "models/plate")["version"]["id"] == 1
    page.get_by_role("link", name="Drift").click()
    sync_api.expect(page.locator(".words")).to_contain_text("No sign of a change in")
    sync_api.expect(page.locator("figure")).to_have_count(3)
    page.get_by_label("Scores by").select_option("day")
    sync_api.expect(page.locator("rect.range")).to_have_count(1)
    page.get_by_role("link", name="History").click()
    page.get_by_label("About").select_option("plate")
    sync_api.expect(page.get_by_role("cell", name="review", exact=True)).to_have_count(10)
    for what in ("release", "roll back"):
        sync_api.expect(page.get_by_role("cell", name=what, exact=True)).to_have_count(1)


def judge_all(page: Any) -> None:
    """By the keys of the queue: what is called bad, and the others good."""
    for i in range(9):
        name = page.locator(f"#cell-{i} .name").text_content()
        page.locator(".grid").focus()
        page.keyboard.press("Home")
        for _ in range(i):
            page.keyboard.press("ArrowRight")
        verdict = "bad" if name.startswith("bad") else "good"
        page.keyboard.press(verdict[0])
        sync_api.expect(page.locator(f"#cell-{i} .badge.{verdict}")).to_be_visible()


def test_script_in_a_name_or_a_note_is_text(page: Any, live: Start) -> None:
    service = live()
    page.goto(service.address)
    page.locator("#files").set_input_files(
        [{"name": f"{SCRIPT}.png", "mimeType": "image/png", "buffer": png(1, defect=True)}]
    )
    said(page, "the name of the image has < or > in it: send one without")
    add_images(page, {"one.png": png(1, defect=True)})
    open_first(page)
    page.get_by_label("Note").fill(SCRIPT)
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    sync_api.expect(page.locator(".note")).to_have_text(SCRIPT)
    for view in ("threshold", "teach", "drift", "history", "queue"):
        page.goto(f"{service.address}/#/{view}")
        page.locator("main > *").first.wait_for()
        assert page.evaluate("window.ran") is None
    assert page.locator("main script, img[src='x']").count() == 0


def test_what_was_painted_on_a_good_part_is_not_sent(page: Any, live: Start) -> None:
    service = live()
    page.goto(service.address)
    add_images(page, {"one.png": png(1)})
    open_first(page)
    paint_ring(page)
    page.keyboard.press("u")
    sync_api.expect(page.locator(".side")).to_contain_text("painted")
    page.keyboard.press("g")
    said(page, "A good part has no defect: the defect layer was not saved.")
    page.goto(f"{service.address}/#/queue")
    page.locator(".cell .badge.good").wait_for()
    assert page.locator(".cell .painted").count() == 0
    assert [bool(review["mask"]) for review in ask(service, "images/1")["reviews"]] == [True, False]


def test_the_api_has_a_page(page: Any, live: Start, models: Path) -> None:
    store = Store(sqlite_address(models))
    token = new_token(store.tokens, "ann", "score")
    store.close()
    service = live()
    page.goto(f"{service.address}/v1/docs")
    page.get_by_role("textbox", name="Token").fill(token)
    page.get_by_role("button", name="Continue").click()
    schema = page.evaluate(
        "async (token) => (await fetch('/v1/openapi.json', { headers: { Authorization: `Bearer ${token}` } })).json()",
        token,
    )
    operations = page.locator(".operation:has(> summary .badge)")
    sync_api.expect(operations).to_have_count(sum(len(item) for item in schema["paths"].values()))
    sync_api.expect(page.locator("pre")).to_contain_text(f"{service.address}/v1/models/NAME/score")
    score = operations.filter(has_text="/v1/models/{name}/score")
    score.locator("> summary").click()
    for text in ("POST", "Score one image", "filename", "application/octet-stream", "multipart/form-data"):
        sync_api.expect(score).to_contain_text(text)
    score.get_by_role("link", name="Score", exact=True).click()
    sync_api.expect(page.locator("#schema-Score")).to_contain_text("share of good parts with a score at least as high")
    page.get_by_role("link", name="Workbench").click()
    sync_api.expect(page.locator("#who")).to_contain_text("ann (score)")  # the same token
    page.get_by_role("link", name="API").click()
    sync_api.expect(operations.first).to_be_visible()


def test_who_has_no_token_is_asked_for_one(page: Any, live: Start, models: Path) -> None:
    store = Store(sqlite_address(models))
    token = new_token(store.tokens, "ann", "review")
    store.close()
    service = live()
    page.goto(service.address)
    page.get_by_role("textbox", name="Token").fill("bgad_wrong")
    page.get_by_role("button", name="Continue").click()
    sync_api.expect(page.locator("#token-reason")).to_contain_text("does not know")
    page.get_by_role("textbox", name="Token").fill(token)
    page.get_by_role("button", name="Continue").click()
    sync_api.expect(page.locator("#who")).to_contain_text("ann (review)")
    add_images(page, {"one.png": png(1), "two.png": png(2)})
    image = cell(page, "one.png").locator("img")
    sync_api.expect(image).to_have_js_property("naturalWidth", 64)  # it came with the token
    page.get_by_role("link", name="Threshold").click()
    sync_api.expect(page.get_by_role("button", name="Use this")).to_be_disabled()
