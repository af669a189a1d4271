"""One benchmark table as data: rows of our figures beside the printed ones, ready for any output format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any, ClassVar

from bgad.evaluation.cells import METRIC_TITLES


@dataclass(frozen=True)
class Stat:
    """Mean and standard deviation of a figure over the seeds."""

    mean: float
    spread: float | None = None  # standard deviation; None for a single value

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.spread is None else f"{self.mean:.3f}±{self.spread:.3f}"


@dataclass(frozen=True)
class Entry:
    """The content of one row and column: figures by metric, and a remark on missing ones."""

    stats: dict[str, Stat] = field(default_factory=dict)
    remark: str = ""

    def text(self, metrics: Sequence[str]) -> str:
        """Return the figures separated by slashes, as in the paper."""
        if not self.stats:
            return self.remark
        figures = " / ".join(str(self.stats[m]) if m in self.stats else "-" for m in metrics)
        return f"{figures} {self.remark}".rstrip()


@dataclass(frozen=True)
class Cost:
    """What a model of one column costs, as means over its cells; None where no cell tells it."""

    fit_seconds: float | None = None
    image_ms: float | None = None
    model_mb: float | None = None
    fit_mb: float | None = None

    TITLES: ClassVar[dict[str, str]] = {
        "fit_seconds": "fit, s",
        "image_ms": "ms per image",
        "model_mb": "model, MB",
        "fit_mb": "memory of the fit, MB",
    }
    EXPLANATION: ClassVar[str] = (
        "Cost of one model, mean over the cells. Fit: training and calibration, without the features of the backbone, "
        "which cells share. ms per image: from the resized image to score and map, one image at a time, by torch (an "
        "exported graph is usually faster). Model: size of its weights. Memory of the fit: growth of the resident "
        "memory of the process beside the cached features, where the system tells it."
    )

    @classmethod
    def of(cls, cells: Sequence[Mapping[str, Any]]) -> Cost:
        """Return the means over the cells that tell a figure."""
        costs = [{"fit_seconds": cell["seconds"]["train"], **cell["cost"]} for cell in cells]
        figures = {key: [cost[key] for cost in costs if cost.get(key) is not None] for key in cls.TITLES}
        return cls(**{key: fmean(values) for key, values in figures.items() if values})

    def values(self) -> dict[str, float]:
        """Return the figures that there are, by the keys of TITLES."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {key: value for key, value in values.items() if value is not None}

    def texts(self) -> list[str]:
        """Return the figures as text, in the order of TITLES.

        >>> Cost(312.4, 8.53, 13.6).texts()
        ['312', '8.5', '13.6', '-']
        """
        values = self.values()
        return ["-" if key not in values else _three_digits(values[key]) for key in self.TITLES]


def _three_digits(value: float) -> str:
    """Format a figure with about three digits.

    >>> _three_digits(1234.5), _three_digits(9.87), _three_digits(0.1234)
    ('1234', '9.9', '0.12')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    names: tuple[str, ...]
    entries: list[Entry]  # ours, then the printed ones
    seconds: float | None = None  # mean time of a cell
    mean: bool = False  # the row is a mean of others
    best: list[Entry] = field(default_factory=list)  # the best printed entries, with their methods as remarks
    costs: list[Cost] = field(default_factory=list)  # one for each of our columns; none in a mean


@dataclass(frozen=True)
class Grid:
    """One table."""

    title: str
    names: tuple[str, ...]  # heads of the row names
    ours: list[str]  # heads of our columns
    printed: list[tuple[str, str]]  # column and source of the printed columns
    metrics: tuple[str, ...]
    rows: list[Row]
    notes: list[str]
    best: list[str] = field(default_factory=list)  # heads of the best printed entries, for tables with little space
    recipes: list[str] = field(default_factory=list)  # one line for each recipe of our columns
    costs: list[Cost] = field(default_factory=list)  # one for each of our columns; none in a table of means

    def heads(self) -> list[str]:
        """Return the heads of all columns: row names, ours, printed, and the seconds of a cell."""
        printed = [f"{name} ({source})" for name, source in self.printed]
        return [*self.names, *self.ours, *printed, *(["seconds"] if self.timed else [])]

    def metric_titles(self) -> str:
        """Return the titles of the metrics in the order of an entry's figures."""
        return " / ".join(METRIC_TITLES[metric] for metric in self.metrics)

    @property
    def timed(self) -> bool:
        """Tell whether rows have times; those of a table of means have none."""
        return any(row.seconds is not None for row in self.rows)

    def lines(self) -> list[list[str]]:
        """Return the rows as text, in the order of the heads."""
        lines = []
        for row in self.rows:
            seconds = ["" if row.seconds is None else f"{row.seconds:.0f}"] if self.timed else []
            lines.append([*row.names, *(entry.text(self.metrics) for entry in row.entries), *seconds])
        return lines

    def cost_lines(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and lines of the table of costs; no lines where no cell is finished."""
        named = zip(self.ours, self.costs, strict=False)
        return ["", *Cost.TITLES.values()], [[name, *cost.texts()] for name, cost in named if cost.values()]
