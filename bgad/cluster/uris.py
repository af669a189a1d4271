"""The text of URIs: absolute paths, files below a folder, patterns, and what of a URI may be shown.

The path of a URI that pyarrow reads is percent-encoded; a question mark begins the options of its file system.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path
from urllib.parse import unquote

from bgad.errors import DataError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_MAGIC = re.compile(r"[*[]")
_KEYS = re.compile(r"(s3://)[^/?#\s@:]*:[^\s@]*@", re.IGNORECASE)  # a secret that was not encoded may have slashes
_PASSWORD = re.compile(r"([a-z][a-z0-9+.-]+://[^/?#\s@:]*:)[^/?#\s@]*@", re.IGNORECASE)
_SECRET = re.compile(
    r"([?&][^=&?\s]*(?:secret|password|passwd|token|signature|credential|access_?key|account_?key|\bsas\b|\bsig)"
    r"[^=&?\s]*=)[^&\s'\"]+",
    re.IGNORECASE,
)


def is_uri(text: str | Path) -> bool:
    """Tell whether a text names a file by a scheme; a path does not."""
    return _SCHEME.match(str(text)) is not None


def scheme(uri: str) -> str:
    """Return the scheme of a URI in lower case."""
    return uri.partition("://")[0].lower()


def split(uri: str) -> tuple[str, str, str]:
    """Divide a URI into scheme with authority, path without slashes around it, and options with their question mark.

    >>> split("s3://bucket/a%20b/c.png?region=eu-1")
    ('s3://bucket', 'a%20b/c.png', '?region=eu-1')
    """
    base, mark, options = uri.partition("?")
    start, _, rest = base.partition("://")
    authority, _, path = rest.partition("/")
    return f"{start}://{authority}", path.strip("/"), mark + options


def absolute(text: str | Path) -> str:
    """Return a URI as it is, and a path or file:// URI as an absolute path.

    Every process of a cluster then means the same file.

    >>> absolute("s3://archive/a"), absolute("file:///data/line%204")
    ('s3://archive/a', '/data/line 4')
    """
    text = str(text)
    if not is_uri(text):
        return str(Path(text).absolute())
    return local_path(text) if scheme(text) == "file" else text


def local_path(uri: str) -> str:
    """Return the path of a file:// URI."""
    return "/" + unquote(uri.partition("://")[2].partition("/")[2])


def join(uri: str, *names: str) -> str:
    """Return the URI of a file below a folder; options of the URI (after a question mark) stay at its end.

    >>> join("s3://archive/out?region=eu-1", "scores", "a.parquet"), join("/data", "a")
    ('s3://archive/out/scores/a.parquet?region=eu-1', '/data/a')
    """
    if not is_uri(uri):
        return str(Path(uri, *names))
    base, mark, options = uri.partition("?")
    return "/".join([base.rstrip("/"), *names]) + mark + options


def parent(uri: str) -> str:
    """Return the folder of a file.

    >>> parent("s3://archive/lists/may.csv?region=eu-1"), parent("/data/may.csv")
    ('s3://archive/lists?region=eu-1', '/data')
    """
    if not is_uri(uri):
        return str(Path(uri).absolute().parent)
    base, mark, options = uri.partition("?")
    return base.rpartition("/")[0] + mark + options


def without_options(uri: str) -> str:
    """Return a path as it is, and a URI without what follows its question mark."""
    return uri.partition("?")[0] if is_uri(uri) else uri


def suffix(uri: str) -> str:
    """Return the end of a file's name from its last dot on, in lower case; of a URI, without its options.

    >>> suffix("s3://archive/may.CSV?region=eu-1"), suffix("/data/why?.parquet")
    ('.csv', '.parquet')
    """
    return Path(without_options(uri)).suffix.lower()


def is_pattern(text: str) -> bool:
    """Tell whether a path or the path of a URI has wildcards; a question mark is none in a URI."""
    return bool(_MAGIC.search(without_options(text))) if is_uri(text) else glob.has_magic(text)


def split_pattern(uri: str) -> tuple[str, list[str]]:
    """Return the folder of a pattern above its first wildcard, and the pattern of each name below it.

    >>> split_pattern("s3://archive/line-4/*/good/*.png?region=eu-1")
    ('s3://archive/line-4?region=eu-1', ['*', 'good', '*.png'])
    """
    root, path, options = split(uri)
    if _MAGIC.search(root):
        raise DataError(f"{redact(uri)}: a pattern begins below the bucket or server, not in its name")
    names = path.split("/")
    first = next(number for number, name in enumerate(names) if _MAGIC.search(name))
    return "/".join([root, *names[:first]]) + options, names[first:]


def redact(text: str) -> str:
    """Replace the credentials of all URIs in a text.

    >>> redact("s3://KEY:SECRET@archive/a?client_secret=x&region=eu-1: cannot be read")
    's3://***@archive/a?client_secret=***&region=eu-1: cannot be read'
    >>> redact("abfs://images:KEY@plant.dfs.core.windows.net/a"), redact("gs://anonymous@archive/a")
    ('abfs://images:***@plant.dfs.core.windows.net/a', 'gs://anonymous@archive/a')
    """
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1***@", _KEYS.sub(r"\1***@", text)))
