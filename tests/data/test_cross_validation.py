from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bgad.data.cross_validation import CROSS_VALIDATION
from bgad.data.layouts import Dataset
from bgad.data.protocols import Case, cases, protocol_split
from bgad.data.split import Split
from bgad.errors import ConfigError, DataError
from bgad.types import ROLES
from tests.data.splits import mvtec, plain, replace_digest, sample


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_digest(monkeypatch)


def splits(dataset: Dataset, *, folds: int = 5, known: int = 0, seed: int = 0) -> list[Split]:
    runs = cases(CROSS_VALIDATION, dataset, folds=folds, known=known)
    return [protocol_split(dataset, CROSS_VALIDATION, case, known=known, seed=seed) for case in runs]


def test_every_image_is_held_out_once_and_trained_on_otherwise() -> None:
    dataset = plain(23, 12, classes=3)
    made = splits(dataset)
    assert len(made) == 5
    held_out = Counter(s.name for split in made for s in split.test)
    assert held_out == {s.name: 1 for s in dataset.samples}
    for split in made:
        assert split.protocol == CROSS_VALIDATION
        roles = [s.name for role in ROLES for s in getattr(split, role)]
        assert sorted(roles) == sorted(s.name for s in dataset.samples)  # each image has one role
        assert set(split.why) == set(roles)
        assert len(split.known) in (9, 10)
        assert len(split.calibration) in (4, 5)  # a fifth of the normals that are not tested
        assert sum(not s.label for s in split.test) in (4, 5)


def test_every_class_is_spread_over_the_folds() -> None:
    """Five classes over five folds: no fold may hold out a whole class."""
    for split in splits(plain(25, 25, classes=5)):
        assert Counter(s.defect for s in split.test if s.label) == {f"c{i}": 1 for i in range(5)}


def test_names_and_seed_decide() -> None:
    dataset = plain(20, 10)
    turned = replace(dataset, samples=dataset.samples[::-1])
    assert splits(dataset) == splits(turned)
    tested = [[s.name for s in splits(dataset, seed=seed)[0].test] for seed in (0, 1)]
    assert tested[0] != tested[1]


def test_known_limits_the_anomalies_that_take_part() -> None:
    made = splits(plain(20, 30, classes=3), known=6)
    taking_part = {s.name for split in made for s in [*split.known, *split.test] if s.label}
    assert len(taking_part) == 6
    assert Counter(name.split("/")[1] for name in taking_part) == {"c0": 2, "c1": 2, "c2": 2}
    assert {made[0].why[s.name] for s in made[0].unused} == {"anomaly that was not drawn"}
    assert len(splits(plain(20, 30), known=3)) == 3  # not more folds than anomalies


def test_a_test_set_stays_unseen_where_anomalies_lie_outside_of_it() -> None:
    made = splits(mvtec(20, {"dent": 4}, trained=6), folds=3)
    for split in made:
        assert not any(s.split == "test" for role in ROLES for s in getattr(split, role))
        assert {split.why[s.name] for s in split.unused} == {"of the test set, which stays unseen"}
    everything = splits(mvtec(20, {"dent": 4, "hole": 4}), folds=4)
    assert len({s.name for split in everything for s in split.test}) == 20 + 5 + 8


def test_copies_never_stand_on_both_sides() -> None:
    dataset = plain(12, 4)
    copies = [sample("bad/c0/copy=003.png", 1, "c0"), sample("bad/c0/twin=003.png", 1, "c0")]
    for split in splits(replace(dataset, samples=[*dataset.samples, *copies]), folds=2):
        assert "bad/c0/twin=003.png" in {s.name for s in split.unused}
        assert split.why["bad/c0/twin=003.png"] == "same image as bad/c0/copy=003.png"
        assert any("twin=003.png repeats" in note for note in split.notes)


def repeated(normals: int, anomalies: int, *, copies: int) -> Dataset:
    """A data set in which further anomalies repeat the first one."""
    dataset = plain(normals, anomalies)
    more = [sample(f"bad/c0/copy{i}=000.png", 1, "c0") for i in range(copies)]
    kept = [sample("bad/c0/first=000.png", 1, "c0") if s.name == "bad/c0/000.png" else s for s in dataset.samples]
    return replace(dataset, samples=[*kept, *more])


def test_copies_make_no_folds() -> None:
    """Five anomalies, one of them a copy: four folds, instead of five that fail one by one."""
    made = splits(repeated(20, 4, copies=1), folds=5)
    assert len(made) == 4
    assert all(sum(s.label for s in split.test) == 1 for split in made)


@pytest.mark.parametrize(
    ("dataset", "folds", "message"),
    [
        (plain(20), 5, "needs 2 or more known anomalies, one to train on and one to test; found 0: add images"),
        (plain(20, 1), 5, "found 1: add images of defects"),
        (repeated(20, 1, copies=1), 5, "found 1 and 1 copy of it: add images of defects"),
        (
            mvtec(20, {"dent": 4, "hole": 3}, trained=1),
            5,
            "found 1 outside of the test set, whose 7 are not used: add images of defects to the training set",
        ),
        (plain(3, 8), 5, "5 folds need 5 or more distinct normals, found 3: add some, or give --folds 3"),
        (plain(4, 8), 2, "2 normal images are too few"),
    ],
)
def test_what_is_missing_is_one_line(dataset: Dataset, folds: int, message: str) -> None:
    with pytest.raises(DataError) as caught:
        splits(dataset, folds=folds)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 or more folds, not 1"):
        cases(CROSS_VALIDATION, plain(20, 5), folds=1)
    with pytest.raises(ConfigError, match="2 or more known anomalies, or 0 for all, not 1"):
        cases(CROSS_VALIDATION, plain(20, 5), known=1)
    with pytest.raises(ConfigError, match="folds 1 to 3, no fold 4"):
        protocol_split(plain(20, 5), CROSS_VALIDATION, Case(fold=4, folds=3), known=0, seed=0)
