"""What grows in a service under load: Python's objects, what malloc has handed out, or what it holds and does not use.

Clients score, review, change the threshold and look at pages. At intervals the service tells its resident memory, the
number of objects that the garbage collector knows, and the figures of glibc's malloc over all arenas.

    python -m benchmarks.service_memory --requests 3000
"""

from __future__ import annotations

import argparse
import io
import json
import os
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from benchmarks import machine
from benchmarks.soak import Service

CLIENTS = 6
# `bgad serve`, with a thread that answers every line on its standard input with figures of its memory.
LAUNCHER = """
import ctypes, gc, json, os, re, sys, tempfile, threading, tracemalloc
from pathlib import Path

if os.environ.get("TRACE"):
    tracemalloc.start()

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p

def malloc_figures():
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        text = Path(file.name).read_text()
    totals = text[text.rindex("</heap>"):]
    size = lambda kind: int(re.search(kind + r'"[^>]* size="(\\d+)"', totals)[1])
    unused = size("fast") + size("rest")
    return {"arenas": text.count("<heap "), "heap": size("current"), "unused": unused, "mapped": size("mmap")}

def status(field):
    return int(Path("/proc/self/status").read_text().partition(field + ":")[2].split()[0]) * 1024

def answer():
    before = None
    for _ in sys.stdin:
        gc.collect()
        figures = {"rss": status("VmRSS"), "anonymous": status("RssAnon"), "objects": len(gc.get_objects())}
        figures |= {"threads": threading.active_count()} | malloc_figures()
        if tracemalloc.is_tracing():
            now = tracemalloc.take_snapshot()
            grown = now.compare_to(before, "lineno")[:12] if before else []
            before = before or now
            figures |= {"python": tracemalloc.get_traced_memory()[0], "grown": [str(line)[-150:] for line in grown]}
        print(json.dumps(figures), file=sys.stderr, flush=True)

threading.Thread(target=answer, daemon=True).start()
from bgad.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Measured(Service):
    """A service that can be asked for its memory."""

    def start(self) -> None:
        """Start the process and wait until it answers."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = ["serve", "--models", str(self.models), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True).start()
        self.wait(lambda: self.call("GET", "/healthz")[0] == 200)

    def figures(self) -> dict[str, Any]:
        """Return the figures of its memory."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        line = self._answers.get()
        assert line, "the service has ended"
        return dict(json.loads(line))

    def _drain(self, lines: IO[bytes]) -> None:
        """Read what the service writes all the time, or it would wait for a reader; figures are kept, others logged."""
        with (self.clock.parent / "service.log").open("ab", buffering=0) as log:
            for line in lines:
                if line.startswith(b"{"):
                    self._answers.put(line)
                else:
                    log.write(line)
        self._answers.put(b"")


class Clients:
    """Threads that send a number of requests of all kinds."""

    def __init__(self, service: Service, model: str, base: bytes) -> None:
        self._service, self._model = service, model
        self._pixels = np.asarray(Image.open(io.BytesIO(base)).convert("RGB")).astype(np.int16)
        self._images: list[int] = []

    def run(self, requests: int, seed: int) -> None:
        """Send so many requests."""
        threads = [
            threading.Thread(target=self._work, args=(requests // CLIENTS, seed * CLIENTS + i)) for i in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, requests: int, seed: int) -> None:
        rng, noise = random.Random(seed), np.random.default_rng(seed)
        for _ in range(requests):
            kind = rng.random()
            if kind < 0.5 or not self._images:
                pixels = self._pixels + noise.integers(-3, 4, self._pixels.shape, np.int16)
                buffer = io.BytesIO()
                Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "PNG", compress_level=1)
                status, answer = self._service.call("POST", f"/v1/models/{self._model}/score", buffer.getvalue())
                if status == 200:
                    self._images.append(answer["image"])
                continue
            image = rng.choice(self._images)
            method, path, body = rng.choice(self._others(image, rng))
            self._service.call(method, path, body)

    def _others(self, image: int, rng: random.Random) -> list[tuple[str, str, Any]]:
        model = self._model
        return [
            ("POST", f"/v1/images/{image}/reviews", {"verdict": rng.choice(["good", "bad", "unsure"]), "model": model}),
            ("PUT", f"/v1/models/{model}/threshold", {"rate": round(rng.uniform(0.2, 0.9), 6)}),
            ("GET", f"/v1/images?model={model}&limit=50&offset={rng.randrange(50)}", None),
            ("GET", f"/v1/images/{image}/thumbnail.jpg?model={model}", None),
            ("GET", f"/v1/images/{image}/overlay.png?model={model}", None),
            ("GET", f"/v1/models/{model}/drift", None),
            ("GET", "/metrics", None),
        ]


def main() -> None:
    """Run the load in rounds and print the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--models", type=Path, help="folder with models, of which the first is used; by default, one is trained"
    )
    parser.add_argument("--image", type=Path, help="an image for the model of --models")
    parser.add_argument("--trace", action="store_true", help="also tell which lines hold more memory than at first")
    arguments = parser.parse_args()
    if (arguments.models is None) != (arguments.image is None):
        parser.error("--models and --image go together")
    os.environ |= {"TRACE": "1"} if arguments.trace else {}
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        if arguments.models is None:
            from benchmarks.service import prepare  # trains, and needs torch

            models, images = prepare(Path(folder))
            image = images[0]
        else:
            models, image = arguments.models, arguments.image
        model = min(models.glob("*.bgad")).stem
        service = Measured(models, (), Path(folder) / "clock")
        try:
            service.start()
            clients = Clients(service, model, image.read_bytes())
            for number in range(arguments.rounds):
                clients.run(arguments.requests // arguments.rounds, number)
                time.sleep(2)
                figures = service.figures()
                grown = figures.pop("grown", [])
                print({name: round(value / 1e6, 1) if value > 10**6 else value for name, value in figures.items()})
                print(*grown, sep="\n", end="\n" if grown else "", flush=True)
        finally:
            service.kill()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
