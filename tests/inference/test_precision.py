"""The choice of a precision, and the promise of threshold and contour at each of them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bgad.artifact.card import FLOAT32, CalibrationCard, CalibrationNormal, ScorePart
from bgad.calibration import Calibration, rank
from bgad.errors import ConfigError
from bgad.inference import load as loading
from bgad.inference import precision
from bgad.inference.load import load
from bgad.inference.onnx_engine import Runtime
from bgad.inference.precision import FASTER, PRECISIONS, fastest, measure
from bgad.types import AnyArray
from tests.conftest import draw_image
from tests.precisions import bgad, need_bf16, run_python

SPLITS = 1_000


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BGAD_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def rates(monkeypatch: pytest.MonkeyPatch, **measured: float) -> list[int]:
    """Let these rates be measured; the list grows with each measurement."""
    calls: list[int] = []

    def measure_none(_: object) -> dict[str, float]:
        calls.append(1)
        return measured

    monkeypatch.setattr(precision, "measure", measure_none)
    return calls


@pytest.mark.parametrize(("rate", "chosen"), [(0.5, FLOAT32), (FASTER, FLOAT32), (FASTER + 0.01, "bf16")])
def test_another_precision_must_pay(state: Path, monkeypatch: pytest.MonkeyPatch, rate: float, chosen: str) -> None:
    rates(monkeypatch, float32=10.0, bf16=10 * rate)
    assert fastest("gear", dict, "key") == chosen


def test_the_fastest_of_several_is_taken(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch, float32=10.0, bf16=15.0, f16=20.0)
    assert fastest("gear", dict, "key") == "f16"


def test_a_measurement_is_remembered_for_what_it_depends_on(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = rates(monkeypatch, float32=10.0, bf16=20.0)
    for key in ({"model": "a"}, {"model": "a"}, {"model": "b"}, {"model": "a"}):
        assert fastest("gear", dict, key) == "bf16"
    assert len(calls) == 2
    for file in (state / "precision").iterdir():
        assert json.loads(file.read_text())["of"] in ({"model": "a"}, {"model": "b"})
        file.write_text("damaged")
    assert fastest("gear", dict, {"model": "a"}) == "bf16"
    assert len(calls) == 3


def test_a_state_folder_that_cannot_be_written_costs_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BGAD_STATE", str(tmp_path / "file"))
    calls = rates(monkeypatch, float32=10.0, bf16=20.0)
    assert [fastest("gear", dict, "key") for _ in range(2)] == ["bf16", "bf16"]
    assert len(calls) == 2


class Timed:
    """A scorer whose batches take a fixed time."""

    threads, batch = 2, 1
    card = SimpleNamespace(config=SimpleNamespace(backbone=SimpleNamespace(size=8)))

    def __init__(self, seconds: float) -> None:
        self.seconds, self.runs = seconds, 0

    def start_thread(self) -> None:
        pass

    def run(self, pixels: AnyArray) -> None:
        assert pixels.shape == (1, 8, 8, 3)
        self.runs += 1
        time.sleep(self.seconds)


def test_rates_are_those_of_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "SECONDS", 0.1)
    slow, fast = Timed(0.05), Timed(0.01)
    found: Any = measure({"float32": slow, "bf16": fast})  # type: ignore[dict-item]
    assert 0.5 * 2 / 0.05 < found["float32"] <= 2 / 0.05
    assert found["bf16"] > 2 * found["float32"]
    assert slow.runs == fast.runs  # they take turns


def test_a_real_engine_is_measured(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "SECONDS", 0.0)
    assert measure({FLOAT32: Runtime.load(model, "cpu", threads=2)})[FLOAT32] > 1


def test_unknown_precision(model: Path) -> None:
    with pytest.raises(ConfigError, match="unknown precision 'int8': choose from auto, float32, bf16, f16"):
        load(model, precision="int8")


@pytest.mark.parametrize("name", [name for name in PRECISIONS if name != FLOAT32])
@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_only_openvino_has_other_precisions(model: Path, engine: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{engine} computes in float32: give --engine openvino for {name}"):
        load(model, engine=engine, precision=name)


def test_calibration_scores_are_those_of_training(model: Path, data_set: Path) -> None:
    """The way from images to a calibration that every precision takes is that of float32 in training."""
    scorer = load(model, "cpu", threads=2)
    stored = scorer.card.calibration_at()
    names = [image["name"] for image in scorer.card.split["images"] if image["role"] == "calibration"]
    found = CalibrationCard.from_normals(
        scorer.calibrating([data_set / name for name in names]), scorer.card.score_parts, None
    )
    spread = float(np.std(stored.scores))
    assert found.scores == pytest.approx(stored.scores, abs=2e-4 * spread)
    assert found.map_maxima == pytest.approx(stored.map_maxima, rel=1e-3)
    assert found.part_limits == pytest.approx(stored.part_limits, rel=1e-3, abs=1e-3)
    assert (found.false_reject_rate, found.is_default_rate) == (stored.false_reject_rate, stored.is_default_rate)


# --- the promise at both precisions


def shares(
    scored: dict[str, tuple[AnyArray, AnyArray]],
    n: int,
    rate: float,
    confidence: float | None = None,
    *,
    thresholds_of: str | None = None,
) -> dict[str, tuple[float, float]]:
    """Over many random splits: how often a good image is rejected, and how often it shows a contour, by precision.

    The first n images of a split calibrate each precision, as export does, and all others are new.
    `thresholds_of` is the precision whose thresholds all use.
    """
    rng = np.random.default_rng(0)
    sums = {name: np.zeros(2) for name in scored}
    for _ in range(SPLITS):
        order = rng.permutation(len(next(iter(scored.values()))[0]))
        own = {name: _calibrated(*values, order[:n], rate, confidence) for name, values in scored.items()}
        for name, (scores, maxima) in scored.items():
            card, new = own[thresholds_of or name], order[n:]
            sums[name] += (scores[new] > card.threshold).mean(), (maxima[new] > card.map_threshold).mean()
    return {name: (float(total[0] / SPLITS), float(total[1] / SPLITS)) for name, total in sums.items()}


def _calibrated(
    scores: AnyArray, maxima: AnyArray, chosen: AnyArray, rate: float, confidence: float | None
) -> CalibrationCard:
    normals = [CalibrationNormal(float(scores[i]), np.zeros(3, np.float32), float(maxima[i])) for i in chosen]
    return CalibrationCard.from_normals(normals, (ScorePart("map", 1.0),), rate, confidence)


def four_deviations(rate: float, n: int, others: int) -> float:
    """Of the mean share over SPLITS splits: in one, n images set the threshold, and the others are counted."""
    return 4 * float(np.sqrt(rate * (1 - rate) * (1 / (n + 2) + 1 / others) / SPLITS))


def bfloat16(values: AnyArray) -> AnyArray:
    """Cut numbers to the 8 significant bits of bfloat16."""
    short: AnyArray = (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return short


@pytest.fixture(scope="module")
def synthetic() -> dict[str, tuple[AnyArray, AnyArray]]:
    """Scores and map maxima of 600 good images; the second precision has noise, an offset, and few digits."""
    rng = np.random.default_rng(5)
    scores, maxima = rng.gamma(2.0, 1.0, 600), rng.gumbel(3.0, 0.7, 600)
    lower = [bfloat16(1.05 * values + 0.3 + rng.normal(0, 0.1, 600)) for values in (scores, maxima)]
    return {FLOAT32: (scores, maxima), "bf16": (lower[0], lower[1])}


@pytest.mark.parametrize(("rate", "n"), [(0.01, 99), (0.05, 60), (0.1, 25)])
def test_threshold_and_contour_keep_their_promise_at_both_precisions(
    synthetic: dict[str, tuple[AnyArray, AnyArray]], rate: float, n: int
) -> None:
    exact = rank(n, rate) / (n + 1)
    for name, pair in shares(synthetic, n, rate).items():
        for share in pair:
            assert share <= rate + four_deviations(rate, n, 600 - n), name
            assert share == pytest.approx(exact, abs=four_deviations(exact, n, 600 - n) + 0.004), name  # ties


def test_the_thresholds_of_float32_would_break_the_promise_of_another_precision(
    synthetic: dict[str, tuple[AnyArray, AnyArray]],
) -> None:
    """The statistical test has power."""
    found = shares(synthetic, 60, 0.05, thresholds_of=FLOAT32)
    assert max(found[FLOAT32]) <= 0.05 + four_deviations(0.05, 60, 540)
    assert min(found["bf16"]) > 0.05 + four_deviations(0.05, 60, 540)


def test_a_confidence_holds_at_both_precisions(synthetic: dict[str, tuple[AnyArray, AnyArray]]) -> None:
    """Of the thresholds, a share of the confidence at least rejects no more than the rate of all other images."""
    rng, rate, n = np.random.default_rng(1), 0.1, 60
    held = dict.fromkeys(synthetic, 0)
    for _ in range(SPLITS):
        order = rng.permutation(600)
        for name, (scores, _) in synthetic.items():
            threshold = Calibration.from_scores(scores[order[:n]].tolist(), rate, confidence=0.9).threshold
            held[name] += bool((scores[order[n:]] > threshold).mean() <= rate)
    assert all(count / SPLITS >= 0.9 - 4 * np.sqrt(0.9 * 0.1 / SPLITS) for count in held.values())


SCORE = """
import json, sys
import numpy as np
import bgad
images = list(np.load(sys.argv[2]))
found = {}
for precision in ("float32", "bf16"):
    scorer = bgad.load(sys.argv[1], "cpu", engine="openvino", precision=precision)
    scored = list(scorer.calibrating(images))
    found[precision] = [[s.score for s in scored], [s.map_max for s in scored]]
print(json.dumps(found))
"""


def test_the_promise_holds_for_a_real_model_in_bfloat16(model: Path, tmp_path: Path) -> None:
    """Good images, each scored once at both precisions; the splits are of their scores and maxima."""
    need_bf16()
    folder, rng = tmp_path / "plate.bgad", np.random.default_rng(11)
    shutil.copytree(model, folder)
    assert bgad("export", folder, "--precision", "bf16").returncode == 0
    np.save(tmp_path / "images.npy", np.stack([draw_image(rng, defect=False)[0] for _ in range(120)]))
    done = run_python(SCORE, folder, tmp_path / "images.npy")
    assert done.returncode == 0, done.stderr
    scored = {name: (np.array(pair[0]), np.array(pair[1])) for name, pair in json.loads(done.stdout).items()}
    assert not np.allclose(scored[FLOAT32][0], scored["bf16"][0], rtol=0, atol=1e-4)
    for name, pair in shares(scored, 39, 0.05).items():
        assert all(0.03 < share <= 0.05 + four_deviations(0.05, 39, 81) for share in pair), name


@pytest.mark.parametrize("device", ["gpu", "npu"])
def test_a_device_that_only_openvino_has_chooses_it(device: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[loading.EngineOptions] = []

    def load(_: Path, options: loading.EngineOptions) -> Any:
        chosen.append(options)

    monkeypatch.setitem(loading.ENGINES, "openvino", load)
    loading.load(model, device)
    assert [options.device for options in chosen] == [device]
