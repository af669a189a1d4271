"""Routes of reviews."""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from bgad.service import access
from bgad.service.blobs import BlobKind
from bgad.service.folders import WORKSPACE
from tests.conftest import SIZE
from tests.service.conftest import SCORE, Maker, Service, as_file, bomb, png, problem

BLACK = np.zeros((SIZE, SIZE), np.uint8)


def painted(width: int = SIZE, height: int = SIZE, *, marked: bool = True) -> str:
    mask = np.zeros((height, width), np.uint8)
    mask[2:9, 3:7] = 255 * marked
    return base64.b64encode(as_file(mask)).decode()


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


def test_a_page_that_is_out_of_date_overwrites_nobody(make: Maker) -> None:
    service = make(tokens=True)
    ann, bob = (
        {"Authorization": f"Bearer {access.new_token(service.store.tokens, name, 'admin')}"} for name in ("ann", "bob")
    )
    score = service.client.post(SCORE, content=png(1), headers=ann)
    number, reviews = score.json()["image"], f"/v1/images/{score.json()['image']}/reviews"
    (listed,) = service.client.get("/v1/images", params={"model": "plate"}, headers=ann).json()["images"]
    assert listed["review"] == 0
    sent = {"verdict": "bad", "mask": painted(), "note": "a blot", "seen": listed["review"]}
    kept = service.client.post(reviews, json=sent, headers=bob).json()
    answer = service.client.post(reviews, json={"verdict": "good", "seen": listed["review"]}, headers=ann)
    assert answer.status_code == 409
    assert answer.json()["review"] == kept
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(kept["created"]))
    assert f"the review of image {number} was changed by bob at {when} UTC" in answer.json()["detail"]
    found = service.client.get(f"/v1/images/{number}", headers=ann).json()["reviews"]
    assert [(review["who"], review["verdict"]) for review in found] == [("bob", "bad")]
    assert service.client.post(reviews, json={"verdict": "good", "seen": kept["id"]}, headers=ann).status_code == 201
    for wrong in (-1, 2**31, "x", 1.5):
        problem(service.client.post(reviews, json={"verdict": "good", "seen": wrong}, headers=ann), 422)


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
    stale = service.client.post(f"/v1/reviews/{first['id']}/undo")
    assert (stale.status_code, stale.json()["review"]["id"]) == (409, back["id"])

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
    (
        {"verdict": "bad", "mask": base64.b64encode(as_file(BLACK, "JPEG")).decode()},
        "not a PNG",
    ),
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
def test_an_image_that_a_power_cut_left_empty_or_zeros(service: Service, zeros: int) -> None:
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
