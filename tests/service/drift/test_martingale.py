from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from bgad.service.drift import martingale
from bgad.service.drift.martingale import ConformalRanks, DriftTest, run


def normals(seed: int, n: int, shift: float = 0.0) -> list[float]:
    return list(np.random.default_rng(seed).normal(shift, 1, n))


def slow_ranks(calibration: Sequence[float], scores: Sequence[float], seed: int = 0) -> list[float]:
    """One after the other into a list; what it costs grows with the square."""
    lots = np.random.default_rng(seed).random(len(scores)).tolist()
    earlier = sorted(calibration)
    found = []
    for score, lot in zip(scores, lots, strict=True):
        left, right = bisect.bisect_left(earlier, score), bisect.bisect_right(earlier, score)
        higher, alike = len(earlier) - right, right - left + 1
        found.append((higher + lot * alike) / (len(earlier) + 1))
        earlier.insert(right, score)
    return found


def slow_run(
    calibration: Sequence[float], scores: Sequence[float], *, patience: float = martingale.PATIENCE, seed: int = 0
) -> tuple[list[float], list[int], list[int]]:
    """Levels, alarms and drivers, from the beginning."""
    sides = (-1.0, 0.0, 1.0)
    start = [1 / len(sides)] * len(sides)
    stakes = start
    total, levels, alarms = 0.0, [], []
    gains: list[tuple[float, int]] = []
    moved: list[tuple[float, int]] = []  # up to the last alarm
    for number, p in enumerate(slow_ranks(calibration, scores, seed)):
        share = martingale.JUMP_RATE * sum(stakes) / len(sides)
        put = [(1 - martingale.JUMP_RATE) * stake + share for stake in stakes]
        back = [stake * (1 + side * (p - 0.5)) for stake, side in zip(put, sides, strict=True)]
        gain = sum(back) / sum(put)
        stakes = [stake / sum(back) for stake in back]
        total = (total + 1) * gain
        levels.append(total)
        if total <= 2:
            gains = []
        gains.append((gain, number))
        if total >= patience:
            alarms.append(number)
            moved = gains
            total, stakes = 0.0, start
    drivers = [number for _, number in sorted(moved or gains, reverse=True)[: martingale.MAX_DRIVERS]]
    return levels, alarms, drivers


def test_the_test_is_the_slow_one_to_the_last_bit_however_it_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(martingale, "BLOCK", 64)  # many of them
    for seed, digits in enumerate((1, 17, 0)):  # some tie, none, most
        scores = [round(s, digits) for s in (*normals(20 + seed, 1000), *normals(30 + seed, 500, 0.7))]
        calibration = [round(s, digits) for s in normals(40 + seed, 25 * seed)]
        wanted = slow_run(calibration, scores, patience=100, seed=seed)
        assert len(wanted[1]) > 1
        by_and_by = DriftTest(calibration, patience=100, seed=seed)
        rng, place = np.random.default_rng(seed), 0
        while place < len(scores):
            size = int(rng.integers(0, 150))
            by_and_by.update(np.array(scores[place : place + size]))
            place += size
        for found in (run(calibration, scores, patience=100, seed=seed), by_and_by.result()):
            assert (found.levels.tolist(), found.alarms, found.drivers) == wanted
        assert ConformalRanks(calibration, seed).update(scores) == slow_ranks(calibration, scores, seed)


def test_p_values_are_uniform_while_nothing_changes() -> None:
    for calibration in (1, 20, 200):
        scores = normals(1, calibration + 3000)
        found = ConformalRanks(scores[:calibration], seed=2).update(scores[calibration:])
        assert stats.kstest(found, "uniform").pvalue > 0.01
        neighbours = stats.spearmanr(found[:-1], found[1:])
        assert neighbours.pvalue > 0.01  # and independent


def test_p_values_are_uniform_where_scores_tie() -> None:
    scores = [float(round(s)) for s in normals(3, 3050)]  # some seven values
    found = ConformalRanks(scores[:50], seed=4).update(scores[50:])
    assert stats.kstest(found, "uniform").pvalue > 0.01
    alike = ConformalRanks([1.0] * 20, seed=5).update([1.0] * 2000)
    assert stats.kstest(alike, "uniform").pvalue > 0.01


def test_a_p_value_is_the_rank_from_the_strangest() -> None:
    assert 0 <= ConformalRanks([1.0, 2.0, 3.0]).update([9.0])[0] <= 0.25
    assert 0.75 <= ConformalRanks([1.0, 2.0, 3.0]).update([0.0])[0] <= 1
    first, second = ConformalRanks([1.0, 2.0, 3.0]).update([9.0, 9.5])
    assert second <= 0.2  # among five: the first one counts as well
    assert (first, second) == tuple(ConformalRanks([1.0, 2.0, 3.0]).update([9.0, 9.5]))  # by lot, but the same lot
    assert first != ConformalRanks([1.0, 2.0, 3.0], seed=1).update([9.0])[0]


def test_false_alarms_are_not_more_frequent_than_promised() -> None:
    patience, images, runs = 50, 400, 150
    alarms = 0
    for seed in range(runs):
        scores = normals(100 + seed, 30 + images)
        alarms += len(run(scores[:30], scores[30:], patience=patience, seed=seed).alarms)
    assert alarms <= runs * images / patience  # one in `patience` images, at most
    assert alarms > 0  # else the simulation says nothing


@pytest.mark.parametrize("shift", [1.5, -1.5])
def test_a_shift_is_found_soon_and_to_either_side(shift: float) -> None:
    scores = normals(7, 600)
    found = run(scores[:300], [*scores[300:], *normals(8, 200, shift)])
    assert found.alarms
    assert 300 <= found.alarms[0] < 400
    assert found.alarms
    assert found.levels[found.alarms[0]] >= found.patience
    assert max(found.levels[:300]) < found.patience


def test_old_quiet_times_do_not_hide_a_change() -> None:
    delays = []
    for quiet in (50, 3000):
        scores = normals(9, 200 + quiet)
        found = run(scores[:200], [*scores[200:], *normals(10, 300, 2.0)])
        delays.append(found.alarms[0] - quiet)
    assert all(0 <= delay < 100 for delay in delays)


def test_the_drivers_are_images_of_the_change() -> None:
    scores = normals(11, 400)
    found = run(scores[:200], [*scores[200:], *normals(12, 25, 2.5)])
    assert 0 < len(found.drivers) <= martingale.MAX_DRIVERS
    assert np.mean([number >= 200 for number in found.drivers]) > 0.8


def test_an_alarm_is_fresh_until_many_images_have_passed_without_one() -> None:
    scores = normals(9, 200)
    alarm = run(scores, normals(10, 60, 2.0))
    assert alarm.alarms
    assert alarm.is_recent
    assert alarm.since_alarm == 59 - alarm.alarms[-1]
    later = run(scores, [*normals(10, 60, 2.0), *normals(11, 1400)])
    assert later.alarms[-1] < 400, "the way back is a change as well, then it is quiet"
    assert later.since_alarm == 1459 - later.alarms[-1] > 1000
    assert not later.is_recent
    none = run(scores, normals(12, 50))
    assert (none.since_alarm, none.is_recent) == (None, False)


def test_a_further_change_is_called_before_an_alarm_is_old() -> None:
    for seed in range(5):
        changed = run(normals(seed, 100), [*normals(50 + seed, 300), *normals(100 + seed, 1000, 0.5)])
        assert (
            300
            <= next(number for number in changed.alarms if number >= 300)
            < 300 + 0.5 * martingale.RECENT_SHARE * martingale.PATIENCE
        )


def test_it_is_known_on_which_side_an_image_lies() -> None:
    for shift, low in ((3.0, True), (-3.0, False)):
        found = run(normals(7, 300), normals(8, 60, shift))
        assert np.mean([(found.p_values[number] < 0.5) == low for number in found.drivers]) > 0.9


def test_the_test_begins_anew_after_an_alarm() -> None:
    found = run(normals(13, 100), normals(14, 120, 3.0), patience=100)
    assert len(found.alarms) > 1
    for number in found.alarms[:-1]:
        assert found.levels[number + 1] < 10


def test_nothing_was_scored() -> None:
    found = run([1.0, 2.0], [])
    assert (found.levels.tolist(), found.alarms, found.drivers) == ([], [], [])
    assert run([], [1.0, 1.0, 2.0]).alarms == []  # nor was anything held out
    assert ConformalRanks([]).update([]) == []


def test_the_promise_in_words() -> None:
    assert run([1.0], [1.0]).guarantee() == (
        "While the parts stay as they were, and no good one is called bad, there is at most one false alarm in "
        "10,000 images on average."
    )
