"""The roles of a service process: one main service for a store, and any number of scorers beside it."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What a process does for the store that it shares with others."""

    MAIN = "main"  # everything: scores, serves the page, runs jobs, migrates and cleans up; one for each store
    SCORER = "scorer"  # scores images and answers questions; changes nothing else and does nothing by itself
