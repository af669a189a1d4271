"""Why an image was rejected: in the queue, and on its own page with the parts of its score and a frame."""

from __future__ import annotations

import re
from typing import Any

from tests.service.conftest import png
from tests.service.web.pages import Start, ask, cell, sync_api
from tests.service.web.test_page_image import opened, sent

expect = sync_api.expect

# Whether a region changes what a viewer draws: with the map shown, and with it hidden.
FRAME = """async () => {
    const { Viewer } = await import("/static/image/viewer.js");
    const canvas = document.createElement("canvas");
    canvas.style.width = canvas.style.height = "100px";
    document.body.append(canvas);
    const viewer = new Viewer(canvas);
    viewer.setImage(await createImageBitmap(new ImageData(50, 50)));
    const drawn = async () => {
        for (let i = 0; i < 3; i += 1) await new Promise(requestAnimationFrame);
        return canvas.toDataURL();
    };
    const changes = async () => {
        viewer.setRegion(null);
        const before = await drawn();
        viewer.setRegion([10, 10, 30, 20]);
        return (await drawn()) !== before;
    };
    const shown = await changes();
    viewer.isMapShown = false;
    const hidden = await changes();
    canvas.remove();
    return [shown, hidden];
}"""


def test_a_rejected_image_says_why(page: Any, live: Start) -> None:
    service = live()
    bad, good = sent(service, png(0, defect=True), "bad.png"), sent(service, png(3), "good.png")
    (score,) = ask(service, f"images/{bad}")["scores"]
    assert score["reason"]
    page.goto(service.address)
    expect(cell(page, "bad.png").locator(".why")).to_have_text(score["reason"])
    expect(cell(page, "good.png").locator(".why")).to_have_text("")
    shown = page.get_by_role("option", name="bad.png")
    expect(shown).to_have_accessible_name(re.compile(f"score .* anomalous {re.escape(score['reason'])} not reviewed"))

    opened(page, service, str(bad))
    reason = score["reason"][0].upper() + score["reason"][1:]
    expect(page.locator(".side .why")).to_contain_text(f"{reason}.")
    rows = page.locator(".parts tbody tr")
    expect(rows).to_have_count(len(score["limits"]))
    expect(rows.first).to_contain_text("Map")
    assert rows.first.evaluate("row => row.classList.contains('above')") == (
        score["parts"]["map"] > score["limits"]["map"]
    )
    assert page.evaluate(FRAME) == [True, False]

    opened(page, service, str(good))
    expect(page.locator(".side .why")).to_have_count(0)
    expect(page.locator(".parts tbody tr")).to_have_count(len(score["limits"]))
