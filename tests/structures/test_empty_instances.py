"""Instances of length 0: one structure without parts, of value 0, for each oracle with lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import oracle_examples
import structinf as si
from oracle_examples import Example
from structinf.parts import Parts, as_tuple, map_parts

REFUSED = {
    "correlated_subset": "k = ",
    "grid_path": "at least one",
    "subset": "k = ",
}
"""Oracles without a structure of length 0, with words of the error message."""

WITH_LENGTHS = [
    example
    for example in oracle_examples.one_for_each(lambda oracle: type(oracle), lambda e: True)
    if "lengths" in example.oracle().instance_ndim and example.lengths
]
EMPTY = 1
"""The batch index of the empty instance."""


def lengths_of(example: Example) -> tuple[Tensor, Tensor]:
    """Return lengths of three instances, the second of which is empty, and the lengths of the others."""
    own = torch.as_tensor([example.lengths[-1], example.lengths[0], example.lengths[0]])
    own[EMPTY] = 0
    return own, own[[0, 2]]


def assert_equal(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_every_oracle_with_lengths_has_an_example():
    with_lengths = {e.name for e in oracle_examples.EXAMPLES if "lengths" in e.oracle().instance_ndim}
    assert {example.name for example in WITH_LENGTHS} >= with_lengths


def test_errors_name_instances_of_the_whole_batch():
    theta = torch.randn(3, 4, 2), torch.zeros(2, 2)
    for wrong in (-1, 5):
        with pytest.raises(si.InvalidInputError, match=f"got {wrong} at batch index 2"):
            si.relax(theta, "chain", lengths=[0, 3, wrong])
    theta[0][2, 1] = torch.nan
    with pytest.raises(si.InvalidInputError, match="NaN at batch index 2"):
        si.relax(theta, "chain", lengths=[0, 3, 2])
    theta[0][2, 1] = -torch.inf
    with pytest.raises(si.InfeasibleError, match="batch index 2") as caught:
        si.relax(theta, "chain", lengths=[0, 3, 2])
    assert caught.value.batch_indices == (2,)
    with pytest.raises(si.InvalidInputError, match="NaN at batch index 1"):
        si.soft_dtw(torch.full((2, 3, 3), torch.nan), lengths=[[0, 0], [3, 3]])


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("chain", ((0, 3), (3, 3))),
        ("semi_markov", ((0, 0, 2), (2, 2))),
        ("semi_markov", (0, 2, 1)),
        ("arborescence", (1, 1)),
        ("projective_tree", (1, 1)),
        ("spanning_tree", (0, 0)),
        ("binary_tree", (0, 0)),
        ("dtw", (0, 0)),
        ("needleman_wunsch", ((0, 0), (2,))),
        ("monotonic_alignment", (0, 0)),
        ("tour", (0, 0)),
    ],
)
def test_a_batch_of_empty_instances_may_have_the_padded_size_0(name, shapes):
    is_tuple = isinstance(shapes[0], tuple)
    tensors = tuple(torch.zeros(2, *shape, requires_grad=True) for shape in (shapes if is_tuple else [shapes]))
    theta = tensors if is_tuple else tensors[0]
    lengths = torch.zeros(2, 2 if name in ("dtw", "needleman_wunsch", "monotonic_alignment") else 1).long()
    data: dict[str, Any] = {"lengths": lengths if lengths.shape[1] == 2 else lengths[:, 0]}
    for relaxation in ("map", "sparsemap", "marginals", "perturbed"):
        if si.get_relaxation(relaxation).unsupported_reason(si.get_oracle(name)) is not None:
            continue
        found = si.infer(theta, name, relaxation, **data)
        assert [m.shape for m in as_tuple(found.mean)] == [t.shape for t in tensors]
        assert found.value.tolist() == [0, 0]
        loss = si.FenchelYoungLoss(name, relaxation, cost="hamming")(theta, map_parts(Tensor.detach, theta), **data)
        loss.backward()
        assert loss == 0
    labels = si.decode(map_parts(Tensor.detach, theta), name, **data)
    assert labels.shape[:2] == (2, 0)
    for y, t in zip(as_tuple(si.encode(labels, theta, name, **data)), tensors, strict=True):
        assert y.shape == t.shape
    with pytest.raises(si.InvalidInputError, match=r"theta|lengths"):
        si.relax(theta, name, "map", lengths=data["lengths"] + 1)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (1, 1)])
@pytest.mark.parametrize("options", [{}, {"length_bounds": (2, 2)}, {"window": "itakura", "open_end": True}], ids=str)
def test_a_batch_of_empty_instances_may_have_windows_of_the_padded_size(shape, options):
    theta = torch.zeros(2, *shape, requires_grad=True)
    oracle = si.get_oracle("dtw", **options)
    data = {"lengths": torch.zeros(2, 2).long(), "window": torch.ones(2, *shape, dtype=torch.bool), "band": [0, 1]}
    for relaxation in ("map", "sparsemap", "marginals", "perturbed"):
        mean = si.relax(theta, oracle, relaxation, **data)
        assert mean.shape == theta.shape
        assert not mean.any()
    loss = si.FenchelYoungLoss(oracle, "marginals", cost="hamming")(theta, torch.zeros(2, *shape), **data)
    assert loss == 0
    assert si.count(theta, oracle, **data) == [1, 1]


def test_the_support_of_empty_instances_is_one_structure():
    gibbs = si.Gibbs(torch.zeros(2, 3, 3), "arborescence", lengths=[0, 0])
    support = gibbs.enumerate_support()
    assert support.shape == (1, 2, 3, 3)
    assert not support.any()
    assert gibbs.log_prob(support).tolist() == [[0, 0]]


def test_alignments_of_empty_series():
    cost = torch.rand(2, 3, 4)
    assert si.soft_dtw(cost, lengths=[[0, 0], [3, 4]])[0] == 0
    assert not si.alignment_matrix(cost, lengths=[[0, 0], [3, 4]])[0].any()
    path = si.alignment_path(cost, lengths=[[0, 0], [3, 4]])
    assert (path[0] == -1).all()
    torch.testing.assert_close(path[1], si.alignment_path(cost[1]))
    with pytest.raises(si.InvalidInputError, match=r"lengths \(0, 0\)"):
        si.soft_dtw(cost, lengths=[[0, 2], [3, 4]])


@pytest.mark.parametrize("example", WITH_LENGTHS, ids=str)
def test_an_empty_instance_has_one_structure_without_parts(example: Example):
    theta, oracle = example.draw(3), example.oracle()
    lengths, others = lengths_of(example)
    if example.name in REFUSED:
        with pytest.raises(si.InvalidInputError, match=rf"lengths must lie between .*{REFUSED[example.name]}"):
            si.relax(theta, oracle, lengths=lengths)
        return
    rest = map_parts(lambda t: t[[0, 2]], theta)
    theta = map_parts(lambda t: t.index_fill(0, torch.tensor([EMPTY]), torch.nan).requires_grad_(), theta)
    for name in si.list_relaxations():
        relaxation = si.get_relaxation(name)
        if relaxation.unsupported_reason(oracle) is not None or relaxation.is_stochastic:
            continue
        found = si.infer(theta, oracle, relaxation, lengths=lengths)
        expected = si.infer(rest, oracle, relaxation, lengths=others)
        assert found.value[EMPTY] == 0
        assert_equal(found.value[[0, 2]], expected.value)
        for m, e in zip(as_tuple(found.mean), as_tuple(expected.mean), strict=True):
            assert_equal(m[[0, 2]], e)
            assert not m[EMPTY].any()
        if found.weights is not None:
            assert found.weights[:, EMPTY].tolist() == [1] + [0] * (len(found.weights) - 1)
            assert found.support is not None
            assert not any(y[:, EMPTY].any() for y in as_tuple(found.support))
        of_nothing = si.infer(theta, oracle, relaxation, lengths=torch.zeros_like(lengths))
        assert of_nothing.value.tolist() == [0, 0, 0]
        assert not any(m.any() for m in as_tuple(of_nothing.mean))


@pytest.mark.parametrize("example", [e for e in WITH_LENGTHS if e.name not in REFUSED], ids=str)
def test_losses_and_queries_of_an_empty_instance(example: Example):
    theta, oracle = example.draw(3, torch.float32), example.oracle()
    lengths, others = lengths_of(example)
    data: dict[str, Any] = {"lengths": lengths}
    of_rest: dict[str, Any] = {"lengths": others}
    rest = map_parts(lambda t: t[[0, 2]], theta)
    y = si.relax(theta, oracle, "map", **data)
    some_y = map_parts(lambda t: t[[0, 2]], y)
    for cost in (None, "hamming"):
        if cost and oracle.requires_nonpositive_theta:
            continue
        leaves = map_parts(lambda t: t.clone().requires_grad_(), theta)
        losses = si.FenchelYoungLoss(oracle, cost=cost, reduction="none")(leaves, y, **data)
        losses.sum().backward()
        expected = si.FenchelYoungLoss(oracle, cost=cost, reduction="none")(rest, some_y, **of_rest)
        assert losses[EMPTY] == 0
        assert_equal(losses[[0, 2]], expected)
        assert not any(t.grad is None or t.grad[EMPTY].any() for t in as_tuple(leaves))
    if type(oracle).encode is not si.Oracle.encode:
        labels = si.decode(y, oracle, **data)
        for again, e in zip(as_tuple(si.encode(labels, theta, oracle, **data)), as_tuple(y), strict=True):
            assert_equal(again, e)
    if isinstance(oracle, si.KBest):
        best = si.topk(theta, oracle, 2, **data)
        assert best.valid[:, EMPTY].tolist() == [True, False]
        assert best.scores[:, EMPTY].tolist() == [0, -torch.inf]
        assert not any(t[:, EMPTY].any() for t in as_tuple(best.structures))
    if not isinstance(oracle, si.GibbsOracle):
        return
    gibbs = si.Gibbs(theta, oracle, **data)
    for one, other in (
        (si.log_partition(theta, oracle, **data), si.log_partition(rest, oracle, **of_rest)),
        (si.entropy(theta, oracle, **data), si.entropy(rest, oracle, **of_rest)),
        (si.log_prob(theta, y, oracle, **data), si.log_prob(rest, some_y, oracle, **of_rest)),
        (gibbs.log_partition, si.Gibbs(rest, oracle, **of_rest).log_partition),
        (gibbs.log_prob(y), si.Gibbs(rest, oracle, **of_rest).log_prob(some_y)),
        (gibbs.entropy(), si.Gibbs(rest, oracle, **of_rest).entropy()),
    ):
        assert one[EMPTY] == 0
        assert_equal(one[[0, 2]], other)
    assert not any(m[EMPTY].any() for m in as_tuple(gibbs.mean))
    assert gibbs.support.check(y).tolist() == [True, True, True]
    assert si.count(theta, oracle, **data)[EMPTY] == 1
    weights = map_parts(torch.rand_like, map_parts(lambda t: t[0], theta))

    def f(y: Parts, shift: Tensor) -> Tensor:
        parts = zip(as_tuple(y), as_tuple(weights), strict=True)
        return torch.stack([(t * w).flatten(1).sum(1) for t, w in parts]).sum(0) + shift

    shift = torch.tensor([1.0, 2.0, 3.0])
    estimates = si.expect(f, theta, oracle, "exact", inputs=shift, **data)
    assert estimates[EMPTY] == 2
    assert_equal(estimates[[0, 2]], si.expect(f, rest, oracle, "exact", inputs=shift[[0, 2]], **of_rest))
    if isinstance(oracle, si.Samplable):
        baseline = torch.nn.Sequential(torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 1), torch.nn.Flatten(0))
        estimator = si.get_estimator("score_function", samples=2, baseline=baseline)
        assert si.expect(f, theta, oracle, estimator, inputs=shift, **data)[EMPTY] == 2
        draws = si.sample(theta, oracle, 2, **data)
        assert not any(t[:, EMPTY].any() for t in as_tuple(draws))
