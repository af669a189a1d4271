"""The options of `bgad benchmark`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bgad.benchmark.paper_tables import TABLES
from bgad.cli.main import main
from tests.benchmark.runs import CLASSES, TINY


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "elvp"], "unknown data set 'elvp' (did you mean elpv?)"),
        (["--data", "elpv"], "ELPV was not found"),
        (["--data", "mvtec", "--methods", "bgad,best"], "unknown method 'best': choose from bgad-plus"),
        (["--data", "mvtec", "--methods", ","], "',' names no method"),
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
        (["--data", "mvtec", "--set", "seed=0"], "--set seed has no effect in this command: use --seeds N"),
        (["--data", "mvtec", "--set", "method = nfad"], "--set method has no effect in this command: use --methods"),
        (["--data", "mvtec", "--preset", "paper"], "nfad-plus cannot be trained by the preset paper: use default"),
        (["--paper", "main", "--preset", "default"], "nfad cannot be trained by the preset default: use paper-fast or"),
        (["--data", "mvtec", "--methods", "bgad-plus,bgad-wo"], "flow.blocks is 8 in the paper's bgad-wo, not 1"),
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
    [("seed = 3", 2), ("method = 'bgad-wo'", 2), ("[loss]\ntau = 0.2", 0)],
)
def test_a_recipe_file_may_not_fix_what_the_cells_do(
    text: str, code: int, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    options = ["--data", "mvtec", "--root", str(root), "--out", str(tmp_path / "out"), "--list"]
    assert main(["benchmark", *options, "--config", str(tmp_path / "recipe.toml")]) == code
    said = " ".join(capsys.readouterr().err.split())
    assert ("has no effect in this command: leave it out, use --" in said) == bool(code)
