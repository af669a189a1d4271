"""Samples with absolute paths, which mean the same file to every process of a cluster."""

from __future__ import annotations

from dataclasses import replace

from bgad.data.layouts import Dataset
from bgad.types import Sample


def absolute_data(dataset: Dataset) -> Dataset:
    """Return a data set with absolute paths: a worker may run in another folder."""
    return replace(dataset, root=dataset.root.absolute(), samples=list(map(absolute_sample, dataset.samples)))


def absolute_sample(sample: Sample) -> Sample:
    """Return a sample with absolute paths."""
    paths = {key: getattr(sample, key) for key in ("mask", "roi", "ignore")}
    return replace(
        sample,
        path=sample.path.absolute(),
        more_masks=tuple(path.absolute() for path in sample.more_masks),
        **{key: path.absolute() for key, path in paths.items() if path is not None},
    )
