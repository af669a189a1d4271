"""The page on reproducing the paper: its commands parse, and it leaves out no table."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bgad.benchmark.paper_tables import TABLES
from bgad.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/how-to/reproduce-paper.md").read_text("utf-8")
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("bgad benchmark ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_lists_its_cells(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *arguments = shlex.split(command)
    assert main([*arguments, "--list", "--root", str(tmp_path)]) == 0
    assert "missing: " in capsys.readouterr().out  # no data below this root


def test_every_table_has_a_command_and_a_row() -> None:
    commands = re.findall(r"--paper (\S+) --preset paper --device cuda --out", "\n".join(COMMANDS))
    rows = re.findall(r"^\| `([a-z]\S+)` \|", PAGE, re.MULTILINE)
    assert commands == rows == list(TABLES)
