"""The page of the history: search, older entries and files."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from bgad.service.folders import WORKSPACE
from tests.service.web.pages import Start, sync_api


def test_older_entries_search_and_files(page: Any, live: Start, models: Path) -> None:
    service, expect = live(), sync_api.expect
    rows = [("ann", "review", "plate", f"entry {i}", float(i)) for i in range(450)]
    with closing(sqlite3.connect(models / WORKSPACE / "store.sqlite")) as store, store:
        store.executemany("INSERT INTO events (who, what, name, detail, created) VALUES (?, ?, ?, ?, ?)", rows)
    page.goto(f"{service.address}/#/history")
    entries, older = page.locator("tbody tr"), page.get_by_role("button", name="Older entries")
    expect(entries).to_have_count(200)
    expect(page.locator(".toolbar")).to_contain_text("200 entries, and older ones")
    older.click()
    expect(entries).to_have_count(400)
    older.click()
    expect(entries).to_have_count(451)  # and the model
    expect(older).to_be_hidden()
    page.get_by_role("searchbox", name="Find").fill("ENTRY 44")
    expect(entries).to_have_count(11)
    expect(entries.first).to_contain_text("entry 449")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as JSON lines").click()
    assert saved.value.suggested_filename == "bgad-history.jsonl"
    lines = Path(saved.value.path()).read_text().splitlines()
    assert [json.loads(line)["detail"] for line in lines] == [f"entry {i}" for i in (*range(449, 439, -1), 44)]
