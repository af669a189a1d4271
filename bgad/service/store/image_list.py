"""Lists of images: which ones, in which order, and as they were when the first page was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from bgad.service.store.tables import images, reviews, scores, versions

WITHDRAWN = "withdrawn"  # in place of a verdict: the image counts as not looked at
COUNTS = sa.and_(reviews.c.last, reviews.c.verdict != WITHDRAWN)  # what is said of an image now
ORDERS: dict[str, tuple[sa.Column[Any], bool]] = {  # by what, and whether the highest comes first
    "uncertain": (scores.c.distance, False),
    "anomalous": (scores.c.score, True),
    "newest": (scores.c.created, True),
}
MOMENT = r"^[0-9]{1,10}(\.[0-9]{1,10}){2}\.[0-9]{1,15}$"  # a moment as text
LARGEST = 2**31 - 1  # that a database takes


class Moment(NamedTuple):
    """When a list was made: pictures, reviews and releases that came later do not move it."""

    version: int  # that was released
    score: int  # the highest numbers there were
    review: int
    at: int  # milliseconds: of the last drop, what was dropped later is still in the list

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def read(cls, text: str) -> Moment:
        """From text.

        >>> Moment.read("1.20.3.1700000000123")
        Moment(version=1, score=20, review=3, at=1700000000123)
        """
        *numbers, at = (int(part) for part in text.split("."))
        version, score, review = (min(number, LARGEST) for number in numbers)
        return cls(version, score, review, at)


@dataclass(frozen=True)
class Wanted:
    """Which images a list shows."""

    name: str  # of the model
    order: str = "uncertain"
    anomalous: bool | None = None
    review: str = ""  # good, bad, unsure; none: not looked at yet; any: looked at
    since: float = 0.0
    until: float = 0.0  # 0: now
    limit: int = 50
    offset: int = 0
    as_of: Moment | None = None  # the list as it was then
    after: Moment | None = None  # only what has been scored since then


def chosen(wanted: Wanted, version: int) -> sa.Select[Any]:
    """All rows of a list, with the verdicts of today, in no order."""
    last = sa.select(reviews).where(COUNTS).subquery()
    kept: sa.ColumnElement[bool] = images.c.dropped.is_(None)
    if wanted.as_of is not None:
        kept = sa.or_(kept, 1000 * images.c.dropped > wanted.as_of.at + 0.5)
    query = (
        sa.select(
            images,
            *(scores.c[key] for key in ("score", "p_value", "threshold", "is_anomaly", "created")),
            *(last.c[key] for key in ("verdict", "mask", "note")),
        )
        .join(scores, scores.c.image == images.c.id)
        .outerjoin(last, last.c.image == images.c.id)
        .where(scores.c.version == version, kept)
    )
    if wanted.as_of is not None:
        query = query.where(scores.c.id <= wanted.as_of.score)
    if wanted.after is not None:
        query = query.where(scores.c.id > wanted.after.score)
    if wanted.anomalous is not None:
        query = query.where(scores.c.is_anomaly == wanted.anomalous)
    if wanted.review:
        verdict: sa.ColumnElement[Any] = last.c.verdict
        if wanted.as_of is not None:
            verdict = sa.func.nullif(_said(wanted.as_of.review), WITHDRAWN)
        query = query.where(_fits(verdict, wanted.review))
    if wanted.since:
        query = query.where(scores.c.created >= wanted.since)
    if wanted.until:
        query = query.where(scores.c.created < wanted.until)
    return query


def page(wanted: Wanted, version: int) -> sa.Select[Any]:
    """The rows of a page, in their order."""
    column, highest = ORDERS[wanted.order]
    order = column.desc() if highest else column.asc()
    return chosen(wanted, version).order_by(order, images.c.id).limit(wanted.limit).offset(wanted.offset)


def key(wanted: Wanted, version: int, image: int) -> sa.Select[Any]:
    """What the order of a list goes by, of an image; nothing where it is not in the list."""
    return chosen(wanted, version).where(images.c.id == image).with_only_columns(ORDERS[wanted.order][0])


def before(wanted: Wanted, version: int, value: float, image: int) -> sa.Select[Any]:
    """The rows of a list that come before an image whose key has this value."""
    column, highest = ORDERS[wanted.order]
    here = column >= value if highest else column <= value  # by itself, so that the index is used
    return chosen(wanted, version).where(here, sa.or_(column != value, images.c.id < image))


def neighbours(version: int, number: int, score: float, count: int) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """The images whose scores are next to that of an image, below and above, with what is said of them now."""
    base = (
        sa.select(images.c.id, images.c.name, scores.c.score, scores.c.is_anomaly, reviews.c.verdict)
        .join(scores, scores.c.image == images.c.id)
        .outerjoin(reviews, sa.and_(reviews.c.image == images.c.id, COUNTS))
        .where(scores.c.version == version, images.c.id != number, images.c.dropped.is_(None))
    )
    below = base.where(scores.c.score <= score).order_by(scores.c.score.desc(), images.c.id).limit(count)
    return below, base.where(scores.c.score > score).order_by(scores.c.score, images.c.id).limit(count)


def of_model(name: str) -> sa.Exists:
    """That a version of a model has scored the image of a review."""
    said, of = scores.alias(), sa.select(versions.c.id).where(versions.c.name == name)
    return sa.exists().where(said.c.image == reviews.c.image, said.c.version.in_(of))


def _said(review: int) -> sa.ScalarSelect[Any]:
    """What was said of an image when that was the newest review."""
    then = reviews.alias()
    said = sa.select(then.c.verdict).where(then.c.image == images.c.id, then.c.id <= review)
    return said.order_by(then.c.id.desc()).limit(1).correlate(images).scalar_subquery()


def _fits(verdict: sa.ColumnElement[Any], review: str) -> sa.ColumnElement[bool]:
    if review == "none":
        return verdict.is_(None)
    return verdict.is_not(None) if review == "any" else verdict == review
