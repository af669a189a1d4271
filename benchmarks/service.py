"""The service under load: 16 clients that keep their connections, against `bgad predict` on the same files.

Both run on this machine, one after the other in turns, and the clients take their share of its cores as well. What is
compared: images a second (the service's should be at least 0.8 of predict's); the time that 99 of 100 requests stay
below, as a multiple of their mean (at most 1.4); and the time of one request when nobody else asks, as a multiple of
that of an earlier version, whose source tree --before names (it should be unchanged: at most 1.05, to allow for noise).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
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
RATIO, TAIL, LONE = 0.8, 1.4, 1.05  # the bars


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


def prepare_with(tree: Path, folder: Path) -> Path:
    """The same model, trained by another source tree: an earlier version cannot read the cards of this one."""
    folder.mkdir()
    code = "import sys, pathlib; from benchmarks.service import prepare; prepare(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
    subprocess.run([sys.executable, "-c", code, str(folder.resolve())], cwd=tree, env=environment, check=True)
    return folder / "models"


class Service:
    """`bgad serve` in a process of its own."""

    def __init__(self, models: Path, tree: Path | None = None) -> None:
        """Start it from another source tree where one is given."""
        command = [sys.executable, "-m", "bgad", "serve", "--models", str(models), "--port", "0"]
        environment = os.environ | ({} if tree is None else {"PYTHONPATH": str(tree.resolve())})
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=tree)
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


@dataclass
class Figures:
    """What the rounds have measured so far."""

    rates: list[float] = field(default_factory=list)  # images a second, of the service under load
    predicted: list[float] = field(default_factory=list)  # images a second, of `bgad predict`
    alone: list[float] = field(default_factory=list)  # seconds of a request
    before: list[float] = field(default_factory=list)  # the same of the earlier version
    latencies: list[float] = field(default_factory=list)  # seconds of each request under load

    def report(self) -> None:
        """Print and append."""
        ours, other, single = (statistics.median(values) for values in (self.rates, self.predicted, self.alone))
        mean, p99 = float(np.mean(self.latencies)), float(np.quantile(self.latencies, 0.99))
        print(f"{CLIENTS} clients: {ours:.1f} images/s, predict {other:.1f}: {ours / other:.2f} (bar: {RATIO})")
        print(f"latency mean {1e3 * mean:.0f} ms, p99 {1e3 * p99:.0f} ms: {p99 / mean:.2f} (bar: {TAIL})")
        record(f"service, {CLIENTS} clients, against predict", 1 / ours, 1 / other, "s/image")
        record(f"service, p99 of {CLIENTS} clients against their mean", p99, mean, "s")
        print(f"alone {1e3 * single:.1f} ms", end="" if self.before else "; give --before to compare it\n")
        if self.before:
            earlier = statistics.median(self.before)
            print(f", before {1e3 * earlier:.1f} ms: {single / earlier:.2f} (bar: {LONE})")
            record("service, one request alone against before", single, earlier, "s")


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of load in each round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--before", type=Path, metavar="DIR", help="source tree of an earlier version to compare with")
    arguments = parser.parse_args()
    print(machine())
    figures = Figures()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        models, images = prepare(folder)
        earlier = None
        if arguments.before is not None:
            earlier = Service(prepare_with(arguments.before, folder / "before"), arguments.before)
            stack.callback(earlier.end)
            alone(earlier.port, images)  # warm
        service = Service(models)
        stack.callback(service.end)
        loaded(service.port, images, 3)
        for _ in range(arguments.rounds):
            figures.predicted.append(predicted(models / "washer.bgad", images))
            figures.alone.append(alone(service.port, images))
            if earlier is not None:
                figures.before.append(alone(earlier.port, images))
            rate, latencies = loaded(service.port, images, arguments.seconds)
            figures.rates.append(rate)
            figures.latencies += latencies
    figures.report()


if __name__ == "__main__":
    main()
