"""The connections of the service: how many there are, and how long each may be silent or slow.

uvicorn bounds neither their number nor the time and the size of a request's headers. Bodies have limits of their own,
in `uploads`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_CONNECTIONS = 1000
HEADER_SECONDS = 10.0  # in which the headers of a request must arrive
WRITE_SECONDS, WRITE_BYTES = 30.0, 2**18  # a client must take so many bytes of its answer in so much time
MAX_HEADERS, MAX_HEADER_BYTES = 100, 2**16


class ConnectionPool:
    """Limits the number of connections.

    A new connection beyond the limit replaces the one that has been silent longest: first among those that have not
    sent a request yet, then among those that wait between two requests. So silent connections keep nobody out.
    """

    def __init__(self, max_connections: int = MAX_CONNECTIONS) -> None:
        self.max_connections = max_connections
        # In order of arrival; a connection with a request under way is in neither.
        self._new: dict[GuardedProtocol, None] = {}
        self._idle: dict[GuardedProtocol, None] = {}

    def enter(self, connection: GuardedProtocol, count: int) -> None:
        """Enter a new connection; `count` is the number of connections with it."""
        if count > self.max_connections:
            next(iter((*self._new, *self._idle)), connection).transport.abort()
        self._new[connection] = None

    def mark_idle(self, connection: GuardedProtocol) -> None:
        """Note that a connection waits for its next request."""
        self._idle[connection] = None

    def mark_busy(self, connection: GuardedProtocol) -> None:
        """Note that a connection has sent a request, or has ended."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with limits on the time and size of headers and on the time in which an answer is read."""

    def __init__(self, *args: Any, pool: ConnectionPool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pool = pool
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_headers, self._header_bytes = False, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the first request."""
        super().connection_made(transport)
        self._start_header_timer()
        self._pool.enter(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._pool.mark_busy(self)
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # --- headers

    def data_received(self, data: bytes) -> None:
        """Parse data; refuse headers that are too long."""
        if self._header_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_header_timer()  # a further request, or the rest of a body that nobody reads
        super().data_received(data)
        self._header_bytes = self._header_bytes + len(data) if self._in_headers else 0
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        """Note that headers follow."""
        super().on_message_begin()
        self._in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header or a trailer; an exception becomes an answer with status 400."""
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        self._pool.mark_busy(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        waits = not self.pipeline
        super().on_response_complete()
        if waits and not self.transport.is_closing() and self._write_timer is None:
            self._pool.mark_idle(self)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._abort)

    def _abort(self) -> None:
        self.transport.abort()  # `close` would wait until the client has read what is left

    # --- answers

    def pause_writing(self) -> None:
        """Start to watch a client that reads its answer more slowly than it is written."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop to watch the client."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
            if self.cycle.response_complete:  # it had been written before it was sent
                self._pool.mark_idle(self)

    def _watch_writing(self, unsent: int) -> None:
        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if unsent - left < WRITE_BYTES:
                self._abort()
            else:
                self._watch_writing(left)

        self._write_timer = self.loop.call_later(WRITE_SECONDS, check)
