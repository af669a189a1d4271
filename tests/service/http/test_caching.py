"""What browsers may keep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from bgad.service.http import app, caching
from bgad.service.http.caching import FOR_GOOD, REVALIDATE, RevalidatedFiles
from tests.service.conftest import Service, png, problem


def test_the_files_of_the_page_are_asked_for_again(service: Service) -> None:
    for path in ("/", "/v1/docs", "/static/main.js", "/static/lib/api.js", "/static/style.css"):
        answer = service.client.get(path)
        assert answer.headers["cache-control"] == "no-cache", path
        assert answer.headers["etag"]
    etag = service.client.get("/static/main.js").headers["etag"]
    for tags, status in ((etag, 304), (f'"x", W/{etag}', 304), ('"x"', 200)):
        answer = service.client.get("/static/main.js", headers={"If-None-Match": tags})
        assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-cache")
        assert bool(answer.content) == (status == 200)
    assert service.client.get("/static/../app.py").status_code == 404
    assert service.client.get("/static/nothing.js").status_code == 404


def test_an_upgrade_is_noticed_whatever_the_times_of_its_files(tmp_path: Path) -> None:
    def serve(folder: str, content: str) -> TestClient:
        (path := tmp_path / folder / "main.js").parent.mkdir()
        path.write_text(content)
        os.utime(path, (1e9, 1e9))  # as packages that are built reproducibly have it
        return TestClient(RevalidatedFiles(directory=path.parent))

    old, new = serve("old", "let a = 1"), serve("new", "let a = 2")
    kept = old.get("/main.js")
    asked = {"If-None-Match": kept.headers["etag"]}
    if "last-modified" in kept.headers:
        asked["If-Modified-Since"] = kept.headers["last-modified"]
    assert old.get("/main.js", headers=asked).status_code == 304
    assert new.get("/main.js", headers=asked).text == "let a = 2"


def test_every_module_of_the_page_is_served(service: Service) -> None:
    for path in app.WEB.rglob("*.js"):
        assert service.client.get(f"/static/{path.relative_to(app.WEB).as_posix()}").status_code == 200


def test_images_are_kept_for_good_where_the_address_names_their_content(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = service.score(png())
    (row,) = service.client.get("/v1/images?model=plate").json()["images"]
    links = [row["thumbnail"], service.client.get(f"/v1/images/{number}").json()["view"]]
    for link in links:
        assert service.client.get(link).headers["cache-control"] == FOR_GOOD
        stale = link.partition("content=")[0] + "content=0123"
        assert service.client.get(stale).headers["cache-control"] == REVALIDATE  # as in another store
    seen = set()
    for view in ("original", "view.png", "thumbnail.jpg?model=plate", "overlay.png?model=plate", "map.png?model=plate"):
        answer = service.client.get(f"/v1/images/{number}/{view}")
        etag = answer.headers["etag"]
        assert answer.headers["cache-control"] == REVALIDATE
        again = service.client.get(f"/v1/images/{number}/{view}", headers={"If-None-Match": etag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        seen.add(etag)
    assert len(seen) == 2  # of the image, and of what a version makes of it
    monkeypatch.setattr(caching, "__version__", "9.9.9")  # which may draw otherwise
    assert service.client.get(links[0]).headers["cache-control"] == REVALIDATE


def test_what_is_not_kept_is_not_confirmed(service: Service) -> None:
    number = service.score(png())
    etag = service.client.get(f"/v1/images/{number}/view.png").headers["etag"]
    with service.store.database.begin() as connection:
        connection.exec_driver_sql("UPDATE images SET dropped = 1.0")
    problem(service.client.get(f"/v1/images/{number}/view.png", headers={"If-None-Match": etag}), 410)
