"""A method that the data or the memory cannot serve is one line in the table; the other cells go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bgad.benchmark.paper_tables import Matrix, PaperTable, methods
from bgad.benchmark.plan import Outcome
from bgad.benchmark.runner import BenchmarkOptions, run
from bgad.config import ALL_METHODS, BASELINES, Config, from_dict, preset_for


def recipe(method: str, **settings: Any) -> Config:
    """A recipe of a baseline that is fitted in a second."""
    return from_dict({"backbone": {"size": 64}, "baseline": settings}, preset_for(method, "smoke"))


def cells(
    out: Path, root: Path, protocol: str, configs: dict[str, Config], memory_gb: float = 1.0, data: str = "brainmri"
) -> dict[str, Outcome]:
    """Run one cell of each method, and return method -> outcome."""
    matrix = Matrix({data: ()}, protocol, methods(*configs), known=(2,), seeds=1, metrics=("image_auroc",))
    options = BenchmarkOptions(root=root, device="cpu", memory_gb=memory_gb)
    outcomes = run(PaperTable("bad input", (matrix,)), out, configs=configs, options=options)
    for outcome in outcomes:
        assert "\n" not in outcome.reason
        assert outcome.failed == (outcome.cell is None)
    assert all(outcome.reason in (out / "table.md").read_text() for outcome in outcomes)
    return {outcome.request.column.method: outcome for outcome in outcomes}


def test_a_supervised_baseline_without_known_anomalies(root: Path, tmp_path: Path) -> None:
    configs = {"devnet-frozen": recipe("devnet-frozen", steps=2), "patchcore": recipe("patchcore")}
    done = cells(tmp_path, root, "unsupervised", configs)
    assert done["devnet-frozen"].reason.startswith("devnet-frozen needs known anomalies, and there are none: add some")
    assert done["patchcore"].cell is not None


def test_a_baseline_that_needs_masks_without_masks(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = replace(BASELINES["fcdd-frozen"], needs_masks=True)
    monkeypatch.setitem(BASELINES, "fcdd-frozen", strict)
    monkeypatch.setitem(ALL_METHODS, "fcdd-frozen", strict)
    configs = {"fcdd-frozen": recipe("fcdd-frozen", steps=2), "patchcore": recipe("patchcore")}
    done = cells(tmp_path, root, "general", configs)
    assert done["fcdd-frozen"].reason == "fcdd-frozen needs known anomalies with masks, and none has one: add masks"
    assert done["patchcore"].cell is not None


def test_memory_beyond_the_limit_is_an_error_or_a_stated_reduction(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = cells(tmp_path, root, "general", {"padim": recipe("padim"), "patchcore": recipe("patchcore")}, 0.0003)
    assert done["padim"].reason.startswith("PaDiM's covariances take 0.0016 GB, more than the memory of 0.0003 GB")
    assert done["patchcore"].cell is not None
    said = " ".join(capsys.readouterr().err.split())
    assert "PatchCore chooses its coreset from" in said
    assert "exceed the memory of 0.0003 GB" in said


def test_memory_for_not_even_one_patch(root: Path, tmp_path: Path) -> None:
    done = cells(tmp_path, root, "general", {"patchcore": recipe("patchcore"), "kdad": recipe("kdad", steps=1)}, 1e-6)
    assert "exceed the memory of 1e-06 GB: raise --memory" in done["patchcore"].reason
    assert done["kdad"].cell is not None


def test_too_few_patches_for_a_coreset(root: Path, tmp_path: Path) -> None:
    configs = {"patchcore": recipe("patchcore", neighbours=100_000), "padim": recipe("padim")}
    done = cells(tmp_path, root, "general", configs)
    assert done["patchcore"].reason.startswith("PatchCore needs more than 100000 normal patches, there are")
    assert done["patchcore"].reason.endswith("add normals")
    assert done["padim"].cell is not None
