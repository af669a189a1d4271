"""Tells retention which images are due, and nothing as long as the clock is not to be trusted.

A clock that is wrong by a month must not delete a month of images. The clock is compared with the newest rows of the
store and with the time that this process has measured. An image is dropped only if it was due a grace period ago in the
opinion of an earlier sweep: so there is a day to notice a wrong clock that nothing else gives away.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from bgad.service.store.store import Store

DAY = 86400.0
GRACE_SECONDS = DAY  # between the first sweep that finds an image due and the one that drops it
MAX_SILENCE = DAY  # between the newest row and the clock
MAX_BEHIND = 3600.0  # of the clock behind the newest row
MAX_JUMP = 3600.0  # of the clock against the time that the process measures

logger = logging.getLogger(__name__)


class SweepClock:
    """The clock of one process, as retention may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.problem = ""  # why the clock is not trusted at the moment
        self._last: tuple[float, float] | None = None  # the clock and the measured time at the last sweep

    def due_before(self, keep_seconds: float) -> float | None:
        """Return the time before which images may be dropped; None if nothing may be dropped now."""
        now = self._store.database.clock()
        self.problem = self._check(now)
        if self.problem:
            logger.warning("no image is dropped: %s", self.problem)
            return None
        before = now - keep_seconds
        self._store.sweeps.add(now, before)
        earlier = self._store.sweeps.due_since(now - GRACE_SECONDS)
        return None if earlier is None else min(before, earlier)

    def _check(self, now: float) -> str:
        measured, last = time.monotonic(), self._last
        self._last = now, measured
        if last is not None and abs((now - last[0]) - (measured - last[1])) > MAX_JUMP:
            self._store.sweeps.clear()
            return f"the clock jumped from {_shown(last[0])} to {_shown(now)}; check it, retention goes on in a day"
        newest = self._store.sweeps.newest_row()
        if now - newest > MAX_SILENCE or newest - now > MAX_BEHIND:
            return (
                f"the clock says {_shown(now)}, and the newest entry of the store is of {_shown(newest)}; check the "
                "clock, retention goes on when an image arrives"
            )
        return ""


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
