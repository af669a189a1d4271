"""Lists of scored images: filters, orders, and pages that stay stable while new images arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from bgad.service.errors import MissingError
from bgad.service.store import dialects
from bgad.service.store.database import Database
from bgad.service.store.reviews import IS_CURRENT, WITHDRAWN
from bgad.service.store.tables import images, reviews, scores
from bgad.service.store.versions import Versions

ORDERS: dict[str, tuple[sa.Column[Any], bool]] = {  # sort key, and whether the highest comes first
    "anomalous": (scores.c.score, True),
    "newest": (scores.c.created, True),
}
UNCERTAIN = "uncertain"  # by the distance from the present threshold, which is not stored
MAX_NEAREST = 2000  # rows from the first to the end of a page up to which both sides of the threshold are merged
SNAPSHOT_PATTERN = r"^[0-9]{1,10}(\.[0-9]{1,10}){2}\.[0-9]{1,15}$"
MAX_ID = 2**31 - 1  # of an integer column


class Snapshot(NamedTuple):
    """The state that a list shows: images, reviews and releases that come later do not change its pages."""

    version: int  # the released version
    score: int  # the highest id of a score
    review: int  # the highest id of a review
    dropped: int  # milliseconds: files that retention drops after this time stay in the list

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse the text form that `str` gives.

        >>> Snapshot.parse("1.20.3.1700000000123")
        Snapshot(version=1, score=20, review=3, dropped=1700000000123)
        """
        *numbers, dropped = (int(part) for part in text.split("."))
        version, score, review = (min(number, MAX_ID) for number in numbers)
        return cls(version, score, review, dropped)


@dataclass(frozen=True)
class ImageQuery:
    """The filters, order and page of a list."""

    name: str  # of the model
    order: str = UNCERTAIN
    anomalous: bool | None = None
    review: str = ""  # good, bad, unsure; none: not reviewed; any: reviewed
    since: float = 0.0
    until: float = 0.0  # 0: now
    limit: int = 50
    offset: int = 0
    as_of: Snapshot | None = None  # list the state of that time
    after: Snapshot | None = None  # list only what has been scored since then


@dataclass(frozen=True, slots=True)
class ListedImage:
    """An image in a list, with the score of the listed version and the review that counts now."""

    id: int
    sha256: str
    name: str
    width: int
    height: int
    received: float
    dropped: float | None
    score: float
    p_value: float
    threshold: float
    is_anomaly: bool
    created: float
    parts: dict[str, float]  # of the score, by name
    region: list[int] | None  # left, top, right, bottom of the region that stood out
    map_max: float | None  # of the anomaly map
    verdict: str | None
    mask: str | None
    note: str | None
    review: int  # id of the last review, also of one that withdraws a verdict; 0: never reviewed


class _Rule(NamedTuple):
    """The version whose scores a list shows, and the threshold that decides on them now."""

    version: int
    threshold: float


class ImageLists:
    """Reads pages of lists of scored images."""

    def __init__(self, database: Database, versions: Versions) -> None:
        self._database, self._versions = database, versions

    def page(self, query: ImageQuery) -> list[ListedImage]:
        """Return one page of a list."""
        rule = self._rule(query)
        rows = _filtered(query, rule).add_columns(_last_review())
        if query.order == UNCERTAIN:
            return self._database.rows(ListedImage, _most_uncertain(query, rows, rule.threshold))
        column, descending = ORDERS[query.order]
        rows = rows.order_by(column.desc() if descending else column.asc(), images.c.id)
        return self._database.rows(ListedImage, rows.limit(query.limit).offset(query.offset))

    def total(self, query: ImageQuery) -> int:
        """Return the number of images on all pages of a list."""
        return self._database.count(_filtered(query, self._rule(query)))

    def position(self, query: ImageQuery, image: int) -> int | None:
        """Return the position of an image in a list, counted from 0; None if the list does not contain it."""
        rule = self._rule(query)
        column, descending = ORDERS.get(query.order, (scores.c.score, False))
        rows = _filtered(query, rule)
        value = next(iter(self._database.values(rows.where(images.c.id == image).with_only_columns(column))), None)
        if value is None:
            return None
        if query.order == UNCERTAIN:
            return self._database.count(_more_uncertain(rows, rule.threshold, value, image))
        up_to = column >= value if descending else column <= value  # a condition of its own, so that the index applies
        return self._database.count(rows.where(up_to, sa.or_(column != value, images.c.id < image)))

    def snapshot(self, name: str, *, settled: bool = True) -> Snapshot:
        """Return the present state of a model's list.

        With `settled`, it ends before the rows of open transactions, so that its pages cannot change later. It takes no
        lock that a writer could wait for.
        """
        version = self._versions.released(name).id
        highest = []
        for table in (scores, reviews):
            with self._database.engine.begin() as connection:
                highest.append(dialects.highest_id(connection, table, settled=settled))
        with self._database.engine.connect() as connection:
            return Snapshot(version, highest[0], highest[1], last_drop(connection))

    def _rule(self, query: ImageQuery) -> _Rule:
        """Return the version whose scores a list shows, and its present threshold."""
        if query.as_of is None:
            version = self._versions.released(query.name)
        else:
            version = self._versions.get(query.as_of.version)
        if version.name != query.name:
            raise MissingError(f"there is no version {version.id} of {query.name!r}")
        threshold = version.threshold
        if threshold is None:  # no other one than the model card's was ever set: every score has it
            any_score = sa.select(scores.c.threshold).where(scores.c.version == version.id).limit(1)
            threshold = next(iter(self._database.values(any_score)), 0.0)
        return _Rule(version.id, threshold)


def last_drop(connection: sa.Connection) -> int:
    """Return the time of the last removal by retention in milliseconds; each removal is later than those before it."""
    query = sa.select(sa.func.max(images.c.dropped)).where(images.c.dropped.is_not(None))
    return round(1000 * (connection.execute(query).scalar() or 0.0))


def _most_uncertain(query: ImageQuery, rows: sa.Select[Any], threshold: float) -> sa.Select[Any]:
    """Select a page of rows in the order of the distance of their scores from a threshold."""
    score, key, count = scores.c.score, scores.c.id, query.offset + query.limit
    candidates = rows
    if count <= MAX_NEAREST:  # they are among as many on either side of the threshold, which the index of scores finds
        below = rows.where(score <= threshold).order_by(score.desc(), images.c.id)
        above = rows.where(score > threshold).order_by(score.asc(), images.c.id)
        nearest = [sa.select(side.with_only_columns(key).limit(count).subquery()) for side in (below, above)]
        candidates = rows.where(key.in_(sa.union_all(*nearest)))
    order = sa.func.abs(score - threshold), images.c.id
    page = candidates.with_only_columns(key).order_by(*order).limit(query.limit).offset(query.offset)
    return rows.where(key.in_(sa.select(page.subquery()))).order_by(*order)


def _more_uncertain(rows: sa.Select[Any], threshold: float, score: float, image: int) -> sa.Select[Any]:
    """Select the rows that come before an image of a given score in the order of `_most_uncertain`."""
    distance = abs(score - threshold)
    margin = distance * (1 + 1e-9)  # conditions on the score, so that the index applies, beside the exact ones
    own = sa.func.abs(scores.c.score - threshold)
    return rows.where(
        scores.c.score.between(threshold - margin, threshold + margin),
        sa.or_(own < distance, sa.and_(own == distance, images.c.id < image)),
    )


def _filtered(query: ImageQuery, rule: _Rule) -> sa.Select[Any]:
    """Select all rows of a list, with the verdicts of today, in no order."""
    current = sa.select(reviews).where(IS_CURRENT).subquery()
    is_anomaly = scores.c.score > rule.threshold
    kept: sa.ColumnElement[bool] = images.c.dropped.is_(None)
    if query.as_of is not None:
        kept = sa.or_(kept, 1000 * images.c.dropped > query.as_of.dropped + 0.5)
    rows = (
        sa.select(
            images,
            *(scores.c[key] for key in ("score", "p_value", "created", "parts", "region", "map_max")),
            sa.literal(rule.threshold, sa.Double).label("threshold"),
            is_anomaly.label("is_anomaly"),
            *(current.c[key] for key in ("verdict", "mask", "note")),
        )
        .join(scores, scores.c.image == images.c.id)
        .outerjoin(current, current.c.image == images.c.id)
        .where(scores.c.version == rule.version, kept)
    )
    if query.as_of is not None:
        rows = rows.where(scores.c.id <= query.as_of.score)
    if query.after is not None:
        rows = rows.where(scores.c.id > query.after.score)
    if query.anomalous is not None:
        rows = rows.where(is_anomaly if query.anomalous else ~is_anomaly)
    if query.review:
        verdict: sa.ColumnElement[Any] = current.c.verdict
        if query.as_of is not None:
            verdict = sa.func.nullif(_verdict_at(query.as_of.review), WITHDRAWN)
        rows = rows.where(_matches(verdict, query.review))
    if query.since:
        rows = rows.where(scores.c.created >= query.since)
    if query.until:
        rows = rows.where(scores.c.created < query.until)
    return rows


def _last_review() -> sa.Label[Any]:
    """Select the id of the last review of an image, 0 if it has none."""
    last = sa.select(sa.func.max(reviews.c.id)).where(reviews.c.image == images.c.id).correlate(images)
    return sa.func.coalesce(last.scalar_subquery(), 0).label("review")


def _verdict_at(last_review: int) -> sa.ScalarSelect[Any]:
    """Select the verdict of an image at the time when `last_review` was the newest review."""
    earlier = reviews.alias()
    query = sa.select(earlier.c.verdict).where(earlier.c.image == images.c.id, earlier.c.id <= last_review)
    return query.order_by(earlier.c.id.desc()).limit(1).correlate(images).scalar_subquery()


def _matches(verdict: sa.ColumnElement[Any], review: str) -> sa.ColumnElement[bool]:
    if review == "none":
        return verdict.is_(None)
    return verdict.is_not(None) if review == "any" else verdict == review
