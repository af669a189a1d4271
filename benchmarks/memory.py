"""Peak memory of training and scoring, ours and the plain loop's, and how time and memory grow.

Every measurement is a process of its own. Images are random; what they show does not matter here.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks import machine, record

STEPS = 60  # of each phase: memory is the same as for all of them


def make(folder: Path, normals: int, size: int, bad: int = 10) -> Path:
    """A set in the plain layout, with masks."""
    rng = np.random.default_rng(0)
    for kind, count in (("good", normals), ("bad", bad)):
        (folder / kind).mkdir(parents=True)
        for i in range(count):
            small = rng.integers(0, 256, (size // 8, size // 8, 3), np.uint8)
            Image.fromarray(small).resize((size, size)).save(folder / kind / f"{i}.png")
    (folder / "masks").mkdir()
    for i in range(bad):
        mask = np.zeros((size, size), np.uint8)
        mask[size // 4 : size // 3, size // 4 : size // 3] = 255
        Image.fromarray(mask).save(folder / "masks" / f"{i}.png")
    return folder


def child(what: str, data: Path, size: int) -> tuple[float, float]:
    """Seconds and peak GiB of one job in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--child", what, "--data", str(data), "--size", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return float(seconds), float(peak)


def job(what: str, data: Path, size: int) -> None:
    """What a child does; prints seconds and peak GiB."""
    from bgad.config import from_dict
    from bgad.model.device import tune_allocator

    tune_allocator()  # as the commands do

    config = from_dict({"backbone": {"size": size}, "train": {"steps": STEPS, "push_steps": STEPS}})
    model = data.parent / f"{data.name}-{size}.bgad"
    if what == "train":
        from bgad import TrainOptions, train

        began = time.perf_counter()
        train(data, model, config=config, options=TrainOptions(device="cpu", overwrite=True))
    elif what == "plain":
        from benchmarks.plain import Loop
        from bgad.data import layouts
        from bgad.data.split import holdout_size, make_split

        dataset = layouts.load(data)
        normals = sum(s.label == 0 for s in dataset.samples)
        loop = Loop(make_split(dataset, holdout=holdout_size(normals)), size, 8)
        began = time.perf_counter()
        loop.run(0.5, lambda _: True)
    else:
        from bgad import load

        scorer = load(model, engine="onnx")
        began = time.perf_counter()
        for _ in scorer.score_stream(sorted((data / "good").iterdir())):
            pass
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps([seconds, peak]))


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--child")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--size", type=int)
    arguments = parser.parse_args()
    if arguments.child:
        job(arguments.child, arguments.data, arguments.size)
        return
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        large = make(work / "large", 300, 512)
        for size in (256, 512):
            ours, other = child("train", large, size), child("plain", large, size)
            title = f"peak memory, training on 300 pictures of 512 x 512, input {size} x {size}"
            record(f"{title}, against the plain loop", ours[1], other[1], "GiB")
        print("how it grows (training of 120 steps; scoring with ONNX Runtime):")
        for count in (100, 200, 400):
            grow(make(work / f"n{count}", count, 256), count, 256)
        for size in (256, 384, 512):
            grow(make(work / f"s{size}", 100, size), 100, size)


def grow(data: Path, count: int, size: int) -> None:
    """Print one line of growth."""
    trained, plain, scored = child("train", data, size), child("plain", data, size), child("score", data, size)
    title = f"{count} pictures, input {size} x {size}"
    record(f"peak memory, training, {title}, against the plain loop", trained[1], plain[1], "GiB")
    print(
        f"{count:4d} pictures of {size} x {size}: training {trained[0]:5.1f} s, {trained[1]:.2f} GiB; "
        f"scoring {1e3 * scored[0] / count:5.1f} ms a picture, {scored[1]:.2f} GiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
