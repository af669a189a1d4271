"""What several tests share: a tiny data set, a tiny recipe, and a model trained once."""

from __future__ import annotations

import atexit
import copy
import gc
import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bgad.cli import console
from bgad.config import BackboneConfig, Config, from_dict, preset_for
from bgad.features import cache as features
from bgad.inference.torch_engine import Detector
from bgad.io import image_file
from bgad.model import backbone as backbones
from bgad.model.backbone import Backbone
from bgad.model.scoring import LevelModel
from bgad.types import AnyArray

console.show_log()  # as every command does: tests read the log from standard error

SIZE = 64
SERVICE = Path(__file__).with_name("service")
SLOW = (  # files by their time, the longest first
    "test_score.py",
    "test_soak.py",
    "test_runner.py",
    "test_tasks.py",
    "test_baselines.py",
    "test_page_held.py",
    "test_page.py",
    "test_page_access.py",
    "test_pipeline.py",
    "test_interrupts.py",
    "test_page_queue.py",
    "test_update.py",
    "test_methods.py",
    "test_openvino_engine.py",
    "test_paper_runs.py",
)
OF_BACKBONES = ("test_backbone.py", "test_cache.py", "test_cache_shards.py")
STATE = tempfile.mkdtemp(prefix="bgad-state-")
os.environ["BGAD_STATE"] = STATE  # not the user's own; child processes inherit it
atexit.register(shutil.rmtree, STATE, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that all processes end at about the same time."""
    place = {name: i for i, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOW)))


def pytest_unconfigure() -> None:
    """What `frozen` kept goes before the modules that it belongs to."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test of the workbench that is skipped has failed: a browser and PostgreSQL must be there."""
    report = yield
    if report.skipped and "CI" in os.environ and SERVICE in item.path.parents:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that is skipped while it is collected."""
    report = yield
    if report.skipped and "CI" in os.environ and SERVICE in collector.path.parents:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


def save(path: Path, pixels: AnyArray) -> Path:
    """Write an image, or a mask as black and white, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8) * 255 if pixels.dtype == bool else pixels).save(path)
    return path


def draw_image(rng: np.random.Generator, *, defect: bool) -> tuple[np.ndarray, np.ndarray]:
    """A smooth grey plate with grain; a defect is a dark blot."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    image = 150 + 30 * np.sin(6 * x + rng.uniform(-0.2, 0.2)) + 20 * y + rng.normal(0, 3, (SIZE, SIZE))
    mask = np.zeros((SIZE, SIZE), bool)
    if defect:
        cy, cx = rng.uniform(0.25, 0.75, 2)
        mask = (y - cy) ** 2 + (x - cx) ** 2 < 0.12**2
        image[mask] -= 90
    return np.repeat(np.clip(image, 0, 255).astype(np.uint8)[..., None], 3, axis=2), mask


def write_set(root: Path, *, train: int = 24, good: int = 10, bad: int = 8, masks: bool = True) -> Path:
    """A set in the MVTec layout with one defect class."""
    rng = np.random.default_rng(7)
    for folder, count, defect in (("train/good", train, False), ("test/good", good, False), ("test/blot", bad, True)):
        (root / folder).mkdir(parents=True)
        for i in range(count):
            image, mask = draw_image(rng, defect=defect)
            save(root / folder / f"{i:03d}.png", image)
            if defect and masks:
                save(root / f"ground_truth/blot/{i:03d}_mask.png", mask)
    return root


def tiny_config(**values: object) -> Config:
    """A recipe that trains in seconds; with stride 32, the covariance of the image head would take half of the time."""
    base = from_dict(
        {
            "backbone": {"size": SIZE, "image_head_strides": [16]},
            "flow": {"blocks": 2, "hidden_ratio": 0.5},
            "train": {
                "steps": 30,
                "push_steps": 20,
                "images_per_step": 8,
                "positions_per_image": [16, 16, 8],
                "lr": 1e-2,
            },
            "pseudo": {"count": 8},
        }
    )
    return from_dict(values, base)


def printed_config(method: str = "bgad", **values: object) -> Config:
    """A recipe of one of the paper's methods that trains in seconds: its default preset on a small input."""
    base = from_dict(
        {
            "backbone": {"name": "lite0", "size": SIZE},
            "train": {"steps": 6, "push_steps": 4, "images_per_step": 8, "positions_per_image": [16, 8, 4]},
            "pseudo": {"count": 4},
        },
        preset_for(method, None),
    )
    return from_dict(values, base)


def distance_config(**values: object) -> Config:
    """A recipe of bgad-distance that trains in seconds."""
    base = from_dict(
        {
            "backbone": {"size": SIZE},
            "distance": {"bank_size": 256},
            "train": {"push_steps": 10, "images_per_step": 8, "positions_per_image": [16, 16, 8]},
            "pseudo": {"count": 4},
        },
        preset_for("bgad-distance", None),
    )
    return from_dict(values, base)


def level_model(detector: Detector) -> LevelModel:
    """The model of a detector of one of our own methods."""
    assert isinstance(detector.model, LevelModel)
    return detector.model


_build, _session = backbones.build, features._session
_built, _sessions = cache(_build), dict[tuple[Any, ...], Any]()


def _copy_of_built(config: BackboneConfig, state: Any = None, **options: Any) -> Backbone:
    """A copy of the backbone that was built first, where its weights are those of a package."""
    if state is None and not options and not config.weights and config.name in backbones.BACKBONES:
        return copy.deepcopy(_built(config))
    return _build(config, state, **options)


def _session_once(backbone: Backbone, size: int) -> Any:
    """The session of the first backbone with these weights, which has no state."""
    digest = hashlib.sha256(repr(backbone).encode())
    for values in backbone.state_dict().values():
        digest.update(values.contiguous().numpy().tobytes())
    key = (digest.digest(), str(getattr(backbone, "_picks", "")), getattr(backbone, "_min_stride", 0), size)
    if key not in _sessions:
        _sessions[key] = _session(backbone, size)
    return _sessions[key]


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Let the garbage collector pass over what was there before a file: the modules of all files, which never go.

    Each cell of a benchmark collects garbage; with half a million objects that is a third of its time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def built_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Half of the time of a tiny training would be its backbone: outside of its own tests, a process builds it once."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in OF_BACKBONES:
            patch.setattr(backbones, "build", _copy_of_built)
            patch.setattr(features, "_session", _session_once)
        yield


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are decoded from now on: images, masks and regions."""
    paths: list[Path] = []
    load = image_file.load

    def recorded(path: Path, max_pixels: int, *, keep_alpha: bool = False) -> image_file.Stored:
        paths.append(path)
        return load(path, max_pixels, keep_alpha=keep_alpha)

    monkeypatch.setattr(image_file, "load", recorded)
    return paths


@pytest.fixture(scope="session")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("data") / "plate")


@pytest.fixture(scope="session")
def model(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bgad import TrainOptions, train

    out = tmp_path_factory.mktemp("model") / "plate.bgad"
    train(data_set, out, config=tiny_config(), options=TrainOptions(known=4, device="cpu"))
    return out


@pytest.fixture(scope="session")
def plain_model(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without an image head, with the same weight for all levels."""
    from bgad import TrainOptions, train

    out = tmp_path_factory.mktemp("plain") / "plate.bgad"
    config = tiny_config(
        backbone={"image_head_strides": []},
        score={"level_prior_power": 0.0, "evidence_weight": 0.0},
        train={"steps": 3, "push_steps": 3},
        pseudo={"count": 3},
    )
    train(data_set, out, config=config, options=TrainOptions(known=4, device="cpu", export=False))
    return out


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with the real data sets, where the environment names one."""
    value = os.environ.get("BGAD_DATA")
    if not value:
        pytest.skip("BGAD_DATA is not set: tests on real data need the folder that holds them")
    return Path(value)
