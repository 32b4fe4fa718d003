"""Checkpointing: what a region saves is computed again in the backward pass, once, and not before."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import structinf as si
from compile_assertions import assert_equal, marks, scores, whole

pytestmark = marks

Y = torch.tensor([0, 3])


def square(mean: Tensor) -> Tensor:
    return 0.5 * mean.square().sum(-1)


REGIONS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "layer": lambda: si.Layer("subset", "marginals", k=2),
    "function": lambda: si.Layer("categorical", "frank_wolfe", omega=square),
    "loss": lambda: functools.partial(si.FenchelYoungLoss("categorical", "marginals"), y=Y),
}


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("compiled", [False, True])
def test_regions_are_computed_twice(name, compiled):
    region, x, calls = REGIONS[name](), scores(2, 4), []
    inner = torch.compile(region, backend="eager") if compiled else region

    def counted(x: Tensor) -> Tensor:
        calls.append(len(calls))
        return inner(2 * x).sin()

    value = checkpoint(counted, x, use_reentrant=False)
    assert len(calls) == 1
    (found,) = torch.autograd.grad(value.sum(), x)
    assert len(calls) == 2
    torch.testing.assert_close(found, torch.autograd.grad(region(2 * x).sin().sum(), x)[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["layer", "loss"])
def test_regions_within_compiled_programs(name, backend):
    region = REGIONS[name]()

    def model(x: Tensor) -> Tensor:
        return checkpoint(lambda z: region(2 * z).sin(), x, use_reentrant=False)

    assert_equal(whole(model, backend), model, scores(2, 4))
