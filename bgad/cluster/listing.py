"""The images of an archive: those of a folder, of a pattern, or of a manifest in Parquet or CSV.

Every source gives record batches with the columns of SCHEMA, in the same order at every run. No list of all images is
held in memory where the source is a manifest.
"""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyarrow import fs

from bgad.cluster import storage, uris
from bgad.cluster.uris import redact
from bgad.errors import DataError, OutputError, first_line
from bgad.inference.batch import MAP, OVERLAY
from bgad.io import discover
from bgad.io.files import sha256_bytes
from bgad.types import Progress, ProgressTask

SCHEMA = pa.schema([("id", pa.string()), ("uri", pa.string()), ("size", pa.int64()), ("sha256", pa.string())])
BATCH_ROWS = 65_536
MANIFESTS = (".parquet", ".csv")
_ENCODED = re.compile(r"((?:%[0-9a-f]{2})+)", re.IGNORECASE)


def read(source: str, overlays: str | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the images of a folder, a pattern or a manifest.

    `overlays` is the folder of overlays and maps of an earlier run; these are left out.
    """
    if is_manifest(source, overlays):
        return read_manifest(source)
    return _as_batches(_files(source, overlays))


def is_manifest(source: str, overlays: str | None = None) -> bool:
    """Tell whether a source is a manifest: a .parquet or .csv file, or a folder of .parquet files without images."""
    if uris.is_pattern(source):
        return False
    if uris.suffix(source) in MANIFESTS:
        return True
    return bool(_parts(source)) and next(_below(source, [], overlays), None) is None


def _parts(folder: str) -> list[fs.FileInfo]:
    """Return the Parquet files in a folder, which together are one manifest."""
    if not uris.is_uri(folder) and not Path(folder).is_dir():
        return []
    return [info for info in storage.file_infos(folder) if info.path.lower().endswith(".parquet")]


def read_manifest(source: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a manifest: uri, and id, size and sha256 where it has them; the default id is the uri."""
    parts = [storage.uri_of(source, info.path) for info in _parts(source)]
    base = source if parts else uris.parent(source)
    number = 0
    for batch in _csv_batches(source) if uris.suffix(source) == ".csv" else _parquet(parts or [source]):
        if "uri" not in batch.schema.names:
            raise DataError(f"{redact(source)}: no column uri; a manifest has uri and optionally id, size and sha256")
        yield _checked(batch, redact(source), base, number)
        number += batch.num_rows


def _parquet(files: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for file in files:
        system, path = storage.file_system(file)
        try:
            table = pq.ParquetFile(path, filesystem=system)
            names = [name for name in SCHEMA.names if name in table.schema_arrow.names]
            yield from table.iter_batches(BATCH_ROWS, columns=names)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{redact(file)}: cannot be read as Parquet: {storage.reason(error)}") from error


def _csv_batches(source: str) -> Iterator[pa.RecordBatch]:
    system, path = storage.file_system(source)
    types = pa_csv.ConvertOptions(column_types={field.name: field.type for field in SCHEMA})
    try:
        with system.open_input_stream(path) as stream, pa_csv.open_csv(stream, convert_options=types) as reader:
            yield from reader
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{redact(source)}: cannot be read as CSV: {storage.reason(error)}") from error


def _checked(batch: pa.RecordBatch, source: str, base: str, first: int) -> pa.RecordBatch:
    """Return a batch of a manifest with all columns of SCHEMA; DataError names the first row without a uri or id."""
    columns = {}
    for field in SCHEMA:
        if field.name not in batch.schema.names:
            columns[field.name] = pa.nulls(batch.num_rows, field.type)
            continue
        try:
            columns[field.name] = batch.column(field.name).cast(field.type)
        except pa.ArrowException as error:
            raise DataError(f"{source}: column {field.name} must be {field.type}: {first_line(error)}") from error
    resolved = [_resolved(uri, base) for uri in columns["uri"].to_pylist()]
    missing = next((row for row, uri in enumerate(resolved) if not uri), None)
    if missing is not None:
        raise DataError(f"{source}: row {first + missing + 1} has no uri")
    columns["uri"] = pa.array(resolved, pa.string())
    if "id" not in batch.schema.names:
        columns["id"] = _default_ids(resolved)
    elif columns["id"].null_count:
        row = columns["id"].is_null().to_pylist().index(True)
        raise DataError(f"{source}: row {first + row + 1} has no id: give every image one, or leave out the column")
    return pa.record_batch(columns, SCHEMA)


def _resolved(uri: str | None, base: str) -> str | None:
    """Return the uri of an image; a relative path is taken below the folder of its manifest."""
    if not uri or uris.is_uri(uri) or Path(uri).is_absolute():
        return uri
    return storage.below(base, uri)


def _default_ids(listed: Iterable[str | None]) -> pa.Array:
    """Return the ids of images that have none: their uris, which appear in messages, without credentials."""
    return pa.array((uri and redact(uri) for uri in listed), pa.string())


def _files(source: str, overlays: str | None) -> Iterator[tuple[str, int | None]]:
    """Yield uri and size of each image of a folder or a pattern."""
    if not uris.is_uri(source):
        yield from (_with_size(path) for path in discover.expand([source]) if not _is_output(str(path), overlays))
        return
    found = _below(*_split_pattern(source), overlays) if uris.is_pattern(source) else _below(source, [], overlays)
    first = next(found, None)
    if first is None:
        raise DataError(f"{redact(source)}: no image found ({', '.join(sorted(discover.IMAGE_SUFFIXES))})")
    yield first
    yield from found


def _with_size(path: Path) -> tuple[str, int | None]:
    try:
        return str(path.absolute()), path.stat().st_size
    except OSError:  # gone since it was listed: its row says so
        return str(path.absolute()), None


def _below(folder: str, pattern: Sequence[str], overlays: str | None) -> Iterator[tuple[str, int | None]]:
    """Yield uri and size of each image below a folder that matches a pattern."""
    if not uris.is_uri(folder):
        yield from (_with_size(path) for path in discover.walk(Path(folder)) if not _is_output(str(path), overlays))
        return
    for info in storage.file_infos(folder, recursive=True):
        path = storage.path_below(folder, info.path)
        if PurePosixPath(path).suffix.lower() in discover.IMAGE_SUFFIXES and _matches(path.split("/"), pattern):
            uri = storage.below(folder, path)
            if not _is_output(uri, overlays):
                yield uri, info.size


def _split_pattern(uri: str) -> tuple[str, list[str]]:
    """Return the folder of a pattern, and the patterns of the names below it as the file system spells them."""
    folder, names = uris.split_pattern(uri)
    if not storage.is_encoded(folder):
        return folder, names
    pieces = ([glob.escape(unquote(p)) if p[:1] == "%" else p for p in _ENCODED.split(name)] for name in names)
    return folder, ["".join(name) for name in pieces]


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a path, or a folder above it, matches a pattern name by name; ** stands for any number of names.

    >>> _matches(["a", "b", "c.png"], ["**", "*.png"]), _matches(["a", "c.png"], ["*.png"])
    (True, False)
    >>> _matches(["line-4", "c.png"], ["line-*"])
    True
    """
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(path[skipped:], pattern[1:]) for skipped in range(len(path)))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _is_output(uri: str, overlays: str | None) -> bool:
    """Tell whether a file is an overlay or a map of an earlier run, which may lie in the folder that is listed."""
    if overlays is None or not uris.without_options(uri).endswith((OVERLAY, MAP)):
        return False
    return storage.is_below(uri, overlays)


def _as_batches(files: Iterable[tuple[str, int | None]]) -> Iterator[pa.RecordBatch]:
    source = iter(files)
    while some := list(islice(source, BATCH_ROWS)):
        listed = [uri for uri, _ in some]
        sizes = pa.array([size for _, size in some], pa.int64())
        columns = [_default_ids(listed), pa.array(listed, pa.string()), sizes, pa.nulls(len(some), pa.string())]
        yield pa.record_batch(columns, SCHEMA)


def write_file(
    source: str,
    out: str,
    *,
    hashes: bool = False,
    threads: int = 16,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write the manifest of a folder, a pattern or another manifest; returns the number of images.

    The file is written next to its place and then moved, so an interrupted run leaves no half manifest.
    """
    if uris.suffix(out) != ".parquet":
        raise OutputError(f"cannot write to {redact(out)}: give the name of a file that ends in .parquet")
    if storage.exists(out) and not overwrite:
        raise OutputError(f"{redact(out)} exists already: choose another --out, or add --overwrite")
    task = ProgressTask(progress, "listing", 0)
    rows = 0
    with tempfile.TemporaryFile() as draft:
        with pq.ParquetWriter(draft, SCHEMA, compression="zstd") as writer:
            for batch in with_details(read(source), hashes=hashes, threads=threads):
                writer.write_batch(batch)
                rows += batch.num_rows
                task.advance(batch.num_rows)
        if not rows:
            raise DataError(f"{redact(source)}: lists no image")
        draft.seek(0)
        storage.write_stream(out, draft)
    return rows


def with_details(batches: Iterable[pa.RecordBatch], *, hashes: bool, threads: int) -> Iterator[pa.RecordBatch]:
    """Add the sizes that are missing and, if asked, the sha256 of every image; a missing image keeps a null."""
    with ThreadPoolExecutor(threads) as pool:
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in SCHEMA.names}
            if hashes:
                found = list(pool.map(_size_and_hash, columns["uri"]))
                columns["size"], columns["sha256"] = [size for size, _ in found], [digest for _, digest in found]
            elif batch.column("size").null_count:
                columns["size"] = list(pool.map(_size, columns["uri"], columns["size"]))
            yield pa.record_batch(columns, SCHEMA)


def _size(uri: str, known: int | None) -> int | None:
    return storage.file_info(uri).size if known is None else known


def _size_and_hash(uri: str) -> tuple[int | None, str | None]:
    try:
        content = storage.read_bytes(uri)
    except storage.AccessError:
        raise
    except DataError:
        return None, None
    return len(content), sha256_bytes(content)


def versions(source: str) -> list[tuple[str, int, float]]:
    """Return path, size and time of change of each file of a manifest."""
    infos = _parts(source) or [storage.file_info(source)]
    if infos[0].type == fs.FileType.NotFound:
        raise DataError(f"{redact(source)}: no such file or folder")
    return [(info.path, info.size, info.mtime.timestamp() if info.mtime else 0.0) for info in infos]
