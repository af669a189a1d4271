"""The scores of a version as columns, read once and then kept up to date: a look costs what is new."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from bgad.service.store.image_list import COUNTS
from bgad.service.store.store import Row, Store
from bgad.service.store.tables import images, reviews, scores, versions

KINDS = {"id": np.int64, "created": np.float64, "score": np.float64, "is_anomaly": np.bool_, "image": np.int64}

Column = npt.NDArray[Any]


class Readings:
    """Of one version, in the order in which it scored the pictures first. Arrays are replaced, never written to: who
    has one keeps it as it was."""

    def __init__(self, store: Store, version: Row, learnt: Collection[str]) -> None:
        """`learnt`: sha256 of the pictures whose scores say nothing of new parts."""
        self.store, self.version, self.learnt = store, version, learnt
        self._clear()

    def _clear(self) -> None:
        self.columns: dict[str, Column] = {name: np.array([], kind) for name, kind in KINDS.items()}
        self.new = np.array([], np.bool_)  # pictures that came to this version, and that it has not learnt from
        self.bad: set[int] = set()  # images that a person called bad

    @property
    def tested(self) -> npt.NDArray[np.int64]:
        """The places of what the drift test sees."""
        bad = np.isin(self.columns["image"], list(self.bad)) if self.bad else False
        return np.flatnonzero(self.new & ~np.asarray(bad))

    def update(self) -> bool:
        """Read what is new; whether what the drift test saw of the rest is as it was."""
        held = len(self.new)
        same = self._read()
        if len(self.new) != self._count():  # one came in late, before others
            self._clear()
            self._read()
            same = False
        bad = self._bad()
        changed = list(bad ^ self.bad)
        self.bad = bad
        return same and not bool(np.isin(self.columns["image"][:held], changed).any())

    def _read(self) -> bool:
        last, newest = (
            (int(self.columns["id"][-1]), float(self.columns["created"].max())) if len(self.new) else (0, 0.0)
        )
        with self.store.engine.connect() as connection:
            rows = connection.execute(self._query(last, newest)).all()
        again, fresh = [row for row in rows if row.id <= last], [row for row in rows if row.id > last]
        same = self._replace(again) if again else True
        if fresh:
            new = [row.first and row.sha256 not in self.learnt for row in fresh]
            self.new = np.concatenate([self.new, np.array(new, np.bool_)])
            for name, found in _columns(fresh).items():
                self.columns[name] = np.concatenate([self.columns[name], found])
        return same

    def _replace(self, rows: Sequence[Any]) -> bool:
        """What was sent again has another time, and may have another last digit."""
        found = _columns(rows)
        places = np.searchsorted(self.columns["id"], found["id"])
        same = bool((self.columns["score"][places] == found["score"]).all())
        for name, values in found.items():
            self.columns[name] = self.columns[name].copy()
            self.columns[name][places] = values
        return same

    def _query(self, last: int, newest: float) -> sa.Select[Any]:
        """What was scored, or sent again, since. A picture is new to the version where no other one of its model has
        scored it before: which one does is settled when it comes, so nothing is chosen by its score."""
        earlier, version = scores.alias(), self.version
        others = sa.select(versions.c.id).where(versions.c.name == version["name"], versions.c.id != version["id"])
        before = sa.exists().where(
            earlier.c.image == scores.c.image, earlier.c.version.in_(others), earlier.c.id < scores.c.id
        )
        return (
            sa.select(*(scores.c[name] for name in KINDS), images.c.sha256, (~before).label("first"))
            .join(images, images.c.id == scores.c.image)
            .where(scores.c.version == version["id"], sa.or_(scores.c.id > last, scores.c.created > newest))
            .order_by(scores.c.id)
        )

    def _count(self) -> int:
        """How many there are up to the last one that was read."""
        last = int(self.columns["id"][-1]) if len(self.new) else 0
        query = sa.select(sa.func.count()).where(scores.c.version == self.version["id"], scores.c.id <= last)
        with self.store.engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def _bad(self) -> set[int]:
        query = sa.select(reviews.c.image).where(reviews.c.last, reviews.c.verdict == "bad")
        with self.store.engine.connect() as connection:
            return set(connection.execute(query).scalars())


def points(store: Store, version: int, chosen: Sequence[int]) -> dict[int, Row]:
    """What a version has said of some images, by image, with their names and what is said of them now."""
    columns = (scores.c[key] for key in ("created", "score", "p_value", "is_anomaly", "image"))
    said = sa.and_(reviews.c.image == scores.c.image, COUNTS)
    query = sa.select(*columns, images.c.name, images.c.dropped, reviews.c.verdict).join(
        images, images.c.id == scores.c.image
    )
    query = query.outerjoin(reviews, said).where(scores.c.version == version, scores.c.image.in_(chosen))
    return {row["image"]: row for row in store.all(query)}


def judged(store: Store, version: int) -> list[Row]:
    """What a version says of the images whose last verdict is good or bad: score, verdict, sha256."""
    query = sa.select(scores.c.score, reviews.c.verdict, images.c.sha256).where(reviews.c.last)
    query = query.join(reviews, reviews.c.image == scores.c.image).join(images, images.c.id == scores.c.image)
    return store.all(query.where(scores.c.version == version, reviews.c.verdict.in_(("good", "bad"))))


def _columns(rows: Sequence[Any]) -> dict[str, Column]:
    taken = zip(*(tuple(row)[: len(KINDS)] for row in rows), strict=True)
    return {name: np.array(values, kind) for (name, kind), values in zip(KINDS.items(), taken, strict=True)}
