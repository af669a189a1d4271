from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from bgad import __version__
from bgad.artifact import folder as model_folder
from bgad.artifact.card import FORMAT
from bgad.calibration import require_supported
from bgad.cli.main import main
from bgad.config import PRESETS, from_dict, read_toml, to_toml
from bgad.data.datasets import registry
from bgad.data.protocols import Case, protocol_split
from bgad.errors import ConfigError
from bgad.inference.onnx_engine import Runtime
from bgad.io import images
from bgad.model import backbone
from tests.conftest import draw_image, tiny_config, write_set

COMMANDS = ("demo", "train", "predict", "evaluate", "export", "pseudo", "info", "benchmark", "compare", "datasets")


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(tiny_config(train={"steps": 4, "push_steps": 2}, pseudo={"count": 2})))
    return str(path)


def tree(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in root.rglob("*") if path.is_file()}


def fails(capsys: pytest.CaptureFixture[str], tmp_path: Path, *command: object) -> str:
    """The one line of a command that must fail with 2 and leave no file behind."""
    before = tree(tmp_path)
    assert main([str(word) for word in command]) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert said.out == ""
    assert lines[-1].startswith("bgad: error: ")
    assert sum("error" in line for line in lines) == 1
    assert "Traceback" not in said.err
    assert tree(tmp_path) == before
    return lines[-1]


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bgad", *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def test_help_explains_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    overview = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command}" in overview
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert "examples:" in text or "what DATA may be:" in text
        assert all(line.split("  ")[-1].strip() for line in text.splitlines() if line.startswith("  --"))


def test_help_of_train_lists_the_names_of_labels(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert {"ok", "io", "gut", "bueno", "ng", "nok", "nio", "ausschuss", "mauvais"} <= set(words)


def test_module_and_version() -> None:
    found = run("--version")
    assert (found.returncode, found.stdout) == (0, f"bgad {__version__}\n")


def test_torch_is_loaded_only_by_those_who_need_it(model: Path) -> None:
    code = "import sys; from bgad.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for command in (["info", str(model)], ["info", "--recipe"], ["predict", str(model), "nothing*.png"]):
        found = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, timeout=60)
        assert found.returncode == 0


def test_missing_torch_is_one_line(model: Path, data_set: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from bgad.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "predict", str(model), str(data_set), "--engine", "torch"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert found.stderr == "bgad: error: this command needs torch, which is not installed: pip install 'bgad[train]'\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "required: COMMAND; see bgad --help"),
        (["frob"], "invalid choice: 'frob'"),
        (["train"], "required: DATA; see bgad train --help"),
        (["train", "DATA", "--frobnicate"], "unrecognized arguments: --frobnicate; see bgad train --help"),
        (["info", "--recipe", "--json"], "leave out --recipe"),
        (["info", "DATA", "--preset", "paper"], "leave out --preset"),
        (["train", "DATA", "--over"], "unrecognized arguments: --over"),
        (["train", "DATA", "--test", "nan"], "'nan' must be a number, 0 or more and less than 1"),
        (["train", "DATA", "--test", "1"], "'1' must be a number, 0 or more and less than 1"),
        (["train", "DATA", "--known", "-1"], "'-1' must be a whole number, 0 or more"),
        (["train", "DATA", "--known", "1.5"], "'1.5' must be a whole number"),
        (["train", "DATA", "--max-unreadable", "-1"], "--max-unreadable"),
        (["train", "DATA", "--memory", "x"], "'x' must be a number"),
        (["train", "DATA", "--seed", "9" * 30], "--seed"),
        (["train", "DATA", "--size", "31"], "backbone.size must be a multiple of 16"),
        (["train", "DATA", "--method", "x"], "invalid choice: 'x'"),
        (
            ["train", "DATA", "--method", "bgad", "--preset", "default"],
            "bgad cannot be trained by the preset default: use paper-fast or paper",
        ),
        (
            ["train", "DATA", "--method", "bgad-plus", "--preset", "paper"],
            "bgad-plus cannot be trained by the preset paper: use default",
        ),
        (
            ["train", "DATA", "--method", "bgad", "--set", "flow.blocks=6"],
            "flow.blocks is 8 in the paper's bgad, not 6: leave it, or change it in bgad-plus or nfad-plus",
        ),
        (
            ["train", "DATA", "--method", "nfad", "--set", "backbone.image_head_strides=[16]"],
            "backbone.image_head_strides is () in the paper's nfad, not (16,)",
        ),
        (["train", "DATA", "--set", "method=bgad"], "--set cannot change the method"),
        (
            ["train", "DATA", "--method", "bgad", "--backbone", "lite0", "--roi", "FILE"],
            "bgad crops images (backbone.crop), so it takes no region of interest: train bgad-plus",
        ),
        (["train", "DATA", "--set", "loss.tua=1"], "unknown key loss.tua in --set; did you mean loss.tau?"),
        (["train", "DATA", "--set", "loss"], "--set takes KEY=VALUE"),
        (["train", "DATA", "--set", "loss.tau=[red]"], "loss.tau in --set must be of type float, not '[red]'"),
        (["train", "DATA", "--config", "gone.toml"], "cannot read gone.toml"),
        (["train", "gone"], "gone: no such folder or manifest; as the name of a data set: unknown data set 'gone'"),
        (
            ["train", "mpdd/tubes", "--root", "DATA"],
            "mpdd/tubes: no such folder or manifest; as the name of a data set",
        ),
        (["pseudo", "mpdd/tubes", "--root", "DATA"], "MPDD was not found"),
        (["train", "DATA", "--false-reject-rate", "2"], "lies between 0 and 1"),
        (["train", "DATA", "--false-reject-rate", "0.001"], "needs 999 held-out normals; this set has 24"),
        (["train", "DATA", "--known", "99"], "99 known anomalies asked for"),
        (["train", "DATA", "--device", "frob"], "device 'frob' is not usable here"),
        (["train", "DATA", "--device", "meta"], "device 'meta' is not usable here"),
        (["train", "DATA", "--backbone", "frob"], "unknown backbone 'frob'"),
        (["train", "DATA", "--weights", "gone.pth"], "cannot read the weights gone.pth"),
        (["train", "DATA", "--out", "FILE"], "exists already"),
        (["train", "DATA", "--out", "FILE", "--overwrite"], "is not a model folder: it will not be overwritten"),
        (["train", "DATA", "--out", "FILE/x.bgad"], "cannot write to"),
        (["train", "DATA", "--tensorboard", "FILE/tb"], "is not a folder"),
        (["predict", "MODEL"], "required: PATH; see bgad predict --help"),
        (["predict", "MODEL", "DATA", "--false-reject-rate", "x"], "invalid float value: 'x'"),
        (["predict", "MODEL", "DATA", "--false-reject-rate", "0.01"], "needs 99 held-out normals, there are 5"),
        (["predict", "MODEL", "DATA", "--out", "FILE"], "is not a folder"),
        (["predict", "MODEL", "DATA", "--out", "FILE/sub"], "is not a folder"),
        (["predict", "DATA", "DATA"], "is not a model folder"),
        (["predict", "gone.bgad", "DATA"], "gone.bgad does not exist"),
        (["evaluate", "MODEL", "gone"], "gone: no such folder or manifest"),
        (["evaluate", "FILE", "DATA"], "is not a folder"),
        (["pseudo", "DATA", "--count", "0"], "'0' must be a whole number, 1 or more"),
        (["pseudo", "DATA", "--known", "0"], "with masks, and there are none"),
        (["pseudo", "DATA", "--out", "FILE/x.png"], "is not a folder"),
        (["info"], "give a MODEL, or --recipe"),
        (["info", "gone"], "gone does not exist"),
        (["demo", "--methods", "bgad,frob"], "unknown method 'frob': choose from"),
        (["demo", "--seeds", "0"], "'0' must be a whole number, 1 or more"),
        (["demo", "--out", "FILE"], "is not a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_words(
    command: list[str],
    message: str,
    model: Path,
    data_set: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    places = {"DATA": str(data_set), "MODEL": str(model), "FILE": str(tmp_path / "file")}
    for name, place in places.items():
        command = [word.replace(name, place) for word in command]
    assert message in fails(capsys, tmp_path, *command)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 27, 99, 299])
def test_the_rate_that_a_refusal_proposes_is_taken(n: int) -> None:
    with pytest.raises(ConfigError, match=r"ask for [\d.]+ or more") as caught:
        require_supported(n, 1e-5)
    proposed = float(str(caught.value).split("ask for ")[1].split()[0])
    assert require_supported(n, proposed) == 1
    assert proposed < 1 / (n + 1) + 1e-4


def leak_bad(root: Path) -> None:
    shutil.copy(root / "test/blot/003.png", root / "train/good/zz.png")


def leak_good(root: Path) -> None:
    shutil.copy(root / "test/good/003.png", root / "train/good/zz.png")


def keep_normals(count: int) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in sorted((root / "train/good").iterdir())[count:]:
            path.unlink()

    return change


def copies(root: Path) -> None:
    first = root / "train/good/000.png"
    for path in (root / "train/good").iterdir():
        if path != first:
            shutil.copy(first, path)


def break_many(root: Path) -> None:
    for path in sorted((root / "train/good").iterdir())[:11]:
        path.write_bytes(b"broken")


def no_folders(root: Path) -> None:
    for path in root.iterdir():
        shutil.rmtree(path)


def one_level_up(root: Path) -> None:
    shutil.copytree(root, root / "plate")
    for name in ("train", "test", "ground_truth"):
        shutil.rmtree(root / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (leak_bad, "leakage: train/good/zz.png is the same image as test/blot/003.png"),
        (leak_good, "leakage: train/good/zz.png is the same image as test/good/003.png"),
        (keep_normals(0), "no normal images to train on"),
        (keep_normals(2), "2 normal images are too few"),
        (copies, "1 normal images are too few"),
        (break_many, "(more than --max-unreadable 10), the first: "),
        (no_folders, "found no folders"),
        (one_level_up, "give one of them: plate"),
    ],
)
def test_data_that_cannot_be_learnt_from(
    change: Callable[[Path], None],
    message: str,
    tmp_path: Path,
    recipe: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(backbone, "build", lambda *_: pytest.fail("the work has begun"))
    root = write_set(tmp_path / "set")
    change(root)
    command = ("train", root, "--config", recipe, "--out", tmp_path / "m.bgad")
    assert message in fails(capsys, tmp_path, *command)
    assert not list(tmp_path.glob("*m.bgad*"))


def test_bad_config_files(tmp_path: Path, data_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    for content, message in (
        (b"[loss]\ntua = 1", "unknown key loss.tua in"),
        (b"x = [", "is not valid TOML"),
        (b"\xff\xfe", "cannot read"),
        (b"[loss]\ntau = 'much'", "must be of type float"),
        (b"seed = -1", "seed must be 0 or more"),
    ):
        path.write_bytes(content)
        assert message in fails(capsys, tmp_path, "train", data_set, "--config", path)


def test_damaged_models(model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def flip(folder: Path) -> None:
        content = bytearray((folder / "model.onnx").read_bytes())
        content[-5] ^= 1
        (folder / "model.onnx").write_bytes(content)

    def edit(folder: Path) -> None:
        card = (folder / "card.json").read_text()
        (folder / "card.json").write_text(card.replace('"seed": 0', '"seed": 1', 1))

    def newer(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text()) | {"format": FORMAT + 1}
        card["checksum"] = model_folder.checksum(card)
        (folder / "card.json").write_text(json.dumps(card))

    def cut(folder: Path) -> None:
        (folder / "card.json").write_bytes((folder / "card.json").read_bytes()[:200])

    def lose(folder: Path) -> None:
        (folder / "model.onnx").unlink()

    for change, message in (
        (flip, "model.onnx has been changed"),
        (edit, "card.json has been changed"),
        (newer, "upgrade bgad"),
        (cut, "is damaged"),
        (lose, "is incomplete"),
    ):
        folder = tmp_path / f"{change.__name__}.bgad"
        shutil.copytree(model, folder)
        change(folder)
        for command in (
            ("predict", folder, data_set, "--out", tmp_path / "out"),
            ("evaluate", folder, data_set, "--out", tmp_path / "out"),
            ("info", folder),
        ):
            assert message in fails(capsys, tmp_path, *command)


def test_info(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(model)]) == 0
    text = capsys.readouterr().out
    counts = "19 normals trained on, 5 held out, 4 known anomalies"
    for part in (counts, "bgad-plus on lite0", "A good part is rejected"):
        assert part in text
    assert main(["info", str(model), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card == json.loads((model / "card.json").read_bytes())
    assert len(card["calibration"]["float32"]["scores"]) == 5


def test_recipe_can_be_read_back(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.toml"
    for command, expected in (
        (["--recipe"], PRESETS["default"]),
        (["--recipe", "--preset", "paper"], PRESETS["paper"]),
        ([str(model), "--recipe"], model_folder.read(model).config),
    ):
        assert main(["info", *command]) == 0
        path.write_text(capsys.readouterr().out)
        assert from_dict(read_toml(path)) == expected


def test_training_names_what_is_wrong_and_goes_on(
    tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root, model = write_set(tmp_path / "a set"), tmp_path / "a model.bgad"
    (root / "train/good/[red].png").write_bytes(b"broken")
    (root / "train/good/new\nline.png").touch()
    (root / "train/good/000.png").rename(root / "train/good/\udcff.png")  # a name that is not UTF-8
    shutil.copy(root / "train/good/001.png", root / "train/good/twice.png")
    Image.new("L", (32, 128), 255).save(root / "ground_truth/blot/000_mask.png")
    Image.new("L", (64, 64)).save(root / "ground_truth/blot/001_mask.png")
    Image.new("L", (64, 64), 255).save(root / "ground_truth/blot/999_mask.png")
    command = ["train", str(root), "--config", recipe, "--out", str(model), "--max-unreadable", "2"]
    assert main([*command, "--seed", "3", "--method", "nfad-plus", "--set", "train.steps=3", "--size", "32"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    for part in (
        "warning: skipped: ",
        "[red].png: not an image",
        "new\\nline.png: is empty",
        "2 unreadable images skipped",
        "same image twice: train/good/twice.png repeats train/good/001.png",
        "000_mask.png is 32x128 instead of 64x64: it is resized",
        "001_mask.png marks no pixel",
        "mask without an image: ground_truth/blot/999_mask.png",
        f"next: bgad predict '{model}' IMAGE",
    ):
        assert part in said.err
    card = model_folder.read(model)
    assert (card.config.seed, card.config.method, card.config.train.steps) == (3, "nfad-plus", 3)
    assert card.config.backbone.size == 32
    names = {image["name"] for image in card.split["images"]}
    assert "train/good/\udcff.png" in names
    assert names.isdisjoint({"train/good/[red].png", "train/good/new\nline.png"})
    assert any("[red].png" in note for note in card.data.notes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a model.bgad", "a set", "recipe.toml"]

    assert "--max-unreadable 1" in fails(capsys, tmp_path, *command, "--max-unreadable", "1", "--overwrite")
    assert "exists already" in fails(capsys, tmp_path, *command)


def write_headct(root: Path) -> Path:
    """10 normals and 6 anomalies, as the download unpacks."""
    rng = np.random.default_rng(3)
    (root / "headct/head_ct/head_ct").mkdir(parents=True)
    for i in range(16):
        Image.fromarray(draw_image(rng, defect=i >= 10)[0]).save(root / f"headct/head_ct/head_ct/{i:03}.png")
    lines = [f"{i},{int(i >= 10)}\n" for i in range(16)]
    (root / "headct/labels.csv").write_text("id, hemorrhage\n" + "".join(lines))
    return root


def write_aitex(root: Path) -> Path:
    """A defect-free strip of eight tiles, and three strips with a defect on one of two tiles each."""
    rng = np.random.default_rng(4)
    strips = [("NODefect_images/a/0000_000_01", 8), *((f"Defect_images/000{i}_002_01", 2) for i in range(3))]
    for name, tiles in strips:
        path = root / "aitex" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(100, 140, (256, 256 * tiles), dtype=np.uint8)
        if tiles == 2:
            mask = np.zeros_like(pixels)
            mask[90:150, 300:360] = 255
            pixels[mask > 0] = 10
            (root / "aitex/Mask_images").mkdir(exist_ok=True)
            Image.fromarray(mask).save(root / f"aitex/Mask_images/{path.stem}_mask.png")
        Image.fromarray(pixels).save(path)
    return root


def test_a_public_data_set_is_called_by_its_name(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = write_headct(tmp_path / "my sets")
    monkeypatch.chdir(tmp_path)
    command = ["train", "headct", "--root", str(sets), "--config", recipe, "--device", "cpu"]
    assert main([*command, "--known", "2", "--test", "0.25"]) == 0
    said = capsys.readouterr().err
    assert "headct: 6 normals to train on, 2 held out to calibrate, 2 known anomalies (0 with masks), 6 images" in said
    assert f"bgad evaluate headct.bgad headct --root '{sets}'" in said
    assert main(["evaluate", "headct.bgad", "headct", "--root", str(sets), "--device", "cpu"]) == 0
    (cell,) = json.loads((tmp_path / "headct-evaluation/results.json").read_text())["cells"]
    assert (cell["data"], cell["category"], cell["images"]) == ("headct", "headct", {"normal": 2, "anomalous": 4})


def test_a_split_of_the_benchmark_is_followed_on_tiles(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BGAD_DATA", str(write_aitex(tmp_path / "sets")))
    monkeypatch.chdir(tmp_path)
    split = protocol_split(registry.load("aitex"), "multi-class", Case(), known=1, seed=5)
    Path("roles.json").write_bytes(split.to_bytes())
    assert main(["train", "aitex", "--split", "roles.json", "--config", recipe, "--device", "cpu"]) == 0
    stored = model_folder.read(tmp_path / "aitex.bgad").split
    roles = {image["name"]: image["role"] for image in stored["images"]}
    assert roles == {image["name"]: image["role"] for image in split.to_json()["images"]}
    assert stored["protocol"] == "multi-class"
    assert {name[-3:] for name in roles if name.startswith("Defect")} == {"#01"}
    capsys.readouterr()
    assert main(["evaluate", "aitex.bgad", "aitex", "--out", "found", "--device", "cpu"]) == 0
    (cell,) = json.loads((tmp_path / "found/results.json").read_text())["cells"]
    assert (cell["data"], cell["protocol"]) == ("aitex", "multi-class")
    assert cell["images"] == {"normal": 2, "anomalous": 2}
    assert cell["metrics"]["pixel_auroc"] is not None
    assert main(["pseudo", "aitex", "--out", "sheet.png", "--count", "1", "--size", "64"]) == 0
    assert images.read(tmp_path / "sheet.png").shape[1] > 200


def test_false_reject_rate_is_kept_and_stated(
    data_set: Path, tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.bgad"
    command = ["train", str(data_set), "--config", recipe, "--out", str(model), "--false-reject-rate", "0.1"]
    assert main([*command, "--no-export"]) == 0
    assert "rejected with probability at most 0.1 (asked for: 0.1)" in capsys.readouterr().err
    calibration = model_folder.read(model).calibration_at()
    assert calibration.false_reject_rate == 0.1
    assert len(calibration.scores) == 9
    assert calibration.threshold == max(calibration.scores)


def test_the_default_rate_is_told_as_such(
    data_set: Path, tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.bgad"
    assert main(["train", str(data_set), "--config", recipe, "--out", str(model), "--no-export"]) == 0
    said = capsys.readouterr().err
    assert "rejected with probability at most 0.1667 (default: 0.1667)" in said
    assert "asked for" not in said
    assert (
        "warning: the default false-reject rate is 0.1667 here, the lowest for 5 calibration normals: 0.05 needs 19; "
        "add normals (24 of 38 so far) and give --false-reject-rate 0.05\n"
    ) in said
    assert main(["evaluate", str(model), str(data_set), "--out", str(tmp_path / "out")]) == 0
    assert "(default: 0.1667)" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_the_next_step_works(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_set(tmp_path / "a set", train=12, good=0, bad=3)
    (tmp_path / "a set/train/good").rename(tmp_path / "a set/good")
    (tmp_path / "a set/test/blot").rename(tmp_path / "a set/bad")
    for folder in ("train", "test", "ground_truth"):
        shutil.rmtree(tmp_path / "a set" / folder)

    def next_step(*options: str) -> str:
        assert main(["train", "a set", "--config", recipe, "--no-export", *options]) == 0
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("next: bgad predict 'a set.bgad' IMAGE...")
        return line

    assert "bgad evaluate 'a set.bgad' 'a set'" not in (line := next_step())
    assert "--test 0.25" in line
    line = next_step("--test", "0.25", "--overwrite")
    assert line.endswith("or   bgad evaluate 'a set.bgad' 'a set'")
    assert main(shlex.split(line.split("or   bgad ")[1])) == 0


@pytest.fixture
def little_space() -> Iterator[Callable[[int], None]]:
    """Files may not grow beyond the given size: what a full disk is to the code, without a disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size if size else soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_space_for_the_model_then_resume(
    data_set: Path,
    tmp_path: Path,
    recipe: str,
    little_space: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tmp_path / "m.bgad"
    command = ["train", str(data_set), "--config", recipe, "--out", str(model)]
    little_space(200_000)
    assert main(command) == 2
    little_space(0)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("bgad: error: cannot write ")
    assert not model.exists()
    assert not list(tmp_path.glob(".*"))
    assert main([*command, "--resume"]) == 0
    assert model_folder.read(model).training.steps == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bgad", "recipe.toml"]


def test_interrupted_scoring_is_quiet(
    model: Path, data_set: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(images, "fit_parts", interrupted)
    assert main(["predict", str(model), str(data_set / "test")]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 9 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you tried to"),
        onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException("Failed to allocate memory for requested buffer"),
    ],
)
def test_out_of_memory_is_one_line(
    error: Exception, model: Path, data_set: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greedy(*_: object) -> None:
        raise error

    monkeypatch.setattr(Runtime, "run", greedy)
    command = ["predict", str(model), str(data_set / "test/good/000.png")]
    assert main(command) == 2
    assert "error: out of memory: use --threads 1 (on a GPU also --batch 1)" in capsys.readouterr().err.splitlines()[-1]
    error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        main(command)


def test_reader_that_goes_away(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, "-m", "bgad", "info", str(model), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_stdout(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "bgad", "info", str(model)]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert found.returncode == 2
    assert found.stderr == "bgad: error: input or output: No space left on device\n"


def test_any_encoding(model: Path, tmp_path: Path) -> None:
    odd = tmp_path / "größe ☃.bgad"
    shutil.copytree(model, odd)
    for command in (["info", odd], ["info", odd, "--json"], ["info", tmp_path / "größe ☃"]):
        found = run(*command, env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert found.returncode == (0 if command[1] == odd else 2)
        assert "Traceback" not in found.stderr


def test_pseudo_draws_a_sheet(data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "sheet.png"
    command = ["pseudo", str(data_set), "--out", str(path), "--count", "3", "--size", "64"]
    assert main(command) == 0
    assert f"contact sheet: {path}" in capsys.readouterr().err
    first = images.read(path)
    assert first.shape[1] > 3 * 200
    assert main(command) == 0
    np.testing.assert_array_equal(images.read(path), first)
    assert main([*command, "--seed", "1"]) == 0
    assert not np.array_equal(images.read(path), first)


def test_pseudo_skips_what_training_skips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_set(tmp_path / "set", bad=4)
    (root / "train/good/000.png").write_bytes(b"broken")
    Image.new("L", (64, 64)).save(root / "ground_truth/blot/001_mask.png")
    assert main(["pseudo", str(root), "--out", str(tmp_path / "s.png"), "--count", "6", "--size", "64"]) == 0
    said = capsys.readouterr().err
    assert "skipped: " in said
    assert "marks no pixel" in said
    line = fails(capsys, tmp_path, "pseudo", root, "--out", tmp_path / "t.png", "--max-unreadable", "0")
    assert "cannot be read (more than --max-unreadable 0)" in line
    bare = write_set(tmp_path / "bare", masks=False)
    line = fails(capsys, tmp_path, "pseudo", bare, "--out", tmp_path / "t.png", "--size", "64")
    assert "known anomalies with masks, and there are none: add masks, or use --set pseudo.method=nsa" in line


@pytest.mark.parametrize("way", ["draem", "nsa"])
def test_pseudo_draws_a_sheet_without_known_anomalies(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    path = tmp_path / "sheet.png"
    command = ["pseudo", str(data_set), "--out", str(path), "--count", "2", "--size", "64", "--known", "0"]
    assert main([*command, "--set", f"pseudo.method={way}"]) == 0
    drawn = images.read(path).astype(int)
    assert drawn.shape[1] > 2 * 200
    assert np.all(np.abs(drawn - (230, 20, 90)) < 8, axis=2).any()  # the outline of a defect
    assert f"contact sheet: {path}" in capsys.readouterr().err
