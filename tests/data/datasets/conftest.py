"""Fixtures of the tests of public data sets."""

from __future__ import annotations

import pytest

from bgad.data.datasets import registry


@pytest.fixture(autouse=True)
def _only_what_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the data sets of the machine that runs the tests."""
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    monkeypatch.delenv("BGAD_DATA", raising=False)
