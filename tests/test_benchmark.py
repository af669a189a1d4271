from __future__ import annotations

import csv
import io
import json
import os
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
from PIL import Image
from test_report import Page

from bgad import benchmark, benchmark_plan, benchmark_table, learn
from bgad.benchmark_plan import Outcome, Request, locked, plan
from bgad.cli import main
from bgad.config import from_dict
from bgad.data import catalog, folders
from bgad.data.protocols import Case
from bgad.detector import Detector
from bgad.errors import ModelError, OutputError
from bgad.evaluate import evaluate
from bgad.features import FeatureStore
from bgad.paper import TABLES, Column, Matrix, PaperTable, methods
from bgad.trainer import Trainer

SIZE = 48
CLASSES = {"cable": ("bent_wire", "cable_swap", "cut_outer_insulation"), "carpet": ("color", "hole", "thread")}
SETTINGS = {
    "backbone.size": "64",
    "flow.blocks": "1",
    "flow.width": "0.5",
    "train.steps": "2",
    "train.push_steps": "1",
    "train.images": "4",
    "train.positions": "[4, 4, 4]",
    "pseudo.count": "2",
}
TINY = ["--device", "cpu", *(part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}"))]
CONFIG = from_dict(
    {
        "backbone": {"size": 64},
        "flow": {"blocks": 1, "width": 0.5},
        "train": {"steps": 2, "push_steps": 1, "images": 4, "positions": [4, 4, 4]},
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
    monkeypatch.setattr(catalog, "_installed", lambda _: None)


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
    one_step = Trainer._one_step

    def stepped(self: Trainer, step: int) -> dict[str, float]:
        steps.append((self.config.loss.method, step))
        return one_step(self, step)

    monkeypatch.setattr(FeatureStore, "fill", counted)
    monkeypatch.setattr(Trainer, "_one_step", stepped)
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
    one_step = Trainer._one_step

    def stepped(self: Trainer, step: int) -> dict[str, float]:
        steps.append(self.config.loss.method)
        return one_step(self, step)

    monkeypatch.setattr(Trainer, "_one_step", stepped)

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


def test_a_cell_is_what_train_and_evaluate_give(root: Path, tmp_path: Path) -> None:
    """Features in half precision instead of pixels: the same figures; a shared phase 1: the same weights."""
    config = replace(CONFIG, train=replace(CONFIG.train, steps=12, push_steps=6, images=6))
    fast(tmp_path / "out", root, "nfad", "bgad", protocol="multi-class", config=config, keep_models=True)
    dataset = folders.load(root / "mvtec/carpet")
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
            assert a["score"] == pytest.approx(b["score"], abs=2e-3)
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


# --- going on


def test_finished_cells_are_kept_and_a_changed_recipe_is_a_new_cell(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(tmp_path, root, "nfad")
    before = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "fit", lambda *_, **__: pytest.fail("it was run again"))
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
from bgad import trainer
from bgad.cli import main
from bgad.data import catalog

catalog._installed = lambda _: None
trainer.CHECKPOINT_SECONDS = 0.0
one_step = trainer.Trainer._one_step

def slow(self, step):
    time.sleep(0.1)
    return one_step(self, step)

trainer.Trainer._one_step = slow
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
    one_step = Trainer._one_step

    def stopping(self: Trainer, step: int) -> dict[str, float]:
        if self.config.loss.method == "bgad":
            signal.raise_signal(signal.SIGINT)
        return one_step(self, step)

    options = ["benchmark", "--data", "mvtec", "--category", "carpet", "--known", "2", "--seeds", "1"]
    options += ["--root", str(root), "--out", str(tmp_path), *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_one_step", stopping)
        assert main(options) == 130
    assert f"stopped; 1 of 2 cells are in {tmp_path}: go on with the same command" in capsys.readouterr().err
    assert [cell["method"] for cell in results(tmp_path)["cells"]] == ["nfad"]
    assert main(options) == 0
    assert [cell["method"] for cell in results(tmp_path)["cells"]] == ["nfad", "bgad"]


def test_a_failed_cell_is_told_and_the_others_go_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = learn.fit

    def failing(job: Any, *rest: Any, **options: Any) -> Any:
        if "-bgad-" in job.name:
            raise ModelError("training diverged at step 1: lower train.lr")
        return fit(job, *rest, **options)

    options = ["benchmark", "--data", "mvtec", "--category", "cable,carpet", "--known", "2", "--seeds", "1"]
    options += ["--root", str(root), "--out", str(tmp_path), *TINY]
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "fit", failing)
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
    with locked(tmp_path):
        code = subprocess.run(
            [sys.executable, "-c", "import sys, pathlib, bgad.benchmark_plan as b\n"
             "try:\n    b.locked(pathlib.Path(sys.argv[1])).__enter__()\nexcept b.OutputError as e: sys.exit(7)",
             str(tmp_path)], check=False,
        ).returncode  # fmt: skip
        assert code == 7
        assert main([*options, *TINY]) == 2
        assert "is in use by another benchmark: wait for it, or give another --out" in capsys.readouterr().err
    with locked(tmp_path):  # free again
        pass


def test_without_flock_a_file_is_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path):
        assert (tmp_path / benchmark_plan.LOCK).read_text() == str(os.getpid())
        with pytest.raises(OutputError, match=r"in use by another benchmark.*delete"), locked(tmp_path):
            pass
    assert not (tmp_path / benchmark_plan.LOCK).exists()


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


# --- the table


def outcome(category: str, column: Column, seed: int, image: float | None, known_class: str = "") -> Outcome:
    request = Request(0, "mvtec", category, "one-class", Case(known_class), column, 10, seed)
    cell = request.facts() | {
        "metrics": {"image_auroc": image, "pixel_auroc": None},
        "seconds": {"train": 10.0 + seed, "score": 2.0},
        "drawn": 10,
    }
    return Outcome(request, cell)


def test_means_and_spreads_by_hand() -> None:
    nfad, bgad = methods("nfad", "bgad")
    table = PaperTable("x", (Matrix({"mvtec": ()}, "one-class", (nfad, bgad), seeds=2, metrics=("image_auroc",)),))
    outcomes = [
        *(outcome("screw", nfad, seed, value, "thread_top") for seed, value in ((0, 0.8), (1, 0.9))),
        *(outcome("screw", nfad, seed, value, "thread_side") for seed, value in ((0, 0.6), (1, 0.9))),
        *(outcome("screw", bgad, seed, 0.95, "thread_top") for seed in (0, 1)),
        *(outcome("screw", bgad, seed, 0.97, "thread_side") for seed in (0, 1)),
        outcome("carpet", nfad, 0, 0.5, "color"),
        Outcome(Request(0, "mvtec", "carpet", "one-class", Case("color"), bgad, 10, 0), reason="lost | found"),
    ]
    (grid,) = benchmark_table.grids(table, outcomes)
    rows = {row.names: row for row in grid.rows}
    first = rows["screw", "thread_top"]
    stat = first.entries[0].stats["image_auroc"]
    assert [stat.mean, stat.spread] == pytest.approx([0.85, 0.1 / np.sqrt(2)])
    assert first.seconds == pytest.approx(12.5)
    # the mean row: 0.7 with seed 0, 0.9 with seed 1
    stat = rows["screw", "Mean"].entries[0].stats["image_auroc"]
    assert [stat.mean, stat.spread] == pytest.approx([0.8, 0.2 / np.sqrt(2)])
    assert rows["screw", "Mean"].entries[1].text(grid.metrics) == "0.960±0.000"
    printed = dict(zip(grid.printed, first.entries[2:], strict=True))
    assert printed["NFAD", "paper"].text(grid.metrics) == "0.878"
    printed = dict(zip(grid.printed, rows["screw", "Mean"].entries[2:], strict=True))
    assert printed["BGAD", "paper"].text(grid.metrics) == "0.947"
    # carpet lacks a method, so the mean is over screw alone, ours and theirs
    overall = rows["Mean of 1 of 2", ""]
    assert overall.entries[0].text(grid.metrics) == "0.800±0.141"
    assert overall.entries[2].stats["image_auroc"].mean == pytest.approx((0.878 + 0.927) / 2)
    assert rows["carpet", "color"].entries[1].text(grid.metrics) == "missing [1]"
    assert grid.notes[0] == "lost | found"
    assert "lost \\| found" in benchmark_table.markdown(table, [grid], outcomes)
    lines = list(csv.DictReader(io.StringIO(benchmark_table.csv_text([grid]))))
    assert lines[0]["nfad: image_auroc"] == "0.850000"
    assert lines[0]["nfad: image_auroc std"] == "0.070711"
    assert lines[0]["BGAD (paper): image_auroc"] == "0.943000"


def test_printed_figures_stand_with_their_number_of_known_anomalies() -> None:
    (bgad,) = methods("bgad")
    matrix = Matrix({"elpv": ()}, "general", (bgad,), known=(10, 1), metrics=("image_auroc",))
    outcomes = [Outcome(Request(0, "elpv", "elpv", "general", Case(), bgad, n, 0), reason="lost") for n in (10, 1)]
    outcomes[0] = replace(outcomes[0], cell=outcome("elpv", bgad, 0, 0.9).cell, reason="")
    (grid,) = benchmark_table.grids(PaperTable("x", (matrix,)), outcomes)
    (line,) = grid.lines()
    shown = dict(zip(grid.heads(), line, strict=True))
    assert shown["bgad (10 known)"] == "0.900"
    assert shown["bgad (1 known)"] == "missing [1]"
    assert [shown[f"AHL (CVPR 2024, {n} known)"] for n in (10, 1)] == ["0.850", "0.723"]
    assert [shown[f"DRA (CVPR 2022, {n} known)"] for n in (10, 1)] == ["0.843", "0.676"]


def test_a_seed_that_failed_is_marked() -> None:
    (bgad,) = methods("bgad")
    matrix = Matrix({"mvtec": ()}, "one-class", (bgad,), seeds=2, metrics=("image_auroc",))
    second = Outcome(Request(0, "mvtec", "screw", "one-class", Case("thread_top"), bgad, 10, 1), reason="diverged")
    outcomes = [outcome("screw", bgad, 0, 0.9, "thread_top"), replace(second, failed=True)]
    (grid,) = benchmark_table.grids(PaperTable("x", (matrix,)), outcomes)
    assert grid.lines()[0][2] == "0.900 [1]"


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
