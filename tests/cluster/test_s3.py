"""Images, manifest and output on a real S3 server."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
import pytest

from bgad.cli.main import main
from bgad.cluster import listing, storage, uris
from bgad.cluster.job import Job
from bgad.cluster.worker import ShardScorer
from bgad.errors import DataError, OutputError
from bgad.inference.load import load

BUCKET = "archive"


@pytest.fixture(scope="module")
def options() -> Iterator[str]:
    """The options of a URI of the server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    server.stop()


@pytest.fixture
def uri(options: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The URI of a path on the server."""
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    system, _ = storage.file_system(f"s3://{BUCKET}{options}&allow_bucket_creation=true")
    system.create_dir(BUCKET)
    return lambda path: f"s3://{BUCKET}/{path}{options}"


def upload(images: list[Path], uri: Callable[[str], str]) -> None:
    for path in images:
        storage.write_bytes(uri(f"images/{path.parent.name}/{path.name}"), path.read_bytes())


def test_scored_as_on_a_local_disk(
    archive: Path, model: Path, uri: Callable[[str], str], job: Callable[..., Job], scorer: Callable[[Job], ShardScorer]
) -> None:
    images = sorted(archive.rglob("*.png"))
    upload(images, uri)
    opened = job(uri("images"), uri("out"))
    worker = scorer(opened)
    assert opened.finished().missing == [0, 1, 2]
    for shard in range(opened.shards):
        worker.score_shard(shard)
    assert not opened.finished().missing
    expected = [scores.score for scores in load(model, "cpu", engine="onnx").score_many(images)]
    rows: list[dict[str, Any]] = []
    for shard in range(opened.shards):
        system, path = storage.file_system(uris.join(opened.out, "scores", f"{shard:08d}.parquet"))
        rows += pq.read_table(path, filesystem=system).to_pylist()
    assert [row["score"] for row in rows] == expected
    assert [row["uri"].partition("?")[0].rpartition("/")[2] for row in rows] == [path.name for path in images]
    assert job(uri("images"), uri("out")) == opened  # continued


def test_names_that_need_encoding(archive: Path, uri: Callable[[str], str], job: Callable[..., Job]) -> None:
    names = ["a b.png", "größe.png", "a#1.png", "a%20b.png", "a?b.png", "[1].png"]
    image = (archive / "good" / "000.png").read_bytes()
    folder = uri("odd names/here")
    for name in names:
        storage.write_bytes(storage.below(folder, name), image)
    opened = job(folder, uri("out-odd"))
    listed = [row["uri"] for row in opened.read_shard(0).to_pylist()]
    assert sorted(storage.file_system(listed_uri)[1].rpartition("/")[2] for listed_uri in listed) == sorted(names)
    assert all(storage.read_bytes(listed_uri) == image for listed_uri in listed)
    matching = [row["uri"] for batch in listing.read(uri("odd names/*/a%20*.png")) for row in batch.to_pylist()]
    assert [storage.file_system(match)[1].rpartition("/")[2] for match in matching] == ["a b.png"]


def test_credentials_in_a_uri_reach_the_workers_only(
    archive: Path,
    uri: Callable[[str], str],
    job: Callable[..., Job],
    scorer: Callable[[Job], ShardScorer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    upload(sorted(archive.rglob("*.png"))[:2], uri)

    def with_key(path: str) -> str:
        return uri(path).replace("s3://", "s3://testing:SECRET@")

    opened = job(with_key("images"), with_key("out-key"))
    assert all(row["uri"].startswith("s3://testing:SECRET@") for row in opened.read_shard(0).to_pylist())
    scorer(opened).score_shard(0)
    scores = pq.read_table(storage.file_system(opened.scores_file(0))[1], filesystem=storage.file_system(opened.out)[0])
    assert scores.column("error").null_count == len(scores)
    assert "SECRET" not in str(scores.to_pylist())
    assert b"SECRET" not in storage.read_bytes(uri("out-key/job.json"))
    assert main(["manifest", with_key("images"), "--out", with_key("lists/key.parquet")]) == 0
    assert main(["manifest", with_key("images"), "--out", with_key("lists/key.parquet")]) == 2
    assert main(["predict", "--report", with_key("nothing")]) == 2
    said = capsys.readouterr()
    assert "lists/key.parquet" in said.err
    assert "SECRET" not in said.err + said.out


def test_a_stream_that_breaks_off_leaves_no_object(uri: Callable[[str], str]) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise KeyboardInterrupt
            return super().read(4)

    with pytest.raises(KeyboardInterrupt):
        storage.write_stream(uri("broken.parquet"), Broken(b"12345678"))
    assert not storage.exists(uri("broken.parquet"))


def test_a_manifest_of_a_bucket(archive: Path, uri: Callable[[str], str], tmp_path: Path) -> None:
    upload(sorted(archive.rglob("*.png"))[:3], uri)
    assert main(["manifest", uri("images"), "--out", uri("lists/all.parquet"), "--hash"]) == 0
    assert main(["manifest", uri("lists/all.parquet"), "--out", str(tmp_path / "copy.parquet")]) == 0
    rows = pq.read_table(tmp_path / "copy.parquet").to_pylist()
    assert all(row["size"] and len(row["sha256"]) == 64 for row in rows)


def test_what_cannot_be_reached(uri: Callable[[str], str], job: Callable[..., Job], options: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        storage.read_bytes(uri("missing.png"))
    with pytest.raises((DataError, OutputError), match=r"bucket|refused|answer"):
        storage.write_bytes(f"s3://nowhere/a.json{options}", json.dumps({}).encode())
    with pytest.raises(DataError, match="no image found"):
        job(uri("empty"), uri("out-2"))


def test_credentials_that_are_refused(
    archive: Path,
    uri: Callable[[str], str],
    job: Callable[..., Job],
    scorer: Callable[[Job], ShardScorer],
    options: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = options.partition("endpoint_override=")[2].partition("&")[0]

    def allow(requests: str) -> None:
        """Let so many requests pass before the server checks who asks."""
        address = f"http://{server}/moto-api/reset-auth"
        urlopen(Request(address, requests.encode(), {"Content-Type": "text/plain"}))

    upload(sorted(archive.rglob("*.png"))[:2], uri)
    opened = job(uri("images"), tmp_path / "out")
    worker = scorer(opened)
    monkeypatch.setattr(storage, "PAUSES", (0, 0))
    allow("0")
    try:
        with pytest.raises(DataError, match="access was refused: check the credentials of the machine"):
            job(uri("images"), uri("out-3"))
        with pytest.raises(storage.AccessError, match="access was refused: check the credentials of the machine"):
            worker.score_shard(0)
    finally:
        allow("inf")
    assert opened.finished().missing == [*range(opened.shards)]
