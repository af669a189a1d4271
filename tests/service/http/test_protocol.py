"""Connections that are silent, slow or too many, against real sockets."""

from __future__ import annotations

import functools
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import uvicorn

from bgad.client import Client
from bgad.service.http import protocol
from bgad.service.http.protocol import ConnectionPool, GuardedProtocol
from tests.service.conftest import Live, png, wait_for

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
ANSWER = 2**24  # bytes, more than any buffer on the way


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, without reading the body; with a large answer where the path says so."""
    body = bytes(ANSWER) if scope["path"] == "/large" else b"ok"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Server:
    """uvicorn in a thread."""

    def __init__(self, max_connections: int = 100) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        http: Any = functools.partial(GuardedProtocol, pool=ConnectionPool(max_connections))
        self.server = uvicorn.Server(
            uvicorn.Config(
                application, http=http, ws="none", lifespan="off", log_level="critical", timeout_keep_alive=600
            )
        )
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        wait_for(lambda: self.server.started)

    def connect(self, sent: bytes = b"") -> socket.socket:
        wire = socket.create_connection(self.socket.getsockname(), timeout=30)
        wire.sendall(sent)
        return wire

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def end(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*options: int) -> Server:
        made.append(Server(*options))
        return made[-1]

    yield start
    for server in made:
        server.end()


def ended(wire: socket.socket) -> bool:
    """Whether the server closes the connection; an answer before that is read."""
    try:
        while wire.recv(2**16):
            pass
    except ConnectionError:
        pass
    return True


def trickle(wire: socket.socket, piece: bytes) -> None:
    """Send a piece now and then, fewer of them than there may be headers, much longer than HEADER_SECONDS."""
    for _ in range(90):
        wire.sendall(piece)
        time.sleep(0.1)


@pytest.mark.parametrize("sent", [b"", b"GET /", HEAD, b"\r\n"])
def test_headers_that_do_not_come_end_the_connection(
    sent: bytes, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.1)
    server = serve()
    with closing(server.connect(sent)) as wire:
        assert ended(wire)


def test_a_trickle_of_headers_does_not_prolong_it(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    server = serve()
    with closing(server.connect(HEAD)) as wire, pytest.raises(ConnectionError):
        trickle(wire, b"X: y\r\n")


def test_a_body_that_nobody_reads_does_not_hold_the_connection(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    server = serve()
    with closing(server.connect(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")) as wire:
        assert wire.recv(1000).startswith(b"HTTP/1.1 200")
        with pytest.raises(ConnectionError):
            trickle(wire, b"x")


@pytest.mark.parametrize("header", [b"X: " + bytes(b"y" * 2**20), b"X: y\r\n" * 1000], ids=["long", "many"])
def test_headers_without_end_are_refused(header: bytes, serve: Callable[..., Server]) -> None:
    server = serve()
    with closing(server.connect()) as wire:
        try:
            wire.sendall(HEAD + header)
            assert wire.recv(1000).startswith(b"HTTP/1.1 400")
        except ConnectionError:
            pass  # it was closed while we were sending
        assert ended(wire)


def test_silent_connections_make_room_for_new_ones(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 600)  # it is not the time that ends them
    server = serve(8)
    with ExitStack() as stack:
        kept = stack.enter_context(closing(server.connect(HEAD + b"\r\n")))
        assert kept.recv(1000).startswith(b"HTTP/1.1 200")
        silent = [stack.enter_context(closing(server.connect())) for _ in range(30)]
        assert ended(silent[0])
        wait_for(lambda: server.connections == 8)
        kept.sendall(HEAD + b"\r\n")  # who has asked before stays longer
        assert kept.recv(1000).startswith(b"HTTP/1.1 200")
        with closing(server.connect(HEAD + b"\r\n")) as another:
            assert another.recv(1000).startswith(b"HTTP/1.1 200")


def test_connections_that_are_served_are_not_ended_for_new_ones(serve: Callable[..., Server]) -> None:
    server = serve(3)
    with ExitStack() as stack:
        readers = [
            stack.enter_context(closing(server.connect(HEAD.replace(b"/", b"/large", 1) + b"\r\n"))) for _ in range(3)
        ]
        wait_for(lambda: server.connections == 3)
        for reader in readers:
            assert reader.recv(100)
        with closing(server.connect()) as refused:
            assert ended(refused)
        for reader in readers:
            left = ANSWER
            while left > 100:  # which were read before
                received = len(reader.recv(2**20))
                assert received > 0
                left -= received


def test_an_answer_that_nobody_reads_is_given_up(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.2)
    server = serve()
    with closing(server.connect(HEAD.replace(b"/", b"/large", 1) + b"\r\n")):
        wait_for(lambda: server.server.server_state.total_requests == 1)
        wait_for(lambda: server.connections == 0)


def test_a_thousand_silent_sockets_do_not_stop_scoring(live: Callable[..., Live]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip(f"this machine lets a process open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))  # as on many machines, or less
    try:
        service = live()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    client = Client(service.address, timeout=30)
    first = client.score("plate", png()).score
    half = b"POST /v1/models/plate/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n"
    with ExitStack() as stack:
        for sent in (b"", half, half + b"\r\n", half + b"\r\nabc"):
            for _ in range(250):
                wire = socket.create_connection(("127.0.0.1", service.port), timeout=30)
                stack.enter_context(closing(wire))
                wire.sendall(sent)
        for i in range(5):
            assert client.score("plate", png(i)).image
        assert client.score("plate", png()).score == first
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
