"""Errors that a user can cause: each message is one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

_OUT_OF_MEMORY = "out of memory|not enough memory|allocate memory|bad_alloc"  # torch has a RuntimeError for it


class BgadError(Exception):
    """Base of every error caused by input, data, options or the machine; the CLI prints it and exits with 2."""


class ImageError(BgadError):
    """An image cannot be read or has an unsupported form."""


class DataError(BgadError):
    """A data set, its masks or its split do not fit together."""


class ConfigError(BgadError):
    """An option or a configuration key is unknown or out of range."""


class ModelError(BgadError):
    """A model folder or a backbone cannot be used."""


class OutputError(BgadError):
    """Results cannot be written where they should go."""


def first_line(error: BaseException, limit: int = 160) -> str:
    """Return the first line of an exception's message, or the name of its class when it has none.

    >>> first_line(ValueError("bad shape\\nexpected 3 channels")), first_line(KeyboardInterrupt())
    ('bad shape', 'KeyboardInterrupt')
    """
    text = str(error).strip()
    return text.splitlines()[0][:limit] if text else type(error).__name__


def cause(error: Exception) -> str:
    """Return what went wrong on one line: the system's message of an OSError, otherwise the exception's.

    >>> cause(FileNotFoundError(2, "No such file or directory", "a.png")), cause(ValueError("bad\\nheader"))
    ('No such file or directory', 'bad header')
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that memory is short: Python's, NumPy's, or one of torch or ONNX Runtime.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: ..."))
    (True, True)
    >>> is_out_of_memory(RuntimeError("shapes do not match"))
    False
    """
    return isinstance(error, MemoryError) or re.search(_OUT_OF_MEMORY, str(error)) is not None


def printable(text: str) -> str:
    """Escape control characters and lone surrogates, which file names may hold, so that a message stays one line.

    >>> print(printable("a\\nb\\x1b[31m"))
    a\\nb\\x1b[31m
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", lambda match: repr(match[0])[1:-1], text)


def abbreviate(names: Iterable[str], limit: int = 5) -> str:
    """Join the first names for a message, and say how many more there are.

    >>> abbreviate(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
