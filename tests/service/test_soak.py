"""A minute of what `python -m benchmarks.soak` does for half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import soak
from tests.service.conftest import png


@pytest.mark.soak
def test_nothing_acknowledged_is_lost(models: Path, postgres: Path) -> None:
    figures = soak(models, "plate", png(1), minutes=0.75)
    assert figures.lost == []
    assert figures.unexpected == {}
    assert figures.acknowledged["images"] > 20
    assert figures.acknowledged["reviews"] > 5
    assert {"service killed", "PostgreSQL restarted", "clock moved"} <= figures.failures.keys()
    assert figures.skipped or "disk filled" in figures.failures
