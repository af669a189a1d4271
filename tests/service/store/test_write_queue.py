from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from bgad.service.store.write_queue import WriteQueue
from tests.service.conftest import wait_for


def test_turns_are_given_in_the_order_of_arrival() -> None:
    writers, order = WriteQueue(), list[int]()

    def write(number: int) -> None:
        with writers.turn(60):
            order.append(number)

    with ThreadPoolExecutor(5) as pool:
        waiting: list[Future[None]] = []
        with writers.turn(60):
            for number in range(5):
                waiting.append(pool.submit(write, number))
                wait_for(lambda: len(writers._tickets) == 1 + len(waiting))
        with writers.turn(60):  # this thread runs on, before the others wake up
            order.append(5)
        for writer in waiting:
            writer.result(60)
    assert order == list(range(6))
    assert not writers._tickets


def test_a_thread_that_waits_no_more_holds_up_nobody() -> None:
    writers, order = WriteQueue(), list[str]()

    def write(name: str, seconds: float) -> None:
        with writers.turn(seconds):
            order.append(name)

    with ThreadPoolExecutor(2) as pool:
        with writers.turn(60):
            impatient = pool.submit(write, "impatient", 0.2)
            wait_for(lambda: len(writers._tickets) == 2 or impatient.done())
            patient = pool.submit(write, "patient", 60)
            with pytest.raises(sa.exc.TimeoutError, match=r"other writes of this service took more than 0\.2 s"):
                impatient.result(60)
            wait_for(lambda: len(writers._tickets) == 2)
        patient.result(60)
    assert order == ["patient"]


def test_a_turn_that_comes_too_late_is_passed_on() -> None:
    """The wait is over at the moment in which the turn comes."""
    writers, tickets = WriteQueue(), [threading.Lock() for _ in range(3)]
    for ticket in tickets:
        ticket.acquire()
    writers._tickets.extend(tickets)
    writers._leave(tickets[0])
    assert [ticket.locked() for ticket in tickets[1:]] == [False, True]
    writers._leave(tickets[1])
    assert not tickets[2].locked()


def test_an_error_ends_a_turn() -> None:
    writers, inside, fail = WriteQueue(), threading.Event(), threading.Event()

    def write() -> None:
        with writers.turn(60):
            inside.set()
            assert fail.wait(60)
            raise RuntimeError("unexpected")

    with ThreadPoolExecutor(1) as pool:
        broken = pool.submit(write)
        assert inside.wait(60)
        with pytest.raises(sa.exc.TimeoutError), writers.turn(0.01):
            pass
        fail.set()
        with writers.turn(60), pytest.raises(RuntimeError, match="unexpected"):
            broken.result(60)
    assert not writers._tickets


def test_a_turn_tells_how_much_time_is_left() -> None:
    writers = WriteQueue()
    with writers.turn(5) as left:
        assert 0 < left <= 5
    with writers.turn(0) as left:  # nobody is before it
        assert left == 0
