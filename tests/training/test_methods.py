"""Every method by its name: its recipe, its card, and where the name may come from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgad import TrainOptions, load, train
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.config import METHODS, Config, to_toml
from bgad.errors import DataError
from bgad.inference.torch_engine import Detector
from bgad.methods.checkpoint import LogRow
from bgad.training import pipeline
from bgad.training.loop import TrainingLoop
from bgad.types import PARTS
from tests.conftest import distance_config, level_model, printed_config, tiny_config

SHORT: dict[str, Any] = {"train": {"steps": 3, "push_steps": 3}, "pseudo": {"count": 3}}
PRINTED_METHODS = [name for name, method in METHODS.items() if method.is_printed]


def recipe(method: str) -> Config:
    if METHODS[method].is_printed:
        return printed_config(method, **SHORT)
    if METHODS[method].level == "distance":
        return distance_config(train={"push_steps": 6}, pseudo={"count": 3})
    return tiny_config(method=method, **SHORT)


@dataclass(frozen=True)
class Trained:
    """A model, and the objective and the groups of anomalies of every step of its training."""

    folder: Path
    steps: list[tuple[str, int]]


@pytest.fixture(scope="module")
def trained(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Trains a method by its name, once."""
    root = tmp_path_factory.mktemp("methods")

    @cache
    def by_name(method: str) -> Trained:
        made = Trained(root / f"{method}.bgad", [])
        run_step = TrainingLoop.run_step

        def watched(self: TrainingLoop, step: int) -> LogRow:
            made.steps.append((self.config.objective, len(self.anomalies)))
            return run_step(self, step)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingLoop, "run_step", watched)
            train(data_set, made.folder, config=recipe(method), options=TrainOptions(known=4, device="cpu"))
        return made

    return by_name


def some_images(data_set: Path) -> list[Path]:
    return [*sorted((data_set / "test/blot").iterdir()), *sorted((data_set / "test/good").iterdir())[:3]]


def parts_of(method: str) -> list[str]:
    """The parts that its score has."""
    if not recipe(method).backbone.image_head_strides:
        return ["map"]
    return ["map", "image", "known"] if METHODS[method].uses_anomalies else ["map", "image"]


def check_parts(method: str, score: float, parts: Mapping[str, float]) -> None:
    assert tuple(parts) == PARTS
    assert sum(parts.values()) == pytest.approx(score, rel=1e-5, abs=1e-5)
    assert all(name in parts_of(method) or parts[name] == 0.0 for name in PARTS)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_its_score_has_its_parts(
    method: str, data_set: Path, trained: Callable[[str], Trained]
) -> None:
    made = trained(method)
    card = model_folder.read(made.folder)
    assert (card.method, card.config) == (method, recipe(method))
    anomalies = 2 if METHODS[method].uses_anomalies else 0  # known ones and pseudo anomalies
    assert made.steps == [(METHODS[method].objective, anomalies)] * 6
    assert [part.name for part in card.score_parts] == parts_of(method)
    for engine in ("torch", "onnx"):
        for scored in load(made.folder, engine=engine).score_many(some_images(data_set)):
            check_parts(method, scored.score, scored.parts)


ON_OPENVINO = """
import json, sys
from pathlib import Path
from bgad import load
from bgad.export.export import ExportOptions, export

folders, files = map(json.loads, sys.argv[1:])
for folder in folders:
    export(Path(folder), options=ExportOptions(to="openvino"))
    print(json.dumps([[s.score, dict(s.parts)] for s in load(folder, engine="openvino").score_many(files)]))
"""


def test_every_kind_of_graph_is_scored_by_openvino(data_set: Path, trained: Callable[[str], Trained]) -> None:
    """In a process of its own: with OpenVINO loaded, a SIGINT in a later training is fatal."""
    kinds = {(METHODS[method].level, METHODS[method].is_printed, *parts_of(method)): method for method in METHODS}
    methods = list(kinds.values())  # the paper's differ in training alone
    folders, files = [trained(method).folder for method in methods], some_images(data_set)
    given = [json.dumps([str(path) for path in paths]) for paths in (folders, files)]
    done = subprocess.run([sys.executable, "-c", ON_OPENVINO, *given], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for method, folder, line in zip(methods, folders, done.stdout.splitlines(), strict=True):
        expected = [s.score for s in load(folder, engine="onnx").score_many(files)]
        found = json.loads(line)
        assert [score for score, _ in found] == pytest.approx(expected, abs=1e-3 * float(np.ptp(expected)))
        for score, parts in found:
            check_parts(method, score, parts)


@pytest.fixture
def printed(trained: Callable[[str], Trained]) -> Path:
    return trained("bgad").folder


def test_the_papers_score_is_the_maximum_of_an_unweighted_map(printed: Path, data_set: Path) -> None:
    detector = Detector.load(printed, "cpu")
    assert len({level.weight for level in detector.card.levels}) == 1
    assert level_model(detector).image_head is None
    assert detector.card.training.validation_normals == ()  # nothing needs them, so all normals are trained on
    for name in ("test/good/001.png", "test/blot/001.png"):
        scored = detector.score(data_set / name)
        assert scored.score == pytest.approx(float(scored.map.max()), rel=1e-5)


def test_the_papers_method_scores_without_torch_too(printed: Path, data_set: Path) -> None:
    files = sorted((data_set / "test/blot").iterdir())
    ours, theirs = load(printed, engine="onnx").score_many(files), load(printed, engine="torch").score_many(files)
    for a, b in zip(ours, theirs, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-3, abs=1e-3)
        np.testing.assert_allclose(a.map, b.map, atol=1e-3 * float(np.ptp(b.map)))


# --- where the name comes from


def train_by(tmp_path: Path, data_set: Path, text: str, *options: str) -> int:
    """Train with this recipe file."""
    (tmp_path / "recipe.toml").write_text(text)
    out = ["--out", str(tmp_path / "m.bgad"), "--overwrite", "--known", "4", "--device", "cpu", "--no-export"]
    return main(["train", str(data_set), "--config", str(tmp_path / "recipe.toml"), *out, *options])


BRIEF = """
[backbone]
name = "lite0"
size = 64

[train]
steps = 2
push_steps = 1

[pseudo]
count = 2
"""


def test_a_recipe_file_names_the_method(data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is that of the method's preset; an option of the command comes first."""
    asked: list[Config] = []

    def asking(*_: Any, config: Config, **__: Any) -> None:
        asked.append(config)
        raise DataError("it is only asked for the recipe")

    monkeypatch.setattr(pipeline, "train", asking)
    for text, options, method in (
        (f'method = "bgad-wo"\n{BRIEF}', (), "bgad-wo"),
        (f'method = "bgad-wo"\n{BRIEF}', ("--method", "nfad"), "nfad"),
        (BRIEF, (), "bgad-plus"),
    ):
        assert train_by(tmp_path, data_set, text, *options) == 2
        config = asked.pop().check()
        assert (config.method, config.train.steps) == (method, 2)
        assert config.backbone.crop == METHODS[method].is_printed
    assert train_by(tmp_path, data_set, to_toml(printed_config("nfad", **SHORT))) == 2  # all keys of a recipe
    assert asked.pop() == printed_config("nfad", **SHORT)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ('method = "bgad"', ("--preset", "default"), "bgad cannot be trained by the preset default"),
        ('method = "bgad-plus"', ("--preset", "paper-fast"), "bgad-plus cannot be trained by the preset paper-fast"),
        ('method = "bgat"', (), "recipe.toml must be one of bgad-plus, nfad-plus, bgad"),
        ('method = ["bgad"]', (), "recipe.toml must be one of bgad-plus, nfad-plus, bgad"),
        ('method = "bgad"\n[flow]\nblocks = 6', (), "flow.blocks is 8 in the paper's bgad, not 6"),
        ("[flow]\nblocks = 6", ("--method", "bgad"), "flow.blocks is 8 in the paper's bgad, not 6"),
        ("[score]\ntop_share = 0.01", ("--preset", "paper"), "score.top_share is 0.0 in the paper's bgad, not 0.01"),
        ('[loss]\nmethod = "bgad"', (), "unknown key loss.method"),
    ],
)
def test_a_recipe_file_that_does_not_fit_is_one_line(
    data_set: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    assert train_by(tmp_path, data_set, text, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bgad: error: ")
    assert message in line
