"""PaDiM and PatchCore against independent slow versions, and what they say where data or memory do not suffice."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import cdist, mahalanobis
from sklearn.neighbors import NearestNeighbors

from bgad.errors import ConfigError, DataError
from bgad.methods.baselines.patchcore import coreset
from bgad.model.heads.base import HeadModel
from bgad.model.heads.padim import PadimHead
from bgad.model.heads.patchcore import PatchcoreHead
from bgad.model.scoring import resize_maps
from bgad.types import ProgressTask
from tests.methods.baselines.fits import Bench, tiny


@pytest.fixture(scope="module")
def bench(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(data_set, tmp_path_factory.mktemp("frozen"))


def test_smoothing_is_that_of_scipy() -> None:
    maps = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = [gaussian_filter(one, 4.0) for one in resize_maps(maps, (64, 64)).numpy()]
    np.testing.assert_allclose(resize_maps(maps, (64, 64), 4.0).numpy(), expected, atol=1e-5)


def test_padim_is_the_mahalanobis_distance(bench: Bench) -> None:
    config = tiny("padim")
    model = bench.fit(config).model
    assert isinstance(model, HeadModel)
    head, data = model.head, bench.prepare(config).data
    assert isinstance(head, PadimHead)
    rows = torch.cat([head.embed(maps) for maps in data.batches(data.normals)]).double().numpy()  # (n, P, D)
    position = 37
    covariance = np.cov(rows[:, position], rowvar=False) + 0.01 * np.eye(rows.shape[2])
    expected = mahalanobis(rows[0, position], rows[:, position].mean(0), np.linalg.inv(covariance))
    centred = torch.from_numpy(rows[0, position]).float() - head.mean[position]
    assert float((centred @ head.whiten[position]).norm()) == pytest.approx(expected, rel=1e-3)


def test_patchcore_is_the_nearest_neighbour_with_its_weight(bench: Bench) -> None:
    config = tiny("patchcore")
    model = bench.fit(config).model
    assert isinstance(model, HeadModel)
    head, pool = model.head, bench.pool(config)
    assert isinstance(head, PatchcoreHead)
    maps = bench.prepare(config).data.maps(pool.features(bench.split.test[:1]), np.arange(1))
    with torch.inference_mode():
        patches, output = head.embed(maps)[0].numpy(), head(maps)
    bank = head.bank.numpy()
    distances, nearest = NearestNeighbors(n_neighbors=1).fit(bank).kneighbors(patches)
    at = int(distances.argmax())
    around = NearestNeighbors(n_neighbors=9).fit(bank).kneighbors(bank[nearest[at]], return_distance=False)[0]
    exponentials = np.exp(cdist(patches[at : at + 1], bank[around])[0] - distances[at])
    expected = distances[at, 0] * (1 - 1 / exponentials.sum())
    assert float(output.score[0]) == pytest.approx(expected, rel=1e-4)


def test_the_coreset_covers_better_than_chance() -> None:
    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(0)) ** 3
    chosen = coreset(rows, 40, 0, ProgressTask(None, "", 40))
    assert len(set(chosen.tolist())) == 40
    radius = [cdist(rows, rows[index]).min(1).max() for index in (chosen, torch.arange(40))]
    assert radius[0] < 0.6 * radius[1]


def test_a_covariance_needs_two_normals(bench: Bench) -> None:
    one = replace(bench.split, train=bench.split.train[:1])
    with pytest.raises(DataError, match="needs 2 normals to estimate a covariance, there are 1"):
        list(bench.prepare(tiny("padim"), one).steps())


def test_too_little_memory(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    padim = bench.prepare(tiny("padim"))
    padim.data = replace(padim.data, memory_bytes=1000.0)
    with pytest.raises(ConfigError, match=r"raise --memory, or set baseline\.channels below 20"):
        list(padim.steps())
    patchcore = bench.prepare(tiny("patchcore"))
    patchcore.data = replace(patchcore.data, memory_bytes=400_000.0)
    with caplog.at_level(logging.WARNING):
        list(patchcore.steps())
    assert "of the 64 patches of each image" in caplog.text
    assert not patchcore.model.head.get_buffer("bank").isnan().any()
    patchcore.data = replace(patchcore.data, memory_bytes=1000.0)
    with pytest.raises(DataError, match="raise --memory"):
        list(patchcore.steps())


def test_too_few_patches_for_the_weight(bench: Bench) -> None:
    few = replace(bench.split, train=bench.split.train[:1])
    config = tiny("patchcore", baseline={"neighbours": 64})
    with pytest.raises(DataError, match="needs more than 64 normal patches, there are 64"):
        list(bench.prepare(config, few).steps())
