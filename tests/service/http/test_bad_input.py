"""Every field of the API with values of the wrong type, too large or hostile: a reason, and nothing is stored."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import sqlalchemy as sa

from bgad.service.blobs import BlobKind
from bgad.service.store import tables
from bgad.service.text import is_plain
from tests.service.conftest import SCORE, Maker, Service, as_file, linked, png, problem

HOSTILE = [
    "../../../etc/passwd",
    "..\\..\\windows\\win.ini",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a\x1b[31mb",
    "a\r\nSet-Cookie: x=1",
    "a\x00b",
    "a\x7fb",
    "\u202egnp.exe",
    "a\u2066b",
    "a\u2028b",  # ends a line in JavaScript
    "a\u2029b",
    "a\x85b",
    "x" * 2000,
]
WRONG_TYPES: list[Any] = [None, 7, -1, 1.5, True, [], ["a"], {}, {"a": 1}, 10**30, "NaN"]
FREE_TEXT = {"note"}  # in which < and .. are prose


@pytest.fixture(scope="module")
def untouched(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Has no image: what is sent to it is refused, which every test sees in its state."""
    maker = Maker(linked(model, tmp_path_factory.mktemp("untouched") / "models"))
    yield maker()
    maker.end()


@pytest.fixture(scope="module")
def with_image(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, int]]:
    """Has one image, and its number; what is sent to it is refused, too."""
    maker = Maker(linked(model, tmp_path_factory.mktemp("with-image") / "models"))
    service = maker()
    yield service, service.score(png())
    maker.end()


def state(service: Service) -> tuple[list[int], list[str]]:
    """How many rows each table has, and which files there are."""
    with service.store.database.engine.connect() as connection:
        rows = [
            connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in tables.metadata.sorted_tables
        ]
    files = [path.as_posix() for path in service.bench.folders.models.rglob("*") if path.is_file()]
    return rows, sorted(path for path in files if "store.sqlite" not in path and BlobKind.THUMBNAIL not in path)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_images(untouched: Service, name: str) -> None:
    before = state(untouched)
    answer = untouched.client.post(SCORE, params={"filename": name}, content=png())
    assert problem(answer, 400 if "\x00" in name else 422)
    part = (
        b'--x\r\nContent-Disposition: form-data; name="%s"; filename="'
        + name.encode()
        + b'"\r\n\r\n'
        + png()
        + b"\r\n--x--\r\n"
    )
    if "\r" in name:  # in a form, it ends the header
        return
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = untouched.client.post(SCORE, content=part.replace(b"%s", b"file"), headers=form)
    assert answer.status_code in (400, 422), answer.text
    answer = untouched.client.post("/v1/models/plate/batches", content=part.replace(b"%s", b"files"), headers=form)
    if answer.status_code == 200:  # the others of a batch are scored
        assert [list(result) for result in answer.json()["results"]] == [["name", "error"]]
    else:
        assert answer.status_code == 400
    assert state(untouched) == before


@pytest.mark.parametrize("name", [*HOSTILE, "no such model", "%2e%2e%2f", "."])
def test_names_of_models(with_image: tuple[Service, int], name: str) -> None:
    service, number = with_image
    before = state(service)
    quoted = quote(name, safe="")
    for method, path in (("POST", "score"), ("POST", "batches"), ("GET", "threshold"), ("POST", "rollback")):
        answer = service.client.request(method, f"/v1/models/{quoted}/{path}", content=b"")
        assert 400 <= answer.status_code < 500, answer.text
    for path in ("/v1/images", f"/v1/images/{number}", f"/v1/images/{number}/map.png", f"/v1/images/{number}/score"):
        assert 400 <= service.client.get(path, params={"model": name}).status_code < 500
    for body, path in (
        ({"model": name}, "/v1/jobs"),
        ({"verdict": "bad", "model": name}, f"/v1/images/{number}/reviews"),
    ):
        assert 400 <= service.client.post(path, json=body).status_code < 500
    assert state(service) == before


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        (
            "POST",
            "/v1/images/{}/reviews",
            {"verdict": "bad", "note": "a", "mask": None, "ignore": None, "model": "plate", "seen": None},
        ),
        ("PUT", "/v1/models/plate/threshold", {"rate": 0.5}),
        ("POST", "/v1/jobs", {"model": "plate", "images": [1]}),
    ],
)
def test_fields_of_bodies(with_image: tuple[Service, int], method: str, path: str, body: dict[str, Any]) -> None:
    service, number = with_image
    address, before = path.format(number), state(service)
    large = [0] * 200_000
    for field in body:
        for value in (*WRONG_TYPES, *HOSTILE, large, "x" * 5000, 1e308, -0.0):
            if field == "seen" and not isinstance(value, bool) and isinstance(value, int | float) and value in (0, 7):
                continue  # a number of a review: another status if there is no such one
            if (value is None and body[field] is None) or (field == "images" and value is None):
                continue
            if field in FREE_TEXT and isinstance(value, str) and is_plain(value, lines=True) and len(value) <= 2000:
                continue
            answer = service.client.request(method, address, json=body | {field: value})
            assert 400 <= answer.status_code < 500, (field, value, answer.text)
            assert problem(answer, answer.status_code)
    for wrong in (b"", b"{", b"[]", b'"a"', b"null", b"\xff\xfe", b'{"verdict": "bad"' * 1000, b"[" * 100_000):
        answer = service.client.request(method, address, content=wrong, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, wrong[:20]
    assert 400 <= service.client.request(method, address, json=body | {"extra": 1}).status_code < 500
    assert state(service) == before


NUMBERS = ["0", "-1", "1.5", "x", "9" * 30, "1e3", "%00", "..", "<script>", "１", "+1", "0x1", "2147483648"]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_in_paths(untouched: Service, number: str) -> None:
    before = state(untouched)
    for method, path in (
        ("GET", "images/{}"),
        ("GET", "images/{}/map.png?model=plate"),
        ("POST", "images/{}/reviews"),
        ("POST", "reviews/{}/undo"),
        ("GET", "reviews/{}/mask.png"),
        ("GET", "jobs/{}"),
        ("POST", "jobs/{}/cancel"),
        ("POST", "models/plate/versions/{}/release"),
    ):
        if number in ("+1", "１") and "release" in path:
            continue  # Python reads them as 1, which is released already
        answer = untouched.client.request(method, f"/v1/{path.format(number)}", json={"verdict": "bad"})
        assert 400 <= answer.status_code < 500, (path, answer.text)
    assert state(untouched) == before


@pytest.mark.parametrize(
    "query",
    [
        "order=first", "limit=0", "limit=201", "limit=x", "offset=-1", "offset=1e9", "since=nan", "since=inf",
        "since=-1", "decision=maybe", "review=..", "as_of=1", "as_of=1.2.3.x", "find=0", "find=99999999999", "until=x",
    ],
)  # fmt: skip
def test_values_of_queries(untouched: Service, query: str) -> None:
    assert problem(untouched.client.get(f"/v1/images?model=plate&{query}"), 422)


@pytest.mark.parametrize(
    "query",
    [
        "history?limit=0", "history?limit=1001", "history?before=0", "history?before=x", "history?since=inf",
        "history?until=-1", "history?search=" + "x" * 201, "history?search=%ff%fe%00", "history?model=" + "x" * 201,
        "history/export?format=exe", "history/export?format=../csv", "history/export?since=nan",
        "models/plate/drift?since=nan", "models/plate/drift?every=minute", "models/plate/drift?utc_offset=86401",
        "models/plate/drift?utc_offset=1.5", "models/plate/drift?last=-1", "models/plate/drift?last=9999999",
        "models/plate/changes?after=1.2", "models/plate/changes?after=..", "models/plate/changes?review=all",
        "jobs?model=" + "x" * 201, "jobs/1/validation/-1/before.jpg", "jobs/1/validation/0/..%2f..%2fbefore.jpg",
        "jobs/1/validation/99999999999999999999/after.jpg", "jobs/1/events?x=%00",
        "images/1/map.png?model=plate&version=0", "images/1/map.png?model=plate&version=x",
        "images/1/original?content=../../etc/passwd", "images/1/thumbnail.jpg", "images/1/score?model=plate&version=-1",
    ],
)  # fmt: skip
def test_values_of_other_queries(service: Service, query: str) -> None:
    service.score(png())
    before = state(service)
    answer = service.client.get(f"/v1/{query}")
    assert answer.status_code in (400, 404, 422), (answer.status_code, answer.text[:200])
    assert problem(answer, answer.status_code)
    assert state(service) == before


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/%2e%2e/http/app.py", "/static/..%2f..%2fhttp/app.py", "/static/..\\http\\app.py",
        "/static//etc/passwd", "/static/%00", "/static/index.html%00.js", "/static/" + "a/" * 2000,
        "/v1/%2e%2e/metrics", "/v1/images/1%2f..%2f2",
    ],
)  # fmt: skip
def test_paths_lead_nowhere_else(service: Service, path: str) -> None:
    answer = service.client.get(path, follow_redirects=False)
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.headers)
    assert "import" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": "multipart/form-data; boundary=" + "x" * 5000},
        {"Content-Type": "multipart/form-data; boundary=\u00e9".encode().decode("latin-1")},
        {"Content-Type": "application/json"},
        {"Content-Type": "text/html; charset=utf-99"},
        {"Content-Encoding": "gzip"},
        {"Authorization": "Bearer " + "x" * 5000},
        {"Authorization": "Basic \xff\xfe"},
        {"Cookie": "a=" + "x" * 5000},
        {"X-Forwarded-For": "127.0.0.1, <script>"},
        {"Range": "bytes=-1,0-" + "9" * 50},
        {"If-None-Match": '"' * 1000},
    ],
)
def test_headers(service: Service, headers: dict[str, str]) -> None:
    """Whatever the headers say, nothing fails and nothing but an image is stored."""
    before = state(service)
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = service.client.post(SCORE, content=b"no image", headers=raw)
    assert problem(answer, answer.status_code)
    assert 400 <= answer.status_code < 500
    assert service.client.get("/v1/models", headers=raw).status_code in (200, 400, 401, 403)
    assert state(service) == before


@pytest.mark.parametrize("kind", ["mask", "ignore"])
def test_masks(with_image: tuple[Service, int], kind: str) -> None:
    service, number = with_image
    before = state(service)
    right = as_file(np.full((64, 64), 255, np.uint8))
    for content in (
        b"",
        b"<svg/>",
        right[:40],
        right[:-20] + b"x" * 20,
        as_file(np.zeros((64, 65), np.uint8)),
        b"\0" * 9,
    ):
        body = {"verdict": "bad", kind: base64.b64encode(content).decode()}
        assert problem(service.client.post(f"/v1/images/{number}/reviews", json=body), 422)
    assert state(service) == before


def test_prose_stays_prose(service: Service) -> None:
    number = service.score(png())
    note = "a scratch < 3 mm,\n\tsee ../report; <b>not</b> a crack"
    answer = service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "bad", "note": note})
    assert answer.json()["note"] == note
