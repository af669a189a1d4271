from __future__ import annotations

from pathlib import Path

import pytest

from bgad.data.datasets import expected as contents
from bgad.data.datasets import registry
from bgad.data.datasets.registry import DATASETS
from bgad.data.sample_io import read, read_mask
from bgad.errors import DataError
from tests.data.datasets.makers import MAKERS, notes, tally


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_is_read_as_its_download_unpacks(name: str, tmp_path: Path) -> None:
    expected = MAKERS[name](tmp_path)
    entry = DATASETS[name]
    assert registry.categories(name, tmp_path) == list(entry.categories or (name,))
    dataset = registry.load(name, expected.category if entry.categories else "", tmp_path)
    assert tally(dataset.samples) == expected.counts
    assert dataset.name == expected.category
    assert sum(s.mask is not None for s in dataset.samples) == expected.masked
    assert entry.masks == bool(expected.masked)
    assert len({s.name for s in dataset.samples}) == len(dataset.samples)
    for sample in dataset.samples:
        assert (sample.defect != "good") == bool(sample.label)
        assert (dataset.root / sample.name.partition("#")[0]) == sample.path
        mask = read_mask(sample)
        assert mask is None or (mask.any() and mask.shape == read(sample).shape[:2])
    assert "incomplete: " in notes(dataset)


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_says_what_people_must_know(name: str) -> None:
    entry = DATASETS[name]
    assert entry.name == name
    assert entry.source.startswith("https://")
    assert all((entry.title, entry.about, entry.licence, entry.layout))
    assert tuple(contents.SIZES[name]) == (entry.categories or (name,))
    assert set(contents.CLASSES.get(name, {})) <= set(contents.SIZES[name])


@pytest.mark.parametrize("name", DATASETS)
def test_the_root_may_be_the_set_itself(name: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    home = registry.find(name, tmp_path)
    assert registry.find(name, home) == home
    for other in DATASETS:
        if other != name:
            with pytest.raises(DataError, match=rf"does not have it; that looks like {name};"):
                registry.find(other, home)


def test_published_sizes_add_up() -> None:
    totals = {name: tuple(map(sum, zip(*sizes.values(), strict=True))) for name, sizes in contents.SIZES.items()}
    assert totals["mvtec"] == (4096, 1258)
    assert totals["visa"] == (9621, 1200)
    assert totals["mpdd"] == (1064, 282)
    assert totals["btad"] == (2250, 290)
    assert sum(map(len, contents.CLASSES["mvtec"].values())) == 73
