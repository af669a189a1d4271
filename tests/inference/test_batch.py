from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

import bgad
from bgad.cli import console
from bgad.cli.main import main
from bgad.cli.tables import score_table
from bgad.inference.batch import Row, input_images, map_legend, output_stems, predict
from bgad.io import discover, images, render
from tests.conftest import draw_image

KEYS = ["path", "score", "p_value", "is_anomaly", "threshold", "map_max", "map_threshold", "error", "parts"]
KEYS += ["reason", "region", "precision"]
RNG = np.random.default_rng(11)


def good(path: Path, size: tuple[int, int] = (64, 64), **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw_image(RNG, defect=False)[0]).resize(size).save(path, **options)
    return path


def bomb() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_image_much_larger_than_those_of_training_is_told_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"same": 64, "double": 128, "huge": 256, "next": 256}
    for name, side in sizes.items():
        Image.new("L", (side, side), 120).save(tmp_path / f"{name}.png")
    scorer = bgad.load(model, "cpu")
    assert scorer.card.input.largest_image == (64, 64)
    scorer.score_many([tmp_path / "same.png", tmp_path / "double.png"])
    assert capsys.readouterr().err == ""
    scorer.score_many([tmp_path / "huge.png"])
    scorer.score_many([tmp_path / "huge.png", tmp_path / "next.png"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "huge.png is 256x256, training images were 64x64 at most" in line
    assert line.endswith("train with --tile for such images")
    tiled = bgad.load(model, "cpu")
    tiled.set_tile(64)
    tiled.score(tmp_path / "huge.png")
    assert capsys.readouterr().err == ""


def test_json_lines(model: Path, data_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(model), f"{data_set}/test/**/00*.png"]) == 0
    said = capsys.readouterr()
    rows = rows_of(said.out)
    assert [list(row) for row in rows] == [KEYS] * 18
    assert [row["path"] for row in rows] == [str(p) for p in discover.expand([data_set / "test"])]
    detector = bgad.load(model, "cpu")
    for row in rows:
        expected = detector.score(row["path"])
        assert row["score"] == pytest.approx(expected.score, rel=1e-5, abs=1e-4)
        assert row["p_value"] == expected.p_value
        assert row["is_anomaly"] is expected.is_anomaly is (row["score"] > row["threshold"])
        assert row["threshold"] == expected.threshold == detector.threshold
        assert row["error"] is None
        assert sum(row["parts"].values()) == pytest.approx(row["score"], rel=1e-5, abs=1e-5)
        assert row["reason"] == (expected.reason or None)
        assert row["region"] == (expected.region and list(expected.region))
    assert all(row["is_anomaly"] for row in rows if "blot" in row["path"])
    assert said.err.splitlines()[-1] == "18 images scored"


def test_another_rate_moves_the_threshold(model: Path, data_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(data_set / "test/good/000.png")
    thresholds = []
    for rate in ("0.2", "0.5"):
        assert main(["predict", str(model), path, "--false-reject-rate", rate]) == 0
        thresholds.append(rows_of(capsys.readouterr().out)[0]["threshold"])
    assert thresholds[0] > thresholds[1]


def test_bad_images_among_good_ones(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = [Image.fromarray(draw_image(RNG, defect=False)[0]) for _ in range(3)]
    errors = {
        "broken.png": "header is broken",
        "empty.png": "is empty",
        "bomb.png": "exceed the limit",
        "text.png": "not an image",
        "gif.png": "GIF is not an image format that is read: save it as one of PNG",
        "animated.webp": "several frames",
        "missing.png": "No such file",
        "loop.png": "symbolic links",
        "device": "not a regular file",
        "thin.png": "4000 x 1 pixels are too thin",
    }
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nxxxx")
    (tmp_path / "empty.png").touch()
    (tmp_path / "bomb.png").write_bytes(bomb())
    (tmp_path / "text.png").write_text("hello")
    frames[0].save(tmp_path / "gif.png", format="GIF")
    frames[0].save(tmp_path / "animated.webp", save_all=True, append_images=frames[1:])
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "device").symlink_to(os.devnull)
    Image.new("L", (4000, 1)).save(tmp_path / "thin.png")
    Image.fromarray(RNG.integers(0, 65535, (50, 70), np.uint16)).save(tmp_path / "deep.png")
    frames[1].convert("CMYK").save(tmp_path / "cmyk.jpg")
    fine = [good(tmp_path / "fine.png"), tmp_path / "deep.png", tmp_path / "cmyk.jpg"]
    given = [fine[0], *(tmp_path / name for name in errors), *fine[1:]]
    out = tmp_path / "out"
    assert main(["predict", str(model), *map(str, given), "--out", str(out)]) == 1
    said = capsys.readouterr()
    rows = rows_of(said.out)
    assert [row["path"] for row in rows] == list(map(str, given))
    for row, (name, message) in zip(rows[1:-2], errors.items(), strict=True):
        assert list(row) == [*KEYS, "stem"]
        assert message in row["error"]
        assert name in row["error"]
        assert {row[key] for key in ("score", "p_value", "is_anomaly", "parts", "reason", "region", "stem")} == {None}
        assert "\n" not in row["error"]
    assert all(row["error"] is None and row["score"] > 0 for row in (rows[0], *rows[-2:]))
    assert f"{len(errors)} of {len(given)} images could not be scored" in said.err
    assert "Traceback" not in said.err
    assert sorted(path.name for path in out.iterdir() if path.suffix in (".tif", ".png")) == [
        f"{path.stem}{end}" for path in sorted(fine) for end in (".map.tif", ".overlay.png")
    ]
    (tmp_path / "text.png").write_bytes(fine[0].read_bytes())
    assert main(["predict", str(model), *map(str, given), "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert f"3 of {len(given)} images have their rows" in said.err
    assert f"{len(errors) - 1} of {len(given) - 3} images could not be scored" in said.err
    rows = rows_of(said.out)
    assert sorted(row["path"] for row in rows) == sorted(map(str, given))  # mended, it is scored; the others as before
    assert [row["error"] for row in rows if row["path"].endswith("text.png")] == [None]


def test_names_of_every_kind(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in", tmp_path / "in" / "looked at"
    names = ["größe ☃.png", "a 'b' \"c\".png", "[red]x[/bold].png", "-dash.png", "new\nline.png", ":smile:.png"]
    names += ["same.png", "same.jpg", "same.jpg.png", "sub.d/same.png", "other/same.png", "\udcff.png"]
    for name in names:
        good(source / "tmp.png").rename(source / name) if "/" not in name else good(source / name)
    (source / "up").symlink_to(source)
    for _ in range(2):  # the second time, what the first one wrote inside the folder is not input
        assert main(["predict", str(model), str(source), "--out", str(out)]) == 0
        rows = rows_of(capsys.readouterr().out)
        assert sorted(Path(row["path"]).relative_to(source).as_posix() for row in rows) == sorted(names)
    written = {p.relative_to(out).as_posix() for p in out.rglob("*.*.*") if p.suffix in (".png", ".tif")}
    assert len(written) == 2 * len(names)
    assert {"sub.d/same.overlay.png", "other/same.map.tif", "größe ☃.overlay.png", "\udcff.map.tif"} <= written
    assert {"same.overlay.png", "same.jpg.overlay.png"} <= written
    assert not any(path.suffix == ".tmp" for path in out.rglob("*"))


def test_dash_names_after_two_dashes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good(tmp_path / "--json.png")
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(model), "--", "--json.png"]) == 0
    assert rows_of(capsys.readouterr().out)[0]["path"] == "--json.png"


def test_map_has_the_size_of_the_image_and_overlay_a_legend_below_it(model: Path, tmp_path: Path) -> None:
    paths = [good(tmp_path / "in" / "wide.png", (150, 40)), good(tmp_path / "in" / "deep" / "tall.jpg", (33, 90))]
    detector = bgad.load(model, "cpu")
    assert len(list(predict(detector, paths, tmp_path / "out"))) == 2
    for path, stem in zip(paths, ("wide", "deep/tall"), strict=True):
        size = images.read(path).shape[1::-1]
        expected = detector.score(path)
        legend = map_legend(detector)
        assert (legend.low, legend.contour) == (detector.card.map.mean, detector.map_threshold)
        bar = render.draw_legend(legend, size[0])
        with Image.open(tmp_path / "out" / f"{stem}.overlay.png") as drawn:
            assert (drawn.format, drawn.mode) == ("PNG", "RGB")
            pixels = np.asarray(drawn)
        np.testing.assert_array_equal(pixels[size[1] :], bar)
        plain = render.overlay(images.read(path), expected.map, legend.contour, legend.low)
        assert np.abs(pixels[: size[1], : size[0]].astype(int) - plain).max() <= 1
        with Image.open(tmp_path / "out" / f"{stem}.map.tif") as stored:
            assert (stored.format, stored.size, stored.mode) == ("TIFF", size, "F")
            np.testing.assert_allclose(np.asarray(stored), expected.map, rtol=1e-4, atol=1e-4)


def test_the_boundary_of_the_paper_is_a_contour_too(
    model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = str(data_set / "test/blot/000.png"), str(tmp_path / "out")
    detector = bgad.load(model, "cpu")
    legend = map_legend(detector, "boundary")
    assert legend.contour == detector.card.map.boundary < map_legend(detector).contour
    assert legend.meaning == "1 % of the map values of normals lie above it"
    assert main(["predict", str(model), image, "--out", out, "--contour", "boundary"]) == 0
    drawn = images.read(tmp_path / "out/000.overlay.png")
    expected = render.overlay_with_legend(images.read(Path(image)), detector.score(Path(image)).map, legend)
    assert np.abs(drawn.astype(int) - expected).max() <= 1
    for options in (
        ["--out", out],
        ["--contour", "boundary"],
        ["--out", out, "--no-overlays", "--contour", "boundary"],
    ):
        capsys.readouterr()
        assert main(["predict", str(model), image, *options]) == 2
        assert ("--contour is for overlays" if "--contour" in options else "other options") in capsys.readouterr().err


def test_a_legend_promises_nothing_where_tiles_were_not_calibrated(model: Path) -> None:
    detector = bgad.load(model, "cpu")
    rate = detector.map_calibration.rate
    assert map_legend(detector).meaning == f"at most {100 * rate:.3g} % of good images show any contour"
    detector.set_tile(32)
    assert map_legend(detector).meaning == "not calibrated with tiles of 32 pixels"


def test_overlay_is_hot_on_a_defect_and_clear_on_a_good_part(model: Path, data_set: Path, tmp_path: Path) -> None:
    list(predict(bgad.load(model, "cpu"), [data_set / "test/blot/000.png", data_set / "test/good/000.png"], tmp_path))
    warmth = {}  # the images are grey: only heat has colour
    for kind in ("blot", "good"):
        heat = images.read(tmp_path / kind / "000.overlay.png")[:64, :64].astype(int)
        warmth[kind] = heat[..., 0] - heat[..., 2]
    mask = images.read_mask(data_set / "ground_truth/blot/000_mask.png")
    assert warmth["blot"][mask].min() > 60
    assert warmth["good"].mean() < 20


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "A", "b.c", "a_png", "a.png", "a.jpg", "-2"]), min_size=1, max_size=3).map(
            "/".join
        ),
        min_size=1,
        max_size=12,
        unique=True,
    ),
    st.sampled_from([".png", ".jpg", ""]),
)
def test_output_stems_never_meet(names: list[str], suffix: str) -> None:
    stems = output_stems([Path(f"/top/{name}{suffix}") for name in names])
    assert len({str(stem).casefold() for stem in stems}) == len(names)
    assert not any(stem.is_absolute() or ".." in stem.parts for stem in stems)


def test_output_stems_follow_the_given_paths_not_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good(tmp_path / "far" / "real.png")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link.png").symlink_to(tmp_path / "far" / "real.png")
    monkeypatch.chdir(tmp_path)
    assert output_stems([Path("near/link.png"), Path("near/../near/b.png")]) == [Path("link"), Path("b")]


def test_nothing_to_score(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()
    for place in (tmp_path, f"{tmp_path}/*.png", f"{tmp_path}/[0-9]"):
        assert main(["predict", str(model), str(place)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("bgad: error: ")
        assert "no image found" in line


def test_what_is_not_there(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped folder is an error; a missing file among others is a row."""
    there, gone, folder = str(good(tmp_path / "a.png")), str(tmp_path / "gone.png"), f"{tmp_path}/nofolder/"
    for places, message in (
        ([folder], f"{folder}: no such folder"),
        ([there, folder], f"{folder}: no such folder"),
        ([gone], f"{gone}: no such file or folder"),
        ([gone, folder[:-1]], f"{gone}: no such file or folder, nor any of the 1 others given"),
    ):
        assert main(["predict", str(model), *places]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.splitlines() == [f"bgad: error: {message}"]
    assert main(["predict", str(model), there, gone]) == 1
    assert [row["error"] is None for row in rows_of(capsys.readouterr().out)] == [True, False]


def test_images_that_are_not_read_are_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good(tmp_path / "a.png")
    for name in ("b.gif", "c.GIF", "d.heic", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "e.png").symlink_to("nowhere.png")
    for place in (str(tmp_path), f"{tmp_path}/*"):
        assert main(["predict", str(model), place]) == 0
        said = capsys.readouterr().err.splitlines()
        assert [line for line in said if "warning" in line] == ["warning: 2 .gif, 1 .heic, 1 broken link not used"]
        assert said[-1] == "1 image scored"
    assert main(["predict", str(model), f"{tmp_path}/*.gif"]) == 2
    assert "no image found" in (line := capsys.readouterr().err)
    assert "; 1 .gif not used" in line


def test_images_are_drawn_beside_scoring_and_there_before_their_row(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = discover.expand([data_set / "test"])
    plain, threads = render.save_map, set()

    def late(map: Any, path: Path) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.05 if "000" in path.name else 0)  # the first one of a folder is overtaken
        plain(map, path)

    monkeypatch.setattr(render, "save_map", late)
    for i, row in enumerate(predict(bgad.load(model, "cpu", threads=3), paths, tmp_path)):
        assert row["path"] == str(paths[i])
        assert (tmp_path / f"{row['stem']}.map.tif").exists()
        assert (tmp_path / f"{row['stem']}.overlay.png").exists()
    assert i == len(paths) - 1
    assert threading.get_ident() not in threads
    assert len(threads) > 1


def test_out_is_checked_before_the_work(model: Path, tmp_path: Path) -> None:
    path = good(tmp_path / "a.png")
    with pytest.raises(bgad.BgadError, match="is not a folder"):
        input_images([path], path / "sub")
    assert input_images([path], tmp_path / "new") == [path]
    assert not (tmp_path / "new").exists()


def test_terminal_gets_a_table(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = good(tmp_path / "a-folder-with-a-very-long-name" / "and-a-picture-with-a-long-name-[red].png")
    broken = tmp_path / "broken.png"
    broken.touch()
    paths = [str(p) for p in (long, broken, data_set / "test/blot/000.png")]
    screen = pseudo_terminal(monkeypatch, columns=80)
    assert main(["predict", str(model), *paths]) == 1
    lines = screen()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines if line.split()[0] in ("error", "anomalous", "normal")][:2] == [
        "error",
        "anomalous",
    ]
    text = "".join(line[30:].strip() for line in lines)
    assert long.name in text
    assert "{" not in text
    capsys.readouterr()

    screen = pseudo_terminal(monkeypatch, columns=80)
    assert main(["predict", str(model), *paths, "--json"]) == 1
    assert len(rows_of("\n".join(screen()))) == 3
    assert "scoring" not in capsys.readouterr().err  # a bar would run through the lines


def pseudo_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Any:
    """Put a terminal in place of stdout; the result reads what it shows, without colours."""
    pty = pytest.importorskip("pty")
    import fcntl
    import re
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = open(slave, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stdout", stream)

    def read() -> list[str]:
        stream.close()
        found = b""
        try:
            while block := os.read(master, 65536):
                found += block
        except OSError:  # the other end is closed
            os.close(master)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode())
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    return read


def test_each_image_is_decoded_once(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overlay is drawn on the image that was decoded for scoring, with and without tiles."""
    decoded: list[str] = []
    read = images.read

    def counted(source: Any, **options: Any) -> Any:
        decoded.append(str(source))
        return read(source, **options)

    monkeypatch.setattr(images, "read", counted)
    paths = sorted((data_set / "test/blot").iterdir())
    scorer = bgad.load(model, "cpu", threads=2)
    for tile in (0, 40):
        decoded.clear()
        scorer.set_tile(tile)
        rows = list(predict(scorer, paths, tmp_path / str(tile)))
        assert sorted(decoded) == [str(path) for path in paths]
        assert [row["path"] for row in rows] == [str(path) for path in paths]
        assert len(list((tmp_path / str(tile)).glob("*.overlay.png"))) == len(paths)


def test_table_ranks_and_escapes() -> None:
    def row(path: str, score: float | None, p_value: float | None, error: str | None = None) -> Row:
        anomalous = None if score is None else score > 1.0
        return Row(
            path=path,
            score=score,
            p_value=p_value,
            is_anomaly=anomalous,
            threshold=1.0,
            map_max=score,
            map_threshold=1.0,
            error=error,
            parts=None if score is None else {"map": score, "image": 0.0, "known": 0.0},
            reason="a region stands out" if anomalous else None,
            region=None if score is None else [10, 20, 31, 40],  # also of an image that passes
            precision="float32",
        )

    rows = [
        row("quiet.png", 0.5, 0.8),
        row("[bold]lo\x1bud\n.png", 9.0, 1 / 300),
        row("bad.png", None, None, "bad.png: [red] is empty"),
    ]
    screen = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    screen.print(score_table(rows))
    screen.print(score_table(rows[1:2], 299))
    screen.file.close()
    lines = [" ".join(line.split()) for line in screen.export_text().splitlines()[2:]]
    assert lines == [
        "error bad.png: [red] is empty",
        "anomalous 9.000 1 in 300 a region stands out (at 20, 30) [bold]lo\\x1bud\\n.png",
        "normal 0.500 most quiet.png",
        "good parts",
        "verdict score as high why image",
        "anomalous 9.000 none of 299 a region stands out (at 20, 30) [bold]lo\\x1bud\\n.png",
    ]


def test_lines_reach_the_pipe_while_the_bar_is_on_the_terminal(
    model: Path, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "screen").open("w+") as screen:
        monkeypatch.setattr(console, "console", Console(file=screen, force_terminal=True))
        assert main(["predict", str(model), str(data_set / "test/blot")]) == 0
        screen.seek(0)
        assert "is_anomaly" not in screen.read()
    assert len(rows_of(capsys.readouterr().out)) == 8
