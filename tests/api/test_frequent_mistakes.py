"""Frequent mistakes in calls: each error names the argument and the remedy."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

import structinf as si
from structinf import InvalidInputError, UnsupportedError, relax
from structinf.calls.resolution import get_oracle


def test_errors_of_direct_calls_name_the_argument():
    trees, square = get_oracle("arborescence"), torch.zeros(4, 4)
    with pytest.raises(InvalidInputError, match=r"^y: methods of arborescence take 3 dimensions"):
        trees.decode(square)
    with pytest.raises(InvalidInputError, match=r"^like: methods of arborescence take 3 dimensions"):
        trees.encode(torch.tensor([[0, 1, 1]]), square)
    with pytest.raises(InvalidInputError, match=r"^event_shape: "):
        trees.enumerate((4,))
    with pytest.raises(InvalidInputError, match=r"^event_shape must be .*, got 4; write \(4,\) for structures of one"):
        cast(Any, trees).enumerate(4)


class FirstPart(si.Oracle):
    event_ndim = 1

    def argmax(self, theta):
        return torch.nn.functional.one_hot(theta.argmax(-1), theta.shape[-1]).to(theta)


def _crossing_factors() -> si.FactorGraph:
    graph = si.FactorGraph(4)
    graph.add("xor", [0, 1])
    graph.add("xor", [1, 2])
    return graph


def _two_chains(**options: Any) -> si.FactorGraph:
    graph = si.FactorGraph((4, 3))
    for _ in range(2):
        graph.add("chain", graph.variables, additional=[(3, 3)], **options)
    return graph


_SERIES, _TAGS = torch.zeros(4), (torch.zeros(1, 4, 3), torch.zeros(3, 3))
_GOLD = torch.zeros(1, 4, dtype=torch.int64)
_ONE_HOT = torch.nn.functional.one_hot(_GOLD, 3)
_CHAIN_LOSS: Any = si.FenchelYoungLoss("chain", "map")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: relax(_SERIES, lambda theta: theta, "map"), TypeError, "structinf.oracle_from_function"),
        (lambda: si.decode_greedy("shift_reduce", _SERIES), TypeError, "got 'shift_reduce'; pass an object"),
        (lambda: si.decode_greedy(si.transitions.ShiftReduce, _SERIES), TypeError, r"it first: ShiftReduce\(\.\.\.\)"),
        (lambda: si.soft_dtw(_SERIES, _SERIES), InvalidInputError, r"shape \(4,\); .* structinf.pairwise_cost\(x, y\)"),
        (lambda: relax(_TAGS[0], "chain", "map"), InvalidInputError, r"need a tuple \(unary, transition\)$"),
        (lambda: cast(Any, si.Layer("chain"))(*_TAGS), TypeError, r"^Layer.forward\(\) .* tuple, layer\(\(u, t\)\), "),
        (
            lambda: cast(Any, si.Layer("chain")).infer(*_TAGS),
            TypeError,
            r"a tuple, layer.infer\(\(u, t\)\), and instance",
        ),
        (lambda: cast(Any, si.Layer("chain"))(_TAGS, [4]), TypeError, r"instance data by name, such as lengths=\.\.\."),
        (lambda: _CHAIN_LOSS(*_TAGS, _GOLD), TypeError, r"^FenchelYoungLoss.forward\(\) .* loss\(\(u, t\), y\), "),
        (lambda: _CHAIN_LOSS(*_TAGS, y=_GOLD), TypeError, r"a tuple, loss\(\(u, t\), y\), "),
        (lambda: cast(Any, si).SPOPlusLoss("chain")(*_TAGS, _TAGS), TypeError, r"loss\(\(u, t\), true_theta\), "),
        (lambda: cast(Any, relax)(*_TAGS, "chain", "map"), TypeError, r"relax\(\(u, t\), oracle, relaxation\), "),
        (
            lambda: cast(Any, relax)(*_TAGS, "chain"),
            TypeError,
            r"^oracle .* got a Tensor; .* several tensors as a tuple",
        ),
        (lambda: cast(Any, relax)(*_TAGS, "chain", lengths=[4]), TypeError, r"^oracle .* got a Tensor; .* as a tuple"),
        (lambda: cast(Any, si.Gibbs)(*_TAGS, "chain"), TypeError, r"a tuple, Gibbs\(\(u, t\), oracle\), "),
        (lambda: cast(Any, si.decode)(*_TAGS, "chain"), TypeError, r"tensors of y .* decode\(\(u, t\), oracle\), "),
        (lambda: _CHAIN_LOSS(_TAGS, _ONE_HOT), InvalidInputError, r"labels of one-hot vectors: y\.argmax\(-1\)$"),
        (lambda: _CHAIN_LOSS(_TAGS, _ONE_HOT.float()), InvalidInputError, r"1 more dimension: y\.argmax\(-1\)$"),
        (lambda: si.encode(_ONE_HOT, _TAGS, "chain"), InvalidInputError, r"one-hot vectors: labels\.argmax\(-1\)$"),
        (
            lambda: si.FenchelYoungLoss("assignment", "map")(torch.zeros(2, 2), torch.eye(2).long()),
            InvalidInputError,
            r"pass a structure in floating point: y\.to\(theta\.dtype\)$",
        ),
        (
            lambda: si.FenchelYoungLoss("semi_markov", "map")(torch.zeros(1, 4, 3, 2), _GOLD),
            InvalidInputError,
            r"number of steps \(1 to D\), label\], .* floating point has the form of theta, \(1, 4, 3, 2\)$",
        ),
        (
            lambda: relax((*_TAGS, _TAGS[1]), _two_chains(), "map", lengths=[4]),
            TypeError,
            r"; factor 0 \(chain\) takes lengths after graph\.add\(\.\.\., instance_data=\['lengths'\]\)$",
        ),
        (lambda: _two_chains().bind(lengths=torch.tensor([4])), TypeError, r"; factor 0 \(chain\) takes lengths after"),
        (
            lambda: relax(_TAGS, _two_chains(), "map"),
            InvalidInputError,
            r"the shapes are \(4, 3\) for the variables, \(3, 3\) for factor 0 \(chain\), \(3, 3\) for factor 1 ",
        ),
        (
            lambda: relax((*_TAGS, torch.zeros(4, 4)), _two_chains(), "map"),
            InvalidInputError,
            r"^theta\[2\]: the scores for factor 1 \(chain\) must have shape \(3, 3\), got \(4, 4\)",
        ),
        (
            lambda: si.FenchelYoungLoss(_two_chains(), "map")((*_TAGS, _TAGS[1]), _GOLD),
            InvalidInputError,
            r"labels of factor_graph are the values of the variables, 0 or 1, of shape \(4, 3\), and",
        ),
        (
            lambda: si.FenchelYoungLoss("chain", "map")(_TAGS, torch.full((1, 4), -100)),
            InvalidInputError,
            "position 0; pass lengths=... to ignore the padding",
        ),
        (
            lambda: si.FenchelYoungLoss("chain", "map")(_TAGS, torch.zeros(1, 4, 3)),
            InvalidInputError,
            "must have the form of theta, a tuple of 2 tensors, got a tensor",
        ),
        (
            lambda: relax(_SERIES, "path", "map", graph=[[(0, 1), (1, 2), (0, 2)], [(0, 1)]]),
            InvalidInputError,
            r"structinf.GraphBatch.of\(graphs\)",
        ),
        (lambda: si.topk(_SERIES, FirstPart(), 2), UnsupportedError, "may have restricted_argmax instead"),
        (lambda: si.sample(_SERIES, FirstPart(), 2), UnsupportedError, 'structinf.infer with "perturbed"'),
        (
            lambda: si.infer(_SERIES, _crossing_factors(), "mean_field"),
            UnsupportedError,
            r"factor 0, xor of .* and factor 1, xor of .* share variable 1, .* use belief_propagation",
        ),
        (
            lambda: si.FactorGraph((6, 3)).add("chain", torch.arange(18).view(6, 3)),
            InvalidInputError,
            r"got 2; pass the shape of the transitions between the 3 states: additional=\[\(3, 3\)\]",
        ),
        (
            lambda: si.FactorGraph((4, 3)).add("assignment", torch.arange(3)),
            InvalidInputError,
            "takes scores with 2 dimensions, got 1; pass the variables in the shape of the first tensor",
        ),
        (
            lambda: si.expect(lambda y: (y * _SERIES[:2, None]).sum(1), torch.zeros(2, 3), "subset", "exact", k=1),
            InvalidInputError,
            r"for the 6 structures of 2 instances: .*; if f reads a tensor of the batch, pass the tensor as inputs=",
        ),
        (lambda: si.FactorGraph(4).add("one", [0, 1]), si.UnknownNameError, "Other factors: xor, or, "),
        (lambda: si.FactorGraph(4).add("budgett", [0, 1]), si.UnknownNameError, "did you mean 'budget'"),
        (
            lambda: si.topk(torch.zeros(4), "subset", k=2),
            InvalidInputError,
            r"topk\(theta, get_oracle\('subset', k=...\), k",
        ),
        (lambda: cast(Any, si).span_f1, AttributeError, "'span_f1'; use structinf.metrics.span_f1$"),
        (lambda: cast(Any, si).SparseMAP, AttributeError, "'SparseMAP'$"),
        (
            lambda: relax(_SERIES, "alignment", "map"),
            si.UnknownNameError,
            "mean 'dtw' or 'monotonic_alignment' or 'need",
        ),
    ],
)
def test_frequent_mistakes_get_a_remedy(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
