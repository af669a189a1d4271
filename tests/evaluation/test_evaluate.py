from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

import bgad
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.config import to_toml
from bgad.data import layouts
from bgad.evaluation import gallery, measure
from bgad.evaluation.evaluate import evaluate, select_samples
from bgad.evaluation.report import contents
from bgad.inference.torch_engine import Detector
from bgad.io import images
from tests.conftest import draw_image, tiny_config, write_set

KEYS = {"data", "category", "protocol", "known_class", "subset", "method", "known", "seed", "metrics", "seconds"}
METRICS = ["image_auroc", "image_ap", "image_f1_max", "pixel_auroc", "pixel_ap", "pro"]


@pytest.fixture(scope="module")
def detector(model: Path) -> Detector:
    return Detector.load(model, "cpu")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A recipe with too few steps to learn much, for tests that only need a model."""
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(tiny_config(train={"steps": 4, "push_steps": 2}, pseudo={"count": 2})))
    return str(path)


def plain_set(root: Path, good: int = 24, bad: int = 6) -> Path:
    rng = np.random.default_rng(23)
    for folder in ("good", "bad/dent", "masks"):
        (root / folder).mkdir(parents=True)
    for i in range(good):
        Image.fromarray(draw_image(rng, defect=False)[0]).save(root / "good" / f"{i}.png")
    for i in range(bad):
        image, mask = draw_image(rng, defect=True)
        Image.fromarray(image).save(root / "bad/dent" / f"{i}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i}.png")
    return root


def results(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    stored = json.loads((out / "results.json").read_text(), parse_constant=pytest.fail)
    (cell,) = stored["cells"]
    assert set(cell) >= KEYS
    assert list(cell["metrics"]) == METRICS
    assert set(cell["seconds"]) == {"train", "score"}
    assert cell["seconds"]["train"] > 0
    assert cell["seconds"]["score"] > 0
    return cell, stored["images"]


def test_command_writes_figures_and_report(
    model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "place"
    assert main(["evaluate", str(model), str(data_set), "--out", str(out)]) == 0
    said = capsys.readouterr()
    cell, rows = results(out)
    assert {key: cell[key] for key in ("category", "protocol", "method", "known", "seed")} == {
        "category": "plate",
        "protocol": "multi-class",
        "method": "bgad-plus",
        "known": 4,
        "seed": 0,
    }
    assert cell["data"] == data_set.parent.name
    assert len(rows) == 14
    assert f"{cell['metrics']['image_auroc']:.3f}" in said.out
    assert "4 images left out" in said.err
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "results.json"]

    page = (out / "report.html").read_text(encoding="utf-8")
    parts = ["Summary", "Image scores", "ROC, images", "PRO, defect areas", "Log-likelihood by level"]
    parts += ["stride 4", "stride 8", "stride 16", "normal boundary", "abnormal boundary", "threshold"]
    parts += ["By defect class", "blot", "False-reject rate and misses", "Worst mistakes", "Gallery"]
    parts += ["anomaly map", "marked defect", "A good part is rejected with probability at most"]
    assert [part for part in parts if part not in page] == []
    assert page.count("data:image/jpeg;base64,") >= 3 * 4
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "<script" not in page


def test_figures_are_those_of_the_scores(detector: Detector, data_set: Path) -> None:
    cell, section, rows = evaluate(detector, layouts.load(data_set))
    labels, scores = [row["label"] for row in rows], [row["score"] for row in rows]
    assert cell["images"] == {"normal": labels.count(0), "anomalous": labels.count(1)} == {"normal": 10, "anomalous": 4}
    assert cell["metrics"]["image_auroc"] == pytest.approx(roc_auc_score(labels, scores))
    assert cell["metrics"]["image_ap"] == pytest.approx(average_precision_score(labels, scores))
    truth, heat = pixels(detector, data_set, rows)
    assert cell["metrics"]["pixel_auroc"] == pytest.approx(roc_auc_score(truth, heat), abs=1e-5)
    assert cell["metrics"]["pixel_ap"] == pytest.approx(average_precision_score(truth, heat), abs=1e-4)
    assert 0.9 < cell["metrics"]["pro"] <= 1

    for row, shown in zip(rows, section.images, strict=True):
        expected = detector.score(data_set / row["name"])
        assert sum(row["parts"].values()) == pytest.approx(row["score"], rel=1e-5, abs=1e-5)
        assert (row["reason"] or "", row["region"]) == (expected.reason, expected.region and list(expected.region))
        assert bool(row["reason"]) == row["is_anomaly"]
        assert (shown.parts, shown.reason, shown.region) == (row["parts"], row["reason"], row["region"])

    assert section.threshold == detector.threshold
    assert [c.defect for c in section.classes] == ["blot"]
    assert section.classes[0].images == 4
    assert sum(len(r.thumbnail or b"") > 0 for r in section.images) == 14
    assert all((r.mask_outline is not None) == bool(r.label) for r in section.images)
    for level in section.levels:
        cells = {"stride 4": 8, "stride 8": 8, "stride 16": 4}[level.title]  # stride 4 is averaged
        assert sum(level.normal) == 10 * cells**2
        assert 0 < sum(level.anomalous) < 4 * cells**2
    for rate in section.rates:
        assert rate.supported == (rate.rate >= 1 / 6 - 1e-9)
        if rate.supported:
            normal = [s for s, label in zip(scores, labels, strict=True) if not label]
            assert rate.false_rejects == np.mean(np.array(normal) > rate.threshold)


def pixels(detector: Detector, root: Path, rows: list[dict[str, Any]], step: int = 1) -> tuple[Any, Any]:
    truth, heat = [], []
    for row in rows:
        found = detector.score(root / row["name"]).map
        stem = Path(row["name"]).stem
        mask = images.read_mask(root / f"ground_truth/blot/{stem}_mask.png") if row["label"] else found < -np.inf
        truth.append(mask[::step, ::step].ravel())
        heat.append(found[::step, ::step].ravel())
    return np.concatenate(truth), np.concatenate(heat)


def test_large_sets_are_measured_on_a_grid_of_pixels(
    detector: Detector, data_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "MAX_MAP_PIXELS", 14 * 64 * 64 // 8)
    cell, section, rows = evaluate(detector, layouts.load(data_set))
    assert "one in 3 rows" in " ".join(section.notes)
    truth, heat = pixels(detector, data_set, rows, step=3)
    assert cell["metrics"]["pixel_auroc"] == pytest.approx(roc_auc_score(truth, heat), abs=1e-5)


def test_wrong_decisions_are_shown(
    model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that separates perfectly may still reject normals; images that are all good have false rejects, too."""
    good = tmp_path / "fresh/good"
    good.mkdir(parents=True)
    rng = np.random.default_rng(77)
    for i in range(12):
        image, _ = draw_image(rng, defect=i < 9)  # nine defects that somebody has labelled good
        Image.fromarray(image).save(good / f"{i}.png")
    assert main(["evaluate", str(model), str(tmp_path / "fresh"), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    cell, rows = results(tmp_path / "out")
    rejected = sum(row["is_anomaly"] for row in rows)
    assert rejected >= 9
    assert cell["decisions"]["false_rejects"]["count"] == rejected
    low, high = cell["decisions"]["false_rejects"]["interval"]
    assert f"{rejected} of 12 ({100 * rejected / 12:.1f} %)" in said.out
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in said.out
    assert "no images" in said.out  # misses
    warning = f"{rejected} of 12 normals are rejected, more than the false-reject rate of 16.7 % allows"
    assert f"warning: {warning}" in said.err
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert warning in page
    assert f"({100 * low:.1f} to {100 * high:.1f} %)" in page

    assert main(["evaluate", str(model), str(data_set), "--out", str(tmp_path / "second")]) == 0
    cell, _ = results(tmp_path / "second")
    decisions = cell["decisions"]
    assert decisions["misses"]["of"] == 4
    assert f"{decisions['misses']['count']} of 4" in capsys.readouterr().out


def test_no_masks_give_null(model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = write_set(tmp_path / "bare", masks=False)
    assert main(["evaluate", str(model), str(bare), "--out", str(tmp_path / "out")]) == 0
    cell, rows = results(tmp_path / "out")
    assert [cell["metrics"][name] for name in METRICS[3:]] == [None] * 3
    assert all(isinstance(cell["metrics"][name], float) for name in METRICS[:3])
    assert len(rows) == 14  # the same images as in the model's data set: known ones are recognised
    assert "No masks" in (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "–" in capsys.readouterr().out


def test_odd_data_is_named(detector: Detector, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_set(tmp_path / "odd")
    left = [s.name for s in select_samples(detector.card, layouts.load(root))[0] if s.label]
    first, second, third = (root / "ground_truth/blot" / f"{Path(name).stem}_mask.png" for name in left[:3])
    with Image.open(first) as mask:
        mask.resize((32, 128)).save(first)
    Image.new("L", (64, 64)).save(second)
    third.write_bytes(b"x")
    Image.new("L", (64, 64), 255).save(first.with_name("999_mask.png"))
    (root / "test/good/zz[red].png").touch()
    cell, section, rows = evaluate(detector, layouts.load(root))
    said = capsys.readouterr().err
    for message in (
        f"{first.name} is 32x128 instead of 64x64: it is resized",
        f"{second.name} marks no pixel",
        f"{third.name}: not an image",
        "mask without an image: ground_truth/blot/999_mask.png",
        "zz[red].png: is empty",
    ):
        assert message in said
        assert any(message in note for note in section.notes)
    assert cell["images"] == {"normal": 10, "anomalous": 4}
    assert cell["metrics"]["pixel_auroc"] > 0.9  # two of four anomalies still have masks
    assert "zz[red].png" not in str(rows)


def test_seen_images_are_left_out_wherever_they_are(
    model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = {i["name"]: i["role"] for i in bgad.load(model, "cpu").card.split["images"]}
    other = tmp_path / "other"
    (other / "ok").mkdir(parents=True)
    (other / "bad").mkdir()
    for number, (name, role) in enumerate(roles.items()):
        if role != "test":
            shutil.copy(data_set / name, other / ("bad" if "blot" in name else "ok") / f"renamed{number}.png")
    command = ["evaluate", str(model), str(other), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "trained or calibrated on all of these images" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

    image, _ = draw_image(np.random.default_rng(99), defect=False)
    Image.fromarray(image).save(other / "ok/new.png")
    fresh = next(name for name, role in roles.items() if role == "test" and "blot" in name)
    shutil.copy(data_set / fresh, other / "bad/fresh.png")
    assert main(command) == 0
    _, rows = results(tmp_path / "out")
    assert [row["name"] for row in rows] == ["bad/fresh.png", "ok/new.png"]
    assert "28 images left out" in capsys.readouterr().err


def test_only_training_data(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, _ = draw_image(np.random.default_rng(5), defect=False)
    (tmp_path / "train/good").mkdir(parents=True)
    Image.fromarray(image).save(tmp_path / "train/good/a.png")
    assert main(["evaluate", str(model), str(tmp_path)]) == 2
    assert "belongs to the training split" in capsys.readouterr().err


def test_plain_layout_with_held_out_normals(tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = plain_set(tmp_path / "parts"), tmp_path / "m.bgad"
    train = ["train", str(data), "--config", recipe, "--out", str(model), "--known", "2", "--no-export"]
    assert main([*train, "--test", "0.3"]) == 0
    assert main(["evaluate", str(model), str(data), "--out", str(tmp_path / "out")]) == 0
    cell, rows = results(tmp_path / "out")
    assert (cell["known"], cell["category"], cell["images"]) == (2, "parts", {"normal": 7, "anomalous": 4})
    assert {row["defect"] for row in rows} == {"good", "dent"}
    split = json.loads((model / "split.json").read_text())
    assert sorted(row["name"] for row in rows) == sorted(
        image["name"] for image in split["images"] if image["role"] == "test"
    )
    capsys.readouterr()

    assert main([*train, "--overwrite"]) == 0  # no normal is held out
    assert main(["evaluate", str(model), str(data), "--out", str(tmp_path / "out"), "--overwrite"]) == 0
    cell, _ = results(tmp_path / "out")
    assert cell["images"] == {"normal": 0, "anomalous": 4}
    assert cell["metrics"]["image_auroc"] is None
    assert "no normal images to compare with" in capsys.readouterr().err


def test_each_image_is_decoded_once(
    detector: Detector, data_set: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[Path]
) -> None:
    """The thumbnails of the report are made of the images that were decoded for scoring."""
    monkeypatch.setattr(gallery, "SIZE", 4)
    monkeypatch.setattr(gallery, "WORST", 2)
    monkeypatch.setattr(contents.worst, "__defaults__", (2,))
    dataset = layouts.load(data_set)
    _, section, rows = evaluate(detector, dataset)
    tested = {row["name"] for row in rows}
    assert sorted(p for p in decoded if "ground_truth" not in p.parts) == sorted(data_set / name for name in tested)
    shown = {image.name: image.thumbnail for image in section.images if image.thumbnail is not None}
    false_rejects, misses = contents.worst(section.images)
    assert {image.name for image in [*false_rejects, *misses]} <= set(shown)
    assert 4 <= len(shown) < len(tested)
    for name, thumbnail in shown.items():
        small = np.asarray(Image.open(io.BytesIO(thumbnail)).convert("RGB"), int)
        assert np.abs(small - images.read(data_set / name)).mean() < 4  # JPEG


def test_manifest(data_set: Path, tmp_path: Path, recipe: str) -> None:
    root = tmp_path / "set"
    shutil.copytree(data_set, root)
    rows = []
    for sample in layouts.load(root).samples:
        mask = sample.mask.relative_to(root).as_posix() if sample.mask else ""
        row = {"path": sample.name, "label": sample.label, "mask": mask, "class": sample.defect if mask else ""}
        rows.append({**row, "split": sample.split})
    manifest = root / "list.csv"
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    manifest.write_text("\n".join(lines))
    model = str(tmp_path / "m.bgad")
    assert main(["train", str(manifest), "--config", recipe, "--out", model, "--known", "3", "--no-export"]) == 0
    assert main(["evaluate", model, str(manifest), "--out", str(tmp_path / "out")]) == 0
    cell, found = results(tmp_path / "out")
    assert (cell["data"], cell["category"], cell["known"]) == ("list", "list", 3)
    assert cell["images"] == {"normal": 10, "anomalous": 5}
    assert all(row["name"].startswith("test/") for row in found)
    assert None not in cell["metrics"].values()


def test_other_results_are_not_replaced(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    other = shutil.copytree(data_set, tmp_path / "other")
    for data, folder in ((data_set, "plate-evaluation"), (other, "plate-other-evaluation")):
        assert main(["evaluate", str(model), str(data)]) == 0
        assert (tmp_path / folder / "results.json").is_file()
    assert main(["evaluate", str(model), "other"]) == 0  # the same data by another path

    command = ["evaluate", str(model), str(data_set), "--out", "plate-other-evaluation"]
    before = (tmp_path / "plate-other-evaluation/results.json").read_bytes()
    capsys.readouterr()
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        f"plate-other-evaluation holds the results on {other}: give another --out, or --overwrite to replace them"
    )
    again = tmp_path / "again.bgad"
    card, files = model_folder.read_all(model)
    model_folder.write(again, replace(card, name="again"), files)
    assert main(["evaluate", str(again), str(other), "--out", "plate-other-evaluation"]) == 2
    assert "holds the results of another model: " in capsys.readouterr().err
    assert (tmp_path / "plate-other-evaluation/results.json").read_bytes() == before
    assert main([*command, "--overwrite"]) == 0

    results_file = tmp_path / "plate-evaluation/results.json"
    for text in ("{}", "[]", "no JSON", '{"subject": 3}'):
        results_file.write_text(text)
        assert main(["evaluate", str(model), str(data_set)]) == 2
        assert "holds results that are not of `bgad evaluate`: " in capsys.readouterr().err


def test_full_disk_leaves_nothing_half_written(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_disk(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert main(["evaluate", str(model), str(data_set), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("bgad: error: cannot write ")
    assert "No space left on device" in line
    assert list((tmp_path / "out").iterdir()) == []


def test_place_is_checked_before_scoring(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bgad.inference.load.load", lambda *_, **__: pytest.fail("the model was loaded"))
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "below"):
        assert main(["evaluate", str(model), str(data_set), "--out", str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("file is not a folder")
