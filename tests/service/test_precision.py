"""Which precision the workbench scores in: the one asked for, with thresholds, scores and a drift test of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FLOAT32, CalibrationCard
from bgad.cli.main import main
from bgad.errors import ModelError
from bgad.inference import load as loading
from bgad.inference import openvino_engine
from bgad.inference.base import Outputs
from bgad.inference.onnx_engine import Runtime
from bgad.service.drift.monitor import _VersionTest
from bgad.service.role import Role
from bgad.service.teaching.comparison import Comparison
from bgad.service.teaching.task import build_task
from bgad.types import FloatArray
from tests.precisions import STAND_IN, calibrated
from tests.service.conftest import LAUNCHER, SCORE, Live, Maker, Service, linked, png, wait_for

THRESHOLD = "/v1/models/plate/threshold"


class StandIn(Runtime):
    """What `tests.precisions` makes of OpenVINO, by ONNX Runtime: OpenVINO is not loaded into this process."""

    @classmethod
    def at(cls, folder: Path, options: loading.EngineOptions) -> StandIn:
        scorer = cls.load(folder, "cpu")
        scorer.precision = options.precision
        own = scorer.card.calibration_at(options.precision)
        scorer.part_limits = own.part_limits
        scorer._calibrate(own.calibration(), own.map_calibration())
        return scorer

    def run(self, pixels: FloatArray) -> Outputs:
        outputs = super().run(pixels)
        return outputs._replace(scores=outputs.scores * 1.5 + 1, parts=outputs.parts * 1.5, maps=outputs.maps * 2 + 1)


@pytest.fixture(scope="module")
def both(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a second precision."""
    return calibrated(model, tmp_path_factory.mktemp("both") / "plate.bgad")


@pytest.fixture
def models(both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(loading.ENGINES, "openvino", StandIn.at)
    monkeypatch.setattr(openvino_engine, "pick", lambda *_, **__: "CPU")
    monkeypatch.setattr(openvino_engine, "check_precision", lambda *_: None)
    return linked(both, tmp_path / "models")


@pytest.fixture
def own(both: Path) -> CalibrationCard:
    return model_folder.read(both).calibration["bf16"]


def send(service: Service, content: bytes) -> dict[str, Any]:
    answer = service.client.post(SCORE, content=content)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def states(service: Service) -> list[tuple[str, str]]:
    return [(version.precision, version.state) for version in service.store.versions.all("plate")]


def test_scores_thresholds_and_drift_are_those_of_the_precision(make: Maker, own: CalibrationCard) -> None:
    before = send(make(), png(1))
    make.end()
    service = make(precision="bf16")
    assert states(service) == [(FLOAT32, "retired"), ("bf16", "released")]
    told = send(service, png(1))
    assert (before["precision"], told["precision"]) == (FLOAT32, "bf16")
    assert told["score"] == pytest.approx(1.5 * before["score"] + 1, rel=1e-3)
    assert told["threshold"] == own.threshold != before["threshold"]
    described = service.client.get("/v1/models/plate").json()
    assert (described["version"]["precision"], described["threshold"]) == ("bf16", own.threshold)
    assert (described["map_threshold"], described["guarantee"]) == (own.map_threshold, own.guarantee)
    page = service.client.get(THRESHOLD).json()
    assert page["calibration"] == list(own.scores)
    version = service.store.versions.released("plate")
    rule = service.bench.registry.decision_rule(version)
    assert rule.part_limits == own.part_limits
    assert _VersionTest(service.store, service.bench.registry, version).calibration == own.scores
    # each score keeps the decision of its own precision
    detail = service.client.get(f"/v1/images/{told['image']}").json()
    found = {row["precision"]: (row["score"], row["threshold"]) for row in detail["scores"]}
    assert found == {row["precision"]: (row["score"], row["threshold"]) for row in (before, told)}


def test_earlier_images_are_scored_in_the_new_precision(make: Maker) -> None:
    first = make()
    numbers = [send(first, png(i))["image"] for i in range(3)]
    make.end()
    service = make(precision="bf16")
    version = service.store.versions.released("plate")
    wait_for(lambda: service.store.scores.count(version.id) == len(numbers))


def test_a_threshold_applies_to_the_precision_in_use(make: Maker, both: Path, own: CalibrationCard) -> None:
    """The rate stays when the precision changes, and the threshold follows."""
    float32 = model_folder.read(both).calibration_at()
    service = make()
    assert service.client.put(THRESHOLD, json={"rate": 0.5}).json()["threshold"] == float32.calibration(0.5).threshold
    make.end()

    service = make(precision="bf16")
    assert send(service, png(1))["threshold"] == own.calibration(0.5).threshold
    version = service.store.versions.released("plate")
    assert (version.rate, version.threshold) == (0.5, own.calibration(0.5).threshold)
    moved = service.client.put(THRESHOLD, json={"rate": 0.34}).json()
    assert moved["threshold"] == own.calibration(0.34).threshold
    make.end()

    service = make(precision="bf16")  # nothing has changed
    assert service.store.versions.released("plate").id == version.id
    make.end()

    service = make()
    again = service.store.versions.released("plate")
    assert (again.precision, again.rate, again.threshold) == (FLOAT32, 0.34, float32.calibration(0.34).threshold)
    assert states(service) == [(FLOAT32, "released"), ("bf16", "retired")]
    assert service.bench.registry.previous("plate").id == version.id


def test_a_discarded_precision_comes_back_when_it_is_asked_for(make: Maker) -> None:
    make(precision="bf16")
    make.end()
    service = make()
    retired = next(v for v in service.store.versions.all("plate") if v.precision == "bf16")
    service.store.versions.discard(retired.id, "ann")
    make.end()
    assert states(make(precision="bf16")) == [("bf16", "released"), (FLOAT32, "retired")]


def test_a_taught_version_has_float32_only(make: Maker, models: Path) -> None:
    service = make(precision="bf16")
    released = service.store.versions.released("plate")
    taught = service.store.versions.add(
        "plate", "b" * 64, "elsewhere/plate.bgad", state="candidate", parent=released.id
    )
    assert taught.precision == FLOAT32
    service.store.versions.release(taught.id, "ann")
    make.end()
    service = make(precision="bf16")  # the folder of the first version is still there
    assert service.store.versions.released("plate").id == taught.id
    assert states(service) == [("bf16", "retired"), (FLOAT32, "released")]


def test_teaching_compares_with_what_is_released(make: Maker, both: Path, own: CalibrationCard, tmp_path: Path) -> None:
    service = make(precision="bf16")
    number = send(service, png(1))["image"]
    version = service.store.versions.released("plate")
    service.store.reviews.add(number, "good", "ann")
    job = service.store.jobs.add("teach", version, [number], "ann")
    task = build_task(job, tmp_path, service.store, service.bench.blobs, service.bench.folders)
    compared = Comparison(both, both, task.rate, tmp_path / "drawings", task.precision)
    assert compared.before.threshold == own.threshold
    assert compared.after.threshold == model_folder.read(both).calibration_at().threshold


def test_a_model_without_the_precision_leaves_the_others_as_they_are(make: Maker, model: Path, models: Path) -> None:
    make()
    make.end()
    shutil.copytree(model, models / "wheel.bgad")
    with pytest.raises(ModelError, match=r"wheel\.bgad is not calibrated for bf16"):
        make(precision="bf16")
    make.end()
    assert states(make()) == [(FLOAT32, "released")]


def test_a_scorer_follows_the_main_service(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    main_service = make(precision="bf16")
    scorer = make(role=Role.SCORER)
    assert send(scorer, png(2))["score"] == send(main_service, png(2))["score"]
    assert send(scorer, png(3))["precision"] == "bf16"

    def refuse(*_: object) -> None:
        raise ModelError("the CPU of this machine does not compute in bf16")

    monkeypatch.setattr(openvino_engine, "check_precision", refuse)
    with pytest.raises(ModelError, match="does not compute in bf16"):
        make(role=Role.SCORER)


def test_auto_asks_for_a_measurement(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_engine, "device_name", lambda _: "a CPU")
    monkeypatch.setattr(loading, "fastest", lambda name, scorers, key: list(scorers())[1])
    assert states(make(precision="auto")) == [("bf16", "released")]


def test_a_model_without_the_precision_is_refused(model: Path, tmp_path: Path) -> None:
    maker = Maker(linked(model, tmp_path / "other"))
    folder = maker.models / "plate.bgad"
    with pytest.raises(ModelError) as refused:
        maker(precision="bf16")
    assert str(refused.value) == (
        f"{folder} is not calibrated for bf16 (it is for: float32): run `bgad export {folder} --precision bf16` first"
    )


def test_the_option_is_for_the_main_service(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--models", str(models), "--role", "scorer", "--precision", "bf16"]
    assert main(["serve", *options]) == 2
    assert "--precision is for the main service: leave it out with --role scorer" in capsys.readouterr().err


def test_a_live_service(both: Path, tmp_path: Path) -> None:
    """With OpenVINO."""
    service = Live(linked(both, tmp_path / "live"), ("--precision", "bf16"), STAND_IN + LAUNCHER)
    try:
        service.start()
        told = httpx.post(f"{service.address}{SCORE}", content=png(1), timeout=60).json()
        (tmp_path / "part.png").write_bytes(png(1))
        expected = Runtime.load(both, "cpu").score(tmp_path / "part.png").score
        assert (told["precision"], told["score"]) == ("bf16", pytest.approx(1.5 * expected + 1, rel=1e-3))
    finally:
        service.end()
