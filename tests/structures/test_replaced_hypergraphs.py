"""Subclasses of structures that replace the hypergraph, and no longer use the loops of their base class."""

from __future__ import annotations

import pytest
import torch

import structinf as si
from structinf.dp import HypergraphBuilder
from structinf.parts import as_tuple, map_parts
from structinf_oracles.bits import Bits
from structinf_oracles.chain import Chain
from structinf_oracles.dtw import DTW


class Alternating(Chain):
    """Sequences of two tags without equal neighbours."""

    def build(self, event_shape):
        graph = HypergraphBuilder(event_shape)
        (nodes, edges), steps = graph.parts, event_shape[0][0]
        tags = graph.nodes(steps, 2)
        graph.add(tags[0], part=nodes[0])
        between = graph.nodes(steps, 2)
        for tag in (0, 1):
            graph.add(between[1:, tag], tags[:-1, 1 - tag], part=edges[:, 1 - tag, tag])
            graph.add(tags[1:, tag], between[1:, tag], part=nodes[1:, tag])
        goal = graph.node()
        graph.add(goal, tags[-1])
        return graph.build(goal, prune=True)


class AtMostOne(Bits):
    """At most one of several bits."""

    def build(self, event_shape):
        graph = HypergraphBuilder(event_shape)
        start, goal = graph.node(), graph.node()
        graph.add(start)
        graph.add(goal, start)
        for part in graph.parts:
            graph.add(goal, start, part=part)
        return graph.build(goal)


class Diagonal(DTW):
    """The path along the diagonal of a square grid."""

    def build(self, event_shape):
        graph = HypergraphBuilder(event_shape)
        cells = graph.nodes(len(graph.parts))
        graph.add(cells[0], part=graph.parts[0, 0])
        graph.add(cells[1:], cells[:-1], part=graph.parts.diagonal()[1:])
        return graph.build(cells[-1], prune=True)


def structures(kind):
    eye = torch.eye(4, dtype=torch.float64)
    if kind is Alternating:
        like = torch.zeros(2, 4, 2, dtype=torch.float64), torch.zeros(2, 3, 2, 2, dtype=torch.float64)
        return Alternating().encode(torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]), like)
    return torch.cat([torch.zeros_like(eye[:1]), eye]) if kind is AtMostOne else eye[None]


def joined(parts, batch_dims=1):
    return torch.cat([t.flatten(batch_dims) for t in as_tuple(parts)], batch_dims)


@pytest.mark.parametrize("kind", [Alternating, AtMostOne, Diagonal], ids=lambda kind: kind.__name__)
def test_another_hypergraph_replaces_the_loops_of_the_base_class(kind):
    oracle, y = kind(), structures(kind)
    theta = map_parts(lambda t: torch.randn(3, *t.shape[1:], dtype=torch.float64, requires_grad=True), y)
    flat, scores = joined(y), joined(theta).detach()
    totals = (scores @ flat.T).requires_grad_()
    assert oracle.count(theta) == [len(flat)] * 3
    torch.testing.assert_close(oracle.log_partition(theta), totals.logsumexp(1))
    torch.testing.assert_close(oracle.entropy(theta), torch.distributions.Categorical(logits=totals).entropy())
    torch.testing.assert_close(joined(si.relax(theta, oracle, "map")), flat[totals.argmax(1)])
    torch.testing.assert_close(joined(si.topk(theta, oracle, 1).structures, 2)[0], flat[totals.argmax(1)])

    mean, expected = joined(si.relax(theta, oracle, "marginals")), totals.softmax(1) @ flat
    torch.testing.assert_close(mean, expected)
    found = torch.autograd.grad(mean.square().sum(), as_tuple(theta))
    (slopes,) = torch.autograd.grad(expected.square().sum(), totals)
    torch.testing.assert_close(joined(found), slopes @ flat)

    mean = joined(si.relax(theta, oracle, "sparsemap", tolerance=0)).detach()
    gains = torch.einsum("bp,bkp->bk", scores - mean, flat - mean.unsqueeze(1))
    assert (gains < 1e-9).all()  # the condition of optimality
    drawn = joined(si.sample(theta, oracle, 20), 2)
    assert (drawn.unsqueeze(2) == flat).all(3).any(2).all()


@pytest.mark.parametrize("kind", [Chain, DTW, Bits], ids=lambda kind: kind.__name__)
def test_subclasses_with_the_same_hypergraph_keep_the_loops(kind):
    class Named(kind):
        name = "named"

    assert Named.argmax is kind.argmax
    assert Named.smoothed_sample is kind.smoothed_sample
