"""The report page is well formed, self-contained, safe and complete."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bgad.errors import OutputError
from bgad.evaluation.cells import KEYS
from bgad.evaluation.report import page as report
from bgad.evaluation.report.contents import ClassRow, ImageRow, LevelHistogram, RateRow
from tests.evaluation.report.pages import Page, cell, section, thumbnail, words

HOSTILE = "\"><script>alert('x')</script><img src=http://evil.example/a.png onerror=alert(1)>.png"


def test_page_is_well_formed_and_complete() -> None:
    page = report.render("All", [section(), section(title="cable")], [cell(), cell(category="cable")])
    parsed = Page(page)
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for a in parsed.find("a")} == {"#s0", "#s1"} <= {f"#{i}" for i in ids}
    for chart in parsed.find("svg"):
        assert {chart["aria-labelledby"], chart["aria-describedby"]} <= set(ids)
    assert len(parsed.find("svg")) == 2 * 4  # scores, ROC, PRO and one level, in each of two sections
    shown = words(page)
    headings = "Summary|Image scores|ROC|PRO|Log-likelihood|By defect class|False-reject rate|Worst mistakes|Gallery"
    for heading in (*headings.split("|"), "At most 5 % of good parts", "one note", "screw.bgad"):
        assert heading in shown
    assert "0.988" in shown
    assert "0.98765" not in shown
    assert "mean of 2" in shown
    assert "1 of 20 rejected" in shown
    assert "2 of 10 missed" in shown
    assert "1 in 300 good parts scores this high" in shown
    assert "images from 0 to 2.6; threshold 1.000" in shown  # what a screen reader hears about the histogram


def test_nothing_is_loaded_or_run() -> None:
    page = report.render("All", [section()], [cell()])
    parsed = Page(page)
    for _, attributes in parsed.tags:
        assert not [k for k in attributes if k.startswith("on")]
        for key in ("src", "href", "data", "action", "poster", "srcset", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:image/jpeg;base64,", "data:image/png;base64,"))
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in parsed.tags}
    assert "@import" not in page
    assert "url(" not in page
    policy = next(a["content"] for a in parsed.find("meta") if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy


def test_hostile_names_stay_text() -> None:
    row = ImageRow(HOSTILE, HOSTILE, 1, 2.0, 0.01, True, thumbnail("PNG"), thumbnail())
    level = LevelHistogram(HOSTILE, [0.0, 1.0], [1.0], [1.0], 0.5, 0.4)
    bad = section(
        title=HOSTILE,
        facts=[(HOSTILE, HOSTILE)],
        metrics={HOSTILE: 0.5},
        images=[row],
        levels=[level],
        classes=[ClassRow(HOSTILE, 1, None, None, None, 0)],
        notes=[HOSTILE],
        guarantee=HOSTILE,
    )
    parsed = Page(page := report.render(HOSTILE, [bad, bad], [cell(**dict.fromkeys(KEYS, HOSTILE))]))
    assert parsed.find("script") == []
    assert all("onerror" not in attributes for _, attributes in parsed.tags)
    assert len(parsed.find("img")) == 2 * (2 + 2)  # the same card among the mistakes and in the gallery
    assert HOSTILE in words(page)


def test_broken_file_name_can_be_written(tmp_path: Path) -> None:
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    bad = section(images=[ImageRow(name, "cut", 1, 1.0, 0.1, True)])
    report.write(tmp_path / "r.html", "t", [bad], [])
    assert r"caf\udce9.png" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_missing_values() -> None:
    normals = [i for i in section().images if i.label == 0]
    bare = section(
        metrics={"image_auroc": None, "pro": None, "pixel_ap": float("nan")},
        images=[replace(i, thumbnail=None, heat_map=None) for i in normals],
        threshold=float("inf"),
        levels=[],
        roc=([], []),
        pro=None,
        classes=[],
        rates=[RateRow(0.01, float("inf"), None, None, False)],
        facts=[],
        notes=[],
        guarantee="",
    )
    page = report.render("bare", [bare, section(images=[])], [])
    Page(page)
    assert page.count('title="no masks">–<') >= 2
    assert 'title="needs normal and anomalous images">–<' in page
    assert 'title="no anomalous images">–<' in page
    shown = words(page)
    for message in (
        "No masks",
        "Needs normal and anomalous images",
        "No anomalous images",
        "No thumbnails were kept",
    ):
        assert message in shown
    assert "not supported by so few held-out normals" in shown
    assert "Summary" not in shown
    assert "No images were scored" in shown
    assert "inf" not in re.findall(r"\w+", shown)
    assert "nan" not in re.findall(r"\w+", shown)


def test_write_replaces_the_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    report.write(path, "first", [], [])
    report.write(path, "second", [section()], [cell()])
    assert path.read_text(encoding="utf-8") == report.render("second", [section()], [cell()])
    assert list(path.parent.iterdir()) == [path]


def test_failed_write_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    report.write(path, "old", [], [])

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OutputError, match="No space left"):
        report.write(path, "new", [], [])
    assert "old" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(OutputError, match="cannot write") as caught:
            report.write(place, "t", [], [])
        assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
