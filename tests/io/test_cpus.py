from __future__ import annotations

import pytest

from bgad.io.cpus import usable_cpus


def test_only_our_own_variable_limits_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("BGAD_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert usable_cpus() == 8
    for value, cpus in (("2", 2), ("16", 8), ("0", 8), ("many", 8)):
        monkeypatch.setenv("BGAD_THREADS", value)
        assert usable_cpus() == cpus
