from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bgad.client import Client, Failure, ReviewChangedError, Score, ServiceError
from bgad.errors import BgadError, ConfigError, ImageError
from bgad.inference.onnx_engine import Runtime
from bgad.service import access
from bgad.service.folders import WORKSPACE
from bgad.service.store.store import Store
from tests.conftest import SIZE, draw_image
from tests.service.conftest import Live, free_port, png, sqlite_address


@pytest.fixture(scope="module")
def running(model: Path, data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, str]]:
    """A live service that asks for tokens, and one of them."""
    models = tmp_path_factory.mktemp("client")
    shutil.copytree(model, models / "plate.bgad", copy_function=os.link)
    (models / WORKSPACE).mkdir()
    store = Store(sqlite_address(models))
    token = access.new_token(store.tokens, "ann", "admin")
    store.close()
    service = Live(models, ("--data", str(data_set.parent))).start()
    yield service, token
    service.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def client(running: tuple[Live, str]) -> Client:
    return Client(running[0].address + "/", running[1])


def test_it_imports_nothing_heavy() -> None:
    program = (
        "import sys, bgad\n"
        "before = set(sys.modules)\n"
        "import bgad.client\n"
        "heavy = {'torch', 'PIL', 'fastapi', 'pydantic', 'sqlalchemy', 'onnxruntime', 'rich'} & set(sys.modules)\n"
        "more = {name for name in set(sys.modules) - before if name.split('.')[0] not in sys.stdlib_module_names}\n"
        "print(sorted(heavy), sorted(more))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[] ['bgad.client']\n"
    )


def test_an_image_as_file_bytes_or_array_gets_the_same_score(client: Client, model: Path, tmp_path: Path) -> None:
    (path := tmp_path / "part ü&.png").write_bytes(png(1, defect=True))
    array = draw_image(np.random.default_rng(1001), defect=True)[0]
    found = [client.score("plate", given) for given in (path, str(path), png(1, defect=True), array)]
    expected = Runtime.load(model).score(path)
    assert [s.score for s in found] == pytest.approx([expected.score] * 4, rel=1e-5)
    assert [s.name for s in found] == ["part ü&.png", "part ü&.png", "image", "image"]
    assert found[0].is_anomaly == expected.is_anomaly
    assert client.score("plate", array, "camera 3.png").name == "camera 3.png"
    assert client.get(found[0].overlay)[:4] == b"\x89PNG"
    assert sum(found[0].parts.values()) == pytest.approx(found[0].score, rel=1e-5, abs=1e-5)
    assert bool(found[0].reason) == found[0].is_anomaly


def test_a_batch_in_its_order(client: Client, tmp_path: Path) -> None:
    (path := tmp_path / 'a "quoted" name.png').write_bytes(png(2))
    results = client.batch("plate", [path, b"no picture", png(3)])
    assert isinstance(results[0], Score)
    assert isinstance(results[2], Score)
    assert results[0].name.startswith("a ")
    assert isinstance(results[1], Failure)
    assert "not an image" in results[1].error


def test_models_images_and_reviews(client: Client) -> None:
    (only,) = client.models()
    assert only == client.model("plate")
    assert (only.name, only.size) == ("plate", SIZE)
    number = client.score("plate", png(4)).image
    mask = np.zeros((SIZE, SIZE), bool)
    mask[5:9, 5:9] = True
    review = client.review(number, "bad", note="a blot", mask=mask)
    assert (review.verdict, review.note, review.who) == ("bad", "a blot", "ann")
    assert review.mask is not None
    assert client.get(review.mask)[:4] == b"\x89PNG"
    assert {image.id: image.has_mask for image in client.images("plate", review="bad")}[number]
    assert client.undo(client.review(number, "good")).verdict == "bad"
    assert client.undo(client.review(client.score("plate", png(5)).image, "bad").id).verdict == "withdrawn"
    seen = client.drift("plate", every="day")
    assert (seen.total, seen.every) == (sum(day["count"] for day in seen.bins), "day")
    assert number in [point["image"] for point in seen.series]
    assert (seen.recent_alarm, seen.since_alarm) == (False, None)
    assert len(list(client.images("plate", order="newest", limit=1))) == 1


def test_a_review_that_has_not_seen_the_last_one_is_refused(client: Client) -> None:
    number = client.score("plate", png(6)).image
    first = client.review(number, "bad", seen=0)
    assert {image.id: image.review for image in client.images("plate")}[number] == first.id
    last = client.review(number, "good", seen=first)
    with pytest.raises(ReviewChangedError, match="was changed by ann at") as refused:
        client.review(number, "unsure", seen=first.id)
    assert (refused.value.status, refused.value.review) == (409, last)
    with pytest.raises(ReviewChangedError):
        client.undo(first)


def test_a_list_goes_on_over_its_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (4, 4), np.uint8) for _ in range(208)]  # in four requests
    scored = client.batch("plate", pictures)
    assert len({found.image for found in scored if isinstance(found, Score)}) == 208
    newest = list[int]()
    for image in client.images("plate", order="newest"):
        newest.append(image.id)
        if len(newest) in (1, 100):  # what comes in meanwhile moves nothing
            client.score("plate", png(500 + len(newest)))
    assert newest[:208] == sorted(newest, reverse=True)[:208]
    assert len(set(newest)) == len(newest) > 200
    few = {found.image for found in scored[:205] if isinstance(found, Score)}
    left = client.images("plate", review="none")
    for image in left:  # each verdict takes one out of what the filter wants
        if image.id in few:
            client.review(image.id, "unsure")
    assert few.isdisjoint(image.id for image in client.images("plate", review="none"))


def test_teach_wait_release_and_back(client: Client) -> None:
    number = client.score("plate", png(7, defect=True)).image
    client.review(number, "bad")
    job = client.wait(client.teach("plate", [number]), timeout=120)
    assert (job.state, job.images, job.seconds_left) == ("done", [number], None)
    assert job.result is not None
    assert job.new_version is not None
    old = client.model("plate").version["id"]
    assert client.release("plate", job.new_version).version["id"] == job.new_version
    assert client.rollback("plate").version["id"] == old
    assert client.discard("plate", job.new_version).versions[-1]["state"] == "discarded"
    assert [one.id for one in client.jobs("plate")] == [job.id]
    assert client.jobs("wheel") == []
    with pytest.raises(ServiceError, match="is done: there is nothing to resume"):
        client.resume(job)
    assert client.set_rate("plate", 0.5).rate == 0.5
    cancelled = client.teach("plate", [number])
    client.cancel(cancelled)
    with pytest.raises(ServiceError, match=f"job {cancelled.id} is cancelled: cancelled"):
        client.wait(cancelled, timeout=60)


def test_errors_are_the_one_line_of_the_service(client: Client, running: tuple[Live, str], tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="there is no released model 'a b&c'") as missing:
        client.score("a b&c", png())
    assert missing.value.status == 404
    with pytest.raises(BgadError, match="image: not an image"):
        client.score("plate", b"nothing")
    with pytest.raises(ServiceError, match="a token is needed"):
        Client(running[0].address).models()
    with pytest.raises(ImageError, match=r"none\.png: cannot be read: No such file"):
        client.score("plate", tmp_path / "none.png")
    with pytest.raises(ImageError, match="this is no array of uint8"):
        client.score("plate", np.zeros((2, 2, 7), np.float64))
    with pytest.raises(ConfigError, match="'localhost' is no address of a service: give http://HOST:PORT"):
        Client("localhost")
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:\d+ cannot be reached: .*refused"):
        Client(f"http://127.0.0.1:{free_port()}").models()


# --- a service that is busy: no real one can be told when to be


class Busy(BaseHTTPRequestHandler):
    """Turns away as many requests as it is told to, then answers with what it got."""

    refusals: list[tuple[int, str]] = []  # noqa: RUF012 - set by each test
    seen: list[float] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append(time.monotonic())
        code, text = self.refusals.pop(0) if self.refusals else (200, "[]")
        self.send_response(code)
        if code == 503:
            self.send_header("Retry-After", "0.2")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def busy() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Busy.refusals, Busy.seen = [], []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_that_was_turned_away_is_sent_again_after_the_time_that_was_named(busy: str) -> None:
    Busy.refusals = [(503, '{"detail": "later"}')] * 3
    assert Client(busy).models() == []
    assert len(Busy.seen) == 4
    assert min(np.diff(Busy.seen)) >= 0.19


def test_not_for_ever(busy: str) -> None:
    Busy.refusals = [(503, '{"detail": "later"}')] * 10
    with pytest.raises(ServiceError, match=r"^later$") as refused:
        Client(busy, tries=3).models()
    assert refused.value.status == 503
    assert len(Busy.seen) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((500, "<html>a proxy</html>"), "the service answers 500 Internal Server Error"),
        ((500, '{"detail": "two\\nlines"}'), "^two lines$"),
        ((200, "<html>"), "does not answer like a workbench"),
        ((200, '[{"name": "x"}]'), "has no 'version': is it an older one"),
    ],
)
def test_an_answer_of_something_else(busy: str, answer: tuple[int, str], message: str) -> None:
    Busy.refusals = [answer]
    with pytest.raises(ServiceError, match=message) as refused:
        Client(busy).models()
    assert "\n" not in str(refused.value)
    assert len(Busy.seen) == 1


# --- a service that sends us elsewhere


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects the first request to an address, and answers and records the others."""

    to = ""
    code = 302
    seen: list[tuple[int, str, str | None]] = []  # noqa: RUF012 - port, path and token of each request

    def do_GET(self) -> None:
        port = int(self.connection.getsockname()[1])
        self.seen.append((port, self.path, self.headers.get("Authorization")))
        redirects = Elsewhere.to and len(self.seen) == 1
        body = b"" if redirects else b"[]"
        self.send_response(self.code if redirects else 200)
        if redirects:
            self.send_header("Location", self.to)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Of two servers."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    Elsewhere.seen = []
    yield [server.server_port for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "elsewhere",
    [
        "http://127.0.0.1:{other}/v1/models",
        "//127.0.0.1:{other}/",
        "https://127.0.0.1:{ours}/",
        "http://localhost:{ours}/v1/models",
    ],
)
def test_a_redirect_to_another_origin_is_refused(ports: list[int], code: int, elsewhere: str) -> None:
    Elsewhere.to, Elsewhere.code = elsewhere.format(ours=ports[0], other=ports[1]), code
    client = Client(f"http://127.0.0.1:{ports[0]}", "secret")
    with pytest.raises(
        ServiceError, match=r"sends us on to https?://(127\.0\.0\.1|localhost):\d+: if you trust it, use that"
    ):
        client.models()
    assert [(port, token) for port, _, token in Elsewhere.seen] == [(ports[0], "Bearer secret")]


def test_a_post_is_not_sent_elsewhere_either(ports: list[int]) -> None:
    Elsewhere.to, Elsewhere.code = f"http://localhost:{ports[1]}/", 302
    with pytest.raises(ServiceError, match="sends us on to http://localhost"):
        Client(f"http://127.0.0.1:{ports[0]}", "secret").score("plate", b"image")
    assert [port for port, *_ in Elsewhere.seen] == [ports[0]]


def test_a_redirect_within_the_service_is_followed(ports: list[int]) -> None:
    Elsewhere.to, Elsewhere.code = "/v1/models/", 307
    assert Client(f"http://127.0.0.1:{ports[0]}", "secret").models() == []
    assert [path for _, path, _ in Elsewhere.seen] == ["/v1/models", "/v1/models/"]


def test_a_link_in_an_answer_does_not_lead_elsewhere(ports: list[int]) -> None:
    Elsewhere.to = ""
    client = Client("http://localhost", "secret")
    for link in (f"@127.0.0.1:{ports[1]}/", f".example:{ports[1]}/", f"http://127.0.0.1:{ports[1]}/", ""):
        with pytest.raises(ConfigError, match="is no path of the service"):
            client.get(link)
    assert Elsewhere.seen == []
