"""Trace one image through `bgad train` and `bgad predict`: `python tools/trace_journey.py`.

The tool writes a tiny data set, trains on it and scores one image, and records every function of the package that is
called, in all threads. It prints for each journey

- the modules in the order in which they are first entered, by package;
- the rooms: the packages that the orchestrating module (the training pipeline, the predict command) enters, one after
  the other. A room may call rooms below it; that is its own business and does not show here. A room that is entered
  again after another one was entered is marked.

`types`, `errors` and `io` serve everybody and do not count, nor does code that runs while a module is imported. With
`--check` the exit code is 1 when a journey is longer than its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

LIMITS = {"train": 25, "predict": 10}
ORCHESTRATORS = {"train": "bgad.training.pipeline", "predict": "bgad.cli.predict"}
EVERYWHERE = ("bgad.types", "bgad.errors", "bgad.io", "bgad._version", "bgad")
SIZE = 64


def counts(module: str) -> bool:
    """Whether a module is one of the package's that the journeys count."""
    shared = any(module == name or module.startswith(f"{name}.") for name in EVERYWHERE if name != "bgad")
    return module.startswith("bgad.") and not shared


def room(module: str) -> str:
    """The package below `bgad` that a module belongs to."""
    return module.split(".")[1]


def importing(frame: FrameType | None) -> bool:
    """Whether a frame runs because a module of the package is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith("bgad"):
            return True
        frame = frame.f_back
    return False


@dataclass
class Journey:
    """What was entered, in order."""

    orchestrator: str
    modules: list[str] = field(default_factory=list)
    rooms: list[str] = field(default_factory=list)

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        """Profile function: note a call of the package's code."""
        if event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if not counts(module) or importing(frame):
            return
        if module not in self.modules:
            self.modules.append(module)
        caller = frame.f_back
        if caller is not None and caller.f_globals.get("__name__") == self.orchestrator and module != self.orchestrator:
            here = room(module)
            if here != room(self.orchestrator) and self.rooms[-1:] != [here]:
                self.rooms.append(here)

    def returns(self) -> list[str]:
        """Rooms that were entered again after they had been left."""
        return sorted({name for i, name in enumerate(self.rooms) if name in self.rooms[:i]})


def run(arguments: list[str], orchestrator: str) -> Journey:
    """Run a command in this process and trace it."""
    from bgad.cli.main import main

    journey = Journey(orchestrator)
    threading.setprofile(journey.watch)
    sys.setprofile(journey.watch)
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            code = main(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code:
        raise SystemExit(f"bgad {arguments[0]} failed with exit code {code}")
    return journey


def write_images(root: Path) -> None:
    """A tiny set in the MVTec layout: grey noise, and a dark square as the defect."""
    rng = np.random.default_rng(0)
    for folder, count in (("train/good", 16), ("test/good", 2), ("test/dark", 4), ("ground_truth/dark", 4)):
        (root / folder).mkdir(parents=True)
        for i in range(count):
            image = rng.integers(100, 140, (SIZE, SIZE, 3), np.uint8)
            if folder == "test/dark":
                image[20:40, 20:40] = 20
            if folder.startswith("ground_truth"):
                mask = np.zeros((SIZE, SIZE), np.uint8)
                mask[20:40, 20:40] = 255
                Image.fromarray(mask).save(root / folder / f"{i}_mask.png")
            else:
                Image.fromarray(image).save(root / folder / f"{i}.png")


def show(name: str, journey: Journey) -> None:
    """Print a journey."""
    print(f"bgad {name}: {len(journey.modules)} modules (at most {LIMITS[name]})")
    previous = ""
    for module in journey.modules:
        here = room(module)
        print(f"  {here if here != previous else '':<12} {module}")
        previous = here
    print(f"  rooms: {' -> '.join(journey.rooms)}")
    print(f"  entered again: {', '.join(journey.returns()) or 'none'}\n")


def main() -> int:
    """Trace both journeys."""
    parser = argparse.ArgumentParser(description="Trace one image through training and scoring.")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a journey is longer than its limit")
    arguments = parser.parse_args()
    too_long = False
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BGAD_STATE"] = f"{folder}/state"
        data, model = Path(folder) / "plate", Path(folder) / "plate.bgad"
        write_images(data)
        recipe = ["backbone.size=64", "train.steps=4", "train.push_steps=2", "pseudo.count=2", "flow.blocks=2"]
        given = [word for key in recipe for word in ("--set", key)]
        commands = {
            "train": ["train", str(data), "--out", str(model), "--known", "2", "--device", "cpu", *given],
            "predict": ["predict", str(model), str(data / "test/dark/0.png"), "--threads", "1"],
        }
        for name, command in commands.items():
            journey = run(command, ORCHESTRATORS[name])
            show(name, journey)
            too_long |= len(journey.modules) > LIMITS[name]
    return int(arguments.check and too_long)


if __name__ == "__main__":
    sys.exit(main())
