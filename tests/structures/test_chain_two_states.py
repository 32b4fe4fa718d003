"""Chains of two states, whose kernels serve 16 instances at once, against listed tag sequences."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from hypergraph_reference import Hyperedges, of_grammar
from structinf.regularizers import SquaredL2, Tsallis

REGULARIZERS = {"negentropy": "negentropy", "squared l2": SquaredL2(), "temperature": SquaredL2(temperature=0.3)}
STEPS = 5
every_regularizer = pytest.mark.parametrize("regularizer", REGULARIZERS.values(), ids=REGULARIZERS)


def draw(batch: int, steps: int, own: bool, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    unary = scale * torch.randn(batch, steps, 2, dtype=dtype, generator=generator)
    forbidden = torch.rand(batch, steps, generator=generator) < 0.2
    unary[..., 0].masked_fill_(forbidden & (torch.rand(batch, steps, generator=generator) < 0.5), -math.inf)
    unary[..., 1].masked_fill_(forbidden & unary[..., 0].isfinite(), -math.inf)
    return unary, scale * torch.randn(batch if own else 1, 2, 2, dtype=dtype, generator=generator)


@functools.cache
def sequences(length: int) -> Hyperedges:
    """All tag sequences of so many steps, as derivations of the recursion, with unary scores before transitions."""

    def options(symbol):
        if symbol == "end":
            return [([], [("tag", length - 1, tag)]) for tag in range(2)]
        kind, step, tag = symbol
        if kind == "tag":
            return [([(0, step, tag)], [("reached", step, tag)] if step else [])]
        return [([(1, before, tag)], [("tag", step - 1, before)]) for before in range(2)]

    return of_grammar(("end", options), [(length, 2), (2, 2)])


def listed(unary: Tensor, transition: Tensor, regularizer, directions: Sequence[Tensor]) -> list[Tensor]:
    """Value, mean (tags, transitions) and Hessian product of one instance, by listing its tag sequences."""
    length, temperature = len(unary), 1.0 if regularizer == "negentropy" else regularizer.temperature

    def flat(tensors: Sequence[Tensor]) -> list[float]:
        return torch.cat([t.double().flatten() / temperature for t in tensors]).tolist()

    def parts(numbers: list[float]) -> tuple[Tensor, Tensor]:
        both = torch.tensor(numbers, dtype=torch.float64)
        return both[: 2 * length].view(length, 2), both[2 * length :].view(2, 2)

    lists = sequences(length)
    (goal,), recursion = lists.goals, lists.at(flat([unary, transition]), 1 if regularizer == "negentropy" else 2)
    value = torch.tensor(temperature * recursion.v[goal], dtype=torch.float64)
    return [value, *parts(recursion.mean(goal)), *parts(recursion.hessian_product(goal, flat(directions)))]


def everything(theta: tuple[Tensor, Tensor], regularizer, lengths, direction) -> tuple[Tensor, ...]:
    """Value, mean and the mean's derivative along a direction."""
    layer = si.Layer("chain", "smoothed", regularizer=regularizer)
    leaves = tuple(t.clone().requires_grad_() for t in theta)
    solution = layer.infer(leaves, lengths=lengths)
    along = sum((m * z).sum() for m, z in zip(solution.mean, direction, strict=True))
    return solution.value, *solution.mean, *torch.autograd.grad(along, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize(("batch", "own"), [(1, False), (16, True), (17, False), (33, True), (0, False)])
@every_regularizer
def test_results_are_those_of_listed_sequences(regularizer, batch, own, scale, dtype):
    unary, transition = draw(batch, STEPS, own, scale, dtype)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, STEPS + 1, (batch,), generator=generator)
    along = torch.randn(batch, STEPS, 2, dtype=dtype, generator=generator)
    along_transition = torch.randn(len(transition), 2, 2, dtype=dtype, generator=generator)
    found = everything((unary, transition), regularizer, lengths, (along, along_transition.expand(batch, 2, 2)))
    expected = [torch.zeros(t.shape if t.ndim < 3 else (batch, *t.shape[1:]), dtype=torch.float64) for t in found]
    for b, length in enumerate(lengths.tolist()):
        matrix, direction = transition[b if own else 0], (along[b, :length], along_transition[b if own else 0])
        for exact, result in zip(expected, listed(unary[b, :length], matrix, regularizer, direction), strict=True):
            exact[(b, slice(length)) if exact.shape[1:] == (STEPS, 2) else b] = result
    if not own:
        expected[-1] = expected[-1].sum(0, keepdim=True)
    size = 1e-5 if dtype == torch.float32 else 1e-12
    for ours, exact in zip(found, expected, strict=True):
        allowed = size * max(1.0, exact.abs().max().item() if exact.numel() else 0)
        torch.testing.assert_close(ours.double(), exact, rtol=size, atol=allowed)


@every_regularizer
def test_an_instance_does_not_depend_on_its_batch(regularizer):
    unary, transition = draw(40, 6, True, 2.0, torch.float32)
    whole = si.relax((unary, transition), "chain", "smoothed", regularizer=regularizer)
    for b in (0, 15, 16, 39):
        alone = si.relax((unary[b], transition[b]), "chain", "smoothed", regularizer=regularizer)
        assert all(torch.equal(w[b], a) for w, a in zip(whole, alone, strict=True))


@every_regularizer
def test_forbidden_transitions(regularizer):
    unary = torch.randn(20, 5, 2, dtype=torch.float64)
    transition = torch.randn(20, 2, 2, dtype=torch.float64)
    transition[::3, 1, 1] = -math.inf
    mean = si.relax((unary, transition), "chain", "smoothed", regularizer=regularizer)
    assert mean[1][::3, 1, 1].eq(0).all()
    torch.testing.assert_close(mean[0].sum(2), torch.ones(20, 5, dtype=torch.float64))
    rest = torch.arange(20) % 3 > 0
    alone = si.relax((unary[rest], transition[rest]), "chain", "smoothed", regularizer=regularizer)
    assert torch.equal(mean[0][rest], alone[0])


def test_nothing_is_allowed():
    unary = torch.zeros(20, 3, 2)
    unary[17, 1] = -math.inf
    with pytest.raises(si.InfeasibleError, match="batch index 17"):
        si.relax((unary, torch.zeros(2, 2)), "chain", "smoothed")


def test_long_chains_of_equal_scores():
    unary, transition = torch.zeros(1, 20000, 2), torch.tensor([[0.3, -0.3], [-0.3, 0.3]])
    nodes, edges = si.relax((unary, transition), "chain", "marginals")
    torch.testing.assert_close(nodes, torch.full_like(nodes, 0.5))
    q = torch.tensor(0.6).sigmoid() / 2
    torch.testing.assert_close(edges[0] / 19999, torch.stack([q, 0.5 - q, 0.5 - q, q]).view(2, 2), rtol=1e-4, atol=0)


@pytest.mark.parametrize("regularizer", ["negentropy", SquaredL2(temperature=9.0), Tsallis(alpha=1.5, temperature=9.0)])
def test_derivatives(regularizer):
    unary = torch.randn(17, 3, 2, dtype=torch.float64, requires_grad=True)
    transition = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def mean(*theta: Tensor) -> Tensor:
        return si.relax(theta, "chain", "smoothed", regularizer=regularizer)[0]

    assert gradcheck(mean, (unary, transition))
    if regularizer == "negentropy":
        assert gradgradcheck(mean, (unary[:2].detach().requires_grad_(), transition))
