"""A browser, and a page in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A browser for the tests of this folder; not of the session, as Playwright's event loop keeps out any other."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install chromium to test the page")
    from tests.service.web.pages import sync_api

    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page with a store of its own, which fails the test when a script of ours fails or is refused."""
    from tests.service.web.pages import PATIENCE

    problems: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    opened.set_default_timeout(PATIENCE)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if "Content Security" in said.text else None)
    yield opened
    for context in browser.contexts:  # also what the test has opened
        context.close()
    assert problems == []
