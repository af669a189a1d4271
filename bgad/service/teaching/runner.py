"""Long work in processes of its own: one at a time, with a limit on time and memory, followed and cancelled.

A job that crashes does not hurt the service. One that was running when the service ended says so, and can be resumed.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from bgad.artifact import folder as model_folder
from bgad.errors import ConfigError, OutputError
from bgad.service.store.dialects import GONE
from bgad.service.store.store import INTERRUPTED, UNFINISHED, MissingError, Row
from bgad.service.teaching import worker as teach
from bgad.service.workbench import Workbench

MINUTES, MEMORY_GB = 120.0, 12.0  # that a job may take
POLL = 0.5  # seconds
GRACE = 10.0  # seconds to end by itself
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # seconds between tries to write to a store that is gone; the last stays

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Of one job."""

    minutes: float = MINUTES
    memory_gb: float = MEMORY_GB


def validation(result: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The rows of the validation images in the result of a job, if it has any."""
    rows: list[dict[str, Any]] = (result or {}).get("validation", {}).get("rows", [])
    return rows


class Jobs:
    """Runs what is queued, one after the other."""

    def __init__(self, workbench: Workbench, limits: Limits | None = None) -> None:
        self.workbench, self.limits = workbench, limits or Limits()
        self._waiting: queue.Queue[int | None] = queue.Queue()
        self._cancelled: set[int] = set()
        self._left: dict[int, float | None] = {}  # seconds that a running job still takes, by its own word
        self._running: tuple[int, subprocess.Popen[str]] | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)

    def start(self) -> None:
        """Say what an earlier service left behind, and begin to work."""
        self.workbench.store.interrupt_jobs()
        self._thread.start()

    def stop(self) -> None:
        """End the running job; what waits stays in the store and is called interrupted at the next start."""
        with self._lock:
            self._stopped.set()
            running = self._running
        self._waiting.put(None)
        if running is not None:
            _end(running[1])
        if self._thread.is_alive():
            self._thread.join()

    def teach(self, name: str, chosen: Sequence[int] | None, who: str) -> Row:
        """Queue a teaching from reviewed images; all of them where none are chosen."""
        version = self.workbench.store.released(name)
        reviewed = {row["image"]: row["verdict"] for row in self.workbench.store.reviewed(name)}
        usable = {image: verdict for image, verdict in reviewed.items() if verdict in ("good", "bad")}
        wanted = list(usable if chosen is None else dict.fromkeys(chosen))
        missing = next((image for image in wanted if image not in usable), None)
        if missing is not None:
            raise ConfigError(f"image {missing} has no verdict good or bad: review it first")
        if not wanted:
            raise ConfigError("no image has been reviewed as good or bad: there is nothing to teach")
        row = self.workbench.store.add_job("teach", version, wanted, who)
        self._waiting.put(row["id"])
        return row

    def resume(self, number: int, who: str) -> Row:
        """Queue the same work again."""
        old = self.workbench.store.job(number)
        if old["state"] in (*UNFINISHED, "done"):
            raise ConfigError(f"job {number} is {old['state']}: there is nothing to resume")
        version = self.workbench.store.version(old["version"])
        row = self.workbench.store.add_job(old["kind"], version, old["images"], who)
        self._waiting.put(row["id"])
        return row

    def cancel(self, number: int, who: str) -> None:
        """Stop a job that waits or runs."""
        job = self.workbench.store.job(number)
        if job["state"] not in UNFINISHED:
            raise ConfigError(f"job {number} is {job['state']}: it cannot be cancelled")
        with self._lock:
            self._cancelled.add(number)
            running = self._running
        self.workbench.store.log(who, "cancel", job["name"], f"job {number}")
        if running is not None and running[0] == number:
            _end(running[1])
        else:
            self.workbench.store.update_job(number, state="cancelled", message=f"cancelled by {who}")

    def shown(self, row: Row) -> Row:
        """A job as the API shows it: with the time left, and the numbers of those validation images that are here."""
        result = row.get("result")
        if result and (tests := validation(result)):
            here = self.workbench.store.numbers([test["sha256"] for test in tests if "sha256" in test])
            tests = [test | {"image": here.get(test.get("sha256", ""))} for test in tests]
            result = result | {"validation": result["validation"] | {"rows": tests}}
        return row | {"result": result, "left": self._left.get(row["id"])}

    def drawing(self, number: int, place: int, side: str) -> bytes:
        """A small JPEG of a validation image with its heat by the version before or after. The job has drawn it, as the
        file may be gone from where it was then."""
        row = self.workbench.store.job(number)
        rows = validation(row["result"])
        if not 0 <= place < len(rows) or "sha256" not in rows[place]:
            raise MissingError(f"job {number} has no picture {place}")
        version = row["version"] if side == "before" else row["made"]
        return self.workbench.files.path(teach.DRAWINGS, f"{rows[place]['sha256']}.{version}").read_bytes()

    # --- the thread that works

    def _work(self) -> None:
        while (number := self._waiting.get()) is not None and not self._stopped.is_set():
            if number in self._cancelled:
                continue
            try:
                self._run(number)
            except Exception as error:  # noqa: BLE001 - one job must not end the others
                first = str(error).strip().partition("\n")[0]
                with suppress(SQLAlchemyError):  # a store that is gone for good must not end the thread
                    self._update(number, state="failed", message=f"{type(error).__name__}: {first}")

    def _run(self, number: int) -> None:
        store = self.workbench.store
        job = store.job(number)
        folder = self.workbench.own("jobs") / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "task.json").write_text(json.dumps(self._task(job, folder)))
        store.update_job(number, state="running", message="starting")
        log = (folder / "log.txt").open("w")
        with log:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "bgad.service.teaching.worker", str(folder / "task.json")],
                stdin=subprocess.PIPE,  # nothing is sent: it ends with this service, however that ends
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            try:
                with self._lock:
                    self._running = number, process
                    unwanted = number in self._cancelled or self._stopped.is_set()
                if unwanted:
                    _end(process)
                ended = self._follow(number, process)
            finally:
                if process.poll() is None:
                    _end(process)
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
                with self._lock:
                    self._running = None
                self._left.pop(number, None)
        self._conclude(number, job, folder, process, ended)

    def _task(self, job: Row, folder: Path) -> dict[str, Any]:
        """What the process is told: files only, it knows no store."""
        bench = self.workbench
        chosen = set(job["images"])
        rows = [row for row in bench.store.reviewed(job["name"]) if row["verdict"] in ("good", "bad")]
        version = bench.store.version(job["version"])

        def told(row: Row) -> dict[str, Any]:
            painted = {kind: row[kind] and str(bench.files.path("masks", row[kind])) for kind in ("mask", "ignore")}
            kept = {key: row[key] for key in ("image", "name", "sha256", "verdict")}
            return kept | painted | {"path": str(bench.files.path("pictures", row["sha256"]))}

        model = bench.models / version["folder"]
        return {
            "model": str(model),
            "out": str(folder / "model.bgad"),
            "data": str(bench.data),
            "rate": version["rate"],
            "learn": [told(row) for row in rows if row["image"] in chosen],
            "compare": [told(row) for row in rows],
            "found": self._found(model, chosen),
        }

    def _found(self, model: Path, chosen: set[int]) -> list[dict[str, Any]]:
        """The pictures of the model's split that are here, with what was last said of them, unless that is what is to
        be taught now: a picture of an earlier teaching may be gone from where it was then."""
        files = self.workbench.files
        said = (row for row in self.workbench.store.reviewed() if row["verdict"] in ("good", "bad"))
        reviewed = {row["sha256"]: row for row in said if row["image"] not in chosen}
        found = []
        for image in model_folder.read(model).split["images"]:
            if not files.has("pictures", image["sha256"]):
                continue
            row = reviewed.get(image["sha256"], {"verdict": "", "mask": None, "ignore": None})
            kinds = [kind for kind in ("mask", "ignore") if row[kind] and files.has("masks", row[kind])]
            painted = {"mask": None, "ignore": None} | {k: str(files.place("masks", row[k])) for k in kinds}
            place = str(files.place("pictures", image["sha256"]))
            found.append({**image, **painted, "verdict": row["verdict"], "path": place})
        return found

    def _follow(self, number: int, process: subprocess.Popen[str]) -> str:
        """Pass on what the process says; why it was ended, if it was."""
        lines: queue.Queue[str | None] = queue.Queue()

        def listen() -> None:
            assert process.stdout is not None  # noqa: S101 - it was asked for
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            return self._watch(number, process, lines)
        finally:
            listener.join(GRACE)

    def _watch(self, number: int, process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> str:
        began = time.monotonic()
        while True:
            try:
                line = lines.get(timeout=POLL)
            except queue.Empty:
                line = ""
            if line is None:
                process.wait()
                return ""
            if line.strip():
                self._tell(number, line)
            if time.monotonic() - began > 60 * self.limits.minutes:
                _end(process)
                return f"it took more than {self.limits.minutes:g} minutes: give the service more --job-minutes"
            if _memory_gb(process.pid) > self.limits.memory_gb:
                _end(process)
                return f"it took more than {self.limits.memory_gb:g} GB of memory: give the service more --job-memory"

    def _tell(self, number: int, line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if "progress" in said:
            self._left[number] = said.get("left")
            with suppress(SQLAlchemyError):  # the next one will be told
                self.workbench.store.update_job(number, progress=float(said["progress"]), message=str(said["message"]))

    def _conclude(self, number: int, job: Row, folder: Path, process: subprocess.Popen[str], ended: str) -> None:
        if number in self._cancelled:
            self._update(number, state="cancelled", message="cancelled")
            shutil.rmtree(folder, ignore_errors=True)
            return
        if self._stopped.is_set():
            self._update(number, state="interrupted", message=INTERRUPTED)
            return
        result = folder / "result.json"
        if ended or process.returncode or not result.exists():
            reason = ended or _why(process.returncode, _last_line(folder / "log.txt"), folder)
            self._update(number, state="failed", message=reason)
            return
        found = json.loads(result.read_text())
        place, checksum = self.workbench.adopt(folder / "model.bgad", job["name"])
        made = self._surely(
            lambda: self.workbench.store.add_version(
                job["name"], checksum, place, state="candidate", parent=job["version"], who=job["who"]
            )
        )
        self._take_drawings(folder, {"before": job["version"], "after": made["id"]})
        self._update(number, state="done", progress=1.0, message="done", result=found, made=made["id"])
        shutil.rmtree(folder, ignore_errors=True)

    def _take_drawings(self, folder: Path, versions: dict[str, int]) -> None:
        """Small pictures of what was compared; without room for them, the comparison has none."""
        with suppress(OutputError):
            for drawing in folder.glob(f"{teach.DRAWINGS}/*"):
                sha256, side = drawing.name.split(".")
                self.workbench.files.put_as(teach.DRAWINGS, f"{sha256}.{versions[side]}", drawing.read_bytes())

    def _update(self, number: int, **values: Any) -> None:
        self._surely(lambda: self.workbench.store.update_job(number, **values))

    def _surely(self, write: Callable[[], T]) -> T:
        """Write to the store, however long it is gone: what a job made must not be lost. Not when the service is being
        stopped, as the next one then says what became of the job."""
        pauses = chain(PAUSES, repeat(PAUSES[-1]))
        while True:
            try:
                return write()
            except GONE:
                if self._stopped.wait(next(pauses)):
                    return write()


def _end(process: subprocess.Popen[str]) -> None:
    """First kindly, then not, with all that it started."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except (ProcessLookupError, PermissionError):
            return
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
        return


def _why(code: int, said: str, folder: Path) -> str:
    """Why a process failed, and what to do about it."""
    if code == -signal.SIGKILL:
        return "the system killed the process, most likely for want of memory: free some, or teach where there is more"
    again = f"resume the job; if it fails again, see {folder}"
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}: {again}"
    return said or f"the process ended with exit code {code} and said nothing: {again}"


def _memory_gb(pid: int) -> float:
    """That a process holds now; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    line = next((line for line in text.splitlines() if line.startswith("VmRSS")), "VmRSS: 0 kB")
    return int(line.split()[1]) * 1024 / 1e9


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
