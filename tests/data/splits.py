"""Data sets without files for the tests of splits: the content of an image is derived from its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bgad.data import split
from bgad.data.layouts import Dataset
from bgad.data.split import Split
from bgad.types import ROLES, Sample


def content(sample: Sample) -> str:
    """Stand-in for a content hash: the text after '=' in the name, or the path; thousands of splits need no files."""
    return f"sha of {sample.path.name.rpartition('=')[2] if '=' in sample.name else sample.path}"


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
    listed = [(s.name, role) for role in ROLES for s in getattr(made, role)]
    assert len(listed) == len(dict(listed)), "an image has two roles"
    return dict(listed)


def replace_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `content` stand in for the content hash."""
    monkeypatch.setattr(split, "digest", content)
