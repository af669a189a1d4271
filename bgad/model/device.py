"""The device that torch computes on, its threads, and the memory allocator of the process."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from bgad.errors import ConfigError
from bgad.io.cpus import usable_cpus

Device = torch.device

T = TypeVar("T")
S = TypeVar("S")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as in malloc.h of glibc
_thread_setting = threading.Lock()


def pick(name: str) -> torch.device:
    """Return the torch device of a name; `auto` takes CUDA or MPS where torch finds one, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {name!r} is not usable here: choose auto or cpu, or cuda or mps where torch finds one"
        ) from error
    return device


def tune_allocator() -> None:
    """Let glibc keep freed buffers of up to 32 MiB instead of returning them to the kernel.

    This changes the whole process, so only a command that starts a process calls it. A training step frees and
    allocates the same few megabytes again; without this, a third or more of a step on the CPU goes into page faults.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def set_thread_cores(count: int) -> None:
    """Let the torch operations of the calling thread use so many cores; other threads keep their number.

    With OpenMP, `torch.set_num_threads` changes the calling thread, and the number that threads started later begin
    with. The latter is set back from a short-lived thread, so nothing outside of the calling thread changes.
    """
    if torch.get_num_threads() == count:
        return
    with _thread_setting:
        initial = _in_new_thread(torch.get_num_threads)
        torch.set_num_threads(count)
        _in_new_thread(lambda: torch.set_num_threads(initial))


def _in_new_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def torch_version() -> str:
    """Return the version of the installed torch."""
    return torch.__version__


class WorkerPool:
    """Runs independent pieces of work in threads of one core each on the CPU, and one by one on an accelerator.

    Whole pieces (a level's step, a batch of images) in threads use small machines far better than splitting every small
    operation over all cores, and give the same bits whatever the number of cores.
    """

    def __init__(self, pieces: int, device: torch.device) -> None:
        self.count = min(pieces, usable_cpus()) if device.type == "cpu" else 1
        self.pieces = pieces
        self._pool: ThreadPoolExecutor | None = None
        if device.type == "cpu":
            self._pool = ThreadPoolExecutor(self.count, initializer=set_thread_cores, initargs=(1,))

    def each(self, work: Callable[[int], T]) -> list[T]:
        """Return work(0), work(1), ... in order; the last piece, usually the heaviest, starts first."""
        if self._pool is None:
            return [work(i) for i in range(self.pieces)]
        return list(self._pool.map(work, reversed(range(self.pieces))))[::-1]

    def stream(self, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Yield the results in the order of the items, computed ahead."""
        return map(work, items) if self._pool is None else self._pool.map(work, items)
