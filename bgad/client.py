"""A client of the workbench that needs nothing but Python's own library.

>>> from bgad.client import Client
>>> client = Client("http://localhost:8765", token="bgad_...")
>>> client.score("gear", "part.png").is_anomaly  # doctest: +SKIP
False
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from bgad.errors import BgadError, ConfigError, ImageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Picture = str | Path | bytes | npt.NDArray[np.generic]

TRIES = 6  # of a request that is turned away because too many wait
LONGEST_WAIT = 30.0  # seconds between two of them
TIMEOUT = 120.0  # seconds
MAX_BATCH = 64  # pictures that the service takes in one request
ENDED = ("done", "failed", "cancelled", "interrupted")

T = TypeVar("T")


class ServiceError(BgadError):
    """The service said no, in one line; `status` is that of HTTP, 0 where it could not be reached."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Model:
    """A model by its name; `version` is the one that scores."""

    name: str
    version: dict[str, Any]
    versions: list[dict[str, Any]]
    threshold: float
    rate: float
    guarantee: str
    calibration: int
    size: int
    scored: int
    again: dict[str, int]


@dataclass(frozen=True)
class Score:
    """What the released version of a model says of a picture."""

    image: int
    name: str
    model: str
    version: int
    checksum: str
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    decision: str
    map: str
    overlay: str


@dataclass(frozen=True)
class Failure:
    """A picture of a batch that could not be scored."""

    name: str
    error: str


@dataclass(frozen=True)
class Image:
    """An image in a list."""

    id: int
    name: str
    width: int
    height: int
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    created: float
    verdict: str | None
    note: str | None
    has_mask: bool
    thumbnail: str


@dataclass(frozen=True)
class Review:
    """What a person said of an image."""

    id: int
    image: int
    verdict: str
    note: str
    who: str
    created: float
    mask: str | None
    ignore: str | None


@dataclass(frozen=True)
class Drift:
    """Whether the parts have changed, and the scores by hour or by day; `series` are the last ones. `fresh` says if the
    last alarm still speaks of now, `since_alarm` how many images came after it."""

    total: int
    tested: int
    every: str
    bins: list[dict[str, Any]]
    series: list[dict[str, Any]]
    levels: list[dict[str, Any]]
    alarms: list[dict[str, Any]]
    since_alarm: int | None
    fresh: bool
    drivers: list[dict[str, Any]]
    patience: float
    promise: str


@dataclass(frozen=True)
class Job:
    """A piece of long work; `left` are the seconds that it still takes, as far as is known."""

    id: int
    kind: str
    name: str
    version: int
    state: str
    progress: float
    message: str
    images: list[int]
    made: int | None
    who: str
    created: float
    ended: float | None
    left: float | None
    result: dict[str, Any] | None


class Client:
    """Talks to one service."""

    def __init__(self, address: str, token: str | None = None, *, timeout: float = TIMEOUT, tries: int = TRIES) -> None:
        if urlsplit(address).scheme not in ("http", "https"):
            raise ConfigError(f"{address!r} is no address of a service: give http://HOST:PORT")
        self.address, self.token, self.timeout, self.tries = address.rstrip("/"), token, timeout, tries

    # --- models

    def models(self) -> list[Model]:
        """Those that score."""
        return [_made(Model, row) for row in self._json("GET", "/v1/models")]

    def model(self, name: str) -> Model:
        """One of them."""
        return _made(Model, self._json("GET", f"/v1/models/{_quoted(name)}"))

    def release(self, name: str, version: int) -> Model:
        """Let a version score from now on."""
        return _made(Model, self._json("POST", f"/v1/models/{_quoted(name)}/versions/{int(version)}/release"))

    def discard(self, name: str, version: int) -> Model:
        """Give up a version that is not released."""
        return _made(Model, self._json("POST", f"/v1/models/{_quoted(name)}/versions/{int(version)}/discard"))

    def rollback(self, name: str) -> Model:
        """Go back to the version that was released before."""
        return _made(Model, self._json("POST", f"/v1/models/{_quoted(name)}/rollback"))

    def drift(self, name: str, *, since: float = 0.0, every: str = "auto") -> Drift:
        """Have the parts changed? By `hour`, by `day`, or as it fits the time."""
        query = urlencode({"since": since, "every": every})
        return _made(Drift, self._json("GET", f"/v1/models/{_quoted(name)}/drift?{query}"))

    def set_rate(self, name: str, rate: float) -> Model:
        """Use another false-reject rate: everything that the version has scored is judged anew."""
        self._json("PUT", f"/v1/models/{_quoted(name)}/threshold", *_body({"rate": rate}))
        return self.model(name)

    # --- scoring

    def score(self, model: str, picture: Picture, name: str = "") -> Score:
        """Score one: a file, the bytes of one, or an array as `bgad` takes them (uint8, uint16)."""
        content, known_as = _content(picture)
        query = urlencode({"filename": name or known_as})
        kind = {"Content-Type": "application/octet-stream"}
        return _made(Score, self._json("POST", f"/v1/models/{_quoted(model)}/score?{query}", content, kind))

    def batch(self, model: str, pictures: Sequence[Picture]) -> list[Score | Failure]:
        """Score any number, 64 in a request, in their order; one that cannot be read does not stop the others."""
        parts = (pictures[i : i + MAX_BATCH] for i in range(0, len(pictures), MAX_BATCH))
        return [found for part in parts for found in self._batch(model, part)]

    def _batch(self, model: str, pictures: Sequence[Picture]) -> list[Score | Failure]:
        boundary = secrets.token_hex(16)
        parts: list[bytes] = []
        for picture in pictures:
            content, name = _content(picture)
            head = f'Content-Disposition: form-data; name="files"; filename="{_in_header(name)}"'
            parts += [f"--{boundary}\r\n{head}\r\n\r\n".encode(), content, b"\r\n"]
        body = b"".join([*parts, f"--{boundary}--\r\n".encode()])
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        rows = self._json("POST", f"/v1/models/{_quoted(model)}/batches", body, kind)["results"]
        return [_made(Failure, row) if "error" in row else _made(Score, row) for row in rows]

    # --- images and reviews

    def images(
        self,
        model: str,
        *,
        order: str = "uncertain",
        decision: str = "",
        review: str = "",
        since: float = 0.0,
        until: float = 0.0,
        limit: int | None = None,
    ) -> Iterator[Image]:
        """What the released version of a model has scored, page by page as it is needed; as it was when the first page
        was asked for."""
        wanted: dict[str, Any] = {"order": order, "decision": decision, "review": review, "since": since}
        wanted |= {"model": model, "until": until}
        seen = 0
        while limit is None or seen < limit:
            most = 200 if limit is None else min(200, limit - seen)
            found = self._json("GET", f"/v1/images?{urlencode({**wanted, 'limit': most, 'offset': seen})}")
            wanted["as_of"], rows = found["as_of"], found["images"]
            yield from (_made(Image, row) for row in rows)
            seen += len(rows)
            if len(rows) < most:
                return

    def review(
        self,
        image: int,
        verdict: str,
        *,
        note: str = "",
        mask: Picture | None = None,
        ignore: Picture | None = None,
        model: str = "",
    ) -> Review:
        """Say what an image shows: good, bad or unsure; masks are PNGs of its size, or arrays. `model` is the one that
        was looked at, for the history."""
        body: dict[str, Any] = {"verdict": verdict, "note": note} | ({"model": model} if model else {})
        for kind, painted in (("mask", mask), ("ignore", ignore)):
            if painted is not None:
                body[kind] = base64.b64encode(_content(painted)[0]).decode()
        return _made(Review, self._json("POST", f"/v1/images/{int(image)}/reviews", *_body(body)))

    def undo(self, review: int | Review) -> Review:
        """Take back the last review of an image; the one that takes its place: as before, or `withdrawn`."""
        number = review.id if isinstance(review, Review) else int(review)
        return _made(Review, self._json("POST", f"/v1/reviews/{number}/undo"))

    def get(self, path: str) -> bytes:
        """What a link in an answer leads to, such as the `overlay` of a score."""
        return self._bytes("GET", path)

    # --- jobs

    def teach(self, model: str, images: Sequence[int] | None = None) -> Job:
        """Teach a model what was reviewed: these images, or all."""
        body = {"model": model, "images": None if images is None else list(images)}
        return _made(Job, self._json("POST", "/v1/jobs", *_body(body)))

    def job(self, number: int | Job) -> Job:
        """How it stands."""
        return _made(Job, self._json("GET", f"/v1/jobs/{_number(number)}"))

    def jobs(self, model: str = "") -> list[Job]:
        """The newest first, without their results; of one model, or of all."""
        return [_made(Job, row) for row in self._json("GET", f"/v1/jobs?{urlencode({'model': model})}")]

    def resume(self, number: int | Job) -> Job:
        """Start one again that was interrupted, cancelled or failed; the new job."""
        return _made(Job, self._json("POST", f"/v1/jobs/{_number(number)}/resume"))

    def cancel(self, number: int | Job) -> Job:
        """Stop one."""
        return _made(Job, self._json("POST", f"/v1/jobs/{_number(number)}/cancel"))

    def wait(self, number: int | Job, *, timeout: float | None = None, every: float = 0.5) -> Job:
        """Until a job has ended; ServiceError when it ended badly or takes longer than `timeout` seconds."""
        began = time.monotonic()
        while (job := self.job(number)).state not in ENDED:
            if timeout is not None and time.monotonic() - began > timeout:
                raise ServiceError(f"job {job.id} is still {job.state} after {timeout:g} seconds: wait longer", 0)
            time.sleep(every)
        if job.state != "done":
            raise ServiceError(f"job {job.id} is {job.state}: {job.message}", 0)
        return job

    # --- the wire

    def _json(self, method: str, path: str, body: bytes | None = None, kind: Mapping[str, str] | None = None) -> Any:
        content = self._bytes(method, path, body, kind)
        try:
            return json.loads(content)
        except ValueError as error:
            raise ServiceError(f"{self.address} does not answer like a workbench: is it one?", 0) from error

    def _bytes(self, method: str, path: str, body: bytes | None = None, kind: Mapping[str, str] | None = None) -> bytes:
        headers = dict(kind or {}) | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        request = urllib.request.Request(f"{self.address}{path}", body, headers, method=method)  # noqa: S310 - http(s)
        for left in range(self.tries - 1, -1, -1):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:  # noqa: S310
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 503 and left:
                        time.sleep(_seconds(error.headers.get("Retry-After")))
                        continue
                    raise ServiceError(_detail(error), error.code) from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                raise ServiceError(f"{self.address} cannot be reached: {_line(str(reason))}", 0) from error
        raise ServiceError("no try was allowed", 0)


def _made(kind: type[T], row: Mapping[str, Any]) -> T:
    """From an answer; what a newer service says beyond is left out."""
    try:
        return kind(**{field.name: row[field.name] for field in fields(kind)})  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise ServiceError(f"the answer of the service has no {error}: is it an older one?", 0) from error


def _content(picture: Picture) -> tuple[bytes, str]:
    """The bytes of a file, and its name."""
    if isinstance(picture, bytes):
        return picture, ""
    if isinstance(picture, str | Path):
        try:
            return Path(picture).read_bytes(), Path(picture).name
        except OSError as error:
            raise ImageError(f"{picture}: cannot be read: {error.strerror or error}") from error
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    try:
        array = picture.astype("uint8") * 255 if picture.dtype == bool else picture
        Pillow.fromarray(array).save(buffer, "PNG")
    except (AttributeError, TypeError, ValueError, OSError) as error:
        raise ImageError("this is no array of uint8 (H, W), (H, W, 3), (H, W, 4) or uint16 (H, W)") from error
    return buffer.getvalue(), ""


def _body(value: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _in_header(name: str) -> str:
    """As browsers write a file's name in a form."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _number(job: int | Job) -> int:
    return job.id if isinstance(job, Job) else int(job)


def _seconds(text: str | None) -> float:
    """Of a Retry-After header; one where it says nothing that we read."""
    try:
        return min(LONGEST_WAIT, max(0.0, float(text or 1)))
    except ValueError:
        return 1.0


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return _line(str(json.loads(error.read())["detail"]))
    except (ValueError, KeyError, TypeError, OSError):
        return f"the service answers {error.code} {_line(str(error.reason))}"


def _line(text: str) -> str:
    return " ".join(text.split())
