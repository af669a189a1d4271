from __future__ import annotations

import pytest

from bgad.benchmark.paper_tables import TABLES
from bgad.benchmark.published import printed_mean
from bgad.config import METHODS, override, preset_for
from bgad.data.datasets.registry import DATASETS
from bgad.data.protocols import PROTOCOLS


@pytest.mark.parametrize("name", TABLES)
def test_tables_can_be_run(name: str) -> None:
    """Every name in a table is known, every change of the recipe is allowed and is one."""
    for matrix in TABLES[name].matrices:
        assert matrix.protocol in PROTOCOLS
        for data, categories in matrix.data.items():
            assert set(categories) <= set(DATASETS[data].categories)
        assert len({column.title for column in matrix.columns}) == len(matrix.columns)
        recipes = set()
        for column in matrix.columns:
            assert column.method in METHODS
            recipes.add((override(preset_for(column.method, None), list(column.changes)), column.known))
        assert len(recipes) == len(matrix.columns)


def test_tables_of_means_have_a_printed_line_for_each_column() -> None:
    for table in TABLES.values():
        for matrix in table.matrices if table.means else ():
            for column in matrix.columns:
                known = column.known or matrix.known[0]
                assert set(printed_mean("mvtec", matrix.protocol, known, column)) == set(matrix.metrics), column
