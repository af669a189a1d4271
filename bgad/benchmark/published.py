"""Reads the figures printed in the BGAD paper and in papers that compare with it, and finds those of a row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from bgad.benchmark.paper_tables import IMAGE, PIXEL, PRO, Column
from bgad.benchmark.printed_figures import PAPER, PRINTED_SETTINGS, PRINTED_TABLES, PrintedTable
from bgad.data.datasets.registry import DATASETS

# Printed name -> the method that is trained as the paper's; ours, such as bgad-plus, have no printed figures.
METHOD_OF = {"NFAD": "nfad", "BGAD w/o": "bgad-wo", "BGAD†": "bgad-full-push", "BGAD": "bgad"}
UNSUPERVISED = frozenset(  # printed methods that use no anomaly
    {"AE-MSE", "AE-SSIM", "BGAD w/o", "CFA", "DRAEM", "KDAD", "MSFD", "NFAD", "PaDiM", "PatchCore", "VT-ADL"}
)
Row = tuple[str, str, int | None, str, str]  # data set, protocol, known anomalies, category, known class
_ROW_NAMES = ("known", "category", "class")  # heads of the row names in a printed table; the others are methods


@dataclass(frozen=True)
class Published:
    """One printed entry; `category` is empty in a mean over a data set, `known_class` in a mean over the classes."""

    table: PrintedTable
    column: str  # name of the method
    data: str
    known: int | None  # None: all anomalies of the training data
    category: str
    known_class: str
    values: dict[str, float] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The paper that prints the entry, a key of SOURCES."""
        return self.table.source

    @property
    def protocol(self) -> str:
        """The protocol that the entry was measured under."""
        return self.table.protocol

    @property
    def row(self) -> Row:
        """The row that the entry belongs to."""
        return self.data, self.protocol, self.known, self.category, self.known_class


def _entry(text: str, metrics: tuple[str, ...]) -> dict[str, float]:
    """Parse `.954/.947` to values by metric; a dash stands for no value.

    >>> _entry(".954/-", (PIXEL, PRO))
    {'pixel_auroc': 0.954}
    """
    return {m: float(part) for m, part in zip(metrics, text.split("/"), strict=True) if part != "-"}


def _place(name: str, data: str) -> tuple[str, str]:
    """Return data set and category of a row name, which is a category of `data` or a data set.

    >>> _place("screw", "mvtec"), _place("elpv", ""), _place("mvtec", "")
    (('mvtec', 'screw'), ('elpv', 'elpv'), ('mvtec', ''))
    """
    if name not in DATASETS:
        return data, name
    return name, "" if DATASETS[name].categories else name


def _entries(table: PrintedTable) -> Iterator[tuple[Published, str]]:
    """Yield the entries of a printed table, still without values, and the text of their figures."""
    heads, *rows = (line.split() for line in table.text.strip().splitlines())
    for row in rows:
        words = dict(zip(heads, row, strict=True))
        names = {head: words[head] for head in _ROW_NAMES if words.get(head, "-") != "-"}
        known = int(names["known"]) if "known" in names else table.known
        data, category = _place(names.get("category", ""), table.data)
        for head, text in words.items():
            if head not in _ROW_NAMES:
                column = head.replace("_", " ")
                yield Published(table, column, data, known, category, names.get("class", "")), text


def _published() -> Iterator[Published]:
    """Yield the entries of all printed tables."""
    paper: dict[tuple[str, Row], dict[str, float]] = {}  # method and row -> figures of the BGAD paper
    for table in PRINTED_TABLES:
        for entry, text in _entries(table):
            place = entry.column, entry.row
            values = _entry(text, table.metrics) if text != "=" else {m: paper[place][m] for m in table.metrics}
            if table.source == PAPER:
                paper.setdefault(place, {}).update(values)
            yield replace(entry, values=values)


PUBLISHED: tuple[Published, ...] = tuple(_published())
_SETTINGS = {(s.protocol, title): figures for s in PRINTED_SETTINGS for title, figures in s.figures.items()}


def _comparable(entry: Published, protocol: str, known: int) -> bool:
    """Tell whether an entry is of a protocol and a number of known anomalies; 0: of a method that uses no anomaly.

    `general` is another name of `multi-class`; its test images are those of `unsupervised` but for the known ones.
    """
    protocol = "multi-class" if protocol == "general" else protocol
    if known:
        return (entry.protocol, entry.known) == (protocol, known)
    protocols = {protocol, "unsupervised"} if protocol == "multi-class" else {protocol}
    return entry.protocol in protocols and entry.column in UNSUPERVISED


def _matching(data: str, protocol: str, known: int, category: str, known_class: str) -> list[Published]:
    """Return the entries of a row; with 0 known those of all methods that use no anomaly."""
    names = data, category.lower(), known_class.lower()
    entries = [e for e in PUBLISHED if (e.data, e.category.lower(), e.known_class.lower()) == names]
    return [e for e in entries if _comparable(e, protocol, known)]


def printed_methods(
    data: str, protocol: str, known: int, metrics: Collection[str], categories: Collection[str] = ()
) -> list[str]:
    """Return the methods with a printed figure for a data set, or for one of these categories, in the printed order."""
    entries = [e for e in PUBLISHED if e.data == data and _comparable(e, protocol, known)]
    entries = [e for e in entries if not categories or e.category in ("", *categories)]
    return list(dict.fromkeys(e.column for e in entries if not e.values.keys().isdisjoint(metrics)))


def printed(
    data: str, protocol: str, known: int, category: str = "", known_class: str = ""
) -> dict[tuple[str, str], dict[str, float]]:
    """Return (column, source) -> values by metric as printed for a row, or for a mean where names are empty.

    With 0 known, the columns are those of all methods that use no anomaly, also where they are printed beside others.
    """
    values: dict[tuple[str, str], dict[str, float]] = {}
    for entry in _matching(data, protocol, known, category, known_class):
        values.setdefault((entry.column, entry.source), {}).update(entry.values)
    return values


def best_printed(
    data: str, protocol: str, known: int, category: str = "", known_class: str = "", metric: str = IMAGE
) -> Published | None:
    """Return the entry with the best printed figure of a row, or of a mean where names are empty; None without any.

    Methods that use no anomaly compete with those that know as many as the row; methods that know more do not.
    """
    entries = [e for number in (known, 0) for e in _matching(data, protocol, number, category, known_class)]
    return max((e for e in entries if metric in e.values), key=lambda e: e.values[metric], default=None)


def printed_classes(data: str, protocol: str, category: str) -> set[str]:
    """Return the known classes with a printed row, in lower case: a printed mean of the category is over these."""
    where = (data, protocol, category.lower())
    rows = [e for e in PUBLISHED if (e.data, e.protocol, e.category.lower()) == where]
    return {e.known_class.lower() for e in rows if e.known_class}


def printed_mean(data: str, protocol: str, known: int, column: Column) -> dict[str, float]:
    """Return the printed mean over a data set for a column of a table; empty where the paper prints none."""
    setting = _SETTINGS.get((protocol, column.title))
    if column.changes or setting:
        return _entry(setting, (IMAGE, PIXEL, PRO)) if setting and data == "mvtec" else {}
    name = next((printed_name for printed_name, method in METHOD_OF.items() if method == column.method), "")
    return printed(data, protocol, known).get((name, PAPER), {})
