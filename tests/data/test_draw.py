from __future__ import annotations

from pathlib import Path

import pytest

from bgad.data.draw import check_leakage
from bgad.data.layouts import Dataset
from bgad.data.split import make_split
from bgad.errors import DataError
from bgad.types import Sample
from tests.data.splits import plain, replace_digest, sample


@pytest.fixture(autouse=True)
def _no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_digest(monkeypatch)


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
