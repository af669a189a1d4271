from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgad.evaluation import gallery
from bgad.evaluation.gallery import Gallery, select, thumbnail
from bgad.evaluation.report.contents import ImageRow, worst
from bgad.types import GOOD, Sample, Scores

MAP = np.zeros((2, 2), np.float32)


def test_a_thumbnail_keeps_the_shape_and_never_grows() -> None:
    image = np.zeros((100, 448, 3), np.uint8)
    image[..., 1] = 200
    small = thumbnail(image)
    assert small.shape == (50, gallery.THUMBNAIL_SIDE, 3)
    assert small.dtype == np.uint8
    assert np.unique(small[..., 1]).tolist() == [200]
    assert thumbnail(image[:9, :8]).shape == (9, 8, 3)
    assert thumbnail(np.zeros((1, 900, 3), np.uint8)).shape == (1, gallery.THUMBNAIL_SIDE, 3)


@given(st.lists(st.tuples(st.sampled_from([GOOD, "hole", "cut"]), st.integers(0, 9)), min_size=1, max_size=30))
def test_whatever_the_report_shows_has_a_thumbnail(images: list[tuple[str, int]]) -> None:
    samples = [Sample(Path(f"{i}"), f"{i}", int(defect != GOOD), defect) for i, (defect, _) in enumerate(images)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "SIZE", 4)
        patch.setattr(gallery, "WORST", 2)
        made = Gallery(samples)
        rows = []
        for i, (sample, (_, score)) in enumerate(zip(samples, images, strict=True)):
            result = Scores(score, 0.5, 5.0, score > 5, MAP, 0.0, 0.0)
            made.add(sample, result, np.full((3, 3, 3), i, np.uint8))
            rows.append(ImageRow(sample.name, sample.defect, sample.label, score, 0.5, score > 5))
            assert len(made.thumbnails) <= 6 + 2 * 2  # what goes over the classes, and the worst of each label
        normals, anomalies = worst(rows, 2)
        shown = select(samples, (row.name for row in [*normals, *anomalies]))
    assert shown <= set(made.thumbnails)
    assert all((made.thumbnails[name] == int(name)).all() for name in shown)
