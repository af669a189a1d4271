"""Which versions are in memory, and that nobody waits for others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bgad.inference import load as loading
from bgad.service.errors import BusyError
from bgad.service.scoring import model_cache
from bgad.service.scoring.model_cache import MAX_OTHERS, ModelCache
from bgad.service.store.versions import Version, Versions
from tests.service.conftest import wait_for


class Fake:
    """A model that can be told to take its time."""

    def __init__(self, scorer: Any, budget: Any) -> None:
        self.scorer, self.waiting = scorer, 0
        self.may_end, self.closed = threading.Event(), False
        self.may_end.set()

    def close(self) -> None:
        assert self.may_end.wait(30)
        self.closed = True


class Memory(ModelCache):
    """Of fakes: versions 1 to 9 are released, all others are not."""

    def __init__(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [self.row(number) for number in (*range(1, 10), *range(11, 20))]
        versions = SimpleNamespace(all=lambda: rows, get=self.row)
        super().__init__(Path(), cast(Versions, versions), most)
        self.loads: list[str] = []
        self.slow: dict[str, threading.Event] = {}

        def load(folder: Path, **_: Any) -> Any:
            self.loads.append(folder.name)
            assert folder.name not in self.slow or self.slow[folder.name].wait(30)
            return SimpleNamespace(card=SimpleNamespace(checksum=folder.name))

        monkeypatch.setattr(loading, "load", load)
        monkeypatch.setattr(model_cache, "Batcher", Fake)

    @staticmethod
    def row(number: int) -> Version:
        state = "released" if number < 10 else "candidate"
        return Version(number, "gear", str(number), str(number), None, state, None, 0.0)

    def open(self, number: int) -> Any:
        return self.batcher(self.row(number))

    def there(self) -> set[int]:
        return set(self._batchers)


def test_released_versions_stay_whatever_else_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(3, monkeypatch)
    first = memory.open(1)
    second = memory.open(2)
    memory.open(3)
    old = memory.open(11)
    for number in range(12, 12 + MAX_OTHERS):
        memory.open(number)
    assert memory.there() == {1, 2, 3, 12, 13}
    assert old.closed
    assert memory.open(1) is first  # so 2 was not used for longest
    memory.open(4)
    assert memory.there() == {1, 3, 4, 12, 13}
    assert (first.closed, second.closed) == (False, True)


def test_nobody_waits_while_another_version_is_loaded_and_it_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(4, monkeypatch)
    ready = memory.open(1)
    memory.slow["2"] = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        wanted = [pool.submit(memory.open, 2) for _ in range(3)]
        wait_for(lambda: "2" in memory.loads)
        assert memory.open(1) is ready
        assert memory.waiting() == 0
        memory.slow["2"].set()
        assert len({id(one.result(30)) for one in wanted}) == 1
    assert memory.loads == ["1", "2"]


def test_nobody_waits_while_a_version_is_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(2, monkeypatch)
    busy, ready = memory.open(1), memory.open(2)
    busy.may_end.clear()
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(memory.open, 3)
        wait_for(lambda: memory.there() == {2, 3})
        assert memory.open(2) is ready
        assert memory.open(3) is not None
        busy.may_end.set()
        opened.result(30)
    assert busy.closed


def test_a_version_that_is_loaded_while_the_service_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(2, monkeypatch)
    ready = memory.open(1)
    memory.slow["2"] = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(memory.open, 2)
        wait_for(lambda: "2" in memory.loads)
        memory.close()
        memory.slow["2"].set()
        with pytest.raises(BusyError, match="is being stopped"):
            opening.result(30)
    assert ready.closed
    assert memory.there() == set()
