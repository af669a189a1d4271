from __future__ import annotations

from pathlib import Path

import pytest

from bgad.data.validation import validate_images
from bgad.errors import DataError
from tests.data.strips import tiled


def test_unreadable_files_are_counted_once(tmp_path: Path) -> None:
    dataset, report = validate_images(tiled(tmp_path), max_unreadable=1)
    assert len(dataset.samples) == 6
    assert len(report.skipped) == 3
    assert sum(note.startswith("skipped: ") for note in dataset.notes) == 1
    assert any(note.startswith("1 unreadable images skipped: cut.png#0") for note in dataset.notes)
    with pytest.raises(DataError, match=r"1 images of .* cannot be read"):
        validate_images(tiled(tmp_path), max_unreadable=0)
