from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bgad import TrainOptions, load, train
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.config import Config, from_dict, to_toml
from bgad.data import layouts
from bgad.data.sample_io import ImageCache, validate_images
from bgad.data.split import Split, make_split
from bgad.errors import BgadError, ConfigError, DataError, ModelError, OutputError
from bgad.evaluation.evaluate import evaluate, select_samples
from bgad.export import export
from bgad.inference.base import Output, SampleScore
from bgad.inference.torch_engine import Detector
from bgad.io import files as output_files
from bgad.io import images
from bgad.methods.checkpoint import CHECKPOINT, LogRow
from bgad.model import backbone
from bgad.model.image_head import DiscriminantDirection
from bgad.model.scoring import fuse, level_anomaly, map_score
from bgad.training import fit_image_head as head_statistics
from bgad.training import pipeline
from bgad.training import training_set as training_set_module
from bgad.training.loop import TrainingLoop
from bgad.training.shared_phases import flow_key, phase_two_key
from bgad.training.training_set import build_training_set, mask_cells, without_full_masks
from bgad.training.update import NewImage, update
from bgad.types import Sample, StopRequest
from tests.conftest import SIZE, draw_image, level_model, printed_config, save, tiny_config, write_set

FLOW = "flow.safetensors"
SHORT: dict[str, Any] = {"train": {"steps": 3, "push_steps": 3}, "pseudo": {"count": 3}}
BOTH_STRIDES: dict[str, Any] = {"image_head_strides": [16, 32]}


def short(**values: Any) -> Config:
    return from_dict(values, tiny_config(**SHORT))


def quick(
    data: Path, out: Path, *, config: Config | None = None, stop: StopRequest | None = None, **options: Any
) -> Detector:
    """A training of a few steps."""
    chosen = TrainOptions(**{"device": "cpu", "export": False, **options})
    return train(data, out, config=config or short(), options=chosen, stop=stop)


@pytest.fixture
def copy(data_set: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_set, tmp_path / "plate"))


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error must be raised before the backbone is built."""
    monkeypatch.setattr(backbone, "build", lambda *_: pytest.fail("the work has begun"))


# --- the card and what comes back


def test_the_returned_model_is_the_written_one(data_set: Path, tmp_path: Path) -> None:
    trained = quick(data_set, tmp_path / "plate.bgad", known=4)
    loaded = load(tmp_path / "plate.bgad", device="cpu")
    files: list[Any] = sorted((data_set / "test/blot").iterdir())
    for a, b in zip(trained.score_many(files), loaded.score_many(files), strict=True):
        assert a.score == b.score
        assert np.array_equal(a.map, b.map)
    assert trained.card == loaded.card
    assert trained.threshold == loaded.threshold
    assert [path.name for path in tmp_path.iterdir()] == ["plate.bgad"]  # no work folder stays


def test_every_image_has_one_role_and_calibration_is_not_trained_on(model: Path) -> None:
    card = json.loads((model / "card.json").read_text())
    roles: dict[str, list[str]] = {}
    for image in json.loads((model / "split.json").read_text())["images"]:
        roles.setdefault(image["role"], []).append(image["name"])
    assert {role: len(names) for role, names in roles.items()} == {
        "train": 19,
        "calibration": 5,
        "known": 4,
        "test": 14,
    }
    names = [name for group in roles.values() for name in group]
    assert len(names) == len(set(names)) == 42
    assert card["calibration"]["float32"]["false_reject_rate"] == pytest.approx(1 / 6)  # the smallest for 5 normals
    assert card["training"]["steps"] == 50
    assert card["data"] == {
        "name": "plate",
        "layout": "mvtec",
        "protocol": "multi-class",
        "known_class": "",
        "subset": 0,
        "known": 4,
        "notes": [],
    }
    assert "split" not in card


def test_features_on_disk_make_the_same_model(data_set: Path, model: Path, tmp_path: Path) -> None:
    """And so does the same seed a second time."""
    kept: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        phase = TrainingLoop.phase

        def recorded(self: TrainingLoop, number: int) -> Iterator[LogRow]:
            if number == 1:
                kept.extend(isinstance(level, np.memmap) for level in self.data.normals.levels)
                assert (tmp_path / "plate.bgad.work/normals/level0.npy").stat().st_size > 19 * 64 * 24 * 2
            return phase(self, number)

        patch.setattr(TrainingLoop, "phase", recorded)
        train(
            data_set,
            tmp_path / "plate.bgad",
            config=tiny_config(),
            options=TrainOptions(known=4, device="cpu", export=False, memory_gb=1e-6),
        )
    assert kept == [True] * 3
    for name in (FLOW, "backbone.safetensors", "train.csv"):
        assert (tmp_path / "plate.bgad" / name).read_bytes() == (model / name).read_bytes()


def deepened(root: Path) -> Path:
    """The images of a set as those of a 12-bit camera; the last ones are dark."""
    for i, path in enumerate(sorted(root.glob("t*/*/*.png"))):
        grey = np.array(Image.open(path))[..., 0].astype(np.uint16)
        save(path, grey * 16 if i < 34 else grey)
    return root


def variant(kind: str, copy: Path) -> dict[str, Any]:
    """The options of a training on deep images, with a region of interest or on tiles, as the words say."""
    if "deep" in kind:
        deepened(copy)
    options: dict[str, Any] = {"config": short(tile={"size": 32} if "tiles" in kind else {}), "known": 4}
    if "region" in kind:
        left = np.zeros((SIZE, SIZE), np.uint8)
        left[:, :40] = 255
        options["roi"] = save(copy.parent / "left.png", left)
    return options


@pytest.mark.parametrize("kind", ["plain", "region", "deep", "tiles"])
def test_every_image_is_decoded_once(copy: Path, tmp_path: Path, decoded: list[Path], kind: str) -> None:
    """In validation, and not again for features, pseudo anomalies, calibration or the check of the graph."""
    options = variant(kind, copy)
    quick(copy, tmp_path / "plate.bgad", export=True, **options)
    assert sorted(path for path in decoded if path.is_relative_to(copy)) == sorted(copy.rglob("*.png"))
    assert (tmp_path / "plate.bgad/model.onnx").exists()


@pytest.mark.parametrize("kind", ["region of deep images", "tiles of a region"])
def test_the_model_does_not_depend_on_what_is_kept(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[Path], kind: str
) -> None:
    options = variant(kind, copy)
    kept = quick(copy, tmp_path / "kept.bgad", **options)
    decoded.clear()
    monkeypatch.setattr(ImageCache, "_take", lambda *_, **__: False)
    read = quick(copy, tmp_path / "read.bgad", **options)
    assert len(decoded) > 42 + 20  # all in validation, most of them again
    for name in (FLOW, "train.csv"):
        assert (tmp_path / "kept.bgad" / name).read_bytes() == (tmp_path / "read.bgad" / name).read_bytes()
    assert kept.card.calibration_at().scores == read.card.calibration_at().scores


def test_the_log_and_tensorboard_hold_every_step(data_set: Path, tmp_path: Path) -> None:
    quick(data_set, tmp_path / "plate.bgad", known=4, tensorboard=tmp_path / "board")
    with (tmp_path / "plate.bgad/train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(6))
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert "boundary2" in events.Tags()["scalars"]
    found = events.Scalars("loss")
    assert [event.step for event in found] == list(range(1, 7))
    assert [event.value for event in found] == pytest.approx([float(row["loss"]) for row in rows], rel=1e-5)


def test_tensorboard_that_is_not_installed(data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(OutputError, match=r"pip install 'bgad\[tensorboard\]'"):
        quick(data_set, tmp_path / "plate.bgad", tensorboard=tmp_path / "board")


# --- known anomalies in any form


def test_likelihood_alone_ignores_the_anomalies(data_set: Path, tmp_path: Path) -> None:
    config = short(method="nfad-plus")
    quick(data_set, tmp_path / "none.bgad", config=config, known=0)
    quick(data_set, tmp_path / "some.bgad", config=config, known=4)
    assert (tmp_path / "none.bgad" / FLOW).read_bytes() == (tmp_path / "some.bgad" / FLOW).read_bytes()
    card = model_folder.read(tmp_path / "some.bgad")
    assert card.data.known == 4  # set aside, though not used


def test_without_known_anomalies_it_warns_and_trains(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = quick(data_set, tmp_path / "plate.bgad", known=0)
    assert "has no known anomalies: bgad-plus learns from normals alone" in " ".join(capsys.readouterr().err.split())
    assert trained.card.data.protocol == "unsupervised"
    assert np.isfinite(trained.score(data_set / "test/blot/000.png").score)


def recorded_loops(monkeypatch: pytest.MonkeyPatch) -> list[TrainingLoop]:
    """The loops that run from now on."""
    loops: list[TrainingLoop] = []
    phase = TrainingLoop.phase

    def recorded(self: TrainingLoop, number: int) -> Iterator[LogRow]:
        if number == 1:
            loops.append(self)
        return phase(self, number)

    monkeypatch.setattr(TrainingLoop, "phase", recorded)
    return loops


@pytest.mark.parametrize(("way", "known"), [("draem", 0), ("nsa", 0), ("nsa", 2)])
def test_pseudo_anomalies_of_normals_need_no_known_ones(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    way: str, known: int,
) -> None:  # fmt: skip
    loops = recorded_loops(monkeypatch)
    out = tmp_path / "plate.bgad"
    quick(data_set, out, config=short(pseudo={"method": way}), known=known)
    groups = loops[0].anomalies
    assert [(group.pseudo, group.features.count) for group in groups] == [(False, 2)] * (known > 0) + [(True, 3)]
    assert all(len(cells) > 0 for level in groups[-1].cells for cells in level)
    said = " ".join(capsys.readouterr().err.split())
    assert (f"bgad-plus learns from normals and {way} pseudo anomalies" in said) == (known == 0)
    with (out / "train.csv").open(newline="") as file:
        assert any(float(row["push"]) > 0 for row in csv.DictReader(file))
    quick(data_set, out, config=short(pseudo={"method": way}, method="nfad-plus"), overwrite=True)
    assert loops[1].anomalies == []


def test_anomalies_without_masks_are_pushed_where_they_are_least_likely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a share: the plain layout without masks, no pseudo anomalies can be made, the bad images still teach."""
    rng = np.random.default_rng(3)
    for kind, count in (("good", 20), ("bad", 5)):
        for i in range(count):
            save(tmp_path / f"plain/{kind}/{i}.png", draw_image(rng, defect=kind == "bad")[0])
    loops = recorded_loops(monkeypatch)
    trained = quick(
        tmp_path / "plain", tmp_path / "plain.bgad", config=short(loss={"instance_share": 0.05}, backbone=BOTH_STRIDES)
    )
    assert trained.card.data.known == 5
    (group,) = loops[0].anomalies
    assert group.marked == [False] * 5
    # 5 % of 64, 64 and 16; the image level, which the last stride is for, chooses its own
    assert [{len(cells) for cells in level} for level in group.cells] == [{3}, {3}, {1}, {4}]


def test_masks_decide_what_is_pushed_and_what_the_image_head_learns(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of known anomalies with and without masks, the flows see the marked ones, the image head all of them."""
    for i in (1, 4, 6):
        (copy / f"ground_truth/blot/{i:03d}_mask.png").unlink()
    loops = recorded_loops(monkeypatch)
    fits: list[list[Any]] = []
    direction = head_statistics.FeatureStatistics.direction

    def watched(self: head_statistics.FeatureStatistics, known: Any, cells: Any) -> DiscriminantDirection:
        assert len(known) == len(cells)
        fits.append(list(cells))
        return direction(self, known, cells)

    monkeypatch.setattr(head_statistics.FeatureStatistics, "direction", watched)
    trained = quick(copy, copy.parent / "plate.bgad", known=7, config=short(backbone=BOTH_STRIDES))
    known = [image["name"] for image in trained.card.split["images"] if image["role"] == "known"]
    masks = [copy / f"ground_truth/blot/{Path(name).stem}_mask.png" for name in known]
    marked = [path for path in masks if path.exists()]
    assert 4 <= len(marked) < 7
    real, made = loops[0].anomalies
    assert (real.pseudo, real.marked, made.pseudo) == (False, [True] * len(marked), True)
    for cells, grid in zip(real.cells, [(8, 8), (8, 8), (4, 4), (2, 2)], strict=True):
        for found, path in zip(cells, marked, strict=True):
            assert found.tolist() == mask_cells([images.read_mask(path)], grid)[0].tolist()
    assert len(fits) == 2 + 2 * 5  # strides 16 and 32: of all, then without each fold
    for cells, grid in zip(fits[::6], [(4, 4), (2, 2)], strict=True):
        assert [found is not None for found in cells] == [path.exists() for path in masks]
        for found, path in zip(cells, masks, strict=True):
            if found is not None:
                assert found.tolist() == mask_cells([images.read_mask(path)], grid)[0].tolist()


def faint(rng: np.random.Generator, *, bad: bool) -> Any:
    """Waves of any direction; a bad one hides a faint grating over the whole image."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    image = 128 + rng.normal(0, 20) + rng.normal(0, 3, (SIZE, SIZE))
    for a, b, at in rng.uniform((2, 2, 0), (14, 14, 6), (4, 3)):
        image += 15 * np.sin(2 * np.pi * (a * x + b * y) + at)
    if bad:
        image += 12 * np.sign(np.sin(16 * np.pi * x + rng.uniform(0, 6)))
    return np.clip(image, 0, 255).astype(np.uint8)


def test_known_anomalies_without_masks_teach_the_image_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default they are not pushed, yet the unseen ones of their kind stand out more than likelihood alone shows."""
    rng = np.random.default_rng(1)
    for kind, count in (("good", 60), ("bad", 28)):
        for i in range(count):
            save(tmp_path / f"plain/{kind}/{i}.png", faint(rng, bad=kind == "bad"))
    loops = recorded_loops(monkeypatch)
    dataset = layouts.load(tmp_path / "plain")
    auroc = {}
    for method in ("nfad-plus", "bgad-plus"):
        config = short(method=method, backbone=BOTH_STRIDES)
        trained = quick(tmp_path / "plain", tmp_path / f"{method}.bgad", config=config, known=8, test_share=0.5)
        cell = evaluate(trained, dataset)[0]
        assert cell["images"] == {"normal": 30, "anomalous": 20}
        auroc[method] = cell["metrics"]["image_auroc"]
        level = level_model(trained).image_head
        assert level is not None
        directions = [bool(level.get_buffer(f"direction{i}").any()) for i in range(3)]
        assert directions == [method == "bgad-plus"] * 3
    assert [loop.anomalies for loop in loops] == [[], []]
    assert auroc["bgad-plus"] > max(auroc["nfad-plus"], 0.5) + 0.1
    assert level is not None
    for i in range(3):  # without the directions the lead is gone
        level.get_buffer(f"direction{i}").zero_()
        level.get_buffer(f"direction_scale{i}").copy_(torch.tensor([[0.0, 1.0]]))
    assert evaluate(trained, dataset)[0]["metrics"]["image_auroc"] < auroc["bgad-plus"] - 0.1


def test_few_normals_leave_the_image_head_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The score is then that of the map, in its spreads over the training normals."""
    trained = quick(write_set(tmp_path / "few", train=8), tmp_path / "few.bgad", known=4)
    said = " ".join(capsys.readouterr().err.split())
    assert "6 normals are too few to judge an image as a whole: only its map counts" in said
    path = tmp_path / "few/test/blot/000.png"
    scores = trained.score(path)
    model = level_model(trained)
    levels = [
        level_anomaly(torch.from_numpy(log_p)[None], level.constants, "p-value")  # type: ignore[arg-type]
        for log_p, level in zip(scores.levels, model.levels, strict=True)
    ]
    weights = torch.tensor([level.weight for level in trained.card.levels])
    mean, spread = model.map_constants.tolist()
    of_map = (float(map_score(fuse(levels, weights, SIZE), model.config.score.top_share)[0]) - mean) / spread
    assert scores.parts == pytest.approx({"map": of_map, "image": 0.0, "known": 0.0}, rel=1e-3, abs=1e-3)
    assert scores.score == scores.parts["map"]
    normals = [tmp_path / "few" / i["name"] for i in trained.card.split["images"] if i["role"] == "train"]
    own = [s.score for s in trained.score_many(normals)]
    assert np.mean(own) == pytest.approx(0, abs=1e-3)
    assert np.std(own) == pytest.approx(1, abs=1e-3)


def test_which_trainings_share_their_flows(data_set: Path, tmp_path: Path) -> None:
    """Those that no anomaly pushes, of the same normals and with the same objective."""
    bare = write_set(tmp_path / "plate", masks=False)

    def key(config: Config, root: Path = bare, known: int = 4, seed: int = 0) -> str | None:
        split = make_split(layouts.load(root), seed=seed, known=known, holdout=5)
        return flow_key(config, split, torch.device("cpu"))

    nfad, bgad = short(method="nfad-plus"), short()
    keys = [key(nfad), key(bgad)]
    assert None not in keys
    assert keys[0] != keys[1]
    assert [key(nfad, known=0), key(bgad, known=0)] == keys
    assert key(short(score={"image_head_weight": 0.7, "evidence_weight": 1.0})) == keys[1]
    assert key(short(score={"evidence_weight": 0.0})) == keys[1]  # the image head needs validation normals, too
    headless: dict[str, Any] = {"image_head_strides": []}
    without = [key(short(backbone=headless, score={"evidence_weight": weight})) for weight in (0.0, 4.0)]
    assert without[0] != without[1]
    assert key(nfad, data_set) == keys[0]  # the same images, and masks that it does not look at
    pushed = [key(bgad, data_set), key(short(loss={"instance_share": 0.1})), key(short(pseudo={"method": "nsa"}))]
    assert pushed == [None] * 3
    for other in (key(bgad, seed=1), key(short(loss={"beta": 0.05})), key(short(train={"push_steps": 4}))):
        assert other not in [None, *keys]


def test_which_trainings_share_pushed_flows(data_set: Path, tmp_path: Path) -> None:
    """Those that differ in the score, or in what has no effect on the anomalies of the split."""
    bare = write_set(tmp_path / "plate", masks=False)

    def key(config: Config, root: Path = data_set, known: int = 4) -> str:
        split = make_split(layouts.load(root), seed=0, known=known, holdout=5)
        return phase_two_key(config, split, torch.device("cpu"))

    first, unmasked = key(short()), key(short(loss={"instance_share": 0.1}), bare)
    score = {"image_head_weight": 0.7, "evidence_weight": 0.0, "fusion": "probability", "top_share": 0.0}
    assert key(short(score=score)) == first
    assert key(short(loss={"instance_share": 0.1})) == first  # all of its anomalies have masks
    assert key(short(loss={"instance_share": 0.1}, pseudo={"count": 7}), bare) == unmasked  # RPAG needs masks
    others = [
        key(short(), known=3),
        key(short(loss={"tau": 0.2})),
        key(short(pseudo={"method": "nsa"})),
        key(short(train={"push_steps": 4})),
        key(short(method="nfad-plus")),
        key(short(), bare),
    ]
    assert len({first, unmasked, *others}) == 8


def test_which_trainings_of_the_papers_methods_share_their_flows(data_set: Path) -> None:
    split, nothing = (make_split(layouts.load(data_set), seed=0, known=known, holdout=5) for known in (4, 0))
    cpu = torch.device("cpu")
    names = ("nfad", "bgad-wo", "bgad", "bgad-full-push")
    pushed = dict(zip(names, (flow_key(printed_config(name), split, cpu) for name in names), strict=True))
    alone = dict(zip(names, (flow_key(printed_config(name), nothing, cpu) for name in names), strict=True))
    assert pushed["bgad"] is pushed["bgad-full-push"] is None
    assert [pushed["nfad"], pushed["bgad-wo"]] == [alone["nfad"], alone["bgad-wo"]]
    assert alone["bgad"] == alone["bgad-wo"]  # without anomalies there is the semi-pull alone
    assert len({None, *alone.values()}) == 4  # bgad-full-push pulls every normal


# --- a split file


def test_a_split_file_is_followed_to_the_letter(data_set: Path, model: Path, tmp_path: Path) -> None:
    """The split of another model makes that model again; one edited by hand makes another one."""
    same = train(
        data_set,
        tmp_path / "same.bgad",
        config=tiny_config(),
        options=TrainOptions(split=model / "split.json", device="cpu", export=False),
    )
    assert (tmp_path / "same.bgad" / FLOW).read_bytes() == (model / FLOW).read_bytes()
    assert (tmp_path / "same.bgad/split.json").read_bytes() == (model / "split.json").read_bytes()
    assert same.card.data.protocol == "multi-class"

    edited = json.loads((model / "split.json").read_text())
    moved = {"known": "unused", "calibration": "test"}
    for role, other in moved.items():
        image = next(image for image in edited["images"] if image["role"] == role)
        image["role"] = other
    edited["protocol"] = "given"
    (tmp_path / "mine.json").write_text(json.dumps(edited))
    mine = quick(data_set, tmp_path / "mine.bgad", split=tmp_path / "mine.json")
    assert (mine.card.data.known, mine.card.data.protocol) == (3, "given")
    assert len(mine.card.calibration_at().scores) == 4
    samples, left_out = select_samples(mine.card, layouts.load(data_set))
    roles = {image["name"]: image["role"] for image in edited["images"]}
    assert {s.name for s in samples} == {name for name, role in roles.items() if role == "test"}
    assert len(samples) == 15  # with a normal of the training folder that was neither trained nor calibrated on
    assert left_out == [
        "3 images left out: the model was trained or calibrated on them",
        "1 images left out: the model's split gives them no role",
    ]


@pytest.mark.usefixtures("no_training")
def test_a_split_file_does_not_go_with_options_that_it_decides(
    data_set: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ({"known": 3}, {"known": 0}, {"test_share": 0.2}):
        with pytest.raises(ConfigError, match="leave out --known and --test"):
            quick(data_set, tmp_path / "x.bgad", split=model / "split.json", **options)
    with pytest.raises(ConfigError, match=r"a false-reject rate of 0\.05 needs 19 held-out normals, there are 5"):
        quick(data_set, tmp_path / "x.bgad", split=model / "split.json", false_reject_rate=0.05)
    with pytest.raises(DataError, match=r"none\.json: cannot be read: No such file"):
        quick(data_set, tmp_path / "x.bgad", split=tmp_path / "none.json")
    command = ["train", str(data_set), "--out", str(tmp_path / "x.bgad"), "--split"]
    for more, message in (([], "none.json: cannot be read"), (["--test", "0.2"], "leave out --known and --test")):
        assert main([*command, str(tmp_path / "none.json"), *more]) == 2
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- bad input


def test_what_cannot_work_is_told_before_anything_is_read(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "validate_images", lambda *_: pytest.fail("the pictures are read"))
    tiny = tiny_config().backbone
    for reason, options in {
        r"none\.png": TrainOptions(roi=tmp_path / "none.png"),
        r"none\.json: cannot be read": TrainOptions(split=tmp_path / "none.json"),
        "device 'warp' is not usable": TrainOptions(device="warp"),
    }.items():
        with pytest.raises(BgadError, match=reason):
            train(data_set, tmp_path / "x.bgad", options=options)
    for reason, other in {
        "unknown backbone 'nosuch'": replace(tiny, name="nosuch"),
        "cannot read the weights none.pt": replace(tiny, weights="none.pt"),
    }.items():
        with pytest.raises(BgadError, match=reason):
            train(data_set, tmp_path / "x.bgad", config=replace(tiny_config(), backbone=other))


def test_masks_that_do_not_fit_are_mended_and_told(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = copy / "ground_truth/blot"
    with Image.open(truth / "000_mask.png") as mask:
        larger = mask.resize((2 * SIZE, 3 * SIZE), Image.Resampling.NEAREST)
    larger.save(truth / "000_mask.png")
    save(truth / "001_mask.png", np.zeros((SIZE, SIZE), np.uint8))
    (truth / "002_mask.png").write_text("no picture")
    (truth / "003_mask.png").unlink()
    save(truth / "999_mask.png", np.full((SIZE, SIZE), 255, np.uint8))

    loaded = layouts.load(copy)
    dataset, _ = validate_images(loaded, 0, ImageCache(SIZE))
    assert len(dataset.samples) == len(loaded.samples)
    masks = {sample.name: sample.mask for sample in dataset.samples if sample.label}
    assert [name[-7:-4] for name, mask in masks.items() if mask is None] == ["001", "002", "003"]
    notes = "\n".join(dataset.notes)
    assert "000_mask.png is 128x192 instead of 64x64: it is resized to its image" in notes
    assert "001_mask.png marks no pixel: test/blot/001.png is used as an anomaly without a mask" in notes
    assert "mask not used: " in notes
    assert "mask without an image: ground_truth/blot/999_mask.png" in notes
    assert "anomaly without a mask: test/blot/003.png" in notes

    trained = quick(copy, copy.parent / "plate.bgad", known=7)
    known = [image["name"] for image in trained.card.split["images"] if image["role"] == "known"]
    marked = sum(masks[name] is not None for name in known)
    assert f"7 known anomalies ({marked} with masks)" in capsys.readouterr().err


def test_a_mask_that_marks_a_whole_image_is_not_used(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(copy / "ground_truth/blot/004_mask.png", np.full((SIZE, SIZE), 255, np.uint8))
    samples = [sample for sample in layouts.load(copy).samples if sample.label]
    region = np.zeros((SIZE, SIZE), np.uint8)
    region[: SIZE // 2] = 255
    save(copy / "roi.png", region)
    painted = copy / "roi.png"
    for roi, ignore in ((None, None), (painted, None), (None, painted)):
        known = [replace(sample, roi=roi, ignore=ignore) for sample in samples]
        split = without_full_masks(Split([], [], known, [], {s.name: s.name for s in known}))
        assert [sample.name for sample in split.known if sample.mask is None] == ["test/blot/004.png"]
        assert "004_mask.png marks the whole image: test/blot/004.png is used as an anomaly" in capsys.readouterr().err
    for path in (copy / "ground_truth/blot").iterdir():
        save(path, np.full((SIZE, SIZE), 255, np.uint8))
    quick(copy, copy.parent / "plate.bgad", known=7, config=short(tile={"size": SIZE // 2}))
    said = capsys.readouterr().err
    assert said.count("marks the whole image") == 7
    assert "7 known anomalies have no mask and are not used for training" in said


def test_a_mask_of_another_size_marks_the_same_cells(copy: Path) -> None:
    path = copy / "ground_truth/blot/000_mask.png"
    grids = [(16, 16), (8, 8), (4, 4)]

    def cells() -> list[list[int]]:
        mask = images.read_mask(path)
        return [mask_cells([mask], grid)[0].tolist() for grid in grids]

    before = cells()
    with Image.open(path) as mask:
        larger = mask.resize((3 * SIZE, 2 * SIZE), Image.Resampling.NEAREST)
    larger.save(path)
    assert cells() == before
    assert all(before)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize(
    ("rate", "error", "message"),
    [
        (0.001, DataError, "a false-reject rate of 0.001 needs 999 held-out normals; this set has 24"),
        (0.05, DataError, "needs 19 held-out normals"),
        (0.0, ConfigError, "lies between 0 and 1"),
        (1.5, ConfigError, "lies between 0 and 1"),
    ],
)
def test_a_rate_that_cannot_be_promised_is_refused_at_once(
    data_set: Path, tmp_path: Path, rate: float, error: type[Exception], message: str
) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=message):
        quick(data_set, tmp_path / "plate.bgad", false_reject_rate=rate)
    assert time.monotonic() - began < 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("normals", "rate", "said"),
    [
        (3, None, "is 0.5 here, the lowest for 1 calibration normal: 0.05 needs 19; add normals (3 of 38 so far) and"),
        (
            40,
            None,
            "is 0.1111 here, the lowest for 8 calibration normals: 0.05 needs 19; give --false-reject-rate 0.05",
        ),
        (95, None, ""),
        (40, 0.05, ""),
    ],
)
def test_a_high_default_rate_is_warned_of(
    normals: int, rate: float | None, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = []
    for i in range(normals):
        path = tmp_path / f"{i}.png"
        path.write_bytes(f"{i}".encode())
        samples.append(Sample(path, path.name, 0))
    options = TrainOptions(false_reject_rate=rate)
    pipeline.assign_roles(layouts.Dataset("set", tmp_path, samples, "manifest"), Config(method="nfad-plus"), options)
    warnings = [record.message for record in caplog.records if "false-reject rate" in record.message]
    assert len(warnings) == bool(said)
    assert all(said in warning for warning in warnings)


def test_a_confident_rate_is_kept_by_card_scorer_and_update(data_set: Path, tmp_path: Path) -> None:
    """24 normals: half of them are as many as 0.2 with 0.9 confidence needs, 11, and one more."""
    out = tmp_path / "plate.bgad"
    detector = quick(data_set, out, false_reject_rate=0.2, confidence=0.9)
    card = model_folder.read(out).calibration_at()
    assert (len(card.scores), card.false_reject_rate, card.confidence) == (11, 0.2, 0.9)
    assert card.threshold == max(card.scores)  # on average, 0.2 would take the second highest
    assert card.map_threshold == max(card.map_maxima)
    assert (card.is_default_rate, card.guarantee) == (False, detector.calibration.guarantee())
    assert card.guarantee.startswith("With 0.9 confidence, a good part is rejected with probability at most 0.1889 ")
    with pytest.raises(ConfigError, match=r"0\.15 with a confidence of 0\.9 needs 15 held-out normals, there are 11: "):
        detector.set_rate(0.15)
    held_out = next(iter(Split.load(out / "split.json", layouts.load(data_set)).calibration))
    taught = update(out, [NewImage(held_out.path, 1)], tmp_path / "taught.bgad", config=short())
    assert len(taught.calibration.scores) == 10
    assert taught.calibration.confidence == 0.9
    assert taught.calibration.rate == pytest.approx(1 - 0.1**0.1)


def test_a_confidence_without_a_rate_asks_for_the_default_rate(data_set: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0\.05 with a confidence of 0\.9 needs 45 held-out normals; this set has 24"):
        quick(data_set, tmp_path / "plate.bgad", confidence=0.9)
    with pytest.raises(ConfigError, match=r"a confidence is at least 0\.64 and below 1, such as 0\.9, not 90"):
        quick(data_set, tmp_path / "plate.bgad", confidence=90)
    assert list(tmp_path.iterdir()) == []


def test_deep_images_set_the_bit_depth(tmp_path: Path) -> None:
    """A 12-bit camera: every image is scaled by 4095, also a dark one that would need fewer bits."""
    rng = np.random.default_rng(4)
    for i in range(12):
        grey = draw_image(rng, defect=False)[0][..., 0].astype(np.uint16)
        save(tmp_path / f"deep/good/{i}.png", grey * 16)
    trained = quick(tmp_path / "deep", tmp_path / "deep.bgad", config=short(method="nfad-plus"))
    assert trained.card.input.bits == 12
    bright = np.asarray(Image.open(tmp_path / "deep/good/0.png")).astype(np.uint16)
    dark = bright // 8  # needs 9 bits
    alone = trained.score(dark)
    eighth = trained.score((bright // 8 / 4095).astype(np.float32))
    assert alone.score == pytest.approx(eighth.score, rel=1e-4)
    for a, b in zip(alone.levels, eighth.levels, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


# --- where it is written


@pytest.mark.usefixtures("no_training")
def test_an_existing_model_is_kept(data_set: Path, model: Path, tmp_path: Path) -> None:
    before = (model / "card.json").read_bytes()
    with pytest.raises(OutputError, match=r"exists already: choose another --out, or add --overwrite"):
        quick(data_set, model)
    assert (model / "card.json").read_bytes() == before
    (tmp_path / "photos").mkdir()
    with pytest.raises(OutputError, match="is not a model folder"):
        quick(data_set, tmp_path / "photos", overwrite=True)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write to"):
        quick(data_set, tmp_path / "file/plate.bgad")


def test_overwriting_on_request(data_set: Path, model: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(model, tmp_path / "plate.bgad"))
    quick(data_set, out, known=2, overwrite=True)
    assert model_folder.read(out).training.steps == 6


def stop_at(step: int, stop: StopRequest) -> Callable[[TrainingLoop, int], LogRow]:
    """A step function that asks the loop to stop during one of the steps."""
    run_step = TrainingLoop.run_step

    def stopping(self: TrainingLoop, number: int) -> LogRow:
        if number == step:
            stop.request()
        return run_step(self, number)

    return stopping


def test_an_unfinished_run_is_neither_lost_nor_mixed_up(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = tmp_path / "plate.bgad", tmp_path / "plate.bgad.work"
    options: dict[str, Any] = {"known": 4, "memory_gb": 1e-6}
    with pytest.MonkeyPatch.context() as patch:
        stop = StopRequest()
        patch.setattr(TrainingLoop, "run_step", stop_at(4, stop))
        with pytest.raises(KeyboardInterrupt):
            quick(data_set, out, **options, stop=stop)
    assert f"what was learnt is in {work}: go on with the same command and --resume" in capsys.readouterr().err
    assert not out.exists()
    saved = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    assert work / CHECKPOINT in saved

    with pytest.raises(OutputError, match="holds an unfinished run: go on with --resume, or delete the folder"):
        quick(data_set, out, **options)
    for other in (
        {"config": short(seed=1)},
        {"config": short(loss={"tau": 0.3})},
        {"known": 3},
        {"false_reject_rate": 0.1},
    ):
        with pytest.raises(ModelError, match="belongs to a run with other data or settings"):
            quick(data_set, out, **options | other, resume=True)
    assert {path: path.read_bytes() for path in work.rglob("*") if path.is_file()} == saved  # nothing was touched

    quick(data_set, out, **options, resume=True)
    assert "going on from step 5 of 6" in capsys.readouterr().err
    whole = tmp_path / "whole.bgad"
    quick(data_set, whole, **options)
    assert (out / FLOW).read_bytes() == (whole / FLOW).read_bytes()


def test_other_masks_are_other_data(copy: Path) -> None:
    out = copy.parent / "plate.bgad"
    with pytest.MonkeyPatch.context() as patch:
        stop = StopRequest()
        patch.setattr(TrainingLoop, "run_step", stop_at(4, stop))
        with pytest.raises(KeyboardInterrupt):
            quick(copy, out, known=7, stop=stop)
    for mask in (copy / "ground_truth/blot").iterdir():
        save(mask, np.full((SIZE, SIZE), 255, np.uint8))
    with pytest.raises(ModelError, match="other data or settings"):
        quick(copy, out, known=7, resume=True)


def test_resuming_what_was_never_begun_is_beginning(data_set: Path, tmp_path: Path) -> None:
    quick(data_set, tmp_path / "plate.bgad", known=4, resume=True)
    assert model_folder.read(tmp_path / "plate.bgad").training.steps == 6


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["fsync", "posix_fallocate"])
def test_a_full_disk_is_one_line_and_exit_code_2(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    (tmp_path / "recipe.toml").write_text(to_toml(short()))
    monkeypatch.setattr(os, where, _full, raising=False)
    out = tmp_path / "plate.bgad"
    arguments = ["train", str(data_set), "--out", str(out), "--config", str(tmp_path / "recipe.toml")]
    assert main([*arguments, "--known", "4", "--device", "cpu", "--memory", "0.000001"]) == 2
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if "error:" in line]
    assert len(errors) == 1
    assert "No space left on device" in errors[0]
    assert "Traceback" not in said
    assert not out.exists()


def test_a_folder_in_the_way_is_not_deleted(data_set: Path, tmp_path: Path) -> None:
    other = tmp_path / "x.bgad.work"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    with pytest.raises(OutputError, match="is in the way and is not ours"):
        train(
            data_set,
            tmp_path / "x.bgad",
            config=tiny_config(),
            options=TrainOptions(known=4, device="cpu", export=False),
        )
    assert (other / "precious.txt").read_text() == "mine"


def test_the_map_is_measured_on_normals_that_the_flows_have_not_learnt(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """19 normals are few: with a lower limit, a third of them is for validation."""
    monkeypatch.setattr(training_set_module, "MIN_TRAINING_NORMALS", 16)
    loops = recorded_loops(monkeypatch)
    detector = train(
        data_set,
        tmp_path / "plate.bgad",
        config=tiny_config(),
        options=TrainOptions(known=4, device="cpu", export=False),
    )
    validation = (0, 4, 7, 11, 14, 18)
    assert [loop.data.normals.index.tolist() for loop in loops] == [[i for i in range(19) if i not in validation]]
    names = [i["name"] for i in detector.card.split["images"] if i["role"] == "train"]
    scores = [detector.score(data_set / names[i]) for i in validation]
    of_map = np.array([s.parts["map"] for s in scores])
    assert (of_map.mean(), of_map.std()) == pytest.approx((0, 1), abs=1e-3)
    assert np.mean([s.map.mean() for s in scores]) == pytest.approx(detector.card.map.mean, rel=1e-3)


def test_a_second_training_to_one_place_is_refused(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, work = tmp_path / "plate.bgad", tmp_path / "plate.bgad.work"
    with output_files.locked(work, "training"):
        (work / "run.json").write_text("{}")
        (work / CHECKPOINT).touch()
        for resume in (False, True):
            with pytest.raises(OutputError, match=r"plate\.bgad\.work is in use by another training: wait for it, or "):
                quick(data_set, out, known=4, resume=resume)
        assert (work / "run.json").read_text() == "{}"
        (work / CHECKPOINT).unlink()
    quick(data_set, out, known=4)
    assert not work.exists()


def test_only_scores_are_kept_of_normals_that_calibrate(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[Any]] = []
    most: list[int] = []

    def prepared(*given: Any) -> Any:
        training_set = build_training_set(*given)

        def score(model: Any, samples: list[Any]) -> Any:
            alive.clear()
            for _ in samples:
                anomaly = np.zeros((SIZE, SIZE), np.float32)
                alive.append(weakref.ref(anomaly))
                yield SampleScore(Output(float(len(alive)), np.zeros(3, np.float32), anomaly), float(len(alive)))
                del anomaly
                most.append(sum(ref() is not None for ref in alive))

        return replace(training_set, score=score)

    monkeypatch.setattr(pipeline, "build_training_set", prepared)
    trained = quick(data_set, tmp_path / "plate.bgad", known=4)
    assert trained.card.calibration_at().scores == pytest.approx((1, 2, 3, 4, 5), abs=1e-3)
    assert trained.card.calibration_at().map_maxima == pytest.approx((1, 2, 3, 4, 5), abs=1e-3)
    assert max(most[-5:]) <= 1


def test_the_graph_is_compared_on_images_that_are_read_one_at_a_time(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[Any]] = []
    most: list[int] = []
    read = ImageCache.read

    def watched(self: ImageCache, sample: Sample) -> Any:
        image = read(self, sample)
        alive.append(weakref.ref(image))
        most.append(sum(ref() is not None for ref in alive))
        return image

    checked = export.checked_graph

    def recorded(*given: Any, **options: Any) -> Any:
        alive.clear()
        most.clear()
        return checked(*given, **options)

    monkeypatch.setattr(export, "checked_graph", recorded)
    monkeypatch.setattr(ImageCache, "read", watched)
    quick(data_set, tmp_path / "plate.bgad", known=4, export=True)
    assert len(most) == 23  # known anomalies, test images and calibration normals
    assert max(most) <= 2 * export.BATCH
    assert (tmp_path / "plate.bgad/model.onnx").exists()


def test_what_lies_far_from_the_region_is_not_learnt(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a grid of 8 x 8, the left half and the column beside it."""
    loops = recorded_loops(monkeypatch)
    left = np.zeros((SIZE, SIZE), np.uint8)
    left[:, : SIZE // 2] = 255
    quick(data_set, tmp_path / "plate.bgad", known=4, roi=save(tmp_path / "left.png", left))
    trained = loops[0].trained_positions
    assert [sorted({int(i) % 8 for i in trained[0]}), len(trained[0])] == [[0, 1, 2, 3, 4], 40]
    assert len(trained[2]) == 4 * 3


# --- real images


def test_real_screws(real_data: Path, tmp_path: Path) -> None:
    """A handful of MVTec's screws, far too few to be good: the way through must work and the figures make sense."""
    source, root = real_data / "mvtec/screw", tmp_path / "screw"
    kinds = sorted(path.name for path in (source / "test").iterdir() if path.name != "good")
    wanted = [f"train/good/{path.name}" for path in sorted((source / "train/good").iterdir())[:26]]
    wanted += [f"test/good/{path.name}" for path in sorted((source / "test/good").iterdir())[:8]]
    for kind in kinds:
        names = [path.name for path in sorted((source / "test" / kind).iterdir())[:3]]
        wanted += [f"test/{kind}/{name}" for name in names]
        wanted += [f"ground_truth/{kind}/{Path(name).stem}_mask.png" for name in names]
    for name in wanted:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, root / name)

    config = tiny_config(backbone={"size": 128}, train={"steps": 40, "push_steps": 20})
    trained = train(
        root, tmp_path / "screw.bgad", config=config, options=TrainOptions(known=5, device="cpu", export=False)
    )
    cell, _, _ = evaluate(trained, layouts.load(root))
    assert 0 <= cell["metrics"]["image_auroc"] <= 1
    assert cell["metrics"]["pixel_auroc"] > 0.75
    good: list[Any] = sorted((root / "test/good").iterdir())
    p_values = [scores.p_value for scores in trained.score_many(good)]
    assert 1 / 6 < np.mean(p_values) < 0.95  # 1/6 each if all unseen screws looked strange, 7/12 on average
