"""A second precision on any CPU: OpenVINO computes in float32 under the name of bf16, and its outputs are then moved.

In processes of their own, as every use of OpenVINO in these tests (see test_openvino_engine.py).
"""

from __future__ import annotations

import functools
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


def run_python(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env=os.environ | environment
    )


def stand_in(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`bgad` where bf16 is the stand-in."""
    return run_python(STAND_IN + COMMAND, *arguments, **environment)


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
