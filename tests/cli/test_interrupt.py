from __future__ import annotations

import signal
import threading

import pytest

from bgad.cli.interrupt import stop_on_interrupt


def test_ctrl_c_is_a_request_while_a_loop_honours_it_and_an_interrupt_otherwise() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        with stop.honour():
            signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_of_the_main_thread_the_handler_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    during: list[object] = []

    def work() -> None:
        with stop_on_interrupt() as stop:
            during.extend([signal.getsignal(signal.SIGINT), stop.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert during == [before, False]
