"""Cells and models as tasks: the files are those of one machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgad.cli.main import main
from bgad.errors import DataError
from bgad.features import cache
from bgad.io.files import sha256_file
from tests.conftest import SIZE

ray = pytest.importorskip("ray")

TINY: dict[str, dict[str, Any]] = {
    "backbone": {"size": SIZE, "image_head_strides": [16]},
    "flow": {"blocks": 2, "hidden_ratio": 0.5},
    "train": {"steps": 6, "push_steps": 4, "images_per_step": 8, "positions_per_image": [16, 16, 8]},
    "pseudo": {"count": 4},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file that trains in a second."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(
        "".join(
            f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
            for table, values in TINY.items()
        )
    )
    return path


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of one node with two CPUs."""
    from ray.cluster_utils import Cluster

    node = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield node.address
    node.shutdown()


def test_a_benchmark_on_a_cluster_has_the_same_table(
    data_set: Path, recipe: Path, address: str, tmp_path: Path
) -> None:
    arguments = ["benchmark", "--data", str(data_set), "--methods", "nfad-plus,bgad-plus", "--known", "3"]
    arguments += ["--seeds", "2", "--config", str(recipe), "--device", "cpu", "--keep-models"]
    assert main([*arguments, "--out", str(tmp_path / "one")]) == 0
    assert main([*arguments, "--out", str(tmp_path / "many"), "--cluster", address]) == 0
    one, many = (figures(tmp_path / name) for name in ("one", "many"))
    assert one == many
    assert len(one["cells"]) == 4
    names = sorted(
        path.relative_to(tmp_path / "one").as_posix() for path in (tmp_path / "one").rglob("flow.safetensors")
    )
    assert len(names) == 4
    for name in names:
        assert sha256_file(tmp_path / "one" / name) == sha256_file(tmp_path / "many" / name)
    assert {p.name for p in (tmp_path / "one" / "splits").iterdir()} == {
        p.name for p in (tmp_path / "many" / "splits").iterdir()
    }


def figures(out: Path) -> dict[str, Any]:
    """The results of a benchmark without what a clock gives."""
    results: dict[str, Any] = json.loads((out / "results.json").read_bytes())
    for cell in results["cells"]:
        cell.pop("seconds")
        cell.pop("cost")
    return results


def test_the_folds_of_a_comparison_run_on_a_cluster(data_set: Path, address: str, tmp_path: Path) -> None:
    arguments = ["compare", str(data_set), "--methods", "padim", "--folds", "2", "--preset", "smoke", "--size", "64"]
    assert main([*arguments, "--device", "cpu", "--out", str(tmp_path / "one")]) == 0
    assert main([*arguments, "--device", "cpu", "--out", str(tmp_path / "many"), "--cluster", address]) == 0
    one, many = (figures(tmp_path / name) for name in ("one", "many"))
    assert one["cells"] == many["cells"]
    assert [s["image_auroc"] for s in one["comparison"]["standings"]] == [
        s["image_auroc"] for s in many["comparison"]["standings"]
    ]
    assert "anomaly map of" in (tmp_path / "many/compare.html").read_text()


def test_features_of_a_training_come_from_the_cluster(
    data_set: Path, recipe: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SHARD_IMAGES", 8)
    arguments = ["train", str(data_set), "--config", str(recipe), "--known", "3", "--no-export", "--device", "cpu"]
    assert main([*arguments, "--out", str(tmp_path / "one.bgad")]) == 0
    read, plain = [], cache.read_shard

    def watched(file: Path) -> list[np.ndarray]:
        read.append(file)
        return plain(file)

    monkeypatch.setattr(cache, "read_shard", watched)
    assert main([*arguments, "--out", str(tmp_path / "many.bgad"), "--cluster", address]) == 0
    assert len(read) > 1
    weights = [sha256_file(tmp_path / f"{name}.bgad" / "flow.safetensors") for name in ("one", "many")]
    assert weights[0] == weights[1]
    assert not (tmp_path / "many.bgad.work").exists()


def test_models_of_a_plant(data_set: Path, recipe: Path, address: str, tmp_path: Path) -> None:
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plant.toml").write_text(
            f'[defaults]\ndata = "{data_set}"\nconfig = "{recipe}"\nknown = 3\nno-export = true\n'
            '[[part]]\nout = "a.bgad"\n[[part]]\nout = "b.bgad"\nseed = 1\n'
        )
    assert main(["train-all", str(tmp_path / "one" / "plant.toml")]) == 0
    assert main(["train-all", str(tmp_path / "many" / "plant.toml"), "--cluster", address]) == 0
    for part in ("a", "b"):
        weights = [sha256_file(tmp_path / name / f"{part}.bgad" / "flow.safetensors") for name in ("one", "many")]
        assert weights[0] == weights[1]
    before = (tmp_path / "many" / "a.bgad" / "card.json").stat().st_mtime_ns
    assert main(["train-all", str(tmp_path / "many" / "plant.toml"), "--cluster", address]) == 0
    assert (tmp_path / "many" / "a.bgad" / "card.json").stat().st_mtime_ns == before


def test_a_part_that_fails_does_not_stop_the_others(data_set: Path, recipe: Path, tmp_path: Path, capsys: Any) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "plant.csv").write_text(
        f"data,out,config,known,no-export\n{empty},a.bgad,{recipe},3,\n{data_set},b.bgad,{recipe},3,\n"
    )
    assert main(["train-all", str(tmp_path / "plant.csv")]) == 1
    assert (tmp_path / "b.bgad" / "card.json").exists()
    assert "row 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[[part]]\ndata = "x"\n', "part 1: has no out"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\n[[part]]\ndata = "y"\nout = "a.bgad"\n', "is the model of part 1"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\ncolour = 3\n', "part 1: unrecognized option --colour"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\nmethod = "best"\n', "part 1: argument --method"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\noverwrite = true\n', "overwrite is not an option of a part"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\nhelp = true\n', "part 1: help is not an option of a part"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\ncluster = "local"\n', "part 1: cluster is not an option of a part"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\n"cluster=auto" = true\n', "part 1: cluster=auto is not an option"),
        ('[[part]]\ndata = "x"\nout = "a.bgad"\ncpus-per-task = 2\n', "part 1: cpus-per-task is not an option"),
        ('[[part]]\ndata = "--help"\nout = "a.bgad"\n', "part 1: data is --help"),
        ('defaults = 3\n[[part]]\ndata = "x"\nout = "a.bgad"\n', "defaults is not a table"),
        ('[part]\ndata = "x"\n', "with two brackets"),
        ("[[parts]]\n", "unknown table parts"),
        ("", "lists no part"),
        ("=", "cannot be read"),
    ],
)
def test_a_list_of_parts_that_cannot_be_used(content: str, message: str, tmp_path: Path) -> None:
    from bgad.cli.train_all import read_parts

    (tmp_path / "plant.toml").write_text(content)
    with pytest.raises(DataError, match=message):
        read_parts(tmp_path / "plant.toml")


def test_a_row_with_a_cell_too_many(tmp_path: Path) -> None:
    from bgad.cli.train_all import read_parts

    (tmp_path / "plant.csv").write_text("data,out\nx,a.bgad\ny,b.bgad,3\n")
    with pytest.raises(DataError, match="row 3: has more cells"):
        read_parts(tmp_path / "plant.csv")


def test_what_a_part_writes_is_below_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bgad.cli.train_all import read_parts

    plant, here = tmp_path / "plant", tmp_path / "here"
    for folder in (plant / "gear", here):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    (plant / "plant.toml").write_text('[[part]]\ndata = "gear"\nout = "models/gear"\ntensorboard = "runs"\n')
    (part,) = read_parts(Path("../plant/plant.toml"))
    words = [str(Path(word).resolve()) if "/" in word else word for word in part.words]
    assert words == [str(plant / "gear"), "--out", str(plant / "models" / "gear"), "--tensorboard", str(plant / "runs")]
    assert part.out.resolve() == plant / "models" / "gear"


def test_overwriting_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bgad.cli import train_all

    trained: list[str] = []
    stop_at = ["c"]

    def train(piece: tuple[train_all.Part, bool]) -> None:
        name = piece[0].out.stem
        if name in stop_at:
            raise KeyboardInterrupt
        trained.append(name)

    monkeypatch.setattr(train_all, "train_part", train)
    for name in "abc":
        (tmp_path / f"{name}.bgad").mkdir()
        (tmp_path / f"{name}.bgad" / "card.json").touch()
    manifest = tmp_path / "plant.csv"
    manifest.write_text("data,out\nx,a.bgad\nx,b.bgad\nx,c.bgad\n")
    command = ["train-all", str(manifest), "--overwrite"]
    assert main(command) == 130
    stop_at.clear()
    assert main(command) == 0
    assert trained == ["a", "b", "c"]
    assert main(command) == 0  # the run before was complete: this one begins anew
    assert trained == ["a", "b", "c"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bgad", "b.bgad", "c.bgad", "plant.csv"]
