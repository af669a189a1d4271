"""The table of reviews: what people say about images. The last review of an image counts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from bgad.errors import BgadError, ConfigError
from bgad.service.errors import MissingError
from bgad.service.store import dialects, history
from bgad.service.store.database import Database, insert
from bgad.service.store.images import dropped_error
from bgad.service.store.tables import images, reviews, scores, versions

VERDICTS = ("good", "bad", "unsure")
DECIDED = ("good", "bad")  # verdicts that a model can learn from
WITHDRAWN = "withdrawn"  # in place of a verdict: the image counts as not reviewed
IS_CURRENT = sa.and_(reviews.c.last, reviews.c.verdict != WITHDRAWN)  # the review of an image that counts


@dataclass(frozen=True, slots=True)
class Review:
    """One review of an image."""

    id: int
    image: int
    verdict: str  # good, bad, unsure, withdrawn
    note: str
    mask: str | None  # sha256 of the PNG that marks the defect
    ignore: str | None  # sha256 of the PNG that marks pixels to ignore
    who: str
    created: float
    last: bool  # whether it is the last review of its image


@dataclass(frozen=True, slots=True)
class ReviewedImage(Review):
    """The review of an image that counts, with the image's content and name."""

    sha256: str
    name: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """An image with the verdict good or bad, which a model can learn from."""

    id: int
    name: str
    width: int
    height: int
    verdict: str
    has_mask: bool
    score: float | None  # by the released version; None if it has not scored the image


class ReviewChangedError(BgadError):
    """Somebody has reviewed the image since the caller looked at it; `review` is the review that counts now."""

    def __init__(self, review: Review) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(review.created))
        super().__init__(
            f"the review of image {review.image} was changed by {review.who} at {when} UTC: look at it again"
        )
        self.review = review


class Reviews:
    """Reads and writes reviews."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        image: int,
        verdict: str,
        who: str,
        *,
        note: str = "",
        mask: str | None = None,
        ignore: str | None = None,
        model: str = "",
        seen: int | None = None,
    ) -> Review:
        """Add a review, durably. The history lists it under `model`, or else under the model that scored the image
        last.

        `seen` is the id of the last review that the caller knows, 0 for none: ReviewChangedError if there is a newer
        one. None: the review is added whatever the others say.
        """
        if verdict not in VERDICTS:
            raise ConfigError(f"unknown verdict {verdict!r}: choose from {', '.join(VERDICTS)}")
        values = {"image": image, "verdict": verdict, "who": who, "note": note, "mask": mask, "ignore": ignore}
        with self._database.begin() as connection:
            _lock_image(connection, image)
            last = _last_reviews(connection, image, 1)
            if seen is not None and last and last[0].id != seen:
                raise ReviewChangedError(last[0])
            name = model or _last_model(connection, image)
            now = self._database.clock()
            history.record(connection, now, who, history.REVIEW, name, f"image {image}: {verdict}")
            return self._insert(connection, values)

    def undo(self, number: int, who: str, model: str = "") -> Review:
        """Undo the last review of an image and return the review that takes its place; ReviewChangedError if there is
        a newer one.

        The new review repeats the one before, with its note and masks, or has the verdict `withdrawn`. It can be undone
        in turn: no review is ever deleted.
        """
        image = self.get(number).image
        with self._database.begin() as connection:
            _lock_image(connection, image)
            undone, *earlier = _last_reviews(connection, image, 2)
            if undone.id != number:
                raise ReviewChangedError(undone)
            values: dict[str, Any] = {"verdict": WITHDRAWN, "note": "", "mask": None, "ignore": None}
            if earlier:
                values = {key: getattr(earlier[0], key) for key in values}
            detail = f"image {image}: {undone.verdict}, now {values['verdict']}"
            name = model or _last_model(connection, image)
            history.record(connection, self._database.clock(), who, history.UNDO_REVIEW, name, detail)
            return self._insert(connection, values | {"image": image, "who": who})

    def get(self, number: int) -> Review:
        """Return one review."""
        return self._database.row(Review, sa.select(reviews).where(reviews.c.id == number), f"review {number}")

    def of_image(self, image: int) -> list[Review]:
        """Return all reviews of an image, oldest first."""
        return self._database.rows(Review, sa.select(reviews).where(reviews.c.image == image).order_by(reviews.c.id))

    def current(self, name: str | None = None) -> list[ReviewedImage]:
        """Return the review that counts of every image, or of the images that a version of one model has scored."""
        query = sa.select(reviews, images.c.sha256, images.c.name).join(images, images.c.id == reviews.c.image)
        if name is not None:
            query = query.where(_scored_by_model(name))
        return self._database.rows(ReviewedImage, query.where(IS_CURRENT).order_by(reviews.c.image))

    def lessons(self, name: str, released: int) -> list[Lesson]:
        """Return the images of a model whose verdict is good or bad, newest review first, with their scores by the
        version `released`."""
        own_score = sa.and_(scores.c.image == images.c.id, scores.c.version == released)
        columns: list[Any] = [images.c[key] for key in ("id", "name", "width", "height")]
        query = (
            sa.select(*columns, reviews.c.verdict, reviews.c.mask.is_not(None).label("has_mask"), scores.c.score)
            .join(reviews, reviews.c.image == images.c.id)
            .outerjoin(scores, own_score)
            .where(reviews.c.last, reviews.c.verdict.in_(DECIDED), _scored_by_model(name))
        )
        return self._database.rows(Lesson, query.order_by(reviews.c.id.desc()))

    def bad_images(self) -> set[int]:
        """Return the ids of the images whose verdict is bad."""
        query = sa.select(reviews.c.image).where(reviews.c.last, reviews.c.verdict == "bad")
        return set(self._database.values(query))

    def _insert(self, connection: sa.Connection, values: dict[str, Any]) -> Review:
        dialects.announce_insert(connection, reviews)
        connection.execute(reviews.update().where(reviews.c.image == values["image"]).values(last=False))
        number = insert(connection, reviews, values | {"created": self._database.clock(), "last": True})
        return Review(**connection.execute(sa.select(reviews).where(reviews.c.id == number)).mappings().one())


def _lock_image(connection: sa.Connection, image: int) -> None:
    """Exclude other reviews of this image until the transaction ends: an update takes the lock, in SQLite too."""
    update = images.update().where(images.c.id == image).values(id=images.c.id).returning(images.c.dropped)
    row = connection.execute(update).first()
    if row is None:
        raise MissingError(f"there is no image {image}")
    if row.dropped is not None:
        raise dropped_error(image)


def _last_reviews(connection: sa.Connection, image: int, count: int) -> list[Review]:
    """Return the last reviews of an image, newest first."""
    query = sa.select(reviews).where(reviews.c.image == image).order_by(reviews.c.id.desc()).limit(count)
    return [Review(**row) for row in connection.execute(query).mappings()]


def _last_model(connection: sa.Connection, image: int) -> str:
    """Return the name of the model that scored an image last, or an empty string."""
    query = sa.select(versions.c.name).join(scores, scores.c.version == versions.c.id).where(scores.c.image == image)
    return connection.execute(query.order_by(scores.c.created.desc(), scores.c.id.desc()).limit(1)).scalar() or ""


def _scored_by_model(name: str) -> sa.Exists:
    """Return the condition that a version of a model has scored the image of a review."""
    score, model_versions = scores.alias(), sa.select(versions.c.id).where(versions.c.name == name)
    return sa.exists().where(score.c.image == reviews.c.image, score.c.version.in_(model_versions))
