from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bgad import TrainOptions, load, train
from bgad.artifact import folder as model_folder
from bgad.calibration import MARGIN
from bgad.config import Config, ScoreConfig
from bgad.errors import BgadError, ConfigError, ImageError, ModelError
from bgad.inference.torch_engine import Detector
from bgad.io import images
from bgad.model.flow import P_VALUES, LevelConstants
from bgad.model.scoring import (
    OUTLIER_SLOPE,
    LevelModel,
    default_score_weights,
    fuse,
    level_anomaly,
    map_score,
    resize_maps,
    weight_files,
)
from bgad.types import ImageLike, Scores
from tests.conftest import SIZE, draw_image, level_model, tiny_config

QUANTILES = [-float(i) for i in range(len(P_VALUES))]  # of the normals of a level
ALIKE = torch.full((3,), 1 / 3)


def level_scores(model: LevelModel, log_p: Sequence[Tensor]) -> list[Tensor]:
    constants: list[Tensor] = [level.constants for level in model.levels]  # type: ignore[misc]
    return [level_anomaly(x, c, "p-value") for x, c in zip(log_p, constants, strict=True)]


@pytest.fixture(scope="module")
def detector(model: Path) -> Detector:
    return Detector.load(model, device="cpu")


@pytest.fixture(scope="module")
def pictures(data_set: Path) -> list[ImageLike]:
    """Seven images: good and bad, files and arrays, of several sizes."""
    rng = np.random.default_rng(5)
    wide = rng.integers(0, 256, (40, 90, 3), dtype=np.uint8)
    tall = rng.random((130, 70)).astype(np.float32)
    files: list[ImageLike] = [
        data_set / f"test/{name}.png" for name in ("good/000", "good/001", "blot/000", "blot/001")
    ]
    return [*files, wide, tall, draw_image(rng, defect=True)[0]]


def assert_same(found: Scores, expected: Scores) -> None:
    """To the last digits of float32, which change with the number of cores that work on one image."""
    assert found.score == pytest.approx(expected.score, rel=1e-5, abs=1e-4)
    np.testing.assert_allclose(found.map, expected.map, rtol=1e-4, atol=1e-4)
    for a, b in zip(
        found.levels, expected.levels, strict=True
    ):  # before the fusion, which flattens what is far outside
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert found.p_value == expected.p_value
    assert found.is_anomaly == expected.is_anomaly


def test_a_score_belongs_to_the_image_not_to_its_company(detector: Detector, pictures: list[ImageLike]) -> None:
    alone = [detector.score(image) for image in pictures]
    assert len({round(float(s.levels[0].mean()), 3) for s in alone}) == 7  # they do differ
    assert len({s.score for s in alone}) == 7
    assert level_model(detector).image_head is not None
    together = detector.score_many(pictures)
    order = np.random.default_rng(0).permutation(7)
    shuffled = detector.score_many([pictures[i] for i in order])
    crowd = detector.score_many(pictures * 3)
    for i, expected in enumerate(alone):
        assert_same(together[i], expected)
        assert_same(shuffled[list(order).index(i)], expected)
        assert_same(crowd[7 + i], expected)


def test_scoring_leaves_the_threads_of_the_process_alone(model: Path, pictures: list[ImageLike]) -> None:
    """An image alone uses the cores that were asked for; neither loading nor scoring changes another thread."""
    before = torch.get_num_threads()
    scorer = Detector.load(model, "cpu", threads=before + 1)
    seen: list[int] = []
    watch = scorer.model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    scorer.score(pictures[0])
    scorer.score_many(pictures)
    watch.remove()
    assert seen[0] == before + 1
    assert set(seen[1:]) == {1}
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == before == torch.get_num_threads()


def test_loading_again_gives_the_same_numbers(detector: Detector, model: Path, pictures: list[ImageLike]) -> None:
    again = load(str(model), device="cpu", engine="torch")
    for a, b in zip(detector.score_many(pictures), again.score_many(pictures), strict=True):
        assert a.score == b.score
        assert np.array_equal(a.map, b.map)
        assert a.p_value == b.p_value


def test_the_files_hold_all_of_the_model(detector: Detector, model: Path) -> None:
    for name, content in weight_files(detector.model).items():
        assert (model / name).read_bytes() == content


@pytest.mark.parametrize("shape", [(40, 90), (130, 70), (64, 64), (5, 300)])
def test_the_map_is_in_the_grid_of_the_image(detector: Detector, shape: tuple[int, int]) -> None:
    scores = detector.score(np.full((*shape, 3), 128, np.uint8))
    assert scores.map.shape == shape
    assert scores.map.dtype == np.float32
    assert [level.shape for level in scores.levels] == [(8, 8), (8, 8), (4, 4)]  # stride 4 is averaged to stride 8


def test_the_map_points_at_the_defect(detector: Detector, data_set: Path) -> None:
    """Also after stretching the image: rows and columns are not mixed up."""
    image = images.read(data_set / "test/good/003.png").copy()
    image[44:56, 8:20] -= 90
    tall = np.repeat(image, 3, axis=0)  # (192, 64, 3)
    heat = detector.score(tall).map
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert 3 * 40 <= row < 3 * 60
    assert 4 <= column < 24


def test_good_and_bad_are_told_apart(detector: Detector, data_set: Path) -> None:
    good = detector.score_many(sorted((data_set / "test/good").iterdir()))
    bad = detector.score_many(sorted((data_set / "test/blot").iterdir()))
    assert min(s.score for s in bad) > max(s.score for s in good)
    assert all(s.is_anomaly for s in bad)


def test_scores_are_consistent(detector: Detector, pictures: list[ImageLike]) -> None:
    held_out = detector.card.calibration_at().scores
    for scores in detector.score_many(pictures):
        assert scores.threshold == detector.threshold
        assert scores.is_anomaly == (scores.score > scores.threshold)
        assert scores.p_value == (1 + sum(s >= scores.score for s in held_out)) / (len(held_out) + 1)
        assert scores.boundary == detector.card.map.boundary


def test_the_boundary_is_the_edge_of_the_training_normals(detector: Detector, data_set: Path) -> None:
    roles = {i["name"]: i["role"] for i in detector.card.split["images"]}
    normals = [data_set / name for name, role in roles.items() if role == "train"]
    maps = np.stack([s.map for s in detector.score_many(normals)])
    assert len(maps) == 19
    assert np.mean(maps > detector.card.map.boundary) == pytest.approx(0.01, abs=1e-3)  # beta
    assert maps.mean() == pytest.approx(detector.card.map.mean, abs=1e-3)
    held_out = detector.score_many([data_set / name for name, role in roles.items() if role == "calibration"])
    raised = np.array(detector.card.calibration_at().scores) - sorted(s.score for s in held_out)
    assert (raised > 0).all()  # so that another engine does not call them anomalous
    assert (raised < 3 * MARGIN * np.std(detector.card.calibration_at().scores)).all()


@pytest.fixture(scope="module")
def two_strides(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Detector:
    """A model whose image head has both strides of the default."""
    out, config = (
        tmp_path_factory.mktemp("strides") / "plate.bgad",
        tiny_config(backbone={"image_head_strides": [16, 32]}),
    )
    train(data_set, out, config=config, options=TrainOptions(known=4, device="cpu", export=False))
    return Detector.load(out, "cpu")


@pytest.mark.parametrize("name", ["test/good/002.png", "test/blot/002.png"])
def test_levels_fuse_to_map_and_score(two_strides: Detector, data_set: Path, name: str) -> None:
    """The score consists of the parts that a report shows and of the image head."""
    detector = two_strides
    scores = detector.score(data_set / name)
    config = detector.model.config.score
    levels = level_scores(level_model(detector), [torch.from_numpy(level)[None] for level in scores.levels])
    np.testing.assert_allclose(fuse(levels, ALIKE, SIZE)[0].numpy(), scores.map, rtol=1e-4, atol=1e-4)
    shares = torch.tensor([level.weight for level in detector.card.levels])
    assert shares.sum().item() == pytest.approx(1)
    centre, spread = level_model(detector).map_constants.tolist()
    of_map = (float(map_score(fuse(levels, shares, SIZE), config.top_share)[0]) - centre) / spread
    of_image, of_known = image_head_by_hand(detector, data_set / name)
    assert scores.parts == pytest.approx({"map": of_map, "image": of_image, "known": of_known}, rel=1e-3, abs=1e-3)
    assert scores.score == pytest.approx(of_map + of_image + of_known, rel=1e-4)


def image_head_by_hand(detector: Detector, path: Path) -> tuple[float, float]:
    """Return the two parts that the image head adds to the score, from the backbone's maps and the head's buffers."""
    level, config = level_model(detector).image_head, detector.model.config
    assert level is not None
    pixels = images.fit(images.read(path), (SIZE, SIZE))
    maps = detector.model.backbone(torch.from_numpy(pixels)[None])
    rows = [maps[i][0].flatten(1).T.double().numpy() for i in (2, 3)]  # (positions, channels) of strides 16 and 32
    assert [r.shape for r in rows] == [(16, 112), (4, 320)]
    known = {key: value.double().numpy() for key, value in level.state_dict().items()}
    descriptor = np.concatenate([part for r in rows for part in (r.mean(0), r.std(0), r.max(0))])
    distance = np.linalg.norm(known["whiten"] @ (descriptor - known["mean"]))
    of_image = float((distance - known["constants"][0]) / known["constants"][1])
    of_known = 0.0
    # the highest twentieth of so few positions is one
    places = [
        descriptor @ known["direction0"][0],
        *((r @ known[f"direction{i}"][0]).max() for i, r in enumerate(rows, start=1)),
    ]
    for i, place in enumerate(places):
        start, spread = known[f"direction_scale{i}"][0]
        of_known += config.score.direction_weight * max(float(place - start) / float(spread), 0.0)
    weight = detector.card.part_weight("image")
    assert isinstance(weight, float)
    assert detector.card.part_weight("known") == pytest.approx(weight * config.score.direction_weight)
    return weight * of_image, weight * of_known


def test_the_image_head_is_fitted_to_the_training_set(two_strides: Detector, data_set: Path) -> None:
    """Its parts are set, and what resembles the known anomalies lies beyond the normals in each direction."""
    detector = two_strides
    level = level_model(detector).image_head
    assert level is not None

    def places(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
        files = sorted((data_set / folder).iterdir())
        pixels = np.stack([images.fit(images.read(path), (SIZE, SIZE)) for path in files])
        maps = detector.model.backbone(torch.from_numpy(pixels))
        found: tuple[torch.Tensor, torch.Tensor] = level([maps[i].flatten(2).transpose(1, 2) for i in (2, 3)])
        return found

    (good, good_beyond), (bad, bad_beyond) = places("test/good"), places("test/blot")
    assert bad_beyond.shape == (8, 3)
    assert good.max() < bad.min()
    assert (good_beyond.mean(0) < bad_beyond.mean(0)).all()
    assert (bad_beyond > 0).all()


def constants(*, highest: float = 0.0, spread: float = 1.0, quantiles: Sequence[float] = QUANTILES) -> Tensor:
    return torch.tensor(LevelConstants(0.0, spread, highest, -1.0, tuple(quantiles)).values())


def test_probability_by_hand() -> None:
    found = level_anomaly(torch.tensor([0.0, -1.0, 3.0, -1.0 - math.log(2)]), constants(highest=-1.0), "probability")
    # 1 - exp(log p - highest), not below 0; the last is half as likely as the most likely normal
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 0.0, 0.5]))


def test_p_values_by_hand() -> None:
    """Where log p is a quantile of the normals, the score is minus the logarithm of its p-value."""
    found = level_anomaly(torch.tensor([QUANTILES]), constants(), "p-value")
    torch.testing.assert_close(found, -torch.tensor([P_VALUES]).log())
    between, likely, beyond = torch.tensor([-0.5, 5.0, QUANTILES[-1] - 2 * 3.0])
    found = level_anomaly(torch.stack([between, likely, beyond]), constants(spread=3.0), "p-value")
    middle = -(math.log(P_VALUES[0]) + math.log(P_VALUES[1])) / 2
    expected = [middle, -math.log(P_VALUES[0]), -math.log(P_VALUES[-1]) + OUTLIER_SLOPE * math.log(3)]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_p_values_by_an_independent_slow_version() -> None:
    rng = np.random.default_rng(0)
    normals, log_p = rng.normal(size=100_000), rng.normal(-1, 2, size=500)
    c = LevelConstants.of(normals.astype(np.float32), 0.01)
    found = level_anomaly(torch.tensor(log_p, dtype=torch.float32), torch.tensor(c.values()), "p-value").numpy()
    for value, got in zip(log_p, found, strict=True):
        share = (normals <= value).mean()
        if 0.001 < share < 0.5:  # log p-values are interpolated between quantiles
            assert got == pytest.approx(-math.log(share), abs=0.15)
    assert (np.diff(found[np.argsort(-log_p)]) >= -1e-5).all()  # the less likely, the more anomalous


def test_p_values_of_normals_that_are_all_alike_are_finite() -> None:
    c = LevelConstants.of(np.full(100, -1.0, np.float32), 0.01)
    found = level_anomaly(torch.tensor([0.0, -1.0, -2.0]), torch.tensor(c.values()), "p-value")
    assert torch.isfinite(found).all()
    assert found[0] <= found[1] < found[2]


def test_far_outliers_keep_their_order() -> None:
    found = level_anomaly(torch.tensor([-10.0, -20.0, -400.0]), constants(), "p-value")
    assert found[0] < found[1] < found[2] < 40


def test_levels_count_by_their_weights() -> None:
    fine, coarse = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]]), torch.tensor([[[8.0]]])
    assert fuse([fine, coarse], torch.tensor([0.25, 0.75]), 2)[0].tolist() == [[6.0, 6.25], [6.5, 6.75]]


def test_the_default_mix_is_a_power_of_the_strides() -> None:
    for power, expected in ((0.0, [1 / 3] * 3), (1.0, [1 / 7, 2 / 7, 4 / 7]), (2.0, [1 / 21, 4 / 21, 16 / 21])):
        config = Config(score=ScoreConfig(level_prior_power=power, image_head_weight=0.7))
        assert default_score_weights(config) == pytest.approx([*expected, 0.7])


def test_levels_are_brought_to_one_grid_bilinearly() -> None:
    row = torch.tensor([[[0.0, 4.0], [0.0, 4.0]]])
    found = fuse([row], torch.ones(1), 4)
    assert found[0].tolist() == [[0.0, 1.0, 3.0, 4.0]] * 4  # cell centres, not corners, are aligned


def test_the_map_has_levels_alike_and_the_score_weighs_them(model: Path) -> None:
    """Other weights of the levels leave the map as it is, and change the map's part of the score."""
    scoring = level_model(Detector.load(model, device="cpu"))
    size = scoring.config.backbone.size
    pixels = torch.rand(2, size, size, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        parts, maps, log_p = scoring(pixels)
        levels = level_scores(scoring, log_p)
        mean, spread = scoring.map_constants
        for weights in ([0.2, 0.3, 0.5], [1.0, 0.0, 0.0]):
            scoring.score_weights[:-1] = torch.tensor(weights)
            again, same, _ = scoring(pixels)
            torch.testing.assert_close(same, maps)
            torch.testing.assert_close(again[:, 1:], parts[:, 1:])
            expected = map_score(fuse(levels, torch.tensor(weights), size), scoring.config.score.top_share)
            torch.testing.assert_close(again[:, 0], (expected - mean) / spread)
        torch.testing.assert_close(maps, fuse(levels, ALIKE, size))


def test_the_score_is_the_mean_of_the_highest() -> None:
    maps = torch.stack([torch.arange(100.0).view(10, 10), torch.zeros(10, 10)])
    assert map_score(maps, 0.0).tolist() == [99.0, 0.0]
    assert map_score(maps, 0.001).tolist() == [99.0, 0.0]  # never less than one pixel
    assert map_score(maps, 0.03).tolist() == [98.0, 0.0]
    assert map_score(maps, 1.0).tolist() == [49.5, 0.0]


def test_errors_come_in_their_place(detector: Detector, data_set: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    good, bad = data_set / "test/good/000.png", data_set / "test/blot/000.png"
    broken: list[object] = [tmp_path / "none.png", tmp_path / "text.png", np.zeros((4, 4, 3), np.int64), None]
    mixed: list[object] = [good, broken[0], bad, broken[1], *[good] * 9, broken[2], broken[3], bad]
    results = list(detector.score_stream(mixed))  # type: ignore[arg-type]
    assert len(results) == len(mixed)
    for item, result in zip(mixed, results, strict=True):
        if any(item is b for b in broken):
            assert isinstance(result, ImageError)
        else:
            assert isinstance(result, Scores)
            assert_same(result, detector.score(item))  # type: ignore[arg-type]
    assert "none.png" in str(results[1])
    with pytest.raises(BgadError, match=r"text\.png"):
        detector.score_many([good, tmp_path / "text.png"])
    with pytest.raises(ImageError):
        detector.score(tmp_path / "none.png")


def test_a_stream_is_read_as_it_is_needed(detector: Detector) -> None:
    image = np.full((SIZE, SIZE), 150, np.uint8)
    given = count()
    endless = (image for _ in given)
    assert len(list(islice(detector.score_stream(endless), 5))) == 5
    assert next(given) < 100


def test_nothing_in_nothing_out(detector: Detector) -> None:
    assert detector.score_many([]) == []
    with pytest.raises(TypeError, match="several images"):
        list(detector.score_stream("one.png"))


def test_arrays_of_every_depth_score_alike(detector: Detector, data_set: Path) -> None:
    path = data_set / "test/blot/003.png"
    eight = images.read(path)
    assert eight.shape[:2] == (SIZE, SIZE)  # no resizing, whose rounding depends on the type
    expected = detector.score(path)
    arrays = [eight, eight[..., 0], eight.astype(np.uint16) * 257, eight / 255, (eight / 255).astype(np.float32)]
    for array in arrays:
        assert detector.score(array).score == pytest.approx(expected.score, rel=1e-4)


def test_another_rate_moves_the_threshold(model: Path) -> None:
    detector = load(model, device="cpu")
    held_out = sorted(detector.card.calibration_at().scores)
    assert detector.threshold == held_out[-1]
    detector.set_rate(0.5)
    assert detector.threshold == held_out[-3]
    with pytest.raises(ConfigError, match="needs 99 held-out normals, there are 5"):
        detector.set_rate(0.01)
    assert detector.threshold == held_out[-3]
    image = np.full((SIZE, SIZE), 150, np.uint8)
    assert detector.score(image).threshold == held_out[-3]


def test_a_device_that_is_not_there(model: Path) -> None:
    with pytest.raises(ConfigError, match="device 'abacus' is not usable here"):
        load(model, device="abacus", engine="torch")


def test_weights_that_the_card_does_not_vouch_for_are_not_loaded(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy.bgad"
    content = {path.name: path.read_bytes() for path in model.iterdir()}
    listed = ("flow.safetensors", "split.json")
    model_folder.write(folder, model_folder.read(model), {name: content[name] for name in listed})
    (folder / "backbone.safetensors").write_bytes(content["backbone.safetensors"])
    with pytest.raises(ModelError, match=r"does not list backbone\.safetensors"):
        load(folder)


def test_without_an_image_head_the_score_is_the_mean_of_the_highest_map_values(
    plain_model: Path, data_set: Path
) -> None:
    detector = Detector.load(plain_model, device="cpu")
    assert [part.name for part in detector.card.score_parts] == ["map"]
    for scores in detector.score_many(sorted((data_set / "test").rglob("*.png"))):
        top = np.sort(scores.map, axis=None)[-41:]  # a hundredth of 64 x 64
        assert scores.score == pytest.approx(float(top.mean()), rel=1e-5)
        assert scores.parts == pytest.approx({"map": scores.score, "image": 0.0, "known": 0.0})


@pytest.mark.parametrize(("grid", "size"), [((4, 4), (16, 16)), ((5, 7), (16, 24)), ((4, 4), (4, 4)), ((8, 8), (5, 3))])
def test_enlarging_is_bilinear(grid: tuple[int, int], size: tuple[int, int]) -> None:
    maps = torch.rand(3, *grid, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.interpolate(maps[:, None], size=size, mode="bilinear")[:, 0]
    torch.testing.assert_close(resize_maps(maps, size), expected)


def test_levels_on_one_grid_count_as_if_enlarged_alone() -> None:
    levels = [torch.rand(2, *grid, generator=torch.Generator().manual_seed(1)) for grid in ((4, 4), (4, 4), (2, 2))]
    weights = torch.tensor([0.2, 0.3, 0.5])
    alone = [fuse([levels[i]], weights[i : i + 1], 8) for i in range(3)]
    torch.testing.assert_close(fuse(levels, weights, 8), alone[0] + alone[1] + alone[2])
