"""Factors with instance data: lengths, sizes and other data of each instance, by the keywords of a graph."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import structinf as si
from structinf.factor_graphs import exact

DOUBLE = torch.float64
LENGTHS, LIMIT = torch.tensor([4, 2, 3]), torch.tensor([1, 2, 0])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def tagger(solver: str = "list", tokens: int = 4, k: int | None = None) -> si.FactorGraph:
    """Return tags of tokens with a shared transition, and a limit of each instance on tokens with tag 2."""
    graph = si.FactorGraph((tokens, 3), solver=solver)
    if k is None:
        graph.add("chain", graph.variables, additional=[(3, 3)], instance_data=["lengths"])
        graph.add("budget", graph.variables[:, 2], instance_data={"k": "limit"})
    else:
        graph.add("chain", graph.variables, additional=[(3, 3)])
        graph.add("budget", graph.variables[:, 2], k=k)
    return graph


THETA = normal(3, 4, 3), normal(3, 3, 3, seed=1)


def alone(b: int, relaxation: str, **options) -> si.Solution:
    """Return the solution of an instance without padding, by a graph of its length and limit."""
    n = int(LENGTHS[b])
    return si.infer((THETA[0][b, :n], THETA[1][b]), tagger(tokens=n, k=int(LIMIT[b])), relaxation, **options)


@pytest.mark.parametrize("solver", ["list", "milp", "branch_and_bound"])
def test_argmax_of_each_instance(solver: str) -> None:
    found = si.infer(THETA, tagger(solver), "map", lengths=LENGTHS, limit=LIMIT)
    for b in range(3):
        best, n = alone(b, "map"), int(LENGTHS[b])
        assert torch.equal(found.mean[0][b, :n], best.mean[0])
        assert not found.mean[0][b, n:].any()
        assert torch.equal(found.mean[1][b], best.mean[1])


@pytest.mark.parametrize("relaxation", ["lp_map", "lp_sparsemap", "marginals", "sparsemap"])
def test_relaxations_of_each_instance(relaxation: str) -> None:
    options = {"penalty": "readout", "tolerance": 0.0} if relaxation == "sparsemap" else {}
    leaves = [t.clone().requires_grad_() for t in THETA]
    found = si.infer(tuple(leaves), tagger(), relaxation, lengths=LENGTHS, limit=LIMIT, **options)
    (gradient,) = torch.autograd.grad(found.value.sum(), leaves[0])
    for b in range(3):
        best, n = alone(b, relaxation, **options), int(LENGTHS[b])
        torch.testing.assert_close(found.value[b], best.value, atol=1e-8, rtol=0)
        torch.testing.assert_close(found.mean[0][b, :n], best.mean[0], atol=1e-8, rtol=0)
        torch.testing.assert_close(found.mean[1][b], best.mean[1], atol=1e-8, rtol=0)
        assert not found.mean[0][b, n:].any()
        torch.testing.assert_close(gradient[b, :n], best.mean[0], atol=1e-8, rtol=0)
        assert not gradient[b, n:].any()


def test_padding_has_no_effect() -> None:
    scores = THETA[0].clone()
    scores[1, 2:] = torch.nan
    scores[2, 3:] = 1e6
    graph = tagger()
    for relaxation in ("map", "lp_sparsemap"):
        expected = si.relax(THETA, graph, relaxation, lengths=LENGTHS, limit=LIMIT)
        found = si.relax((scores, THETA[1]), graph, relaxation, lengths=LENGTHS, limit=LIMIT)
        torch.testing.assert_close(found, expected)


def test_labels_and_losses_ignore_the_padding() -> None:
    graph = tagger()
    gold = torch.zeros(3, 4, 3, dtype=torch.int64)
    gold[:, :, 0] = 1
    padded = gold.clone()
    for b in range(3):
        gold[b, LENGTHS[b] :] = 0
        padded[b, LENGTHS[b] :] = -100
    data = {"lengths": LENGTHS, "limit": LIMIT}
    y = si.encode(padded, THETA, graph, **data)
    assert torch.equal(si.decode(y, graph, **data), gold)
    assert torch.equal(y[1].sum((1, 2)), (LENGTHS - 1).double())
    loss = si.FenchelYoungLoss(graph, "lp_map", cost="hamming", reduction="none")
    found = loss(THETA, gold, **data)
    for b in range(3):
        n = int(LENGTHS[b])
        one = si.FenchelYoungLoss(tagger(tokens=n, k=int(LIMIT[b])), "lp_map", cost="hamming")
        torch.testing.assert_close(found[b], one((THETA[0][b, :n], THETA[1][b]), gold[b, :n]))


def test_two_factors_share_a_keyword() -> None:
    graph = si.FactorGraph((2, 4, 4))
    for matrix in graph.variables:
        graph.add("assignment", matrix, instance_data={"lengths": "sizes"})
    graph.add("at_most_one", graph.variables[:, 0, 0])
    theta, sizes = normal(2, 2, 4, 4), torch.tensor([[3, 3], [2, 4]])
    mean = si.relax(theta, graph, "lp_map", sizes=sizes)
    assert mean.sum((2, 3)).tolist() == [[3, 3], [2, 2]]
    assert not mean[1, :, 2:].any()
    layer = si.Layer(graph, "lp_sparsemap")
    assert layer(theta, sizes=sizes).shape == theta.shape


def test_factors_of_one_oracle_with_different_keywords() -> None:
    graph = si.FactorGraph((2, 4))
    for i, row in enumerate(graph.variables):
        graph.add("subset", row, instance_data={"k": f"k_{i}"})
    graph.add("at_most_one", graph.variables[:, 0])
    assert len(graph.grouped_factors.groups) == 2
    theta, first, second = normal(3, 2, 4), torch.tensor([1, 2, 3]), torch.tensor([2, 0, 1])
    mean = si.relax(theta, graph, "lp_map", k_0=first, k_1=second)
    assert mean.sum(2).T.tolist() == [first.tolist(), second.tolist()]
    assert torch.equal(mean, si.relax(theta, graph, "map", k_0=first, k_1=second))


def test_only_some_factors_of_one_oracle_receive_data() -> None:
    theta, first = normal(3, 2, 4), torch.tensor([1, 2, 3])
    found = []
    for solver in ("list", "milp", "branch_and_bound"):
        graph = si.FactorGraph((2, 4), solver=solver)
        for i, row in enumerate(graph.variables):
            graph.add("bits", row, instance_data={"lengths": f"n_{i}"})
        graph.add("xor", graph.variables[:, 1])
        found += [si.relax(theta, graph, name, n_0=first) for name in ("map", "lp_map")]
        assert torch.equal(si.relax(theta, graph, "lp_map"), si.relax(theta, graph, "map"))
    expected = (theta > 0).double()
    expected[..., 1] = torch.eye(2, dtype=DOUBLE)[theta[..., 1].argmax(1)]
    expected[0, :, 1] = torch.tensor([0.0, 1.0])
    expected[:, 0] *= torch.arange(4) < first[:, None]
    for mean in found:
        assert torch.equal(mean, expected)


def test_missing_and_wrong_data() -> None:
    graph = tagger()
    with pytest.raises(si.InvalidInputError, match=r"factor 1, budget .* subset needs k.*limit= is k"):
        si.relax(THETA, graph, "map", lengths=LENGTHS)
    with pytest.raises(
        si.InvalidInputError, match=r"factor 0, chain of variables \(0, 0\) to \(3, 2\), lengths must lie"
    ):
        si.relax(THETA, graph, "map", lengths=[5, 1, 1], limit=LIMIT)
    with pytest.raises(si.InvalidInputError, match=r"factors of a graph do not; leave them out"):
        si.relax(THETA, graph, "map", lengths=[4, 0, 1], limit=LIMIT)
    with pytest.raises(TypeError, match="did you mean 'lengths'"):
        si.relax(THETA, graph, "map", length=LENGTHS)
    whole = si.relax(THETA, graph, "map", limit=LIMIT)  # without lengths, all tokens
    assert whole[0].sum() == 12
    new = si.FactorGraph(4)
    for data, message in (("lengths", "a list of names"), (["size"], "takes no 'size'"), ({"k": 3}, "a list of names")):
        with pytest.raises(si.InvalidInputError, match=message):
            new.add("subset", new.variables, instance_data=data)
    for name in ("xor", "at_most_one"):
        with pytest.raises(si.InvalidInputError, match=f"{name} takes no 'k'; use budget"):
            new.add(name, new.variables, instance_data=["k"])
    new.add("subset", new.variables, k=1, instance_data=["lengths"])
    with pytest.raises(si.InvalidInputError, match=r"'lengths' has 0 dimensions .* pass another keyword"):
        new.add("assignment", new.variables.reshape(2, 2), instance_data=["lengths"])


def test_all_structures_of_one_instance() -> None:
    graph = tagger().bind(lengths=[2], limit=[1])
    listed = graph.enumerate(((4, 3), (3, 3)))
    assert len(listed[0]) == 8
    with pytest.raises(
        si.InvalidInputError, match="lengths is bound for a batch of 2, but the structures are those of one instance"
    ):
        tagger().bind(lengths=[2, 2], limit=[1, 1]).enumerate(((4, 3), (3, 3)))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_copies_of_graphs(how) -> None:
    graph = tagger()
    other = how(graph)
    other.add("xor", other.variables[0])
    assert (len(graph.factors), len(other.factors)) == (2, 3)
    best = si.relax(THETA, graph, "map", lengths=LENGTHS, limit=LIMIT)
    frozen = how(graph)
    with pytest.raises(si.UnsupportedError, match="frozen"):
        frozen.add("xor", frozen.variables[0])
    assert torch.equal(si.relax(THETA, frozen, "map", lengths=LENGTHS, limit=LIMIT)[0], best[0])
    bound = how(graph.bind(lengths=LENGTHS, limit=LIMIT))
    assert torch.equal(bound.argmax(THETA)[1], best[1])
    with pytest.raises(si.UnsupportedError, match="frozen"):
        graph.add("xor", graph.variables[0])


@pytest.mark.parametrize("solver", ["list", "milp"])
def test_lists_and_programs_of_many_data_need_bounded_memory(solver: str, monkeypatch) -> None:
    graph = tagger(solver)
    kept = graph._lists if solver == "list" else graph._programs
    first = si.relax(THETA, graph, "map", lengths=LENGTHS, limit=LIMIT)
    assert len(kept) == 3
    monkeypatch.setattr(exact, "_MOST_KEPT", 2 * exact._ENTRY + 5000)
    for limit in range(3):
        si.relax(THETA, graph, "map", lengths=torch.tensor([4, 4, 4]), limit=torch.full((3,), limit))
        assert len(kept) <= 2
    assert len(kept) == 2
    again = si.relax(THETA, graph, "map", lengths=LENGTHS, limit=LIMIT)
    assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))
