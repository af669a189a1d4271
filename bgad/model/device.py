"""Where the arithmetic runs, and how the machine is set up for it."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from bgad.errors import ConfigError
from bgad.io.cpus import usable_cpus

Device = torch.device

T = TypeVar("T")
S = TypeVar("S")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def pick(name: str) -> torch.device:
    """`auto` takes CUDA or MPS where there is one, else the CPU."""
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


def keep_memory() -> None:
    """Let glibc keep freed buffers of up to 32 MiB instead of giving them back to the kernel.

    Each step frees and asks for the same few megabytes; without this, a third or more of a step on the CPU goes into
    page faults.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def torch_version() -> str:
    """The version of the installed torch."""
    return torch.__version__


class Workers:
    """Independent pieces of work side by side, one core each, on the CPU; one after the other on an accelerator.

    Whole pieces (a level's step, a batch of pictures) in threads of their own use small machines far better than
    splitting every little operation over all cores, and give the same bits whatever the number of cores.
    """

    def __init__(self, pieces: int, device: torch.device) -> None:
        self.count = min(pieces, usable_cpus()) if device.type == "cpu" else 1
        self.pieces = pieces
        self._pool: ThreadPoolExecutor | None = None
        if device.type == "cpu":
            self._pool = ThreadPoolExecutor(self.count, initializer=torch.set_num_threads, initargs=(1,))

    def each(self, work: Callable[[int], T]) -> list[T]:
        """work(0), work(1), ...: all results in order; the last piece, as a rule the heaviest, is begun first."""
        if self._pool is None:
            return [work(i) for i in range(self.pieces)]
        return list(self._pool.map(work, reversed(range(self.pieces))))[::-1]

    def stream(self, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Results in the order of the items, computed ahead."""
        return map(work, items) if self._pool is None else self._pool.map(work, items)
