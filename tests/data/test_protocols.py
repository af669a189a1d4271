from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgad.data import layouts, split
from bgad.data.layouts import Dataset
from bgad.data.protocols import PROTOCOLS, SUBSETS, Case, cases, protocol_split, serves
from bgad.data.split import Split
from bgad.errors import ConfigError, DataError
from bgad.types import ROLES, Sample


@pytest.fixture(autouse=True)
def _no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the text after '=' in the name of an image, or its name, stand in for the content hash."""
    monkeypatch.setattr(split, "digest", lambda sample: f"sha of {sample.name.rpartition('=')[2]}")


def build(
    name: str, normals: int, classes: dict[str, int], *, divided: bool, trained: dict[str, int] | None = None
) -> Dataset:
    """A data set with its own test split (of five normals), or without."""
    where = "test" if divided else ""
    samples = [Sample(Path("x"), f"train/good/{i:04}", 0, split="train" if divided else "") for i in range(normals)]
    samples += [Sample(Path("x"), f"test/good/{i}", 0, split="test") for i in range(5 * divided)]
    for defect, count in classes.items():
        samples += [Sample(Path("x"), f"test/{defect}/{i:03}", 1, defect, split=where) for i in range(count)]
    for defect, count in (trained or {}).items():
        samples += [Sample(Path("x"), f"train/{defect}/{i:03}", 1, defect, split="train") for i in range(count)]
    return Dataset(name, Path(name), samples, "manifest")


def made(dataset: Dataset, protocol: str, case: Case | None = None, **options: Any) -> Split:
    return protocol_split(dataset, protocol, case or Case(), **{"known": 10, "seed": 0, **options})


def defects(samples: list[Sample]) -> dict[str, int]:
    return dict(Counter(s.defect for s in samples))


# --- properties


@st.composite
def data_sets(draw: st.DrawFn) -> Dataset:
    """Screws with some of the paper's classes, renamed ones, and copies of images wherever copies are allowed."""
    names = st.sampled_from(["scratch_head", "thread_top", "thread_side", "manipulated_front", "renamed"])
    divided = draw(st.booleans())
    dataset = build(
        "screw",
        draw(st.integers(6, 24)),
        draw(st.dictionaries(names, st.integers(1, 8))),
        divided=divided,
        trained=draw(st.dictionaries(names, st.integers(1, 3))) if divided else {},
    )
    copies = []
    for number, one in enumerate(draw(st.lists(st.sampled_from(dataset.samples), max_size=6))):
        defect = draw(names) if one.label else "good"
        copies.append(replace(one, name=f"{one.split or 'test'}/{defect}/{number}={one.name}", defect=defect))
    return replace(dataset, samples=dataset.samples + copies)


def all_cases(dataset: Dataset) -> Iterator[tuple[str, Case]]:
    for protocol in serves(dataset):
        for case in cases(protocol, dataset):
            yield protocol, case


@given(data_sets(), st.integers(0, 12), st.integers(0, 12), st.integers(0, 3), st.randoms())
@settings(max_examples=120, deadline=None)
def test_protocols_divide_a_data_set(dataset: Dataset, few: int, more: int, seed: int, random: Any) -> None:
    few, more = sorted((few, more))
    shuffled = replace(dataset, samples=random.sample(dataset.samples, len(dataset.samples)))
    normals = set()
    for protocol, case in all_cases(dataset):
        try:
            less, split_ = (made(dataset, protocol, case, known=n, seed=seed) for n in (few, more))
        except DataError as error:
            assert "the protocol" in str(error) or "none of the" in str(error)  # noqa: PT017 - some cases cannot be served
            continue
        check_roles(dataset, split_)
        assert made(shuffled, protocol, case, known=more, seed=seed) == split_
        assert less.known == split_.known[: len(less.known)]
        for one, asked in ((less, few), (split_, more)):
            assert len(one.known) <= asked
            if protocol != "unsupervised" and len(one.known) < asked:
                assert any(f"{len(one.known)} known anomalies instead of {asked}" in note for note in one.notes)
            tested = [s for s in one.test if not s.label]
            normals.add(repr((one.train, one.calibration, tested)))
        check_classes(dataset, split_, protocol, case)
    assert len(normals) <= 1  # the same in all protocols, cases and numbers of known anomalies


def check_roles(dataset: Dataset, made: Split) -> None:
    role = [(s.name, role) for role in (*ROLES, "unused") for s in getattr(made, role)]
    assert len(dict(role)) == len(role) == len(dataset.samples)
    assert set(dict(role)) == set(made.why)
    contents: dict[str, set[str]] = {}
    for kind in ROLES:
        for sample in getattr(made, kind):
            contents.setdefault(made.hashes[sample.name], set()).add(kind)
    assert all(len(kinds) == 1 for kinds in contents.values())
    assert len({made.hashes[s.name] for s in made.known}) == len(made.known)
    assert not any(s.label for s in made.train + made.calibration)


def check_classes(dataset: Dataset, made: Split, protocol: str, case: Case) -> None:
    known, tested = defects(made.known).keys(), defects([s for s in made.test if s.label]).keys()
    subset = SUBSETS["screw"][case.subset - 1]
    assert (made.protocol, made.known_class, made.subset) == (protocol, case.known_class, case.subset)
    if protocol == "one-class":
        assert known <= {case.known_class}
        assert case.known_class not in tested
        of_class = {made.hashes[s.name] for s in dataset.samples if s.defect == case.known_class}
        assert of_class.isdisjoint(made.hashes[s.name] for s in made.test)
    elif protocol in ("hard", "unseen"):
        assert tested <= subset.hard
        assert known <= (subset.hard if protocol == "hard" else subset.easy)
    elif protocol == "unsupervised":
        assert not made.known
        assert {s.name for s in made.test} >= {s.name for s in dataset.samples if s.label and s.split != "train"}
    else:
        outside = {made.hashes[s.name] for s in dataset.samples if s.label and s.split != "train"}
        left = {made.hashes[s.name] for s in made.test if s.label}
        assert len(left) >= len(outside) / 2


# --- the numbers of the literature


def test_elpv_one_class() -> None:
    dataset = build("elpv", 1508, {"mono": 313, "poly": 402}, divided=False)
    assert cases("one-class", dataset) == [Case("mono"), Case("poly")]
    one = made(dataset, "one-class", Case("mono"))
    assert (len(one.train) + len(one.calibration), len(one.calibration)) == (1131, 226)
    assert defects(one.known) == {"mono": 10}
    assert defects(one.test) == {"good": 377, "poly": 402}
    assert defects(one.unused) == {"mono": 303}
    assert one.notes == ["303 anomalies have no role: of the known class mono, which is not tested"]
    assert {one.why[s.name] for s in one.unused} == {"of the known class mono, which is not tested"}
    general = made(dataset, "general")
    assert (general.train, general.protocol) == (one.train, "general")
    assert defects(general.known) == {"mono": 5, "poly": 5}
    assert defects(general.test) == {"good": 377, "mono": 308, "poly": 397}
    assert general.known == made(dataset, "multi-class").known


def test_one_class_alone_serves_only_the_general_protocols() -> None:
    dataset = build("headct", 100, {"bad": 100}, divided=False)
    assert serves(dataset) == ["multi-class", "general", "unsupervised"]
    assert defects(made(dataset, "general", known=1).test) == {"good": 25, "bad": 99}
    assert defects(made(dataset, "unsupervised").test) == {"good": 25, "bad": 100}
    for call in (lambda: cases("one-class", dataset), lambda: made(dataset, "one-class", Case("bad"))):
        with pytest.raises(
            DataError, match=r"headct cannot serve the protocol one-class: .*; use multi-class, general, u"
        ):
            call()


def test_copies_are_dropped_before_the_test_normals_are_drawn() -> None:
    dataset = build("brainmri", 87, {"yes": 155}, divided=False)
    dataset.samples.extend(Sample(Path("x"), f"no/{i}=train/good/{i:04}", 0) for i in range(11))
    one = made(dataset, "general")
    assert (len(one.train) + len(one.calibration), len([s for s in one.test if not s.label])) == (65, 22)
    assert "11 of 98 normals repeat another: 87 are divided into train and test" in one.notes
    assert sum("same image twice" in note for note in one.notes) == 11


def test_a_quarter_of_the_normals_is_tested_and_a_fifth_of_the_rest_held_out() -> None:
    one = made(build("headct", 100, {"bad": 100}, divided=False), "general")
    assert (defects(one.test)["good"], len(one.calibration), len(one.train)) == (25, 15, 60)


# --- the paper's subsets


def test_every_category_has_both_subsets() -> None:
    assert len(SUBSETS) == 15
    for category, (first, second) in SUBSETS.items():
        assert first.easy | first.hard == second.easy | second.hard, category
        assert first.hard, category
        assert second.hard, category
        assert first.easy.isdisjoint(first.hard) == second.easy.isdisjoint(second.hard) == (category != "toothbrush")
    counts = {category: len(first.easy | first.hard) for category, (first, _) in SUBSETS.items()}
    assert counts == {  # as many classes as MVTec AD has folders of defects
        "carpet": 5, "grid": 5, "leather": 5, "tile": 5, "wood": 5, "bottle": 3, "cable": 8, "capsule": 5,
        "hazelnut": 4, "metal_nut": 4, "pill": 7, "screw": 5, "toothbrush": 1, "transistor": 4, "zipper": 7,
    }  # fmt: skip
    assert [sorted(s.hard) for s in SUBSETS["grid"]] == [["bent", "glue"], ["thread"]]
    assert [sorted(s.hard) for s in SUBSETS["capsule"]] == [["faulty_imprint", "poke", "scratch"], ["squeeze"]]
    assert [sorted(s.hard) for s in SUBSETS["zipper"]] == [["fabric_interior", "squeezed_teeth"], ["rough"]]


SCREW = {"scratch_head": 24, "scratch_neck": 25, "thread_top": 23, "manipulated_front": 24, "thread_side": 23}


def test_hard_and_unseen_subsets_of_screw() -> None:
    dataset = build("screw", 320, SCREW, divided=True)
    assert cases("hard", dataset) == cases("unseen", dataset) == [Case(subset=1), Case(subset=2)]
    hard = made(dataset, "hard", Case(subset=1))
    assert defects(hard.known) == {"manipulated_front": 5, "thread_side": 5}
    assert defects(hard.test) == {"good": 5, "manipulated_front": 19, "thread_side": 18}
    assert hard.notes == ["72 anomalies have no role: of no hard class"]
    unseen = made(dataset, "unseen", Case(subset=2))
    assert defects(unseen.test) == {"good": 5, "thread_side": 23}
    assert sum(defects(unseen.known).values()) == 10
    assert set(defects(unseen.known)) == set(SCREW) - {"thread_side"}
    assert unseen.notes == ["86 anomalies have no role: of an easy class, which is not tested"]


@pytest.mark.parametrize("protocol", ["hard", "unseen"])
def test_toothbrush_is_tested_on_the_class_that_it_knows(protocol: str) -> None:
    one = made(build("toothbrush", 60, {"defective": 30}, divided=True), protocol, Case(subset=1))
    assert (defects(one.known), defects(one.test)) == ({"defective": 10}, {"good": 5, "defective": 20})
    assert one.notes == []


def test_renamed_and_missing_classes_are_named() -> None:
    classes = {"scratch_head": 4, "thread_side": 6, "Gewinde": 3}
    one = made(build("screw", 20, classes, divided=True), "unseen", Case(subset=1), known=3)
    assert defects(one.known) == {"scratch_head": 3}
    assert defects(one.test) == {"good": 5, "thread_side": 6}
    assert one.notes == [
        "classes of the paper's list that are not on disk: manipulated_front, scratch_neck, thread_top",
        "classes that are not in the paper's list: Gewinde",
        "3 anomalies have no role: of a class that is not in the paper's list",
        "1 anomalies have no role: of an easy class, which is not tested",
    ]
    missing = build("screw", 20, {"scratch_head": 4, "Gewinde": 3}, divided=True)
    with pytest.raises(DataError, match="none of the hard classes of screw is there: thread_side; found Gewinde, scr"):
        made(missing, "hard", Case(subset=2))
    only_hard = build("screw", 20, {"thread_side": 4}, divided=True)
    with pytest.raises(DataError, match="none of the easy classes of screw is there"):
        made(only_hard, "unseen", Case(subset=2))


# --- fewer than asked for


def test_a_small_class_gives_what_it_has() -> None:
    dataset = build("mine", 20, {"a": 4, "b": 9}, divided=True)
    one = made(dataset, "one-class", Case("a"))
    assert (defects(one.known), defects(one.test)) == ({"a": 4}, {"good": 5, "b": 9})
    assert one.notes == ["4 known anomalies instead of 10: of 4 there are no more"]


def test_half_of_the_anomalies_stay_in_the_test_set() -> None:
    dataset = build("mine", 20, {"a": 4, "b": 9}, divided=True)
    one = made(dataset, "multi-class")
    assert (len(one.known), defects(one.test)["good"], len(one.test)) == (6, 5, 12)
    assert one.notes == ["6 known anomalies instead of 10: of 13 at least half of them stay in the test set"]
    assert made(dataset, "multi-class", known=6).notes == []
    single = made(build("mine", 20, {"a": 1}, divided=True), "multi-class")
    assert (single.known, len(single.test), len(single.notes)) == ([], 6, 1)


def test_training_anomalies_are_the_first_to_be_known() -> None:
    dataset = build("ksdd2", 20, {"a": 5, "b": 5}, divided=True, trained={"a": 12})
    one = made(dataset, "multi-class")
    assert {s.split for s in one.known} == {"train"}
    assert len(one.test) == 15
    assert one.notes == ["2 anomalies have no role: anomaly of the training set that was not drawn"]
    known_a = made(dataset, "one-class", Case("a"))
    assert {s.split for s in known_a.known} == {"train"}
    assert defects(known_a.test) == {"good": 5, "b": 5}
    known_b = made(dataset, "one-class", Case("b"))
    assert (defects(known_b.known), defects(known_b.test)) == ({"b": 5}, {"good": 5, "a": 5})
    assert defects(made(dataset, "unsupervised").unused) == {"a": 12}


# --- bad input


def test_what_a_data_set_cannot_serve() -> None:
    dataset = build("elpv", 20, {"mono": 5, "poly": 5}, divided=False)
    assert serves(dataset) == ["multi-class", "general", "one-class", "unsupervised"]
    message = "elpv cannot serve the protocol hard: only the categories of MVTec AD .*; use multi-class, general, one-c"
    with pytest.raises(DataError, match=message):
        cases("hard", dataset)
    with pytest.raises(DataError, match="cannot serve the protocol unseen"):
        made(dataset, "unseen", Case(subset=1))
    with pytest.raises(DataError, match="no anomaly of class 'multi'; there are mono, poly"):
        made(dataset, "one-class", Case("multi"))
    good = build("good", 20, {}, divided=True)
    assert serves(good) == ["unsupervised"]
    with pytest.raises(DataError, match="cannot serve the protocol multi-class: there are no anomalies; use unsuperv"):
        cases("multi-class", good)
    assert defects(made(good, "unsupervised").test) == {"good": 5}
    taught = build("taught", 20, {}, divided=True, trained={"a": 3})
    with pytest.raises(DataError, match="the protocol multi-class leaves no anomaly to test; a found"):
        made(taught, "multi-class")
    with pytest.raises(DataError, match="2 normal images are too few"):
        made(build("two", 2, {"a": 3}, divided=True), "multi-class")


@pytest.mark.parametrize(
    ("protocol", "case", "options"),
    [
        ("multiclass", Case(), {}),
        ("one-class", Case(), {}),
        ("multi-class", Case("a"), {}),
        ("hard", Case(), {}),
        ("hard", Case(subset=3), {}),
        ("multi-class", Case(subset=1), {}),
        ("multi-class", Case(), {"known": -1}),
        ("multi-class", Case(), {"seed": -1}),
    ],
)
def test_options_out_of_range(protocol: str, case: Case, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        made(build("screw", 20, SCREW, divided=True), protocol, case, **options)


def test_unknown_protocols_are_named() -> None:
    dataset = build("screw", 20, SCREW, divided=True)
    with pytest.raises(
        ConfigError, match="unknown protocol 'oneclass': choose from multi-class, general, one-class, h"
    ):
        cases("oneclass", dataset)
    assert list(PROTOCOLS) == ["multi-class", "general", "one-class", "hard", "unseen", "unsupervised"]
    assert serves(dataset) == list(PROTOCOLS)


# --- files


def test_hashes_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dataset = build("elpv", 20, {"mono": 5, "poly": 5}, divided=False)
    first = made(dataset, "general")
    monkeypatch.setattr(split, "digest", lambda _: pytest.fail("a file was read again"))
    again = made(dataset, "general", hashes=first.hashes)
    assert again == first


def test_a_one_class_split_comes_back_from_its_file(tmp_path: Path) -> None:
    dataset = build("screw", 20, SCREW, divided=True)
    for protocol, case in all_cases(dataset):
        one = made(dataset, protocol, case, seed=2)
        (tmp_path / "split.json").write_bytes(one.to_bytes())
        assert Split.load(tmp_path / "split.json", dataset) == one


@pytest.mark.skipif("BGAD_DATA" not in os.environ, reason="BGAD_DATA is not set: real data needed")
def test_real_screws(monkeypatch: pytest.MonkeyPatch, real_data: Path) -> None:
    monkeypatch.undo()
    dataset = layouts.load(real_data / "mvtec/screw")
    first = made(dataset, "hard", Case(subset=1))
    for protocol, case in all_cases(dataset):
        one = made(dataset, protocol, case, hashes=first.hashes)
        assert (one.train, one.calibration) == (first.train, first.calibration)
        assert {s.name for s in one.test if not s.label} == {s.name for s in first.test if not s.label}
