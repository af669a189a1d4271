"""Trace one image through `bgad train` and `bgad predict`: `python tools/trace_journey.py`.

The tool writes a tiny data set, trains on it and scores one image, and records every function of the package that is
called, in all threads. It prints for each journey

- the modules in the order in which they are first entered, by package. A star marks those that handle the image: a
  function of theirs takes or returns its sample, path, pixels, features, likelihoods, map or score, alone or in a list.
  The others check options, keep checkpoints and logs, or pass on the run, the split or the card as a whole;
- the number of modules entered. Left out, and listed in brackets, are the modules that orchestrate (the training
  pipeline) and the package `cli`, which parses arguments and prints and which no image goes through. The number with
  them stands beside it;
- the rooms: the packages that the orchestrating module (the training pipeline, the predict command) hands the image to,
  one after the other. A room may call rooms below it. A room that is entered again is named.

Not listed are `types`, `errors`, `io` and the thread pool of `model.device`, which serve everybody, nor code that runs
while a module is imported or a graph is traced on a dummy image. With `--check` the exit code is 1 when more modules
are entered than the limit allows, or when a room is entered again.
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
ORCHESTRATORS = {
    "train": ("bgad.training.pipeline", "bgad.training.fit_model", "bgad.cli.train"),
    "predict": ("bgad.cli.predict",),
}
EVERYWHERE = ("bgad.types", "bgad.errors", "bgad.io", "bgad.model.device", "bgad._version")
IMAGE_TYPES = ("Tensor", "Sample", "Scores", "Features", "FeatureStore", "AnomalyFeatures")
SETS = ("Dataset", "Split", "TrainingSet")  # the images as a whole, which a room may take over
SIZE = 64


def counts(module: str) -> bool:
    """Whether a module is one of the package's that the journeys count."""
    return module.startswith("bgad.") and not any(f"{module}.".startswith(f"{name}.") for name in EVERYWHERE)


def room(module: str) -> str:
    """The package below `bgad` that a module belongs to."""
    return module.split(".")[1]


def is_generated(frame: FrameType) -> bool:
    """Whether a frame runs the constructor of a dataclass, which only stores what it is given."""
    return frame.f_code.co_filename == "<string>"


def is_set_up(frame: FrameType | None) -> bool:
    """Whether a frame runs because a module is being imported or a graph is being traced."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == "bgad.export.onnx" or (frame.f_code.co_name == "<module>" and module.startswith("bgad")):
            return True
        frame = frame.f_back
    return False


def is_image_data(value: object) -> bool:
    """Whether a value is an image or computed from one: a sample, an array, a tensor, features, scores, or a list."""
    if isinstance(value, (list, tuple)) and value:
        return is_image_data(value[0])
    if isinstance(value, Path):
        return value.suffix == ".png"
    if isinstance(value, np.ndarray):
        return bool(value.dtype != np.int64)  # those are positions
    return type(value).__name__ in IMAGE_TYPES


def exchanged(frame: FrameType, result: object) -> list[object]:
    """The arguments of a finished call, and its result; of a tuple, its items."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [frame.f_locals.get(name) for name in names if name != "self"]
    return [*given, *(result if isinstance(result, tuple) else [result])]


@dataclass
class Journey:
    """What was entered, in order."""

    orchestrators: tuple[str, ...]
    modules: list[str] = field(default_factory=list)
    handling: set[str] = field(default_factory=set)
    rooms: list[str] = field(default_factory=list)

    def watch(self, frame: FrameType, event: str, result: Any) -> None:
        """Profile function: note a call of the package's code."""
        if event not in ("call", "return"):
            return
        module = frame.f_globals.get("__name__", "")
        if not counts(module) or is_generated(frame) or is_set_up(frame):
            return
        if event == "call":
            if module not in self.modules:
                self.modules.append(module)
            return
        values = exchanged(frame, result)
        handles = any(is_image_data(value) for value in values)
        if module in self.orchestrators:
            return
        if handles:
            self.handling.add(module)
        caller, here = frame.f_back, room(module)
        if caller is None or caller.f_globals.get("__name__") not in self.orchestrators:
            return
        if here in map(room, self.orchestrators) or self.rooms[-1:] == [here]:
            return
        if handles or any(type(value).__name__ in SETS for value in values):
            self.rooms.append(here)

    def is_left_out(self, module: str) -> bool:
        """Whether a module does not count: it orchestrates, or belongs to the command line."""
        return module in self.orchestrators or room(module) == "cli"

    def entered(self) -> int:
        """Number of modules that were entered and count."""
        return sum(not self.is_left_out(module) for module in self.modules)

    def returns(self) -> list[str]:
        """Rooms that were entered again after they had been left."""
        return sorted({name for i, name in enumerate(self.rooms) if name in self.rooms[:i]})


def run(arguments: list[str], orchestrators: tuple[str, ...]) -> Journey:
    """Run a command in this process and trace it."""
    from bgad.cli.main import main

    journey = Journey(orchestrators)
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
    entered, everything = f"{journey.entered()} modules entered (at most {LIMITS[name]})", len(journey.modules)
    print(
        f"bgad {name}: {entered}, {len(journey.handling)} of them handle the image; {everything} with those in brackets"
    )
    previous = ""
    for module in journey.modules:
        here = room(module)
        shown = f"({module})" if journey.is_left_out(module) else module
        print(f"  {here if here != previous else '':<12} {'*' if module in journey.handling else ' '} {shown}")
        previous = here
    print(f"  rooms: {' -> '.join(journey.rooms)}")
    print(f"  entered again: {', '.join(journey.returns()) or 'none'}\n")


def main() -> int:
    """Trace both journeys."""
    parser = argparse.ArgumentParser(description="Trace one image through training and scoring.")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when a journey is longer than its limit or returns to a room"
    )
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
            too_long |= journey.entered() > LIMITS[name] or bool(journey.returns())
    return int(arguments.check and too_long)


if __name__ == "__main__":
    sys.exit(main())
