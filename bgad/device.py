"""Where the arithmetic runs, and how the machine is set up for it."""

from __future__ import annotations

import ctypes
import platform

import torch

from bgad.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def pick(name: str) -> torch.device:
    """`auto` takes CUDA or MPS where there is one, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} is not usable here: {str(error).splitlines()[0][:120]}") from error
    return device


def keep_memory() -> None:
    """Let glibc keep freed buffers of up to 32 MiB instead of giving them back to the kernel.

    Each step frees and asks for the same few megabytes; without this, most of the time of a step on the CPU
    goes into page faults (measured in benchmarks/flow.py).
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(_M_TRIM_THRESHOLD, 512 << 20)
