from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bgad.errors import OutputError
from bgad.io import images, render

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (9, 13, 3), np.uint8)
GREY = RGB[..., 0]


def test_overlay_is_clear_below_the_contour_and_hotter_above() -> None:
    picture = np.full((1, 4, 3), 128, np.uint8)
    values = np.array([[0, 1, 1.5, 9]], np.float32)
    got = render.overlay(picture, values, contour=1.0).astype(int)
    np.testing.assert_array_equal(got[0, 0], 128)
    assert np.abs(got[0, 1] - 128).max() <= 14
    assert got[0, 2, 0] - got[0, 2, 2] > 30  # yellow
    assert got[0, 3, 1] < 80  # red
    assert got[0, 3, 0] > got[0, 3, 2]
    again = render.overlay(picture[:, :3], values[:, :3], contour=1.0, low=0.0)
    np.testing.assert_array_equal(again, got[:, :3])  # heat does not depend on the hottest place
    flat = render.overlay(picture / np.float32(255), np.zeros((1, 4), np.float32), contour=0.0)
    np.testing.assert_array_equal(flat, 128)


def slow_overlay(image: Any, map: Any, contour: float, low: float) -> Any:
    """Each pixel by the formula."""
    unit = contour - low if contour > low else 1.0
    haze = np.clip((map - low) / unit, 0, 1)
    heat = 1 - np.exp(-np.maximum(map - contour, 0) / unit)
    alpha = np.where(map > contour, 0.35 + 0.4 * heat, 0.1 * haze)[..., None]
    stops = np.linspace(0, 1, len(render.HEAT_COLOURS))
    colour = np.stack([np.interp(heat, stops, render.HEAT_COLOURS[:, c]) for c in range(3)], axis=-1)
    return np.rint(images.to_uint8(image) * (1 - alpha) + colour * alpha)


@pytest.mark.parametrize(("contour", "low"), [(1.0, 0.0), (0.3, 0.3), (-2.5, 1.0), (3.0, -5.0)])
@pytest.mark.parametrize("deep", [False, True])
def test_overlay_is_that_of_the_formula(contour: float, low: float, deep: bool) -> None:
    shape = (2 * render._STRIP_ROWS + 7, 90)
    picture = RNG.integers(0, 256, (*shape, 3), np.uint8)
    picture = picture / np.float32(255) if deep else picture
    values = RNG.normal(contour, 3, shape).astype(np.float32)
    values[0, :4] = contour, np.nextafter(np.float32(contour), np.float32(99)), np.inf, -np.inf
    got = render.overlay(picture, values, contour, low)
    assert got.dtype == np.uint8
    assert np.abs(got - slow_overlay(picture, values, contour, low)).max() <= 1


@pytest.mark.parametrize("width", [40, 300, 2000])
def test_a_legend_is_below_the_image_and_hides_nothing(width: int) -> None:
    picture = RNG.integers(0, 256, (50, width, 3), np.uint8)
    values = RNG.normal(1, 3, (50, width)).astype(np.float32)
    legend = render.Legend(0.0, 1.5, "the map threshold", "at most 5 % of good images show any contour")
    got = render.overlay_with_legend(picture, values, legend)
    np.testing.assert_array_equal(got[:50, :width], render.overlay(picture, values, 1.5, 0.0))
    assert (got[:50, width:] == 255).all()
    bar = render.draw_legend(legend, width)
    np.testing.assert_array_equal(got[50:], bar)
    assert bar.shape[1] >= width
    pad = min(max(11, width // 64), 64) // 2
    colours = bar[2 * pad, pad:-pad].astype(int)  # faint up to the contour, then coloured, as in the image
    strong = np.abs(colours - 160).max(axis=1) > 30
    steps = np.flatnonzero(strong)
    assert steps[-1] >= len(colours) - 2 - pad // 2
    assert steps[steps > pad][0] == pytest.approx(len(colours) * 1.5 / 6, abs=3)  # of 0 to 6


def test_save_map_is_exact_and_plain(tmp_path: Path) -> None:
    small = RNG.normal(0, 1, (12, 16)).astype(np.float32)
    values = images.resize_map(small, (480, 640))
    values[0, :3] = np.nan, -0.0, np.float32(1e-42)
    render.save_map(values, tmp_path / "größe.map.tif")
    with Image.open(tmp_path / "größe.map.tif") as stored:
        assert (stored.mode, stored.size) == ("F", (640, 480))
        assert stored.tag_v2.get(317, 1) == 1  # type: ignore[attr-defined]  # a predictor of floats is not read by all
        np.testing.assert_array_equal(np.asarray(stored).view(np.uint32), values.view(np.uint32))


def test_heat_ramp_falls_evenly_in_lightness() -> None:
    linear = (render.HEAT_COLOURS / 255) ** 2.2
    light = 116 * (linear @ [0.2126, 0.7152, 0.0722]) ** (1 / 3) - 16
    steps = -np.diff(light)
    assert steps.min() > 10
    assert steps.max() / steps.min() < 2


def test_outline_draws_the_rim_only() -> None:
    picture = np.zeros((20, 20, 3), np.uint8)
    mask = np.zeros((20, 20), bool)
    mask[0:6, 5:12] = True
    got = render.outline(picture, mask, (1, 2, 3))
    inside = np.zeros_like(mask)
    inside[1:5, 6:11] = True
    np.testing.assert_array_equal((got == (1, 2, 3)).all(axis=2), mask & ~inside)
    assert picture.max() == 0
    large = np.ones((1024, 10), bool)
    drawn = render.outline(np.zeros((1024, 10, 3), np.uint8), large)[512, :, 0] > 0
    np.testing.assert_array_equal(drawn, [1, 1, 0, 0, 0, 0, 0, 0, 1, 1])


def test_save_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "größe.png"
    render.save_png(GREY, path)
    render.save_png(RGB, path)
    np.testing.assert_array_equal(images.read(path), RGB)
    with pytest.raises(OutputError, match=r"cannot write .* is not a folder"):
        render.save_png(RGB, path / "sub" / "a.png")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left"):
        render.save_png(GREY, path)
    assert list(tmp_path.iterdir()) == [path]
    np.testing.assert_array_equal(images.read(path), RGB)
