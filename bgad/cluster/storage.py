"""Files by URI: a local path, or s3://, gs:// and abfs:// by the file systems of pyarrow, or any scheme of fsspec.

A write is atomic. On a file system a file is written under a temporary name and moved; an object store shows an object
when its upload is complete.
"""

from __future__ import annotations

import errno
import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from bgad.cluster import uris
from bgad.cluster.uris import redact
from bgad.errors import BgadError, ConfigError, DataError, OutputError, first_line
from bgad.io.files import check_folder, write_atomic

logger = logging.getLogger(__name__)

PIECE = 1 << 20
PAUSES = (0.5, 2.0)  # seconds before each further attempt to read a file; object stores make some of their own
SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")  # that pyarrow reads
OBJECT_STORES = ("s3", "gcs", "abfs")  # file systems of pyarrow whose uploads are atomic

# What object stores call the reasons for which a request is refused, and what to do about each.
_REASONS = {
    r"ACCESS_DENIED|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|HTTP status 403|Forbidden|credential": (
        "access was refused: check the credentials of the machine"
    ),
    r"NO_SUCH_BUCKET|NoSuchBucket|bucket.* does not exist": "there is no such bucket",
    r"timed? ?out|Could not resolve|Couldn't connect|NETWORK_CONNECTION|curlCode": "the server does not answer",
    r"No space left|Disk quota": "no space is left",
}
# The file, not its file system, is the reason of these errors.
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


class AccessError(DataError):
    """A file system refuses access, does not answer or fails; it says nothing about the file."""


def file_system(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI, and the path in it."""
    if not uris.is_uri(uri) or uris.scheme(uri) == "file":
        return fs.LocalFileSystem(), uris.absolute(uri)
    if uris.scheme(uri) not in SCHEMES:
        return _by_fsspec(uri)
    root, path, options = uris.split(uri)
    try:
        system, top = _root(root + options)
    except pa.ArrowNotImplementedError:  # this build of pyarrow lacks the file system
        return _by_fsspec(uri)
    except pa.ArrowInvalid as error:
        # A text that cannot be parsed may be cut in the middle of a credential.
        advice = "encode special characters, as in a%20b" if "://" in str(error) else reason(error)
        raise ConfigError(f"{redact(uri)}: is not a URI that can be used: {advice}") from error
    except OSError as error:
        raise AccessError(f"{redact(uri)}: {reason(error)}") from error
    return system, f"{top}/{unquote(path)}" if path else top


@lru_cache(maxsize=64)
def _root(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a bucket or server, and the path of its top; its connections are shared."""
    system, path = fs.FileSystem.from_uri(uri)
    return system, path.rstrip("/")


def _by_fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a scheme that pyarrow cannot read; its URIs are not percent-encoded."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{redact(uri)}: {uris.scheme(uri)} is not a file system that can be used here ({reason(error)}); "
            "local paths, s3, gs and abfs can"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path


def is_encoded(uri: str) -> bool:
    """Tell whether the path of a URI is percent-encoded: that of fsspec's schemes is not."""
    return not isinstance(file_system(uri)[0], fs.PyFileSystem)


def below(folder: str, path: str) -> str:
    """Return the URI of a file by its path below a folder, such as `line 4/a.png`."""
    return uris.join(folder, quote(path) if uris.is_uri(folder) and is_encoded(folder) else path)


def path_below(folder: str, path: str) -> str:
    """Return the part below a folder of a path that its listing gave."""
    top, path = file_system(folder)[1].strip("/"), path.strip("/")
    if top and not path.startswith(f"{top}/"):
        raise DataError(f"{redact(folder)}: its file system lists {path}, which is not below it")
    return path[len(top) :].lstrip("/")


def uri_of(folder: str, path: str) -> str:
    """Return the URI of a path that a listing of a folder gave; it leads back to the same file."""
    return below(folder, path_below(folder, path))


def is_below(uri: str, folder: str) -> bool:
    """Tell whether a file lies below a folder, by the names of both; links of a local disk are followed."""
    (system, path), (other, top) = file_system(uri), file_system(folder)
    if isinstance(system, fs.LocalFileSystem) and isinstance(other, fs.LocalFileSystem):
        return Path(path).resolve().is_relative_to(Path(top).resolve())
    return bool(system.type_name == other.type_name) and path.strip("/").startswith(f"{top.strip('/')}/")


def read_bytes(uri: str, limit: int | None = None) -> bytes:
    """Return the content of a file.

    DataError where it is missing or has more than `limit` bytes; AccessError where its file system fails, after some
    further attempts.
    """
    for pause in PAUSES:
        try:
            return _read(uri, limit)
        except AccessError as error:
            logger.debug(f"{error}: read again in {pause} s")
            time.sleep(pause)
    return _read(uri, limit)


def _read(uri: str, limit: int | None) -> bytes:
    system, path = file_system(uri)
    try:
        with system.open_input_stream(path) as stream:
            content: bytes = stream.read() if limit is None else stream.read(limit + 1)
    except pa.ArrowInvalid as error:  # a path that no file can have
        raise DataError(f"{redact(uri)}: cannot be read: {reason(error)}") from error
    except OSError as error:
        raise _read_error(uri, error) from error
    if limit is not None and len(content) > limit:
        raise DataError(f"{redact(uri)}: has more than {limit} bytes")
    return content


def _read_error(uri: str, error: OSError) -> DataError:
    missing = error.errno in _NO_FILE or isinstance(error, FileNotFoundError) or "is a directory" in str(error)
    return (DataError if missing else AccessError)(f"{redact(uri)}: cannot be read: {reason(error)}")


def write_bytes(uri: str, content: bytes) -> None:
    """Write a file in one atomic step; OutputError where that fails."""
    system, path = file_system(uri)
    if isinstance(system, fs.LocalFileSystem):
        write_atomic(Path(path), content)
        return
    with _writing(uri), _target(system, path) as target, system.open_output_stream(target) as stream:
        stream.write(content)


def write_stream(uri: str, source: IO[bytes]) -> None:
    """Write a file from a stream in one atomic step, piece by piece; where that fails, none is left."""
    system, path = file_system(uri)
    if isinstance(system, fs.LocalFileSystem):
        check_folder(Path(path).parent)
    with _writing(uri), _target(system, path) as target:
        stream = system.open_output_stream(target)
        try:
            while piece := source.read(PIECE):
                stream.write(piece)
        except BaseException:
            with suppress(OSError):
                stream.close()  # pyarrow cannot abort an upload: what was written is published, and deleted again
                system.delete_file(target)
            raise
        stream.close()


@contextmanager
def _writing(uri: str) -> Iterator[None]:
    """Turn the errors of a file system into OutputErrors."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {redact(uri)}: {reason(error)}") from error


@contextmanager
def _target(system: fs.FileSystem, path: str) -> Iterator[str]:
    """Yield the path to write to: a temporary one that is moved to its place, but in an object store the place itself.

    A system that moves no file over another one gets the old file deleted first.
    """
    if system.type_name in OBJECT_STORES:
        yield path
        return
    draft = f"{path}.{uuid.uuid4().hex}.tmp"
    system.create_dir(path.rpartition("/")[0], recursive=True)
    try:
        yield draft
        try:
            system.move(draft, path)
        except OSError:
            system.delete_file(path)
            system.move(draft, path)
    except BaseException:
        with suppress(OSError):
            system.delete_file(draft)
        raise


def exists(uri: str) -> bool:
    """Tell whether there is a file or a folder of this name."""
    return bool(file_info(uri).type != fs.FileType.NotFound)


def file_info(uri: str) -> fs.FileInfo:
    """Return type, size and time of change of a file."""
    system, path = file_system(uri)
    try:
        return system.get_file_info(path)
    except OSError as error:
        raise AccessError(f"{redact(uri)}: cannot be read: {reason(error)}") from error


def file_infos(folder: str, *, recursive: bool = False) -> Iterator[fs.FileInfo]:
    """Yield the files in a folder, or also those below it, in the order of their paths; none where it is missing."""
    system, path = file_system(folder)
    try:
        found = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=recursive))
    except OSError as error:
        raise AccessError(f"{redact(folder)}: cannot be listed: {reason(error)}") from error
    yield from sorted((info for info in found if info.type == fs.FileType.File), key=lambda info: info.path)


def reason(error: BaseException) -> str:
    """Return in a few words why a request to a file system failed, without credentials."""
    if isinstance(error, BgadError):
        return str(error)
    text = str(error)
    known = next((words for pattern, words in _REASONS.items() if re.search(pattern, text, re.IGNORECASE)), None)
    if known:
        return known
    return redact(error.strerror if isinstance(error, OSError) and error.strerror else first_line(error))
