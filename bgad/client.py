"""An HTTP client of the workbench that needs only the standard library.

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

    ImageInput = str | Path | bytes | npt.NDArray[np.generic]

MAX_TRIES = 6  # of a request that the service refuses because it is busy
MAX_WAIT = 30.0  # seconds between two tries
TIMEOUT = 120.0  # seconds
MAX_BATCH = 64  # images in one request
MAX_PAGE = 200  # images on one page of a list
CONFLICT = 409  # HTTP status: somebody else was faster
FINISHED = ("done", "failed", "cancelled", "interrupted")

T = TypeVar("T")


class ServiceError(BgadError):
    """The service refuses a request or cannot be reached; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ReviewChangedError(ServiceError):
    """Somebody else has reviewed the image meanwhile, so nothing was stored; `review` is the review that counts now."""

    def __init__(self, message: str, review: Review) -> None:
        super().__init__(message, CONFLICT)
        self.review = review


@dataclass(frozen=True)
class Model:
    """A model with its versions; `version` is the released one."""

    name: str
    version: dict[str, Any]
    versions: list[dict[str, Any]]
    threshold: float
    rate: float
    map_threshold: float
    guarantee: str
    calibration: int
    size: int
    scored: int
    rescoring: dict[str, int]


@dataclass(frozen=True)
class Score:
    """The score of an image by the released version of a model.

    `parts` add up to the score. `reason` says in words why the image is rejected, None if it is not. `region` is the
    bounding box (left, top, right, bottom) of the region that stands out. `kept` is False, `image` 0, and
    `map` and `overlay` are empty, if the store did not answer: the score counts, but the image is not stored.
    """

    image: int
    kept: bool
    name: str
    model: str
    version: int
    checksum: str
    precision: str
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    decision: str
    map: str
    overlay: str
    parts: dict[str, float]
    reason: str | None
    region: list[int] | None


@dataclass(frozen=True)
class Failure:
    """An image of a batch that could not be scored."""

    name: str
    error: str


@dataclass(frozen=True)
class Image:
    """An image in a list; `parts`, `reason` and `region` are those of a `Score`, `review` is the id of the last review
    or 0."""

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
    review: int
    thumbnail: str
    parts: dict[str, float]
    reason: str | None
    region: list[int] | None


@dataclass(frozen=True)
class Review:
    """A person's review of an image."""

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
    """The drift test of a model and its scores over time.

    `series` are the last scores. `recent_alarm` says whether the last alarm still describes the present, and
    `since_alarm` how many images came after it. `cause` says whether a recent alarm looks like more defects or like
    changed imaging.
    """

    total: int
    tested: int
    every: str
    bins: list[dict[str, Any]]
    series: list[dict[str, Any]]
    levels: list[dict[str, Any]]
    alarms: list[dict[str, Any]]
    since_alarm: int | None
    recent_alarm: bool
    cause: dict[str, Any] | None
    drivers: list[dict[str, Any]]
    patience: float
    guarantee: str


@dataclass(frozen=True)
class Job:
    """A teaching job; `seconds_left` is the estimated number of seconds left."""

    id: int
    kind: str
    name: str
    version: int
    state: str
    progress: float
    message: str
    images: list[int]
    new_version: int | None
    who: str
    created: float
    ended: float | None
    seconds_left: float | None
    result: dict[str, Any] | None


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to another origin: they would receive the token and the images."""

    def redirect_request(self, req: urllib.request.Request, *details: Any) -> urllib.request.Request | None:
        """Return the request to send instead; `details` end with its address."""
        if _origin(details[-1]) != _origin(req.full_url):
            scheme, host, port = _origin(details[-1])
            where = _line(f"{scheme}://{host}:{port}")
            raise ServiceError(f"the service sends us on to {where}: if you trust it, use that address", details[1])
        return super().redirect_request(req, *details)


_OPENER = urllib.request.build_opener(_SameOrigin)


class Client:
    """A connection to one service."""

    def __init__(
        self, address: str, token: str | None = None, *, timeout: float = TIMEOUT, tries: int = MAX_TRIES
    ) -> None:
        if urlsplit(address).scheme not in ("http", "https"):
            raise ConfigError(f"{address!r} is no address of a service: give http://HOST:PORT")
        self.address, self.token, self.timeout, self.tries = address.rstrip("/"), token, timeout, tries

    # --- models

    def models(self) -> list[Model]:
        """Return the models that have a released version."""
        return [_parse(Model, row) for row in self._json("GET", "/v1/models")]

    def model(self, name: str) -> Model:
        """Return one model."""
        return _parse(Model, self._json("GET", f"/v1/models/{_quoted(name)}"))

    def release(self, name: str, version: int) -> Model:
        """Release a version."""
        return _parse(Model, self._json("POST", f"/v1/models/{_quoted(name)}/versions/{int(version)}/release"))

    def discard(self, name: str, version: int) -> Model:
        """Discard a version that is not released."""
        return _parse(Model, self._json("POST", f"/v1/models/{_quoted(name)}/versions/{int(version)}/discard"))

    def rollback(self, name: str) -> Model:
        """Release the version that was released before the present one."""
        return _parse(Model, self._json("POST", f"/v1/models/{_quoted(name)}/rollback"))

    def drift(self, name: str, *, since: float = 0.0, every: str = "auto") -> Drift:
        """Return the drift test and the scores since a time, in bins of an `hour`, a `day`, or chosen automatically."""
        query = urlencode({"since": since, "every": every})
        return _parse(Drift, self._json("GET", f"/v1/models/{_quoted(name)}/drift?{query}"))

    def set_rate(self, name: str, rate: float) -> Model:
        """Set the false-reject rate of the released version; its recorded scores are decided again."""
        self._json("PUT", f"/v1/models/{_quoted(name)}/threshold", *_body({"rate": rate}))
        return self.model(name)

    # --- scoring

    def score(self, model: str, image: ImageInput, name: str = "") -> Score:
        """Score one image: a path, the bytes of a file, or an array of uint8 or uint16."""
        content, file_name = _content(image)
        query = urlencode({"filename": name or file_name})
        kind = {"Content-Type": "application/octet-stream"}
        return _parse_score(self._json("POST", f"/v1/models/{_quoted(model)}/score?{query}", content, kind))

    def batch(self, model: str, images: Sequence[ImageInput]) -> list[Score | Failure]:
        """Score any number of images in order, 64 per request; an unreadable image does not stop the others."""
        parts = (images[i : i + MAX_BATCH] for i in range(0, len(images), MAX_BATCH))
        return [result for part in parts for result in self._batch(model, part)]

    def _batch(self, model: str, images: Sequence[ImageInput]) -> list[Score | Failure]:
        boundary = secrets.token_hex(16)
        parts: list[bytes] = []
        for image in images:
            content, name = _content(image)
            head = f'Content-Disposition: form-data; name="files"; filename="{_in_header(name)}"'
            parts += [f"--{boundary}\r\n{head}\r\n\r\n".encode(), content, b"\r\n"]
        body = b"".join([*parts, f"--{boundary}--\r\n".encode()])
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        rows = self._json("POST", f"/v1/models/{_quoted(model)}/batches", body, kind)["results"]
        return [_parse(Failure, row) if "error" in row else _parse_score(row) for row in rows]

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
        """Yield the images that the released version of a model has scored.

        Pages are requested as needed and show the state at the time of the first one.
        """
        query: dict[str, Any] = {"order": order, "decision": decision, "review": review, "since": since}
        query |= {"model": model, "until": until}
        offset = 0
        while limit is None or offset < limit:
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - offset)
            page = self._json("GET", f"/v1/images?{urlencode({**query, 'limit': size, 'offset': offset})}")
            query["as_of"], rows = page["as_of"], page["images"]
            yield from (_parse(Image, row) for row in rows)
            offset += len(rows)
            if len(rows) < size:
                return

    def review(
        self,
        image: int,
        verdict: str,
        *,
        note: str = "",
        mask: ImageInput | None = None,
        ignore: ImageInput | None = None,
        model: str = "",
        seen: int | Review | None = None,
    ) -> Review:
        """Review an image as good, bad or unsure; masks are PNGs of its size, or arrays.

        The history lists the review under `model`, or else under the model that scored the image last. `seen` is the
        last review of the image that you know (0: none): with it, ReviewChangedError if there is a newer one.
        """
        body: dict[str, Any] = {"verdict": verdict, "note": note} | ({"model": model} if model else {})
        if seen is not None:
            body["seen"] = seen.id if isinstance(seen, Review) else int(seen)
        for kind, marks in (("mask", mask), ("ignore", ignore)):
            if marks is not None:
                body[kind] = base64.b64encode(_content(marks)[0]).decode()
        return _parse(Review, self._json("POST", f"/v1/images/{int(image)}/reviews", *_body(body)))

    def undo(self, review: int | Review) -> Review:
        """Undo the last review of an image; return the one that takes its place, a copy or `withdrawn`.

        ReviewChangedError if somebody has reviewed the image since.
        """
        number = review.id if isinstance(review, Review) else int(review)
        return _parse(Review, self._json("POST", f"/v1/reviews/{number}/undo"))

    def get(self, path: str) -> bytes:
        """Return the file behind a link in an answer, such as the `overlay` of a score."""
        return self._bytes("GET", path)

    # --- jobs

    def teach(self, model: str, images: Sequence[int] | None = None) -> Job:
        """Start a job that teaches a model the given reviewed images, or all of them."""
        body = {"model": model, "images": None if images is None else list(images)}
        return _parse(Job, self._json("POST", "/v1/jobs", *_body(body)))

    def job(self, number: int | Job) -> Job:
        """Return the present state of a job."""
        return _parse(Job, self._json("GET", f"/v1/jobs/{_number(number)}"))

    def jobs(self, model: str = "") -> list[Job]:
        """Return the jobs of one model, or of all, newest first and without their results."""
        return [_parse(Job, row) for row in self._json("GET", f"/v1/jobs?{urlencode({'model': model})}")]

    def resume(self, number: int | Job) -> Job:
        """Start a new job with the work of one that was interrupted, cancelled or failed."""
        return _parse(Job, self._json("POST", f"/v1/jobs/{_number(number)}/resume"))

    def cancel(self, number: int | Job) -> Job:
        """Cancel a job."""
        return _parse(Job, self._json("POST", f"/v1/jobs/{_number(number)}/cancel"))

    def wait(self, number: int | Job, *, timeout: float | None = None, every: float = 0.5) -> Job:
        """Wait for a job to finish; ServiceError if it does not succeed or takes longer than `timeout` seconds."""
        began = time.monotonic()
        while (job := self.job(number)).state not in FINISHED:
            if timeout is not None and time.monotonic() - began > timeout:
                raise ServiceError(f"job {job.id} is still {job.state} after {timeout:g} seconds: wait longer", 0)
            time.sleep(every)
        if job.state != "done":
            raise ServiceError(f"job {job.id} is {job.state}: {job.message}", 0)
        return job

    # --- HTTP

    def _json(self, method: str, path: str, body: bytes | None = None, kind: Mapping[str, str] | None = None) -> Any:
        content = self._bytes(method, path, body, kind)
        try:
            return json.loads(content)
        except ValueError as error:
            raise ServiceError(f"{self.address} does not answer like a workbench: is it one?", 0) from error

    def _bytes(self, method: str, path: str, body: bytes | None = None, kind: Mapping[str, str] | None = None) -> bytes:
        if not path.startswith("/"):  # an address such as http://HOST@elsewhere would come of it
            raise ConfigError(f"{path!r} is no path of the service: give one that begins with /")
        headers = dict(kind or {}) | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        request = urllib.request.Request(f"{self.address}{path}", body, headers, method=method)  # noqa: S310 - http(s)
        for left in range(self.tries - 1, -1, -1):
            try:
                with _OPENER.open(request, timeout=self.timeout) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 503 and left:
                        time.sleep(_seconds(error.headers.get("Retry-After")))
                        continue
                    raise _problem(error) from error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                raise ServiceError(f"{self.address} cannot be reached: {_line(str(reason))}", 0) from error
        raise ServiceError("no try was allowed", 0)


def _parse_score(row: Any) -> Score:
    is_kept = not isinstance(row, Mapping) or row.get("kept", True)
    return _parse(Score, row if is_kept else {**row, "image": 0, "map": "", "overlay": ""})


def _origin(address: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of an address."""
    parts = urlsplit(address)
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:  # no port that exists
        port = None
    return parts.scheme, parts.hostname or "", port


def _parse(kind: type[T], row: Mapping[str, Any]) -> T:
    """Build a dataclass from JSON; fields that only a newer service has are ignored."""
    try:
        return kind(**{field.name: row[field.name] for field in fields(kind)})  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise ServiceError(f"the answer of the service has no {error}: is it an older one?", 0) from error


def _content(image: ImageInput) -> tuple[bytes, str]:
    """Return the bytes of an image file and its name."""
    if isinstance(image, bytes):
        return image, ""
    if isinstance(image, str | Path):
        try:
            return Path(image).read_bytes(), Path(image).name
        except OSError as error:
            raise ImageError(f"{image}: cannot be read: {error.strerror or error}") from error
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    try:
        array = image.astype("uint8") * 255 if image.dtype == bool else image
        Pillow.fromarray(array).save(buffer, "PNG")
    except (AttributeError, TypeError, ValueError, OSError) as error:
        raise ImageError("this is no array of uint8 (H, W), (H, W, 3), (H, W, 4) or uint16 (H, W)") from error
    return buffer.getvalue(), ""


def _body(value: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _in_header(name: str) -> str:
    """Escape a file name as browsers do in a form."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _number(job: int | Job) -> int:
    return job.id if isinstance(job, Job) else int(job)


def _seconds(text: str | None) -> float:
    """Parse a Retry-After header; one second if it is missing or a date."""
    try:
        return min(MAX_WAIT, max(0.0, float(text or 1)))
    except ValueError:
        return 1.0


def _problem(error: urllib.error.HTTPError) -> ServiceError:
    """Build the exception of an answer with an error status."""
    try:
        answer = json.loads(error.read())
        detail = _line(str(answer["detail"]))
    except (ValueError, KeyError, TypeError, OSError):
        return ServiceError(f"the service answers {error.code} {_line(str(error.reason))}", error.code)
    if error.code == CONFLICT and "review" in answer:
        return ReviewChangedError(detail, _parse(Review, answer["review"]))
    return ServiceError(detail, error.code)


def _line(text: str) -> str:
    return " ".join(text.split())
