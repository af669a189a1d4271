"""The supervised baselines: losses and heads on small tensors worked by hand, and what a step draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bgad.config import from_dict, preset_for
from bgad.config.baselines import NO_PSEUDO
from bgad.errors import ConfigError, ModelError
from bgad.features.cache import AnomalyFeatures
from bgad.methods.baselines.dra import dra_loss
from bgad.methods.baselines.losses import deviation_loss, exposure_loss, focal_loss, map_loss, margin_loss
from bgad.methods.baselines.saoe import outliers
from bgad.methods.baselines.supervised import Draws, halves, thirds
from bgad.methods.loop import Step
from bgad.model import backbone as backbones
from bgad.model.heads.base import FeatureSpec
from bgad.model.heads.devnet import DevnetHead, FlosHead
from bgad.model.heads.dra import DraHead, DraScores
from bgad.model.heads.fcdd import FcddHead, pseudo_huber
from bgad.model.heads.joined import TrainedFeatures
from bgad.model.heads.mlep import MlepHead
from bgad.model.heads.saoe import SaoeHead
from bgad.model.heads.supervised import SupervisedHead
from tests.methods.baselines.fits import Bench, tiny

SPEC = FeatureSpec((16, 32), (1, 1), ((2, 2), (1, 1)), 2)  # one channel each, so that values can be followed by hand
FINE = torch.tensor([[[[1.0, -2.0], [3.0, 0.0]]]])  # (1, 1, 2, 2), of stride 16
COARSE = torch.tensor([[[[10.0]]]])
UNIT = torch.tensor([-1.0, 0.0, 1.0])  # a reference of mean 0 and standard deviation 1


def head_of(method: str, kind: type[SupervisedHead], **settings: object) -> SupervisedHead:
    return kind(from_dict({"baseline": {"strides": [16, 32], **settings}}, preset_for(method, None)), SPEC)


def set_weights(module: torch.nn.Module, weights: list[float], bias: float = 0.0) -> None:
    """Fill a convolution of one output."""
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        parameters["weight"].copy_(torch.tensor(weights).reshape(parameters["weight"].shape))
        parameters["bias"].fill_(bias)


def test_the_deviation_loss_is_a_margin_in_standard_deviations() -> None:
    scores, reference = torch.tensor([3.0, 3.0, 40.0]), torch.tensor([0.0, 1.0, 2.0]) * 2  # mean 2, std 2
    labels = torch.tensor([0.0, 1.0, 1.0])
    assert deviation_loss(scores, labels, reference, 5.0).item() == pytest.approx((0.5 + 4.5 + 0) / 3)


def test_the_focal_loss_weakens_what_is_right() -> None:
    logits, labels = torch.tensor([0.0, math.log(3.0)]), torch.tensor([0.0, 1.0])  # right with p 1/2 and 3/4
    expected = (0.25 * math.log(2) + 0.0625 * math.log(4 / 3)) / 2
    assert focal_loss(logits, labels, 2.0).item() == pytest.approx(expected)
    cross_entropy = (math.log(2) + math.log(4 / 3)) / 2
    assert focal_loss(logits, labels, 0.0).item() == pytest.approx(cross_entropy)


def test_the_margin_loss_is_zero_beyond_the_margin() -> None:
    assert margin_loss(torch.tensor([2.0, 0.5]), torch.tensor([2.5, 9.0]), 1.0).item() == pytest.approx(0.25)


def test_outliers_must_not_be_normal() -> None:
    logits = torch.tensor([[math.log(2.0), 0.0, 0.0]])  # p(normal) = 1/2
    assert exposure_loss(logits).item() == pytest.approx(math.log(2))


def test_fcdd_compares_map_and_mask() -> None:
    maps = torch.tensor([[[1.0, 3.0]], [[1.0, 3.0]], [[1.0, 3.0]]])
    masks = torch.tensor([[[0.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]])  # a normal, with a mask, without one
    expected = [2.0, 0.5 - math.log(1 - math.exp(-1.5)), -math.log(1 - math.exp(-2.0))]
    for image, value in enumerate(expected):
        one = slice(image, image + 1)
        assert map_loss(maps[one], masks[one]).item() == pytest.approx(value, rel=1e-4)
    assert map_loss(maps, masks).item() == pytest.approx(sum(expected) / 3, rel=1e-4)
    zero = torch.zeros(1, 1, 2, requires_grad=True)
    map_loss(zero, masks[1:2]).backward()  # type: ignore[no-untyped-call]
    assert zero.grad is not None
    assert zero.grad.isfinite().all()
    assert zero.grad[0, 0, 0] > 0 > zero.grad[0, 0, 1]  # pulled outside of the defect, pushed inside


def test_dra_trains_each_head_on_its_images() -> None:
    scores = [torch.zeros(4, requires_grad=True) for _ in range(4)]
    loss = dra_loss(DraScores(*scores), (2, 1, 1), UNIT, 5.0)
    # normality: the two normals lack 5; the others: 5 for each anomaly that the head sees, of 3, 3 and 4 images
    assert loss.item() == pytest.approx(10 / 4 + 5 / 3 + 5 / 3 + 10 / 4)
    loss.backward()  # type: ignore[no-untyped-call]
    raised = [(score.grad < 0).tolist() for score in scores if score.grad is not None]
    normal, known, pseudo = [True, True, False, False], [False, False, True, False], [False, False, False, True]
    assert raised == [normal, known, pseudo, [False, False, True, True]]


def test_features_are_joined_and_standardised() -> None:
    head = head_of("devnet-frozen", DevnetHead)
    head.features.mean.copy_(torch.tensor([1.0, 4.0]))
    head.features.std.copy_(torch.tensor([2.0, 3.0]))
    joined = head.features([FINE, COARSE])
    assert len(joined) == 1
    assert joined[0].tolist() == [[[[0.0, -1.5], [1.0, -0.5]], [[2.0, 2.0], [2.0, 2.0]]]]


@pytest.mark.parametrize(("kind", "method"), [(DevnetHead, "devnet-frozen"), (FlosHead, "flos-frozen")])
def test_devnet_takes_absolute_scores_and_flos_signed_ones(kind: type[FlosHead], method: str) -> None:
    head = head_of(method, kind, top_share=0.5)
    assert isinstance(head, FlosHead)
    set_weights(head.scorer, [-2.0, 0.1])  # scores -1, 5, -5 and 1
    output = head([FINE, COARSE])
    expected = [[1.0, 5.0], [5.0, 1.0]] if kind is DevnetHead else [[-1.0, 5.0], [-5.0, 1.0]]
    torch.testing.assert_close(output.map, torch.tensor([expected]))
    assert output.score.item() == pytest.approx(5.0 if kind is DevnetHead else 3.0)


def test_dra_adds_its_anomaly_heads_and_subtracts_normality() -> None:
    head = head_of("dra-frozen", DraHead, top_share=0.25, hidden=1)
    assert isinstance(head, DraHead)
    set_weights(head.known, [1.0, 0.0])
    set_weights(head.pseudo, [0.0, -1.0])
    set_weights(head.residual, [0.0] * 4 + [1.0] + [0.0] * 13)  # the centre of the first channel
    set_weights(head.normality[0], [0.0, 1.0])
    set_weights(head.normality[2], [0.5])
    head.set_references([torch.tensor([[[[5.0, 5.0], [5.0, 5.0]], [[0.0, 0.0], [0.0, 0.0]]]])])
    output = head([FINE, COARSE])
    assert output.score.item() == pytest.approx(3.0 + 10.0 + 7.0)  # |-2 - 5| is the largest residual
    assert output.image is not None
    assert output.image.item() == pytest.approx(-5.0)
    torch.testing.assert_close(output.map, torch.tensor([[[1.0 + 10 + 4, 2.0 + 10 + 7], [3.0 + 10 + 2, 0.0 + 10 + 5]]]))


def test_saoe_scores_by_the_log_odds_of_the_mean() -> None:
    head = head_of("saoe-frozen", SaoeHead)
    assert isinstance(head, SaoeHead)
    set_weights(head.classifier, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0])  # the class of known anomalies is the first channel
    output = head([FINE, COARSE])
    assert output.score.item() == pytest.approx(math.log(math.exp(0.5) + 1))  # its mean is 1/2
    assert output.map[0, 1, 0].item() == pytest.approx(math.log(math.exp(3.0) + 1))


def test_mlep_scores_by_the_distance_from_the_centre() -> None:
    head = head_of("mlep-frozen", MlepHead, dimensions=1, top_share=0.5)
    assert isinstance(head, MlepHead)
    set_weights(head.embed, [2.0, 0.0])
    head.centre.fill_(1.0)
    output = head([FINE, COARSE])
    assert output.score.item() == pytest.approx(3.0)  # the highest half of 2, -4, 6, 0 has the mean 4
    torch.testing.assert_close(output.map, torch.tensor([[[1.0, 0.0], [5.0, 0.0]]]), atol=1e-5, rtol=0)


def test_fcdd_scores_by_the_mean_of_a_map_near_zero() -> None:
    head = head_of("fcdd-frozen", FcddHead, hidden=1, sigma=0.0)
    assert isinstance(head, FcddHead)
    set_weights(head.net[0], [0.0] * 4 + [1.0] + [0.0] * 13)
    set_weights(head.net[2], [1.0])
    output = head([FINE, COARSE])
    expected = [math.hypot(z, 1) - 1 for z in (1.0, -0.02, 3.0, 0.0)]  # the leaky unit weakens -2
    assert output.map.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert output.score.item() == pytest.approx(sum(expected) / 4)
    assert pseudo_huber(torch.tensor(0.0)) == 0


@pytest.fixture(scope="module")
def bench(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(data_set, tmp_path_factory.mktemp("supervised"))


@pytest.fixture
def draws(bench: Bench) -> Callable[[str], tuple[SupervisedHead, Draws]]:
    def prepare(method: str) -> tuple[SupervisedHead, Draws]:
        fit = bench.prepare(tiny(method))
        head = fit.model.head
        assert isinstance(head, SupervisedHead)
        return head, Draws(head, fit.data)

    return prepare


def test_a_step_has_half_or_a_third_normals(draws: Callable[[str], tuple[SupervisedHead, Draws]]) -> None:
    step = Step(0, np.random.default_rng(0))
    features, labels = halves(*draws("devnet-frozen"), step)
    assert labels.tolist() == [0.0] * 6 + [1.0] * 6
    assert features[0].shape == (12, 432, 4, 4)
    maps, counts = thirds(*draws("dra-frozen"), step)
    assert counts == (4, 4, 4)
    assert [len(one) for one in maps] == [12, 12]


def test_outliers_are_normals_with_the_defect_of_a_known_anomaly(
    draws: Callable[[str], tuple[SupervisedHead, Draws]],
) -> None:
    _, drawn = draws("saoe-frozen")
    marked = drawn.known
    for masked in (True, False):
        drawn.known = replace(marked, marked=[masked] * len(marked.marked))
        drawn.known = drawn.known if masked else _anywhere(drawn.known)
        pasted = outliers(drawn, Step(0, np.random.default_rng(0)), 3)
        # the same draws again: which anomalies, then which normals
        rng = np.random.default_rng(0)
        images = rng.integers(marked.features.count, size=3)
        normals = drawn.maps(drawn.data.normals, rng.integers(drawn.data.normals.count, size=3))
        for level, under, over, result in zip(
            drawn.levels, normals, drawn.maps(marked.features, images), pasted, strict=True
        ):
            changed = (result != under).any(1)
            assert torch.equal(result, torch.where(changed[:, None], over, under))
            if masked:
                assert torch.equal(changed, drawn.data.masks(marked, level, images) > 0)
        assert 0 < changed.sum() <= changed.numel()


def _anywhere(known: AnomalyFeatures) -> AnomalyFeatures:
    """The anomalies as they are without masks: all of their positions."""
    cells = [[np.arange(level.shape[1])] * known.features.count for level in known.features.levels]
    return replace(known, cells=cells)


def test_pseudo_anomalies_cannot_be_switched_off(bench: Bench) -> None:
    for method in ("dra-frozen", "saoe-frozen"):
        fit = bench.prepare(tiny(method, pseudo={"count": 0}))
        with pytest.raises(ConfigError, match=r"learns from pseudo anomalies: set pseudo\.method=cutmix"):
            list(fit.steps())
    assert preset_for("devnet-frozen", None).pseudo == NO_PSEUDO


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        ("devnet-frozen", {"steps": 0}, r"baseline\.steps must be at least 1"),
        ("devnet-frozen", {"margin": 0.0}, r"baseline\.margin must be above 0"),
        ("flos-frozen", {"top_share": 0.0}, r"baseline\.top_share must be above 0, at most 1"),
        ("flos-frozen", {"gamma": -1.0}, r"baseline\.gamma must be 0 or more"),
        ("dra-frozen", {"references": 0}, r"baseline\.references must be at least 1"),
        ("saoe-frozen", {"exposure_weight": -1.0}, r"baseline\.exposure_weight must be 0 or more"),
        ("mlep-frozen", {"dimensions": 0}, r"baseline\.dimensions must be at least 1"),
        ("fcdd-frozen", {"sigma": -1.0}, r"baseline\.sigma must be 0 or more"),
        ("fcdd-frozen", {"strides": [4, 64]}, r"baseline\.strides has 64, which is not in backbone\.strides"),
    ],
)
def test_settings_out_of_range_are_one_line(method: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(method, baseline=values)


def test_a_trained_network_starts_from_its_weights_and_moves(bench: Bench) -> None:
    fit = bench.prepare(tiny("dra", baseline={"steps": 2}))
    head = fit.model.head
    assert isinstance(head, SupervisedHead)
    assert isinstance(head.features, TrainedFeatures)
    weight = next(head.features.net.parameters())
    drawn = weight.detach().clone()
    steps = fit.steps()
    next(iter(steps))  # one step of the learning rate, from the weights of the package
    start = next(backbones.build(head.features.config).parameters())
    assert (drawn - start).abs().max() > 0.05
    assert 0 < (weight - start).abs().max() < 0.0021
    assert fit.finish().card.licences["backbone"].startswith("Apache-2.0")
    scales = head.features([torch.rand(2, 3, 64, 64)])
    assert [tuple(one.shape) for one in scales] == [(2, 40, 8, 8), (2, 40, 4, 4)]


def test_the_score_is_the_mean_over_the_scales() -> None:
    head = head_of("devnet-frozen", DevnetHead, top_share=0.5)
    assert isinstance(head, DevnetHead)
    set_weights(head.scorer, [1.0, 0.0])
    fine, coarse = torch.zeros(1, 2, 2, 2), torch.full((1, 2, 1, 1), 4.0)
    fine[0, 0, 0, 0] = 6.0
    output = head.rate([fine, coarse])
    assert output.score.item() == pytest.approx((3.0 + 4.0) / 2)
    torch.testing.assert_close(output.map, torch.tensor([[[5.0, 2.0], [2.0, 2.0]]]))


def test_what_a_network_cannot_take_is_one_line(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.size must be a multiple of 64 for 2 scales"):
        DevnetHead(preset_for("devnet", None), FeatureSpec((1,), (3,), ((96, 96),), 96))
    missing = str(tmp_path / "missing.pth")
    with pytest.raises(ModelError, match=r"cannot read the weights .*baseline\.weights take the place of"):
        list(bench.prepare(tiny("devnet", baseline={"weights": missing})).steps())
    with pytest.raises(ConfigError, match=r"baseline\.scales must be 1 to 3"):
        tiny("devnet", baseline={"scales": 0})
    with pytest.raises(ConfigError, match=r"baseline\.strides must be distinct and ascending"):
        tiny("devnet", baseline={"strides": [16, 8]})
