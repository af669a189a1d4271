"""Whether a job survives: 2,000 images are scored on two nodes while workers, nodes and drivers are killed at random.

The command is run again after each kill of the driver. At the end every image must have exactly one row, equal to that
of one machine, and no finished shard may have been written twice (needs bgad[ray]).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import machine
from benchmarks.cluster import DISTINCT, train, write_manifest
from benchmarks.memory import make

KEYS = ("score", "p_value", "is_anomaly", "parts", "reason", "region", "error")
SHARD = 20
PAUSE = (0.5, 4.0)  # seconds between two kills


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes with two CPUs each, on this machine."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    try:
        yield cluster
    finally:
        cluster.shutdown()


class Killer:
    """Kills one of the processes of a job at a time, and counts."""

    def __init__(self, cluster: Any, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.counts = {"worker": 0, "node": 0, "driver": 0}

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill a worker, a node or the driver; a node is replaced by a new one."""
        what = self.chance.choice(tuple(self.counts))
        if what == "driver":
            driver.kill()
        elif what == "node":
            self.cluster.remove_node(next(iter(self.cluster.worker_nodes)), allow_graceful=False)
            self.cluster.add_node(num_cpus=2)
        else:
            found = subprocess.run(["pgrep", "-f", "ray::_Worker"], capture_output=True, text=True, check=False)
            if not (numbers := found.stdout.split()):
                return
            os.kill(int(self.chance.choice(numbers)), signal.SIGKILL)
        self.counts[what] += 1


def run(command: list[str], killer: Killer, out: Path, kills: int) -> int:
    """Run the command again and again until it ends well; returns the number of finished shards written twice."""
    finished: dict[str, int] = {}
    twice = 0
    for _ in range(100):
        driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while driver.poll() is None:
            if sum(killer.counts.values()) < kills and finished:
                time.sleep(killer.chance.uniform(*PAUSE))
                killer.kill(driver)
            else:
                time.sleep(0.2)
            twice += _note_finished(out, finished)
        if driver.returncode == 0:
            return twice + _note_finished(out, finished)
    raise SystemExit("the job did not end within 100 runs")


def _note_finished(out: Path, finished: dict[str, int]) -> int:
    """Note when the rows of each finished shard were written; returns how many have changed since they were noted."""
    changed = 0
    for marker in (out / "done").glob("*.json") if (out / "done").exists() else ():
        name = marker.name.partition("-")[0]
        written = (out / "scores" / f"{name}.parquet").stat().st_mtime_ns
        changed += finished.setdefault(name, written) != written
        finished[name] = written
    return changed


def main() -> None:
    """Run it and compare the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster_kill", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--images", type=int, default=2000, metavar="N")
    parser.add_argument("--kills", type=int, default=12, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name, two_nodes() as cluster:
        work = Path(name)
        data = make(work / "data", DISTINCT, 256)
        model, images = train(data, 256), sorted((data / "good").iterdir())
        manifest, out = write_manifest(work / "images.parquet", images, arguments.images), work / "out"
        command = [sys.executable, "-m", "bgad", "predict", str(model), str(manifest), "--cluster", cluster.address]
        command += ["--out", str(out), "--workers", "3", "--shard-images", str(SHARD)]
        killer = Killer(cluster, random.Random(arguments.seed))
        began = time.monotonic()
        twice = run(command, killer, out, arguments.kills)
        print(f"{time.monotonic() - began:.0f} s; killed: {killer.counts}; finished shards written again: {twice}")
        _compare(model, images, out, arguments.images)


def _compare(model: Path, images: list[Path], out: Path, count: int) -> None:
    from bgad.inference.batch import predict
    from bgad.inference.load import load

    expected: Iterable[Mapping[str, Any]] = predict(load(model, "cpu", engine="onnx", threads=1), images)
    truth = dict(zip(map(str, images), expected, strict=True))
    rows = [row for file in sorted((out / "scores").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    distinct = len({row["id"] for row in rows})
    other = sum(any(row[key] != truth[row["uri"]][key] for key in KEYS) for row in rows)
    print(f"{len(rows)} rows of {count} images, {distinct} ids, {other} rows differ from one machine's")
    if (len(rows), distinct, other) != (count, count, 0):
        raise SystemExit("FAILED")


if __name__ == "__main__":
    main()
