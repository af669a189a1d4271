"""A training step of the flow against the same flow built from FrEIA's blocks, in one run.

4,096 features at 24, 40 and 112 channels on grids of 64 x 64, 32 x 32 and 16 x 16; forward, backward, optimiser.
Both sides have the same number of threads and the same allocator settings.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks import machine, record
from benchmarks.plain import freia_flow
from bgad.config import FlowConfig
from bgad.model.device import tune_allocator
from bgad.model.flow import ConditionalFlow, position_encoding

LEVELS = ((24, 64), (40, 32), (112, 16))
IMAGES, POSITIONS = 32, 128
ROUNDS = 7
BLOCKS = 8  # as in the paper

Step = Callable[[], None]


def ours(channels: int, grid: int) -> Step:
    """A step of our flow on random features at random positions."""
    flow = ConditionalFlow(channels, blocks=BLOCKS)
    optimiser = torch.optim.Adam(flow.parameters(), 2e-4, fused=True)
    encoding = position_encoding(grid, grid)
    x = torch.randn(IMAGES, POSITIONS, channels)

    def step() -> None:
        at = torch.randperm(grid * grid)[:POSITIONS]
        optimiser.zero_grad()
        loss = -flow.log_likelihood(x, flow.position_part(encoding[at])).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def freia(channels: int, grid: int) -> Step:
    """The same step with FrEIA's blocks, the position joined to every feature."""
    flow = freia_flow(channels, FlowConfig(blocks=BLOCKS))
    optimiser = torch.optim.Adam([p for p in flow.parameters() if p.requires_grad], 2e-4, fused=True)
    encoding = position_encoding(grid, grid)
    x = torch.randn(IMAGES * POSITIONS, channels)

    def step() -> None:
        at = torch.randint(grid * grid, (IMAGES * POSITIONS,))
        optimiser.zero_grad()
        z, log_det = flow(x, [encoding[at]])
        loss = ((0.5 * z.square().sum(1) - log_det) / channels).mean()
        loss.backward()
        optimiser.step()

    return step


def main() -> None:
    """Take turns, so that noise hits both sides alike; medians, summed over the levels."""
    tune_allocator()
    torch.manual_seed(0)
    print(machine())
    totals = [0.0, 0.0]
    for channels, grid in LEVELS:
        steps = [ours(channels, grid), freia(channels, grid)]
        times: list[list[float]] = [[], []]
        for turn in range(ROUNDS + 1):
            for side, step in enumerate(steps):
                began = time.perf_counter()
                step()
                if turn:  # the first one warms up
                    times[side].append(time.perf_counter() - began)
        medians = [statistics.median(t) for t in times]
        totals = [total + median for total, median in zip(totals, medians, strict=True)]
        print(f"{channels:4d} channels  ours {medians[0] * 1e3:7.1f} ms   FrEIA {medians[1] * 1e3:7.1f} ms")
    record("flow training step, three levels of 4,096 features, against FrEIA", totals[0], totals[1], "s")


if __name__ == "__main__":
    main()
