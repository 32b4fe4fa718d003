"""Gibbs distributions to test: of each oracle that sums and is enumerated, and a chain with shared transitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import structinf as si
from oracle_examples import EXAMPLES
from structinf.parts import as_tuple, pack_like

BATCH = 2


def is_listed(example):
    return example.listing is not None and isinstance(example.oracle(), si.GibbsOracle)


def first_of_each_name():
    return list({example.name: example for example in reversed(EXAMPLES) if is_listed(example)}.values())


one_each = pytest.mark.parametrize("example", first_of_each_name(), ids=str)


def draw(example, seed=0, batch=(BATCH,)):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(*batch, *shape, dtype=torch.float64, generator=generator) for shape in example.shapes]
    if example.oracle().requires_nonpositive_theta:
        tensors = [-t.abs() for t in tensors]
    return pack_like(tensors, (0,) if example.is_tuple else None)


def close(found, expected, atol=1e-9):
    for f, e in zip(as_tuple(found), as_tuple(expected), strict=True):
        np.testing.assert_allclose(torch.as_tensor(f).detach(), e, atol=atol)


def pair(temperature=1.0, **options):
    """A chain whose shared transitions are counted, (unary, transition)."""
    g = torch.Generator().manual_seed(3)
    theta = torch.randn(3, 4, 2, dtype=torch.float64, generator=g), torch.randn(2, 2, dtype=torch.float64, generator=g)
    return si.Gibbs(theta, "chain", temperature=temperature, **options)
