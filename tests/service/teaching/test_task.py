from __future__ import annotations

from pathlib import Path

import numpy as np

from bgad.service.teaching.task import build_task
from tests.conftest import draw_image
from tests.service.conftest import Maker, as_file, png


def test_a_job_is_told_what_was_painted(make: Maker, data_set: Path) -> None:
    service = make(data=data_set.parent)
    image, mask = draw_image(np.random.default_rng(5), defect=True)
    marked, region = as_file(mask.astype(np.uint8) * 255), as_file(np.eye(64, dtype=np.uint8) * 255)
    number = service.score(as_file(image), "blot.png")
    service.bench.reviewing.review(number, "bad", "ann", mask=marked, ignore=region)
    good = service.score(png(70))
    service.bench.reviewing.review(good, "good", "ann", ignore=region)
    job = service.store.jobs.add("teach", service.store.versions.released("plate"), [number, good], "ann")
    bench = service.bench
    task = build_task(job, bench.folders.models, bench.store, bench.blobs, bench.folders)
    painted = {
        image.image: [path and Path(path).read_bytes() for path in (image.mask, image.ignore)] for image in task.new
    }
    assert painted == {number: [marked, region], good: [None, region]}
    assert task.available == []
