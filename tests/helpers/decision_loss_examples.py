"""Examples for losses of decisions, and the gradients of their instances."""

from __future__ import annotations

import pytest
import torch

import oracle_examples
from structinf.parts import as_tuple, map_parts

INF = torch.inf
THETA = torch.tensor([[1.0, 2.0, 0.0]])
TRUE = torch.tensor([[2.0, 0.5, 1.0]])
EXACT = {"margin": 0.0, "max_iter": None}
"""Options of the cone loss without a margin, solved to the end."""


def gradients(loss, theta, *args):
    """The losses of instances, and their gradients."""
    leaves = map_parts(lambda t: t.clone().requires_grad_(), theta)
    losses = loss(leaves, *args)
    losses.sum().backward()
    return losses.detach(), [t.grad for t in as_tuple(leaves)]


def assert_rows(found, b, wanted):
    for g, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(g[b], torch.as_tensor(w), atol=1e-9, rtol=0)


SOME = [
    e
    for e in oracle_examples.one_for_each(lambda o: type(o), lambda e: e.relaxed and e.listing is not None)
    if not e.oracle().requires_nonpositive_theta
]
several = pytest.mark.parametrize("example", SOME, ids=str)
