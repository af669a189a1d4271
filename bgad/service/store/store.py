"""The store of the workbench: one object for each group of tables over one database."""

from __future__ import annotations

import time
from collections.abc import Callable

from bgad.service.store.database import Database
from bgad.service.store.dropped_images import DroppedImages
from bgad.service.store.history import History
from bgad.service.store.image_list import ImageLists
from bgad.service.store.images import Images
from bgad.service.store.jobs import Jobs
from bgad.service.store.reviews import Reviews
from bgad.service.store.scores import Scores
from bgad.service.store.sweeps import Sweeps
from bgad.service.store.tokens import Tokens
from bgad.service.store.versions import Versions


class Store:
    """Everything that the workbench remembers; safe to use from many threads."""

    def __init__(self, address: str, clock: Callable[[], float] = time.time, *, migrate: bool = True) -> None:
        """Open the database at `address`, an SQLAlchemy URL, and bring its tables up to date if `migrate` is true."""
        self.database = Database(address, clock, migrate=migrate)
        self.versions = Versions(self.database)
        self.images = Images(self.database)
        self.scores = Scores(self.database)
        self.lists = ImageLists(self.database, self.versions)
        self.reviews = Reviews(self.database)
        self.dropped = DroppedImages(self.database)
        self.sweeps = Sweeps(self.database)
        self.jobs = Jobs(self.database)
        self.history = History(self.database)
        self.tokens = Tokens(self.database)

    def close(self) -> None:
        """Close all connections."""
        self.database.close()
