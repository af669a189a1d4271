"""The limits of the house style: lines of a module, lines and parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bgad

PACKAGE = Path(bgad.__file__).parent
MODULE_LINES, FUNCTION_LINES, PARAMETERS = 500, 60, 8


def parameters(arguments: ast.arguments) -> list[str]:
    """The names of all parameters, without self and cls."""
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [one.arg for one in listed if one is not None and one.arg not in ("self", "cls")]


def excesses(source: str) -> Iterator[str]:
    """What is too large in a module, one line each."""
    lines = len(source.splitlines())
    if lines > MODULE_LINES:
        yield f"the module has {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES:
            yield f"{node.name} has {lines} lines"
        count = len(parameters(node.args))
        if count > PARAMETERS:
            yield f"{node.name} has {count} parameters"


def test_modules_and_functions_are_small() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert PACKAGE / "training/pipeline.py" in modules
    found = [f"{path.relative_to(PACKAGE)}: {text}" for path in modules for text in excesses(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("\n" * 500, []),
        ("\n" * 501, ["the module has 501 lines"]),
        ("def f():\n" + "    x = 1\n" * 59, []),
        ("async def f():\n" + "    x = 1\n" * 60, ["f has 61 lines"]),
        ("class A:\n    def f(self, a, b, /, c, d, *e, g, h, **i): ...", []),
        ("class A:\n    def f(self, a, b, /, c, d, *e, g, h, j, **i): ...", ["f has 9 parameters"]),
    ],
)
def test_what_counts(source: str, expected: list[str]) -> None:
    assert list(excesses(source)) == expected
