"""The service under load: 16 clients that keep their connections, against `bgad predict` on the same files.

Both run on this machine, one after the other in turns, and the clients take their share of its cores as well. What is
compared: images a second (the service's should be at least 0.8 of predict's), and the time that 99 of 100 requests stay
below, as a multiple of the time of one request when nobody else asks (it should be under 10): once where that one has
all cores, and once on one core, which is what each of many requests gets.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import machine, record
from benchmarks.scoring import SHORT
from bgad import TrainOptions, train
from bgad.config import from_dict
from bgad.data.synthetic.demo import write_demo

CLIENTS, SECONDS, ROUNDS = 16, 12.0, 3
ALONE = 40  # requests of one client
RATIO, MULTIPLE = 0.8, 10.0  # the bars


def prepare(folder: Path) -> tuple[Path, list[Path]]:
    """A model that is hardly trained, and images that are all different."""
    data = write_demo(folder / "data")[0]
    models = folder / "models"
    train(data, models / "washer.bgad", config=from_dict(SHORT), options=TrainOptions(device="cpu"))
    rng = np.random.default_rng(0)
    images = folder / "pictures"
    images.mkdir()
    for source in sorted(data.rglob("*.png")):
        if "ground_truth" in source.parts:
            continue
        image = np.asarray(Image.open(source).convert("RGB")).astype(np.int16)
        for turn in range(3):
            noisy = np.clip(image + rng.integers(-3, 4, image.shape, np.int16), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(images / f"{len(list(images.iterdir())):04d}-{turn}.png")
    return models, sorted(images.iterdir())


class Service:
    """`bgad serve` in a process of its own."""

    def __init__(self, models: Path, cores: set[int] | None = None) -> None:
        """On these cores alone, where they are given."""
        command = [sys.executable, "-m", "bgad", "serve", "--models", str(models), "--port", "0"]
        if cores is not None:
            start = f"import os; os.sched_setaffinity(0, {cores}); os.execv({sys.executable!r}, {command!r})"
            command = [sys.executable, "-c", start]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = ""
        for line in self.process.stderr:
            said += line
            if found := re.search(r"open http://localhost:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise RuntimeError(said)
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz"):
                    return
            except OSError:
                time.sleep(0.1)

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(30)


class Connection:
    """One client on a connection that stays; as light as can be, because it takes from the cores that are measured."""

    def __init__(self, port: int) -> None:
        self.wire = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def score(self, content: bytes, name: str) -> float:
        """Seconds that it took."""
        began = time.perf_counter()
        lines = (
            f"POST /v1/models/washer/score?filename={name} HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {len(content)}",
        )
        self.wire.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + content)
        answer = b""
        while not (found := re.match(rb"HTTP/1.1 (\d+).*?content-length: (\d+).*?\r\n\r\n", answer, re.S | re.I)):
            answer += self._more()
        while len(answer) < found.end() + int(found[2]):
            answer += self._more()
        if found[1] != b"200":
            raise RuntimeError(f"{answer[:200]!r}")
        return time.perf_counter() - began

    def _more(self) -> bytes:
        some = self.wire.recv(65536)
        if not some:
            raise RuntimeError("the service closed the connection")
        return some


def load(port: int, paths: list[str], seconds: float, queue: Any) -> None:
    """16 clients for some seconds, in a process of their own; how many were scored, how long it took, all latencies."""
    contents = [(Path(path).name, Path(path).read_bytes()) for path in paths]
    stop = time.perf_counter() + seconds
    taken = iter(range(10**9))
    lock = threading.Lock()
    latencies: list[float] = []

    def client(_: int) -> None:
        connection = Connection(port)
        while time.perf_counter() < stop:
            with lock:
                number = next(taken)
            name, content = contents[number % len(contents)]
            mark = time.time_ns().to_bytes(8, "big") + number.to_bytes(4, "big")  # bytes after the end: a new image
            latencies.append(connection.score(content + mark, name))

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    queue.put((len(latencies), time.perf_counter() - began, latencies))


def loaded(port: int, images: list[Path], seconds: float) -> tuple[float, list[float]]:
    """Images a second, and the latencies."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=load, args=(port, [str(p) for p in images], seconds, queue))
    process.start()
    count, took, latencies = queue.get(timeout=seconds + 120)
    process.join()
    return count / took, latencies


def alone(port: int, images: list[Path]) -> float:
    """Median seconds of a request when nobody else asks."""
    connection = Connection(port)
    mark = time.time_ns().to_bytes(8, "big")
    times = [connection.score(images[i % len(images)].read_bytes() + mark, "one") for i in range(ALONE)]
    return statistics.median(times[5:])


def predicted(model: Path, images: list[Path]) -> float:
    """Images a second of `bgad predict`, its start left out: from the first row to the last."""
    command = [sys.executable, "-m", "bgad", "predict", str(model), *map(str, images)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        times = [time.perf_counter() for line in process.stdout if json.loads(line)["error"] is None]
    return (len(times) - 1) / (times[-1] - times[0])


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of load in each round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models, images = prepare(folder)
        few = folder / "few"
        shutil.copytree(models, few)
        service, narrow = Service(models), Service(few, {min(os.sched_getaffinity(0))})
        try:
            loaded(service.port, images, 3)  # warm
            alone(narrow.port, images)
            rates, plain, singles, narrows, latencies = [], [], [], [], []
            for _ in range(arguments.rounds):
                plain.append(predicted(models / "washer.bgad", images))
                singles.append(alone(service.port, images))
                narrows.append(alone(narrow.port, images))
                rate, some = loaded(service.port, images, arguments.seconds)
                rates.append(rate)
                latencies += some
        finally:
            service.end()
            narrow.end()
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    single, one_core, ours, other = (statistics.median(values) for values in (singles, narrows, rates, plain))
    print(f"service {ours:.1f} images/s with {CLIENTS} clients, predict {other:.1f}: {ours / other:.2f} (bar: {RATIO})")
    print(f"latency p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms")
    for kind, seconds in (("all cores", single), ("one core", one_core)):
        print(f"alone with {kind} {1e3 * seconds:.0f} ms: p99 is {p99 / seconds:.1f} times that (bar: {MULTIPLE:g})")
    record(f"service, {CLIENTS} clients, against predict", 1 / ours, 1 / other, "s/image")
    record(f"service, p99 of {CLIENTS} clients against one request alone", float(p99), single, "s")
    record(f"service, p99 of {CLIENTS} clients against one request alone on one core", float(p99), one_core, "s")


if __name__ == "__main__":
    main()
