from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgad.data import split
from bgad.data.folders import Dataset
from bgad.data.split import Split, check_leakage, holdout_size, make_split
from bgad.errors import ConfigError, DataError
from bgad.types import Sample


@pytest.fixture(autouse=True)
def _names_are_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture's bytes are its path, or what follows '=' in it; no files needed for thousands of splits."""
    monkeypatch.setattr(
        split,
        "hash_file",
        lambda path: f"sha of {path.name.rpartition('=')[2] if '=' in path.name else path}",
    )


def sample(name: str, label: int = 0, defect: str = "good", where: str = "") -> Sample:
    return Sample(Path(name), name, label, defect, None, where)


def plain(normals: int, anomalies: int = 0, classes: int = 1) -> Dataset:
    good = [sample(f"good/{i:03}.png") for i in range(normals)]
    bad = [sample(f"bad/c{i % classes}/{i:03}.png", 1, f"c{i % classes}") for i in range(anomalies)]
    return Dataset("plain", Path("plain"), good + bad, "plain")


def mvtec(normals: int = 20, tested: dict[str, int] | None = None, trained: int = 0) -> Dataset:
    samples = [sample(f"train/good/{i:03}.png", where="train") for i in range(normals)]
    samples += [sample(f"test/good/{i:03}.png", where="test") for i in range(5)]
    samples += [sample(f"train/dent/{i:03}.png", 1, "dent", "train") for i in range(trained)]
    for defect, count in (tested or {}).items():
        samples += [sample(f"test/{defect}/{i:03}.png", 1, defect, "test") for i in range(count)]
    return Dataset("mvtec", Path("mvtec"), samples, "mvtec")


def roles(made: Split) -> dict[str, str]:
    listed = [(s.name, role) for role in split.ROLES for s in getattr(made, role)]
    assert len(listed) == len(dict(listed)), "an image has two roles"
    return dict(listed)


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
    fewer = make_split(dataset, holdout=4, known=3)
    assert (len(fewer.known), len(fewer.test)) == (3, 25)
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


def test_json_round_trip() -> None:
    made = make_split(mvtec(20, {"a": 20}), holdout=4, known=3, seed=7)
    stored = json.loads(json.dumps(made.to_json()))
    assert stored["seed"] == 7
    assert len(stored["images"]) == 45
    reasons = {image["name"]: image["why"] for image in stored["images"]}
    assert reasons[made.known[2].name] == "drawn as known anomaly 3 of 3"
    assert reasons[made.calibration[0].name] == "held out for calibration"
    assert reasons[made.train[0].name] == "normal of train/good"
    assert {reasons[s.name] for s in made.test} == {"left for test", "normal of the test set"}
    got = Split.roles_from_json(stored)
    assert got == {made.hashes[name]: role for name, role in roles(made).items()}
    broken: dict[str, Any]
    for broken in ({}, {"images": [{}]}, {"images": 3}, {"images": [{"sha256": "a", "role": "boss"}]}):
        with pytest.raises(DataError, match="stored split"):
            Split.roles_from_json(broken)


def test_repeated_normals_are_used_once() -> None:
    dataset = plain(10)
    dataset.samples.extend([sample("good/a=7"), sample("good/b=7"), sample("good/c=7")])
    made = make_split(dataset, holdout=3)
    assert len(made.train) + len(made.calibration) == 11
    assert made.notes == [
        "same picture twice: good/b=7 repeats good/a=7 and is not used",
        "same picture twice: good/c=7 repeats good/a=7 and is not used",
    ]


def test_a_copy_of_a_known_anomaly_is_left_out_of_test() -> None:
    copies = [sample(f"test/a/{i}=same", 1, "a", "test") for i in range(4)]
    dataset = mvtec(10, {"b": 3})
    dataset.samples.extend(copies)
    made = make_split(dataset, holdout=3, known=2)
    taken = {made.hashes[s.name] for s in made.known}
    assert "sha of same" in taken
    assert taken.isdisjoint(made.hashes[s.name] for s in made.test)
    assert len(made.notes) == 3
    untouched = make_split(dataset, holdout=3, known=0)
    assert len(untouched.test) == 12


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
    message = f"leakage: {a.name} is the same picture as {b.name}; remove one of them"
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
    with pytest.raises(DataError, match="leakage: 1 is the same picture as 3"):
        check_leakage([*real[:2], Sample(tmp_path / "3", "3", 1, "bad")])


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
