"""The command `bgad compare` on a tiny folder."""

from __future__ import annotations

import json
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bgad.benchmark import runner
from bgad.cli.compare import _next_step
from bgad.cli.main import _parser, main
from bgad.data import layouts
from bgad.data.split import make_split
from bgad.training.pipeline import new_fit
from tests.conftest import write_set
from tests.evaluation.report.pages import Page

QUICK = ["--preset", "smoke", "--size", "64", "--device", "cpu", "--folds", "2"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the plain layout: 14 normals and 5 anomalies with masks."""
    folder = tmp_path_factory.mktemp("compare")
    made = write_set(folder / "made", train=14, good=0, bad=5)
    parts = folder / "parts"
    for old, new in (("train/good", "good"), ("test/blot", "bad"), ("ground_truth/blot", "masks")):
        shutil.copytree(made / old, parts / new)
    return parts


def stored(out: Path) -> dict[str, Any]:
    """results.json without what varies from run to run."""
    content: dict[str, Any] = json.loads((out / "results.json").read_bytes())
    for cell in content["cells"]:
        del cell["seconds"], cell["cost"]
    for standing in content["comparison"]["standings"]:
        del standing["cost"]
    content["comparison"].pop("verdict")  # it tells the times, and they decide between equals
    content["comparison"].pop("recommended")
    return content


def test_it_says_which_method_to_use(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--methods", "padim,patchcore", "--out", str(tmp_path)]
    assert main(["compare", str(parts), *QUICK, *options]) == 0
    said = capsys.readouterr()
    found = json.loads((tmp_path / "results.json").read_bytes())["comparison"]
    assert (found["folds"], found["anomalies"], found["normals"]) == (2, 5, 14)
    assert {s["method"] for s in found["standings"]} == {"padim", "patchcore"}
    for line in found["verdict"]:
        assert line in said.out
    assert "ms per image" in said.out
    assert f"next:    bgad train {parts} --method {found['recommended']} --preset smoke --size 64" in said.err
    assert f"page:    {tmp_path / 'compare.html'}" in said.err
    # every image was tested once by each method
    rows = [row for path in (tmp_path / "cells").iterdir() for row in json.loads(path.read_bytes())["images"]]
    assert set(Counter(row["name"] for row in rows).values()) == {2}
    page = (tmp_path / "compare.html").read_text()
    Page(page)  # well formed
    assert "<script" not in page
    assert page.count("<img") == 5 * 3  # of each anomaly the image and two maps
    for name in ("bad/000.png", "bad/004.png"):
        assert f"anomaly map of {name} by patchcore" in page
    assert "Fold" in (tmp_path / "table.md").read_text()


def test_interrupted_it_continues_with_the_same_command(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []

    def counted(job: Any, *rest: Any, **options: Any) -> Any:
        begun.append(job.name)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return new_fit(job, *rest, **options)

    command = ["compare", str(parts), *QUICK, "--methods", "padim,patchcore"]
    monkeypatch.setattr(runner, "new_fit", counted)
    assert main([*command, "--out", str(tmp_path / "stopped")]) == 130
    assert "stopped; 2 of 4 cells are in" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "stopped")]) == 0
    assert len(begun) == 3 + 2  # finished cells did not run again
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    assert stored(tmp_path / "stopped") == stored(tmp_path / "whole")


def test_a_method_that_cannot_run_is_named_and_the_others_go_on(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PaDiM's covariances of an input of 64 pixels take 1.6 MB; PatchCore takes fewer patches instead."""
    options = ["--methods", "padim,patchcore", "--out", str(tmp_path), "--memory", "0.001"]
    assert main(["compare", str(parts), *QUICK, *options]) == 1
    said = capsys.readouterr()
    assert "padim is not compared. fold 1 of 2: PaDiM's covariances take" in " ".join(said.err.split())
    found = json.loads((tmp_path / "results.json").read_bytes())["comparison"]
    assert [s["method"] for s in found["standings"]] == ["patchcore"]
    assert "padim is not compared." in (tmp_path / "compare.html").read_text()


def test_a_folder_without_masks_has_no_pixel_figures(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(parts, bare, ignore=shutil.ignore_patterns("masks"))
    assert main(["compare", str(bare), *QUICK, "--methods", "padim", "--out", str(tmp_path / "out")]) == 0
    assert "PRO" not in (tmp_path / "out/table.md").read_text().split("## Cells")[0]


def test_data_of_the_same_name_does_not_replace_a_comparison(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default folder is named after the data; so are two folders called parts."""
    monkeypatch.chdir(tmp_path)
    for place in ("a", "b"):
        shutil.copytree(parts, tmp_path / place / "parts")
    command = [*QUICK, "--methods", "padim"]
    assert main(["compare", "a/parts", *command]) == 0
    out = tmp_path / "parts-compare"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["compare", "b/parts", *command]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    holds = f"parts-compare holds the comparison on {tmp_path / 'a/parts'}, not on {tmp_path / 'b/parts'}"
    assert line == f"bgad: error: {holds}: give another --out"
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (tmp_path / "a").rename(tmp_path / "moved")
    assert main(["compare", "moved/parts", *command]) == 0
    assert main(["compare", "b/parts", *command]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "padmi"], "unknown method 'padmi': choose from bgad-plus"),
        (["--methods", ","], "',' names no method"),
        (["--folds", "1"], "'1' must be a whole number, 2 or more"),
        (["--set", "loss.tau=0.2"], "loss has no effect in patchcore: its own settings are in `baseline`"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], message: str, parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(parts), "--out", str(tmp_path / "out"), *options]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert message in line
    assert not (tmp_path / "out").exists()


def test_without_known_anomalies_it_says_what_is_needed(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(parts / "good", tmp_path / "parts/good")
    assert main(["compare", str(tmp_path / "parts"), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cross-validation needs 2 or more known anomalies, one to train on and one to test; found 0: add" in line
    assert not (tmp_path / "out").exists()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    out = capsys.readouterr().out
    for words in ("bgad compare parts/", "DIR/good, DIR/bad", "It needs 2 or more known anomalies", "same command"):
        assert words in out


def test_the_next_step_has_the_recipe_that_was_compared(parts: Path, tmp_path: Path) -> None:
    words = ["compare", "parts", "--root", "my data", "--size", "64", "--set", "seed_of=1", "--preset", "smoke"]
    arguments = _parser(words).parse_args(words)
    expected = "--root 'my data' --preset smoke --size 64 --set seed_of=1"
    assert _next_step(arguments, "padim", None) == f"bgad train parts --method padim {expected}"
    words += ["--memory", "0.5"]
    arguments = _parser(words).parse_args(words)
    few = _next_step(arguments, "padim", 7)
    assert few == f"bgad train parts --method padim --known 7 --memory 0.5 {expected}"


@pytest.mark.parametrize(("options", "known"), [([], 6), (["--known", "5"], 5)])
def test_the_next_step_has_the_known_anomalies_that_were_compared(
    tmp_path: Path, options: list[str], known: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the MVTec layout all anomalies are tested, and `train` would draw 10 at most, or half of them."""
    data, out = write_set(tmp_path / "screw", train=14, good=2, bad=11), tmp_path / "out"
    assert main(["compare", str(data), *QUICK, "--methods", "padim", *options, "--out", str(out)]) == 0
    said = capsys.readouterr().err
    (line,) = (line for line in said.splitlines() if line.startswith("next:"))
    assert f"--method padim --known {known} " in line
    assert "(trains on the normals of the training set alone" in said
    arguments = _parser(["train"]).parse_args(shlex.split(line)[2:])
    split = make_split(layouts.load(data), known=arguments.known)
    assert len(split.known) == known
    assert any(s.label for s in split.test)
    if not options:  # as many as the models of the folds had at most
        cells = json.loads((out / "results.json").read_bytes())["cells"]
        assert max(cell["drawn"] for cell in cells) == known


def test_results_of_a_benchmark_are_not_overwritten(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text('{"cells": []}')
    assert main(["compare", str(parts), *QUICK, "--methods", "padim", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    text = f"{tmp_path / 'results.json'} is not of a comparison, and would be overwritten: give another --out"
    assert line == f"bgad: error: {text}"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("key", ["seed", "method"])
def test_keys_that_the_cells_set_are_refused(
    parts: Path, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(f"{key} = 5" if key == "seed" else 'method = "padim"')
    for option in (["--set", f"{key}=5"], ["--config", str(tmp_path / "recipe.toml")]):
        assert main(["compare", str(parts), *QUICK, *option, "--out", str(tmp_path / "out")]) == 2
        assert f"{key}" in capsys.readouterr().err.partition("error:")[2]
    assert not (tmp_path / "out").exists()
