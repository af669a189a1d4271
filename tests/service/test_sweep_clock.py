"""Retention and a clock that is wrong."""

from __future__ import annotations

import pytest

from bgad.service.retention import Retention
from bgad.service.sweep_clock import SweepClock
from tests.service.conftest import Maker, Service, png
from tests.service.test_retention import DAYS, later, listed, picture


@pytest.fixture
def guarded(make: Maker, address: str, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service of thirty days whose retention trusts no clock blindly; sweeps are the test's."""
    monkeypatch.setattr(Retention, "start", lambda self: None)
    return make(address, retention_days=DAYS)


def restarted(service: Service) -> Retention:
    """The retention of a new process, which has measured no time yet."""
    bench = service.bench
    bench.retention.clock = SweepClock(service.store)
    return bench.retention


def paused(service: Service) -> bool:
    return "bgad_retention_paused 1.0" in service.client.get("/metrics").text


def test_a_clock_a_month_ahead_at_the_start_deletes_nothing(guarded: Service, caplog: pytest.LogCaptureFixture) -> None:
    numbers = [guarded.score(png(i)) for i in range(3)]
    later(guarded, DAYS + 1)
    assert restarted(guarded).sweep() == 0
    assert listed(guarded) == numbers
    assert "no image is dropped: the clock says" in caplog.text
    assert "the newest entry of the store is of" in caplog.text
    assert paused(guarded)
    fresh = guarded.score(png(9))  # the clock is still wrong, and nothing but the grace period tells
    assert restarted(guarded).sweep() == 0
    assert not paused(guarded)
    later(guarded, 0)  # somebody has noticed
    assert restarted(guarded).sweep() == 0
    later(guarded, 0.5)
    assert restarted(guarded).sweep() == 0
    assert listed(guarded) == [*numbers, fresh]


def test_a_clock_behind_the_newest_entry_deletes_nothing(guarded: Service, caplog: pytest.LogCaptureFixture) -> None:
    old = guarded.score(png(0))
    later(guarded, DAYS + 1)
    guarded.score(png(1))
    assert restarted(guarded).sweep() == 0
    later(guarded, DAYS + 2.1)
    newest = guarded.score(png(1))  # by a clock that was ahead
    later(guarded, DAYS + 2.05)
    assert restarted(guarded).sweep() == 0  # though the image has been due for a day
    assert listed(guarded) == [old, newest]
    assert "the newest entry of the store is of" in caplog.text
    assert paused(guarded)
    later(guarded, DAYS + 2.1)
    assert restarted(guarded).sweep() == 1


def test_a_clock_that_jumps_under_a_running_service_deletes_nothing(
    guarded: Service, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = [guarded.score(png(i)) for i in range(2)]
    assert guarded.bench.retention.sweep() == 0
    later(guarded, DAYS + 1)
    guarded.score(png(2))
    assert guarded.bench.retention.sweep() == 0
    assert "no image is dropped: the clock jumped from" in caplog.text
    assert paused(guarded)
    assert guarded.bench.retention.sweep() == 0  # the grace period has begun
    assert set(numbers) < set(listed(guarded))


def test_an_image_goes_when_it_has_been_due_for_a_day(guarded: Service) -> None:
    old = guarded.score(png(0))
    later(guarded, DAYS + 0.1)
    fresh = guarded.score(png(1))
    assert restarted(guarded).sweep() == 0
    later(guarded, DAYS + 0.9)
    guarded.score(png(1))
    assert restarted(guarded).sweep() == 0
    later(guarded, DAYS + 1.2)
    guarded.score(png(1))
    assert restarted(guarded).sweep() == 1
    assert listed(guarded) == [fresh]
    assert not picture(guarded, old).exists()
