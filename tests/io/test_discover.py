from __future__ import annotations

from pathlib import Path

import pytest

from bgad.errors import DataError
from bgad.io import discover


def tree(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(root: Path, found: list[Path]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in found]


def test_expand_folder(tmp_path: Path) -> None:
    tree(tmp_path, "img10.png", "img2.PNG", "sub/é 1.jpeg", "notes.txt", ".hidden.png", ".git/a.png", "b.gif")
    assert names(tmp_path, discover.expand([tmp_path])) == ["img2.PNG", "img10.png", "sub/é 1.jpeg"]


def test_expand_tells_what_it_does_not_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree(tmp_path, "a.png", "b.gif", "sub/c.GIF", "sub/d.heic", "notes.txt", "folder.gif/e.png", ".hidden.gif")
    for name in ("f.png", "g"):
        (tmp_path / name).symlink_to("nowhere")
    assert names(tmp_path, discover.expand([tmp_path])) == ["a.png", "folder.gif/e.png"]
    assert capsys.readouterr().err == "warning: 2 .gif, 1 .heic, 2 broken links not used\n"
    discover.expand([tmp_path / "a.png"])
    assert capsys.readouterr().err == ""


def test_expand_keeps_order_and_drops_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "b/1.png", "b/2.png", "a/1.png", "odd.dat", "x[1].png")
    monkeypatch.chdir(tmp_path)
    assert discover.expand(["b/2.png", "b", "./a/1.png", tmp_path / "a"]) == [
        Path("b/2.png"),
        Path("b/1.png"),
        Path("a/1.png"),
    ]
    assert discover.expand(["odd.dat", "x[1].png"]) == [Path("odd.dat"), Path("x[1].png")]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.png", ["1.png"]),
        ("**/*.png", ["1.png", "a/2.png", "a/b/3.png"]),
        ("a/**", ["a/2.png", "a/b/3.png"]),
        ("a/**/3.*", ["a/b/3.png"]),
        ("?/*.png", ["a/2.png"]),
        ("[ac]", ["a/2.png", "a/b/3.png"]),
        ("**/b/**/*.png", ["a/b/3.png"]),
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_expand_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, expected: list[str], absolute: bool
) -> None:
    tree(tmp_path, "1.png", "a/2.png", "a/b/3.png", "a/4.txt", ".h/5.png")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    monkeypatch.chdir(tmp_path)
    found = discover.expand([str(tmp_path / pattern) if absolute else pattern])
    assert names(tmp_path, [path.resolve() for path in found]) == expected


def test_expand_survives_link_loops(tmp_path: Path) -> None:
    tree(tmp_path, "top/a/1.png", "top/2.png", "other/3.png")
    for where, target in {
        "a/up": "..",
        "a/out": "../..",
        "self": "self",
        "link": "../other",
        "again": "a",
    }.items():
        (tmp_path / "top" / where).symlink_to(target)
    (tmp_path / "top" / "dead.png").symlink_to("nowhere.png")
    found = discover.expand([tmp_path / "top"])
    assert names(tmp_path / "top", found) == ["2.png", "a/1.png", "link/3.png"]


def test_expand_finds_nothing(tmp_path: Path) -> None:
    tree(tmp_path, "a.txt")
    with pytest.raises(DataError, match=r"nope/\*\.png: no image found"):
        discover.expand([f"{tmp_path}/nope/*.png"])
    with pytest.raises(DataError, match=r"no image found"):
        discover.expand([tmp_path])
    with pytest.raises(DataError, match=r"gone\.png: no such file or folder"):
        discover.expand([tmp_path / "gone.png"])
    (tmp_path / "self.png").symlink_to("self.png")
    lost = [tmp_path / "gone.png", tmp_path / "self.png"]
    assert discover.expand(lost, missing_ok=True) == lost
