"""The step loop of baselines: what a kill or a request to stop leaves, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bgad.errors import ModelError
from bgad.features.cache import Features
from bgad.methods import checkpoint
from bgad.methods.checkpoint import CHECKPOINT, LogRow
from bgad.methods.fitting import FitData
from bgad.methods.loop import Schedule, Step, constant, stepped, train_steps
from bgad.types import RunControl, StopRequest

OPTIMISERS = ("adam", "sgd")


def new_optimiser(name: str, net: nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(net.parameters())
    return torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)


def fit_data(work: Path, control: RunControl | None = None) -> FitData:
    features = Features([np.random.default_rng(0).random((12, 4, 3)).astype(np.float16)], np.arange(12))
    cpu = torch.device("cpu")
    return FitData(features, None, None, [(2, 2)], 5, cpu, work, 1e9, control or RunControl())


def new_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Conv2d(4, 1, 1))


def fit(net: nn.Module, data: FitData, optimiser: str = "adam", steps: tuple[int, ...] = (6,)) -> Iterator[LogRow]:
    """Train a small net in one or more stages; the second one follows another schedule."""

    def loss(step: Step) -> Tensor:
        maps = data.maps(data.normals, step.rng.choice(data.normals.count, 4, replace=False))
        output: Tensor = net(maps[0])
        return output.square().mean()

    for stage, count in enumerate(steps):
        schedule = Schedule(steps=count, lr=stepped(0.1, 2, 0.5) if stage else constant(0.05), stage=stage, clip_norm=1)
        yield from train_steps(net, new_optimiser(optimiser, net), loss, data, schedule)


def state(net: nn.Module) -> dict[str, list[float]]:
    return {key: value.flatten().tolist() for key, value in net.state_dict().items()}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("steps", [(6,), (4, 3)])
@pytest.mark.parametrize("killed_after", [1, 4, 5])
def test_a_killed_run_goes_on_to_the_same_bits(
    optimiser: str, steps: tuple[int, ...], killed_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    whole = new_net()
    rows = list(fit(whole, fit_data(tmp_path / "whole"), optimiser, steps))
    assert [row["step"] for row in rows] == list(range(sum(steps)))
    assert state(whole) != state(new_net())

    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", -1.0)
    (tmp_path / "killed").mkdir()
    running = fit(new_net(), fit_data(tmp_path / "killed"), optimiser, steps)
    for _ in range(killed_after):
        next(running)
    del running  # the last step is lost, as in a process that ends at once
    resumed = new_net()
    later = list(fit(resumed, fit_data(tmp_path / "killed"), optimiser, steps))
    assert state(resumed) == state(whole)
    assert [row["step"] for row in later][-1] == sum(steps) - 1
    logs = [(tmp_path / name / "train.csv").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]


def test_a_request_to_stop_saves_and_raises(tmp_path: Path) -> None:
    stop = StopRequest()
    net = new_net()
    running = fit(net, fit_data(tmp_path, RunControl(stop=stop)))
    next(running)
    assert stop.honoured
    stop.request()
    with pytest.raises(KeyboardInterrupt):
        next(running)
    assert checkpoint.read_note(tmp_path / CHECKPOINT)["step"] == 1
    assert not stop.honoured


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    net = new_net()
    before = torch.get_rng_state()
    assert len(list(fit(net, fit_data(tmp_path)))) == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_a_diverged_loss_is_one_line(tmp_path: Path) -> None:
    net = new_net()
    schedule = Schedule(steps=3, lr=constant(0.1))
    nan = lambda step: next(net.parameters()).sum() * torch.nan  # noqa: E731
    with pytest.raises(ModelError, match=r"diverged at step 0: lower baseline\.lr"):
        list(train_steps(net, new_optimiser("adam", net), nan, fit_data(tmp_path), schedule))
