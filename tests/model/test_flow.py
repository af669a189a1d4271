from __future__ import annotations

from dataclasses import replace

import FrEIA.framework
import FrEIA.modules
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

from bgad.config import Config, FlowConfig
from bgad.model.flow import (
    POSITION_CHANNELS,
    ConditionalFlow,
    CouplingBlock,
    FlowLevel,
    ScoringFlow,
    position_encoding,
    run_blocks,
)


def scrambled(channels: int, blocks: int = 8, seed: int = 3) -> ConditionalFlow:
    """A flow whose every parameter is away from its start, so that nothing is tested at a special value."""
    flow = ConditionalFlow(channels, blocks=blocks, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator) * (parameter.abs().mean() + 0.1))
    return flow


def freia_twin(flow: ConditionalFlow) -> nn.Module:
    """FrEIA's blocks with the same weights."""

    def subnet(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, flow.w_in.shape[1]), nn.ReLU(), nn.Linear(flow.w_in.shape[1], outputs))

    net = FrEIA.framework.SequenceINN(flow.channels)
    for i in range(flow.blocks):
        net.append(
            FrEIA.modules.AllInOneBlock,
            cond=0,
            cond_shape=(POSITION_CHANNELS,),
            subnet_constructor=subnet,
            affine_clamping=flow.clamp,
            global_affine_type="SOFTPLUS",
            permute_soft=True,
        )
        block = net.module_list[i]
        with torch.no_grad():
            block.subnet[0].weight.copy_(torch.cat([flow.w_in[i], flow.w_pos[i]], dim=1))
            block.subnet[0].bias.copy_(flow.b_in[i])
            block.subnet[2].weight.copy_(flow.w_out[i])
            block.subnet[2].bias.copy_(flow.b_out[i])
            block.global_scale.copy_(flow.scale[i][None])
            block.global_offset.copy_(flow.offset[i][None])
            block.w_perm.copy_(flow.rotation[i])
            block.w_perm_inv.copy_(flow.rotation[i].T)
    return net  # type: ignore[no-any-return]


@pytest.mark.parametrize("channels", [24, 40, 112, 7])
def test_equals_freia_with_the_same_weights(channels: int) -> None:
    flow = scrambled(channels)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, channels, generator=generator)
    position = position_encoding(8, 8)[[0, 9, 17, 30, 63]]
    with torch.no_grad():
        z, log_det = flow(x, flow.position_part(position))
        rows = x.reshape(15, channels)
        expected_z, expected_det = freia_twin(flow)(rows, [position.repeat(3, 1)])
    assert (z.reshape(15, channels) - expected_z).abs().max() < 1e-4
    assert (log_det.reshape(15) - expected_det).abs().max() < 1e-4


@pytest.mark.parametrize("channels", [2, 5, 12])
def test_log_determinant_against_autograd(channels: int) -> None:
    flow = scrambled(channels).double()
    part = flow.position_part(position_encoding(4, 4)[5:6].double()).detach()
    x = torch.randn(channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def forward(row: Tensor) -> Tensor:
        z: Tensor = flow(row[None, None], part)[0][0, 0]
        return z

    jacobian = torch.autograd.functional.jacobian(forward, x)  # type: ignore[no-untyped-call]
    expected = torch.linalg.slogdet(jacobian).logabsdet
    assert torch.isclose(flow(x[None, None], part)[1][0, 0], expected, atol=1e-10)


@pytest.mark.parametrize("channels", [6, 24, 31])
def test_inverse_undoes_forward(channels: int) -> None:
    flow = scrambled(channels).double()
    x = torch.randn(2, 9, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    part = flow.position_part(position_encoding(3, 3).double())
    # the rotations are stored in single precision, so their transposes are inverses up to its rounding
    assert torch.allclose(flow.inverse(flow(x, part)[0], part), x, atol=1e-4)


def test_log_likelihood_is_the_change_of_variables() -> None:
    flow = scrambled(6)
    x = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(4))
    part = flow.position_part(position_encoding(2, 2))
    with torch.no_grad():
        z, log_det = flow(x, part)
        found = flow.log_likelihood(x, part)[0].numpy()
    expected = (multivariate_normal(np.zeros(6), np.eye(6)).logpdf(z[0].numpy()) + log_det[0].numpy()) / 6
    assert np.allclose(found, expected, atol=1e-5)


def test_position_matters_and_is_shared() -> None:
    """The same feature at another place has another likelihood; all images of a batch share the position part."""
    flow = scrambled(24)
    x = torch.randn(1, 1, 24, generator=torch.Generator().manual_seed(5)).expand(3, 16, 24)
    with torch.no_grad():
        log_p = flow.log_likelihood(x, flow.position_part(position_encoding(4, 4)))
    assert torch.allclose(log_p[0], log_p[2], atol=1e-6)
    assert len(set(log_p[0].tolist())) == 16


def test_gradients_against_finite_differences() -> None:
    """What a block computes in place is nothing that its gradient needs."""
    flow = scrambled(7, blocks=3).double()
    generator = torch.Generator().manual_seed(6)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    def forward(x: Tensor, *stacked: Tensor) -> tuple[Tensor, Tensor]:
        return run_blocks(x, x.new_zeros(()), (CouplingBlock(*block) for block in zip(*stacked, strict=True)), 1.9)

    part = flow.position_part(position_encoding(2, 2)[:3].double()).detach()[:, :, :5].contiguous().requires_grad_()
    weights = [leaf(3, 5, 4), leaf(3, 6, 5), leaf(3, 6), leaf(3, 7, 7), leaf(3, 7)]
    assert torch.autograd.gradcheck(forward, (leaf(2, 3, 7), part, *weights))


@pytest.mark.parametrize(("channels", "grid"), [(6, (4, 5)), (7, (3, 3)), (2, (1, 6))])
def test_the_scoring_flow_is_the_flow(channels: int, grid: tuple[int, int]) -> None:
    flow = scrambled(channels, blocks=3)
    position = position_encoding(*grid)
    generator = torch.Generator().manual_seed(7)
    mean, std = torch.randn(channels, generator=generator), torch.rand(channels, generator=generator) + 0.5
    maps = torch.randn(3, channels, *grid, generator=generator)
    rows = maps.flatten(2).transpose(1, 2)  # (3, h * w, channels)
    with torch.no_grad():
        expected = flow.log_likelihood((rows - mean) / std, flow.position_part(position))
        found = ScoringFlow(flow, position, grid, mean, std)(maps)
    torch.testing.assert_close(found.flatten(1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", [None, [5], [0, 19, 7, 7, 3, 0, 12, 11, 4, 18, 1, 2]])
def test_the_position_part_of_many_positions_is_that_of_each(positions: list[int] | None) -> None:
    level = FlowLevel(6, (4, 5), replace(Config(), flow=FlowConfig(blocks=3)), seed=1)
    at = None if positions is None else torch.tensor(positions)
    weights = (level.flow.w_pos, level.flow.b_in)
    expected = level.flow.position_part(level.position if at is None else level.position[at])
    found = torch.stack(list(level.position_parts(at)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    factors = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    for a, b in zip(*(torch.autograd.grad((part * factors).sum(), weights) for part in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_scoring_flow_stores_no_table_of_all_positions() -> None:
    flow = ConditionalFlow(6, blocks=2, hidden_ratio=0.1)  # 13 hidden units
    position = position_encoding(20, 30)
    scoring = ScoringFlow(flow, position, (20, 30), torch.zeros(6), torch.ones(6))
    # position of rows and columns, first layer, second layer with bias, mixing with shift
    block = (20 + 30) * 13 + 13 * 3 + (6 * 13 + 6) + (6 * 6 + 6)
    assert sum(stored.numel() for stored in scoring.buffers()) == 2 * block + 6 + 6 + 1  # scale, shift, log-determinant
    assert not list(scoring.parameters())


def test_rotations_are_rotations() -> None:
    rotation = ConditionalFlow(24).rotation
    eye = torch.eye(24).expand(8, 24, 24)
    assert torch.allclose(rotation @ rotation.transpose(1, 2), eye, atol=1e-5)
    assert torch.allclose(torch.linalg.det(rotation), torch.ones(8), atol=1e-4)


def test_seed_fixes_every_weight() -> None:
    a, b, c = (ConditionalFlow(8, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(a["w_in"], c["w_in"])


def test_position_encoding_by_hand() -> None:
    code = position_encoding(2, 3, channels=8)  # 4 values for x, 4 for y; rates 1 and 1/100
    assert code.shape == (6, 8)
    x, y = 2.0, 1.0
    expected = [
        np.sin(x),
        np.cos(x),
        np.sin(x / 100),
        np.cos(x / 100),
        np.sin(y),
        np.cos(y),
        np.sin(y / 100),
        np.cos(y / 100),
    ]
    assert np.allclose(code[5].numpy(), expected, atol=1e-6)
    with pytest.raises(ValueError, match="multiple of 4"):
        position_encoding(2, 2, channels=6)


def test_training_raises_the_likelihood() -> None:
    flow = ConditionalFlow(6, blocks=3, hidden_ratio=0.5)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, 6, generator=generator) * torch.tensor([0.1, 1, 2, 0.5, 3, 1])
    position = position_encoding(2, 2)
    optimiser = torch.optim.Adam(flow.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = -flow.log_likelihood(x, flow.position_part(position)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
