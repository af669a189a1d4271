"""The memory of the workbench: SQLite beside the models, or a PostgreSQL server.

What is acknowledged is on the disk: SQLite writes through at every commit, and so does PostgreSQL as it comes. Scores
alone, which can be had again, may wait a moment: they outlive a killed service, but not a power cut.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import sqlalchemy as sa

from bgad.errors import ConfigError, DataError, ModelError
from bgad.service.store import dialects
from bgad.service.store import image_list as listing
from bgad.service.store.image_list import COUNTS, WITHDRAWN, Moment, Wanted
from bgad.service.store.tables import events, images, jobs, reviews, scores, tokens, versions
from bgad.types import Scores

VERDICTS = ("good", "bad", "unsure")
UNFINISHED = ("queued", "running")
INTERRUPTED = "the service ended before the job did"
TIDY_SECONDS = 10
OF_IMAGE = re.compile(r"image (\d+): ")  # how the detail begins of what is about an image
ABOUT_IMAGES = ("review", "take back", "drift alarm")

Row = dict[str, Any]


class MissingError(ModelError):
    """What was asked for is not there."""


def dropped(image: int) -> DataError:
    """What is said where the picture of an image is needed."""
    return DataError(f"the picture of image {image} was not reviewed and is kept no more: send it again")


class Store:
    """All reading and writing; may be used from many threads."""

    def __init__(self, address: str, clock: Callable[[], float] = time.time) -> None:
        """`address` is SQLAlchemy's, as `sqlite:///file` or `postgresql://user@host/name`."""
        self.clock = clock
        self.engine = dialects.engine(address)
        embedded = self.engine.dialect.name == "sqlite"
        self._quick = dialects.engine(address, "NORMAL") if embedded else self.engine
        # SQLite lets one write at a time: who waits for a lock here waits no longer than it must.
        self._writing = threading.Lock() if embedded else nullcontext()
        self._ended = threading.Event()
        self._tidier: threading.Thread | None = None
        self._put_image, self._put_score, self._keep_score = dialects.upserts(self.engine.dialect.name)
        try:
            with dialects.opening(address), self.engine.begin() as connection:
                if embedded:  # else each step is for good by itself, and a start that was cut off would be the last one
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                config = alembic.config.Config()
                config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
                config.attributes["connection"] = connection
                alembic.command.upgrade(config, "head")
        except alembic.util.CommandError as error:
            self.close()
            raise ConfigError(
                f"the store {self.engine.url.render_as_string()} was made by a newer bgad ({error}): update bgad"
            ) from error
        except BaseException:
            self.close()
            raise
        if embedded:
            self._tidier = threading.Thread(target=self._tidy, name="store", daemon=True)
            self._tidier.start()

    def _tidy(self) -> None:
        """Bring what was written from SQLite's log into its file, now and then and beside everything else: a writer
        that has to do it waits for the disk, and all others with it. A log that grows all the same, as somebody writes
        all the time, has to be brought in whole once."""
        while not self._ended.wait(TIDY_SECONDS):
            with suppress(sa.exc.SQLAlchemyError), self._quick.connect() as connection:
                row = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
                if row[1] > dialects.LOG_PAGES:
                    with self._writing:
                        connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Give the connections back."""
        self._ended.set()
        if self._tidier is not None:
            self._tidier.join()
        self.engine.dispose()
        self._quick.dispose()

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction for which who sends pictures waits in order."""
        with self._writing, self.engine.begin() as connection:
            yield connection

    def alive(self) -> bool:
        """Whether the database answers."""
        try:
            with self.engine.connect() as connection:
                connection.execute(sa.select(1))
        except sa.exc.SQLAlchemyError:
            return False
        return True

    # --- models

    def add_version(
        self, name: str, checksum: str, folder: str, *, state: str, parent: int | None = None, who: str = "bgad"
    ) -> Row:
        """A version that is there already stays as it is."""
        with self.engine.begin() as connection:
            same = sa.select(versions).where(versions.c.name == name, versions.c.checksum == checksum)
            found = connection.execute(same).mappings().first()
            if found is None:
                values = {"name": name, "checksum": checksum, "folder": folder, "parent": parent, "state": state}
                connection.execute(versions.insert().values(**values, created=self.clock()))
                self._log(connection, who, f"model {state}", name, checksum[:12])
                found = connection.execute(same).mappings().one()
            return dict(found)

    def versions(self, name: str | None = None) -> list[Row]:
        """All of them, or those of a name, oldest first."""
        query = sa.select(versions).order_by(versions.c.id)
        return self.all(query if name is None else query.where(versions.c.name == name))

    def version(self, number: int) -> Row:
        """One version."""
        return self._one(sa.select(versions).where(versions.c.id == number), f"version {number}")

    def released(self, name: str) -> Row:
        """The version of a name that scores."""
        query = sa.select(versions).where(versions.c.name == name, versions.c.state == "released")
        return self._one(query, f"released model {name!r}")

    def release(self, number: int, who: str) -> Row:
        """Let a version score from now on, in place of the one that does."""
        with self.engine.begin() as connection:
            chosen = _for_change(connection, number)
            if chosen["state"] == "discarded":
                raise ConfigError(f"version {number} has been discarded: release another one")
            others = versions.update().where(versions.c.name == chosen["name"], versions.c.state == "released")
            connection.execute(others.values(state="retired"))
            connection.execute(versions.update().where(versions.c.id == number).values(state="released"))
            self._log(connection, who, "release", chosen["name"], f"version {number}")
        return self.version(number)

    def discard(self, number: int, who: str) -> Row:
        """A candidate is not wanted."""
        with self.engine.begin() as connection:
            chosen = _for_change(connection, number)
            if chosen["state"] == "released":
                raise ConfigError(f"version {number} is released: release another one first")
            connection.execute(versions.update().where(versions.c.id == number).values(state="discarded"))
            self._log(connection, who, "discard", chosen["name"], f"version {number}")
        return self.version(number)

    def lose(self, number: int) -> None:
        """The folder of a version holds another model now."""
        with self.engine.begin() as connection:
            connection.execute(versions.update().where(versions.c.id == number).values(state="discarded"))

    def restore(self, number: int) -> None:
        """A version that was gone is back, and there is no other to score."""
        with self.engine.begin() as connection:
            connection.execute(versions.update().where(versions.c.id == number).values(state="released"))

    def set_rate(self, number: int, rate: float, threshold: float, who: str) -> None:
        """Another false-reject rate for a version; its scores are judged anew."""
        with self.engine.begin() as connection:
            connection.execute(versions.update().where(versions.c.id == number).values(rate=rate))
            judged = scores.update().where(scores.c.version == number)
            connection.execute(
                judged.values(
                    threshold=threshold,
                    is_anomaly=scores.c.score > threshold,
                    distance=sa.func.abs(scores.c.score - threshold),
                )
            )
            name = connection.execute(sa.select(versions.c.name).where(versions.c.id == number)).scalar_one()
            self._log(connection, who, "threshold", name, f"version {number}: false-reject rate {rate:g}")

    # --- images and their scores

    def add_scored(self, sha256: str, name: str, width: int, height: int, version: int, said: Scores) -> int:
        """An image and what a version says of it, at once; the number of the image."""
        with self._writing, self._quick.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SET LOCAL synchronous_commit TO off"))
            image = self._add_image(connection, sha256, name, width, height)
            self._add_score(connection, image, version, said)
        return image

    def add_score(self, image: int, version: int, said: Scores, created: float | None = None) -> None:
        """What a version says of an image. Now, or, where a time is given, then, unless it has said so already."""
        with self.engine.begin() as connection:
            self._add_score(connection, image, version, said, created)

    def _add_image(self, connection: sa.Connection, sha256: str, name: str, width: int, height: int) -> int:
        values = {"sha256": sha256, "name": name, "width": width, "height": height, "received": self.clock()}
        return int(connection.execute(self._put_image, values).scalar_one())

    def _add_score(
        self, connection: sa.Connection, image: int, version: int, said: Scores, created: float | None = None
    ) -> None:
        values = {key: getattr(said, key) for key in ("score", "p_value", "threshold", "is_anomaly")}
        values |= {"distance": abs(said.score - said.threshold), "created": created or self.clock()}
        values |= {"image": image, "version": version}
        connection.execute(self._put_score if created is None else self._keep_score, values)

    def has_image(self, sha256: str) -> bool:
        """Whether there is an image with this content."""
        return sha256 in self.numbers([sha256])

    def numbers(self, hashes: Sequence[str]) -> dict[str, int]:
        """The images that have these contents, by their sha256."""
        query = sa.select(images.c.sha256, images.c.id).where(images.c.sha256.in_(hashes), images.c.dropped.is_(None))
        return {row["sha256"]: row["id"] for row in self.all(query)}

    def image(self, number: int) -> Row:
        """One image with its scores and reviews, oldest first."""
        found = self._one(sa.select(images).where(images.c.id == number), f"image {number}")
        said = sa.select(scores, versions.c.name.label("model"), versions.c.checksum).join(versions)
        found["scores"] = self.all(said.where(scores.c.image == number).order_by(scores.c.id))
        found["reviews"] = self.all(sa.select(reviews).where(reviews.c.image == number).order_by(reviews.c.id))
        return found

    def listed(self, wanted: Wanted) -> tuple[list[Row], int]:
        """The images that were scored by the released version of a model, or by the one that was released as of then;
        and how many there are in all."""
        version = self._of(wanted)
        with self.engine.connect() as connection:
            total = dialects.count(connection, listing.chosen(wanted, version))
            return [dict(row) for row in connection.execute(listing.page(wanted, version)).mappings()], total

    def place(self, wanted: Wanted, image: int) -> int | None:
        """Where an image is in a list, from 0; none where it is not in it."""
        version = self._of(wanted)
        with self.engine.connect() as connection:
            value = connection.execute(listing.key(wanted, version, image)).scalar()
            return None if value is None else dialects.count(connection, listing.before(wanted, version, value, image))

    def moment(self, name: str, *, settled: bool = True) -> Moment:
        """Now; `settled`: for a list that is to stay as it is, all that is being written has to be there."""
        version = self.released(name)["id"]
        score, review = (dialects.newest(self.engine, table, settled) for table in (scores, reviews))
        return Moment(version, score, review, dialects.last_drop(self.engine))

    def _of(self, wanted: Wanted) -> int:
        """The version whose scores a list shows."""
        if wanted.as_of is None:
            return int(self.released(wanted.name)["id"])
        version = self.version(wanted.as_of.version)
        if version["name"] != wanted.name:
            raise MissingError(f"there is no version {wanted.as_of.version} of {wanted.name!r}")
        return int(version["id"])

    def count(self, version: int) -> int:
        """How many images a version has scored."""
        with self.engine.connect() as connection:
            return dialects.count(connection, sa.select(scores.c.version).where(scores.c.version == version))

    def neighbours(self, number: int, name: str, count: int = 3) -> list[Row]:
        """The images whose scores are next to that of an image, below and above, with what is said of them now."""
        version = self.released(name)["id"]
        own = sa.select(scores.c.score).where(scores.c.image == number, scores.c.version == version)
        with self.engine.connect() as connection:
            score = connection.execute(own).scalar()
            if score is None:
                return []
            queries = listing.neighbours(version, number, score, count)
            found = [dict(row) for query in queries for row in connection.execute(query).mappings()]
        return sorted(found, key=lambda row: row["score"])

    def series(self, version: int, since: float = 0.0, last: int | None = None) -> list[Row]:
        """Time, score, p-value and image of what a version has scored, oldest first; of the last ones, or of all."""
        columns = (scores.c[key] for key in ("created", "score", "p_value", "is_anomaly", "image"))
        query = sa.select(*columns).where(scores.c.version == version, scores.c.created >= since)
        return self.all(query.order_by(scores.c.created.desc(), scores.c.id.desc()).limit(last))[::-1]

    def unscored(self, version: Row, before: int | None, most: int) -> list[Row]:
        """What a version has yet to score: of its model's images those that were reviewed, and of the last ones of the
        version before it, `most` of them, the newest first; each with the time when it was last sent."""
        mine = scores.alias()
        missing = ~sa.exists().where(mine.c.image == images.c.id, mine.c.version == version["id"])
        columns, time = (images.c.id, images.c.sha256), sa.func.max(scores.c.created).label("created")
        ones = sa.select(versions.c.id).where(versions.c.name == version["name"])
        reviewed = (
            sa.select(*columns, time)
            .join(reviews, reviews.c.image == images.c.id)
            .join(scores, scores.c.image == images.c.id)
            .where(COUNTS, scores.c.version.in_(ones), missing)
            .group_by(*columns)
            .order_by(time.desc())
        )
        last = sa.select(scores.c.image, scores.c.created).where(scores.c.version == before)
        recent = last.order_by(scores.c.created.desc(), scores.c.id.desc()).limit(most).subquery()
        rest = sa.select(*columns, recent.c.created).join(recent, recent.c.image == images.c.id)
        rest = rest.where(missing, images.c.dropped.is_(None))
        found: dict[int, Row] = {}
        for row in (*self.all(reviewed), *self.all(rest.order_by(recent.c.created.desc()))):
            found.setdefault(row["id"], row)
        return list(found.values())

    # --- reviews

    def add_review(
        self,
        image: int,
        verdict: str,
        who: str,
        note: str = "",
        mask: str | None = None,
        ignore: str | None = None,
        model: str = "",
    ) -> Row:
        """The word of a person; on the disk when this returns. The history has it with `model`, or else with the model
        that has scored the image last."""
        if verdict not in VERDICTS:
            raise ConfigError(f"unknown verdict {verdict!r}: choose from {', '.join(VERDICTS)}")
        with self.engine.begin() as connection:
            _alone_with(connection, image)
            values = {"image": image, "verdict": verdict, "who": who, "note": note, "mask": mask, "ignore": ignore}
            self._log(connection, who, "review", model or _last_model(connection, image), f"image {image}: {verdict}")
            return self._add_review(connection, values)

    def _add_review(self, connection: sa.Connection, values: Row) -> Row:
        connection.execute(reviews.update().where(reviews.c.image == values["image"]).values(last=False))
        number = dialects.new(connection, reviews, values | {"created": self.clock(), "last": True})
        return dict(connection.execute(sa.select(reviews).where(reviews.c.id == number)).mappings().one())

    def take_back(self, number: int, who: str, model: str = "") -> Row:
        """Take back the last review of an image: what was said before it is said again, with its note and painting; or
        else the image counts as not looked at. That is a review as well, to be taken back like others: none is deleted.
        """
        taken = self.review(number)
        image = taken["image"]
        with self.engine.begin() as connection:
            _alone_with(connection, image)
            said = sa.select(reviews).where(reviews.c.image == image).order_by(reviews.c.id.desc()).limit(2)
            last, *earlier = connection.execute(said).mappings().all()
            if last["id"] != number:
                raise ConfigError(f"review {number} is not what counts for image {image}: look at the image again")
            values: Row = {"verdict": WITHDRAWN, "note": "", "mask": None, "ignore": None}
            if earlier:
                values = {key: earlier[0][key] for key in values}
            detail = f"image {image}: {last['verdict']}, now {values['verdict']}"
            self._log(connection, who, "take back", model or _last_model(connection, image), detail)
            return self._add_review(connection, values | {"image": image, "who": who})

    def review(self, number: int) -> Row:
        """One review."""
        return self._one(sa.select(reviews).where(reviews.c.id == number), f"review {number}")

    def reviewed(self, name: str | None = None) -> list[Row]:
        """Every image that has a verdict, with the last one; or those that a version of a model has scored."""
        query = sa.select(reviews, images.c.sha256, images.c.name).join(images, images.c.id == reviews.c.image)
        if name is not None:
            query = query.where(listing.of_model(name))
        return self.all(query.where(COUNTS).order_by(reviews.c.image))

    def lessons(self, name: str) -> list[Row]:
        """Of the images that a version of a model has scored, those whose last verdict is good or bad, the newest
        review first; with the score of the released version, where it has one."""
        own = sa.and_(scores.c.image == images.c.id, scores.c.version == self.released(name)["id"])
        columns: list[Any] = [images.c[key] for key in ("id", "name", "width", "height")]
        query = (
            sa.select(*columns, reviews.c.verdict, reviews.c.mask.is_not(None).label("has_mask"), scores.c.score)
            .join(reviews, reviews.c.image == images.c.id)
            .outerjoin(scores, own)
            .where(reviews.c.last, reviews.c.verdict.in_(("good", "bad")), listing.of_model(name))
        )
        return self.all(query.order_by(reviews.c.id.desc()))

    # --- jobs

    def add_job(self, kind: str, version: Row, chosen: Sequence[int], who: str) -> Row:
        """A job that waits for its turn."""
        with self.engine.begin() as connection:
            values = {"kind": kind, "name": version["name"], "version": version["id"], "images": list(chosen)}
            values |= {"state": "queued", "progress": 0.0, "message": "", "who": who, "created": self.clock()}
            number = dialects.new(connection, jobs, values)
            self._log(connection, who, f"{kind} job", version["name"], f"job {number}, {len(chosen)} images")
        return self.job(number)

    def job(self, number: int) -> Row:
        """One job."""
        return self._one(sa.select(jobs).where(jobs.c.id == number), f"job {number}")

    def unfinished(self, name: str) -> list[int]:
        """The jobs of a model that wait or run."""
        query = sa.select(jobs.c.id).where(jobs.c.name == name, jobs.c.state.in_(UNFINISHED))
        return [row["id"] for row in self.all(query.order_by(jobs.c.id))]

    def all_jobs(self, name: str = "") -> list[Row]:
        """Newest first, or those of a model; without their results, which are large."""
        query = sa.select(*(column for column in jobs.c if column.name != "result")).order_by(jobs.c.id.desc())
        return self.all(query.where(jobs.c.name == name) if name else query)

    def update_job(self, number: int, **values: Any) -> None:
        """State, progress, message, result."""
        if values.get("state") not in (None, *UNFINISHED):
            values["ended"] = self.clock()
        with self.engine.begin() as connection:
            connection.execute(jobs.update().where(jobs.c.id == number).values(**values))

    def interrupt_jobs(self) -> list[Row]:
        """What an earlier service was doing when it ended; said so, to be resumed by hand."""
        stopped = self.all(sa.select(jobs).where(jobs.c.state.in_(UNFINISHED)))
        for job in stopped:
            self.update_job(job["id"], state="interrupted", message=INTERRUPTED)
        return stopped

    # --- history and tokens

    def log(self, who: str, what: str, name: str = "", detail: str = "") -> None:
        """Write down who did what."""
        with self.engine.begin() as connection:
            self._log(connection, who, what, name, detail)

    def history(self, name: str = "", limit: int = 200, *, what: str = "") -> list[Row]:
        """Newest first; of a model, or of one kind. What is about an image has its number and its name."""
        query = sa.select(events).order_by(events.c.id.desc()).limit(limit)
        wanted = [column == value for column, value in ((events.c.name, name), (events.c.what, what)) if value]
        found = self.all(query.where(*wanted))
        for row in found:
            of = OF_IMAGE.match(row["detail"]) if row["what"] in ABOUT_IMAGES else None
            row["image"] = int(of[1]) if of else None
        numbers = {row["image"] for row in found} - {None}
        called = self.all(sa.select(images.c.id, images.c.name).where(images.c.id.in_(numbers)))
        names = {row["id"]: row["name"] for row in called}
        return [row | {"picture": names.get(row["image"], "")} for row in found]

    def add_token(self, name: str, role: str, hashed: str) -> None:
        """A name has one token: a new one takes the place of the old one."""
        with self.engine.begin() as connection:
            connection.execute(tokens.delete().where(tokens.c.name == name))
            connection.execute(tokens.insert().values(name=name, role=role, hash=hashed, created=self.clock()))
            self._log(connection, "bgad", "token", "", f"{name}: {role}")

    def drop_token(self, name: str) -> bool:
        """False where there was none."""
        with self.engine.begin() as connection:
            return bool(connection.execute(tokens.delete().where(tokens.c.name == name)).rowcount)

    def tokens(self) -> list[Row]:
        """Names and roles."""
        return self.all(sa.select(tokens).order_by(tokens.c.name))

    def token(self, hashed: str) -> Row | None:
        """Whose it is."""
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(tokens).where(tokens.c.hash == hashed)).mappings().first()
        return None if found is None else dict(found)

    def _log(self, connection: sa.Connection, who: str, what: str, name: str, detail: str) -> None:
        connection.execute(events.insert().values(who=who, what=what, name=name, detail=detail, created=self.clock()))

    def all(self, query: sa.Select[Any]) -> list[Row]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def _one(self, query: sa.Select[Any], what: str) -> Row:
        found = self.all(query.limit(1))
        if not found:
            raise MissingError(f"there is no {what}")
        return found[0]


def _alone_with(connection: sa.Connection, image: int) -> None:
    """Nobody else reviews this image until the end of the transaction: who writes first has the lock, in SQLite too."""
    there = images.update().where(images.c.id == image).values(id=images.c.id).returning(images.c.dropped)
    found = connection.execute(there).first()
    if found is None:
        raise MissingError(f"there is no image {image}")
    if found.dropped is not None:
        raise dropped(image)


def _last_model(connection: sa.Connection, image: int) -> str:
    """The name of the model that has scored an image last, or nothing."""
    said = sa.select(versions.c.name).join(scores, scores.c.version == versions.c.id).where(scores.c.image == image)
    return connection.execute(said.order_by(scores.c.created.desc(), scores.c.id.desc()).limit(1)).scalar() or ""


def _for_change(connection: sa.Connection, number: int) -> sa.RowMapping:
    """A version whose state nobody else changes until the end of the transaction."""
    dialects.alone(connection, versions)
    chosen = connection.execute(sa.select(versions).where(versions.c.id == number)).mappings().first()
    if chosen is None:
        raise MissingError(f"there is no version {number}")
    return chosen
