"""Whether the service holds: mixed load for half an hour while service, jobs, database, disk and clock fail.

Cameras, a reviewer, somebody who sets thresholds, somebody who teaches and an open page work at the same time.
Meanwhile the service and its jobs are killed with SIGKILL, PostgreSQL is restarted, the disk is filled (a small tmpfs,
which only root can mount) and the clock jumps a month ahead with `--retention-days 30`. At the end, everything that was
acknowledged must be there: images with their files and scores, reviews, jobs, the last threshold. The memory must be
flat.

    python -m benchmarks.soak --minutes 30
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import io
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import machine

MIN_FREE_MB, RETENTION_DAYS = 16, 30
DISK_MB, DISK_MB_A_MINUTE = 400, 100  # the images of the load take up to 70 MB a minute
JUMP_SECONDS = 31 * 86400
HOLD_SECONDS = 4.0  # that a failure lasts
READY_SECONDS = 120.0  # in which the service must be back
MEASURE_SECONDS = 0.5  # between two readings of the memory
MAX_GROWTH = 0.10  # of the memory, from the middle to the last third of the longest life of the service
EXPECTED = {0, 200, 201, 503, 507}  # 0: no answer
# The service with a clock that is ahead by what a file says.
LAUNCHER = """
import sys, time
from pathlib import Path
real, file = time.time, Path(sys.argv[1])
time.time = lambda: real() + float(file.read_text() or 0)
from bgad.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@dataclass
class Acknowledged:
    """What the service has acknowledged, and how it answered."""

    images: dict[int, tuple[str, float]] = field(default_factory=dict)  # sha256 and score
    reviews: dict[int, int] = field(default_factory=dict)  # review to image
    jobs: set[int] = field(default_factory=set)
    rate: float | None = None
    rate_is_sure: bool = True  # no later change was sent without an answer
    not_kept: int = 0
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Service:
    """`bgad serve` in a process of its own, which is started again whenever it is gone."""

    models: Path
    options: tuple[str, ...]
    clock: Path  # file with the seconds by which its clock is ahead
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    memory: list[list[float]] = field(default_factory=list)  # MB, for each life

    def start(self) -> None:
        """Start the process and wait until it answers."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = ["serve", "--models", str(self.models), "--port", str(self.port), *self.options]
        with (self.clock.parent / "service.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, str(self.clock), *command], stdout=log, stderr=log
            )
        self.memory.append([])
        self.wait(lambda: self.call("GET", "/healthz")[0] == 200)

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait for something; an error if it takes too long or the process ends."""
        deadline = time.monotonic() + READY_SECONDS
        while not done():
            if time.monotonic() > deadline or self.process is None or self.process.poll() is not None:
                log = (self.clock.parent / "service.log").read_text()[-2000:]
                raise RuntimeError(f"the service is not back:\n{log}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; the status, 0 without an answer, and the JSON or the bytes."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/octet-stream" if isinstance(body, bytes) else "application/json"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", content, headers if content else {}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text
        except urllib.error.HTTPError as error:
            with error, suppress(OSError, http.client.HTTPException):  # the service may be killed while we read
                return error.code, error.read().decode(errors="replace")
        except (OSError, ValueError, http.client.HTTPException):
            pass
        return 0, None

    def workers(self) -> list[int]:
        """The processes of its teaching jobs."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                parent = int((entry.parent / "stat").read_text().rpartition(")")[2].split()[1])
                is_worker = b"bgad.service.teaching.worker" in entry.read_bytes()
            except OSError:
                continue
            if is_worker and self.process is not None and parent == self.process.pid:
                pids.append(int(entry.parent.name))
        return pids

    def measure(self) -> None:
        """Note its memory."""
        try:
            assert self.process is not None
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            self.memory[-1].append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
        except (OSError, IndexError, ValueError):
            return


class Load:
    """Clients that work until they are stopped."""

    def __init__(self, service: Service, model: str, base: bytes, seed: int) -> None:
        self.service, self.model, self.seen = service, model, Acknowledged()
        self._pixels = np.asarray(Image.open(io.BytesIO(base)).convert("RGB")).astype(np.int16)
        self._seed, self._stop, self._numbers = seed, threading.Event(), iter(range(10**9))
        work = [self.score, self.score, self.review, self.set_threshold, self.teach, self.look]
        self._threads = [threading.Thread(target=self._loop, args=(one, i)) for i, one in enumerate(work)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the requests that are under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, work: Callable[[random.Random], float], number: int) -> None:
        rng = random.Random(self._seed + number)
        while not self._stop.is_set():
            self._stop.wait(work(rng))

    def call(self, kind: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request and count its answer."""
        status, content = self.service.call(method, path, body)
        with self.seen.lock:
            self.seen.answers[kind, status] += 1
        return status, content

    def score(self, rng: random.Random) -> float:
        """Send a new image."""
        noise = np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, self._pixels.shape, np.int16)
        buffer = io.BytesIO()
        Image.fromarray(np.clip(self._pixels + noise, 0, 255).astype(np.uint8)).save(buffer, "PNG")
        content = buffer.getvalue()
        status, answer = self.call("score", "POST", f"/v1/models/{self.model}/score?filename=part.png", content)
        if status == 200:
            with self.seen.lock:
                if answer["kept"]:
                    self.seen.images[answer["image"]] = hashlib.sha256(content).hexdigest(), answer["score"]
                else:
                    self.seen.not_kept += 1
        return rng.uniform(0.0, 0.1)

    def review(self, rng: random.Random) -> float:
        """Review one of the images."""
        with self.seen.lock:
            images = list(self.seen.images)
        if images:
            image = rng.choice(images)
            body = {"verdict": rng.choice(("good", "good", "bad")), "note": f"soak {image}"}
            status, answer = self.call("review", "POST", f"/v1/images/{image}/reviews", body)
            if status == 201:
                with self.seen.lock:
                    self.seen.reviews[answer["id"]] = image
        return rng.uniform(0.05, 0.2)

    def set_threshold(self, rng: random.Random) -> float:
        """Set another false-reject rate."""
        rate = rng.choice((0.2, 0.25, 0.3, 0.4, 0.5))
        status, _ = self.call("threshold", "PUT", f"/v1/models/{self.model}/threshold", {"rate": rate})
        with self.seen.lock:
            if status == 200:
                self.seen.rate, self.seen.rate_is_sure = rate, True
            elif status == 0 or status >= 500:  # it may have been written all the same
                self.seen.rate_is_sure = False
        return rng.uniform(0.2, 1.0)

    def teach(self, rng: random.Random) -> float:
        """Start a job unless one waits or runs."""
        status, jobs = self.call("jobs", "GET", "/v1/jobs")
        is_free = status == 200 and not any(job["state"] in ("queued", "running") for job in jobs)
        if is_free and self.seen.reviews:
            status, job = self.call("teach", "POST", "/v1/jobs", {"model": self.model})
            if status == 201:
                with self.seen.lock:
                    self.seen.jobs.add(job["id"])
        return 2.0

    def look(self, rng: random.Random) -> float:
        """Ask for what an open page asks for."""
        queue = f"/v1/images?model={self.model}&order={rng.choice(('uncertain', 'anomalous', 'newest'))}"
        for path in ("/", "/v1/models", queue, f"/v1/models/{self.model}/changes", "/v1/history", "/metrics"):
            self.call("page", "GET", path)
        return 0.5


# --- what fails


@dataclass
class Failures:
    """Makes parts of the system fail, one after the other."""

    service: Service
    postgres: Postgres | None
    disk: Path | None  # of limited size
    counts: Counter[str] = field(default_factory=Counter)

    def kinds(self) -> list[Callable[[], None]]:
        """All failures that can be made here."""
        kinds = [self.kill_service, self.kill_job, self.move_clock]
        if self.postgres is not None:
            kinds.append(self.restart_postgres)
        if self.disk is not None:
            kinds.append(self.fill_disk)
        return kinds

    def kill_service(self) -> None:
        """SIGKILL, then a new process."""
        self.counts["service killed"] += 1
        self.service.kill()
        self.service.start()

    def kill_job(self) -> None:
        """SIGKILL to the process of a job that runs."""
        for pid in self.service.workers():
            self.counts["job killed"] += 1
            os.kill(pid, signal.SIGKILL)

    def restart_postgres(self) -> None:
        """Restart the server of the store."""
        assert self.postgres is not None
        self.counts["PostgreSQL restarted"] += 1
        self.postgres.run("stop", "-m", "fast")
        time.sleep(HOLD_SECONDS)
        self.postgres.start()

    def fill_disk(self) -> None:
        """Fill the disk to the last byte, then free it."""
        assert self.disk is not None
        self.counts["disk filled"] += 1
        filler = self.disk / "filler"
        try:
            with filler.open("wb") as file:
                while True:
                    file.write(b"\0" * 2**20)
        except OSError:
            time.sleep(HOLD_SECONDS)
        finally:
            filler.unlink()

    def move_clock(self) -> None:
        """Let the clock be a month ahead, for a running service and for one that starts, then right again."""
        self.counts["clock moved"] += 1
        self.service.clock.write_text(str(JUMP_SECONDS))
        time.sleep(HOLD_SECONDS)
        self.service.kill()
        self.service.start()
        time.sleep(HOLD_SECONDS)
        self.service.clock.write_text("0")
        self.service.kill()
        self.service.start()


class Postgres:
    """A PostgreSQL server of our own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._prefix = folder, ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        self._command("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "bgad", "--no-sync")
        self.start()
        self._command("createdb", "-h", str(folder), "-U", "bgad", "soak")

    @property
    def address(self) -> str:
        """The address of its store."""
        return f"postgresql://bgad@/soak?host={self.folder}"

    def start(self) -> None:
        """Start the server."""
        self.run("start", "-l", str(self.folder / "log"), "-o", f"-k {self.folder} -c listen_addresses=''")

    def run(self, what: str, *options: str) -> None:
        """Run a command of pg_ctl."""
        self._command("pg_ctl", "-D", str(self.folder / "data"), "-w", *options, what)

    def _command(self, program: str, *arguments: str) -> None:
        places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
        path = str(places[-1]) if places else program
        subprocess.run([*self._prefix, path, *arguments], cwd="/", check=True, stdout=subprocess.DEVNULL)


@contextmanager
def limited_disk(folder: Path, megabytes: int) -> Iterator[Path | None]:
    """Mount a small file system on a folder; None where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


# --- the run


@dataclass(frozen=True)
class Figures:
    """What a soak has found."""

    lost: list[str]  # what was acknowledged and is not there
    unexpected: dict[str, int]  # answers that no failure explains
    answers: dict[str, int]
    failures: dict[str, int]
    skipped: list[str]
    acknowledged: dict[str, int]
    memory_mb: list[float]  # median of the first, middle and last third of the service's longest life
    memory_course: list[float]  # median of each minute of that life

    @property
    def growth(self) -> float:
        """Growth of the memory from the middle to the last third."""
        return self.memory_mb[2] / self.memory_mb[1] - 1 if self.memory_mb[1] else 0.0


def soak(models: Path, model: str, image: bytes, minutes: float, seed: int = 0) -> Figures:
    """Run the load on a copy of a folder of models, with failures at equal distances; check what was acknowledged."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bgad-soak-")))
        root.chmod(0o755)
        (root / "disk").mkdir()
        disk = stack.enter_context(limited_disk(root / "disk", DISK_MB + round(DISK_MB_A_MINUTE * minutes)))
        shutil.copytree(models, root / "disk" / "models")
        postgres = _start_postgres(root, stack)
        (root / "clock").write_text("0")
        options = ["--retention-days", str(RETENTION_DAYS), "--min-free-mb", str(MIN_FREE_MB)]
        if postgres is not None:
            options += ["--store", postgres.address]
        service = Service(root / "disk" / "models", tuple(options), root / "clock")
        stack.callback(service.kill)
        service.start()
        load, failures = Load(service, model, image, seed), Failures(service, postgres, disk)
        _run(load, failures, 60 * minutes, random.Random(seed))
        service.wait(lambda: service.call("GET", "/readyz")[0] == 200)
        skipped = [] if disk else ["full disk: no small file system can be mounted here"]
        skipped += [] if postgres else ["restart of PostgreSQL: it is not installed"]
        return _figures(load, failures, skipped)


def _start_postgres(root: Path, stack: ExitStack) -> Postgres | None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and shutil.which("initdb") is None:
        return None
    (root / "pg").mkdir()
    postgres = Postgres(root / "pg")
    stack.callback(postgres.run, "stop", "-m", "immediate")
    return postgres


def _run(load: Load, failures: Failures, seconds: float, rng: random.Random) -> None:
    """Let all kinds of failures happen in turn, each at least once, in a new order every round; note the memory."""
    began, all_kinds, rounds = time.monotonic(), failures.kinds(), 0
    kinds: list[Callable[[], None]] = []
    every = min(60.0, seconds / (len(all_kinds) + 1))
    due = began + every
    load.start()
    try:
        while time.monotonic() - began < seconds or rounds == 0:
            failures.service.measure()
            time.sleep(MEASURE_SECONDS)
            # The last third of a long run is undisturbed, so that the memory of one process can be followed.
            is_quiet = rounds > 0 and time.monotonic() - began > seconds * 2 / 3
            if time.monotonic() >= due and not is_quiet:
                kinds = kinds or rng.sample(all_kinds, len(all_kinds))
                kinds.pop()()
                rounds += not kinds
                due += every
    finally:
        load.stop()


def _figures(load: Load, failures: Failures, skipped: list[str]) -> Figures:
    seen, service = load.seen, failures.service
    life = max(service.memory, key=len)
    third, minute = max(1, len(life) // 3), round(60 / MEASURE_SECONDS)
    thirds = [life[:third], life[third : 2 * third] or life, life[2 * third :] or life]
    return Figures(
        lost=list(_lost(service, load.model, seen)),
        unexpected={f"{kind} {status}": n for (kind, status), n in seen.answers.items() if status not in EXPECTED},
        answers={f"{kind} {status or 'none'}": n for (kind, status), n in sorted(seen.answers.items())},
        failures=dict(failures.counts),
        skipped=skipped,
        acknowledged={"images": len(seen.images), "reviews": len(seen.reviews), "jobs": len(seen.jobs)},
        memory_mb=[statistics.median(part) for part in thirds],
        memory_course=[statistics.median(life[i : i + minute]) for i in range(0, len(life), minute)],
    )


def _lost(service: Service, model: str, seen: Acknowledged) -> Iterator[str]:
    """Yield what was acknowledged and is not there."""
    reviews: dict[int, set[int]] = {}
    for review, image in seen.reviews.items():
        reviews.setdefault(image, set()).add(review)
    for image, (sha256, score) in seen.images.items():
        status, detail = service.call("GET", f"/v1/images/{image}")
        if status != 200 or detail["dropped"] is not None:
            yield f"image {image}: {status}"
            continue
        if score not in [one["score"] for one in detail["scores"]]:
            yield f"score {score} of image {image}"
        if missing := reviews.get(image, set()) - {one["id"] for one in detail["reviews"]}:
            yield f"reviews {missing} of image {image}"
        status, content = service.call("GET", f"/v1/images/{image}/original")
        if status != 200 or hashlib.sha256(content).hexdigest() != sha256:
            yield f"file of image {image}: {status}"
    jobs = {job["id"] for job in service.call("GET", "/v1/jobs")[1]}
    if missing := seen.jobs - jobs:
        yield f"jobs {missing}"
    rate = service.call("GET", f"/v1/models/{model}")[1]["rate"]
    if seen.rate is not None and seen.rate_is_sure and rate != seen.rate:
        yield f"false-reject rate {seen.rate}: it is {rate}"


def main() -> int:
    """Run a soak with a small model of its own; exit code 1 if anything was lost or the memory grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from benchmarks.service import prepare  # trains, and needs torch

    with tempfile.TemporaryDirectory() as folder:
        models, images = prepare(Path(folder))
        figures = soak(models, "washer", images[0].read_bytes(), arguments.minutes, arguments.seed)
    print(f"{arguments.minutes:g} minutes on {machine()}")
    for name in ("acknowledged", "failures", "answers", "skipped", "unexpected", "lost"):
        print(f"{name}: {getattr(figures, name) or 'none'}")
    first, middle, last = figures.memory_mb
    print(f"memory of the longest life: {first:.0f}, {middle:.0f}, {last:.0f} MB ({figures.growth:+.1%})")
    print("each minute of it:", *(f"{megabytes:.0f}" for megabytes in figures.memory_course))
    return 1 if figures.lost or figures.unexpected or figures.growth > MAX_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
