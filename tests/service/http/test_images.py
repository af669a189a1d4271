"""The API: images and reviews."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

from bgad.service.blobs import BlobKind
from bgad.service.folders import WORKSPACE
from bgad.service.store import tables
from tests.conftest import SIZE
from tests.service.conftest import Maker, Service, as_file, bomb, png, problem, wait_for


def painted(width: int = SIZE, height: int = SIZE, *, marked: bool = True) -> str:
    mask = np.zeros((height, width), np.uint8)
    mask[2:9, 3:7] = 255 * marked
    return base64.b64encode(as_file(mask)).decode()


# --- images


def test_a_list_of_images(service: Service) -> None:
    numbers = [service.score(png(i, defect=i % 2 == 0), f"{i}.png") for i in range(6)]
    service.client.post(f"/v1/images/{numbers[0]}/reviews", json={"verdict": "bad", "note": "a blot"})

    def listed(**params: Any) -> dict[str, Any]:
        answer = service.client.get("/v1/images", params={"model": "plate", **params})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    assert [i["id"] for i in listed(order="newest")["images"]] == numbers[::-1]
    scores = [i["score"] for i in listed(order="anomalous")["images"]]
    assert scores == sorted(scores, reverse=True)
    (only,) = listed(review="bad")["images"]
    assert (only["id"], only["verdict"], only["note"]) == (numbers[0], "bad", "a blot")
    assert listed(review="none")["total"] == 5
    page = listed(order="newest", limit=2, offset=2)
    assert ([i["id"] for i in page["images"]], page["total"]) == (numbers[3:1:-1], 6)
    flagged = listed(decision="anomalous")["images"]
    assert all(i["is_anomaly"] for i in flagged)
    assert len(flagged) + listed(decision="normal")["total"] == 6
    assert service.client.get(only["thumbnail"]).headers["content-type"] == "image/jpeg"
    for wrong in ({"order": "random"}, {"limit": 0}, {"limit": 201}, {"offset": -1}, {"offset": 10**20},
                  {"review": "ugly"}, {"decision": "?"}, {"since": "nan"}, {"model": "x" * 201}):  # fmt: skip
        problem(service.client.get("/v1/images", params={"model": "plate", **wrong}), 422)
    problem(service.client.get("/v1/images"), 422)
    problem(service.client.get("/v1/images", params={"model": "wheel"}), 404)


def test_a_list_as_of_its_first_page_and_what_is_new_since(service: Service) -> None:
    numbers = [service.score(png(i, defect=i % 2 == 0), f"{i}.png") for i in range(4)]

    def ask(route: str, **params: Any) -> dict[str, Any]:
        answer = service.client.get(f"/v1/{route}", params=params)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    first = ask("images", model="plate", order="newest", review="none", limit=2, find=numbers[0])
    assert ([i["id"] for i in first["images"]], first["place"]) == (numbers[:1:-1], 3)
    before = ask("models/plate/news", after=first["as_of"])
    new = [service.score(png(i, defect=i % 2 == 0)) for i in range(4, 9)]
    service.client.post(f"/v1/images/{numbers[3]}/reviews", json={"verdict": "bad"})
    service.client.post(f"/v1/images/{new[0]}/reviews", json={"verdict": "bad"})
    again = {"model": "plate", "order": "newest", "review": "none", "as_of": first["as_of"]}
    second = ask("images", **again, limit=2, offset=2, find=new[1])
    assert [i["id"] for i in second["images"]] == numbers[1::-1]
    assert (second["total"], second["as_of"], second["place"]) == (4, first["as_of"], None)
    assert ask("images", **again)["images"][0]["verdict"] == "bad"  # as it is said now

    news = ask("models/plate/news", after=first["as_of"])
    assert (before["new"], news["new"]) == (0, 5)
    assert before["latest"] != news["latest"] == ask("models/plate/news")["latest"]
    assert ask("models/plate/news", after=first["as_of"], review="none")["new"] == 4
    assert ask("models/plate/news")["new"] == 0
    model = ask("models/plate")
    assert (news["version"], news["threshold"]) == (model["version"]["id"], model["threshold"])
    assert (news["candidates"], news["jobs"]) == ([], [])
    job = service.store.jobs.add("teach", service.store.versions.released("plate"), [], "ann").id
    candidate = service.store.versions.add("plate", "b" * 64, "2.bgad", state="candidate").id
    news = ask("models/plate/news")
    assert (news["candidates"], news["jobs"]) == ([candidate], [job])
    for wrong in ("1", "1.2.3", "1.2.3.x", "1.2.99999999999.4", "1.2.3.4.5", "-1.2.3.4", "1.2.3.٣"):
        problem(service.client.get("/v1/images", params={"model": "plate", "as_of": wrong}), 422)
        problem(service.client.get("/v1/models/plate/news", params={"after": wrong}), 422)
    for unknown in ("9.9.9.9", "9999999999.9.9.999999999999999"):
        problem(service.client.get("/v1/images", params={"model": "plate", "as_of": unknown}), 404)
    problem(service.client.get("/v1/models/wheel/news"), 404)


def test_an_image_with_its_history_and_neighbours(service: Service) -> None:
    numbers = [service.score(png(i)) for i in range(5)]
    service.client.post(f"/v1/images/{numbers[2]}/reviews", json={"verdict": "unsure"})
    found = service.client.get(f"/v1/images/{numbers[2]}", params={"model": "plate"}).json()
    assert found["scores"][0]["model"] == "plate"
    assert found["reviews"][0]["verdict"] == "unsure"
    assert {n["id"] for n in found["neighbours"]} <= {*numbers} - {numbers[2]}
    assert found["neighbours"]
    assert service.client.get(f"/v1/images/{numbers[2]}").json()["neighbours"] == []
    near = found["neighbours"][0]["id"]
    service.client.post(f"/v1/images/{near}/reviews", json={"verdict": "bad"})
    shown = service.client.get(f"/v1/images/{numbers[2]}", params={"model": "plate"}).json()["neighbours"][0]
    assert shown.keys() == {"id", "name", "score", "is_anomaly", "verdict"}
    assert (shown["id"], shown["verdict"]) == (near, "bad")


def test_any_version_says_what_it_thinks_and_it_is_not_kept(models: Path, make: Maker) -> None:
    shutil.copytree(models / "plate.bgad", models / "wheel.bgad")
    service = make()
    number = service.score(png(1, defect=True))
    (kept,) = service.client.get(f"/v1/images/{number}").json()["scores"]
    asked = service.client.get(f"/v1/images/{number}/score", params={"model": "plate"}).json()
    facts = service.client.get("/v1/models/plate").json()
    assert asked == {k: v for k, v in kept.items() if k != "created"} | {"calibration": facts["calibration"]}
    wheel = service.store.versions.released("wheel").id
    other = service.client.get(f"/v1/images/{number}/score", params={"model": "wheel", "version": wheel}).json()
    assert (other["model"], other["version"], other["score"]) == ("wheel", wheel, asked["score"])
    assert service.client.get(f"/v1/images/{number}").json()["scores"] == [kept]
    problem(service.client.get(f"/v1/images/{number}/score", params={"model": "plate", "version": wheel}), 404)
    problem(service.client.get("/v1/images/99/score", params={"model": "plate"}), 404)


def test_the_picture_comes_back_as_it_was_sent_and_is_not_shown_as_a_page(service: Service) -> None:
    number = service.score(png(), "evil.html")
    answer = service.client.get(f"/v1/images/{number}/picture")
    assert answer.content == png()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("what", ["", "/picture", "/view.png", "/thumbnail.jpg", "/overlay.png", "/map.png"])
def test_images_that_are_not_there(service: Service, what: str) -> None:
    for number in (0, -1, 99, 2**31, 2**63, 10**30):
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "plate"}), 404)
    problem(service.client.get(f"/v1/images/one{what}", params={"model": "plate"}), 422)
    number = service.score(png())
    if what.endswith(("jpg", "y.png", "p.png")):
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "wheel"}), 404)
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "plate", "version": 99}), 404)
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "plate", "version": 2**40}), 422)


def test_a_picture_whose_file_is_gone(service: Service) -> None:
    number = service.score(png())
    service.bench.views.path(number).unlink()
    for what in ("picture", "view.png", "overlay.png"):
        said = problem(service.client.get(f"/v1/images/{number}/{what}", params={"model": "plate"}), 410)
        assert "is not there any more" in said


def test_a_thumbnail_is_drawn_beside_the_requests_and_again_where_it_is_missing(service: Service) -> None:
    number = service.score(png())
    folder = service.bench.folders.models / WORKSPACE / BlobKind.THUMBNAIL
    wait_for(lambda: any(path.is_file() and path.name[0] != "." for path in folder.rglob("*")))
    first = service.client.get(f"/v1/images/{number}/thumbnail.jpg", params={"model": "plate"}).content
    (drawn,) = (path for path in folder.rglob("*") if path.is_file())
    drawn.write_bytes(b"")  # as a power cut may leave it
    assert service.client.get(f"/v1/images/{number}/thumbnail.jpg", params={"model": "plate"}).content == first
    shutil.rmtree(folder)
    second = service.client.get(f"/v1/images/{number}/thumbnail.jpg", params={"model": "plate"}).content
    sizes = [Image.open(io.BytesIO(content)).size for content in (first, second)]
    assert sizes == [(SIZE, SIZE)] * 2
    difference = [np.asarray(Image.open(io.BytesIO(content)), float) for content in (first, second)]
    assert np.abs(difference[0] - difference[1]).max() < 20


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/..%2f..%2fetc/threshold",
        "/v1/models/%2e%2e/threshold",
        "/v1/models/.workbench/threshold",
        "/v1/models/plate.bgad%2fcard.json/threshold",
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/....//app.py",
        "/v1/images/1%2f..%2f..%2fstore.sqlite",
        "/.workbench/store.sqlite",
        "/models/plate.bgad/card.json",
    ],
)
def test_no_name_leads_to_another_file(service: Service, path: str) -> None:
    answer = service.client.get(path)
    assert answer.status_code in (404, 422)
    assert b"checksum" not in answer.content
    assert b"import" not in answer.content
    assert b"root:" not in answer.content


def test_a_nul_in_the_address_is_refused(service: Service) -> None:
    for path in ("/v1/models/a%00b", "/v1/images?model=a%00b", "/v1/history?model=%00", "/static/a%00"):
        assert "NUL" in problem(service.client.get(path), 400)


# --- reviews


def test_a_review_with_what_was_painted(service: Service) -> None:
    number = service.score(png())
    sent = {"verdict": "bad", "note": "<script>alert('x')</script>\nsecond line", "mask": painted(), "ignore": None}
    answer = service.client.post(f"/v1/images/{number}/reviews", json=sent)
    assert answer.status_code == 201
    kept = answer.json()
    assert (kept["verdict"], kept["note"], kept["who"]) == ("bad", sent["note"], "local")
    assert service.client.get(kept["mask"]).content == base64.b64decode(painted())
    assert kept["ignore"] is None
    problem(service.client.get(f"/v1/reviews/{kept['id']}/ignore.png"), 404)
    problem(service.client.get("/v1/reviews/99/mask.png"), 404)
    problem(service.client.get(f"/v1/reviews/{kept['id']}/other.png"), 422)
    both = {"verdict": "bad", "mask": "data:image/png;base64," + painted(), "ignore": painted()}
    assert service.client.post(f"/v1/images/{number}/reviews", json=both).json()["ignore"] is not None
    nothing = {"verdict": "good", "mask": painted(marked=False)}
    assert service.client.post(f"/v1/images/{number}/reviews", json=nothing).json()["mask"] is None
    assert [r["verdict"] for r in service.client.get(f"/v1/images/{number}").json()["reviews"]] == [
        "bad",
        "bad",
        "good",
    ]


def test_a_review_that_is_taken_back(service: Service) -> None:
    number = service.score(png(1, defect=True))

    def say(**sent: Any) -> dict[str, Any]:
        return dict(service.client.post(f"/v1/images/{number}/reviews", json=sent).json())

    def undo(review: dict[str, Any]) -> dict[str, Any]:
        answer = service.client.post(f"/v1/reviews/{review['id']}/undo", params={"model": "plate"})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    first = say(verdict="bad", note="a blot", mask=painted())
    back = undo(say(verdict="good"))
    assert (back["verdict"], back["note"]) == ("bad", "a blot")
    assert service.client.get(back["mask"]).content == base64.b64decode(painted())
    assert "look at the image again" in problem(service.client.post(f"/v1/reviews/{first['id']}/undo"), 422)

    number = service.score(png(2, defect=True))
    assert undo(say(verdict="bad"))["verdict"] == "withdrawn"
    found = service.client.get(f"/v1/images/{number}").json()
    assert [review["verdict"] for review in found["reviews"]] == ["bad", "withdrawn"]
    other = service.score(png(3))
    near = service.client.get(f"/v1/images/{other}", params={"model": "plate"}).json()["neighbours"]
    assert {one["id"]: one["verdict"] for one in near}[number] is None
    events = service.client.get("/v1/history").json()
    assert next(e["image"] for e in events if e["what"] == "undo review") == number
    assert service.client.get("/v1/models/plate/drift").json()["tested"] == 2
    assert len(service.client.get("/v1/models/plate/threshold").json()["bad"]) == 1
    assert "no verdict good or bad" in problem(
        service.client.post("/v1/jobs", json={"model": "plate", "images": [number]}), 422
    )
    newest = service.client.get("/v1/history").json()[0]
    assert (newest["what"], newest["name"], newest["detail"]) == (
        "undo review", "plate", f"image {number}: bad, now withdrawn",
    )  # fmt: skip
    problem(service.client.post("/v1/reviews/99/undo"), 404)
    problem(service.client.post(f"/v1/reviews/{first['id']}/undo", params={"model": "wheel"}), 404)


REVIEWS: list[tuple[object, str]] = [
    ({}, "verdict"),
    ({"verdict": "ugly"}, "verdict"),
    ({"verdict": "bad", "note": "x" * 2001}, "note"),
    ({"verdict": "bad", "note": "a\0b"}, "note"),
    ({"verdict": "bad", "note": "\ud800"}, "note"),
    ({"verdict": "bad", "more": 1}, "more"),
    ({"verdict": "bad", "mask": "%%%"}, "the mask is not base64"),
    ({"verdict": "bad", "ignore": "ä"}, "the ignore is not base64"),
    ({"verdict": "bad", "mask": ""}, "the mask"),
    ({"verdict": "bad", "mask": base64.b64encode(b"no PNG").decode()}, "the mask: not an image"),
    ({"verdict": "bad", "mask": base64.b64encode(as_file(np.zeros((9, 9), np.uint8), "JPEG")).decode()}, "not a PNG"),
    ({"verdict": "bad", "mask": base64.b64encode(base64.b64decode(painted())[:60]).decode()}, "the mask"),
    ({"verdict": "bad", "mask": painted(SIZE + 1)}, "the mask is 65x64, the image 64x64: make them equal"),
    ({"verdict": "bad", "mask": base64.b64encode(bomb()).decode()}, "60000 x 60000 pixels exceed"),
    ([], "body"),
    ("bad", "body"),
    (None, "body"),
]


@pytest.mark.parametrize(("sent", "message"), REVIEWS)
def test_a_review_that_cannot_be_kept(service: Service, sent: object, message: str) -> None:
    number = service.score(png())
    body = json.dumps(sent).encode()
    answer = service.client.post(
        f"/v1/images/{number}/reviews", content=body, headers={"Content-Type": "application/json"}
    )
    assert message in problem(answer, 422)
    assert service.client.get(f"/v1/images/{number}").json()["reviews"] == []


def test_a_good_part_has_no_defect_mask(service: Service) -> None:
    number = service.score(png())
    sent = {"verdict": "good", "mask": painted()}
    said = problem(service.client.post(f"/v1/images/{number}/reviews", json=sent), 422)
    assert said == "a good part has no defect: leave the mask out, or call it bad"
    assert service.client.get(f"/v1/images/{number}").json()["reviews"] == []
    assert not [
        path for path in (service.bench.folders.models / WORKSPACE / BlobKind.MASK).rglob("*") if path.is_file()
    ]
    sent = {"verdict": "good", "ignore": painted()}
    assert service.client.post(f"/v1/images/{number}/reviews", json=sent).json()["ignore"] is not None


def test_a_list_says_where_a_defect_was_painted(service: Service) -> None:
    first, second = service.score(png(1)), service.score(png(2))
    service.client.post(f"/v1/images/{first}/reviews", json={"verdict": "bad", "mask": painted()})
    service.client.post(f"/v1/images/{second}/reviews", json={"verdict": "bad"})
    listed = service.client.get("/v1/images", params={"model": "plate"}).json()["images"]
    assert {row["id"]: row["has_mask"] for row in listed} == {first: True, second: False}


def test_the_lessons_of_a_model(service: Service) -> None:
    first, second, third = (service.score(png(i), f"{i}.png") for i in range(3))
    for number, sent in (
        (third, {"verdict": "good"}),
        (second, {"verdict": "unsure"}),
        (first, {"verdict": "bad", "mask": painted()}),
    ):
        service.client.post(f"/v1/images/{number}/reviews", json=sent)
    said = {number: service.store.scores.of_image(number)[0].score for number in (first, third)}
    size = {"width": SIZE, "height": SIZE}
    assert service.client.get("/v1/models/plate/lessons").json() == [
        {"id": first, "name": "0.png", "verdict": "bad", "has_mask": True, "score": said[first], **size},
        {"id": third, "name": "2.png", "verdict": "good", "has_mask": False, "score": said[third], **size},
    ]
    problem(service.client.get("/v1/models/wheel/lessons"), 404)


def test_reviews_are_in_the_history_of_their_model(models: Path, make: Maker) -> None:
    shutil.copytree(models / "plate.bgad", models / "wheel.bgad")
    service = make()
    number = service.score(png())

    def reviews(model: str) -> list[str]:
        events = service.client.get("/v1/history", params={"model": model}).json()
        return [event["detail"] for event in events if event["what"] == "review"]

    path = f"/v1/images/{number}/reviews"
    service.client.post(path, json={"verdict": "bad"})
    assert (reviews("plate"), reviews("wheel")) == ([f"image {number}: bad"], [])
    service.client.post("/v1/models/wheel/score", content=png())
    service.client.post(path, json={"verdict": "good"})
    assert reviews("wheel") == [f"image {number}: good"]  # it was the last to score it
    service.client.post(path, json={"verdict": "unsure", "model": "plate"})
    assert reviews("plate") == [f"image {number}: unsure", f"image {number}: bad"]
    assert len(reviews("")) == 3
    problem(service.client.post(path, json={"verdict": "bad", "model": "none"}), 404)
    assert len(reviews("")) == 3


def test_many_reviews_do_not_hide_the_way_back(service: Service) -> None:
    first = service.store.versions.released("plate")
    second = service.store.versions.add("plate", "b" * 64, "plate.bgad", state="candidate")
    for version in (first, second):
        service.store.versions.release(version.id, "ann")
    with service.store.database.engine.begin() as connection:
        event = {"who": "ann", "what": "review", "name": "plate", "detail": "image 1: bad", "created": 1.0}
        connection.execute(tables.events.insert(), [event] * 1001)
    assert service.bench.registry.previous("plate").id == first.id


def test_a_review_of_nothing(service: Service) -> None:
    for number in (99, 0, 2**40):
        problem(service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "bad"}), 404)
    number = service.score(png())
    for content in (b"", b"{", b"\xff\xfe"):
        problem(
            service.client.post(
                f"/v1/images/{number}/reviews", content=content, headers={"Content-Type": "application/json"}
            ),
            422,
        )


@pytest.mark.parametrize("zeros", [0, 1])
def test_a_picture_that_a_power_cut_left_empty_or_zeros(service: Service, zeros: int) -> None:
    number = service.score(png())
    file = service.bench.views.path(number)
    file.write_bytes(bytes(zeros * len(png())))
    sent = service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good"})
    assert "is damaged: send the image again" in problem(sent, 410)
    assert service.score(png()) == number  # which puts it back
    assert file.read_bytes() == png()
    assert service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good"}).status_code == 201


def test_a_transparent_mask_marks_nothing(service: Service) -> None:
    number = service.score(png())
    mask = np.full((SIZE, SIZE, 4), 255, np.uint8)
    mask[..., 3] = 0
    text = base64.b64encode(as_file(mask)).decode()
    sent = service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "bad", "mask": text})
    assert (sent.status_code, sent.json()["mask"]) == (201, None)


def test_a_review_is_on_the_disk_before_it_is_acknowledged(
    make: Maker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill cannot show this, as the system keeps what a process has written; a power cut would."""
    service = make(address)
    number = service.score(png())
    done: list[Any] = []
    sync = os.fsync

    def watched(file: int) -> None:
        sync(file)
        done.append(os.fstat(file).st_ino)

    def commits(connection: sa.Connection) -> None:
        how = "PRAGMA synchronous" if address.startswith("sqlite") else "SHOW synchronous_commit"
        done.append(connection.exec_driver_sql(how).scalar())

    def writes(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("INSERT INTO reviews"):
            done.append("review")

    monkeypatch.setattr(os, "fsync", watched)
    sa.event.listen(service.store.database.engine, "commit", commits)
    sa.event.listen(service.store.database.engine, "before_cursor_execute", writes)
    body = {"verdict": "bad", "mask": painted()}
    assert service.client.post(f"/v1/images/{number}/reviews", json=body).status_code == 201
    folder = service.bench.blobs.folder
    for kind in (BlobKind.IMAGE, BlobKind.MASK):
        (file,) = (path for path in (folder / kind).rglob("*") if path.is_file())
        for path in (file, file.parent, folder / kind):
            assert path.stat().st_ino in done[: done.index("review")], path
    assert done[-2:] == ["review", 2 if address.startswith("sqlite") else "on"]  # SQLite's 2 is FULL
