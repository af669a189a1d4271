"""The image head: cross-validated scores and the directions of known anomalies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bgad.training.fit_image_head import descriptors_of, fit_image_head
from bgad.training.image_head_statistics import DescriptorStatistics, FeatureStatistics, direction_peaks
from tests.training.prepared import one_stride, prepared


def test_known_anomalies_are_scored_out_of_fold(data_set: Path, tmp_path: Path) -> None:
    config = one_stride()
    model, training_set = prepared(data_set, config, tmp_path)
    head, known = model.image_head, training_set.anomalies[0]
    assert head is not None
    reference = np.arange(5)
    scores = fit_image_head(model, head, training_set.normals, known, reference)
    assert scores is not None
    assert (scores.normals.shape, scores.known.shape) == ((5,), (6,))
    # the first of six, by hand: directions from those that are not in its fold
    rest = np.array([1, 2, 3, 4])  # 0 and 5 are one fold of five
    summaries = descriptors_of(model, head, known.features)
    fitted = DescriptorStatistics(descriptors_of(model, head, training_set.normals))
    direction, _ = fitted.direction(summaries[rest])
    total = float(fitted.distances(summaries[:1])[0])
    places = [float(direction.excess(summaries[:1] @ direction.vector)[0])]
    for i in model.image_head_maps:
        cells = [known.cells[i][k] for k in rest]
        along = FeatureStatistics(training_set.normals.rows(i, np.arange(training_set.normals.count))).direction(
            known.features.rows(i, rest), cells
        )
        places.append(float(along.excess(direction_peaks(known.features.rows(i, np.array([0])) @ along.vector))[0]))
    assert max(places) > 0
    expected = total + config.score.direction_weight * sum(max(place, 0.0) for place in places)
    assert scores.known[0] == pytest.approx(expected, rel=1e-3)
    # a single one says nothing of its own direction
    alone = type(known)(known.features.select([0]), [c[:1] for c in known.cells], known.marked[:1])
    scores = fit_image_head(model, head, training_set.normals, alone, reference)
    assert scores is not None
    assert scores.known.tolist() == pytest.approx([total], rel=1e-4)
    assert scores.normals.tolist() == pytest.approx(fitted.normal_distances[reference].tolist(), rel=1e-3)


def test_taught_anomalies_have_directions_of_their_own(data_set: Path, tmp_path: Path) -> None:
    config = one_stride()
    model, training_set = prepared(data_set, config, tmp_path)
    head, known = model.image_head, training_set.anomalies[0]
    assert head is not None
    reference, first, taught = np.arange(5), np.array([0, 1, 3, 4]), np.array([2, 5])
    scores = fit_image_head(model, head, training_set.normals, known, reference, taught)
    assert scores is not None
    summaries = descriptors_of(model, head, known.features)
    fitted = DescriptorStatistics(descriptors_of(model, head, training_set.normals))
    places = {
        i: FeatureStatistics(training_set.normals.rows(i, np.arange(training_set.normals.count)))
        for i in model.image_head_maps
    }

    def along(kinds: list[Any], k: int) -> list[float]:
        """How far beyond an anomaly lies in the farthest direction of the kinds."""
        chosen = [fitted.direction(summaries[kind])[0] for kind in kinds]
        far = [max(float(d.excess(summaries[k : k + 1] @ d.vector)[0]) for d in chosen)]
        for i in model.image_head_maps:
            of_map = [
                places[i].direction(known.features.rows(i, kind), [known.cells[i][n] for n in kind]) for kind in kinds
            ]
            rows = known.features.rows(i, np.array([k]))
            far.append(max(float(d.excess(direction_peaks(rows @ d.vector))[0]) for d in of_map))
        return far

    with torch.inference_mode():
        rows = [torch.from_numpy(known.features.rows(i, np.arange(6))) for i in model.image_head_maps]
        beyond = head(rows)[1].numpy()
    np.testing.assert_allclose(beyond, [along([first, taught], k) for k in range(6)], rtol=1e-2, atol=1e-2)
    # as if they had not been seen: 0 and 5 are one fold, so 0 is judged by 1, 3 and 4, and by 2
    for k, kinds in ((0, [first[1:], taught[:1]]), (2, [first, taught[1:]])):
        far = along(kinds, k)
        expected = float(fitted.distances(summaries[k : k + 1])[0]) + config.score.direction_weight * sum(
            max(place, 0.0) for place in far
        )
        assert scores.known[k] == pytest.approx(expected, rel=1e-3)
    # where all were taught, there is one kind
    fit_image_head(model, head, training_set.normals, known, reference, np.arange(6))
    assert head.get_buffer("direction0").shape[0] == 1
