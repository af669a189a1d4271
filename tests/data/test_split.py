from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgad.data.layouts import Dataset
from bgad.data.split import Split, check_leakage, holdout_size, make_split
from bgad.errors import ConfigError, DataError
from bgad.types import Sample
from tests.data.splits import content, mvtec, plain, replace_digest, roles, sample


@pytest.fixture(autouse=True)
def _no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_digest(monkeypatch)


@given(
    normals=st.integers(4, 40),
    anomalies=st.integers(0, 20),
    classes=st.integers(1, 4),
    seed=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.25, 0.5]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_every_image_has_one_role(
    normals: int, anomalies: int, classes: int, seed: int, share: float, data: Any
) -> None:
    known = data.draw(st.none() | st.integers(0, anomalies))
    aside = max(1, round(share * normals)) if share else 0
    holdout = data.draw(st.integers(0, normals - aside - 1))
    dataset = plain(normals, anomalies, classes)
    made = make_split(dataset, seed=seed, known=known, holdout=holdout, test_share=share)
    assert set(roles(made)) == {s.name for s in dataset.samples}
    assert len(made.calibration) == holdout
    assert len(made.train) == normals - holdout - aside
    assert len(made.known) == (anomalies if known is None else known)
    assert not any(s.label for s in made.train + made.calibration)
    assert all(s.label for s in made.known)
    backwards = Dataset("plain", Path("elsewhere"), dataset.samples[::-1], "plain")
    assert make_split(backwards, seed=seed, known=known, holdout=holdout, test_share=share) == made


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_known_draws_are_nested_and_spread_over_classes(tested: dict[str, int], seed: int) -> None:
    dataset, total = mvtec(6, tested), sum(tested.values())
    before: list[Sample] = []
    for known in range(total):
        made = make_split(dataset, seed=seed, known=known, holdout=2)
        assert made.known[:-1] == before if known else made.known == []
        counts = Counter(s.defect for s in made.known)
        for defect, size in tested.items():  # no class lags by more than one unless it is used up
            assert counts[defect] >= min(size, max(counts.values(), default=0) - 1)
        assert len(made.test) == 5 + total - known
        assert roles(made).keys() == {s.name for s in dataset.samples}
        before = made.known


def test_draws_depend_on_the_seed_but_not_on_each_other() -> None:
    dataset = plain(50, 20)
    one = make_split(dataset, seed=1, known=5, holdout=10)
    assert one.calibration != make_split(dataset, seed=2, known=5, holdout=10).calibration
    assert one.known != make_split(dataset, seed=2, known=5, holdout=10).known
    assert one.known == make_split(dataset, seed=1, known=5, holdout=3, test_share=0.2).known
    fewer = make_split(dataset, seed=1, known=9, holdout=4)
    assert {s.name for s in fewer.calibration} < {s.name for s in one.calibration}


def test_mvtec_takes_ten_known_from_test() -> None:
    made = make_split(mvtec(tested={"a": 20, "b": 20}), holdout=4)
    assert Counter(s.defect for s in made.known) == {"a": 5, "b": 5}
    assert len(make_split(mvtec(tested={"a": 6}), holdout=4).known) == 3  # never more than half unless asked
    assert make_split(mvtec(tested={"a": 20}), holdout=4, known=0).known == []
    assert make_split(mvtec(), holdout=4).known == []
    with pytest.raises(DataError, match="6 known anomalies asked for, but the test set has 6"):
        make_split(mvtec(tested={"a": 6}), holdout=4, known=6)


def test_training_anomalies_are_the_known_ones() -> None:
    dataset = mvtec(tested={"a": 20}, trained=4)
    made = make_split(dataset, holdout=4)
    assert {s.name for s in made.known} == {f"train/dent/{i:03}.png" for i in range(4)}
    assert len(made.test) == 25
    assert (made.protocol, made.unused) == ("given", [])
    fewer = make_split(dataset, holdout=4, known=3)
    assert (len(fewer.known), len(fewer.test)) == (3, 25)
    assert [fewer.why[s.name] for s in fewer.unused] == ["anomaly of the training set that was not drawn"]
    assert fewer.protocol == "given"
    assert fewer.notes == ["1 training anomalies are not used: 3 known anomalies were asked for"]
    with pytest.raises(DataError, match="5 known anomalies asked for, but there are 4"):
        make_split(dataset, holdout=4, known=5)


def test_test_share_leaves_a_given_test_set_alone() -> None:
    dataset = mvtec(20, {"a": 20})
    assert make_split(dataset, holdout=4, test_share=0.5) == make_split(dataset, holdout=4)


def test_too_few_normals_and_bad_options() -> None:
    with pytest.raises(DataError, match="5 normals cannot spare 5"):
        make_split(plain(5), holdout=5)
    for options in ({"holdout": -1}, {"known": -1}, {"test_share": 1.0}, {"seed": -1}):
        with pytest.raises(ConfigError):
            make_split(plain(5), **{"holdout": 1, **options})  # type: ignore[arg-type]


def test_repeated_normals_are_used_once() -> None:
    dataset = plain(10)
    dataset.samples.extend([sample("good/a=7"), sample("good/b=7"), sample("good/c=7")])
    made = make_split(dataset, holdout=3)
    assert len(made.train) + len(made.calibration) == 11
    assert {s.name: made.why[s.name] for s in made.unused} == {
        "good/b=7": "same image as good/a=7",
        "good/c=7": "same image as good/a=7",
    }
    assert made.notes == [
        "same image twice: good/b=7 repeats good/a=7 and is not used",
        "same image twice: good/c=7 repeats good/a=7 and is not used",
    ]


def test_a_copy_of_a_known_anomaly_is_left_out_of_test() -> None:
    copies = [sample(f"test/a/{i}=same", 1, "a", "test") for i in range(4)]
    dataset = mvtec(10, {"b": 3})
    dataset.samples.extend(copies)
    made = make_split(dataset, holdout=3, known=2)
    taken = {made.hashes[s.name] for s in made.known}
    assert "sha of same" in taken
    assert taken.isdisjoint(made.hashes[s.name] for s in made.test)
    assert len(made.notes) == len(made.unused) == 3
    untouched = make_split(dataset, holdout=3, known=0)
    assert len(untouched.test) == 12


def test_the_protocol_says_where_the_known_anomalies_come_from() -> None:
    assert make_split(plain(9, 4), holdout=2).protocol == "given"
    assert make_split(plain(9, 4), holdout=2, known=3).protocol == "multi-class"
    assert make_split(plain(9, 4), holdout=2, known=0).protocol == "unsupervised"
    assert make_split(mvtec(9, {"a": 4}), holdout=2).protocol == "multi-class"
    assert make_split(mvtec(9), holdout=2).protocol == "unsupervised"


def test_a_known_anomaly_is_drawn_once_though_it_has_copies() -> None:
    dataset = mvtec(9, {"a": 1})
    dataset.samples.extend(sample(f"train/dent/{i}=same", 1, "dent", "train") for i in range(3))
    made = make_split(dataset, holdout=2)
    assert [s.name for s in made.known] == ["train/dent/0=same"]
    assert [s.name for s in made.unused] == ["train/dent/1=same", "train/dent/2=same"]
    assert made.notes == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": ["test/a/000.png", "train/good/000.png"]}, "train/good/000.png has two roles: train and test"),
        ({"unused": ["train/good/001.png"]}, "train/good/001.png has two roles: train and unused"),
        ({"known": ["test/good/000.png"], "test": []}, "test/good/000.png is normal, so it cannot have the role known"),
        ({"calibration": ["test/a/001.png"]}, "test/a/001.png is anomalous, so it cannot have the role calibration"),
        ({"test": ["test/a/z=1"]}, r"test/a/z=1 \(test\) is the same image as test/a/y=1 \(known\)"),
        ({"test": ["test/a/z=1", "test/good/q=1"], "known": []}, r"test/good/q=1 \(test\) is the same image"),
        ({"protocol": "unsupervised"}, "test/a/y=1 is known, but the protocol is unsupervised"),
        ({"protocol": "one-class", "known_class": "b"}, "test/a/y=1: one-class has all known anomalies"),
        ({"protocol": "one-class", "known_class": "a"}, "test/a/000.png: one-class .* no test image, of one class"),
    ],
)
def test_no_name_and_no_content_has_two_roles(change: dict[str, Any], message: str) -> None:
    samples = mvtec(6, {"a": 3}).samples
    samples += [sample(f"test/a/{name}=1", 1, "a", "test") for name in "yz"] + [sample("test/good/q=1", where="test")]
    by_name = {s.name: s for s in samples}
    hashes = {s.name: content(s) for s in samples}
    names: dict[str, Any] = {
        "train": ["train/good/000.png", "train/good/001.png"],
        "calibration": ["train/good/002.png"],
        "known": ["test/a/y=1"],
        "test": ["test/a/000.png"],
        "unused": ["test/a/001.png"],
    }

    def build(values: dict[str, Any]) -> Split:
        found: dict[str, Any] = {
            key: [by_name[name] for name in value] if isinstance(value, list) else value
            for key, value in values.items()
        }
        return Split(hashes=hashes, **found)

    build(names)
    with pytest.raises(DataError, match=message) as caught:
        build(names | change)
    assert "\n" not in str(caught.value)


@given(st.integers(3, 3000), st.none() | st.floats(0.001, 0.99))
def test_holdout_supports_the_rate_and_leaves_two_to_train(normals: int, rate: float | None) -> None:
    try:
        held = holdout_size(normals, rate)
    except DataError:
        assert rate is not None
        assert 1 / (normals // 2 + 1) > rate  # half of the normals could not support it
        return
    assert 1 <= held <= normals - 2
    assert held >= round(0.2 * normals)
    if rate is not None:
        assert 1 / (held + 1) <= rate * (1 + 1e-6)
        assert held == max(1, round(0.2 * normals)) or 1 / held > rate * (1 - 1e-6)  # no more than needed


def test_the_holdout_is_a_share_of_distinct_images() -> None:
    """Thirty images, six copies of each: a fifth of thirty, not of 180."""
    samples = [sample(f"good/{copy}-{i}={i}.png") for i in range(30) for copy in range(6)]
    dataset = Dataset("plain", Path("plain"), samples, "plain")
    made = make_split(dataset)
    assert (len(made.calibration), len(made.train)) == (6, 24)
    assert len(make_split(dataset, rate=0.1).calibration) == 9
    assert len(make_split(dataset, test_share=0.2).calibration) == 5
    with pytest.raises(DataError, match="needs 19 held-out normals; this set has 30, of which at most 15"):
        make_split(dataset, rate=0.05)


def test_holdout_size() -> None:
    assert [holdout_size(n) for n in (3, 4, 10, 320)] == [1, 1, 2, 64]
    assert holdout_size(320, 0.01) == 99
    assert [holdout_size(n * 2, 1 / (n + 1)) for n in range(2, 300)] == list(range(2, 300))
    with pytest.raises(DataError) as caught:
        holdout_size(40, 0.01)
    assert str(caught.value) == (
        "a false-reject rate of 0.01 needs 99 held-out normals; this set has 40, of which at most 20 can be "
        "held out (smallest rate: 0.0477). Add normals or ask for a higher rate."
    )
    assert holdout_size(40, 0.0477) == math.floor(1 / 0.0477) == 20
    with pytest.raises(DataError, match="2 normal images are too few"):
        holdout_size(2)
    for rate in (0, 1, -1, 1e-320, math.nan):
        with pytest.raises(ConfigError):
            holdout_size(100, rate)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (sample("train/good/007=x", where="train"), sample("test/good/1=x", where="test")),
        (sample("train/good/007=x", where="train"), sample("test/crack/003=x", 1, "crack", "test")),
        (sample("train/dent/1=x", 1, "dent", "train"), sample("test/dent/1=x", 1, "dent", "test")),
        (sample("test/good/1=x", where="test"), sample("test/crack/1=x", 1, "crack", "test")),
        (sample("good/1=x"), sample("bad/1=x", 1, "bad")),
    ],
)
def test_leakage_is_refused(a: Sample, b: Sample) -> None:
    message = f"leakage: {a.name} is the same image as {b.name}; remove one of them"
    for order in ([a, b], [b, a]):
        with pytest.raises(DataError, match=message):
            check_leakage(order)
        with pytest.raises(DataError, match=message):
            make_split(Dataset("x", Path("x"), order + plain(9).samples, "plain"), holdout=2)


def test_leakage_check_gives_hashes_of_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name, text in {"1": "a", "2": "b", "3": "a"}.items():
        (tmp_path / name).write_text(text)
    real = [Sample(tmp_path / name, name, 0) for name in "123"]
    hashes = check_leakage(real)
    assert hashes["1"] == hashes["3"] != hashes["2"]
    with pytest.raises(DataError, match="leakage: 1 is the same image as 3"):
        check_leakage([*real[:2], Sample(tmp_path / "3", "3", 1, "bad")])
    (tmp_path / "2").unlink()
    assert check_leakage(real, hashes) == hashes  # nothing is read twice
