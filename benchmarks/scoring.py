"""Scoring, images a second: our graph against the bare backbone on the same engine and against the plain way.

The plain way is what one would write first: timm's backbone in eager torch and FrEIA's flows, the position joined to
every feature; once with the paper's flows (8 blocks, every map as it comes) and once with the very flows of our model.
Same backbone and input; batch 1 and 16; the sides take turns. Weights do not matter for speed, so the model is hardly
trained. With --anomalib, PatchCore and PaDiM of anomalib on the same backbone, in an
environment of its own (made on the first run), are measured right after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from benchmarks import machine, record
from benchmarks.plain import PlainModel, papers
from bgad import extract, train
from bgad.config import from_dict
from bgad.data.demo import write_demo
from bgad.detector import Detector
from bgad.runtime import PIXELS, Runtime, session_options
from bgad.scorer import cores
from bgad.types import FloatArray

ROUNDS = 6
IN_A_ROW = 5
SHORT = {"train": {"steps": 20, "push_steps": 10}, "pseudo": {"count": 8}}

Side = Callable[[FloatArray], object]


def model(folder: Path) -> Detector:
    """Hardly trained, on the demo set."""
    data = write_demo(folder / "data")[0]
    return train(data, folder / "model.bgad", config=from_dict(SHORT), device="cpu")


def bare(detector: Detector) -> Side:
    """The backbone alone on ONNX Runtime, with the options of our own session."""
    graph = extract.graph(detector.model.backbone, detector.card.size)
    session = onnxruntime.InferenceSession(graph, session_options(cores()), providers=["CPUExecutionProvider"])
    return lambda pixels: session.run(None, {PIXELS: pixels})


def eager(plain: PlainModel) -> Side:
    """The plain way."""
    plain.eval()

    def run(pixels: FloatArray) -> object:
        with torch.inference_mode():
            return plain(torch.from_numpy(pixels))

    return run


def seconds(sides: dict[str, Side], batch: int, size: int, rounds: int) -> dict[str, float]:
    """Median of each, per image. They take turns of some runs in a row: the waiting threads of one engine would slow
    down the first run of the next."""
    pixels = np.random.default_rng(0).random((batch, size, size, 3), np.float32)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            for again in range(IN_A_ROW):
                began = time.perf_counter()
                side(pixels)
                if turn and again:
                    times[name].append((time.perf_counter() - began) / batch)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--anomalib", action="store_true", help="also anomalib, in an environment of its own")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    print(machine(), f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        detector = model(folder)
        ours = Runtime.load(folder / "model.bgad", "cpu")
        size = detector.card.size
        sides: dict[str, Side] = {
            "ours": ours.run,
            "backbone": bare(detector),
            "plain": eager(PlainModel(papers(size))),
            "plain, our flows": eager(PlainModel(detector.model.config)),
        }
        for batch in (1, 16):
            found = seconds(sides, batch, size, arguments.rounds if batch == 1 else max(2, arguments.rounds // 3))
            rates = {side: 1 / value for side, value in found.items()}
            print(f"batch {batch}: " + ", ".join(f"{side} {rate:.1f} images/s" for side, rate in rates.items()))
            for side, flows in (("plain", "the paper's flows"), ("plain, our flows", "our flows")):
                title = f"scoring, batch {batch}, against the plain way with {flows}"
                record(title, found["ours"], found[side], "s/image")
            record(f"scoring, batch {batch}, against the bare backbone", found["ours"], found["backbone"], "s/image")
        if arguments.anomalib:
            for method, values in anomalib(folder, size).items():
                for text, other in values.items():
                    again = seconds({"ours": ours.run}, int(text), size, 5)["ours"]
                    record(f"scoring, batch {text}, against anomalib's {method}", again, other, "s/image")


def anomalib(folder: Path, size: int) -> dict[str, dict[str, float]]:
    """Seconds an image of anomalib's models, by its own environment."""
    place = Path(__file__).with_name(".venv-anomalib")
    python = place / "bin/python"
    if not python.exists() or subprocess.run([python, "-c", "import anomalib"], capture_output=True).returncode:
        print("installing anomalib (some minutes)")
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "anomalib"], check=True)
    data = next(path for path in sorted((folder / "data").iterdir()) if path.is_dir())
    script = Path(__file__).with_name("_anomalib.py")
    done = subprocess.run([python, script, data / "train/good", str(size)], capture_output=True, text=True)
    if done.returncode:
        print(f"anomalib was not measured: {done.stderr.strip().splitlines()[-1]}")
        return {}
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
