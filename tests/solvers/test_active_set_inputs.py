"""What the active set solver takes, and refuses, and other devices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import structinf as si
from active_set_problems import BOTH, TIGHT, Listed, assignments, chains, draw
from structinf.errors import InfeasibleError, PluginError
from structinf.oracle import Oracle
from structinf.parts import as_tuple, map_parts
from structinf.solvers.active_set import active_set
from structinf.solvers.active_set_sequence import ActiveSetSequence


@BOTH
def test_empty_batch_and_empty_events(solver):
    solution = solver(Listed(assignments(3)), torch.zeros(0, 3, 3), **TIGHT)
    assert solution.mean.shape == (0, 3, 3)
    assert solution.weights.shape == (0, 0)
    assert solution.oracle_calls == 0
    assert solution.support().shape == (0, 0, 3, 3)
    assert solution.vjp(torch.zeros(0, 3, 3), None).shape == (0, 3, 3)
    nothing = solver(Listed(torch.zeros(1, 0)), torch.zeros(2, 0), **TIGHT)
    assert nothing.converged.all()
    assert nothing.weights.tolist() == [[1, 1]]
    assert nothing.value.tolist() == [0, 0]


@BOTH
def test_input_is_left_alone(solver):
    base = draw(43, 3, 4, 4).transpose(1, 2)
    theta = base.clone().transpose(1, 2).requires_grad_()
    before = theta.detach().clone()
    solution = solver(Listed(assignments(4)), theta, **TIGHT)
    assert torch.equal(theta, before)
    assert theta.grad is None
    assert not solution.mean.requires_grad
    same = solver(Listed(assignments(4)), before.contiguous(), **TIGHT)
    assert torch.equal(solution.mean, same.mean)


@BOTH
def test_infeasible_instance_is_named(solver):
    theta = draw(44, 3, 3, 3)
    theta[1, 0] = -torch.inf
    with pytest.raises(InfeasibleError) as error:
        solver(Listed(assignments(3)), theta, **TIGHT)
    assert error.value.batch_index == 1


@BOTH
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda t: t[:1], "shape"),
        (lambda t: torch.zeros_like(t).float(), "dtype"),
        (lambda t: (torch.zeros_like(t),), "form"),
        (lambda t: t.numpy(), "form"),
        (lambda t: torch.ones_like(t), "batch index 1"),
        (lambda t: -torch.ones_like(t), "batch index 1"),
        (lambda t: torch.full_like(t, torch.nan), "batch index 0"),
    ],
)
def test_broken_oracles_are_reported(solver, answer, message):
    class Broken(Oracle):
        event_ndim = 1
        name = "broken"

        def argmax(self, theta):
            return answer(theta)

    theta = draw(45, 2, 3)
    theta[1, 1] = -torch.inf
    with pytest.raises(PluginError, match=f"broken.*{message}"):
        solver(Broken(), theta, **TIGHT)


@pytest.mark.cuda
@pytest.mark.parametrize("readout", ["all", "kept", "mixed"])
def test_cuda(readout):
    tags, moves = chains(4, 3)
    if readout == "mixed":
        structures, theta = (assignments(4),), draw(48, 16, 4, 4)
    else:
        structures, theta = (tags, moves), (draw(49, 16, 4, 3), draw(50, 1, 3, 3))
    oracle = Listed(
        *structures, kept=0 if readout == "kept" else None, mixed=draw(51, 16, 5) if readout == "mixed" else None
    )
    here, there = (
        active_set(oracle, map_parts(lambda t, d=device: t.to(d), theta), readout=readout != "all", **TIGHT)
        for device in ("cpu", "cuda")
    )
    v = map_parts(torch.randn_like, here.mean)
    # Not of the weights: the two may decompose the mean differently where optimal structures are dependent.
    gradients = here.vjp(v, None), there.vjp(map_parts(Tensor.cuda, v), None)
    for mine, other in zip(as_tuple(here.mean), as_tuple(there.mean), strict=True):
        assert other.is_cuda
        torch.testing.assert_close(mine, other.cpu(), atol=1e-9, rtol=0)
    for mine, other in zip(*map(as_tuple, gradients), strict=True):
        torch.testing.assert_close(mine, other.cpu(), atol=1e-9, rtol=0)
    warm = active_set(
        oracle, map_parts(Tensor.cuda, theta), readout=readout != "all", warm_start=there.support(), **TIGHT
    )
    assert warm.converged.all()
    assert warm.oracle_calls == 1


@pytest.mark.parametrize("readout", [False, True])
def test_sequence_of_scores(readout):
    oracle = si.get_oracle("chain")
    first = draw(5, 6, 4, 3), draw(6, 6, 3, 3, 3)
    sequence = ActiveSetSequence(oracle, first_tensor=readout)
    kept = torch.arange(6)
    for step, rows in enumerate(([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 3, 5], [2, 1], [])):
        index = torch.tensor(rows, dtype=torch.int64)
        if step > 1:
            sequence.select(index, oracle)
        kept = kept[index]
        theta = first[0][kept] * (1.5 - step), first[1][kept] * (1.5 - step)
        if step == 1:
            theta[0][0, 1, :2] = -torch.inf
        sequence.solve(theta, 100)
        alone = active_set(oracle, theta, readout=readout, max_iter=100)
        expected = alone.mean[0].flatten(1) if readout else torch.cat([t.flatten(1) for t in alone.mean], 1)
        torch.testing.assert_close(sequence.mean, expected, atol=1e-9, rtol=0)
        assert sequence.finished.all()
        weights, penalised, others = sequence.support()
        torch.testing.assert_close(weights.sum(1), torch.ones(len(rows), dtype=weights.dtype))
        torch.testing.assert_close(torch.einsum("bk,bkm->bm", weights, penalised), expected, atol=1e-9, rtol=0)
        rest = torch.einsum("bk,bkm->bm", weights, others.dense())
        torch.testing.assert_close(rest, others.view(len(rows), 1, weights.shape[1]).combine(weights[:, None])[:, 0])
        if readout:
            torch.testing.assert_close(rest, alone.mean[1].flatten(1), atol=1e-9, rtol=0)
        assert others.value.sum() == (penalised.sum() / 4 * 3 if readout else 0)
    assert sequence.oracle_calls < 40


def test_sequence_with_few_rounds():
    oracle, theta = si.get_oracle("chain"), (draw(5, 6, 8, 3), draw(6, 6, 7, 3, 3))
    sequence = ActiveSetSequence(oracle, first_tensor=True)
    for _ in range(60):
        sequence.solve(theta, 1)
    assert sequence.oracle_calls == 60
    assert sequence.finished.all()
    exact = active_set(oracle, theta, readout=True, max_iter=100)
    torch.testing.assert_close(sequence.mean, exact.mean[0].flatten(1), atol=1e-12, rtol=0)


def test_tensors_without_coordinates():
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(5, 1, 3, generator=generator, dtype=torch.float64)
    solution = si.infer((unary, torch.zeros(5, 0, 3, 3).double()), "chain", "sparsemap", tolerance=0.0)
    torch.testing.assert_close(solution.mean[0], si.simplex.sparsemax(unary))
    assert solution.mean[1].shape == (5, 0, 3, 3)
