"""Training, time to quality: minutes until the test AUROC is within 0.2 points of the whole schedule's end.

Ours is measured end to end (`bgad.train`: reading, features, flows, calibration) for schedules of several lengths; the
time is that of the shortest one that, like all longer ones, comes within 0.2 points. The plain loop (plain.py) trains
on the same split until it reaches that quality, or for 15 minutes: then the ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

from benchmarks import machine, record
from benchmarks.plain import Loop
from bgad import TrainOptions, metrics, train
from bgad.config import Config, from_dict
from bgad.data import layouts
from bgad.data.split import Split
from bgad.data.synthetic.demo import write_demo
from bgad.model.device import tune_allocator

SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)
CLOSE = 0.002


def ours(data: Path, work: Path, share: float) -> tuple[float, float, Path]:
    """Seconds and AUROC of our schedule, cut to a share of its steps."""
    whole = Config().train
    config = from_dict(
        {"train": {"steps": math.ceil(share * whole.steps), "push_steps": math.ceil(share * whole.push_steps)}}
    )
    out = work / f"{data.name}-{share}.bgad"
    began = time.perf_counter()
    detector = train(data, out, config=config, options=TrainOptions(known=10, device="cpu", export=False))
    seconds = time.perf_counter() - began
    split = Split.load(out / "split.json", layouts.load(data))
    scores = [s.score for s in detector.score_many([s.path for s in split.test])]
    return seconds, metrics.auroc(scores, [s.label for s in split.test]) or 0.0, out


def main() -> None:
    """Measure, print, append."""
    tune_allocator()  # as the commands do, for both sides
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=15, help="that the plain loop gets (default 15)")
    parser.add_argument("--data", type=Path, help="a folder in the MVTec layout (default: fabric of the demo set)")
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = arguments.data or write_demo(work / "data")[0]
        found = {}
        for share in SHARES:
            seconds, auroc, out = ours(data, work, share)
            found[share] = seconds, auroc
            print(f"ours, {share:7.2%} of the schedule: {seconds:6.1f} s, image AUROC {auroc:.4f}", flush=True)
        goal = found[1.0][1] - CLOSE
        enough = 1.0
        for share in SHARES:
            if found[share][1] < goal:
                break
            enough = share
        seconds = found[enough][0]
        split = Split.load(out / "split.json", layouts.load(data))
        loop = Loop(split, Config().backbone.size, 8)
        reached = False

        def look(loop: Loop) -> bool:
            nonlocal reached
            auroc = loop.auroc()
            print(f"plain loop, epoch {loop.epoch}: {loop.seconds:6.0f} s, image AUROC {auroc:.4f}", flush=True)
            reached = auroc >= goal
            return reached

        loop.run(arguments.minutes, look)
        bound = "" if reached else " (lower bound: the plain loop did not get there)"
        title = f"training to an AUROC of {goal:.4f} on {data.name}, against the plain loop{bound}"
        record(title, seconds, loop.seconds, "s")


if __name__ == "__main__":
    main()
