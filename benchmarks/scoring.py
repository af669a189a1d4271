"""Scoring, images a second: our graph against the bare backbone on the same engine and against the plain way.

The plain way is what one would write first: timm's backbone in eager torch and FrEIA's flows, the position joined to
every feature; once with the paper's flows (8 blocks, every map as it comes) and once with the very flows of our model.
Same backbone and input; batch 1, many images of batch 1, and batch 16; the sides take turns. One image at a time is
what a camera waits for. Many are scored as the runtime scores a folder or a stream: side by side, a core each; the
bare backbone too. The plain way takes them one after the other with all cores on each, and, to know what that alone
brings, side by side as well. Weights do not matter for speed, so the model is hardly trained. With --anomalib,
PatchCore and PaDiM of anomalib on the same backbone, in an environment of its own (made on the first run), are measured
right after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from benchmarks import anomalib_python, machine, record
from benchmarks.plain import PlainModel, papers
from bgad import TrainOptions, train
from bgad.config import from_dict
from bgad.data.synthetic.demo import write_demo
from bgad.features import cache
from bgad.inference.onnx_engine import PIXELS, Runtime, session_options
from bgad.inference.torch_engine import Detector
from bgad.io.cpus import usable_cpus
from bgad.model.device import tune_allocator
from bgad.types import FloatArray

ROUNDS = 6
MANY = 16  # images of a stream, each a batch of its own
IN_A_ROW = 5
SHORT = {"train": {"steps": 20, "push_steps": 10}, "pseudo": {"count": 8}}

NAMES = {
    "backbone": "the bare backbone",
    "plain": "the plain way with the paper's flows",
    "plain, our flows": "the plain way with our flows",
    "plain, our flows, side by side": "the plain way with our flows, side by side",
}

Side = Callable[[FloatArray], object]


def model(folder: Path) -> Detector:
    """Hardly trained, on the demo set."""
    data = write_demo(folder / "data")[0]
    return train(data, folder / "model.bgad", config=from_dict(SHORT), options=TrainOptions(device="cpu"))


def bare(detector: Detector, threads: int) -> Side:
    """The backbone alone on ONNX Runtime, with the options of our own session."""
    graph = cache.graph(detector.model.backbone, detector.card.config.backbone.size)
    session = onnxruntime.InferenceSession(graph, session_options(threads), providers=["CPUExecutionProvider"])
    return lambda pixels: session.run(None, {PIXELS: pixels})


def eager(plain: PlainModel) -> Side:
    """The plain way."""
    plain.eval()

    def run(pixels: FloatArray) -> object:
        with torch.inference_mode():
            return plain(torch.from_numpy(pixels))

    return run


def in_turn(side: Side) -> Side:
    """Each image is a batch of its own, one after the other."""
    return lambda pixels: [side(pixels[i : i + 1]) for i in range(len(pixels))]


def side_by_side(side: Side, start: Callable[[], None] = lambda: None) -> Side:
    """Each image is a batch of its own, one on each core."""
    pool = ThreadPoolExecutor(usable_cpus(), initializer=start)
    return lambda pixels: list(pool.map(side, (pixels[i : i + 1] for i in range(len(pixels)))))


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
    tune_allocator()  # as the commands do, for both sides
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--anomalib", action="store_true", help="also anomalib, in an environment of its own")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    print(machine(), f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        detector = model(folder)
        ours = Runtime.load(folder / "model.bgad", "cpu")
        size = detector.card.config.backbone.size
        sides: dict[str, Side] = {
            "ours": ours.run,
            "backbone": bare(detector, usable_cpus()),
            "plain": eager(PlainModel(papers(size))),
            "plain, our flows": eager(PlainModel(detector.model.config)),
        }
        streams: dict[str, Side] = {
            "ours": side_by_side(ours.run, ours.start_thread),
            "backbone": side_by_side(bare(detector, 1)),
            "plain": in_turn(sides["plain"]),
            "plain, our flows": in_turn(sides["plain, our flows"]),
            "plain, our flows, side by side": side_by_side(sides["plain, our flows"], lambda: torch.set_num_threads(1)),
        }
        fewer = max(2, arguments.rounds // 3)
        for what, batch, rounds, some in (
            ("batch 1", 1, arguments.rounds, sides),
            ("many of batch 1", MANY, fewer, streams),
            ("batch 16", 16, fewer, sides),
        ):
            found = seconds(some, batch, size, rounds)
            rates = {side: 1 / value for side, value in found.items()}
            print(f"{what}: " + ", ".join(f"{side} {rate:.1f} images/s" for side, rate in rates.items()))
            for side, value in found.items():
                if side != "ours":
                    record(f"scoring, {what}, against {NAMES[side]}", found["ours"], value, "s/image")
        if arguments.anomalib:
            for method, values in anomalib(folder, size).items():
                for text, other in values.items():
                    again = seconds({"ours": ours.run}, int(text), size, 5)["ours"]
                    record(f"scoring, batch {text}, against anomalib's {method}", again, other, "s/image")


def anomalib(folder: Path, size: int) -> dict[str, dict[str, float]]:
    """Seconds an image of anomalib's models, by its own environment."""
    data = next(path for path in sorted((folder / "data").iterdir()) if path.is_dir())
    script = Path(__file__).with_name("_anomalib.py")
    done = subprocess.run([anomalib_python(), script, data / "train/good", str(size)], capture_output=True, text=True)
    if done.returncode:
        print(f"anomalib was not measured: {done.stderr.strip().splitlines()[-1]}")
        return {}
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
