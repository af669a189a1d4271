"""Scoring an archive on a local Ray cluster: overhead, scaling, memory and resuming (needs bgad[ray]).

Every measurement is a process of its own. Images are random; what they show does not matter here. The steady state is
what lies between the first and the last finished shard; what lies before the first is told as start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import machine, record
from benchmarks.memory import make

SHARD = 200
DISTINCT = 100  # images of an archive that repeats them
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Steady:
    """A run in its steady state."""

    start_seconds: float  # until the first shard was finished
    rate: float  # images a second after it
    peak_mb: dict[str, float]  # highest resident memory of the driver and of a worker


def train(data: Path, size: int) -> Path:
    """Train a model that needs little time; its size decides the speed of scoring, not its quality."""
    from bgad import TrainOptions
    from bgad import train as train_model
    from bgad.config import from_dict

    config = from_dict({"backbone": {"size": size}, "train": {"steps": 20, "push_steps": 10}})
    model = data.parent / f"input-{size}.bgad"
    train_model(data, model, config=config, options=TrainOptions(device="cpu"))
    return model


def write_manifest(path: Path, images: list[Path], rows: int) -> Path:
    """List the images again and again, each time under other ids."""
    uris = [str(images[number % len(images)]) for number in range(rows)]
    pq.write_table(pa.table({"id": [f"{number:09d}" for number in range(rows)], "uri": uris}), path)
    return path


def plain_rate(model: Path, images: list[Path], rows: int) -> float:
    """Return the images a second of one process with one thread and no cluster, after the first hundred."""
    command = [sys.executable, "-m", "benchmarks.cluster", "--plain", str(model), "--images", str(rows)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, input=json.dumps([str(path) for path in images])
    )
    return float(done.stdout.splitlines()[-1])


def plain(model: Path, rows: int) -> None:
    """Score as `bgad predict` does; prints the rate."""
    from bgad import load

    images = json.loads(sys.stdin.read())
    scorer = load(model, engine="onnx", threads=1)
    stream = scorer.score_stream(images[number % len(images)] for number in range(rows + DISTINCT))
    for _ in range(DISTINCT):
        next(stream)
    began = time.perf_counter()
    for _ in stream:
        pass
    print(rows / (time.perf_counter() - began))


def on_cluster(model: Path, manifest: Path, out: Path, workers: int) -> Steady:
    """Run the command on a cluster of this machine and watch its shards and its memory."""
    command = [sys.executable, "-m", "bgad", "predict", str(model), str(manifest), "--cluster", "local"]
    command += ["--out", str(out), "--workers", str(workers), "--shard-images", str(SHARD)]
    began = time.time()
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peaks = {"driver": 0.0, "worker": 0.0}
    while driver.poll() is None:
        for name, process in watched(driver.pid):
            peaks[name] = max(peaks[name], resident_mb(process))
        time.sleep(POLL_SECONDS)
    if driver.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {driver.returncode}")
    times = sorted(marker.stat().st_mtime for marker in (out / "done").iterdir())
    rows = SHARD * (len(times) - 1)
    return Steady(times[0] - began, rows / (times[-1] - times[0]), peaks)


def watched(driver: int) -> Iterator[tuple[str, int]]:
    """Yield the driver and the workers, with their process numbers."""
    yield "driver", driver
    found = subprocess.run(["pgrep", "-f", "ray::_Worker"], capture_output=True, text=True, check=False)
    yield from (("worker", int(number)) for number in found.stdout.split())


def resident_mb(process: int) -> float:
    """Return the peak resident memory of a process; 0 where it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


def measure_speed(work: Path, rows: int) -> None:
    """Compare one worker with a plain process, and two workers with one."""
    data = make(work / "data", DISTINCT, 256)
    model, images = train(data, 256), sorted((data / "good").iterdir())
    manifest = write_manifest(work / "speed.parquet", images, rows)
    alone = plain_rate(model, images, rows)
    one = on_cluster(model, manifest, work / "one", 1)
    two = on_cluster(model, manifest, work / "two", 2)
    record(f"cluster, {rows} images, one worker against one process", 1000 / one.rate, 1000 / alone, "ms an image")
    record(f"cluster, {rows} images, two workers against one", 1000 / two.rate, 1000 / one.rate, "ms an image")
    print(f"start-up until the first {SHARD} images: {one.start_seconds:.1f} s, two workers {two.start_seconds:.1f} s")


def measure_memory(work: Path, counts: list[int]) -> None:
    """Compare the memory of short and of long archives."""
    data = make(work / "small", DISTINCT, 64)
    model, images = train(data, 64), sorted((data / "good").iterdir())
    peaks = []
    for count in counts:
        manifest = write_manifest(work / f"{count}.parquet", images, count)
        run = on_cluster(model, manifest, work / f"memory-{count}", 2)
        peaks.append(run.peak_mb)
        shown = ", ".join(f"{name} {peak:.0f} MB" for name, peak in run.peak_mb.items())
        print(f"{count} rows: {shown}; {run.rate:.0f} images a second", flush=True)
    for name in peaks[0]:
        title = f"cluster, peak memory of the {name}, {counts[-1]} rows against {counts[0]}"
        record(title, peaks[-1][name], peaks[0][name], "MB")


def measure_resume(work: Path, rows: int) -> None:
    """Time how long the command takes to find that all shards but the last are finished."""
    from bgad.cluster.archive import Options, prepare
    from bgad.inference.load import load

    model, images = work / "input-64.bgad", sorted((work / "small" / "good").iterdir())
    manifest, out = write_manifest(work / "resume.parquet", images, rows), work / "resume"
    scorer = load(model, "cpu", engine="onnx", threads=1)
    began = time.perf_counter()
    job = prepare(scorer, str(manifest), str(out), Options())
    begun = time.perf_counter() - began
    (out / "done").mkdir()
    for shard in range(job.shards):
        (out / "done" / f"{shard:08d}-0.json").write_text("{}")
    began = time.perf_counter()
    assert not prepare(scorer, str(manifest), str(out), Options()).finished().missing
    print(
        f"{rows} rows: {begun:.1f} s to begin the job, {time.perf_counter() - began:.2f} s to find all of them finished"
    )
    command = [sys.executable, "-m", "bgad", "predict", str(model), str(manifest), "--cluster", "local"]
    began = time.perf_counter()
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    print(f"the whole command with nothing left to score: {time.perf_counter() - began:.1f} s")


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000, metavar="N", help="of the speed measurement")
    parser.add_argument("--memory-rows", default="1000,100000", metavar="N,M", help="archives whose memory is compared")
    parser.add_argument("--finished", type=int, default=1_000_000, metavar="N", help="rows that resuming skips")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plain:
        plain(arguments.plain, arguments.images)
        return
    print(machine(), f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        measure_speed(work, arguments.images)
        measure_memory(work, [int(count) for count in arguments.memory_rows.split(",")])
        measure_resume(work, arguments.finished)


if __name__ == "__main__":
    main()
