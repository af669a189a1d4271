"""Every baseline by its name: it learns from what it may see and from nothing else, and scores as our models do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bgad.artifact import folder as model_folder
from bgad.config import BASELINES, PRESETS, from_dict, preset_for
from bgad.errors import ConfigError, DataError
from bgad.export import export
from bgad.features.scoring import run_features
from bgad.inference.load import load
from bgad.inference.torch_engine import Detector, run_model
from bgad.methods import checkpoint
from bgad.methods.baselines import FITS
from bgad.methods.checkpoint import CHECKPOINT
from bgad.model.heads import HEADS
from bgad.model.scoring import weight_files
from bgad.types import PARTS
from tests.methods.baselines.fits import CPU, NOT_MISLED, Bench, brief, same, state_of, tiny

pytestmark = pytest.mark.parametrize("method", BASELINES)


@pytest.fixture(scope="module")
def bench(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(data_set, tmp_path_factory.mktemp("baselines"))


@pytest.fixture(scope="module")
def trained(bench: Bench) -> Callable[[str], Detector]:
    """Fits a baseline by its name, once."""
    return cache(lambda method: bench.fit(tiny(method)))


@pytest.fixture(scope="module")
def begun(bench: Bench) -> Callable[[str], Detector]:
    """Fits a baseline by its name for a few steps, once: what decides about its bits decides in every step."""
    return cache(lambda method: bench.fit(brief(method)))


def test_an_entry_is_complete(method: str) -> None:
    entry = BASELINES[method]
    assert set(HEADS) == set(FITS) == set(BASELINES)
    assert "smoke" in entry.presets
    assert entry.presets[0] == "default"
    for preset in entry.presets:
        assert preset in PRESETS
        assert preset_for(method, preset).check().method == method
    assert "As printed" in str(FITS[method].__globals__["__doc__"])


def test_it_learns(bench: Bench, trained: Callable[[str], Detector], method: str) -> None:
    assert bench.image_auroc(trained(method)) > 0.8
    if method not in NOT_MISLED:
        misled = bench.fit(tiny(method), bench.with_wrong_labels(method))
        assert bench.separation(misled) < bench.separation(trained(method))


def test_the_fit_depends_on_its_images_and_the_seed_alone(
    bench: Bench, begun: Callable[[str], Detector], method: str
) -> None:
    """The same bits come out when all other images are destroyed."""
    config = brief(method)
    store = bench.pool(config).store
    others = [bench.pool(config).number(sample) for sample in bench.unused(method)]
    kept = [level[others].copy() for level in store.levels]
    try:
        for level in store.levels:
            level[others] = np.nan
        fit = bench.prepare(config)
        for _ in fit.steps():
            pass
    finally:
        for level, values in zip(store.levels, kept, strict=True):
            level[others] = values
    again = {f"head.{key}": value for key, value in fit.model.head.state_dict().items()}
    assert same(again, state_of(begun(method)))


def test_another_seed_gives_another_model(bench: Bench, begun: Callable[[str], Detector], method: str) -> None:
    assert not same(state_of(bench.fit(brief(method, seed=1))), state_of(begun(method)))


def test_a_killed_fit_goes_on_to_the_same_bits(
    bench: Bench,
    begun: Callable[[str], Detector],
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", -1.0)
    killed = bench.prepare(brief(method), work=tmp_path).steps()
    for _ in range(3):  # saves two steps; the third is lost
        next(killed, None)
    killed.close()  # type: ignore[attr-defined]
    resumed = bench.fit(brief(method), work=tmp_path)
    assert same(state_of(resumed), state_of(begun(method)))
    if (tmp_path / CHECKPOINT).exists():
        assert resumed.card.training.steps == begun(method).card.training.steps


def test_a_score_belongs_to_its_image(bench: Bench, trained: Callable[[str], Detector], method: str) -> None:
    """The score and its parts do not depend on the batch, and the parts add up to the score."""
    detector, images = trained(method), bench.pool(tiny(method)).images
    pixels = np.stack([images.read(sample) for sample in bench.split.test[-3:]])
    together = run_model(detector.model, pixels, CPU)
    for i, one in enumerate(pixels):
        alone = run_model(detector.model, one[None], CPU)
        np.testing.assert_allclose(alone.parts[0], together.parts[i], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(alone.maps[0], together.maps[i], rtol=1e-3, atol=1e-4)
    assert together.maps.shape == (3, *detector.card.input.shape)
    np.testing.assert_allclose(together.parts.sum(1), together.scores, rtol=1e-5)
    assert np.any(together.parts[:, PARTS.index("map")])
    assert {part.name for part in detector.card.score_parts} <= {"map", "image"}


def test_cached_features_give_the_scores_of_the_image(
    bench: Bench, trained: Callable[[str], Detector], method: str
) -> None:
    detector, pool = trained(method), bench.pool(tiny(method))
    samples = bench.split.test[::4]
    from_pixels = run_model(detector.model, np.stack([pool.images.read(s) for s in samples]), CPU).scores
    from_features = [output.score for output in run_features(detector.model, pool.features(samples), CPU)]
    spread = float(np.ptp(from_pixels))  # the cache is in half precision
    np.testing.assert_allclose(from_features, from_pixels, rtol=0.02, atol=0.01 * spread)


def test_a_model_folder_holds_all_of_it(
    bench: Bench, trained: Callable[[str], Detector], method: str, tmp_path: Path
) -> None:
    """The folder is read again on torch and, without torch, on ONNX Runtime, with the same scores."""
    detector, images = trained(method), bench.pool(tiny(method)).images
    inputs = [images.read(sample) for sample in bench.split.test[::4]]
    graph, parity = export.checked_graph(detector, inputs=inputs)
    assert parity.holds
    files = {**weight_files(detector.model), model_folder.SPLIT: bench.split.to_bytes(), **graph}
    model_folder.write(tmp_path / "x.bgad", detector.card, files)
    expected = detector.score_many([s.path for s in bench.split.test[:3]])
    for engine in ("torch", "onnx"):
        read = load(tmp_path / "x.bgad", "cpu", engine=engine)
        assert read.card.method == method
        assert read.card.config == tiny(method)
        scores = read.score_many([s.path for s in bench.split.test[:3]])
        np.testing.assert_allclose([s.score for s in scores], [s.score for s in expected], rtol=1e-4)


def test_missing_anomalies_or_masks_are_one_line(bench: Bench, method: str) -> None:
    entry = BASELINES[method]
    bare = replace(bench.split, known=[])
    if not entry.supervised:
        assert bench.prepare(tiny(method), bare).data.known is None
        return
    with pytest.raises(DataError, match=f"{method} needs known anomalies, and there are none"):
        bench.prepare(tiny(method), bare)
    unmarked = replace(bench.split, known=[replace(sample, mask=None) for sample in bench.split.known])
    if entry.needs_masks:
        with pytest.raises(DataError, match=f"{method} needs known anomalies with masks"):
            bench.prepare(tiny(method), unmarked)
    else:
        assert bench.prepare(tiny(method), unmarked).data.known is not None


def test_other_sections_of_the_recipe_have_no_effect(method: str) -> None:
    config = tiny(method)
    for part, value in (("flow", {"blocks": 3}), ("train", {"steps": 3}), ("score", {"top_share": 0.5})):
        with pytest.raises(ConfigError, match=f"{part} has no effect in {method}"):
            from_dict({part: value}, config)
