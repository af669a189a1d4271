from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image

from bgad.benchmark import runner as benchmark
from bgad.benchmark.plan import Outcome, plan
from bgad.benchmark.published import TABLES, Matrix, PaperTable, methods
from bgad.cli.main import main
from bgad.config import from_dict
from bgad.data import layouts
from bgad.data.datasets import registry
from bgad.data.protocols import Case, protocol_split
from bgad.errors import ModelError, OutputError
from bgad.evaluation.evaluate import evaluate
from bgad.features.cache import FeatureStore
from bgad.inference.torch_engine import Detector
from bgad.io import files as output_files
from bgad.io.files import locked
from bgad.training import fingerprint as keys_module
from bgad.training import pipeline as learn
from bgad.training.feature_pool import FeaturePool
from bgad.training.fingerprint import flow_key, phase_key, run_key
from bgad.training.fit_model import ModelFit
from bgad.training.loop import TrainingLoop
from bgad.training.training_set import AnomalyFeatures
from tests.evaluation.test_report import Page

SIZE = 48
CLASSES = {"cable": ("bent_wire", "cable_swap", "cut_outer_insulation"), "carpet": ("color", "hole", "thread")}
SETTINGS = {
    "backbone.size": "64",
    "flow.blocks": "1",
    "flow.hidden_ratio": "0.5",
    "train.steps": "2",
    "train.push_steps": "1",
    "train.images_per_step": "4",
    "train.positions_per_image": "[4, 4, 4]",
    "pseudo.count": "2",
}
TINY = ["--device", "cpu", *(part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}"))]
CONFIG = from_dict(
    {
        "backbone": {"size": 64},
        "flow": {"blocks": 1, "hidden_ratio": 0.5},
        "train": {"steps": 2, "push_steps": 1, "images_per_step": 4, "positions_per_image": [4, 4, 4]},
        "pseudo": {"count": 2},
    }
)


def save(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def category(root: Path, classes: tuple[str, ...], seed: int, good: str = "good") -> None:
    rng = np.random.default_rng(seed)
    for folder, count in ((f"train/{good}", 8), (f"test/{good}", 4), *((f"test/{c}", 3) for c in classes)):
        for i in range(count):
            image = rng.integers(90, 140, (SIZE, SIZE, 3), dtype=np.uint8)
            if not folder.endswith(good):
                y, x = rng.integers(4, 36, 2)
                image[y : y + 8, x : x + 8] -= 40
                mask = np.zeros((SIZE, SIZE), np.uint8)
                mask[y : y + 8, x : x + 8] = 255
                save(root / "ground_truth" / folder[5:] / f"{i}_mask.png", mask)
            save(root / folder / f"{i}.png", image)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two categories of MVTec AD, one of BTAD, and BrainMRI, in the layouts that they unpack to."""
    made = tmp_path_factory.mktemp("data")
    for number, (name, classes) in enumerate(CLASSES.items()):
        category(made / "mvtec" / name, classes, number)
    category(made / "btad/01", ("ko",), 7, good="ok")
    rng = np.random.default_rng(3)
    for folder, count in (("no", 10), ("yes", 4)):
        for i in range(count):
            save(made / "brainmri" / folder / f"{i}.png", rng.integers(0, 200, (40, 56), dtype=np.uint8))
    return made


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """ELPV may be there as a package, with thousands of images."""
    monkeypatch.setattr(registry, "_installed", lambda _: None)


def results(out: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)
    return stored


def timeless(out: Path) -> dict[str, Any]:
    stored = results(out)
    for cell in stored["cells"]:
        assert set(cell.pop("seconds")) == {"train", "score", "features"}
    return stored


# --- the paper's tables


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


ROWS = {  # table -> cells with the made data, cells without
    "main": (2 * 3, 13 * 3),
    "supervised": (2, 13),
    "btad": (2, 2 * 2),
    "other": (2, 3 * 2),
    "one-class": (3 * 2, 11 * 2),
    "subsets": (2 + 2 * 2 + 2 * 2, 0),
    "semi-push-pull": (3 * 3, 9 * 3),
    "ablation": (6, 0),
    "pseudo": (3, 0),
    "lambda": (2 * 3, 0),
    "beta-tau": (9, 0),
    "efficiency": (2, 0),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_the_paper_runs(name: str, root: Path, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--paper", name, "--seeds", "1", "--root", str(root), "--out", str(shared), *TINY]
    if TABLES[name].means:
        options += ["--data", "mvtec", "--category", "carpet"]  # many columns: one category will do
    code = main(["benchmark", *options])
    said = capsys.readouterr()
    assert code == 0, said.err
    stored = results(shared)
    assert (len(stored["cells"]), len(stored["missing"])) == ROWS[name]
    assert all("not in" in m["reason"] or "was not found" in m["reason"] for m in stored["missing"])
    assert not any(m["failed"] for m in stored["missing"])
    metrics = {metric for matrix in TABLES[name].matrices for metric in matrix.metrics}
    for cell in stored["cells"]:
        assert {"data", "category", "protocol", "method", "known", "seed", "known_class", "subset"} <= set(cell)
        wanted = metrics if cell["data"] != "brainmri" else {"image_auroc"}
        assert all(0 <= cell["metrics"][metric] <= 1 for metric in wanted)
    page = (shared / "benchmark.html").read_text()
    markdown = (shared / "table.md").read_text()
    for matrix in TABLES[name].matrices:
        for column in matrix.columns:
            assert column.title in said.out
            assert column.title in page
            assert f"| {column.title} |" in markdown or f" {column.title} |" in markdown
    if stored["missing"]:
        assert "missing [1]" in said.out
        assert stored["missing"][0]["reason"] in said.out
    if TABLES[name].means:
        assert "printed (paper)" in said.out
    Page(page)  # well formed
    assert ("<polyline" in page) == (name == "efficiency")
    assert "<script" not in page


def test_the_curve_has_a_point_for_every_part_of_the_training(root: Path, shared: Path) -> None:
    main(["benchmark", "--paper", "efficiency", "--root", str(root), "--out", str(shared), *TINY])
    for cell in results(shared)["cells"]:
        assert [(point["step"], point["phase"]) for point in cell["curve"]] == [(1, 1), (2, 1), (3, 2)]
        assert all(0 <= point["pixel_auroc"] <= 1 for point in cell["curve"])
        # the image level is fitted after the training: an image AUROC on the way would be of the map alone
        assert all(set(point) == {"step", "phase", "pixel_auroc"} for point in cell["curve"])


def test_tables_are_listed_and_cells_without_running(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", "--paper", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(TABLES)
    options = ["--data", "mvtec", "--protocol", "hard", "--root", str(root), "--out", str(tmp_path / "out")]
    assert main(["benchmark", *options, "--seeds", "1", "--methods", "bgad", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "missing" not in line] == [
        f"mvtec-{name}-hard-subset{n}-bgad-known10-seed0" for name in CLASSES for n in (1, 2)
    ]
    assert len(lines) == 4 + 13
    assert list(tmp_path.iterdir()) == []


# --- what is shared


def fast(out: Path, root: Path, *columns: str, protocol: str = "one-class", **options: Any) -> list[Outcome]:
    matrix = Matrix({"mvtec": ("carpet",)}, protocol, methods(*columns), known=(2,), seeds=1)
    settings: dict[str, Any] = {"config": CONFIG, "root": root, "device": "cpu"} | options
    return benchmark.run(PaperTable("tiny", (matrix,)), out, **settings)


def test_features_phase_one_and_pseudo_anomalies_are_computed_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[int] = []
    fill = FeatureStore.fill

    def counted(self: Any, backbone: Any, draw: Any, *rest: Any) -> None:
        pictures.append(self.count)
        fill(self, backbone, draw, *rest)

    steps: list[tuple[str, int]] = []
    one_step = TrainingLoop.run_step

    def stepped(self: TrainingLoop, step: int) -> dict[str, float]:
        steps.append((self.config.loss.method, step))
        return one_step(self, step)

    monkeypatch.setattr(FeatureStore, "fill", counted)
    monkeypatch.setattr(TrainingLoop, "run_step", stepped)
    outcomes = fast(tmp_path, root, "nfad", "bgad", "bgad-full-push")
    assert len(outcomes) == 9
    trained = [o.request.column.method for o in outcomes]
    for _ in range(2):
        trained.remove("nfad")  # its flows know nothing of the classes: once is enough
    # all 21 images once, then the pseudo anomalies of each of the three known classes, for two methods
    assert pictures == [21, 2, 2, 2]
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
        steps.append(self.config.loss.method)
        return one_step(self, step)

    monkeypatch.setattr(TrainingLoop, "run_step", stepped)

    def models(out: Path, *names: str) -> dict[str, dict[str, Any]]:
        matrix = Matrix({"brainmri": ()}, protocol, methods(*names), known=(2,), seeds=1)
        config = replace(CONFIG, train=replace(CONFIG.train, steps=2, push_steps=3))
        options: dict[str, Any] = {"config": config, "root": root, "device": "cpu", "keep_models": True}
        benchmark.run(PaperTable("tiny", (matrix,)), out, **options)
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


def test_a_cell_is_what_train_and_evaluate_give(root: Path, tmp_path: Path) -> None:
    """Features in half precision instead of pixels: the same figures; a shared phase 1: the same weights."""
    config = replace(CONFIG, train=replace(CONFIG.train, steps=12, push_steps=6, images_per_step=6))
    fast(tmp_path / "out", root, "nfad", "bgad", protocol="multi-class", config=config, keep_models=True)
    dataset = layouts.load(root / "mvtec/carpet")
    compared = 0
    for cell in results(tmp_path / "out")["cells"]:
        case = cell["method"]
        (kept,) = (tmp_path / "out/models").glob(f"*-{case}-*")
        alone = tmp_path / case
        learn.train(
            dataset.root,
            alone,
            split=kept / "split.json",
            config=replace(config, loss=replace(config.loss, method=cell["method"])),
            device="cpu",
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
        for a, b in zip(stored["images"], rows, strict=True):
            assert a["score"] == pytest.approx(b["score"], rel=1e-3, abs=2e-3)  # half precision
        compared += 1
    assert compared == 2


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
    nfad = replace(CONFIG, loss=replace(CONFIG.loss, method="nfad"))

    def keys(number: int) -> dict[str, str | None]:
        monkeypatch.setattr(keys_module, "RECIPE_VERSION", number)
        monkeypatch.setattr("bgad.training.feature_pool.RECIPE_VERSION", number)
        options: dict[str, Any] = {"device": device, "folder": tmp_path, "memory_gb": 1.0}
        pool = FeaturePool(dataset.samples[:1], split.hashes, 8, CONFIG.backbone, **options)
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
    (group,) = plan((Matrix({"mvtec": ("carpet",)}, "multi-class", methods("bgad"), known=(2,), seeds=1),), root)
    (request,) = group.requests
    assert group.dataset is not None
    split = protocol_split(group.dataset, "multi-class", Case(), known=2, seed=0)
    device = torch.device("cpu")
    parts = [run_key(CONFIG, split, device), [["a.png", "mask"]], "mvtec", "carpet", False, keys_module.RECIPE_VERSION]
    wanted = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    assert benchmark._cell_key(CONFIG, split, request, [["a.png", "mask"]], device) == wanted


def test_pseudo_anomalies_are_made_again_when_masks_change_places(tmp_path: Path) -> None:
    category(tmp_path / "carpet", CLASSES["carpet"], 1)
    dataset = layouts.load(tmp_path / "carpet")
    split = protocol_split(dataset, "multi-class", Case(), known=2, seed=0)
    options: dict[str, Any] = {"device": torch.device("cpu"), "folder": tmp_path / "work", "memory_gb": 1.0}
    pool = FeaturePool(dataset.samples, split.hashes, 8, CONFIG.backbone, **options)

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
    write_whole = output_files.write_whole
    there: list[int] = []

    def watched(path: Path, content: bytes) -> None:
        if path.parent.name == "cells":
            there.append(len(list(tmp_path.glob("work/cell-*/train.csv"))))
        write_whole(path, content)

    monkeypatch.setattr(output_files, "write_whole", watched)
    fast(tmp_path, root, "bgad", protocol="multi-class")
    assert there == [1]
    assert not list(tmp_path.glob("work/cell-*"))


def test_finished_cells_are_kept_and_a_changed_recipe_is_a_new_cell(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(tmp_path, root, "nfad")
    before = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "ModelFit", lambda *_, **__: pytest.fail("it was run again"))
        patch.setattr(benchmark, "Pool", lambda *_, **__: pytest.fail("features were computed again"))
        fast(tmp_path, root, "nfad")
    assert {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()} == before

    slower = replace(CONFIG, train=replace(CONFIG.train, lr=1e-3))
    fast(tmp_path, root, "nfad", config=slower)
    assert len(list((tmp_path / "cells").iterdir())) == 6
    assert len(results(tmp_path)["cells"]) == 3  # the table is that of the command

    broken = next(iter(before))
    broken.write_text("{")
    fast(tmp_path, root, "nfad")
    assert json.loads(broken.read_text())["cell"]["method"] == "nfad"


def test_changed_masks_and_pictures_are_new_cells(tmp_path: Path) -> None:
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
import sys, time
from bgad.cli.main import main
from bgad.training import checkpoint
from bgad.training.loop import TrainingLoop
from bgad.data import catalog

catalog._installed = lambda _: None
checkpoint.CHECKPOINT_SECONDS = 0.0
one_step = TrainingLoop.run_step

def slow(self, step):
    time.sleep(0.1)
    return one_step(self, step)

TrainingLoop.run_step = slow
sys.exit(main(sys.argv[1:]))
"""


def test_killed_and_started_again_it_is_the_same_table(root: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "killed", tmp_path / "whole"
    options = ["benchmark", "--data", "mvtec", "--category", "carpet", "--known", "2", "--root", str(root), *TINY]
    options += ["--methods", "nfad,bgad", "--seeds", "2", "--set", "train.steps=4", "--set", "train.push_steps=4"]
    for cells in (0, 2):
        command = [sys.executable, "-c", DRIVER, *options, "--out", str(out)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            end = time.monotonic() + 100
            while process.poll() is None and time.monotonic() < end:
                begun = list(out.glob("work/cell-*/checkpoint.safetensors"))
                if begun and len(list(out.glob("cells/*.json"))) >= cells:
                    break
                time.sleep(0.01)
            time.sleep(0.25)  # in the middle of a training
            process.kill()
            _, said = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, said
        assert cells <= len(list(out.glob("cells/*.json"))) < 4
    assert list(out.glob("work/cell-*"))  # it had begun another one
    assert main([*options, "--out", str(out)]) == 0
    assert main([*options, "--out", str(whole)]) == 0
    assert timeless(out) == timeless(whole)
    assert len(results(out)["cells"]) == 4

    def figures(path: Path) -> list[dict[str, str]]:
        rows = list(csv.DictReader(io.StringIO((path / "table.csv").read_text())))
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    assert figures(out) == figures(whole)


def test_interrupted_it_says_how_to_go_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one_step = TrainingLoop.run_step

    def stopping(self: TrainingLoop, step: int) -> dict[str, float]:
        if self.config.loss.method == "bgad":
            signal.raise_signal(signal.SIGINT)
        return one_step(self, step)

    options = ["benchmark", "--data", "mvtec", "--category", "carpet", "--known", "2", "--seeds", "1"]
    options += ["--root", str(root), "--out", str(tmp_path), *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "run_step", stopping)
        assert main(options) == 130
    assert f"stopped; 1 of 2 cells are in {tmp_path}: go on with the same command" in capsys.readouterr().err
    assert [cell["method"] for cell in results(tmp_path)["cells"]] == ["nfad"]
    (missing,) = results(tmp_path)["missing"]
    assert (missing["method"], missing["reason"], missing["failed"]) == ("bgad", "not run yet", False)
    assert main(options) == 0
    assert [cell["method"] for cell in results(tmp_path)["cells"]] == ["nfad", "bgad"]
    assert results(tmp_path)["missing"] == []


def test_a_table_that_is_not_finished_says_so(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two categories, the second is interrupted; a third is not on disk."""
    written: list[list[Outcome]] = []
    write = benchmark.write

    def kept(out: Path, table: PaperTable, outcomes: list[Outcome]) -> None:
        written.append(list(outcomes))
        write(out, table, outcomes)

    def stopping(job: Any, *rest: Any, **options: Any) -> Any:
        if "carpet" in job.name:
            raise KeyboardInterrupt
        return ModelFit(job, *rest, **options)

    monkeypatch.setattr(benchmark, "write", kept)
    monkeypatch.setattr(benchmark, "ModelFit", stopping)
    matrix = Matrix({"mvtec": ("cable", "carpet", "screw")}, "multi-class", methods("nfad"), known=(2,), seeds=2)
    with pytest.raises(KeyboardInterrupt):
        benchmark.run(PaperTable("tiny", (matrix,)), tmp_path, config=CONFIG, root=root, device="cpu")
    assert [len(outcomes) for outcomes in written] == [6, 6]  # after the first category, and after the stop
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
        if "-bgad-" in job.name:
            raise ModelError("training diverged at step 1: lower train.lr")
        return ModelFit(job, *rest, **options)

    options = ["benchmark", "--data", "mvtec", "--category", "cable,carpet", "--known", "2", "--seeds", "1"]
    options += ["--root", str(root), "--out", str(tmp_path), *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "ModelFit", failing)
        assert main(options) == 1
    said = capsys.readouterr()
    assert "2 of 4 cells failed" in said.err
    assert "[1] training diverged at step 1" in said.out
    stored = results(tmp_path)
    assert [(c["category"], c["method"]) for c in stored["cells"]] == [("cable", "nfad"), ("carpet", "nfad")]
    assert [(m["category"], m["method"], m["failed"]) for m in stored["missing"]] == [
        ("cable", "bgad", True),
        ("carpet", "bgad", True),
    ]
    assert "training diverged" in (tmp_path / "table.md").read_text()
    assert "training diverged" in (tmp_path / "benchmark.html").read_text()
    assert main(options) == 0  # tried again
    assert len(results(tmp_path)["cells"]) == 4


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


def test_without_flock_a_file_is_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path, "benchmark"):
        assert (tmp_path / output_files.LOCK).read_text() == str(os.getpid())
        with pytest.raises(OutputError, match=r"in use by another benchmark.*delete"), locked(tmp_path, "benchmark"):
            pass
    assert not (tmp_path / output_files.LOCK).exists()


# --- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "elvp"], "unknown data set 'elvp' (did you mean elpv?)"),
        (["--data", "elpv"], "ELPV was not found"),
        (["--data", "mvtec", "--methods", "bgad,best"], "unknown method 'best': choose from nfad"),
        (["--data", "mvtec", "--protocol", "easy"], "unknown protocol 'easy': choose from multi-class"),
        (["--data", "mvtec", "--known", "ten"], "--known takes whole numbers"),
        (["--data", "mvtec", "--category", "screw"], "not in"),
        (["--data", "mvtec", "--category", "scrw"], "has no category 'scrw'; did you mean screw?"),
        (["--data", "mvtec,btad", "--category", "screw"], "--category needs one data set"),
        (["--data", "btad", "--category", "01", "--protocol", "hard"], "cannot serve the protocol hard"),
        (["--paper", "mian"], "unknown table 'mian': choose from main"),
        (["--paper", "main", "--known", "5"], "--paper main fixes --known"),
        (["--data", "mvtec", "--protocol", "hard,unseen"], "--protocol takes one protocol, not 'hard,unseen'"),
        (["--paper", "main,btad"], "--paper takes one table, not 'main,btad': run the command once for each"),
        (["--data", "mvtec", "--set", "seed=0"], "--set seed has no effect in this benchmark: use --seeds N"),
        (["--data", "mvtec", "--set", "loss.method = nfad"], "--set loss.method has no effect in this benchmark"),
        (["--data", "mvtec", "--set", "loss={method='nfad'}"], "loss.method = nfad of the recipe has no effect"),
        (
            ["--paper", "lambda", "--set", "loss.push_pull_weight=2"],
            "--set loss.push_pull_weight has no effect in this",
        ),
        ([], "give --data NAME"),
    ],
)
def test_errors_in_one_line(
    options: list[str], message: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", *options, "--root", str(root), "--out", str(tmp_path), *TINY]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert message in errors[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [("seed = 3", 2), ("[loss]\nmethod = 'bgad-wo'", 2), ("seed = 0\n[loss]\nmethod = 'bgad'\ntau = 0.2", 0)],
)
def test_a_recipe_file_may_not_fix_what_the_cells_do(
    text: str, code: int, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    options = ["--data", "mvtec", "--root", str(root), "--out", str(tmp_path / "out"), "--list"]
    assert main(["benchmark", *options, "--config", str(tmp_path / "recipe.toml")]) == code
    assert ("of the recipe has no effect in a benchmark: leave it out, use --" in capsys.readouterr().err) == bool(code)


def test_small_classes_run_where_a_paper_has_their_row(tmp_path: Path) -> None:
    classes = ("color", "hole", "smudge")
    category(tmp_path / "mvtec/carpet", classes, 1)
    for i in range(3, 6):
        save(tmp_path / f"mvtec/carpet/test/hole/{i}.png", np.full((SIZE, SIZE, 3), i, np.uint8))

    def asked(known: int) -> tuple[list[str], dict[str, str]]:
        matrix = Matrix({"mvtec": ("carpet",)}, "one-class", methods("nfad"), known=(known,), seeds=1)
        (group,) = plan((matrix,), tmp_path)
        missing = {o.request.case.known_class: o.reason for o in group.impossible}
        return [r.case.known_class for r in group.requests], missing

    few = "{} has 3 images, fewer than {} known anomalies"
    assert asked(3) == (list(classes), {})
    assert asked(5) == (["hole"], {name: few.format(name, 5) for name in ("color", "smudge")})  # 5: nowhere printed
    assert asked(10) == (list(classes), {})  # no class has so many
    for i in range(6, 12):
        save(tmp_path / f"mvtec/carpet/test/hole/{i}.png", np.full((SIZE, SIZE, 3), i, np.uint8))
    assert asked(10) == (["color", "hole"], {"smudge": few.format("smudge", 10)})


def test_notes_on_the_data_stand_below_every_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (name, classes) in enumerate(CLASSES.items()):
        category(tmp_path / "data/mvtec" / name, classes, number)
    (tmp_path / "data/mvtec/carpet/ground_truth/hole/0_mask.png").unlink()
    (tmp_path / "data/mvtec/carpet/test/color/1.png").write_bytes(b"cut off")
    options = ["--data", "mvtec", "--category", "cable,carpet", "--protocol", "one-class", "--methods", "nfad"]
    options += ["--known", "3", "--seeds", "2", "--root", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    for _ in range(2):  # computed, then read from the files of the cells
        assert main(["benchmark", *options, *TINY]) == 0
        out = capsys.readouterr().out
        page, markdown = ((tmp_path / "out" / name).read_text() for name in ("benchmark.html", "table.md"))
        for text in (out, page, markdown):
            for note in (
                "carpet: incomplete: 12 of 308 normal and 9 of 89 anomalous images",
                "carpet: anomaly without a mask: test/hole/0.png",
                "carpet: 1 broken images skipped: test/color/1.png",
                "fewer known anomalies than asked for: carpet color: 2",
            ):
                assert text.count(note) == 1, note
            assert "have no role" not in text
            assert "instead of" not in text


def test_pixel_figures_that_cannot_be_given_are_explained(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "brainmri", "--protocol", "general", "--known", "1,20", "--methods", "bgad", "--seeds", "2"]
    assert main(["benchmark", *options, "--root", str(root), "--out", str(tmp_path), *TINY]) == 0
    out = capsys.readouterr().out
    assert "no pixel figures for brainmri: no masks of the test images" in out
    assert "fewer known anomalies than asked for: brainmri: 2" in out
    assert "bgad (1 known)" in out
    assert "AHL (CVPR 2024, 1 known)" in out  # there are printed figures for 1, not for 20
    assert "0.760" in out
    cells = results(tmp_path)["cells"]
    assert [(cell["known"], cell["drawn"]) for cell in cells] == [(1, 1), (20, 2)] * 2
    assert {cell["metrics"]["pixel_auroc"] for cell in cells} == {None}


def test_a_folder_is_a_data_set_too(root: Path, tmp_path: Path) -> None:
    place = str(root / "mvtec")
    options = ["--seeds", "1", "--methods", "nfad", "--known", "1", "--out", str(tmp_path), *TINY]
    assert main(["benchmark", "--data", place, *options]) == 0
    assert [(c["data"], c["category"]) for c in results(tmp_path)["cells"]] == [("mvtec", n) for n in CLASSES]
    assert main(["benchmark", "--data", f"{place}/carpet,{root / 'brainmri'}", *options]) == 0
    assert [c["category"] for c in results(tmp_path)["cells"]] == ["carpet", "brainmri"]
    category(tmp_path / "other/carpet", CLASSES["carpet"], 1)
    assert main(["benchmark", "--data", f"{place}/carpet,{tmp_path / 'other/carpet'}", *options]) == 2
    assert main(["benchmark", "--data", place, "--category", "carpet,rug", *options]) == 0
    assert [m["reason"] for m in results(tmp_path)["missing"]] == [f"{place}: no category rug; found cable, carpet"]


# --- the plan


def test_plans_have_one_request_for_each_cell(root: Path) -> None:
    matrix = Matrix({"mvtec": ("carpet",)}, "multi-class", methods("nfad", "bgad"), known=(5, 1), seeds=3)
    unsupervised = replace(matrix, protocol="unsupervised")
    (group,) = plan((matrix, unsupervised), root)
    wanted = {(r.table, r.column.method, r.known, r.seed) for r in group.requests}
    assert wanted == {(0, m, k, s) for m in ("nfad", "bgad") for k in (5, 1) for s in range(3)} | {
        (1, m, 0, s) for m in ("nfad", "bgad") for s in range(3)
    }
    assert len(group.requests) == len(wanted)
    assert [r.seed for r in group.requests] == sorted(r.seed for r in group.requests)  # a seed shares phase 1
