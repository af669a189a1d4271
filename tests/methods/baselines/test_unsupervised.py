"""Losses and heads of the trained unsupervised baselines against formulas worked by hand and other libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import correlate1d
from scipy.spatial.distance import cdist, cosine
from scipy.stats import multivariate_normal
from sklearn.metrics import pairwise_distances_argmin

from bgad.errors import ConfigError
from bgad.methods.baselines.cfa import clusters, coupled_loss
from bgad.methods.baselines.draem import focal_loss
from bgad.model.heads.base import Head, HeadModel
from bgad.model.heads.cfa import CfaHead
from bgad.model.heads.distillation import KdadHead, MsfdHead, cosine_error, distillation_errors
from bgad.model.heads.draem import DraemHead
from bgad.model.heads.vt_adl import VtAdlHead, mixture_nll, reconstruction_error
from bgad.model.scoring import resize_maps
from bgad.model.ssim import ssim_map
from tests.methods.baselines.fits import SIZE, Bench, tiny


@pytest.fixture(scope="module")
def bench(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(data_set, tmp_path_factory.mktemp("unsupervised"))


def untrained(bench: Bench, method: str) -> Head:
    model = bench.prepare(tiny(method)).model
    assert isinstance(model, HeadModel)
    return model.head.eval()


def test_cfa_attracts_and_repels() -> None:
    """A small hypersphere pulls a patch at 1 to the nearest centre, 0; a large one pushes it from the next, -3."""
    for radius, towards in ((0.1, -1), (5.0, 1)):
        patch, bound = torch.tensor(1.0, requires_grad=True), torch.tensor(radius, requires_grad=True)
        coupled_loss((patch - torch.tensor([0.0, -3.0])).square(), bound, 1, 0.1).backward()  # type: ignore[no-untyped-call]
        assert patch.grad is not None
        assert bound.grad is not None
        assert -patch.grad.sign() == towards
        assert bound.grad.sign() == towards  # attraction widens the hyperspheres, repulsion narrows them


def test_cfa_stores_the_centres_of_clusters() -> None:
    rows = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    centres = clusters(rows, 5, seed=0)
    nearest = pairwise_distances_argmin(rows, centres)
    expected = np.stack([rows.numpy()[nearest == i].mean(0) for i in range(5)])
    np.testing.assert_allclose(centres.numpy(), expected, atol=1e-5)
    assert clusters(rows, 120, seed=0) is rows


def test_cfa_scores_by_the_soft_minimum(bench: Bench) -> None:
    head, data = untrained(bench, "cfa"), bench.prepare(tiny("cfa")).data
    assert isinstance(head, CfaHead)
    maps = data.maps(data.normals, np.arange(1))
    with torch.inference_mode():
        head.bank = head.embed(data.maps(data.normals, np.array([1])))[0, ::4]
        descriptors, output = head.embed(maps)[0].double(), head(maps)
    nearest = np.sort(cdist(descriptors, head.bank.double()), axis=1)[:, :3]
    scores = nearest[:, 0] * np.exp(-nearest[:, 0]) / np.exp(-nearest).sum(1)
    expected = resize_maps(torch.from_numpy(scores).reshape(1, 8, 8), (SIZE, SIZE), 4.0)
    np.testing.assert_allclose(output.map, expected, rtol=1e-3)
    assert float(output.score[0]) == pytest.approx(float(expected.max()), rel=1e-3)


def test_cfa_needs_a_bank_for_its_neighbours(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"baseline\.bank_share leaves 3 of 64: raise it"):
        list(bench.prepare(tiny("cfa", baseline={"bank_share": 0.05})).steps())


def test_errors_of_a_student() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 5, 4, 3, generator=generator), torch.randn(2, 5, 4, 3, generator=generator)
    at = cosine_error(student, teacher)
    assert at.shape == (2, 4, 3)
    assert float(at[1, 2, 1]) == pytest.approx(cosine(student[1, :, 2, 1], teacher[1, :, 2, 1]), rel=1e-5)
    values, directions = distillation_errors([(student, teacher), (2 * student, 2 * teacher)])
    squared = np.square(student[1].numpy() - teacher[1].numpy()).mean()
    assert float(values[1]) == pytest.approx(5 * squared, rel=1e-5)
    assert float(directions[1]) == pytest.approx(2 * cosine(student[1].ravel(), teacher[1].ravel()), rel=1e-5)


def test_a_perfect_student_finds_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A student that errs at one stride raises KDAD's sum, and MSFD's product only where it errs at the others, too."""
    for method, kind in (("msfd", MsfdHead), ("kdad", KdadHead)):
        head, data = untrained(bench, method), bench.prepare(tiny(method)).data
        assert isinstance(head, kind)
        maps = data.maps(data.normals, np.arange(2))
        _, *right = (maps[i] for i in head.maps)
        with torch.inference_mode():
            monkeypatch.setattr(head.student, "forward", lambda _, right=right: right)
            perfect = head(maps)
            monkeypatch.setattr(head.student, "forward", lambda _, right=right: [-right[0], *right[1:]])
            one_wrong = head(maps)
        assert perfect.map.abs().max() < 1e-5
        assert perfect.score.abs().max() < 1e-5
        assert (one_wrong.map.max() > 1.9) == (method == "kdad")
        assert (one_wrong.score.max() > 0.01) == (method == "kdad")


def random_images(count: int, size: int, seed: int) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_structural_similarity_is_that_of_its_formula() -> None:
    """The statistics of the window come from scipy, in double precision."""
    a, b = random_images(1, 24, 0), random_images(1, 24, 1).lerp(random_images(1, 24, 0), 0.7)
    offsets = np.arange(-5, 6)
    window = np.exp(-(offsets**2) / (2 * 1.5**2))
    window /= window.sum()

    def mean(values: np.ndarray) -> np.ndarray:
        once = correlate1d(values, window, 0, mode="mirror")
        return np.asarray(correlate1d(once, window, 1, mode="mirror"))

    expected = np.zeros((24, 24))
    for x, y in zip(a[0].double().numpy(), b[0].double().numpy(), strict=True):
        mx, my = mean(x), mean(y)
        vx, vy, vxy = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
        similarity = (2 * mx * my + 1e-4) * (2 * vxy + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
        expected += similarity / 3
    np.testing.assert_allclose(ssim_map(a, b)[0], expected, atol=1e-4)
    np.testing.assert_allclose(ssim_map(a, a), 1, atol=1e-5)
    assert ssim_map(a, 1 - a).mean() < -0.5


@pytest.mark.parametrize("method", ["ae-mse", "ae-ssim"])
def test_an_autoencoder_scores_its_largest_error(bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    head, images = untrained(bench, method), random_images(2, SIZE, 0)
    spoilt = images.clone()
    spoilt[1, :, 20:24, 30:34] = 0.5
    monkeypatch.setattr(head.decoder, "forward", lambda _: spoilt)
    with torch.inference_mode():
        output = head([images])
    error = (images - spoilt).square().mean(1) if method == "ae-mse" else 1 - ssim_map(images, spoilt)
    torch.testing.assert_close(output.map, error)
    torch.testing.assert_close(output.score, error.amax((1, 2)))
    assert output.score[0].abs() < 1e-5
    at = int(output.map[1].argmax())
    assert 14 <= at // SIZE <= 29
    assert 24 <= at % SIZE <= 39


@pytest.mark.parametrize("method", ["ae-mse", "ae-ssim"])
def test_an_autoencoder_learns_the_normals(bench: Bench, method: str) -> None:
    """Its mean error on normals falls by a quarter or more."""
    fit = bench.prepare(tiny(method))
    images = fit.data.maps(fit.data.normals, np.arange(4))
    with torch.no_grad():
        before = fit.model.head(images).map.mean()
    for _ in fit.steps():
        pass
    with torch.no_grad():
        after = fit.model.head(images).map.mean()
    assert after < 0.75 * before


def test_the_focal_loss_is_that_of_its_formula() -> None:
    logits = torch.tensor([[[2.0, 0.0], [-1.0, 0.5]]])  # (1, 2, 2): two pixels
    p = F.softmax(logits, 1)[0].double().numpy()
    right = np.array([p[0, 0], p[1, 1]])
    expected = -((1 - right) ** 2 * np.log(right)).mean()
    assert float(focal_loss(logits, torch.tensor([[0, 1]]))) == pytest.approx(expected, rel=1e-5)


def test_draem_averages_before_it_takes_the_maximum(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single pixel counts for one in 21 x 21; a large region counts in full."""
    head = untrained(bench, "draem")
    assert isinstance(head, DraemHead)
    logits = torch.full((2, 2, SIZE, SIZE), 20.0)
    logits[:, 1] = -20.0
    logits[0, :, 30, 30] = torch.tensor([-20.0, 20.0])
    logits[1, :, 10:50, 10:50] = torch.tensor([-20.0, 20.0])[:, None, None]
    monkeypatch.setattr(head, "predict", lambda images: (images, logits))
    output = head([random_images(2, SIZE, 0)])
    np.testing.assert_allclose(output.score, [1 / 21**2, 1], rtol=1e-3)
    assert output.map.sum((1, 2)).tolist() == pytest.approx([1, 40 * 40], rel=1e-3)


def test_a_mixture_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    codes, logits = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 5))
    means, stds = rng.normal(size=(3, 5, 4)), rng.uniform(0.5, 2, (3, 5, 4))
    found = mixture_nll(*(torch.from_numpy(x) for x in (codes, logits, means, stds)))
    weights = np.exp(logits[1]) / np.exp(logits[1]).sum()
    parts = [multivariate_normal(m, np.diag(s**2)).pdf(codes[0, 1]) for m, s in zip(means[1], stds[1], strict=True)]
    assert float(found[0, 1]) == pytest.approx(-np.log(weights @ parts), rel=1e-6)


def test_vt_adl_rates_the_patches_that_change(bench: Bench) -> None:
    """A code depends on all patches, but with one block switched off it depends on its own patch alone."""
    head, images = untrained(bench, "vt-adl"), random_images(1, SIZE, 0)
    assert isinstance(head, VtAdlHead)
    changed = images.clone()
    changed[:, :, 16:32, 48:64] = 0.0  # the patch in row 1 and column 3
    with torch.inference_mode():
        assert (head.encode(images) != head.encode(changed)).any(2).all()
        head.blocks = torch.nn.ModuleList()
        moved = (head.encode(images) != head.encode(changed)).any(2)[0]
    assert moved.nonzero().flatten().tolist() == [7]
    error = reconstruction_error(images, changed)
    expected = 5 * (images - changed).square().mean() + 0.5 * (1 - ssim_map(images, changed).mean())
    assert float(error[0]) == pytest.approx(float(expected), rel=1e-5)


def test_patches_must_fit_the_image(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.size must be a multiple of baseline\.patch \(24\)"):
        bench.prepare(tiny("vt-adl", baseline={"patch": 24}))
