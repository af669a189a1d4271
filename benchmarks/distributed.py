"""Whether training one model on several machines would pay: features, steps and the exchange of gradients, measured.

The features of an image and a step of the training are timed on this machine. Two processes then exchange gradients of
the flows by gloo, as data-parallel training would after every step.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import tempfile
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import machine, record
from benchmarks.memory import make
from bgad.config import Config, from_dict
from bgad.features.cache import BATCH, Extractor
from bgad.model import backbone as backbones
from bgad.model.device import tune_allocator
from bgad.model.scoring import LevelModel

ROUNDS = 40
SHORT, LONG = 40, 160  # steps of two trainings, whose difference gives the time of a step
NORMALS = 100_000  # of the example


def seconds_of_features() -> float:
    """Return the time of one image on one core."""
    config = Config().backbone
    extract = Extractor(backbones.build(config), config.size, torch.device("cpu"))
    batch = [np.random.default_rng(i).random((config.size, config.size, 3), np.float32) for i in range(BATCH)]
    extract(batch)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        extract(batch)
    return (time.perf_counter() - began) / ROUNDS / BATCH


def seconds_of_step(work: Path) -> float:
    """Return the time of one step with all cores, from two trainings of different length."""
    from bgad import TrainOptions, train

    data = make(work / "data", 60, 256)
    times = []
    for steps in (SHORT, LONG):
        config = from_dict({"train": {"steps": steps, "push_steps": 0}})
        began = time.perf_counter()
        train(data, work / f"{steps}.bgad", config=config, options=TrainOptions(device="cpu", export=False))
        times.append(time.perf_counter() - began)
    return (times[1] - times[0]) / (LONG - SHORT)


def exchange(rank: int, port: int, size: int, answer: SimpleQueue[float]) -> None:
    """Sum the gradients of two processes again and again."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    gradients = torch.ones(size)
    dist.all_reduce(gradients)
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(gradients)
    if rank == 0:
        answer.put((time.perf_counter() - began) / ROUNDS)
    dist.destroy_process_group()


def seconds_of_exchange(size: int) -> float:
    """Return the time in which two processes of this machine sum so many gradients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    answer: SimpleQueue[float] = context.SimpleQueue()
    processes = [context.Process(target=exchange, args=(rank, port, size, answer)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return answer.get()


def main() -> None:
    """Measure, print, append."""
    tune_allocator()
    print(machine())
    config = Config()
    model = LevelModel(config, backbones.build(config.backbone))
    size = sum(parameter.numel() for parameter in model.levels.parameters())
    features, exchanged = seconds_of_features(), seconds_of_exchange(size)
    with tempfile.TemporaryDirectory() as name:
        step = seconds_of_step(Path(name))
    steps = config.train.steps + config.train.push_steps
    print(f"features of an image on one core: {1000 * features:.1f} ms")
    print(f"features of {NORMALS} normals: {NORMALS * features / 60:.0f} core-minutes")
    print(f"{steps} steps of the default on this machine, whatever the number of normals: {steps * step:.0f} s")
    print(f"gradients of the flows: {size / 1e6:.1f} million, {4 * size / 2**20:.0f} MiB")
    record("a step on two machines at best, against one", step / 2 + exchanged, step, "s")


if __name__ == "__main__":
    main()
