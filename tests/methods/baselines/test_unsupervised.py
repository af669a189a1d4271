"""Losses and heads of the trained unsupervised baselines against formulas worked by hand and other libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, cosine
from sklearn.metrics import pairwise_distances_argmin

from bgad.errors import ConfigError
from bgad.methods.baselines.cfa import clusters, coupled_loss
from bgad.model.heads.base import Head, HeadModel
from bgad.model.heads.cfa import CfaHead
from bgad.model.heads.distillation import KdadHead, MsfdHead, cosine_error, distillation_errors
from bgad.model.scoring import resize_maps
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
