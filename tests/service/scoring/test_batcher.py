from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bgad.errors import ImageError, ModelError
from bgad.inference.base import Outputs
from bgad.inference.onnx_engine import Runtime
from bgad.service.errors import BusyError, ClosedError
from bgad.service.scoring import batcher as batching
from bgad.service.scoring.batcher import Batcher
from bgad.types import FloatArray
from tests.conftest import draw_image
from tests.service.conftest import wait_for


class Held(Runtime):
    """The real engine behind a gate; counts the images of each batch, and may be told to fail."""

    def hold(self) -> None:
        self.gate, self.begun = threading.Event(), threading.Event()
        self.batches: list[int] = []
        self.broken: Exception | None = None

    def run(self, pixels: FloatArray) -> Outputs:
        self.batches.append(len(pixels))
        self.begun.set()
        assert self.gate.wait(30)
        if self.broken is not None:
            raise self.broken
        return super().run(pixels)


@pytest.fixture(scope="module")
def files(data_set: Path) -> list[Path]:
    return sorted((data_set / "test").rglob("*.png"))


@pytest.fixture(scope="module")
def alone(model: Path, files: list[Path]) -> list[float]:
    """What the scorer says of them by itself."""
    scorer = Runtime.load(model)
    return [scorer.score(path).score for path in files]


@pytest.fixture
def scorer(model: Path) -> Iterator[Held]:
    scorer = Held.load(model, threads=2)
    assert isinstance(scorer, Held)
    scorer.hold()
    yield scorer
    scorer.gate.set()


def test_the_scores_are_those_of_the_scorer_alone(model: Path, files: list[Path], alone: list[float]) -> None:
    batcher = Batcher(Runtime.load(model))
    found = [batcher.score(path) for path in files]
    assert [answer.scores.score for answer in found] == pytest.approx(alone, rel=1e-5, abs=1e-5)
    expected = Runtime.load(model).score(files[0])
    np.testing.assert_allclose(found[0].scores.map, expected.map, atol=1e-4)
    assert (found[0].scores.p_value, found[0].scores.threshold) == (expected.p_value, expected.threshold)
    batcher.close()


def test_many_threads_at_once_get_their_own_scores(model: Path, files: list[Path], alone: list[float]) -> None:
    batcher = Batcher(Runtime.load(model))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda path: batcher.score(path).scores.score, files * 5))
    assert found == pytest.approx(alone * 5, rel=1e-5, abs=1e-5)
    assert batcher.waiting == 0
    batcher.close()


def test_what_waits_is_scored_together(scorer: Held, files: list[Path]) -> None:
    batcher = Batcher(scorer, batch=4)
    with ThreadPoolExecutor(13) as pool:
        first = pool.submit(batcher.score, files[0])
        assert scorer.begun.wait(30)
        rest = [pool.submit(batcher.score, path) for path in files[1:13]]
        wait_for(lambda: len(batcher._queue) == 12)
        scorer.gate.set()
        for future in (first, *rest):
            future.result()
    assert scorer.batches[0] == 1  # it came alone
    assert sum(scorer.batches) == 13
    assert scorer.batches[1] == 4
    assert max(scorer.batches) == 4
    batcher.close()


def test_who_came_first_is_scored_first_however_long_its_image_takes_to_read(
    scorer: Held, files: list[Path], alone: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, read, prepare = threading.Event(), list[Path](), scorer.prepare

    def late(path: Path) -> object:
        read.append(path)
        assert path != files[1] or slow.wait(30)
        return prepare(path)

    monkeypatch.setattr(scorer, "prepare", late)
    batcher = Batcher(scorer)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(batcher.score, files[0])]
        assert scorer.begun.wait(30)
        futures.append(pool.submit(batcher.score, files[1]))
        wait_for(lambda: files[1] in read)
        futures.append(pool.submit(batcher.score, files[2]))
        wait_for(lambda: [request.number for request in batcher._queue] == [3])
        slow.set()
        wait_for(lambda: len(batcher._queue) == 2)
        assert batcher._queue[0].number == 2  # the next to be taken
        scorer.gate.set()
        found = [future.result(30).scores.score for future in futures]
    batcher.close()
    assert found == pytest.approx(alone[:3], rel=1e-5, abs=1e-5)


def test_without_a_place_a_request_is_turned_away_at_once(scorer: Held, files: list[Path]) -> None:
    batcher = Batcher(scorer, max_waiting=3)
    with ThreadPoolExecutor(4) as pool:
        inside = [pool.submit(batcher.score, path) for path in files[:3]]
        wait_for(lambda: batcher.waiting == 3)
        with pytest.raises(BusyError, match="too many images wait to be scored: try again later"):
            batcher.score(files[3])
        patient = pool.submit(batcher.score, files[3], patient=True)
        assert not patient.done()
        scorer.gate.set()
        assert all(future.result().scores.map.any() for future in (*inside, patient))
    batcher.score(files[3])  # there is room again
    batcher.close()


def test_who_is_patient_waits_in_turn_and_not_for_the_places_of_others(
    scorer: Held, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "PATIENT_PLACES", 1)
    batcher, ended = Batcher(scorer, max_waiting=2), list[str]()

    def come(name: str, path: Path, patient: bool) -> None:
        batcher.score(path, patient=patient)
        ended.append(name)

    with ThreadPoolExecutor(6) as pool:
        comers = [pool.submit(come, "camera", path, False) for path in files[:2]]
        wait_for(lambda: batcher.waiting == 2)
        for name in ("first", "second", "third"):
            comers.append(pool.submit(come, name, files[len(comers)], True))
            wait_for(lambda: batcher.waiting == len(comers))
        assert (batcher._admitted, batcher._patient.waiting) == (
            3,
            2,
        )  # the first one is in, though all places are taken
        with pytest.raises(BusyError):
            batcher.score(files[6])
        with pytest.raises(BusyError, match="too many images wait"):
            batcher.score(files[6], patient=True, timeout=0.01)
        assert batcher._patient.waiting == 2  # who gave up does not stand in the way
        scorer.gate.set()
        for comer in comers:
            comer.result(30)
    assert [name for name in ended if name != "camera"] == ["first", "second", "third"]
    assert batcher.waiting == batcher._admitted_patient == 0
    batcher.close()


def test_cameras_that_come_all_the_time_do_not_starve_who_is_patient(model: Path, files: list[Path]) -> None:
    batcher, stop = Batcher(Runtime.load(model, threads=2), max_waiting=4), threading.Event()

    def camera() -> None:
        while not stop.is_set():
            with suppress(BusyError):
                batcher.score(files[0])

    with ThreadPoolExecutor(12) as pool:
        cameras = [pool.submit(camera) for _ in range(12)]
        wait_for(lambda: batcher.waiting >= 4)
        for path in files[:5]:
            batcher.score(path, patient=True, timeout=30)
        stop.set()
        for one in cameras:
            one.result(30)
    batcher.close()


def test_an_error_of_the_engine_reaches_the_requests_and_the_next_ones_are_scored(
    scorer: Held, files: list[Path], alone: list[float]
) -> None:
    batcher = Batcher(scorer)
    scorer.broken = ModelError("out of order")
    scorer.gate.set()
    with ThreadPoolExecutor(6) as pool:
        failed = [future.exception() for future in [pool.submit(batcher.score, path) for path in files[:6]]]
    assert [str(error) for error in failed] == ["out of order"] * 6
    scorer.broken = None
    assert batcher.score(files[0]).scores.score == pytest.approx(alone[0], rel=1e-5, abs=1e-5)
    with ThreadPoolExecutor(6) as pool:  # the other threads too
        assert list(pool.map(lambda path: batcher.score(path).scores.score, files[:6])) == pytest.approx(
            alone[:6], rel=1e-5
        )
    batcher.close()


def test_an_image_that_cannot_be_read_gives_its_place_back(model: Path, files: list[Path], tmp_path: Path) -> None:
    (broken := tmp_path / "broken.png").write_bytes(files[0].read_bytes()[:200])
    batcher = Batcher(Runtime.load(model), max_waiting=1)
    for _ in range(3):
        with pytest.raises(ImageError, match=r"broken\.png"):
            batcher.score(broken)
    batcher.score(files[0])
    batcher.close()


def test_a_score_that_is_no_number_is_an_error_of_its_image_alone(model: Path, files: list[Path]) -> None:
    class Odd(Runtime):
        def run(self, pixels: FloatArray) -> Outputs:
            outputs = super().run(pixels)
            return outputs._replace(scores=np.full_like(outputs.scores, np.nan))

    batcher = Batcher(Odd.load(model))
    with pytest.raises(ModelError, match="the model gives no finite score for this image"):
        batcher.score(files[0])
    batcher.close()


@pytest.mark.parametrize("side", [0, 64])
def test_the_region_is_in_the_pixels_of_the_image(model: Path, tmp_path: Path, side: int) -> None:
    """Also where the map is smaller than the image."""
    image, mask = draw_image(np.random.default_rng(5), defect=True)
    path = tmp_path / "large.png"
    Image.fromarray(image).resize((512, 256)).save(path)
    scorer = Runtime.load(model)
    batcher = Batcher(scorer)
    scores = batcher.score(path, max_map_side=side).scores
    batcher.close()
    assert max(scores.map.shape) == (side or 512)
    assert scores.region is not None
    assert scores.region == pytest.approx(scorer.score(path).region, abs=16)  # two pixels of the small map
    left, top, right, bottom = scores.region
    rows, columns = np.nonzero(mask)
    assert left < columns.mean() * 8 < right
    assert top < rows.mean() * 4 < bottom


def test_a_decision_that_is_made_again_has_its_own_reason(model: Path, files: list[Path]) -> None:
    scorer = Runtime.load(model)
    scores = scorer.score(next(path for path in files if "blot" in str(path)))
    assert scores.is_anomaly
    assert scores.reason
    assert batching.decide_again(scores, scorer) == scores
    scorer._threshold = scores.score + 1
    passed = batching.decide_again(scores, scorer)
    assert (passed.is_anomaly, passed.reason, passed.region) == (False, "", scores.region)
    scorer._threshold = scores.threshold
    assert batching.decide_again(passed, scorer) == scores


def test_closing_finishes_what_waits_and_refuses_what_comes(
    scorer: Held, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "PATIENT_PLACES", 1)
    batcher = Batcher(scorer, max_waiting=3)
    with ThreadPoolExecutor(6) as pool:
        inside = [pool.submit(batcher.score, path) for path in files[:3]]
        inside.append(pool.submit(batcher.score, files[3], patient=True))
        wait_for(lambda: batcher._admitted == 4)
        patient = pool.submit(batcher.score, files[4], patient=True)
        wait_for(lambda: batcher.waiting == 5)
        closing = pool.submit(batcher.close)
        wait_for(lambda: batcher._closing)
        with pytest.raises(ClosedError, match="the model is being unloaded: try again later"):
            batcher.score(files[5])
        assert not closing.done()
        scorer.gate.set()
        assert all(future.result(30).scores.map.any() for future in inside)
        with pytest.raises(ClosedError):  # it had no place yet
            patient.result(30)
        closing.result(30)
    assert not [t for t in threading.enumerate() if t in batcher._threads]


def test_an_image_in_tiles(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (100, 130, 3), np.uint8)).save(path)
    scorer = Runtime.load(model)
    scorer.set_tile(64)
    batcher = Batcher(scorer, max_waiting=2)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda p: batcher.score(p, patient=True), [path] * 4))
    expected = scorer.score(path)
    assert [answer.scores.score for answer in found] == pytest.approx([expected.score] * 4)
    assert found[0].scores.map.shape == (100, 130)
    batcher.close()
