"""Errors that only the service raises; the HTTP layer maps each of them to a status code."""

from __future__ import annotations

from bgad.errors import BgadError, ModelError

QUEUE_FULL = "too many images wait to be scored: try again later"


class MissingError(ModelError):
    """A model, version, image, review or job does not exist."""


class BusyError(BgadError):
    """The service cannot take more work at the moment."""


class ClosedError(BusyError):
    """The model is being unloaded."""


class StoreAwayError(BusyError):
    """The store cannot be written at the moment; `may_be_written` says whether a write may yet succeed."""

    def __init__(self, problem: str, *, may_be_written: bool = False) -> None:
        super().__init__(f"the store cannot be written: {problem}")
        self.may_be_written = may_be_written


class EngineStuckError(BusyError):
    """The engine of a model does not return."""


class EngineUnavailableError(BusyError):
    """Too many engines of a model hang: no further one is loaded."""


class ForbiddenError(BgadError):
    """The caller's role does not permit the operation."""


class MisdirectedError(BgadError):
    """Only the main service does this, and the request reached a scorer."""


class LengthRequiredError(BgadError):
    """A form arrives without a Content-Length header."""


class TooLargeError(BgadError):
    """An upload exceeds the size limit."""
