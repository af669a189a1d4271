from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bgad.errors import ImageError
from bgad.service.errors import BusyError
from bgad.service.fair_semaphore import FairSemaphore
from tests.service.conftest import wait_for


def test_places_are_given_in_the_order_of_arrival() -> None:
    semaphore, order = FairSemaphore(1), list[int]()
    go = threading.Event()

    def come(number: int) -> None:
        with semaphore.acquire():
            order.append(number)
            assert go.wait(30)

    with ThreadPoolExecutor(9) as pool:
        comers = []
        for number in range(8):
            comers.append(pool.submit(come, number))
            wait_for(lambda: len(order) + len(semaphore._queue) == len(comers))
        go.set()
        comers.append(pool.submit(come, 8))
        for comer in comers:
            comer.result(30)
    assert order == list(range(9))
    assert semaphore._free == 1


def test_a_waiting_thread_goes_before_one_that_arrives_when_the_place_becomes_free() -> None:
    semaphore, order = FairSemaphore(1), list[str]()

    def wait() -> None:
        with semaphore.acquire():
            order.append("who waited")

    with ThreadPoolExecutor(1) as pool:
        with semaphore.acquire():
            waiting = pool.submit(wait)
            wait_for(lambda: len(semaphore._queue) == 1)
        with semaphore.acquire():  # this thread runs on, long before the other one wakes up
            order.append("who came later")
        waiting.result(30)
    assert order == ["who waited", "who came later"]


def test_a_thread_waits_no_longer_than_its_timeout() -> None:
    semaphore = FairSemaphore(1)
    with semaphore.acquire():
        with pytest.raises(BusyError), semaphore.acquire(timeout=0.01):
            pass
        assert semaphore.waiting == 0
    with semaphore.acquire(timeout=0.01):  # a place that is free
        pass
    late = threading.Lock()
    assert not semaphore._withdraw(late)  # a place was handed over at the moment that its time was over
    semaphore._queue.append(late)
    assert semaphore._withdraw(late)
    assert semaphore._free == 1


def test_a_place_that_ends_in_an_error_is_handed_on() -> None:
    semaphore, inside, fail = FairSemaphore(1), threading.Event(), threading.Event()

    def broken() -> None:
        with semaphore.acquire():
            inside.set()
            assert fail.wait(30)
            raise ImageError("broken")

    def after() -> str:
        with semaphore.acquire():
            return "had a place"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(broken)
        assert inside.wait(30)
        second = pool.submit(after)
        wait_for(lambda: len(semaphore._queue) == 1)
        fail.set()
        with pytest.raises(ImageError, match="broken"):
            first.result(30)
        assert second.result(30) == "had a place"
    assert semaphore._free == 1
