"""The other systems that the tables of the paper print, as baselines that run beside ours.

SYSTEMS is the one table that says which printed system is which of our methods; the paper's own are in METHOD_OF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bgad.benchmark.paper_tables import Matrix, PaperTable, methods
from bgad.benchmark.published import METHOD_OF, printed_methods
from bgad.config import BASELINES

SYSTEMS = {  # printed name -> baseline; what of it is as printed is said at the head of its module
    "AE-MSE": "ae-mse",
    "AE-SSIM": "ae-ssim",
    "CFA": "cfa",
    "DRA": "dra",
    "DRAEM": "draem",
    "DevNet": "devnet",
    "FCDD": "fcdd",
    "FLOS": "flos",
    "KDAD": "kdad",
    "MLEP": "mlep",
    "MSFD": "msfd",
    "PaDiM": "padim",
    "PatchCore": "patchcore",
    "SAOE": "saoe",
    "VT-ADL": "vt-adl",
}


def frozen_variant(method: str) -> str:
    """Return the variant of a baseline that does not train its backbone; the method itself where it trains none.

    >>> frozen_variant("dra"), frozen_variant("padim")
    ('dra-frozen', 'padim')
    """
    return f"{method}-frozen" if f"{method}-frozen" in BASELINES else method


def has_systems(table: PaperTable) -> bool:
    """Tell whether a table prints other systems, and its columns are methods, not settings."""
    columns = [column for matrix in table.matrices for column in matrix.columns]
    if table.means or any(column.changes or column.curve for column in columns):
        return False
    return any(_printed(matrix) for matrix in table.matrices)


def with_systems(table: PaperTable, *, frozen: bool) -> PaperTable:
    """Return the table with a column for each other system that it prints, and notes that say which is which.

    With `frozen`, systems that train their backbone are replaced by their variants on frozen features.
    """
    listed = dict.fromkeys(name for matrix in table.matrices for name in _printed(matrix))
    ours = {name: frozen_variant(SYSTEMS[name]) if frozen else SYSTEMS[name] for name in listed if name in SYSTEMS}
    matrices = tuple(
        replace(
            matrix,
            columns=(*matrix.columns, *methods(*(ours[name] for name in _printed(matrix) if name in ours))),
        )
        for matrix in table.matrices
    )
    notes = _notes(ours, [name for name in listed if name not in SYSTEMS])
    return replace(table, matrices=matrices, notes=(*table.notes, *notes))


def _printed(matrix: Matrix) -> list[str]:
    """Return the systems, other than the paper's own, that are printed for the data of a matrix."""
    found = [
        name
        for data, categories in matrix.data.items()
        for known in (0, *matrix.known)
        for name in printed_methods(data, matrix.protocol, known, matrix.metrics, categories)
    ]
    return [name for name in dict.fromkeys(found) if name not in METHOD_OF]


def _notes(ours: dict[str, str], missing: Sequence[str]) -> list[str]:
    """Say which column is which printed system, which of them are not as printed, and which are not run."""
    notes = [f"Other systems, measured here: {', '.join(f'{method} is {name}' for name, method in ours.items())}."]
    if frozen := {name: method for name, method in ours.items() if method != SYSTEMS[name]}:
        notes.append(
            f"{', '.join(frozen.values())}: without a GPU, {', '.join(frozen)} learn from the features of a frozen "
            "backbone; the printed systems train their network."
        )
    if missing:
        notes.append(f"Printed, but not run, because this package does not have them: {', '.join(missing)}.")
    return notes
