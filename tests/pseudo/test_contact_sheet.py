from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bgad.errors import DataError
from bgad.pseudo.contact_sheet import OUTLINE, contact_sheet
from tests.pseudo.scenes import generate, reader, write_samples


def test_contact_sheet_shows_every_tile_outlined(tmp_path: Path) -> None:
    normals, known = write_samples(tmp_path)
    tiles = generate(normals, known, 5, reader(48, 64), seed=1)
    page = contact_sheet(tiles, columns=3)
    assert page.dtype == np.uint8
    assert page.shape[1] == 3 * (216 + 12) + 12
    outlined = np.all(np.abs(page.astype(int) - OUTLINE) < 8, axis=2)
    rows = np.array_split(np.arange(page.shape[0]), 2)
    columns = np.array_split(np.arange(page.shape[1]), 3)
    counts = [outlined[np.ix_(r, c)].sum() for r in rows for c in columns]
    assert min(counts[:5]) > 8
    assert counts[5] == 0
    assert (page[:12] > 240).all()  # a light margin
    with pytest.raises(DataError, match="at least one"):
        contact_sheet([])
