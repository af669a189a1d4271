from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bgad.benchmark.paper_tables import Matrix, methods
from bgad.benchmark.plan import plan
from tests.benchmark.runs import SIZE, category
from tests.conftest import save


def test_small_classes_run_where_a_paper_has_their_row(tmp_path: Path) -> None:
    classes = ("color", "hole", "smudge")
    category(tmp_path / "mvtec/carpet", classes, 1)
    for i in range(3, 6):
        save(tmp_path / f"mvtec/carpet/test/hole/{i}.png", np.full((SIZE, SIZE, 3), i, np.uint8))

    def asked(known: int) -> tuple[list[str], dict[str, str]]:
        matrix = Matrix({"mvtec": ("carpet",)}, "one-class", methods("nfad"), known=(known,), seeds=1)
        (group,) = plan((matrix,), tmp_path)
        missing = {o.request.case.known_class: o.reason for o in group.impossible}
        return [r.case.known_class for r in group.requests], missing

    few = "{} has 3 images, fewer than {} known anomalies"
    assert asked(3) == (list(classes), {})
    assert asked(5) == (["hole"], {name: few.format(name, 5) for name in ("color", "smudge")})  # 5: nowhere printed
    assert asked(10) == (list(classes), {})  # no class has so many
    for i in range(6, 12):
        save(tmp_path / f"mvtec/carpet/test/hole/{i}.png", np.full((SIZE, SIZE, 3), i, np.uint8))
    assert asked(10) == (["color", "hole"], {"smudge": few.format("smudge", 10)})


def test_plans_have_one_request_for_each_cell(root: Path) -> None:
    matrix = Matrix({"mvtec": ("carpet",)}, "multi-class", methods("nfad", "bgad"), known=(5, 1), seeds=3)
    unsupervised = replace(matrix, protocol="unsupervised")
    (group,) = plan((matrix, unsupervised), root)
    wanted = {(r.table, r.column.method, r.known, r.seed) for r in group.requests}
    assert wanted == {(0, m, k, s) for m in ("nfad", "bgad") for k in (5, 1) for s in range(3)} | {
        (1, m, 0, s) for m in ("nfad", "bgad") for s in range(3)
    }
    assert len(group.requests) == len(wanted)
    assert [r.seed for r in group.requests] == sorted(r.seed for r in group.requests)  # a seed shares phase 1
