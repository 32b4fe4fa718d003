"""Alignment kernels compile for CUDA devices without spilled registers."""

from __future__ import annotations

import math

import pytest
import torch

from structinf_oracles.kernels.alignment.triton_dispatch import (
    argmax,
    hessian_product,
    sample,
    topk,
    value,
    value_and_mean,
)

LONG = 2000  # more cells on an anti-diagonal than a block has lanes
CALLS = {
    "value": lambda theta, *extent, alpha: value(theta, *extent, alpha),
    "mean": lambda theta, *extent, alpha: value_and_mean(theta, *extent, alpha, torch.ones(2, dtype=theta.dtype)),
    "hessian_product": lambda theta, *extent, alpha: hessian_product(theta, theta, *extent, alpha),
    "sample": lambda theta, *extent, alpha: sample(
        theta, *extent, alpha, torch.zeros(100, 2, sum(theta.shape[1:]) - 1, dtype=torch.float64)
    ),
    "best": lambda theta, *extent, alpha: argmax(theta, *extent),
    "k_best": lambda theta, *extent, alpha: topk(theta, *extent, 5),
}


def compile_call(compile_launches, name, dtype, alpha=math.inf, n=300, m=200, has_instance_data=True) -> None:
    theta, data = torch.zeros(2, n, m, dtype=dtype), (torch.tensor([[n, m]] * 2), torch.tensor([n, m]))
    extent = data if has_instance_data else (None, n + m)
    compile_launches(lambda: CALLS[name](theta, *extent, alpha=alpha))


@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("mean", torch.float32, {"alpha": 1.0}),
        ("hessian_product", torch.float64, {"alpha": 1.5, "n": LONG, "m": LONG}),
        ("sample", torch.float32, {"alpha": 2.0, "has_instance_data": False}),
        ("best", torch.float64, {}),
        ("k_best", torch.float32, {}),
    ],
)
def test_a_sample_of_the_kernels(name, dtype, options, compile_launches) -> None:
    compile_call(compile_launches, name, dtype, **options)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [20, 1000, LONG])
@pytest.mark.parametrize(
    ("name", "alpha"),
    [(name, alpha) for name in ("value", "mean", "hessian_product", "sample") for alpha in (1.0, 1.5, 2.0)]
    + [("value", math.inf), ("best", math.inf), ("k_best", math.inf)],
)
def test_every_kernel(name, alpha, n, dtype, compile_launches) -> None:
    for has_instance_data in (False, True):
        compile_call(compile_launches, name, dtype, alpha, n, n, has_instance_data)
