"""Measures the bound of docs/theory.md: `python -m benchmarks.theory` (needs MVTec AD screw below $BGAD_DATA).

Phase 1 trains the flows of the paper's recipe on normals. From there, phase 2 minimises L_ml + lambda * S for several
lambda, with the boundary fixed, where S is the mean violation of normals plus that of known anomalies. For each level
and lambda the script prints S, the likelihood loss, and two bounds on S: S0 + C / lambda, and the best exchange with
another of the trained flows. S must not exceed a bound by more than the gap of the optimiser divided by lambda.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from bgad.config import Config, preset_for
from bgad.data.datasets import registry
from bgad.data.protocols import Case, protocol_split
from bgad.data.sample_io import ImageCache
from bgad.features.cache import even_pick
from bgad.model.boundary import abnormal_boundary
from bgad.model.device import tune_allocator
from bgad.model.flow import Level
from bgad.model.scoring import LevelModel
from bgad.training.feature_pool import FeaturePool
from bgad.training.loop import LoopData, TrainingLoop, warm_cosine
from bgad.training.objective import NORMALISER
from bgad.training.training_set import TrainingSet

LAMBDAS = (0.1, 0.5, 1.0, 5.0, 10.0, 50.0)
STEPS, PEAK_LR, WARMUP = 400, 2e-3, 0.1
IMAGES, POSITIONS = 32, 64  # of a step
EVALUATED = 64  # normals that the losses are measured on, at all positions
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Losses:
    """The losses of one flow over the training set, in normalised units."""

    likelihood: float
    violation: float  # S: mean over all normals plus mean over all anomalies


def violation(normal: Tensor, abnormal: Tensor, b_n: float, tau: float) -> Tensor:
    """S: the mean violation of normals plus that of anomalies; log-likelihoods are normalised."""
    b_a = abnormal_boundary(b_n, tau)
    return (b_n - normal).clamp(min=0).mean() + (abnormal - b_a).clamp(min=0).mean()


@dataclass(frozen=True)
class Problem:
    """One level's features, and the boundary that phase 1 gave it."""

    level: Level
    number: int
    data: TrainingSet
    b_n: float
    tau: float

    def normal(self, level: Level, images: np.ndarray, positions: np.ndarray) -> Tensor:
        """Normalised log-likelihoods of normals, (images, positions)."""
        rows = torch.from_numpy(self.data.normals.rows(self.number, images[:, None], positions))
        return level(rows, torch.from_numpy(positions)) / NORMALISER  # type: ignore[no-any-return]

    def abnormal(self, level: Level) -> Tensor:
        """Normalised log-likelihoods of all marked features of the known anomalies, (1, features)."""
        known = self.data.known
        assert known is not None
        cells = known.cells[self.number]
        images = np.concatenate([np.full(len(positions), i) for i, positions in enumerate(cells)])
        positions = np.concatenate(cells)
        rows = torch.from_numpy(known.features.rows(self.number, images, positions))
        return level(rows[None], torch.from_numpy(positions)) / NORMALISER  # type: ignore[no-any-return]

    def train(self, weight: float) -> Level:
        """Minimise L_ml + weight * S from the flow of phase 1."""
        level = copy.deepcopy(self.level)
        optimiser = torch.optim.Adam(level.parameters())
        count, everywhere = self.data.normals.count, level.positions
        for step in range(STEPS):
            rng = np.random.default_rng([self.number, step])
            images = rng.choice(count, min(IMAGES, count), replace=False)
            positions = np.sort(rng.choice(everywhere, min(POSITIONS, everywhere), replace=False))
            normal = self.normal(level, images, positions)
            loss = -normal.mean() + weight * violation(normal, self.abnormal(level), self.b_n, self.tau)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(level.parameters(), 1.0)
            optimiser.param_groups[0]["lr"] = PEAK_LR * warm_cosine(step / STEPS, WARMUP)
            optimiser.step()
        return level

    def losses(self, level: Level) -> Losses:
        """The losses of a flow over the training set."""
        images = even_pick(self.data.normals.count, EVALUATED)
        with torch.inference_mode():
            parts = [
                self.normal(level, images[i : i + 4], np.arange(level.positions)) for i in range(0, len(images), 4)
            ]
            normal, abnormal = torch.cat(parts), self.abnormal(level)
            return Losses(-float(normal.mean()), float(violation(normal, abnormal, self.b_n, self.tau)))


def prepare(config: Config, work: Path) -> list[Problem]:
    """Run phase 1 on screw and return the problem of each level."""
    dataset = registry.load("mvtec", "screw")
    split = protocol_split(dataset, "multi-class", Case(), known=10, seed=config.seed)
    images = ImageCache(config.backbone.size, crop=config.backbone.crop)
    samples = [*split.train, *split.known]
    pool = FeaturePool(samples, split.hashes, images, config.backbone, device=CPU, folder=work, memory_gb=6)
    model = LevelModel(config, pool.backbone).to(pool.device)
    data = pool.training_set(split, config)
    loop = TrainingLoop(model, LoopData(data.normals), work, CPU)
    for _ in loop.phase(1):
        pass
    constants = loop.likelihoods.constants(data.normals)
    return [
        Problem(level, i, data, c.boundary / NORMALISER, config.loss.tau)
        for i, (level, c) in enumerate(zip(loop.levels, constants, strict=True))
    ]


def report(problem: Problem, lambdas: tuple[float, ...]) -> None:
    """Train one level with each lambda and print its violations beside the bounds."""
    start = problem.losses(problem.level)
    found = {weight: problem.losses(problem.train(weight)) for weight in (0.0, *lambdas)}
    lowest = min(x.likelihood for x in found.values())
    feasible = min(found.values(), key=lambda x: x.violation)  # the flow that comes closest to S = 0
    constant = feasible.likelihood - lowest
    print(f"level {problem.number}: b_n {problem.b_n:.4f}, tau {problem.tau}, S before phase 2 {start.violation:.5f}")
    print(f"  S of the closest flow {feasible.violation:.5f}, C = {constant:.5f}")
    print("  lambda   L_ml      S        S0 + C/lambda  best exchange  optimiser's gap / lambda")
    for weight in lambdas:
        own = found[weight]
        exchange = min(x.violation + (x.likelihood - own.likelihood) / weight for x in found.values())
        bound = feasible.violation + constant / weight
        gap = max(0.0, own.violation - exchange)
        print(f"  {weight:<6g} {own.likelihood:9.5f} {own.violation:9.5f} {bound:12.5f} {exchange:14.5f} {gap:14.5f}")


def main() -> None:
    """Measure all levels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lambdas", type=float, nargs="+", default=LAMBDAS)
    arguments = parser.parse_args()
    tune_allocator()
    config = preset_for("bgad", "paper-fast")
    config = replace(
        config,
        backbone=replace(config.backbone, name="lite0"),
        pseudo=replace(config.pseudo, method="none"),
    ).check()
    with TemporaryDirectory() as folder:
        for problem in prepare(config, Path(folder)):
            report(problem, tuple(arguments.lambdas))


if __name__ == "__main__":
    main()
