"""The pages with figures: threshold, comparison and drift, of a store that was filled by hand."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bgad.artifact import folder as model_folder
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.folders import WORKSPACE
from bgad.service.store import tables
from bgad.service.store.store import Store
from tests.service.conftest import as_file, sqlite_address, wait_for
from tests.service.web.pages import Start, ask, said, sync_api
from tests.service.web.test_page_image import candidate

DAY = 86400


def filled(models: Path, scored: Sequence[float], began: float, every: float, hashes: Sequence[str] = ()) -> Store:
    """A store in which the model has said this, one image after the other; the first ones may have known contents."""
    store = Store(sqlite_address(models))
    checksum = model_folder.read(models / "plate.bgad").checksum
    version = store.versions.add("plate", checksum, "plate.bgad", state="released").id
    add(store, version, scored, began, every, hashes)
    return store


def add(
    store: Store, version: int, scored: Sequence[float], began: float, every: float, hashes: Sequence[str] = ()
) -> None:
    there = len(store.scores.series(version))
    pictures, scores = [], []
    for i, score in enumerate(scored, there + 1):
        sha256 = hashes[i - 1] if i <= len(hashes) else f"{i:064x}"
        pictures.append({"id": i, "sha256": sha256, "name": f"part-{i}.png", "width": 64, "height": 64, "received": 0})
        said: dict[str, Any] = {"image": i, "version": version, "score": float(score), "p_value": 0.5, "threshold": 1.0}
        said |= {"parts": {"map": float(score), "image": 0.0, "known": 0.0}}
        scores.append(said | {"is_anomaly": score > 1, "created": began + every * i})
    with store.database.engine.begin() as connection:
        connection.execute(tables.images.insert(), pictures)
        connection.execute(tables.scores.insert(), scores)


def at(page: Any, line: str) -> float:
    """Where a line of the first chart is."""
    return float(page.locator(f"figure:first-of-type line.{line}").first.get_attribute("x1"))


def contrast(page: Any, selector: str, kind: str, ground: str) -> float:
    """Between a colour of an element and the background of another one, as WCAG has it."""

    def light(where: str, what: str) -> float:
        color = page.locator(where).first.evaluate("(one, what) => getComputedStyle(one)[what]", what)
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722))) + 0.05

    one, other = light(selector, kind), light(ground, "backgroundColor")
    return max(one, other) / min(one, other)


def test_the_threshold_is_chosen_with_what_is_known(page: Any, live: Start, models: Path) -> None:
    card = model_folder.read(models / "plate.bgad")
    learnt = [image["sha256"] for image in card.split["images"] if image["role"] == "train"][:4]
    store = filled(models, [0.1, 0.2, 0.3, 9.0, 8.0], time.time() - 100, 1, learnt)
    for number, verdict in ((1, "good"), (2, "good"), (3, "good"), (4, "bad"), (5, "bad")):
        store.reviews.add(number, verdict, "ann")
    store.close()
    service = live()
    page.goto(f"{service.address}/#/threshold")

    words = page.locator(".words")
    sync_api.expect(words).to_contain_text(
        "3 images reviewed as good were taught and do not count here; review new ones."
    )
    sync_api.expect(words).to_contain_text("Of 1 image reviewed as bad, ")
    sync_api.expect(words).to_contain_text("1 other image reviewed as bad was taught and does not count here.")
    sync_api.expect(words).not_to_contain_text("yet")

    # to the left, the line goes to the left: more good parts are rejected
    slider = page.get_by_role("slider")
    sync_api.expect(slider).to_have_attribute(
        "aria-valuetext", f"17 %, threshold {max(card.calibration_at().scores):.3g}"
    )
    sync_api.expect(page.locator("text.mark")).to_have_text(["in use"])
    sync_api.expect(page.locator(".card", has_text="Guarantee in use")).to_contain_text(
        "below 37 % with 90 % confidence"
    )
    assert at(page, "chosen") == at(page, "used")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    sync_api.expect(page.locator("text.mark")).to_have_text(["in use", "chosen"])
    for scheme in ("light", "dark"):  # each line lies on one of the background
        page.emulate_media(color_scheme=scheme)
        assert contrast(page, "line.under", "stroke", "body") == 1
        assert min(contrast(page, line, "stroke", "body") for line in ("line.chosen", "line.used")) > 3
        assert min(contrast(page, "input[type=number]", "borderTopColor", ground) for ground in ("body", ".card")) > 3
    sync_api.expect(page.locator("line.under + line.chosen, line.under + line.used")).to_have_count(6)
    assert at(page, "chosen") < at(page, "used")
    promise = page.locator(".card", has_text="Guarantee at 33 %")
    sync_api.expect(promise).to_contain_text("below 58 % with 90 % confidence")
    page.get_by_role("button", name="Use this").click()
    said(page, "The threshold of plate is now")
    sync_api.expect(page.locator(".card", has_text="Guarantee in use")).to_contain_text("below 58 %")
    assert ask(service, "models/plate/threshold")["rate"] > 0.3


def straddling(page: Any) -> list[float]:
    """Where a line of the threshold page goes through a bar, and not along its side."""
    return list(
        page.evaluate(
            """() => {
                const lines = document.querySelectorAll("line.used, line.chosen");
                return [...lines].flatMap((line) => {
                    const x = Number(line.getAttribute("x1"));
                    const bars = [...line.ownerSVGElement.querySelectorAll("rect.bar")].map((bar) => bar.getBBox());
                    return bars.filter((bar) => bar.x < x - 0.01 && bar.x + bar.width > x + 0.01).map(() => x);
                });
            }"""
        )
    )


def test_no_bar_of_a_histogram_stands_on_both_sides_of_a_threshold(page: Any, live: Start, models: Path) -> None:
    card = model_folder.read(models / "plate.bgad")
    cut = card.calibration_at().threshold
    spread = np.linspace(-0.4, 0.4, 81)  # every place around the line
    store = filled(models, [*(cut + spread), cut], time.time() - 100, 1)
    for number in range(1, len(spread) + 2):
        store.reviews.add(number, "bad", "ann")
    store.close()
    service = live()
    page.goto(f"{service.address}/#/threshold")
    sync_api.expect(page.locator("rect.bar.bad").first).to_be_visible()
    slider = page.get_by_role("slider")
    for _ in range(int(slider.get_attribute("max"))):
        assert straddling(page) == []
        chosen = at(page, "chosen")
        bars = page.locator("rect.bar.bad").evaluate_all(
            "(bars, x) => bars.map((bar) => [bar.getBBox().x + 0.5 < x, parseInt(bar.textContent)])",
            chosen,
        )
        missed = sum(count for is_below, count in bars if is_below)
        sync_api.expect(page.locator(".words")).to_contain_text(f"{missed} would be missed")  # as the bars say
        slider.press("ArrowLeft")


def test_a_candidate_that_is_worse_is_not_released_without_a_question(page: Any, live: Start, models: Path) -> None:
    store = filled(models, [0.5] * 3, time.time() - 100, 1)
    released = store.versions.released("plate")
    made = candidate(models)
    job = store.jobs.add("teach", released, [1], "ann").id
    compared = result([])
    compared["validation"] |= {
        "images": 40,
        "bad": 20,
        "before": {"auroc": 0.9453, "missed": 1, "false_rejects": 2},
        "after": {"auroc": 0.9449, "missed": 3, "false_rejects": 1},
    }
    store.jobs.update(job, state="done", progress=1.0, message="done", result=compared, new_version=made)
    store.close()
    service = live()
    page.goto(f"{service.address}/#/teach")
    figures = page.get_by_label("Comparison").locator("table.figures").first
    row = figures.get_by_role("row", name="AUROC")
    sync_api.expect(row.locator("td")).to_have_text(["0.9453", "0.9449 ▼ worse"])  # they differ where it says so
    versions = page.get_by_label("Versions")
    for box in (page.get_by_label("Comparison"), versions):
        release = box.get_by_role("button", name="Release", exact=True)
        release.click()
        sync_api.expect(box).to_contain_text(
            f"On the 40 test images, version {made} is worse than version {released.id} in this: "
        )
        sync_api.expect(box).to_contain_text("AUROC: 0.9449 instead of 0.9453 (by 0.0004)")
        sync_api.expect(box).to_contain_text("Missed, of 20 bad: 3 instead of 1 (by 2)")
        sync_api.expect(box).to_contain_text("It is better in this: False rejects, of 20 good: 1 instead of 2 (by 1)")
        sync_api.expect(box.get_by_role("button", name="Do not release")).to_be_focused()
        page.keyboard.press("Escape")
        sync_api.expect(release).to_be_focused()
    assert ask(service, "models/plate")["version"]["id"] == released.id
    page.keyboard.press("Enter")
    versions.get_by_role("button", name="Do not release").wait_for()
    versions.get_by_role("button", name="Release", exact=True).click()
    said(page, f"Model plate now scores with version {made}")
    assert ask(service, "models/plate")["version"]["id"] == made


def result(images: Sequence[int]) -> dict[str, Any]:
    """Of a job: a test image that got better and one that hardly moved, and what was reviewed."""

    def row(name: str, label: int, before: float, after: float, **more: Any) -> dict[str, Any]:
        sides = {
            side: {"score": 5 + margin, "p_value": 0.1, "is_anomaly": margin > 0, "margin": margin}
            for side, margin in (("before", before), ("after", after))
        }
        right = [(side["margin"] > 0) == bool(label) for side in sides.values()]
        change = "same" if right[0] == right[1] else "better" if right[1] else "worse"
        return {"name": name, "label": label, **more, **sides, "change": change}

    def part(rows: list[dict[str, Any]]) -> dict[str, Any]:
        figures = {"auroc": 0.9, "missed": 1, "false_rejects": 0}
        return {"images": len(rows), "bad": 1, "before": figures, "after": figures, "rows": rows}

    tests = [
        row("test/blot/1.png", 1, -0.5, 0.25, sha256="a" * 64),
        row("test/good/<b>2.png", 0, -1.0, -0.99, sha256="b" * 64),
    ]
    reviews = [row(f"part-{i}.png", 0, -1.0, -1.0 + i, image=i, taught=i == 1) for i in images]
    return {
        "threshold": {"before": 3.58, "after": 3.62},
        "validation": part(tests),
        "reviews": part(reviews),
    }


def test_two_versions_are_compared_image_by_image_and_one_is_given_up(page: Any, live: Start, models: Path) -> None:
    store = filled(models, [0.5] * 50, time.time() - 100, 1, ["b" * 64])
    released = store.versions.released("plate")
    made = store.versions.add("plate", "c" * 64, "gone.bgad", state="candidate", parent=released.id).id
    job = store.jobs.add("teach", released, [1], "ann").id
    compared = result([2, 3, *range(10, 50)])
    store.jobs.update(job, state="done", progress=1.0, message="done", result=compared, new_version=made)
    store.close()
    files = BlobStore(models / WORKSPACE)
    for version in (released.id, made):
        files.put_as(BlobKind.COMPARISON, f"{'a' * 64}.{version}", as_file(np.zeros((48, 64, 3), np.uint8), "JPEG"))
    service = live()
    page.goto(f"{service.address}/#/teach")

    # figures, then the changed decisions
    box = page.get_by_label("Comparison")
    for side in range(2):
        row = box.locator("table.figures").nth(side).get_by_role("row", name="Threshold")
        sync_api.expect(row.locator("td")).to_have_text(["3.58", "3.62"])
    better = box.locator("details", has_text="What improved: 1")
    sync_api.expect(better.locator("tbody tr")).to_have_count(1)
    sync_api.expect(better.locator("tbody td").last).to_have_text("▲ 0.75 better")
    drawn = better.locator("img")
    sync_api.expect(drawn).to_have_count(2)  # by both versions, of a image that was never sent here
    wait_for(lambda: bool(drawn.evaluate_all("all => all.every((one) => one.naturalWidth === 64)")))
    sync_api.expect(better.locator("a")).to_have_count(0)
    sync_api.expect(box.locator("details", has_text="What got worse: 42")).to_be_visible()

    # all of them, the most moved first, and more of them
    box.get_by_label("Show").select_option("all")
    rows = box.locator(".compared tbody tr")
    sync_api.expect(rows).to_have_count(40)
    sync_api.expect(rows.first).to_contain_text("part-49.png")
    sync_api.expect(rows.first.get_by_role("link", name="part-49.png", exact=True)).to_have_attribute(
        "href", f"#/image/49/plate/{made}"
    )
    box.get_by_role("button", name="Show 4 more of 4").click()
    sync_api.expect(rows).to_have_count(44)
    box.get_by_label("Of", exact=True).select_option("validation")
    sync_api.expect(rows).to_have_count(2)
    sync_api.expect(rows.last).to_contain_text("▼ 0.01 worse")
    stored = rows.last.get_by_role("link", name="test/good/<b>2.png", exact=True)
    sync_api.expect(stored).to_have_attribute("href", f"#/image/1/plate/{made}")  # it was sent: there is more to see
    heads = box.locator("thead th").evaluate_all("all => all.map((one) => getComputedStyle(one).whiteSpace)")
    assert set(heads) == {"nowrap"}

    # to give up asks first, by keyboard as well
    versions = page.get_by_label("Versions")
    discard = versions.get_by_role("button", name="Discard")
    discard.focus()
    page.keyboard.press("Enter")
    sync_api.expect(versions).to_contain_text(f"Discard version {made}? This cannot be undone.")
    sync_api.expect(versions.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Escape")
    sync_api.expect(discard).to_be_focused()
    sync_api.expect(versions).not_to_contain_text("cannot be undone")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    said(page, f"version {made} (cccccccc) was discarded.")
    assert [v["state"] for v in ask(service, "models/plate")["versions"]] == ["released", "discarded"]
    sync_api.expect(box).to_contain_text("What improved: 1")
    sync_api.expect(box.get_by_role("button", name="Release")).to_have_count(0)


def test_the_page_tells_defects_from_changed_imaging(page: Any, live: Start, models: Path) -> None:
    card = model_folder.read(models / "plate.bgad")
    low, cut = min(card.calibration_at().scores), card.calibration_at().threshold
    rng = np.random.default_rng(5)
    usual = rng.uniform(low, cut, 400)
    defects = rng.random(300) < 0.4  # the others are as before
    store = filled(models, [*usual, *np.where(defects, cut + 5, rng.uniform(low, cut, 300))], time.time() - 9000, 1)
    store.close()
    service = live()
    page.goto(f"{service.address}/#/drift")
    cause = page.locator("#cause")
    sync_api.expect(cause).to_contain_text("This looks like more defects, not like changed imaging.")
    sync_api.expect(cause).to_contain_text(
        "The others score as before. Look at the images below: review bad ones as bad"
    )
    found = ask(service, "models/plate/drift")["cause"]
    assert found["kind"] == "defects"
    assert found["flagged"] / found["images"] > 2 * found["flagged_before"] / found["images_before"]

    store = Store(sqlite_address(models))
    darker = rng.uniform(low, cut, 60) - (cut - low) / 2  # and lower
    add(store, store.versions.released("plate").id, [*usual, *darker], time.time() - 5, 0)
    store.close()
    page.reload()
    sync_api.expect(cause).to_contain_text("This looks like changed imaging (light, focus, position, material)")
    sync_api.expect(cause).to_contain_text("The images called normal score lower than before, too.")


def test_an_alarm_is_red_while_it_is_fresh(page: Any, live: Start, models: Path) -> None:
    card = model_folder.read(models / "plate.bgad")
    low, high = min(card.calibration_at().scores), max(card.calibration_at().scores)
    rng = np.random.default_rng(3)
    scored = [*rng.uniform(low, high, 100), *(high + 3 + rng.uniform(0, 1, 60))]
    store = filled(models, scored, time.time() - 9 * DAY - 60, 0.1)  # within a minute; no other has come since
    store.close()
    service = live()
    page.goto(f"{service.address}/#/drift")
    words = page.locator("p.words")
    sync_api.expect(words.first).to_contain_text("The scores have changed: ")
    sync_api.expect(words.first).to_have_class("words alarm")
    sync_api.expect(page.locator("#cause")).to_contain_text("This looks like changed imaging")
    test = page.locator("figure", has_text="The test, image by image")
    chart = test.locator("svg")
    sync_api.expect(chart).to_have_attribute("role", "group")  # else its links are hidden from who does not see it
    found = ask(service, "models/plate/drift")
    dots = test.get_by_role("link", name="Alarm on")
    sync_api.expect(dots).to_have_count(len(found["alarms"]))
    sync_api.expect(dots.first).to_have_attribute("href", f"#/image/{found['alarms'][0]['image']}/plate")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert contrast(page, "rect.range", "fill", "body") > 3
    box = test.locator(".level").bounding_box()
    assert box["width"] > 700, "pictures of one minute are side by side"
    sync_api.expect(test.get_by_text("150", exact=True)).to_be_visible()
    drivers = page.locator(".drivers a")
    sync_api.expect(drivers).to_have_count(12)
    moved = found["drivers"][0]
    assert moved["side"] == "high"
    sync_api.expect(drivers.first).to_have_attribute("href", f"#/image/{moved['image']}/plate")
    sync_api.expect(drivers.first).to_contain_text(f"part-{moved['image']}.png")
    sync_api.expect(drivers.first).to_contain_text("▲ high")
    sync_api.expect(drivers.first).to_contain_text("anomalous")
    sync_api.expect(page.locator(".drivers .badge.good")).to_have_count(0)

    store = Store(sqlite_address(models))
    alike = [score for _ in range(8) for score in rng.permutation(scored).tolist()]
    add(store, store.versions.released("plate").id, alike, time.time() - 5, 0)
    for driver in found["drivers"]:
        store.reviews.add(driver["image"], "good", "ann")
    store.close()
    page.reload()
    sync_api.expect(page.locator(".drivers .badge.good").first).to_be_visible()
    since = ask(service, "models/plate/drift")["since_alarm"]
    assert since > 1000
    sync_api.expect(words).to_contain_text(f"Last alarm 9 days ago; {since:,} images without one since (")
    sync_api.expect(words).to_have_class("words")
