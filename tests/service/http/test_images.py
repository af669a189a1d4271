"""Routes of stored images."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bgad.service.blobs import BlobKind
from bgad.service.folders import WORKSPACE
from tests.conftest import SIZE
from tests.service.conftest import SCORE, Maker, Service, png, problem, wait_for


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
    assert ([i["id"] for i in first["images"]], first["position"]) == (numbers[:1:-1], 3)
    before = ask("models/plate/changes", after=first["as_of"])
    new = [service.score(png(i, defect=i % 2 == 0)) for i in range(4, 9)]
    service.client.post(f"/v1/images/{numbers[3]}/reviews", json={"verdict": "bad"})
    service.client.post(f"/v1/images/{new[0]}/reviews", json={"verdict": "bad"})
    again = {"model": "plate", "order": "newest", "review": "none", "as_of": first["as_of"]}
    second = ask("images", **again, limit=2, offset=2, find=new[1])
    assert [i["id"] for i in second["images"]] == numbers[1::-1]
    assert (second["total"], second["as_of"], second["position"]) == (4, first["as_of"], None)
    assert ask("images", **again)["images"][0]["verdict"] == "bad"  # as it is said now

    news = ask("models/plate/changes", after=first["as_of"])
    assert (before["new"], news["new"]) == (0, 5)
    assert before["latest"] != news["latest"] == ask("models/plate/changes")["latest"]
    assert ask("models/plate/changes", after=first["as_of"], review="none")["new"] == 4
    assert ask("models/plate/changes")["new"] == 0
    model = ask("models/plate")
    assert (news["version"], news["threshold"]) == (model["version"]["id"], model["threshold"])
    assert (news["candidates"], news["jobs"]) == ([], [])
    job = service.store.jobs.add("teach", service.store.versions.released("plate"), [], "ann").id
    candidate = service.store.versions.add("plate", "b" * 64, "2.bgad", state="candidate").id
    news = ask("models/plate/changes")
    assert (news["candidates"], news["jobs"]) == ([candidate], [job])
    for wrong in ("1", "1.2.3", "1.2.3.x", "1.2.99999999999.4", "1.2.3.4.5", "-1.2.3.4", "1.2.3.٣"):
        problem(service.client.get("/v1/images", params={"model": "plate", "as_of": wrong}), 422)
        problem(service.client.get("/v1/models/plate/changes", params={"after": wrong}), 422)
    for unknown in ("9.9.9.9", "9999999999.9.9.999999999999999"):
        problem(service.client.get("/v1/images", params={"model": "plate", "as_of": unknown}), 404)
    problem(service.client.get("/v1/models/wheel/changes"), 404)


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
    recorded_only = {"created", "sent_threshold", "sent_is_anomaly"}
    assert asked == {k: v for k, v in kept.items() if k not in recorded_only} | {"calibration": facts["calibration"]}
    wheel = service.store.versions.released("wheel").id
    other = service.client.get(f"/v1/images/{number}/score", params={"model": "wheel", "version": wheel}).json()
    assert (other["model"], other["version"], other["score"]) == ("wheel", wheel, asked["score"])
    assert service.client.get(f"/v1/images/{number}").json()["scores"] == [kept]
    problem(service.client.get(f"/v1/images/{number}/score", params={"model": "plate", "version": wheel}), 404)
    problem(service.client.get("/v1/images/99/score", params={"model": "plate"}), 404)


def test_the_image_comes_back_as_it_was_sent_and_is_not_shown_as_a_page(service: Service) -> None:
    number = service.score(png(), "evil.html")
    answer = service.client.get(f"/v1/images/{number}/original")
    assert answer.content == png()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("what", ["", "/original", "/view.png", "/thumbnail.jpg", "/overlay.png", "/map.png"])
def test_images_that_are_not_there(service: Service, what: str) -> None:
    for number in (0, -1, 99, 2**31, 2**63, 10**30):
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "plate"}), 404)
    problem(service.client.get(f"/v1/images/one{what}", params={"model": "plate"}), 422)
    number = service.score(png())
    if what.endswith(("jpg", "y.png", "p.png")):
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "wheel"}), 404)
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "plate", "version": 99}), 404)
        problem(service.client.get(f"/v1/images/{number}{what}", params={"model": "plate", "version": 2**40}), 422)


def test_an_image_whose_file_is_gone(service: Service) -> None:
    number = service.score(png())
    service.bench.views.path(number).unlink()
    for what in ("original", "view.png", "overlay.png"):
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


def test_why_an_image_was_rejected(service: Service) -> None:
    """In the answer, the list and the details alike; a score that is computed for the answer has it, too."""
    told = service.client.post(SCORE, content=png(0, defect=True)).json()
    assert told["is_anomaly"]
    assert list(told["parts"]) == ["map", "image", "known"]
    assert sum(told["parts"].values()) == pytest.approx(told["score"], rel=1e-5, abs=1e-5)
    assert told["reason"]
    (listed,) = service.client.get("/v1/images", params={"model": "plate"}).json()["images"]
    address = f"/v1/images/{told['image']}"
    (recorded,) = service.client.get(address).json()["scores"]
    computed = service.client.get(f"{address}/score", params={"model": "plate"}).json()
    for row in (listed, recorded):
        assert {key: row[key] for key in ("parts", "reason", "region")} == {
            key: told[key] for key in ("parts", "reason", "region")
        }
    assert computed["parts"] == pytest.approx(told["parts"], rel=1e-4, abs=1e-4)
    assert (computed["reason"], computed["region"]) == (told["reason"], told["region"])
    scorer = service.bench.models.batcher(service.store.versions.released("plate")).scorer
    assert recorded["limits"] == computed["limits"] == scorer.part_limits
    assert told["precision"] == recorded["precision"] == computed["precision"] == "float32"
    if told["region"] is not None:
        left, top, right, bottom = told["region"]
        assert 0 <= left < right <= 64
        assert 0 <= top < bottom <= 64


def test_the_reason_follows_the_threshold(service: Service) -> None:
    numbers = [service.score(png(i)) for i in range(8)]

    def rows() -> list[dict[str, Any]]:
        listed = service.client.get("/v1/images", params={"model": "plate", "limit": 50}).json()["images"]
        for row in listed:
            (recorded,) = service.client.get(f"/v1/images/{row['id']}").json()["scores"]
            assert (recorded["is_anomaly"], recorded["reason"]) == (row["is_anomaly"], row["reason"])
        return sorted(listed, key=lambda row: row["id"])

    before = rows()
    assert [row["id"] for row in before] == numbers
    service.client.put("/v1/models/plate/threshold", json={"rate": 0.9}).raise_for_status()
    after = rows()
    assert sum(row["is_anomaly"] for row in after) > sum(row["is_anomaly"] for row in before)
    for old, new in zip(before, after, strict=True):
        assert bool(new["reason"]) == new["is_anomaly"]
        assert (new["parts"], new["region"]) == (old["parts"], old["region"])


def test_scores_without_a_model_folder_have_no_reason(service: Service, models: Path) -> None:
    number = service.score(png(0, defect=True))
    service.bench.registry._rules.clear()
    (models / "plate.bgad").rename(models / "elsewhere")
    (recorded,) = service.client.get(f"/v1/images/{number}").json()["scores"]
    assert (recorded["limits"], recorded["reason"]) == (None, None)
    assert service.client.get("/v1/images", params={"model": "plate"}).status_code == 200
