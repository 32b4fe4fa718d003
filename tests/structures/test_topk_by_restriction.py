"""The k best structures of oracles whose argmax is restricted, against all structures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.parts import batch_size
from structinf.restriction import argmax_of_feasible

S = torch.tensor([[0.0, 1.0, 0.2, 0.5], [0.0, 0.0, 0.9, 0.1], [0.0, 0.3, 0.0, 0.8], [0.0, 0.6, 0.4, 0.0]])

GRAPH = ((0, 1), (2, 1), (1, 0), (0, 2), (3, 1), (1, 2), (3, 2))
WAYS = (("b", "c"), ("a", "b"), ("a", "c"), ("c", "b"), ("b", "d"), ("c", "d"))

ORACLES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "arborescence": (si.get_oracle("arborescence"), (5, 5)),
    "arborescence, single root": (si.get_oracle("arborescence", single_root=True), (5, 5)),
    "spanning_tree": (si.get_oracle("spanning_tree"), (4, 4)),
    "spanning_tree, parallel edges": (si.get_oracle("spanning_tree", edges=GRAPH), (7,)),
    "matching": (si.get_oracle("matching"), (6, 6)),
    "matching, any": (si.get_oracle("matching", edges=GRAPH, perfect=False), (7,)),
    "flow, cycle": (si.get_oracle("flow", graph=WAYS, supplies={"a": 2, "d": -2}, capacities=(1, 2, 2, 1, 1, 2)), (6,)),
    "flow": (si.get_oracle("flow", graph=WAYS[1:3] + WAYS[4:], supplies={"a": 3, "d": -3}), (4,)),
    "transportation": (si.get_oracle("transportation", supplies=(2, 1), demands=(1, 1, 2)), (2, 3)),
    "ranking": (si.get_oracle("ranking"), (4,)),
    "tour": (si.get_oracle("tour"), (4, 4)),
    "milp": (si.get_oracle("milp", A=[[1, 1, 1]], upper=[2], lower=[-1], bounds=(-1, 1), solver="cp_sat"), (3,)),
    "path": (si.get_oracle("path", graph=WAYS, source="a", target="d", directed=False), (6,)),
    "path, nodes": (si.get_oracle("path", graph=WAYS, source="a", target="d", scores="nodes", directed=False), (4,)),
    "grid_path": (si.get_oracle("grid_path", moves="8-neighbours"), (2, 3)),
}


def scores_of(name: str, kind: str, batch: int = 3) -> Tensor:
    oracle, event = ORACLES[name]
    generator = torch.Generator().manual_seed(len(name))
    theta = torch.randn(batch, *event, generator=generator, dtype=torch.float64)
    if kind == "ties":
        theta = theta.round()
    if kind == "forbidden":
        best = oracle.argmax(-theta.abs())
        theta[(torch.rand(theta.shape, generator=generator) < 0.2) & (best == 0)] = -torch.inf
    return -theta.abs() if oracle.requires_nonpositive_theta else theta


def expected(oracle: Any, theta: Tensor) -> Tensor:
    """Return the finite scores of all structures of one instance, best first."""
    listed = oracle.enumerate(theta.shape)
    scores = torch.where(listed != 0, theta * listed, 0.0).flatten(1).sum(1)
    if theta.isneginf().any():
        scores[((listed != 0) & theta.isneginf()).flatten(1).any(1)] = -torch.inf
    scores = scores.sort(descending=True).values
    return scores[~scores.isneginf()]


# Every ranking uses every part.
CASES = [
    (name, kind) for name in ORACLES for kind in ("normal", "ties", "forbidden") if kind + name != "forbiddenranking"
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_all_structures_in_order(name, kind):
    oracle, _ = ORACLES[name]
    theta = scores_of(name, kind)
    k = 16
    found: Any = si.topk(theta, oracle, k)
    for b in range(len(theta)):
        scores = expected(oracle, theta[b])
        count = min(k, len(scores))
        assert found.valid[:, b].sum() == count
        torch.testing.assert_close(found.scores[:count, b], scores[:count], rtol=0, atol=1e-9)
        rows = found.structures[:count, b].flatten(1)
        assert len(rows.unique(dim=0)) == count
        assert (found.structures[count:, b] == 0).all()
        # Alone or with other instances, and for any k, the structures have the same order.
        alone: Any = si.topk(theta[b], oracle, count)
        torch.testing.assert_close(alone.structures, found.structures[:count, b], rtol=0, atol=0)


def test_known_trees():
    best = si.topk(S, "arborescence", 20)
    assert best.valid.sum() == 16
    torch.testing.assert_close(best.scores[:6], torch.tensor([2.7, 2.4, 2.0, 2.0, 2.0, 1.9]))
    heads = [tuple(row) for row in si.decode(best.structures[:6], "arborescence").tolist()]
    assert heads[0] == (0, 1, 2)
    assert heads[1] == (0, 1, 0)
    assert set(heads[2:5]) == {(3, 1, 0), (0, 1, 1), (0, 0, 2)}
    assert heads[5] == (0, 3, 0)
    single = si.topk(S, "arborescence", 20, single_root=True)
    assert single.valid.sum() == 9
    torch.testing.assert_close(single.scores[:4], torch.tensor([2.7, 2.0, 2.0, 1.6]))


@pytest.mark.parametrize("name", ["arborescence", "spanning_tree", "matching, any", "path"])
def test_unusual_batches(name):
    oracle, event = ORACLES[name]
    theta = scores_of(name, "normal", batch=4)
    found: Any = si.topk(theta, oracle, 3)
    empty: Any = si.topk(theta[:0], oracle, 3)
    assert empty.structures.shape == (3, 0, *event)
    assert empty.scores.shape == (3, 0)
    strided = theta.repeat_interleave(2, 0)[::2].requires_grad_()
    torch.testing.assert_close(si.topk(strided, oracle, 3).structures, found.structures)
    nested = si.topk(theta.view(2, 2, *event), oracle, 3)
    torch.testing.assert_close(nested.scores, found.scores.view(3, 2, 2))
    scaled: Any = si.topk((1000 * theta).float(), oracle, 3)
    torch.testing.assert_close(scaled.structures.double(), found.structures)
    half = si.topk(theta.half(), oracle, 3)
    assert half.scores.dtype == torch.float16


def test_lengths_and_infeasible_instances():
    theta = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for name, counts in (("arborescence", [3, 5]), ("spanning_tree", [3, 5])):
        found = si.topk(theta, name, 5, lengths=[2, 4] if name == "arborescence" else [3, 5])
        assert found.valid.sum(0).tolist() == counts
    theta[0, 0, 1:] = -torch.inf
    with pytest.raises(si.InfeasibleError, match="batch index 0"):
        si.topk(theta, "arborescence", 3)
    found = si.topk(theta, "arborescence", 3, on_infeasible="zero")
    assert found.valid.sum(0).tolist() == [0, 3]


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_wrong_k(k):
    for name in ("arborescence", "spanning_tree", "path"):
        with pytest.raises((si.InvalidInputError, TypeError), match="k"):
            si.topk(scores_of(name, "normal"), ORACLES[name][0], k)


def test_continuous_variables_have_no_list():
    oracle = si.get_oracle("milp", A=[[1, 1]], upper=[1.5], integrality=[True, False])
    with pytest.raises(si.UnsupportedError, match="k best"):
        si.topk(torch.ones(2), oracle, 2)


def test_forced_and_forbidden_parts():
    for name in ("arborescence", "spanning_tree", "matching", "matching, any", "tour"):
        oracle, event = ORACLES[name]
        theta = scores_of(name, "normal")
        listed = oracle.enumerate(event)
        low, high = torch.zeros_like(theta), torch.ones_like(theta)
        for b in range(3):
            used, other = listed[1 + b].flatten().nonzero()[0, 0], listed[-1 - b].flatten().nonzero()[-1, 0]
            low[b].view(-1)[used] = 1
            high[b].view(-1)[other] = float(other == used)
        y, found = oracle.restricted_argmax(theta, low, high)
        for b in range(3):
            allowed = ((listed >= low[b]) & (listed <= high[b])).flatten(1).all(1)
            assert bool(found[b]) == bool(allowed.any())
            if found[b]:
                best = (listed[allowed] * theta[b]).flatten(1).sum(1).max()
                torch.testing.assert_close((y[b] * theta[b]).sum(), best)
                assert ((y[b] >= low[b]) & (y[b] <= high[b])).all()


def _join(theta):
    size = batch_size(theta)
    return torch.cat([t.expand(size, -1) for t in theta], 1)


@dataclass(frozen=True)
class Pair(si.Restrictable):
    """Sets of at most two of the parts of a tuple of tensors."""

    event_ndim = (1, 1)

    def argmax(self, theta):
        scores = _join(theta)
        best, place = scores.topk(2)
        y = torch.zeros_like(scores).scatter(1, place, (best > 0).to(scores))
        return y.split([theta[0].shape[1], theta[1].shape[1]], 1)

    def restricted_argmax(self, theta, low, high):
        low, high = _join(low), _join(high)
        scores = _join(theta).masked_fill(high < 1, -torch.inf)
        ranked = scores.masked_fill(low > 0, torch.inf)
        best, place = ranked.topk(2)
        y = torch.zeros_like(scores).scatter(1, place, (best > 0).to(scores))
        found = (y >= low).all(1) & (y <= high).all(1)
        return y.split([theta[0].shape[1], theta[1].shape[1]], 1), found


def test_plugin_with_a_tuple_of_tensors():
    theta = (torch.tensor([[0.5, -1.0]]), torch.tensor([[2.0, -0.25]]))
    found = si.topk(theta, Pair(), 20)
    assert found.valid.sum() == 11
    assert found.scores[:5, 0].tolist() == [2.5, 2.0, 1.75, 1.0, 0.5]


class Choices(si.dp.DynamicProgram):
    """One column for each row, as a recursion in torch."""

    event_ndim = 2

    def value(self, theta, smax):
        total = theta.new_zeros(len(theta))
        for row in theta.unbind(1):
            total = smax(total[:, None] + row)
        return total


class RestrictedChoices(Choices, si.Restrictable):
    has_nested_structures = False

    def restricted_argmax(self, theta, low, high):
        excluded = (high < 1) | (low.amax(2, keepdim=True) > low)
        return argmax_of_feasible(self, theta.masked_fill(excluded, -torch.inf))


def test_recursion_in_torch():
    theta = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta[1, 0, 1:] = -torch.inf
    found: Any = si.topk(theta, RestrictedChoices(), 30)
    assert found.valid.sum(0).tolist() == [27, 9]
    every = (theta[0, 0][:, None, None] + theta[0, 1][:, None] + theta[0, 2]).flatten().sort(descending=True).values
    torch.testing.assert_close(found.scores[:27, 0], every)
    with pytest.raises(si.UnsupportedError, match=r"HypergraphProgram, or inherit from .*Restrictable"):
        si.topk(theta, Choices(), 3)


@pytest.mark.full
def test_conformance_of_a_plugin():
    si.testing.check_oracle(Pair(), ((2,), (2,)))


def test_infeasible_instances_of_a_restricted_argmax():
    theta = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(1))
    theta[1, 0] = -torch.inf
    y, found = argmax_of_feasible(si.get_oracle("arborescence"), theta)
    assert found.tolist() == [True, False, True]
    assert (y[1] == 0).all()
    _, found = argmax_of_feasible(si.get_oracle("arborescence"), theta[[1, 1]])
    assert not found.any()
