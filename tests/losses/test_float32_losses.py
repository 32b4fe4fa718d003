"""Losses of float32 and float16 scores keep their digits and their sign: they equal the losses of the same scores in
float64, also if one score is far larger than the loss.

Generated from the registries: a new plugin is tested once tests/helpers/oracle_examples.py has an example of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import enumerators
import oracle_examples
import structinf as si
from oracle_example import Example
from structinf import FenchelYoungLoss, Parts, RegularizedRelaxation, RelaxedLoss, SPOPlusLoss
from structinf.parts import as_tuple, map_parts

pytestmark = pytest.mark.slow
every_combination = pytest.mark.matrix  # of the registries, one in ten without --full

BATCH = 3
DTYPES = {torch.float32: 2.4e6, torch.float16: 1e4}

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
costs = pytest.mark.parametrize("cost", [None, "hamming"])
relaxed_examples = oracle_examples.parametrize(lambda example: example.relaxed)


def scores_with_an_outlier(example: Example, dtype: torch.dtype, seed: int) -> Parts:
    """Normal scores, one of which is large in each instance."""
    g = torch.Generator().manual_seed(seed)
    drawn = []
    for shape in example.shapes:
        t = 3 * torch.randn(BATCH, *shape, generator=g, dtype=torch.float64)
        rows = t.view(BATCH, -1)
        if rows.shape[1]:
            rows[torch.arange(BATCH), torch.randint(rows.shape[1], (BATCH,), generator=g)] = DTYPES[dtype]
        drawn.append((-t.abs() if example.oracle().requires_nonpositive_theta else t).to(dtype))
    return tuple(drawn) if example.is_tuple else drawn[0]


def golds(example: Example, theta: Parts) -> Iterator[Parts]:
    """Return the best structures, whose loss is smallest, and the best structures of other scores."""
    yield si.relax(map_parts(Tensor.double, theta), example.oracle(), "map")
    other = scores_with_an_outlier(example, torch.float16, 7)
    yield si.relax(map_parts(Tensor.double, other), example.oracle(), "map")


def loss_and_gradient(loss, theta: Parts, gold: Parts) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = map_parts(lambda t: t.detach().clone().requires_grad_(), theta)
    values = loss(leaves, gold, generator=torch.Generator().manual_seed(0))
    return values.detach(), torch.autograd.grad(values.sum(), as_tuple(leaves))


def assert_equal_to_float64(loss, theta: Parts, gold: Parts, dtype: torch.dtype) -> Tensor:
    found, gradient = loss_and_gradient(loss, theta, gold)
    expected, expected_gradient = loss_and_gradient(loss, map_parts(Tensor.double, theta), gold)
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=2 * eps, atol=torch.finfo(dtype).tiny)
    for a, e in zip(gradient, expected_gradient, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-4 + 2 * eps, atol=1e-5 + eps)
    return found


def pairs() -> Iterator:
    for example in filter(lambda example: example.relaxed, oracle_examples.EXAMPLES):
        for name in si.list_relaxations():
            relaxation = si.get_relaxation(name)
            if isinstance(relaxation, RegularizedRelaxation) and not relaxation.unsupported_reason(example.oracle()):
                yield pytest.param(example, name, id=f"{example}-{name}")


@every_combination
@dtypes
@costs
@pytest.mark.parametrize(("example", "relaxation"), list(pairs()))
@pytest.mark.filterwarnings("ignore::structinf.ConvergenceWarning")
def test_fenchel_young_losses(example: Example, relaxation: str, cost: Any, dtype: torch.dtype) -> None:
    theta = scores_with_an_outlier(example, dtype, 0)
    oracle = example.oracle()
    loss = FenchelYoungLoss(oracle, relaxation, cost=cost, reduction="none")
    for gold in golds(example, theta):
        found = assert_equal_to_float64(loss, theta, gold, dtype)
        assert (found >= 0).all()
        if relaxation == "marginals" and cost is None:
            eps, rounding = torch.finfo(dtype).eps, DTYPES[dtype] * 1e-15
            torch.testing.assert_close(found, -si.log_prob(theta, gold, oracle), rtol=eps, atol=rounding)


@every_combination
@dtypes
@oracle_examples.parametrize(lambda example: bool(example.listing) and not example.oracle().requires_nonpositive_theta)
def test_values_by_enumeration(example: Example, dtype: torch.dtype) -> None:
    theta, structures = scores_with_an_outlier(example, dtype, 1), example.listing(None)
    for gold in golds(example, theta):
        for relaxation in ("map", "marginals"):
            if si.get_relaxation(relaxation).unsupported_reason(example.oracle()):
                continue
            losses = FenchelYoungLoss(example.oracle(), relaxation, reduction="none")(theta, gold)
            for b in range(BATCH):
                scores, y = (tuple(t[b].double().numpy() for t in as_tuple(p)) for p in (theta, gold))
                ahead = [enumerators.score(scores, tuple(z - g for z, g in zip(s, y, strict=True))) for s in structures]
                expected = max(ahead) if relaxation == "map" else np.logaddexp.reduce(ahead)
                scale = DTYPES[dtype] * 1e-14  # the rounding of the scores' sums in float64
                assert losses[b].item() == pytest.approx(expected, rel=2 * torch.finfo(dtype).eps, abs=scale)


@every_combination
@dtypes
@relaxed_examples
@pytest.mark.filterwarnings("ignore::structinf.ConvergenceWarning")
def test_distances_of_relaxed_structures(example: Example, dtype: torch.dtype) -> None:
    theta = scores_with_an_outlier(example, dtype, 2)
    for name in ("sparsemap", "marginals"):
        if si.get_relaxation(name).unsupported_reason(example.oracle()):
            continue
        loss = RelaxedLoss(example.oracle(), name, reduction="none")
        for gold in golds(example, theta):
            assert (assert_equal_to_float64(loss, theta, gold, dtype) >= 0).all()


@every_combination
@dtypes
@relaxed_examples
def test_spo_plus_and_regret(example: Example, dtype: torch.dtype) -> None:
    oracle = example.oracle()
    theta, true = (scores_with_an_outlier(example, dtype, seed) for seed in (3, 4))
    theta64, true64 = (map_parts(Tensor.double, t) for t in (theta, true))
    pairs = [(si.regret(theta, true, oracle), si.regret(theta64, true64, oracle))]
    if not oracle.requires_nonpositive_theta:
        loss = SPOPlusLoss(oracle, reduction="none")
        pairs.append((loss(theta, true), loss(theta64, true64)))
        pairs.append((loss(theta, theta), torch.zeros(BATCH, dtype=torch.float64)))
    for found, expected in pairs:
        torch.testing.assert_close(found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
        assert (found >= 0).all()


# ----------------------------------------------------------------------------- examples


def test_a_tree_with_one_large_score():
    theta = torch.zeros(6, 6)
    theta[0, 1], theta[1, 2], theta[2, 3] = 807687.0625, 3.0, 5.0
    best = si.relax(theta, "projective_tree", "map")
    loss = FenchelYoungLoss("projective_tree", "marginals")(theta, best)
    assert loss.item() == pytest.approx(2.971189, abs=1e-6)
    assert loss == -si.log_prob(theta, best, "projective_tree")


@pytest.mark.parametrize("temperature", [0.3, 7.0])
def test_the_division_by_the_temperature_rounds_nothing(temperature):
    theta = torch.tensor([[2.4e6, 2.4e6 - 1, 2.4e6 - 2]])
    loss = FenchelYoungLoss("categorical", "marginals", temperature=temperature)
    expected = temperature * torch.nn.functional.cross_entropy(theta.double() / temperature, torch.tensor([0]))
    assert loss(theta, torch.tensor([0])).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_cost_that_float32_scores_would_absorb():
    theta = torch.tensor([[5e7, 5e7]])
    assert FenchelYoungLoss("categorical", "map", cost="hamming")(theta, torch.tensor([0])) == 1


@pytest.mark.parametrize("relaxation", ["marginals", "smoothed"])
def test_a_small_loss_keeps_its_digits(relaxation):
    unary = 20 * torch.nn.functional.one_hot(torch.zeros(1, 50, dtype=torch.long), 4).float()
    theta = unary, torch.zeros(4, 4)
    loss = FenchelYoungLoss("chain", relaxation)(theta, torch.zeros(1, 50, dtype=torch.long))
    assert loss.item() == pytest.approx(50 * np.log1p(3 * np.exp(-20.0)), rel=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_second_derivatives_of_float32(shared):
    g = torch.Generator().manual_seed(0)
    unary, transition = torch.randn(3, 5, 4, generator=g), torch.randn(*([] if shared else [3]), 4, 4, generator=g)
    tags, v = torch.randint(4, (3, 5), generator=g), torch.randn(3, 5, 4, generator=g)
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = tuple(t.to(dtype).requires_grad_() for t in (unary, transition))
        gradient = torch.autograd.grad(FenchelYoungLoss("chain", "marginals")(leaves, tags), leaves, create_graph=True)
        product = torch.autograd.grad((gradient[0] * v).sum() + gradient[1].square().sum(), leaves, create_graph=True)
        third = torch.autograd.grad(product[0].square().sum() + product[1].sum(), leaves)
        assert all(t.dtype == dtype for t in (*gradient, *product, *third))
        found.append((*gradient, *product, *third))
    for a, e in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-4, atol=1e-5)


def test_compiled_losses_equal_eager_losses():
    loss = FenchelYoungLoss("chain", "marginals")
    theta = torch.randn(2, 5, 3).requires_grad_(), (2.4e6 * torch.eye(3)).requires_grad_()
    tags = torch.zeros(2, 5, dtype=torch.long)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    eager, found = loss(theta, tags), compiled(theta, tags)
    assert torch.equal(eager, found)
    for a, e in zip(torch.autograd.grad(found, theta), torch.autograd.grad(eager, theta), strict=True):
        torch.testing.assert_close(a, e)
