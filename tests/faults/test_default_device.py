"""Results do not depend on torch's default device: all tensors belong to the device of the scores.

On the meta device a tensor has no values, so one tensor in the wrong place makes a call fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import oracle_examples
import structinf as si
from oracle_examples import Example
from structinf import simplex
from structinf.parts import as_tuple

BATCH = 2

EXAMPLES = oracle_examples.one_for_each(lambda oracle: oracle.name)

PAIRS = [
    pytest.param(example, name, id=f"{example.name}-{name}")
    for example in EXAMPLES
    for name in si.list_relaxations()
    if si.get_relaxation(name).unsupported_reason(example.oracle()) is None
]


def scores(example: Example) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(BATCH, *shape, generator=generator) for shape in example.shapes]
    return tuple((-t.abs() if example.oracle().requires_nonpositive_theta else t).requires_grad_() for t in drawn)


def lengths_as_list(example: Example) -> dict[str, Any]:
    """Return the longest lengths as a list, if the structure takes lengths."""
    longest = max((length for length in example.lengths if length is not None), default=None)
    return {} if longest is None else {"lengths": [longest] * BATCH}


def on_every_default_device(call: Callable[[], Any]) -> list[Any]:
    """Return the results of ``call`` with each default device, from the same random numbers."""
    results = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        with torch.device(device):
            results.append(call())
    return results


def assert_same(results: list[Any]) -> None:
    expected, found = results
    assert len(found) == len(expected)
    for a, e in zip(found, expected, strict=True):
        assert a.device == e.device
        assert torch.equal(a, e)


@pytest.mark.matrix
@pytest.mark.parametrize(("example", "relaxation"), PAIRS)
def test_relaxations(example, relaxation):
    leaves = scores(example)
    options = {"samples": 2} if relaxation == "perturbed" else {}

    def call() -> list[Tensor]:
        theta = leaves if example.is_tuple else leaves[0]
        method = si.get_relaxation(relaxation, **options)
        mean = as_tuple(si.relax(theta, example.oracle(), method, **lengths_as_list(example)))
        total = torch.stack([m.square().sum() for m in mean]).sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else ()
        return [*mean, *(g for g in gradients if g is not None)]

    assert_same(on_every_default_device(call))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_queries_and_losses(example):
    leaves = scores(example)
    data = lengths_as_list(example)

    def call() -> list[Tensor]:
        theta = leaves if example.is_tuple else leaves[0]
        oracle = example.oracle()
        found: list[Tensor] = [*as_tuple(si.infer(theta, oracle, "map", **data).mean)]
        y = si.relax(theta, oracle, "map", **data)
        labels = si.decode(y, oracle, **data) if oracle.event_ndim else None
        if labels is not None:
            found += [labels, *as_tuple(si.encode(labels, theta, oracle, **data))]
        for relaxation in ("sparsemap", "marginals"):
            if si.get_relaxation(relaxation).unsupported_reason(oracle) is None:
                found.append(si.FenchelYoungLoss(oracle, relaxation)(theta, y, **data))
        if isinstance(oracle, si.GibbsOracle):
            found += [
                si.log_partition(theta, oracle, **data),
                si.log_prob(theta, y, oracle, **data),
                si.entropy(theta, oracle, **data),
            ]
        if isinstance(oracle, si.KBest):
            found += as_tuple(si.topk(theta, oracle, 2, **data).structures)
        if isinstance(oracle, si.Samplable):
            found += as_tuple(si.sample(theta, oracle, 2, **data))
        if isinstance(oracle, si.Enumerable):
            found += as_tuple(oracle.enumerate(example.event_shape))
        if isinstance(oracle, si.dp.HypergraphProgram):
            found += as_tuple(si.enumerate_support(theta, oracle, **data).structures)
        return found

    assert_same(on_every_default_device(call))


X = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
COST = torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([0, 2, 4])
SCORES = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))


FUNCTIONS: dict[str, Callable[[], Tensor]] = {
    **{name: (lambda name=name: getattr(simplex, name)(X)) for name in ("softmax", "sparsemax", "entmax15")},
    "entmax": lambda: simplex.entmax(X, 1.3),
    "fusedmax": lambda: simplex.fusedmax(X, 0.5),
    "oscarmax": lambda: simplex.oscarmax(X, 0.5),
    "topk_sparsemax": lambda: simplex.topk_sparsemax(X, 2),
    "budget": lambda: simplex.budget(X, 2.0),
    "normmax": lambda: simplex.normmax(X, 2.0),
    "entmax_loss": lambda: simplex.entmax_loss(X, LABELS),
    "soft_rank": lambda: si.soft_rank(X),
    "soft_sort": lambda: si.soft_sort(X),
    "sinkhorn": lambda: si.sinkhorn(-COST, rows=[0.25] * 4, columns=[0.2] * 5),
    "soft_dtw": lambda: si.soft_dtw(COST, lengths=[[4, 5], [3, 3]]),
    "alignment_matrix": lambda: si.alignment_matrix(COST, lengths=[[4, 5], [3, 3]]),
    "barycenter": lambda: si.soft_dtw_barycenter([X[:, :2], X[:2, :2]], max_iter=20).series,
    "soft_dtw_between": lambda: si.soft_dtw_between(X[:, :2], X[:2, :2]),
    "tag_scheme": lambda: si.TagScheme(["O", "B", "I"]).constrain(X[:, :3], X[:, :3], lengths=None)[1],
    "expect": lambda: si.expect(lambda y: y[:, 0], SCORES, "bits", "exact"),
    "score_function": lambda: si.expect(lambda y: y[:, 0], SCORES, "bits", "score_function"),
    "gibbs": lambda: si.Gibbs(SCORES, "bits").sample((3,)),
    "layer": lambda: si.Layer("bits", "imle", samples=2)(SCORES),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    assert_same([[result] for result in on_every_default_device(FUNCTIONS[name])])


def test_parameters_are_on_the_default_device():
    with torch.device("meta"):
        beta = simplex.Entmax(1.5, learnable=True).beta
    assert beta is not None
    assert beta.is_meta
