"""The scores of one version as numpy columns, read once and then extended: an update costs only what is new."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from bgad.service.store.store import Store
from bgad.service.store.tables import images, scores, versions
from bgad.service.store.versions import Version
from bgad.types import Index

DTYPES = {"id": np.int64, "created": np.float64, "score": np.float64, "image": np.int64}

Column = npt.NDArray[Any]


class ScoreColumns:
    """The scores of a version in the order in which it first gave them.

    Arrays are replaced and never written to, so that a reader's copy of the dictionary stays consistent.
    """

    def __init__(self, store: Store, version: Version, training_images: Collection[str]) -> None:
        """`training_images` are the sha256 of images whose scores say nothing about new parts."""
        self._store, self._version, self._training_images = store, version, training_images
        self._clear()

    def _clear(self) -> None:
        self.columns: dict[str, Column] = {name: np.array([], dtype) for name, dtype in DTYPES.items()}
        self._eligible = np.array([], np.bool_)  # first scored by this version, and not a training image
        self._bad: set[int] = set()  # ids of images with the verdict bad

    @property
    def tested(self) -> Index:
        """The positions of the scores that the drift test sees."""
        bad = np.isin(self.columns["image"], list(self._bad)) if self._bad else False
        return np.flatnonzero(self._eligible & ~np.asarray(bad))

    def update(self) -> bool:
        """Read what is new; return whether the scores that the drift test has seen are unchanged."""
        held = len(self._eligible)
        unchanged = self._read()
        if len(self._eligible) != self._count_read():  # a slow transaction inserted a row before others
            self._clear()
            self._read()
            unchanged = False
        bad = self._store.reviews.bad_images()
        changed = list(bad ^ self._bad)
        self._bad = bad
        return unchanged and not bool(np.isin(self.columns["image"][:held], changed).any())

    def _read(self) -> bool:
        last_id, newest = 0, 0.0
        if len(self._eligible):
            last_id, newest = int(self.columns["id"][-1]), float(self.columns["created"].max())
        with self._store.database.engine.connect() as connection:
            rows = connection.execute(self._query(last_id, newest)).all()
        known, new = [row for row in rows if row.id <= last_id], [row for row in rows if row.id > last_id]
        unchanged = self._replace(known) if known else True
        if new:
            eligible = [row.first and row.sha256 not in self._training_images for row in new]
            self._eligible = np.concatenate([self._eligible, np.array(eligible, np.bool_)])
            for name, values in _to_columns(new).items():
                self.columns[name] = np.concatenate([self.columns[name], values])
        return unchanged

    def _replace(self, rows: Sequence[Any]) -> bool:
        """Replace scores of images that were sent again: their times differ, and the last digit of a score may."""
        replacement = _to_columns(rows)
        positions = np.searchsorted(self.columns["id"], replacement["id"])
        unchanged = bool((self.columns["score"][positions] == replacement["score"]).all())
        for name, values in replacement.items():
            self.columns[name] = self.columns[name].copy()
            self.columns[name][positions] = values
        return unchanged

    def _query(self, last_id: int, newest: float) -> sa.Select[Any]:
        """Select what was scored, or sent again, since the last update.

        `first` says whether no other version of the model scored the image before. Which version does is settled when
        the image arrives, so that no image is selected by its score.
        """
        earlier, version = scores.alias(), self._version
        others = sa.select(versions.c.id).where(versions.c.name == version.name, versions.c.id != version.id)
        scored_before = sa.exists().where(
            earlier.c.image == scores.c.image, earlier.c.version.in_(others), earlier.c.id < scores.c.id
        )
        return (
            sa.select(*(scores.c[name] for name in DTYPES), images.c.sha256, (~scored_before).label("first"))
            .join(images, images.c.id == scores.c.image)
            .where(scores.c.version == version.id, sa.or_(scores.c.id > last_id, scores.c.created > newest))
            .order_by(scores.c.id)
        )

    def _count_read(self) -> int:
        """Return the number of rows in the store up to the last one that was read."""
        last_id = int(self.columns["id"][-1]) if len(self._eligible) else 0
        query = sa.select(sa.func.count()).where(scores.c.version == self._version.id, scores.c.id <= last_id)
        return int(self._store.database.values(query)[0])


def _to_columns(rows: Sequence[Any]) -> dict[str, Column]:
    values = zip(*(tuple(row)[: len(DTYPES)] for row in rows), strict=True)
    return {name: np.array(column, dtype) for (name, dtype), column in zip(DTYPES.items(), values, strict=True)}
