from __future__ import annotations

import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from bgad.benchmark import runner as benchmark
from bgad.benchmark.grid import Cost
from bgad.benchmark.paper_tables import TABLES, Column, Matrix, PaperTable, methods
from bgad.benchmark.plan import Outcome, plan
from bgad.cli.main import main
from bgad.config import Config, preset_for
from bgad.data import layouts
from bgad.data.protocols import Case, protocol_split
from bgad.data.sample_io import ImageCache, validate_images
from bgad.errors import ConfigError, ModelError
from bgad.evaluation.evaluate import evaluate
from bgad.features.cache import AnomalyFeatures, FeatureStore
from bgad.inference.torch_engine import Detector
from bgad.io import files as output_files
from bgad.io.files import locked
from bgad.methods.checkpoint import run_key
from bgad.training import feature_pool
from bgad.training import pipeline as learn
from bgad.training import shared_phases as keys_module
from bgad.training.feature_pool import FeaturePool
from bgad.training.loop import TrainingLoop
from bgad.training.pipeline import TrainOptions, new_fit
from bgad.training.shared_phases import flow_key, phase_key
from tests.benchmark.runs import CLASSES, CONFIG, SIZE, TINY, category, fast, results, timeless, tiny
from tests.conftest import save


def test_features_phase_one_and_pseudo_anomalies_are_computed_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[Path]
) -> None:
    counts: list[int] = []
    fill = FeatureStore.fill

    def counted(self: Any, backbone: Any, draw: Any, *rest: Any) -> None:
        counts.append(self.count)
        fill(self, backbone, draw, *rest)

    steps: list[tuple[str, int]] = []
    one_step = TrainingLoop.run_step

    def stepped(self: TrainingLoop, step: int) -> dict[str, float]:
        steps.append((self.config.method, step))
        return one_step(self, step)

    monkeypatch.setattr(FeatureStore, "fill", counted)
    monkeypatch.setattr(TrainingLoop, "run_step", stepped)
    outcomes = fast(tmp_path, root, "nfad", "bgad", "bgad-full-push")
    assert len(outcomes) == 9
    trained = [o.request.column.method for o in outcomes]
    for _ in range(2):
        trained.remove("nfad")  # its flows know nothing of the classes: once is enough
    # all 21 images once, then the pseudo anomalies of each of the three known classes, for two methods
    assert counts == [21, 2, 2, 2]
    assert sorted(path for path in decoded if "ground_truth" not in path.parts) == sorted(
        (root / "mvtec/carpet").glob("t*/*/*.png")
    )
    assert [step for step in steps if step[1] < 2] == [("nfad", 0), ("nfad", 1)]
    assert sorted(step for step in steps if step[1] == 2) == sorted((method, 2) for method in trained)
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["flows", "phase-one"]


@pytest.mark.parametrize(
    ("protocol", "columns", "trained"),
    [
        ("general", ("bgad-wo", "bgad", "bgad-full-push"), ["bgad-wo", "bgad-full-push"]),
        ("unsupervised", ("bgad-full-push", "bgad", "bgad-wo"), ["bgad-full-push", "bgad"]),
    ],
)
def test_flows_that_no_anomaly_pushes_are_trained_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    protocol: str, columns: tuple[str, ...], trained: list[str],
) -> None:  # fmt: skip
    """Without masks: each model is the one that its method makes alone, whoever came before it."""
    steps: list[str] = []
    one_step = TrainingLoop.run_step

    def stepped(self: TrainingLoop, step: int) -> dict[str, float]:
        steps.append(self.config.method)
        return one_step(self, step)

    monkeypatch.setattr(TrainingLoop, "run_step", stepped)

    def models(out: Path, *names: str) -> dict[str, dict[str, Any]]:
        matrix = Matrix({"brainmri": ()}, protocol, methods(*names), known=(2,), seeds=1)
        configs = {name: tiny(name, train={"push_steps": 3}, loss={"instance_share": 0.0}) for name in names}
        options = benchmark.BenchmarkOptions(root=root, device="cpu", keep_models=True)
        benchmark.run(PaperTable("tiny", (matrix,)), out, configs=configs, options=options)
        found = {}
        for name in names:
            (folder,) = (out / "models").glob(f"*-{name.replace('-', '_')}-*")
            found[name] = safetensors.numpy.load_file(folder / "flow.safetensors")
        return found

    together = models(tmp_path / "together", *columns)
    assert list(dict.fromkeys(steps)) == trained
    for name in columns:
        alone = models(tmp_path / name, name)[name]
        assert together[name].keys() == alone.keys()
        for key, value in alone.items():
            np.testing.assert_array_equal(together[name][key], value, err_msg=key)


def test_features_on_disk_give_the_same_figures(root: Path, tmp_path: Path) -> None:
    for name, memory in (("memory", 1.0), ("disk", 1e-9)):
        fast(tmp_path / name, root, "bgad", "bgad-full-push", memory_gb=memory)
    assert timeless(tmp_path / "disk") == timeless(tmp_path / "memory")
    assert [path.name for path in (tmp_path / "disk/work").iterdir()] == ["phase-one"]  # the features are gone


def test_models_may_be_wanted_later(root: Path, tmp_path: Path) -> None:
    fast(tmp_path, root, "nfad")
    before = timeless(tmp_path)
    assert not (tmp_path / "models").exists()
    fast(tmp_path, root, "nfad", keep_models=True)
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".bgad"] * len(before["cells"])
    assert timeless(tmp_path) == before


def test_a_recipe_for_every_method_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the table has the method nfad, but there is no recipe of it"):
        benchmark.run(TABLES["main"], tmp_path / "out", configs={"bgad": preset_for("bgad", None)})


def test_a_cell_is_what_train_and_evaluate_give(tmp_path: Path) -> None:
    """Features in half precision instead of pixels: the same figures; a shared phase 1: the same weights.

    The images are wide, and the paper's method crops them; ours beside it does not.
    """
    category(tmp_path / "data/mvtec/carpet", CLASSES["carpet"], 1, width=72)
    recipe = {"train": {"steps": 12, "push_steps": 6, "images_per_step": 6}}
    names = ("nfad-plus", "bgad-plus", "bgad")
    fast(tmp_path / "out", tmp_path / "data", *names, protocol="multi-class", recipe=recipe, keep_models=True)
    dataset = layouts.load(tmp_path / "data/mvtec/carpet")
    compared = 0
    for cell in results(tmp_path / "out")["cells"]:
        case = cell["method"].replace("-", "_")
        (kept,) = (tmp_path / "out/models").glob(f"*-{case}-*")
        alone = tmp_path / case
        learn.train(
            dataset.root,
            alone,
            config=tiny(cell["method"], **recipe),
            options=TrainOptions(split=kept / "split.json", device="cpu", export=False),
        )
        learnt, same = (safetensors.numpy.load_file(folder / "flow.safetensors") for folder in (kept, alone))
        assert learnt.keys() == same.keys()
        # measured on maps, which half precision changes a little
        np.testing.assert_allclose(learnt.pop("map_constants"), same.pop("map_constants"), rtol=2e-3)
        for key, value in learnt.items():
            np.testing.assert_array_equal(value, same[key], err_msg=key)
        assert (kept / "train.csv").read_bytes() == (alone / "train.csv").read_bytes()
        other, _, rows = evaluate(Detector.load(alone, "cpu"), dataset)
        assert other["images"] == cell["images"]
        for name, value in cell["metrics"].items():
            assert other["metrics"][name] == pytest.approx(value, abs=1e-3), name
        (stored,) = (json.loads(p.read_text()) for p in (tmp_path / "out/cells").glob(f"*-{case}-*"))
        assert [row["name"] for row in stored["images"]] == [row["name"] for row in rows]
        changes = [abs(a["score"] - b["score"]) for a, b in zip(stored["images"], rows, strict=True)]
        assert float(np.median(changes)) < 5e-3
        assert max(changes) < 0.2  # features in half precision, which a steep slope of p-values amplifies
        compared += 1
    assert compared == 3


def test_cells_say_what_they_are_made_of(root: Path, tmp_path: Path) -> None:
    fast(tmp_path, root, "bgad")
    names = sorted(path.name for path in (tmp_path / "cells").iterdir())
    assert [name.rpartition("-")[0] for name in names] == [
        f"mvtec-carpet-one_class-{known_class}-bgad-known2-seed0" for known_class in CLASSES["carpet"]
    ]
    stored = json.loads((tmp_path / "cells" / names[0]).read_text())
    assert stored["config"]["train"]["steps"] == 2
    assert stored["versions"]["bgad"]
    split = json.loads((tmp_path / stored["split"]).read_text())
    tested = [image["name"] for image in split["images"] if image["role"] == "test"]
    assert sorted(row["name"] for row in stored["images"]) == sorted(tested)
    assert not any("/color/" in name for name in tested)
    assert stored["cell"]["known_class"] == "color"
    assert stored["cell"]["drawn"] == stored["cell"]["known"] == 2


def test_what_is_kept_depends_on_the_recipe_of_the_code(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = layouts.load(root / "mvtec/carpet")
    split = protocol_split(dataset, "multi-class", Case(), known=2, seed=0)
    device = torch.device("cpu")
    nfad = tiny("nfad-plus")

    def keys(number: int) -> dict[str, str | None]:
        monkeypatch.setattr(keys_module, "RECIPE_VERSION", number)
        monkeypatch.setattr("bgad.training.feature_pool.RECIPE_VERSION", number)
        options: dict[str, Any] = {"device": device, "folder": tmp_path, "memory_gb": 1.0}
        pool = FeaturePool(
            dataset.samples[:1], split.hashes, ImageCache(CONFIG.backbone.size), CONFIG.backbone, **options
        )
        return {
            "phase": phase_key(CONFIG, split, device),
            "flows": flow_key(nfad, split, device),
            "pool": pool.key,
            "run": run_key(CONFIG, split, device),
        }

    before, after = keys(1), keys(2)
    assert {name for name, key in before.items() if key != after[name]} == {"phase", "flows", "pool"}


def test_the_key_of_a_cell_does_not_change_by_accident(root: Path) -> None:
    """Finished cells of long runs stay valid: parts and order are as they were."""
    (group,) = plan((Matrix({"mvtec": ("carpet",)}, "multi-class", methods("bgad-plus"), known=(2,), seeds=1),), root)
    (request,) = group.requests
    assert group.dataset is not None
    split = protocol_split(group.dataset, "multi-class", Case(), known=2, seed=0)
    device = torch.device("cpu")
    parts = [run_key(CONFIG, split, device), [["a.png", "mask"]], "mvtec", "carpet", False, keys_module.RECIPE_VERSION]
    wanted = output_files.sha256_json(parts)
    assert benchmark._cell_key(CONFIG, split, request, [["a.png", "mask"]], device) == wanted


def test_pseudo_anomalies_are_made_again_when_masks_change_places(tmp_path: Path) -> None:
    category(tmp_path / "carpet", CLASSES["carpet"], 1)
    dataset = layouts.load(tmp_path / "carpet")
    split = protocol_split(dataset, "multi-class", Case(), known=2, seed=0)
    options: dict[str, Any] = {"device": torch.device("cpu"), "folder": tmp_path / "work", "memory_gb": 1.0}
    pool = FeaturePool(dataset.samples, split.hashes, ImageCache(CONFIG.backbone.size), CONFIG.backbone, **options)

    def made() -> AnomalyFeatures:
        return pool.training_set(split, CONFIG).anomalies[1]

    first = made()
    assert made() is first
    one, other = (sample.mask for sample in split.known)
    assert one is not None
    assert other is not None
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    assert made() is not first


# --- going on


def test_a_copy_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "flows/a/1.png", np.zeros((4, 4), np.uint8))
    save(tmp_path / "work/cell.new/stale.png", np.zeros((4, 4), np.uint8))  # of a run that was killed while copying

    def torn(_: Path, to: Path) -> None:
        save(to / "half.png", np.zeros((4, 4), np.uint8))
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", torn)
        with pytest.raises(OSError, match="disk full"):
            benchmark._copy(tmp_path / "flows/a", tmp_path / "work/cell")
    assert not (tmp_path / "work/cell").exists()
    benchmark._copy(tmp_path / "flows/a", tmp_path / "work/cell")
    assert [path.name for path in (tmp_path / "work/cell").iterdir()] == ["1.png"]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["cell"]


def test_the_work_of_a_cell_goes_after_its_file_is_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic = output_files.write_atomic
    there: list[int] = []

    def watched(path: Path, content: bytes) -> None:
        if path.parent.name == "cells":
            there.append(len(list(tmp_path.glob("work/cell-*/train.csv"))))
        write_atomic(path, content)

    monkeypatch.setattr(output_files, "write_atomic", watched)
    fast(tmp_path, root, "bgad", protocol="multi-class")
    assert there == [1]
    assert not list(tmp_path.glob("work/cell-*"))


def test_finished_cells_are_kept_and_a_changed_recipe_is_a_new_cell(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(tmp_path, root, "nfad")
    before = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "new_fit", lambda *_, **__: pytest.fail("it was run again"))
        patch.setattr(feature_pool, "FeaturePool", lambda *_, **__: pytest.fail("features were computed again"))
        fast(tmp_path, root, "nfad")
    assert {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()} == before

    fast(tmp_path, root, "nfad", recipe={"train": {"lr": 1e-3}})
    assert len(list((tmp_path / "cells").iterdir())) == 6
    assert len(results(tmp_path)["cells"]) == 3  # the table is that of the command

    broken = next(iter(before))
    broken.write_text("{")
    fast(tmp_path, root, "nfad")
    assert json.loads(broken.read_text())["cell"]["method"] == "nfad"


def test_changed_masks_and_images_are_new_cells(tmp_path: Path) -> None:
    category(tmp_path / "data/mvtec/carpet", CLASSES["carpet"], 1)
    runs = [fast(tmp_path / "out", tmp_path / "data", "nfad")]
    mask = tmp_path / "data/mvtec/carpet/ground_truth/hole/0_mask.png"
    save(mask, np.full((SIZE, SIZE), 255, np.uint8))
    runs.append(fast(tmp_path / "out", tmp_path / "data", "nfad"))
    save(tmp_path / "data/mvtec/carpet/test/good/0.png", np.full((SIZE, SIZE, 3), 99, np.uint8))
    runs.append(fast(tmp_path / "out", tmp_path / "data", "nfad"))
    assert len(list((tmp_path / "out/cells").iterdir())) == 9
    assert len({json.dumps(run[0].cell["metrics"]) for run in runs if run[0].cell}) == 3


DRIVER = """
import os, signal, sys
from pathlib import Path
from bgad.cli.main import main
from bgad.methods import checkpoint, loop
from bgad.training.loop import TrainingLoop
from bgad.data.datasets import registry

out, cells = Path(sys.argv[1]), int(sys.argv[2])  # killed in the middle of the first training after so many cells
registry._installed = lambda _: None
checkpoint.CHECKPOINT_SECONDS = 0.0

def killing(one_step):
    def killed(*arguments):
        if list(out.glob("work/cell-*/checkpoint.safetensors")) and len(list(out.glob("cells/*.json"))) >= cells:
            os.kill(os.getpid(), signal.SIGKILL)
        return one_step(*arguments)

    return killed

TrainingLoop.run_step, loop._step = killing(TrainingLoop.run_step), killing(loop._step)  # ours, and of a baseline
sys.exit(main([*sys.argv[3:], "--out", str(out)]))
"""


def test_killed_and_started_again_it_is_the_same_table(root: Path, tmp_path: Path) -> None:
    out, uninterrupted = tmp_path / "killed", tmp_path / "uninterrupted"
    options = ["benchmark", "--data", "mvtec", "--category", "carpet", "--known", "2", "--root", str(root), *TINY]
    options += ["--seeds", "2", "--set", "train.steps=4", "--set", "train.push_steps=4"]
    for cells in (0, 2):
        command = [sys.executable, "-c", DRIVER, str(out), str(cells), *options]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert cells <= len(list(out.glob("cells/*.json"))) < 4
    assert list(out.glob("work/cell-*"))  # it had begun another one
    assert main([*options, "--out", str(out)]) == 0
    assert main([*options, "--out", str(uninterrupted)]) == 0
    assert timeless(out) == timeless(uninterrupted)
    assert len(results(out)["cells"]) == 4

    def figures(path: Path) -> list[dict[str, str]]:
        rows = list(csv.DictReader(io.StringIO((path / "table.csv").read_text())))
        costs = ("seconds", *Cost.TITLES)
        return [{key: value for key, value in row.items() if not key.endswith(costs)} for row in rows]

    assert figures(out) == figures(uninterrupted)


def test_killed_in_a_baseline_it_continues_to_the_same_table(root: Path, tmp_path: Path) -> None:
    out, uninterrupted = tmp_path / "killed", tmp_path / "uninterrupted"
    options = ["benchmark", "--data", "mvtec", "--category", "carpet", "--known", "2", "--seeds", "1"]
    options += ["--methods", "padim,devnet-frozen", "--preset", "smoke", "--size", "64", "--device", "cpu"]
    options += ["--root", str(root)]
    command = [sys.executable, "-c", DRIVER, str(out), "1", *options]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(out.glob("cells/*-padim-*.json"))) == len(list(out.glob("cells/*.json"))) == 1
    (begun,) = out.glob("work/cell-*")
    steps = len((begun / "train.csv").read_text().splitlines())
    assert main([*options, "--out", str(out)]) == 0
    assert main([*options, "--out", str(uninterrupted)]) == 0
    assert steps > 1  # the header, and a step of the checkpoint
    assert timeless(out) == timeless(uninterrupted)
    assert [cell["method"] for cell in results(out)["cells"]] == ["padim", "devnet-frozen"]
    assert results(out)["cells"][1]["cost"]["fit_mb"] is None  # continued, so that its memory is not known


def test_interrupted_it_says_how_to_go_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one_step = TrainingLoop.run_step

    def stopping(self: TrainingLoop, step: int) -> dict[str, float]:
        if self.config.method == "bgad-plus":
            signal.raise_signal(signal.SIGINT)
        return one_step(self, step)

    options = ["benchmark", "--data", "mvtec", "--category", "carpet", "--known", "2", "--seeds", "1"]
    options += ["--root", str(root), "--out", str(tmp_path), *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "run_step", stopping)
        assert main(options) == 130
    assert f"stopped; 1 of 2 cells are in {tmp_path}: run the same command to continue" in capsys.readouterr().err
    assert [cell["method"] for cell in results(tmp_path)["cells"]] == ["nfad-plus"]
    (missing,) = results(tmp_path)["missing"]
    assert (missing["method"], missing["reason"], missing["failed"]) == ("bgad-plus", "not run yet", False)
    assert main(options) == 0
    assert [cell["method"] for cell in results(tmp_path)["cells"]] == ["nfad-plus", "bgad-plus"]
    assert results(tmp_path)["missing"] == []


def test_a_table_that_is_not_finished_says_so(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two categories, the second is interrupted; a third is not on disk."""
    written: list[list[Outcome]] = []
    write = benchmark.write

    def kept(out: Path, table: PaperTable, outcomes: list[Outcome], configs: dict[str, Config]) -> None:
        written.append(list(outcomes))
        write(out, table, outcomes, configs)

    def stopping(job: Any, *rest: Any, **options: Any) -> Any:
        if "carpet" in job.name:
            raise KeyboardInterrupt
        return new_fit(job, *rest, **options)

    monkeypatch.setattr(benchmark, "write", kept)
    monkeypatch.setattr(benchmark, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(benchmark, "new_fit", stopping)
    matrix = Matrix({"mvtec": ("cable", "carpet", "screw")}, "multi-class", methods("nfad"), known=(2,), seeds=2)
    options = benchmark.BenchmarkOptions(root=root, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        benchmark.run(PaperTable("tiny", (matrix,)), tmp_path, configs={"nfad": tiny("nfad")}, options=options)
    assert [len(outcomes) for outcomes in written] == [6, 6, 6]  # after each cell, and after the stop
    assert len(results(tmp_path)["cells"]) == 2
    missing = results(tmp_path)["missing"]
    assert [(m["category"], m["seed"], m["failed"]) for m in missing] == [
        (name, seed, False) for name in ("carpet", "screw") for seed in (0, 1)
    ]
    assert [m["reason"] for m in missing[:2]] == ["not run yet"] * 2
    assert "not in" in missing[2]["reason"]
    for name in ("table.md", "benchmark.html", "table.csv"):
        assert "Mean of 1 of 3 rows" in (tmp_path / name).read_text()
    assert "1. not run yet" in (tmp_path / "table.md").read_text()


def test_a_failed_cell_is_told_and_the_others_go_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(job: Any, *rest: Any, **options: Any) -> Any:
        if "-bgad_plus-" in job.name:
            raise ModelError("training diverged at step 1: lower train.lr")
        return new_fit(job, *rest, **options)

    options = ["benchmark", "--data", "mvtec", "--category", "cable,carpet", "--known", "2", "--seeds", "1"]
    options += ["--root", str(root), "--out", str(tmp_path), *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "new_fit", failing)
        assert main(options) == 1
    said = capsys.readouterr()
    assert "2 of 4 cells failed" in said.err
    assert "[1] training diverged at step 1" in said.out
    stored = results(tmp_path)
    assert [(c["category"], c["method"]) for c in stored["cells"]] == [("cable", "nfad-plus"), ("carpet", "nfad-plus")]
    assert [(m["category"], m["method"], m["failed"]) for m in stored["missing"]] == [
        ("cable", "bgad-plus", True),
        ("carpet", "bgad-plus", True),
    ]
    assert "training diverged" in (tmp_path / "table.md").read_text()
    assert "training diverged" in (tmp_path / "benchmark.html").read_text()
    assert main(options) == 0  # tried again
    assert len(results(tmp_path)["cells"]) == 4


@pytest.mark.parametrize(
    ("method", "error", "remedy"),
    [
        ("bgad-plus", MemoryError(), "--memory, --size or train.images_per_step"),
        ("padim", RuntimeError("DefaultCPUAllocator: not enough memory: 9 GB"), "--memory or --size"),
        ("devnet-frozen", RuntimeError("can't allocate memory"), "--memory, --size or baseline.images_per_step"),
    ],
)
def test_out_of_memory_is_the_failure_of_one_cell(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, remedy: str
) -> None:
    def greedy(job: Any, *rest: Any, **options: Any) -> Any:
        if job.name.split("-")[-3] == method.replace("-", "_"):
            raise error
        return new_fit(job, *rest, **options)

    monkeypatch.setattr(benchmark, "new_fit", greedy)
    matrix = Matrix({"mvtec": ("carpet",)}, "multi-class", methods(method, "nfad-plus"), known=(2,), seeds=1)
    configs = {"nfad-plus": tiny("nfad-plus"), method: CONFIG if method == "bgad-plus" else preset_for(method, "smoke")}
    options = benchmark.BenchmarkOptions(root=root, device="cpu")
    failed, other = benchmark.run(PaperTable("tiny", (matrix,)), tmp_path, configs=configs, options=options)
    assert (failed.reason, failed.failed) == (f"out of memory: lower {remedy}", True)
    assert other.cell is not None
    error.args = ("a bug",)
    if not isinstance(error, MemoryError):
        with pytest.raises(RuntimeError, match="a bug"):
            benchmark.run(PaperTable("tiny", (matrix,)), tmp_path, configs=configs, options=options)


def test_images_that_exceed_the_memory_fail_all_cells_of_their_category(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(dataset: Any, *rest: Any) -> Any:
        if dataset.name == "cable":
            raise MemoryError
        return validate_images(dataset, *rest)

    monkeypatch.setattr(benchmark, "validate_images", greedy)
    matrix = Matrix({"mvtec": ("cable", "carpet")}, "multi-class", methods("nfad"), known=(2,), seeds=1)
    options = benchmark.BenchmarkOptions(root=root, device="cpu")
    cable, carpet = benchmark.run(
        PaperTable("tiny", (matrix,)), tmp_path, configs={"nfad": tiny("nfad")}, options=options
    )
    assert cable.reason.startswith("out of memory: lower --memory")
    assert carpet.cell is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("loss.beta=2", "column 'wrong': loss.beta must be between 0 and 1"),
        ("loss.bta=0.1", "column 'wrong': unknown key loss.bta in --set; did you mean loss.beta?"),
        ("tile.size=32", "a benchmark does not cut tiles"),
    ],
)
def test_all_recipes_are_checked_before_any_work(root: Path, tmp_path: Path, change: str, said: str) -> None:
    columns = (*methods("bgad-plus"), Column("wrong", "bgad-plus", (change,)))
    table = PaperTable("tiny", (Matrix({"mvtec": ("carpet",)}, "one-class", columns, known=(2,), seeds=1),))
    options = benchmark.BenchmarkOptions(root=root, device="cpu")
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        benchmark.run(table, tmp_path / "out", configs={"bgad-plus": CONFIG}, options=options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_two_processes_do_not_share_a_folder(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["benchmark", "--data", "mvtec", "--category", "carpet", "--root", str(root), "--out", str(tmp_path)]
    with locked(tmp_path, "benchmark"):
        code = subprocess.run(
            [sys.executable, "-c", "import sys, pathlib, bgad.io.files as b\n"
             "try:\n    b.locked(pathlib.Path(sys.argv[1]), 'run').__enter__()\nexcept b.OutputError as e: sys.exit(7)",
             str(tmp_path)], check=False,
        ).returncode  # fmt: skip
        assert code == 7
        assert main([*options, *TINY]) == 2
        assert "is in use by another benchmark: wait for it, or give another --out" in capsys.readouterr().err
    with locked(tmp_path, "benchmark"):  # free again
        pass
