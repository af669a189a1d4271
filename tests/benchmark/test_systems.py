from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bgad.cli.benchmark as command
from bgad.benchmark import systems
from bgad.benchmark.paper_tables import TABLES, PaperTable
from bgad.benchmark.published import METHOD_OF, PUBLISHED, UNSUPERVISED
from bgad.benchmark.runner import BenchmarkOptions, run
from bgad.benchmark.systems import SYSTEMS, has_systems, with_systems
from bgad.cli.main import main
from bgad.config import BASELINES, from_dict, preset_for
from tests.benchmark.runs import results, tiny

NOT_HERE = {"AHL (DevNet)", "AHL (DRA)"}  # no baseline of this package


def added(table: PaperTable, *, frozen: bool) -> list[str]:
    """The columns that are added to a table with one matrix."""
    (before,), (after,) = table.matrices, with_systems(table, frozen=frozen).matrices
    assert after.columns[: len(before.columns)] == before.columns
    assert all(column.title == column.method for column in after.columns[len(before.columns) :])
    return [column.method for column in after.columns[len(before.columns) :]]


def test_every_printed_system_is_a_baseline_that_learns_from_the_same() -> None:
    printed = {entry.column for entry in PUBLISHED}
    assert printed - NOT_HERE == {*SYSTEMS, *METHOD_OF}
    for name, method in SYSTEMS.items():
        assert BASELINES[method].supervised == (name not in UNSUPERVISED)
    assert {method.removesuffix("-frozen") for method in BASELINES} == set(SYSTEMS.values())


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        (
            "main",
            "draem padim msfd patchcore cfa kdad fcdd-frozen devnet-frozen dra-frozen saoe-frozen mlep-frozen "
            "flos-frozen",
        ),
        ("btad", "ae-mse ae-ssim vt-adl"),
        ("other", "kdad patchcore saoe-frozen mlep-frozen flos-frozen devnet-frozen dra-frozen"),
        ("one-class", "devnet-frozen flos-frozen saoe-frozen mlep-frozen dra-frozen"),
    ],
)
def test_a_table_runs_every_system_that_it_prints(name: str, methods: str) -> None:
    assert added(TABLES[name], frozen=True) == methods.split()
    assert added(TABLES[name], frozen=False) == methods.replace("-frozen", "").split()


def test_notes_say_which_column_is_which_system() -> None:
    notes = with_systems(TABLES["one-class"], frozen=True).notes
    assert notes[0].startswith("Other systems, measured here: devnet-frozen is DevNet, flos-frozen is FLOS, ")
    assert notes[1].startswith(
        "devnet-frozen, flos-frozen, saoe-frozen, mlep-frozen, dra-frozen: without a GPU, DevNet"
    )
    assert notes[2].endswith("does not have them: AHL (DevNet), AHL (DRA).")
    assert len(with_systems(TABLES["one-class"], frozen=False).notes) == 2
    assert len(with_systems(TABLES["btad"], frozen=True).notes) == 1


def test_only_tables_of_systems_take_them(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitting = [name for name in TABLES if has_systems(TABLES[name])]
    assert fitting == ["main", "supervised", "btad", "other", "one-class", "semi-push-pull"]
    assert main(["benchmark", "--paper", "lambda", "--with-baselines", "--root", str(root)]) == 2
    assert "--with-baselines has no other systems for this --paper lambda: it is for main," in capsys.readouterr().err
    assert main(["benchmark", "--data", "mvtec", "--with-baselines", "--root", str(root)]) == 2
    assert "--with-baselines adds to a table of the paper: give --paper TABLE" in capsys.readouterr().err


def test_the_cells_of_the_systems_are_listed(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--paper", "other", "--with-baselines", "--data", "brainmri", "--seeds", "1", "--root", str(root)]
    assert main(["benchmark", *options, "--device", "cpu", "--out", str(tmp_path), "--list"]) == 0
    others = ("saoe", "mlep", "flos", "devnet", "dra")
    methods = ["nfad", "bgad", "kdad", "patchcore", *(f"{name}_frozen" for name in others)]
    assert capsys.readouterr().out.splitlines() == [f"brainmri-general-{m}-known1-seed0" for m in methods]


def test_baselines_of_a_table_have_the_backbone_of_its_methods(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def kept(arguments: object, table: PaperTable, out: Path, configs: dict[str, object], **_: object) -> list[object]:
        seen.update({method: config.backbone.name for method, config in configs.items()})  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_cells", kept)
    base = ["benchmark", "--paper", "main", "--with-baselines", "--root", str(root), "--device", "cpu"]
    for extra, name in (
        ([], "tf_efficientnet_b6"),
        (["--preset", "paper-fast"], "tf_efficientnet_b6"),
        (["--backbone", "lite0"], "lite0"),
    ):
        assert main([*base, *extra, "--out", str(tmp_path)]) == 130
        assert (seen["bgad"], seen["padim"], seen["dra-frozen"], seen["draem"]) == (name, name, name, "pixels")
    assert main([*base, "--preset", "paper", "--out", str(tmp_path)]) == 130
    assert (seen["bgad"], seen["padim"]) == ("tf_efficientnet_b6", "wide_resnet50_2")


def test_the_systems_stand_beside_the_printed_figures(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the systems that `other` prints, the quickest stands for all."""
    monkeypatch.setattr(systems, "SYSTEMS", {"PatchCore": "patchcore"})
    table = with_systems(TABLES["other"], frozen=True)
    matrix = replace(table.matrices[0], data={"brainmri": ()}, seeds=1)
    small = {"backbone": {"size": 64}}
    configs = {method: tiny(method) for method in ("nfad", "bgad")}
    configs["patchcore"] = from_dict(small, preset_for("patchcore", "smoke"))
    options = BenchmarkOptions(root=root, device="cpu")
    run(replace(table, matrices=(matrix,)), tmp_path, configs=configs, options=options)
    assert [cell["method"] for cell in results(tmp_path)["cells"]] == ["nfad", "bgad", "patchcore"]
    for name in ("table.md", "benchmark.html"):
        text = (tmp_path / name).read_text()
        assert "PatchCore (CVPR 2024)" in text
        assert "Other systems, measured here: patchcore is PatchCore." in text
        assert "Printed, but not run" in text
