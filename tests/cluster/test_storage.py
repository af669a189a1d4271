"""Files by URI: names that need encoding, writes that fail, file systems that fail, and what messages may show."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import fsspec
import pytest

from bgad.cluster import listing, storage, uris
from bgad.errors import ConfigError, DataError, OutputError

ODD = "line 4/größe #1 100%20 [a].png"


@pytest.fixture
def memory() -> Iterator[str]:
    """The URI of an empty folder of fsspec's file system in memory."""
    yield "memory://archive"
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    "folder",
    [
        "s3://archive/a%20b?region=eu-1",
        "s3://KEY:SECRET@archive?region=eu-1",
        "gs://anonymous@archive/a",
        "abfs://images@plant.dfs.core.windows.net/a",
        "memory://archive/a b",
    ],
)
def test_the_uri_of_a_listed_file_leads_back_to_it(folder: str) -> None:
    _, top = storage.file_system(folder)
    uri = storage.uri_of(folder, f"{top}/{ODD}")
    assert storage.file_system(uri)[1] == f"{top}/{ODD}"
    assert uris.split(uri)[0] == uris.split(folder)[0]  # scheme and authority


@pytest.mark.parametrize("name", ["a b.png", "größe.png", "a#b.png", "a%20b.png", "a%zz.png"])
def test_a_uri_as_people_write_it(name: str) -> None:
    path = storage.file_system(f"s3://archive/{name}?region=eu-1")[1]
    assert path == f"archive/{name.replace('%20', ' ')}"


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/a%20b/c.txt"
    storage.write_bytes(uri, b"1")
    assert (tmp_path / "a b" / "c.txt").read_bytes() == b"1"
    assert uris.absolute(uri) == str(tmp_path / "a b" / "c.txt")
    assert storage.read_bytes(uri) == b"1"


def test_a_write_on_another_file_system_is_atomic(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, before = f"{memory}/out/a.json", []
    storage.write_bytes(file, b"old")
    system = fsspec.filesystem("memory")
    move = system.mv

    def watched(*names: str, **given: bool) -> None:
        before.append(storage.read_bytes(file))
        move(*names, **given)

    monkeypatch.setattr(system, "mv", watched)
    storage.write_bytes(file, b"new")
    assert before == [b"old"]  # until the new one is complete
    assert storage.read_bytes(file) == b"new"
    assert [info.base_name for info in storage.file_infos(f"{memory}/out")] == ["a.json"]


class Broken(io.BytesIO):
    """A stream that fails after its first piece."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError(errno.EIO, "Input/output error")
        return super().read(4)


@pytest.mark.parametrize("place", ["memory", "local"])
def test_a_stream_that_breaks_off_leaves_nothing(place: str, memory: str, tmp_path: Path) -> None:
    folder = memory if place == "memory" else str(tmp_path)
    source: IO[bytes] = Broken(b"12345678")
    with pytest.raises(OutputError, match=r"cannot write .*Input/output error"):
        storage.write_stream(f"{folder}/a.parquet", source)
    assert not list(storage.file_infos(folder))


def test_a_file_system_that_fails_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1")
    monkeypatch.setattr(storage, "PAUSES", (0, 0))
    found = storage.file_system
    failures = [OSError(errno.EIO, "Input/output error")] * 2

    def failing(uri: str) -> tuple[object, str]:
        if failures:
            raise storage.AccessError(str(failures.pop()))
        return found(uri)

    monkeypatch.setattr(storage, "file_system", failing)
    assert storage.read_bytes(str(tmp_path / "a")) == b"1"
    failures += [OSError(errno.EIO, "Input/output error")] * 3
    with pytest.raises(storage.AccessError, match="Input/output error"):
        storage.read_bytes(str(tmp_path / "a"))


def test_a_missing_file_says_nothing_about_its_file_system(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    for name, limit in (("missing", None), ("a/b", None), ("", None), ("x" * 300, None), ("a", 2), ("a\0b", None)):
        with pytest.raises(DataError) as caught:
            storage.read_bytes(f"{tmp_path}/{name}", limit)
        assert not isinstance(caught.value, storage.AccessError)


def test_credentials_are_not_shown() -> None:
    for uri in ("s3://KEY:SE/CRET@archive/a b?bogus=1", "s3://KEY:SECRET@archive/a?secret_key=SECRET"):
        with pytest.raises(ConfigError) as caught:
            storage.read_bytes(uri)
        assert "archive" in str(caught.value)
        assert "KEY" not in str(caught.value)
        assert "CRET" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        storage.file_system("nosuch://user:SECRET@host/a?sas_token=SECRET")
    assert "SECRET" not in str(caught.value)


def test_a_pattern_of_uris(memory: str) -> None:
    names = ["line-4/a.png", "line-4/good/b.png", "line-5/good/c.png", "line-5/list.csv", "d.png"]
    for name in names:
        storage.write_bytes(f"{memory}/{name}", b"1")

    def listed(pattern: str) -> list[str]:
        rows = [row for batch in listing.read(f"{memory}/{pattern}") for row in batch.to_pylist()]
        assert all(row["size"] == 1 for row in rows)
        return [row["uri"].removeprefix(f"{memory}/") for row in rows]

    assert listed("*.png") == ["d.png"]
    assert listed("line-*/good/*.png") == ["line-4/good/b.png", "line-5/good/c.png"]
    assert listed("**/*.png") == ["d.png", *names[:3]]
    assert listed("line-[4]") == names[:2]  # a folder that matches
    with pytest.raises(DataError, match="no image found"):
        listed("*.tif")
    with pytest.raises(DataError, match="begins below the bucket"):
        list(listing.read("memory://*/a.png"))
