"""Speed, measured: each script prints what it found and appends a JSON line to results.jsonl beside it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from bgad.io.cpus import usable_cpus

RESULTS = Path(__file__).with_name("results.jsonl")

ANOMALIB = "anomalib==2.7.*"


def anomalib_python() -> Path:
    """The interpreter of anomalib's own environment, which is made on the first call."""
    place = Path(__file__).with_name(".venv-anomalib")
    python = place / "bin/python"
    if not python.exists() or subprocess.run([python, "-c", "import anomalib"], capture_output=True).returncode:
        print("installing anomalib (some minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", ANOMALIB], check=True)
    return python


def machine() -> str:
    """What it ran on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{usable_cpus()} cores, {model}, {platform.system()}, Python {platform.python_version()}"


def record(name: str, ours: float, other: float, unit: str) -> None:
    """Print and keep one comparison; ratio = other / ours: above 1, ours is better."""
    print(f"{name}: ours {ours:.3g} {unit}, other {other:.3g} {unit}: {ours / other:.2f} times the other's")
    row = {"name": name, "ours": ours, "other": other, "ratio": other / ours, "unit": unit}
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read_stored(path: Path, key: str) -> dict[str, Any] | None:
    """Read a result that was stored under a key; None where there is none, or one of another key."""
    try:
        stored: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) and stored.get("key") == key else None
