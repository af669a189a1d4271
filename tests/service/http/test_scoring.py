"""Routes that score uploaded images."""

from __future__ import annotations

import hashlib
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile
from starlette.datastructures import UploadFile

from bgad.inference.onnx_engine import Runtime
from bgad.service.blobs import BlobKind
from bgad.service.folders import WORKSPACE
from bgad.service.http.admission import BATCH_PLACES
from bgad.service.scoring.batcher import MAX_WAITING
from bgad.service.workbench import Workbench
from tests.conftest import SIZE
from tests.service.conftest import (
    SCORE,
    Maker,
    Service,
    as_file,
    bomb,
    png,
    problem,
    wait_for,
)


def test_the_score_is_that_of_the_model(service: Service, model: Path, tmp_path: Path) -> None:
    (tmp_path / "part.png").write_bytes(png(5, defect=True))
    expected = Runtime.load(model).score(tmp_path / "part.png")
    found = service.client.post(SCORE, params={"filename": "part.png"}, content=png(5, defect=True)).json()
    assert found["score"] == pytest.approx(expected.score, rel=1e-5)
    assert (found["p_value"], found["is_anomaly"]) == (expected.p_value, expected.is_anomaly)
    assert found["decision"] == ("anomalous" if expected.is_anomaly else "normal")
    assert (found["name"], found["model"]) == ("part.png", "plate")
    for key, kind in (("map", "image/png"), ("overlay", "image/png")):
        answer = service.client.get(found[key])
        assert answer.headers["content-type"] == kind
        assert Image.open(io.BytesIO(answer.content)).size == (SIZE, SIZE)
    headers = service.client.get(found["map"]).headers
    assert float(headers["x-low"]) < float(headers["x-high"])
    again = service.client.post(SCORE, content=png(5, defect=True)).json()
    assert (again["image"], again["score"]) == (found["image"], pytest.approx(found["score"], rel=1e-5))


def test_an_image_in_a_form(service: Service) -> None:
    body = service.client.post(SCORE, content=png(1)).json()
    form = service.client.post(SCORE, files={"file": ("a/b/part.png", png(1), "text/html")}).json()
    assert (form["image"], form["name"]) == (body["image"], "part.png")
    assert body["name"] == "image"


@pytest.mark.parametrize(
    ("array", "kind", "mode"),
    [
        (np.full((40, 30), 30000, np.uint16), "PNG", None),
        (np.full((40, 30, 3), 90, np.uint8), "JPEG", "CMYK"),
        (np.full((40, 30, 4), 90, np.uint8), "PNG", None),
        (np.full((40, 30), 90, np.uint8), "TIFF", None),
        (np.full((40, 30, 3), 90, np.uint8), "WEBP", None),
        (np.full((1, 1), 90, np.uint8), "BMP", None),
    ],
)
def test_images_of_all_kinds_are_scored_and_shown(
    service: Service, array: np.ndarray, kind: str, mode: str | None
) -> None:
    number = service.score(as_file(array, kind, mode))
    shown = service.client.get(f"/v1/images/{number}").json()
    assert (shown["height"], shown["width"]) == array.shape[:2]
    view = service.client.get(f"/v1/images/{number}/view.png")
    assert Image.open(io.BytesIO(view.content)).size == array.shape[1::-1]
    thumbnail = service.client.get(f"/v1/images/{number}/thumbnail.jpg", params={"model": "plate"})
    assert thumbnail.headers["content-type"] == "image/jpeg"


def turned(kind: str) -> bytes:
    """An image that is to be turned by a quarter before it is shown."""
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(np.full((40, 30, 3), 90, np.uint8)).save(buffer, kind, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("shape", [(40, 30), (40, 30, 3)])
def test_an_image_that_browsers_show_is_sent_as_it_is(service: Service, kind: str, shape: tuple[int, ...]) -> None:
    content = as_file(np.random.default_rng(0).integers(0, 255, shape, np.uint8), kind)
    view = service.client.get(f"/v1/images/{service.score(content)}/view.png")
    assert view.content == content
    assert view.headers["content-type"] == f"image/{kind.lower()}"


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (turned("JPEG"), (40, 30)),
        (turned("PNG"), (40, 30)),
        (as_file(np.full((40, 30, 4), 90, np.uint8)), (30, 40)),
        (as_file(np.full((40, 30), 1000, np.uint16)), (30, 40)),
        (as_file(np.full((40, 30, 3), 90, np.uint8), "JPEG", "CMYK"), (30, 40)),
        (as_file(np.full((40, 30, 3), 90, np.uint8), "BMP"), (30, 40)),
    ],
    ids=["turned JPEG", "turned PNG", "transparent", "16 bits", "CMYK", "BMP"],
)
def test_an_image_that_browsers_show_otherwise_is_sent_as_png(
    service: Service, content: bytes, size: tuple[int, int]
) -> None:
    view = service.client.get(f"/v1/images/{service.score(content)}/view.png")
    shown = Image.open(io.BytesIO(view.content))
    assert view.headers["content-type"] == "image/png"
    assert (shown.format, shown.mode, shown.size) == ("PNG", "RGB", size)


def animated() -> bytes:
    frames = [Image.new("RGB", (20, 20), (i, 0, 0)) for i in (0, 90, 200)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


NOT_TAKEN = {
    "empty": (b"", "is empty"),
    "no picture": (b"<svg onload=alert(1)>", "not an image"),
    "half of one": (png()[: len(png()) // 2], "cannot be read"),
    "damaged": (png()[:60] + b"\0" * 40 + png()[100:], "image: cannot be read"),
    "animated": (animated(), "has several frames"),
    "too many pixels": (as_file(np.zeros((1001, 1000), np.uint8)), "exceed the limit of 1000000"),
    "a bomb": (bomb(), "60000 x 60000 pixels exceed"),
    "a GIF": (as_file(np.zeros((5, 5), np.uint8), "GIF"), "not an image"),
}


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_what_is_no_image_that_we_take_is_refused_and_not_kept(
    service: Service, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, message = NOT_TAKEN[case]
    if case in ("a bomb", "too many pixels"):  # the header is enough to refuse it
        monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("its pixels were decoded"))
    for answer in (
        service.client.post(SCORE, content=content, headers={"Content-Type": "image/png"}),
        service.client.post(SCORE, files={"file": ("part.png", content)}),
    ):
        said = problem(answer, 422)
        assert message in said
        assert str(service.bench.folders.models) not in said  # where our files are is nobody's business
    assert not [
        path for path in (service.bench.folders.models / WORKSPACE / BlobKind.IMAGE).rglob("*") if path.is_file()
    ]
    assert service.client.get("/v1/images", params={"model": "plate"}).json()["total"] == 0


def test_what_is_too_large_is_refused(make: Maker) -> None:
    service = make(max_bytes=10_000)
    large = b"\x89PNG" + bytes(10_001)
    assert "10000 bytes" in problem(service.client.post(SCORE, content=large), 413)
    assert "10000 bytes" in problem(service.client.post(SCORE, content=iter([large[:6000], large[6000:]])), 413)
    assert "10000 bytes" in problem(service.client.post(SCORE, files={"file": large}), 413)
    assert "too large" in problem(service.client.post(SCORE, files={"file": large * 2}), 413)
    assert "too large" in problem(service.client.post("/v1/models/plate/batches", files={"files": bytes(700_000)}), 413)


def test_a_body_of_any_length_is_cut_off(make: Maker) -> None:
    service = make(max_bytes=10_000)
    sent = 0

    def endless() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 2**16
            yield b" " * 2**16

    image = service.score(png())
    assert "send less" in problem(service.client.post(f"/v1/images/{image}/reviews", content=endless()), 413)
    length = {"Content-Type": "multipart/form-data; boundary=x"}
    said = problem(service.client.post("/v1/models/plate/batches", content=endless(), headers=length), 411)
    assert said == "a form must say how long it is: send it with Content-Length"


def test_forms_that_do_not_fit(service: Service) -> None:
    batches = "/v1/models/plate/batches"
    assert "one field `file`" in problem(service.client.post(SCORE, files=[("file", png(1)), ("file", png(2))]), 422)
    assert "no file in the field `file`" in problem(service.client.post(SCORE, files={"other": png()}), 422)
    assert "no file in the field `files`" in problem(service.client.post(batches, files={"file": png()}), 422)
    assert "no file" in problem(service.client.post(batches, data={"files": "text"}), 422)
    problem(service.client.post(batches, files=[("files", b"x")] * 65), 400)
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    problem(service.client.post(batches, content=b"no form", headers=broken), 400)
    problem(service.client.post(SCORE, content=b"", headers={"Content-Type": "multipart/form-data"}), 400)
    problem(service.client.post("/v1/models/wheel/batches", files={"files": png()}), 404)
    problem(service.client.post("/v1/models/wheel/score", content=png()), 404)


def test_a_batch_is_scored_in_its_order_and_one_that_is_broken_does_not_stop_it(service: Service) -> None:
    files = [("files", (f"{i}.png", png(i))) for i in range(20)]
    files[7] = ("files", ("broken.png", b"no picture"))
    results = service.client.post("/v1/models/plate/batches", files=files).json()["results"]
    assert [r["name"] for r in results] == [name for _, (name, _) in files]
    assert "not an image" in results[7]["error"]
    assert sum("score" in r for r in results) == 19
    assert results[3]["image"] == service.score(png(3))
    assert service.client.get("/v1/images", params={"model": "plate", "limit": 5}).json()["total"] == 19


def test_an_image_of_a_batch_that_is_too_large_does_not_stop_the_others(make: Maker) -> None:
    service = make(max_bytes=10_000)
    files = [("files", ("a.png", png(1))), ("files", ("large.png", bytes(10_001))), ("files", ("b.png", png(2)))]
    first, failed, last = service.client.post("/v1/models/plate/batches", files=files).json()["results"]
    assert failed == {"name": "large.png", "error": "an image may have 10000 bytes: send a smaller one"}
    assert (first["name"], last["name"]) == ("a.png", "b.png")
    assert service.client.get("/v1/images", params={"model": "plate"}).json()["total"] == 2


def test_the_files_of_a_batch_are_read_one_after_the_other(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    held, most, lock = 0, 0, threading.Lock()
    real = Workbench.score

    def counted(self: Workbench, *given: Any, **options: Any) -> Any:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        try:
            return real(self, *given, **options)
        finally:
            with lock:
                held -= 1

    monkeypatch.setattr(Workbench, "score", counted)
    monkeypatch.setattr(UploadFile, "read", lambda *_: pytest.fail("all of them were read before"))
    files = [("files", (f"{i}.png", png(i))) for i in range(16)]
    results = service.client.post("/v1/models/plate/batches", files=files).json()["results"]
    assert [r["name"] for r in results] == [f"{i}.png" for i in range(16)]
    assert most <= BATCH_PLACES


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/var/parts/7.png", "7.png"),
        ("C:\\parts\\7.png", "7.png"),
        ("' OR 1=1; DROP TABLE images; --", "' OR 1=1; DROP TABLE images; --"),
        ("/", "image"),
        ("x" * 900, "x" * 200),
        ("Zahnrad-ü-齿轮.png", "Zahnrad-ü-齿轮.png"),
    ],
)
def test_names_stay_text_and_lead_nowhere(service: Service, given: str, shown: str) -> None:
    before = {path for path in service.bench.folders.models.rglob("*") if WORKSPACE not in path.parts}
    answer = service.client.post(SCORE, params={"filename": given}, content=png()).json()
    assert answer["name"] == shown
    listed = service.client.get("/v1/images", params={"model": "plate"})
    assert listed.json()["images"][0]["name"] == shown
    assert listed.headers["content-type"] == "application/json"
    form = service.client.post(SCORE, files={"file": (given.replace("\r\n", ""), png(1))}).json()
    assert "/" not in form["name"]
    assert {path for path in service.bench.folders.models.rglob("*") if WORKSPACE not in path.parts} == before


def test_when_too_many_wait_the_answer_is_503_and_says_when_to_come_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    real = Runtime.run

    def held(self: Runtime, pixels: np.ndarray) -> Any:
        assert gate.wait(60)
        return real(self, pixels)

    monkeypatch.setattr(Runtime, "run", held)
    answers: list[Any] = []

    def send(seed: int) -> None:
        answers.append(service.client.post(SCORE, content=png(seed)))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(MAX_WAITING)]
    for thread in threads:
        thread.start()
    wait_for(lambda: service.bench.models.waiting() == MAX_WAITING)
    assert f"bgad_waiting {MAX_WAITING}.0" in service.client.get("/metrics").text
    refused = service.client.post(SCORE, content=png(999))
    assert "too many images wait" in problem(refused, 503)
    assert refused.headers["retry-after"] == "1"
    problem(service.client.post(SCORE, content=png(0)), 503)
    known = {hashlib.sha256(png(seed)).hexdigest(): seed for seed in (*range(MAX_WAITING), 999)}
    files = (service.bench.folders.models / WORKSPACE / BlobKind.IMAGE).rglob("*")
    left = {known[path.name] for path in files if path.is_file()}
    assert left == set(range(MAX_WAITING))  # what was turned away is gone, unless the same image is being scored
    assert service.client.get("/healthz").status_code == 200  # all else goes on
    assert service.client.get("/v1/models").status_code == 200
    gate.set()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * MAX_WAITING
