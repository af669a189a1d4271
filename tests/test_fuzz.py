"""Every reader of files with damaged ones, some seconds each; `python -m benchmarks.fuzz` goes on for longer."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from benchmarks import fuzz
from tests.fuzzing import FUZZ_SEED

READERS = ("image", "mask", "mask file", "card", "manifest, csv", "manifest, jsonl", "split", "split in a model")


@pytest.fixture(scope="module")
def readers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz.Reader]:
    return fuzz.make_readers(model, tmp_path_factory.mktemp("fuzz"))


def test_all_readers_are_tried(readers: dict[str, fuzz.Reader]) -> None:
    assert tuple(readers) == READERS


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_with_one_line(readers: dict[str, fuzz.Reader], name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's on metadata
        for content in readers[name].files:
            readers[name].read(content)
        fuzz.run(readers[name], 150, FUZZ_SEED)


def test_a_crash_is_noticed(readers: dict[str, fuzz.Reader]) -> None:
    def crash(content: bytes) -> None:
        if len(content) % 3 == 0:
            raise KeyError("x")

    with pytest.raises(KeyError):
        fuzz.run(fuzz.Reader(readers["image"].files, crash), 100)
