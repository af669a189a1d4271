"""Training one model on a cluster: the nodes extract the features of the normals, and this process trains on them.

All nodes must see the images and the work folder beside the model under the same paths.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from bgad.cluster.paths import absolute_sample
from bgad.cluster.tasks import Resources, run_tasks
from bgad.config import BackboneConfig, Config
from bgad.data import layouts
from bgad.data.sample_io import ImageCache
from bgad.features.cache import Budget, Extractor, FeatureStore, missing_shards, shard_file, write_shard
from bgad.inference.torch_engine import Detector
from bgad.model import backbone as backbones
from bgad.model import device as devices
from bgad.training.pipeline import Preparation, TrainOptions, prepared, read_training_data
from bgad.types import ProgressTask, RunControl, Sample, StopRequest


def train(
    data: str | Path,
    out: Path | None,
    config: Config,
    options: TrainOptions,
    resources: Resources,
    control: RunControl,
) -> Detector:
    """Train as `bgad.train` does, with features of the normals from the cluster that this process is connected to."""
    started = time.monotonic()
    recipe, destination = backbones.resolve(config.check()), out or layouts.model_folder(data)
    training_data = read_training_data(data, destination, recipe, options, control.progress)
    with prepared(training_data, destination, recipe, options, control, started=started) as preparation:
        extract_normals(preparation, resources)
        return preparation.train()


@dataclass(frozen=True)
class Shard:
    """Images whose features one task computes."""

    backbone: BackboneConfig
    grids: list[tuple[int, int]]
    channels: list[int]
    samples: list[Sample]
    bits: int
    tiled: bool
    device: str
    file: Path


def extract_normals(preparation: Preparation, resources: Resources) -> None:
    """Compute the feature shards of the training normals that are missing, as tasks on the cluster."""
    run, model, cache = preparation.run, preparation.model, preparation.cache
    config, samples, folder = model.config, run.training_split.train, cache.work.absolute() / "normals"

    def shard(part: slice) -> Shard:
        own = [absolute_sample(sample) for sample in samples[part]]
        file = shard_file(folder, cache.key, part.start)
        tiled, device = config.tile.size > 0, "cuda" if resources.gpus else "cpu"
        return Shard(config.backbone, model.grids, model.backbone.channels, own, run.bits, tiled, device, file)

    pieces = [shard(part) for part in missing_shards(folder, cache.key, len(samples))]
    task = ProgressTask(run.control.progress, "features on the cluster", len(samples))
    task.advance(len(samples) - sum(len(piece.samples) for piece in pieces))
    stop = run.control.stop or StopRequest()
    with stop.honour():
        for done in run_tasks(extract_shard, pieces, resources, stop):
            if done.error is not None:
                raise done.error
            task.advance(len(pieces[done.index].samples))
    if stop.requested:
        raise KeyboardInterrupt


def extract_shard(shard: Shard) -> None:
    """Compute the features of a shard and write its file."""
    device = devices.pick(shard.device)
    images = ImageCache(shard.backbone.size, crop=shard.backbone.crop, tiled=shard.tiled, max_bytes=0)
    images.bits = shard.bits
    store = FeatureStore(
        len(shard.samples), shard.grids, shard.channels, budget=Budget(float("inf")), folder=shard.file.parent
    )
    store.fill(_extractor(shard.backbone, device), lambda i: images.read(shard.samples[i]), device, lambda _: None)
    write_shard(shard.file, store.levels)


@lru_cache(maxsize=1)  # a worker process computes one shard after the other
def _extractor(config: BackboneConfig, device: torch.device) -> Extractor:
    return Extractor(backbones.build(config).to(device), config.size, device)
