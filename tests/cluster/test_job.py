"""The folder of a job: what starts it, what continues it, and what it refuses."""

from __future__ import annotations

import csv
import json
import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bgad.cluster import job as jobs
from bgad.cluster import listing, storage
from bgad.cluster.archive import exclusive
from bgad.cluster.job import Job
from bgad.cluster.worker import commit, row
from bgad.errors import DataError, ImageError, OutputError
from bgad.inference.batch import MAP, OVERLAY

Open = Callable[..., Job]


def manifest(path: Path, rows: list[dict[str, object]]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def entries(job: Job) -> list[dict[str, object]]:
    return [row for shard in range(job.shards) for row in job.read_shard(shard).to_pylist()]


def test_shards_are_the_images_in_order(archive: Path, job: Open) -> None:
    opened = job()
    assert (opened.rows, opened.shards) == (18, 3)
    assert [opened.rows_of(shard) for shard in range(3)] == [8, 8, 2]
    rows = entries(opened)
    assert [row["uri"] for row in rows] == sorted(str(path) for path in archive.rglob("*.png"))
    assert all(row["size"] == Path(str(row["uri"])).stat().st_size for row in rows)
    assert opened.finished().missing == [0, 1, 2]
    assert job() == opened  # opened again


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_manifest_with_ids_and_relative_paths(suffix: str, archive: Path, job: Open) -> None:
    names = [f"good/{i:03d}.png" for i in range(3)]
    file = manifest(archive / f"list{suffix}", [{"uri": name, "id": f"part {i}"} for i, name in enumerate(names)])
    try:
        rows = entries(job(file))
    finally:
        file.unlink()
    assert [(row["id"], row["uri"]) for row in rows] == [
        (f"part {i}", str(archive / name)) for i, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"path": "a.png"}], "no column uri"),
        ([{"uri": "a.png", "id": "1"}, {"uri": "b.png", "id": "1"}], "id 1 is there twice"),
        ([{"uri": "a.png"}, {"uri": "a.png"}], "a.png is there twice"),
        ([{"uri": "a.png"}, {"uri": None}], "row 2 has no uri"),
        ([{"uri": "a.png", "id": "1"}, {"uri": "b.png", "id": None}], "row 2 has no id"),
        ([{"uri": "a.png", "size": "large"}], "column size"),
    ],
)
def test_a_manifest_that_cannot_be_used(rows: list[dict[str, object]], message: str, tmp_path: Path, job: Open) -> None:
    with pytest.raises(DataError, match=message):
        job(manifest(tmp_path / "list.parquet", rows))
    assert not (tmp_path / "out" / jobs.JOB).exists()


def test_files_that_are_no_manifest(tmp_path: Path, job: Open) -> None:
    (tmp_path / "list.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"list\.parquet: cannot be read as Parquet"):
        job(tmp_path / "list.parquet")
    with pytest.raises(DataError, match=r"no such file or folder"):
        job(tmp_path / "missing.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no image found"):
        job(tmp_path / "empty")


def test_ids_are_compared_in_several_passes(tmp_path: Path, job: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "IDS_AT_ONCE", 5)
    rows: list[dict[str, object]] = [{"uri": f"{i}.png", "id": str(i)} for i in range(30)]
    assert job(manifest(tmp_path / "good.parquet", rows)).rows == 30
    with pytest.raises(DataError, match="id 7 is there twice"):
        job(manifest(tmp_path / "bad.parquet", [*rows, {"uri": "again.png", "id": "7"}]), tmp_path / "second")


def test_ids_with_the_same_hash_are_not_the_same(tmp_path: Path, job: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_hash", lambda name: 1)
    assert job(manifest(tmp_path / "list.parquet", [{"uri": f"{i}.png"} for i in range(20)])).rows == 20


def test_an_output_of_other_options_is_refused(job: Open, tmp_path: Path) -> None:
    opened = job()
    with pytest.raises(OutputError, match="scores with another overlays: choose another --out"):
        job(overlays="all")
    other = replace(opened.settings, model="x", threshold=0.0)
    with pytest.raises(OutputError, match="scores with another model, threshold"):
        jobs.open_job(opened.out, str(tmp_path), other, 8)


def test_an_input_that_has_changed_is_refused(archive: Path, job: Open, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(archive / "good", images)
    job(images)
    (images / "004.png").write_bytes((images / "004.png").read_bytes() + b"x")
    with pytest.raises(OutputError, match=r"has changed since .*004\.png had \d+ bytes and has \d+"):
        job(images)
    (images / "004.png").unlink()
    with pytest.raises(OutputError, match=r"image 5 was .*004\.png and is .*005\.png"):
        job(images)


def test_more_or_fewer_images_are_refused(archive: Path, job: Open, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(archive / "good", images)
    job(images)
    shutil.copy(images / "009.png", images / "010.png")
    with pytest.raises(OutputError, match="it has more than 10 images"):
        job(images)
    (images / "010.png").unlink()
    (images / "009.png").unlink()
    with pytest.raises(OutputError, match="it has only 9 images"):
        job(images)


def test_a_manifest_that_is_written_again_with_the_same_rows_continues(tmp_path: Path, job: Open) -> None:
    rows: list[dict[str, object]] = [{"uri": f"{i}.png"} for i in range(20)]
    opened = job(manifest(tmp_path / "list.parquet", rows))
    assert job(manifest(tmp_path / "list.parquet", rows)) == opened


def test_rechunk_keeps_all_rows() -> None:
    batches = [
        pa.record_batch(
            {"id": [str(i)], "uri": [str(i)], "size": pa.nulls(1, pa.int64()), "sha256": pa.nulls(1, pa.string())},
            listing.SCHEMA,
        )
        for i in range(23)
    ]
    for size in (1, 4, 23, 40):
        again = list(jobs.rechunk(batches, size))
        assert [batch.num_rows for batch in again[:-1]] == [size] * (len(again) - 1)
        assert [name for batch in again for name in batch.column("id").to_pylist()] == [str(i) for i in range(23)]


def test_a_damaged_job(job: Open, tmp_path: Path) -> None:
    opened = job()
    Path(opened.out, jobs.JOB).write_text("{")
    with pytest.raises(OutputError, match="is damaged"):
        job()
    with pytest.raises(DataError, match=r"holds no scores"):
        jobs.read_job(str(tmp_path))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"id": "1"}, {"id": "2"}, r"a\.png had id 1 and has id 2"),
        ({"sha256": "ab"}, {"sha256": "cd"}, r"a\.png had sha256 ab and has sha256 cd"),
        ({"sha256": None}, {"sha256": "cd"}, r"a\.png had sha256 unknown and has sha256 cd"),
        ({"size": 1}, {"size": 2}, r"a\.png had 1 bytes and has 2 bytes"),
    ],
)
def test_what_has_changed_is_said(
    before: dict[str, object], after: dict[str, object], message: str, tmp_path: Path, job: Open
) -> None:
    job(manifest(tmp_path / "list.parquet", [{"uri": "a.png"} | before]))
    with pytest.raises(OutputError, match=message):
        job(manifest(tmp_path / "list.parquet", [{"uri": "a.png"} | after]))


def test_another_size_of_shards_is_refused(job: Open) -> None:
    opened = job()
    with pytest.raises(OutputError, match="has shards of 8 images: leave out --shard-images, or give 8"):
        job(shard_images=4)
    assert job(shard_images=None) == opened


@pytest.mark.parametrize("place", ["images", "images/scored", "images/good/scored"])
def test_an_output_within_the_input_is_not_listed(place: str, archive: Path, job: Open, tmp_path: Path) -> None:
    shutil.copytree(archive, tmp_path / "images")
    opened = job(tmp_path / "images", tmp_path / place)
    for name in (OVERLAY, MAP):
        storage.write_bytes(f"{opened.out}/{jobs.OVERLAYS}/00000000/00000{name}", b"1")
    assert job(tmp_path / "images", tmp_path / place) == opened


def error_rows(job: Job, shard: int, failed: int) -> list[dict[str, object]]:
    entries = job.read_shard(shard).to_pylist()
    rows = [row(entry, ImageError("bad"), "") for entry in entries]
    return rows[:failed] + [values | {"error": None, "score": 1.0} for values in rows[failed:]]


def test_rows_that_are_finished_stay(job: Open) -> None:
    opened = job()
    commit(opened, 0, error_rows(opened, 0, 2), 1.0)
    commit(opened, 0, error_rows(opened, 0, 0), 1.0)  # of a worker that was thought dead
    assert opened.finished().errors.tolist() == [2, -1, -1]
    assert pq.read_table(opened.scores_file(0)).column("error").null_count == 6


def test_rows_decide_between_two_markers(job: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = job()
    for failed in (3, 1):  # at the same time: neither sees the other's rows
        monkeypatch.setattr(storage, "exists", lambda uri: False)
        commit(opened, 1, error_rows(opened, 1, failed), 1.0)
        monkeypatch.undo()
    assert len(list(Path(opened.out, "done").iterdir())) == 2
    assert opened.finished().errors.tolist() == [-1, 1, -1]
    assert opened.finished().failed == 1


def test_one_run_at_a_time(job: Open, tmp_path: Path) -> None:
    with exclusive(str(tmp_path / "out")):
        job()
        with (
            pytest.raises(OutputError, match="is in use by another bgad predict --cluster"),
            exclusive(f"file://{tmp_path}/out"),
        ):
            pytest.fail("a second run has begun")


def test_two_runs_that_begin_a_job_at_the_same_time_are_noticed(
    job: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        job()

    monkeypatch.setattr(jobs, "refuse_duplicates", meanwhile)
    with pytest.raises(OutputError, match=r"another run has begun a job in .*: run the command again"):
        job()
    opened = job()
    opened.check_begun()
    file = Path(opened.out, jobs.JOB)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"begun": "another"}))
    with pytest.raises(OutputError, match=r"another run has begun a job in .* at the same time"):
        opened.check_begun()


def test_a_folder_is_a_manifest_only_without_images(archive: Path, job: Open, tmp_path: Path) -> None:
    shutil.copytree(archive / "good", tmp_path / "images" / "good")
    manifest(tmp_path / "images" / "stray.parquet", [{"column": 1}])
    assert job(tmp_path / "images").rows == 10


@pytest.mark.parametrize("slash", ["", "/"])
def test_relative_uris_of_a_folder_manifest(slash: str, job: Open, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    for part in range(2):
        manifest(tmp_path / "lists" / f"{part}.parquet", [{"uri": f"images/{part}.png"}])
    opened = job(f"{tmp_path}/lists{slash}")
    assert [entry["uri"] for entry in entries(opened)] == [f"{tmp_path}/lists/images/{i}.png" for i in range(2)]


def test_relative_uris_of_a_manifest_in_a_bucket() -> None:
    for base in ("s3://archive/lists?region=eu-1", "s3://archive/lists/?region=eu-1"):
        assert listing._resolved("line 4/a#1.png", base) == "s3://archive/lists/line%204/a%231.png?region=eu-1"


def test_each_file_of_a_manifest_is_opened_once_for_its_ids(
    tmp_path: Path, job: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SHARDS_PER_PART", 2)
    opened = job(manifest(tmp_path / "list.parquet", [{"uri": f"{i}.png"} for i in range(40)]))
    assert len(list(Path(opened.out, "manifest").iterdir())) == 3
    assert [row["uri"] for row in entries(opened)] == [f"{tmp_path}/{i}.png" for i in range(40)]
    files, columns = [], []

    class Counted(pq.ParquetFile):  # type: ignore[misc]
        def __init__(self, source: object) -> None:
            files.append(source)
            super().__init__(source)

        def read_row_group(self, number: int, columns_: object = None, **given: object) -> pa.Table:
            columns.append(given["columns"])
            return super().read_row_group(number, **given)

    monkeypatch.setattr(pq, "ParquetFile", Counted)
    jobs.refuse_duplicates(opened, "list")
    assert len(files) == 3
    assert columns == [["id"]] * 5


def test_memory_does_not_grow_with_a_file_of_the_manifest(tmp_path: Path) -> None:
    chance = random.Random(5)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(40):
            names = pa.array([chance.randbytes(32).hex() for _ in range(2000)])
            yield pa.record_batch([names, names, pa.nulls(2000, pa.int64()), names], listing.SCHEMA)

    tracemalloc.start()
    try:
        assert jobs.write_manifest(batches(), str(tmp_path), 10_000) == 80_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "part-00000.parquet").stat().st_size > 2_500_000
    assert peak < 2_500_000


def test_an_output_of_a_file_uri(job: Open, tmp_path: Path) -> None:
    assert job(out=f"file://{tmp_path}/out").out == str(tmp_path / "out")
    assert (tmp_path / "out" / jobs.JOB).exists()
