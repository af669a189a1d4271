"""The table of images, each known by the sha256 of its content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from bgad.errors import DataError
from bgad.service.store import dialects
from bgad.service.store.database import Database
from bgad.service.store.tables import images, scores, senders, versions


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a client sent."""

    id: int
    sha256: str
    name: str  # the client's file name
    width: int
    height: int
    received: float
    dropped: float | None  # when retention removed the file; None: the file is kept


class Images:
    """Reads the images; `Scores.add_image` adds them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, number: int) -> Image:
        """Return one image, whether or not its file is kept."""
        return self._database.row(Image, sa.select(images).where(images.c.id == number), f"image {number}")

    def get_kept(self, number: int) -> Image:
        """Return an image whose file is kept; DataError if retention has removed the file."""
        image = self.get(number)
        if image.dropped is not None:
            raise dropped_error(number)
        return image

    def is_visible(self, number: int, models: Sequence[str] | None, sender: str | None) -> bool:
        """Return whether an image was scored by one of these models and sent by this token, each if given."""
        query = sa.select(images.c.id).where(images.c.id == number)
        if models is not None:
            scored = sa.select(scores.c.image).join(versions).where(versions.c.name.in_(models))
            query = query.where(images.c.id.in_(scored.where(scores.c.image == number)))
        if sender is not None:
            sent = sa.select(senders.c.image).where(senders.c.token == sender, senders.c.image == number)
            query = query.where(images.c.id.in_(sent))
        return bool(self._database.values(query))

    def ids_by_sha256(self, hashes: Sequence[str]) -> dict[str, int]:
        """Return the ids of the kept images among these contents, by their sha256."""
        query = sa.select(images.c.sha256, images.c.id).where(images.c.sha256.in_(hashes), images.c.dropped.is_(None))
        with self._database.engine.connect() as connection:
            return {row.sha256: row.id for row in connection.execute(query)}

    def has(self, sha256: str) -> bool:
        """Return whether an image with this content is kept."""
        return sha256 in self.ids_by_sha256([sha256])

    @contextmanager
    def removing(self, sha256: str) -> Iterator[bool]:
        """Yield whether the file of this content may be removed: no other service records the image meanwhile."""
        with self._database.engine.begin() as connection:
            dialects.lock_content(connection, sha256)
            kept = sa.select(images.c.id).where(images.c.sha256 == sha256, images.c.dropped.is_(None))
            yield connection.execute(kept).first() is None

    def newest(self, count: int) -> list[Image]:
        """Return the kept images that arrived last."""
        query = sa.select(images).where(images.c.dropped.is_(None))
        return self._database.rows(Image, query.order_by(images.c.received.desc(), images.c.id.desc()).limit(count))


def dropped_error(image: int) -> DataError:
    """Return the error for an image whose file retention has removed."""
    return DataError(f"the file of image {image} was not reviewed and is kept no more: send the image again")
