"""Callers that are remembered for the time when the store does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from anyio import CapacityLimiter

from bgad.service import access
from bgad.service.http import callers
from bgad.service.http.callers import Callers
from bgad.service.store.store import Store


def test_a_token_expires_also_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    store = Store(f"sqlite:///{tmp_path / 'store.sqlite'}", lambda: now)
    monkeypatch.setattr(callers, "time", SimpleNamespace(time=lambda: now))
    header = f"Bearer {access.new_token(store.tokens, 'camera', 'score', expires=2000.0)}"
    known = Callers(store.tokens)

    def find(*, store_is_away: bool) -> access.Caller | None:
        return asyncio.run(known.find(header, CapacityLimiter(1), store_is_away=store_is_away))

    caller = find(store_is_away=False)
    assert caller == access.Caller("camera", "score", expires=2000.0)
    now = 1999.0
    assert find(store_is_away=True) == caller
    now = 2000.0
    assert find(store_is_away=True) is None
    store.close()
