"""The table of scores: what each version says about each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from bgad import types
from bgad.service.store import dialects
from bgad.service.store.database import Database
from bgad.service.store.reviews import DECIDED, IS_CURRENT
from bgad.service.store.tables import (
    CURRENT_IS_ANOMALY,
    CURRENT_THRESHOLD,
    images,
    reviews,
    scores,
    versions,
)
from bgad.service.store.versions import Version, is_current

_IS_ANOMALY = CURRENT_IS_ANOMALY.label("is_anomaly")
_POINT = (scores.c.created, scores.c.score, scores.c.p_value, _IS_ANOMALY, scores.c.image)


@dataclass(frozen=True, slots=True)
class RecordedScore:
    """The score of an image by one version, with the present decision and the one that was sent."""

    id: int
    image: int
    version: int
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    sent_threshold: float
    sent_is_anomaly: bool
    created: float
    parts: dict[str, float]  # of the score, by name
    region: list[int] | None  # left, top, right, bottom of the region that stood out
    map_max: float | None  # of the anomaly map
    model: str
    checksum: str
    precision: str


@dataclass(frozen=True, slots=True)
class Point:
    """One score of a time series."""

    created: float
    score: float
    p_value: float
    is_anomaly: bool
    image: int


@dataclass(frozen=True, slots=True)
class NamedPoint(Point):
    """One score of a time series with the image's name, verdict and the time at which retention dropped its file."""

    name: str
    dropped: float | None
    verdict: str | None


@dataclass(frozen=True, slots=True)
class ReviewedScore:
    """The score of an image whose verdict is good or bad."""

    score: float
    verdict: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An image with a score close to another one's."""

    id: int
    name: str
    score: float
    is_anomaly: bool
    verdict: str | None


@dataclass(frozen=True, slots=True)
class UnscoredImage:
    """An image that a version has yet to score, with the time at which it was last sent."""

    id: int
    sha256: str
    created: float


@dataclass(frozen=True, slots=True)
class NewImage:
    """An image to be stored with its first score."""

    sha256: str
    name: str
    width: int
    height: int
    sender: str = ""  # token whose view is limited to what it sent itself


class Scores:
    """Reads and writes scores."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upserts = dialects.upserts(database.engine.dialect.name)

    def add_image(self, image: NewImage, version: int, result: types.Scores) -> int:
        """Store an image and its score in one transaction; return the id of the new or existing image."""
        with self._database.begin_relaxed() as connection:
            return self._add_image(connection, image, version, result)

    def add_image_if_current(self, image: NewImage, version: Version, result: types.Scores) -> int | None:
        """Do what `add_image` does, unless another service has released another version or set another rate.

        Return None in that case. The release or the new rate waits for this transaction: whoever releases a version
        finds all scores of the one before it, and no decision is sent by a rate that no longer holds.
        """
        with self._database.begin_relaxed() as connection:
            if not is_current(connection, version):
                return None
            return self._add_image(connection, image, version.id, result)

    def _add_image(self, connection: sa.Connection, image: NewImage, version: int, result: types.Scores) -> int:
        dialects.lock_content(connection, image.sha256)
        dialects.announce_insert(connection, scores)
        values = {"sha256": image.sha256, "name": image.name, "width": image.width, "height": image.height}
        values = values | {"received": self._database.clock()}
        number = int(connection.execute(self._upserts.image, values).scalar_one())
        connection.execute(self._upserts.replace_score, self._values(number, version, result))
        if image.sender:
            connection.execute(self._upserts.sender, {"image": number, "token": image.sender})
        return number

    def add(self, image: int, version: int, result: types.Scores) -> None:
        """Store the score of an image, in place of an earlier score by the same version."""
        with self._database.begin() as connection:
            dialects.announce_insert(connection, scores)
            connection.execute(self._upserts.replace_score, self._values(image, version, result))

    def add_rescored(self, image: int, version: int, result: types.Scores, created: float) -> None:
        """Store the score of an image as of the time it was sent, unless the version has scored it already."""
        with self._database.begin() as connection:
            dialects.announce_insert(connection, scores)
            values = self._values(image, version, result) | {"created": created}
            connection.execute(self._upserts.keep_score, values)

    def _values(self, image: int, version: int, result: types.Scores) -> dict[str, Any]:
        values = {key: getattr(result, key) for key in ("score", "p_value", "threshold", "is_anomaly")}
        values |= {"parts": dict(result.parts), "region": result.region and list(result.region)}
        values |= {"map_max": float(result.map.max())}
        return values | {"image": image, "version": version, "created": self._database.clock()}

    def of_image(self, image: int) -> list[RecordedScore]:
        """Return all scores of an image, oldest first."""
        query = sa.select(
            *(scores.c[key] for key in ("id", "image", "version", "score", "p_value", "created")),
            *(scores.c[key] for key in ("parts", "region", "map_max")),
            CURRENT_THRESHOLD.label("threshold"),
            _IS_ANOMALY,
            scores.c.threshold.label("sent_threshold"),
            scores.c.is_anomaly.label("sent_is_anomaly"),
            versions.c.name.label("model"),
            versions.c.checksum,
            versions.c.precision,
        ).join(versions)
        return self._database.rows(RecordedScore, query.where(scores.c.image == image).order_by(scores.c.id))

    def count(self, version: int) -> int:
        """Return the number of images that a version has scored."""
        return self._database.count(sa.select(scores.c.version).where(scores.c.version == version))

    def highest_id(self) -> int:
        """Return the id of the last score; 0 if there is none."""
        with self._database.engine.connect() as connection:
            return dialects.highest_id(connection, scores, settled=False)

    def models_after(self, number: int) -> set[str]:
        """Return the names of the models that have scores with an id above `number`."""
        query = sa.select(versions.c.name).join(scores, scores.c.version == versions.c.id).where(scores.c.id > number)
        return set(self._database.values(query.distinct()))

    def neighbours(self, image: int, version: int, count: int = 3) -> list[Neighbour]:
        """Return the images whose scores are next to an image's, up to `count` below and above, in ascending order."""
        own_score = sa.select(scores.c.score).where(scores.c.image == image, scores.c.version == version)
        score = next(iter(self._database.values(own_score)), None)
        if score is None:
            return []
        base = (
            sa.select(images.c.id, images.c.name, scores.c.score, _IS_ANOMALY, reviews.c.verdict)
            .join(scores, scores.c.image == images.c.id)
            .join(versions, versions.c.id == scores.c.version)
            .outerjoin(reviews, sa.and_(reviews.c.image == images.c.id, IS_CURRENT))
            .where(scores.c.version == version, images.c.id != image, images.c.dropped.is_(None))
        )
        below = base.where(scores.c.score <= score).order_by(scores.c.score.desc(), images.c.id).limit(count)
        above = base.where(scores.c.score > score).order_by(scores.c.score, images.c.id).limit(count)
        rows = [row for query in (below, above) for row in self._database.rows(Neighbour, query)]
        return sorted(rows, key=lambda row: row.score)

    def series(self, version: int, since: float = 0.0, last: int | None = None) -> list[Point]:
        """Return the scores of a version in the order of time: all of them, or the `last` ones."""
        query = sa.select(*_POINT).join(versions).where(scores.c.version == version, scores.c.created >= since)
        return self._database.rows(
            Point, query.order_by(scores.c.created.desc(), scores.c.id.desc()).limit(last)
        )[::-1]  # fmt: skip

    def points(self, version: int, chosen: Sequence[int]) -> dict[int, NamedPoint]:
        """Return a version's scores of the chosen images by image, with names and verdicts."""
        query = (
            sa.select(*_POINT, images.c.name, images.c.dropped, reviews.c.verdict)
            .join(images, images.c.id == scores.c.image)
            .join(versions, versions.c.id == scores.c.version)
            .outerjoin(reviews, sa.and_(reviews.c.image == scores.c.image, IS_CURRENT))
            .where(scores.c.version == version, scores.c.image.in_(chosen))
        )
        return {row.image: row for row in self._database.rows(NamedPoint, query)}

    def reviewed(self, version: int) -> list[ReviewedScore]:
        """Return a version's scores of the images whose verdict is good or bad."""
        query = (
            sa.select(scores.c.score, reviews.c.verdict, images.c.sha256)
            .join(reviews, reviews.c.image == scores.c.image)
            .join(images, images.c.id == scores.c.image)
            .where(reviews.c.last, scores.c.version == version, reviews.c.verdict.in_(DECIDED))
        )
        return self._database.rows(ReviewedScore, query)

    def unscored(self, version: Version, previous: int | None, limit: int) -> list[UnscoredImage]:
        """Return the images that a version has yet to score, newest first: the reviewed images of its model, then the
        last `limit` images that the previous version scored."""
        own_score = scores.alias()
        missing = ~sa.exists().where(own_score.c.image == images.c.id, own_score.c.version == version.id)
        columns, last_sent = (images.c.id, images.c.sha256), sa.func.max(scores.c.created).label("created")
        model_versions = sa.select(versions.c.id).where(versions.c.name == version.name)
        reviewed = (
            sa.select(*columns, last_sent)
            .join(reviews, reviews.c.image == images.c.id)
            .join(scores, scores.c.image == images.c.id)
            .where(IS_CURRENT, scores.c.version.in_(model_versions), missing)
            .group_by(*columns)
            .order_by(last_sent.desc())
        )
        by_previous = sa.select(scores.c.image, scores.c.created).where(scores.c.version == previous)
        recent = by_previous.order_by(scores.c.created.desc(), scores.c.id.desc()).limit(limit).subquery()
        others = (
            sa.select(*columns, recent.c.created)
            .join(recent, recent.c.image == images.c.id)
            .where(missing, images.c.dropped.is_(None))
            .order_by(recent.c.created.desc())
        )
        unscored: dict[int, UnscoredImage] = {}
        for query in (reviewed, others):
            for row in self._database.rows(UnscoredImage, query):
                unscored.setdefault(row.id, row)
        return list(unscored.values())
