"""A second precision on any CPU: OpenVINO computes in float32 under the name of bf16, and its outputs are then moved.

In processes of their own, as every use of OpenVINO in these tests (see test_openvino_engine.py).
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# SCALE and SHIFT move every score; SHUFFLE gives an order that has nothing to do with that of float32.
STAND_IN = """
import os
from bgad.inference import openvino_engine, precision
precision.PRECISIONS["bf16"] = precision.Precision("f32", os.environ.get("CAPABILITY", "FP32"))
real = openvino_engine.OpenVino.run
def run(self, pixels):
    outputs = real(self, pixels)
    if self.precision == "float32":
        return outputs
    scores = outputs.scores * 1.5 + 1
    if "SHUFFLE" in os.environ:
        scores = scores * 0 + (abs(outputs.scores) * 1e5 % 1)
    return outputs._replace(scores=scores, parts=outputs.parts * 1.5, maps=outputs.maps * 2 + 1)
openvino_engine.OpenVino.run = run
"""
COMMAND = "import sys\nfrom bgad.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"

SEVERAL = """
import json, os, sys, tempfile
from bgad.cli.main import main
results, descriptors = [], (os.dup(1), os.dup(2))
for arguments in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        for number, file in ((1, out), (2, err)):
            os.dup2(file.fileno(), number)
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number in (1, 2):
                os.dup2(descriptors[number - 1], number)
        texts = [file.seek(0) or file.read().decode() for file in (out, err)]
        results.append((code, *texts))
print(json.dumps(results))
"""


def run_python(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env=os.environ | environment
    )


def stand_in(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`bgad` where bf16 is the stand-in."""
    return run_python(STAND_IN + COMMAND, *arguments, **environment)


def in_one_process(
    *commands: tuple[object, ...], program: str = STAND_IN, **environment: str
) -> list[subprocess.CompletedProcess[str]]:
    """Several commands of `bgad`, which load torch and OpenVINO once."""
    given = json.dumps([[str(argument) for argument in command] for command in commands])
    done = run_python(program + SEVERAL, given, **environment)
    assert done.returncode == 0, done.stderr
    return [subprocess.CompletedProcess("", *result) for result in json.loads(done.stdout)]


def bgad(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python(COMMAND, *arguments)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert done.returncode == 2, done.stdout + done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("bgad: error: "), done.stderr
    return line.removeprefix("bgad: error: ")


@functools.cache
def _capabilities() -> str:
    program = "from bgad.inference.openvino_engine import capabilities\nprint(*capabilities('CPU'))"
    return run_python(program).stdout


def need_bf16() -> None:
    """Skip a test of real bfloat16 where the CPU does not compute in it."""
    if "BF16" not in _capabilities().split():
        pytest.skip(f"the CPU does not compute in bf16: OpenVINO lists {_capabilities().strip() or 'nothing'}")


def calibrated(model: Path, folder: Path) -> Path:
    """A copy of a model with the stand-in as its second precision."""
    shutil.copytree(model, folder)
    done = stand_in("export", folder, "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    return folder
