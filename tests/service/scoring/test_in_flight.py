from __future__ import annotations

import threading

import pytest

from bgad.service.scoring.in_flight import UploadsInFlight
from tests.service.conftest import wait_for


def test_uploads_of_one_content_are_counted_until_they_end() -> None:
    in_flight = UploadsInFlight()

    def count(sha256: str) -> int:
        with in_flight.paused(sha256) as uploads:
            return uploads

    with in_flight.upload("a"), in_flight.upload("a"):
        assert (count("a"), count("b")) == (2, 0)
    with pytest.raises(RuntimeError), in_flight.upload("a"):
        raise RuntimeError
    assert count("a") == 0


def test_no_upload_begins_while_uploads_are_paused() -> None:
    in_flight, begun = UploadsInFlight(), threading.Event()

    def upload() -> None:
        with in_flight.upload("a"):
            begun.set()

    with in_flight.paused("a"):
        thread = threading.Thread(target=upload)
        thread.start()
        wait_for(thread.is_alive)
        assert not begun.is_set()
    assert begun.wait(30)
    thread.join()
