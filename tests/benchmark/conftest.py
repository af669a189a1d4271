"""Fixtures of the tests of the benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bgad.data.datasets import registry
from tests.benchmark.runs import CLASSES, category
from tests.conftest import save


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two categories of MVTec AD, one of BTAD, and BrainMRI, in the layouts of their downloads."""
    made = tmp_path_factory.mktemp("data")
    for number, (name, classes) in enumerate(CLASSES.items()):
        category(made / "mvtec" / name, classes, number)
    category(made / "btad/01", ("ko",), 7, good="ok")
    rng = np.random.default_rng(3)
    for folder, count in (("no", 10), ("yes", 4)):
        for i in range(count):
            save(made / "brainmri" / folder / f"{i}.png", rng.integers(0, 200, (40, 56), dtype=np.uint8))
    return made


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the ELPV package, which holds thousands of images."""
    monkeypatch.setattr(registry, "_installed", lambda _: None)
