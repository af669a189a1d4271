"""The folder of a scoring job: which images, in which shards, by which model, and what is finished.

    OUT/job.json                     model, options, source and number of rows; written when the manifest is complete
    OUT/manifest/part-00000.parquet  the images; each row group is a shard
    OUT/scores/00000000.parquet      the rows of a shard, one for each of its images
    OUT/overlays/00000000/00000.*    overlays and maps of its images, if asked for
    OUT/done/00000000-0.json         the commit marker of a shard: it is finished; the number of its error rows

A shard is finished when its marker is there. A shard without one is scored again, and its rows are written in one step
in place of any that are there, so every image has exactly one row whatever was killed in between. Two processes that
finish the same shard at the same time may leave two markers; the rows that are there then decide between them.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain, count, islice, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bgad.cluster import listing, storage, uris
from bgad.cluster.uris import redact
from bgad.errors import DataError, OutputError
from bgad.io.files import sha256_json

FORMAT = 2
SHARD_IMAGES = 1000  # a worker loses at most so many images when it is killed; 10^9 images make 10^6 shards
JOB, MANIFEST, SCORES, DONE, OVERLAYS = "job.json", "manifest", "scores", "done", "overlays"
SHARDS_PER_PART = 1000  # row groups of a file of the manifest; a reader of one shard reads the footer for all of them
_MARKER = re.compile(r"(\d{8,})-(\d+)\.json")
IDS_AT_ONCE = 50_000_000  # ids whose hashes are compared at once: 400 MB

SCORE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("uri", pa.string()),
        ("score", pa.float64()),
        ("p_value", pa.float64()),
        ("is_anomaly", pa.bool_()),
        ("map_max", pa.float64()),
        ("parts", pa.struct([("map", pa.float64()), ("image", pa.float64()), ("known", pa.float64())])),
        ("reason", pa.string()),
        ("region", pa.list_(pa.int32())),
        ("overlay", pa.string()),  # name of the overlay below the folder of overlays, where one was asked for
        ("error", pa.string()),
        ("model", pa.string()),
        ("precision", pa.string()),  # in which it was scored
    ]
)


@dataclass(frozen=True)
class Settings:
    """What decides the scores of a job, and what its output holds."""

    model: str  # checksum of the model
    engine: str
    precision: str
    device: str
    batch: int
    tile: int
    threshold: float
    map_threshold: float
    calibration_normals: int  # of the model; p-values are multiples of 1 / (calibration_normals + 1)
    overlays: str  # none, anomalous or all
    contour: str  # where the colour of an overlay begins


@dataclass(frozen=True)
class Job:
    """A job whose manifest is complete."""

    out: str
    settings: Settings
    rows: int
    shard_rows: int
    begun: str = ""  # identifies the run that wrote the manifest

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.rows // self.shard_rows)

    def rows_of(self, shard: int) -> int:
        """Return the number of images in a shard."""
        return min(self.shard_rows, self.rows - shard * self.shard_rows)

    def read_shard(self, shard: int) -> pa.RecordBatch:
        """Return the images of a shard."""
        with _opened(self._part(shard // SHARDS_PER_PART)) as part:
            return _one_batch(part.read_row_group(shard % SHARDS_PER_PART))

    def read_shards(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the images of all shards, or some of their columns; each file of the manifest is opened once."""
        for number in range(-(-self.shards // SHARDS_PER_PART)):
            with _opened(self._part(number)) as part:
                for group in range(part.num_row_groups):
                    yield _one_batch(part.read_row_group(group, columns=columns))

    def _part(self, number: int) -> str:
        return uris.join(self.out, MANIFEST, _part_name(number))

    def scores_file(self, shard: int) -> str:
        """Return the file with the rows of a finished shard."""
        return uris.join(self.out, SCORES, f"{shard:08d}.parquet")

    def _marker(self, shard: int, failed: int) -> str:
        return uris.join(self.out, DONE, f"{shard:08d}-{failed}.json")

    def commit(self, shard: int, rows: pa.Table, failed: int, note: dict[str, Any]) -> None:
        """Write the rows of a shard, then its marker; those of a shard that is finished already stay."""
        file = self.scores_file(shard)
        if storage.exists(file) and storage.exists(self._marker(shard, self._failed_rows(shard))):
            return
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, compression="zstd")
        storage.write_bytes(file, buffer.getvalue())
        storage.write_bytes(self._marker(shard, failed), json.dumps({"rows": rows.num_rows, **note}).encode())

    def _failed_rows(self, shard: int) -> int:
        """Return the number of error rows in the output of a shard."""
        with _opened(self.scores_file(shard)) as scores:
            errors = scores.read(columns=["error"]).column("error")
        return len(errors) - int(errors.null_count)

    def finished(self) -> Finished:
        """Return what is finished, from the names of the markers; only rows with two markers are read."""
        errors = np.full(self.shards, -1, np.int64)
        disputed = set()
        for info in storage.file_infos(uris.join(self.out, DONE)):
            if (marker := _MARKER.fullmatch(info.base_name)) and int(marker[1]) < self.shards:
                shard = int(marker[1])
                if errors[shard] >= 0:
                    disputed.add(shard)
                errors[shard] = int(marker[2])
        for shard in disputed:
            errors[shard] = self._failed_rows(shard)
        return Finished(self, errors)

    def check_begun(self) -> None:
        """Raise OutputError where another run has begun a job of its own in the output since this one was opened."""
        if read_job(self.out).begun != self.begun:
            raise OutputError(
                f"another run has begun a job in {redact(self.out)} at the same time, and their rows may be mixed: "
                "score again with another --out"
            )


@contextmanager
def _opened(file: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of a job; DataError where it cannot be read."""
    system, path = storage.file_system(file)
    try:
        with system.open_input_file(path) as stream:
            yield pq.ParquetFile(stream)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{redact(file)}: cannot be read: {storage.reason(error)}") from error


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


@dataclass(frozen=True)
class Finished:
    """The finished shards of a job."""

    job: Job
    errors: npt.NDArray[np.int64]  # error rows of each shard; -1 where it is not finished

    @property
    def missing(self) -> list[int]:
        """The shards that are not finished."""
        return [int(shard) for shard in np.flatnonzero(self.errors < 0)]

    @property
    def rows(self) -> int:
        """The number of images in finished shards."""
        return self.job.rows - sum(map(self.job.rows_of, self.missing))

    @property
    def failed(self) -> int:
        """The number of images in finished shards that could not be scored."""
        return int(self.errors[self.errors > 0].sum())


def _part_name(part: int) -> str:
    return f"part-{part:05d}.parquet"


def open_job(out: str, source: str, settings: Settings, shard_rows: int | None = None) -> Job:
    """Start the job of an output folder, or continue it; see `existing_job`.

    A new job has SHARD_IMAGES images in a shard where `shard_rows` is None.
    """
    job = existing_job(out, source, settings, shard_rows)
    return job or _start(out, source, settings, shard_rows or SHARD_IMAGES)


def existing_job(out: str, source: str, settings: Settings, shard_rows: int | None) -> Job | None:
    """Return the job of an output folder; None where it holds none.

    OutputError where the folder holds a job of another model, of other options or of other images.
    """
    file = uris.join(out, JOB)
    if not storage.exists(file):
        return None
    job, signature = _read_header(file, out)
    if job.settings != settings:
        before = asdict(job.settings)
        changed = [key for key, value in asdict(settings).items() if before[key] != value]
        raise OutputError(f"{redact(out)} holds scores with another {', '.join(changed)}: choose another --out")
    if shard_rows not in (None, job.shard_rows):
        raise OutputError(
            f"{redact(out)} has shards of {job.shard_rows} images: leave out --shard-images, or give {job.shard_rows}"
        )
    if signature is None or signature != _signature(out, source):
        _compare(job, source)
    return job


def read_job(out: str) -> Job:
    """Return the job of an output folder."""
    file = uris.join(out, JOB)
    if not storage.exists(file):
        raise DataError(f"{redact(out)}: holds no scores of `bgad predict --cluster`: there is no {JOB}")
    return _read_header(file, out)[0]


def _read_header(file: str, out: str) -> tuple[Job, str | None]:
    """Return a job and the signature of its source."""
    try:
        header: dict[str, Any] = json.loads(storage.read_bytes(file))
        if header["format"] != FORMAT:
            raise OutputError(f"{redact(file)} has format {header['format']}, this bgad reads format {FORMAT}")
        settings = Settings(**header["settings"])
        return Job(out, settings, header["rows"], header["shard_rows"], header["begun"]), header["signature"]
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{redact(file)} is damaged: choose another --out") from error


def images(out: str, source: str) -> Iterator[pa.RecordBatch]:
    """Yield the images of a source, without the overlays and maps of the job in `out`."""
    return listing.read(source, uris.join(out, OVERLAYS))


def _start(out: str, source: str, settings: Settings, shard_rows: int) -> Job:
    """Write the manifest and then the header of a new job."""
    signature = _signature(out, source)
    rows = write_manifest(images(out, source), uris.join(out, MANIFEST), shard_rows)
    if not rows:
        raise DataError(f"{redact(source)}: lists no image")
    job = Job(out, settings, rows, shard_rows, uuid.uuid4().hex)
    refuse_duplicates(job, source)
    header = {
        "format": FORMAT,
        "settings": asdict(settings),
        "rows": rows,
        "shard_rows": shard_rows,
        "begun": job.begun,
        "source": redact(source),
        "signature": signature,
    }
    file = uris.join(out, JOB)
    if storage.exists(file):
        raise OutputError(f"another run has begun a job in {redact(out)} in the meantime: run the command again")
    storage.write_bytes(file, json.dumps(header, indent=1).encode())
    return job


def write_manifest(batches: Iterable[pa.RecordBatch], folder: str, shard_rows: int) -> int:
    """Write images to the files of a manifest, a row group for each shard; returns the number of rows.

    A file is collected on the local disk first, so memory does not grow with its size.
    """
    shards, rows = rechunk(batches, shard_rows), 0
    for part in count():
        first = next(shards, None)
        if first is None:
            break
        with tempfile.TemporaryFile() as draft:
            with pq.ParquetWriter(draft, listing.SCHEMA, compression="zstd") as writer:
                for batch in chain([first], islice(shards, SHARDS_PER_PART - 1)):
                    writer.write_batch(batch, row_group_size=shard_rows)
                    rows += batch.num_rows
            draft.seek(0)
            storage.write_stream(uris.join(folder, _part_name(part)), draft)
    return rows


def rechunk(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of exactly `size` rows, but the last."""
    kept: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        kept.append(batch)
        count += batch.num_rows
        if count < size:
            continue
        table = pa.Table.from_batches(kept, listing.SCHEMA).combine_chunks()
        whole = count // size * size
        for start in range(0, whole, size):
            yield table.slice(start, size).combine_chunks().to_batches()[0]
        rest = table.slice(whole).to_batches()
        kept, count = rest, count - whole
    if count:
        yield pa.Table.from_batches(kept, listing.SCHEMA).combine_chunks().to_batches()[0]


def _signature(out: str, source: str) -> str | None:
    """Return size and time of a manifest, which identify it without reading it; None for a folder or pattern."""
    if not listing.is_manifest(source, uris.join(out, OVERLAYS)):
        return None
    return sha256_json(listing.versions(source))


def _compare(job: Job, source: str) -> None:
    """Raise OutputError where the images of the source are no longer those of the job."""
    now = rechunk(images(job.out, source), job.shard_rows)
    for number, (before, after) in enumerate(zip_longest(job.read_shards(), now)):
        if before is not None and after is not None and before.equals(after):
            continue
        rows = ([] if batch is None else batch.to_pylist() for batch in (before, after))
        row, (old, new) = next((i, pair) for i, pair in enumerate(zip_longest(*rows)) if pair[0] != pair[1])
        raise OutputError(
            f"{redact(source)} has changed since {redact(job.out)} was begun: "
            f"{redact(_change(old, new, number * job.shard_rows + row))}; "
            "choose another --out, or restore it; what was scored stays"
        )


def _change(old: dict[str, Any] | None, new: dict[str, Any] | None, row: int) -> str:
    """Say how an image of a manifest has changed."""
    if old is None or new is None:
        return f"it has {'more' if old is None else 'only'} {'than ' if old is None else ''}{row} images"
    if old["uri"] != new["uri"]:
        return f"image {row + 1} was {old['uri']} and is {new['uri']}"
    if old["size"] != new["size"]:
        return f"{old['uri']} had {_known(old['size'], ' bytes')} and has {_known(new['size'], ' bytes')}"
    key = "id" if old["id"] != new["id"] else "sha256"
    return f"{old['uri']} had {key} {_known(old[key])} and has {key} {_known(new[key])}"


def _known(value: str | int | None, unit: str = "") -> str:
    return f"unknown{unit}" if value is None else f"{value}{unit}"


def refuse_duplicates(job: Job, source: str) -> None:
    """Raise DataError where two images have the same id.

    The ids are read once. Their hashes go to temporary files of about IDS_AT_ONCE each. These are compared one after
    the other, so that memory does not grow with the number of images.
    """
    buckets = -(-job.rows // IDS_AT_ONCE)
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(buckets)]
        for batch in job.read_shards(["id"]):
            ids = batch.column("id").to_pylist()
            hashes = np.fromiter(map(_hash, ids), np.uint64, len(ids))
            for number, file in enumerate(files):
                file.write(hashes[hashes % np.uint64(buckets) == number].tobytes())
        for file in files:
            file.seek(0)
            values, counts = np.unique(np.frombuffer(file.read(), np.uint64), return_counts=True)
            if len(repeated := values[counts > 1]) and (name := _repeated(job, set(repeated.tolist()))):
                raise DataError(
                    f"{redact(source)}: id {redact(name)} is there twice: give every image an id of its own"
                )


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _repeated(job: Job, hashes: set[int]) -> str | None:
    """Return an id that is there twice among those with these hashes; None where only their hashes agree."""
    seen: set[str] = set()
    for batch in job.read_shards(["id"]):
        for name in batch.column("id").to_pylist():
            if _hash(name) in hashes:
                if name in seen:
                    return str(name)
                seen.add(name)
    return None
