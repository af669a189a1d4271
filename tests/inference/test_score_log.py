from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bgad.cli.main import main
from bgad.errors import OutputError
from bgad.inference import score_log
from bgad.inference.batch import Row
from bgad.inference.score_log import ABOUT, FILE, open_log
from bgad.io import render


def row(path: Path, stem: str | None = None, error: str | None = None) -> Row:
    return {
        "path": str(path),
        "score": 1.5,
        "p_value": 0.5,
        "is_anomaly": False,
        "threshold": 2.0,
        "map_max": 3.0,
        "map_threshold": 2.5,
        "error": error,
        "parts": {"map": 1.0, "image": 0.5, "known": 0.0},
        "reason": None,
        "region": [1, 2, 3, 4],
        "precision": "float32",
        "stem": stem,
    }


def files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_text(name)
    return [folder / name for name in names]


def names(out: Path) -> list[str]:
    return [Path(r["path"]).name for r in score_log.rows(out / FILE)]


def test_rows_stay_and_a_torn_line_goes(tmp_path: Path) -> None:
    out, paths = tmp_path / "out", files(tmp_path, "ä.png", "b.png", "c.png")
    with open_log(out, {"model": "a"}, paths) as kept:
        kept.append(row(paths[0], "ä"))
        kept.append(row(paths[1], "b", "broken"))
        assert names(out) == ["ä.png", "b.png"]  # before it is closed
    with (out / FILE).open("ab") as file:
        file.write(b'{"path": "c.p')
    assert names(out) == ["ä.png", "b.png"]
    with open_log(out, {"model": "a"}, paths) as kept:
        assert kept.done == {str(paths[0])}  # what could not be scored gets another try
        assert kept.stems == {str(paths[0]): "ä", str(paths[1]): "b"}
        assert list(kept.rows()) == [row(paths[0], "ä")]
        kept.append(row(paths[2]))
    assert names(out) == ["ä.png", "c.png"]


def test_rows_of_other_paths_stay_as_they_are(tmp_path: Path) -> None:
    """Two folders into one; the second run neither tries nor forgets what of the first could not be scored."""
    out, paths = tmp_path / "out", files(tmp_path, "a.png", "b.png", "c.png")
    with open_log(out, {}, paths[:2]) as kept:
        kept.append(row(paths[0], "a"))
        kept.append(row(paths[1], None, "broken"))
    with open_log(out, {}, paths[2:]) as kept:
        assert kept.done == set()
        assert kept.stems == {str(paths[0]): "a"}
    assert names(out) == ["a.png", "b.png"]


def test_the_same_name_elsewhere_is_another_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    for line in ("a", "b"):
        (tmp_path / line).mkdir()
        files(tmp_path / line, "x.png")
    monkeypatch.chdir(tmp_path / "a")
    with open_log(out, {}, [Path("x.png")]) as kept:
        kept.append(row(Path("x.png")))
    monkeypatch.chdir(tmp_path / "b")
    with open_log(out, {}, [Path("x.png")]) as kept:
        assert kept.done == set()
    monkeypatch.chdir(tmp_path)
    with open_log(out, {}, [tmp_path / "a" / "x.png"]) as kept:
        assert kept.done == {str(tmp_path / "a/x.png")}


def test_a_image_that_changed_is_scored_again(tmp_path: Path) -> None:
    out, paths = tmp_path / "out", files(tmp_path, "a.png", "b.png")
    with open_log(out, {}, paths) as kept:
        for path in paths:
            kept.append(row(path, path.stem))
    os.utime(paths[0], (1, 1))  # older than before is another one, too
    with open_log(out, {}, paths) as kept:
        assert kept.done == {str(paths[1])}
        assert kept.stems == {str(path): path.stem for path in paths}  # the new images go where the old ones are
    assert names(out) == ["b.png"]


def test_another_model_or_damage_is_refused(tmp_path: Path) -> None:
    out, paths = tmp_path / "out", files(tmp_path, "a.png")
    with open_log(out, {"model": "a"}, paths) as kept:
        kept.append(row(paths[0]))
    other = r"holds scores of another model.*--overwrite"
    with pytest.raises(OutputError, match=other), open_log(out, {"model": "b"}, paths):
        pass
    (out / ABOUT).unlink()
    with pytest.raises(OutputError, match="holds scores of another model"), open_log(out, {"model": "a"}, paths):
        pass
    with open_log(out, {"model": "b"}, paths, overwrite=True) as kept:
        assert kept.done == set()
    above = b'{"file": "x", "changed": null, "error": null, "stem": "../x"}\n'
    for damage in (b"no json\n", b"[1]\n", b'{"path": "x"}\n', above):
        (out / FILE).write_bytes(damage)
        with pytest.raises(OutputError, match="line 1 is damaged; --overwrite"), open_log(out, {"model": "b"}, paths):
            pass
    with open_log(out, {"model": "b"}, paths, overwrite=True) as kept:
        assert kept.stems == {}
    assert names(out) == []


def test_overwrite_takes_the_rows_of_the_paths_at_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, paths = tmp_path / "out", files(tmp_path, "a.png", "b.png", "c.png")
    with open_log(out, {"model": "a"}, paths) as kept:
        for path in paths:
            kept.append(row(path, path.stem))
    with open_log(out, {"model": "a"}, paths[1:2], overwrite=True) as kept:
        assert kept.done == set()
        assert kept.stems == {str(path): path.stem for path in paths}
    assert names(out) == ["a.png", "c.png"]
    assert "1 of 3" in " ".join(capsys.readouterr().err.split())
    with open_log(out, {"model": "b"}, paths[:1], overwrite=True) as kept:
        assert kept.stems == {}
    assert names(out) == []
    assert "all 2, of another model" in " ".join(capsys.readouterr().err.split())


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        open_log(tmp_path, {}, []),
        pytest.raises(OutputError, match="in use by another scoring run"),
        open_log(tmp_path, {}, []),
    ):
        pass


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def write(self, content: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    out, paths = tmp_path / "out", files(tmp_path, "a.png", "b.png")
    with open_log(out, {}, paths) as kept:
        kept.append(row(paths[0]))
        monkeypatch.setattr(kept, "_stream", Full(kept._stream))
        with pytest.raises(OutputError, match=r"No space left on device; what was scored is kept: make room and run"):
            kept.append(row(paths[1]))
    assert names(out) == ["a.png"]


def test_a_disk_that_is_full_of_images(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = render.save_png

    def filling(array: Any, path: Path) -> None:
        if path.name >= "003":
            raise OutputError("cannot write it: No space left on device")
        plain(array, path)

    monkeypatch.setattr(render, "save_png", filling)
    command = ["predict", str(model), str(data_set / "test/good"), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "what was scored is kept: make room and run the same again" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setattr(render, "save_png", plain)
    assert main(command) == 0
    assert "3 of 10 images have their rows" in capsys.readouterr().err


def test_predict_goes_on(model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    good, all_of_them = str(data_set / "test/good"), str(data_set / "test")
    assert main(["predict", str(model), good, "--out", str(out), "--no-overlays"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 10
    assert said.err.splitlines()[-1] == f"10 images scored; rows are in {out}"
    assert sorted(p.name for p in out.iterdir()) == [".lock", ABOUT, FILE]
    first, printed = next(score_log.rows(out / FILE)), json.loads(said.out.splitlines()[0])
    assert {key: value for key, value in first.items() if key in printed} == printed
    assert sorted(first.keys() - printed.keys()) == ["changed", "file"]
    assert printed["stem"] is None
    assert sum(printed["parts"].values()) == pytest.approx(printed["score"], rel=1e-5, abs=1e-5)
    assert main(["predict", str(model), all_of_them, "--out", str(out), "--no-overlays"]) == 0
    said = capsys.readouterr()
    assert "10 of 18 images have their rows in" in said.err
    assert "8 images scored" in said.err
    assert ["blot" in json.loads(line)["path"] for line in said.out.splitlines()] == [False] * 10 + [True] * 8
    rows = list(score_log.rows(out / FILE))
    assert len({r["path"] for r in rows}) == len(rows) == 18
    assert main(["predict", str(model), all_of_them, "--out", str(out)]) == 2  # with images this time
    assert "with other options" in " ".join(capsys.readouterr().err.split())
    assert main(["predict", str(model), all_of_them, "--out", str(out), "--overwrite"]) == 0
    assert len(list(out.rglob("*.overlay.png"))) == 18
    assert main(["predict", str(model), all_of_them, "--overwrite"]) == 2
    assert "--overwrite need --out" in capsys.readouterr().err.replace("\n", " ")


def test_images_of_two_folders_do_not_meet(model: Path, tmp_path: Path) -> None:
    """The same names in two runs into one folder, and a image that comes in beside one of the same stem."""
    for i, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        Image.new("L", (64, 64 + i), 150).save(tmp_path / folder / "x.png")
    out = tmp_path / "out"
    for folder in ("a", "b"):
        assert main(["predict", str(model), str(tmp_path / folder), "--out", str(out)]) == 0
    Image.new("L", (64, 70), 150).save(tmp_path / "a/x.jpg")
    assert main(["predict", str(model), str(tmp_path / "a"), "--out", str(out)]) == 0
    heights = {}
    for row in score_log.rows(out / FILE):
        with Image.open(out / f"{row['stem']}.map.tif") as anomaly_map:
            heights[anomaly_map.height] = row["path"]
    assert {height: Path(path).relative_to(tmp_path).as_posix() for height, path in heights.items()} == {
        64: "a/x.png", 65: "b/x.png", 70: "a/x.jpg",
    }  # fmt: skip


def test_a_run_that_goes_on_puts_its_images_where_the_whole_run_would(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    for i, name in enumerate(("a/x.png", "b/x.png", "b/y.png")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (64, 64 + i), 150).save(source / name)
    command = ["predict", str(model), str(source), "--out", str(out)]

    def found() -> tuple[dict[str, str | None], list[str]]:
        stems = {Path(r["path"]).relative_to(source).as_posix(): r["stem"] for r in score_log.rows(out / FILE)}
        return stems, sorted(p.relative_to(out).as_posix() for p in out.rglob("*.overlay.png"))

    assert main(command) == 0
    whole = found()
    assert whole[0] == {"a/x.png": "a/x", "b/x.png": "b/x", "b/y.png": "b/y"}
    printed = [json.loads(line)["stem"] for line in capsys.readouterr().out.splitlines()]
    assert printed == list(whole[0].values())
    lines = (out / FILE).read_bytes().splitlines(keepends=True)
    (out / FILE).write_bytes(lines[0])  # stopped after the first: what is left has a parent of its own
    assert main(command) == 0
    assert found() == whole
    os.utime(source / "b/y.png", (1, 1))
    assert main(command) == 0
    assert found() == whole
    assert main(["predict", str(model), str(source / "b/x.png"), "--out", str(out), "--overwrite"]) == 0
    assert found() == whole
    assert "1 image scored" in capsys.readouterr().err


def test_killed_five_times(model: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments: every image has one row, and every row its overlay and map."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    count = 900  # more than six runs score before they are noticed and killed, also on a busy machine
    for i in range(count):
        Image.new("L", (48, 48), 60 + i % 150).save(folder / f"{i:03d}.png")
    command = [sys.executable, "-m", "bgad", "predict", str(model), str(folder), "--out", str(out)]
    rng, kills, counts = random.Random(1), 0, []
    while kills < 5:
        before = lines(out / FILE)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            target = before + rng.randint(1, 40)
            while lines(out / FILE) < target and process.poll() is None:
                time.sleep(rng.uniform(0, 0.01))
            assert process.poll() is None, "it ended before it could be killed"
            process.send_signal(signal.SIGKILL)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(rng.uniform(0, 1.0))  # while it starts
            process.send_signal(signal.SIGKILL)
        kills += 1
        counts.append(lines(out / FILE))
    assert counts == sorted(set(counts))  # each run added something
    assert counts[-1] < count
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = list(score_log.rows(out / FILE))
    assert sorted(r["path"] for r in rows) == sorted(str(p) for p in folder.iterdir())
    assert all(r["error"] is None and r["score"] is not None for r in rows)
    assert len(list(out.rglob("*.overlay.png"))) == len(list(out.rglob("*.map.tif"))) == count


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0
