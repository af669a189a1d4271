from __future__ import annotations

import pytest

from bgad.service.teaching.progress import ProgressEstimate


def test_the_time_left_is_that_of_the_stage_and_of_what_comes_after_it() -> None:
    now = [100.0]
    pace = ProgressEstimate(lambda: now[0])
    assert pace.update("reading", 1.0) == (0.05, None)  # nothing is known yet
    now[0] += 10
    assert pace.update("features", 0.0) == (0.05, None)
    now[0] += 17
    progress, left = pace.update("features", 0.5)
    assert progress == pytest.approx(0.15)
    assert left == pytest.approx(17 + 0.75 * 27 / 0.1, abs=0.1)  # the others at the speed of all so far
    assert pace.update("something else", 0.5)[0] == progress  # moves nothing
    assert pace.update("features", 0.2)[0] == progress  # nor does it go back
    now[0] += 50
    assert pace.update("comparing", 1.0) == (1.0, 0.0)
