from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgad.data import split
from bgad.data.layouts import Dataset
from bgad.data.sample_io import digest
from bgad.data.split import Split, check_leakage, holdout_size, make_split
from bgad.errors import ConfigError, DataError
from bgad.types import Sample


def content(sample: Sample) -> str:
    """A picture's bytes are its path, or what follows '=' in it; no files needed for thousands of splits."""
    return f"sha of {sample.path.name.rpartition('=')[2] if '=' in sample.name else sample.path}"


@pytest.fixture(autouse=True)
def _names_are_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "digest", content)


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


def test_what_a_split_file_says() -> None:
    made = make_split(mvtec(20, {"a": 20}), holdout=4, known=3, seed=7)
    stored = json.loads(made.to_bytes())
    assert {key: value for key, value in stored.items() if key != "images"} == {
        "format": 1,
        "data": "mvtec",
        "protocol": "multi-class",
        "known_class": "",
        "subset": 0,
        "seed": 7,
        "notes": [],
    }
    assert len(stored["images"]) == 45
    assert stored["images"][0] == {
        "name": made.train[0].name,
        "sha256": f"sha of {made.train[0].path}",
        "role": "train",
        "defect": "good",
        "why": "normal of train/good",
    }
    reasons = {image["name"]: image["why"] for image in stored["images"]}
    assert reasons[made.known[2].name] == "drawn as known anomaly 3 of 3"
    assert reasons[made.calibration[0].name] == "held out for calibration"
    assert reasons[made.train[0].name] == "normal of train/good"
    assert {reasons[s.name] for s in made.test} == {"left for test", "normal of the test set"}
    got = Split.roles_from_json(stored)
    assert got == {made.hashes[name]: role for name, role in roles(made).items()}
    broken: dict[str, Any]
    shared = [{"sha256": "a", "role": "test"}, {"sha256": "a", "role": "unused"}]  # a copy that was left out
    assert Split.roles_from_json({"images": shared}) == Split.roles_from_json({"images": shared[::-1]}) == {"a": "test"}
    for broken in ({}, {"images": [{}]}, {"images": 3}, {"images": [{"sha256": "a", "role": "boss"}]}):
        with pytest.raises(DataError, match="stored split"):
            Split.roles_from_json(broken)


def test_repeated_normals_are_used_once() -> None:
    dataset = plain(10)
    dataset.samples.extend([sample("good/a=7"), sample("good/b=7"), sample("good/c=7")])
    made = make_split(dataset, holdout=3)
    assert len(made.train) + len(made.calibration) == 11
    assert {s.name: made.why[s.name] for s in made.unused} == {
        "good/b=7": "same picture as good/a=7",
        "good/c=7": "same picture as good/a=7",
    }
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
    assert len(made.notes) == len(made.unused) == 3
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


# --- the split itself


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": ["test/a/000.png", "train/good/000.png"]}, "train/good/000.png has two roles: train and test"),
        ({"unused": ["train/good/001.png"]}, "train/good/001.png has two roles: train and unused"),
        ({"known": ["test/good/000.png"], "test": []}, "test/good/000.png is normal, so it cannot have the role known"),
        ({"calibration": ["test/a/001.png"]}, "test/a/001.png is anomalous, so it cannot have the role calibration"),
        ({"test": ["test/a/z=1"]}, r"test/a/z=1 \(test\) is the same picture as test/a/y=1 \(known\)"),
        ({"test": ["test/a/z=1", "test/good/q=1"], "known": []}, r"test/good/q=1 \(test\) is the same picture"),
        ({"protocol": "unsupervised"}, "test/a/y=1 is known, but the protocol is unsupervised"),
        ({"protocol": "one-class", "known_class": "b"}, "test/a/y=1: one-class has all known anomalies"),
        ({"protocol": "one-class", "known_class": "a"}, "test/a/000.png: one-class .* no test image, of one class"),
    ],
)
def test_no_image_and_no_picture_has_two_roles(change: dict[str, Any], message: str) -> None:
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


def test_leakage_check_gives_hashes_of_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name, text in {"1": "a", "2": "b", "3": "a"}.items():
        (tmp_path / name).write_text(text)
    real = [Sample(tmp_path / name, name, 0) for name in "123"]
    hashes = check_leakage(real)
    assert hashes["1"] == hashes["3"] != hashes["2"]
    with pytest.raises(DataError, match="leakage: 1 is the same picture as 3"):
        check_leakage([*real[:2], Sample(tmp_path / "3", "3", 1, "bad")])
    (tmp_path / "2").unlink()
    assert check_leakage(real, hashes) == hashes  # nothing is read twice


# --- the split file


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A set of real files; what is in them does not matter to a split."""
    monkeypatch.undo()
    dataset = mvtec(8, {"a": 4, "b": 3})
    for one in dataset.samples:
        path = tmp_path / "set" / one.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.name)
    samples = [replace(one, path=tmp_path / "set" / one.name) for one in dataset.samples]
    strip = tmp_path / "set/test/b/000.png"
    tiles = [Sample(strip, f"test/b/000.png#{i}", 1, "b", None, "test", (i * 4, 0, i * 4 + 4, 4)) for i in range(2)]
    return replace(dataset, root=tmp_path / "set", samples=samples + tiles)


def test_a_split_comes_back_from_its_file(on_disk: Dataset, tmp_path: Path) -> None:
    made = make_split(on_disk, holdout=2, known=3, seed=5)
    path = tmp_path / "new/split.json"
    made.save(path)
    assert Split.load(path, replace(on_disk, name="renamed", samples=on_disk.samples[::-1])) == made
    listed = {image["name"]: image for image in json.loads(path.read_bytes())["images"]}
    assert listed["test/b/000.png#1"]["box"] == [4, 0, 8, 4]
    assert listed["test/b/000.png#1"]["sha256"] != listed["test/b/000.png#0"]["sha256"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["split.json"]
    one = listed["train/good/000.png"]
    assert one["sha256"] == hashlib.sha256(b"train/good/000.png").hexdigest()
    assert "box" not in one


def test_roles_may_be_edited_by_hand(on_disk: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    images = [
        {"name": one.name, "sha256": digest(one), "role": role}
        for one, role in zip(
            on_disk.samples, ["train"] * 5 + ["calibration"] * 2 + ["unused"] + ["test"] * 6, strict=False
        )
    ]
    images[-1]["role"] = "known"
    path.write_text(json.dumps({"format": 1, "images": images}))
    made = Split.load(path, on_disk)
    assert {role: len(getattr(made, role)) for role in (*split.ROLES, "unused")} == {
        "train": 5,
        "calibration": 2,
        "known": 1,
        "test": 5,
        "unused": 1 + 8,
    }
    assert made.protocol == "given"
    assert made.notes == ["8 images are not in the split file and get no role, the first: test/a/001.png"]
    assert made.why["test/b/000.png"] == "not in the split file"


def changed(stored: dict[str, Any], name: str, /, **values: Any) -> dict[str, Any]:
    return stored | {"images": [i | values if i["name"] == name else i for i in stored["images"]]}


NORMAL, ANOMALY = "train/good/000.png", "test/a/000.png"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: changed(d, NORMAL, role="boss"), f"{NORMAL} has the unknown role 'boss'; use train, calibration, k"),
        (lambda d: changed(d, NORMAL, name="train/good/x.png"), "train/good/x.png is not among the readable images of"),
        (lambda d: changed(d, NORMAL, sha256="0" * 64), f"{NORMAL} is not the picture of which the split was made"),
        (lambda d: changed(d, NORMAL, role="known"), f"{NORMAL} is normal, so it cannot have the role known"),
        (lambda d: changed(d, ANOMALY, role="train"), f"{ANOMALY} is anomalous, so it cannot have the role train"),
        (lambda d: changed(d, ANOMALY, role="calibration"), f"{ANOMALY} is anomalous, so it cannot have the role cal"),
        (lambda d: changed(d, ANOMALY, defect="b"), f"{ANOMALY} is of class 'b' there, 'a' in the data"),
        (lambda d: changed(d, NORMAL, role=3), "image 1 has something other than text in one of its fields"),
        (lambda d: d | {"images": [*d["images"], d["images"][0] | {"role": "test"}]}, f"{NORMAL} is listed twice"),
        (lambda d: d | {"images": [*d["images"], {"name": NORMAL}]}, "image 17 needs name, sha256 and role"),
        (lambda d: d | {"images": [*d["images"], 5]}, "image 17 needs name, sha256 and role"),
        (lambda d: d | {"images": []}, "at least 2 images must have the role train, and 1 calibration"),
        (lambda d: d | {"images": {}}, "is not a split file: it needs format and images"),
        (lambda d: d | {"format": 2}, "has format 2, this bgad reads up to 1: upgrade bgad"),
        (lambda d: d | {"format": None}, "is not a split file: it needs format and images"),
        (lambda d: [d], "is not a split file: it needs format and images"),
        (lambda d: d | {"seed": "1"}, "seed must be of type int"),
        (lambda d: d | {"notes": [1]}, "notes must be a list of texts"),
        (lambda d: d | {"protocol": "unsupervised"}, "is known, but the protocol is unsupervised"),
    ],
)
def test_a_wrong_split_file_is_named(
    on_disk: Dataset, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    on_disk = replace(on_disk, samples=on_disk.samples[:16])
    plan = ["train"] * 6 + ["calibration"] * 2 + ["test"] * 6 + ["known"] * 2
    images = [
        {"name": one.name, "sha256": digest(one), "role": role, "defect": one.defect, "why": ""}
        for one, role in zip(on_disk.samples, plan, strict=True)
    ]
    path = tmp_path / "split.json"
    stored = {"format": 1, "images": images}
    path.write_text(json.dumps(stored))
    Split.load(path, on_disk)
    path.write_text(json.dumps(change(stored)))
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}: .*{message}") as caught:
        Split.load(path, on_disk)
    assert "\n" not in str(caught.value)


def test_a_changed_or_copied_picture_and_an_unreadable_file_are_named(on_disk: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    made = make_split(on_disk, holdout=2, known=2)
    made.save(path)
    tested = next(s for s in made.test if not s.label)
    tested.path.write_bytes(made.train[0].path.read_bytes())
    with pytest.raises(DataError, match=f"{tested.name} is not the picture of which"):
        Split.load(path, on_disk)
    path.write_bytes(
        path.read_bytes().replace(made.hashes[tested.name].encode(), made.hashes[made.train[0].name].encode())
    )
    with pytest.raises(DataError, match=rf"{tested.name} \(test\) is the same picture as {made.train[0].name} \(train"):
        Split.load(path, on_disk)
    path.write_text("{")
    with pytest.raises(DataError, match="is not a split file: not valid JSON"):
        Split.load(path, on_disk)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Split.load(path, on_disk)


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


def test_the_holdout_is_a_share_of_distinct_pictures() -> None:
    """Thirty pictures, six times each: a fifth of thirty, not of 180."""
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
