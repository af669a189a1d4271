"""A store of each kind with a clock that ticks, and helpers that fill it."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from bgad.service.store import tables
from bgad.service.store.scores import NewImage
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from bgad.types import Scores


class Clock:
    """Goes on by a second with each look."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1000)

    def __call__(self) -> float:
        return float(next(self._ticks))


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    made = Store(address, Clock())
    yield made
    made.close()


@pytest.fixture
def version(store: Store) -> Version:
    return store.versions.add("gear", "a" * 64, "gear.bgad", state="released")


def said(score: float, threshold: float = 1.0) -> Scores:
    none, parts = np.zeros((2, 2), np.float32), {"map": score, "image": 0.0, "known": 0.0}
    return Scores(score, 0.5, threshold, score > threshold, none, 0.0, 0.0, parts=parts)


def scored(store: Store, version: Version, score: float, name: str = "part.png") -> int:
    """A new image with that score."""
    digest = hashlib.sha256(f"{name} {score}".encode()).hexdigest()
    return store.scores.add_image(NewImage(digest, name, 64, 48), version.id, said(score))


def fill(store: Store, version: Version, count: int) -> None:
    """Scores of many images, written at once."""
    numbers, parts = range(1, count + 1), {"map": 0.0}
    size = {"name": "a.png", "width": 2, "height": 2, "received": 1.0}
    said = {"version": version.id, "p_value": 0.5, "threshold": 1.0, "is_anomaly": False, "parts": parts}
    with store.database.begin() as connection:
        connection.execute(tables.images.insert(), [{"id": i, "sha256": f"{i:064x}", **size} for i in numbers])
        connection.execute(
            tables.scores.insert(), [{"image": i, "score": i / count, "created": float(i), **said} for i in numbers]
        )


def at_once(calls: list[object]) -> list[object]:
    """Call all of them in threads that start together; what they return."""
    together = threading.Barrier(len(calls))
    results: list[object] = [None] * len(calls)

    def run(i: int) -> None:
        together.wait()
        try:
            results[i] = calls[i]()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - the test must see it
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
