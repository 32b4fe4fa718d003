"""Rounding and vector quantisation against hand formulas."""

from __future__ import annotations

import math

import pytest
import torch

import structinf as si
from structinf.functional import quantization

ROUNDINGS = {si.round_straight_through: torch.round, si.floor_straight_through: torch.floor}
rounding = pytest.mark.parametrize("function", ROUNDINGS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@rounding
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_rounded_exactly_and_gradients_pass(function, dtype):
    x = torch.tensor([-1.5, -1e-9, 0.3, 0.5, 1.5, 2.6, 1e4, math.inf, -0.0], dtype=dtype).requires_grad_()
    g = torch.randn(9, generator=seeded()).to(dtype)
    y = function(x)
    assert torch.equal(y, ROUNDINGS[function](x.detach()))
    (gradient,) = torch.autograd.grad(y, x, g)
    assert torch.equal(gradient, g)
    assert not function(x.detach()).requires_grad


@rounding
def test_second_derivatives_are_those_of_the_identity(function):
    x = torch.tensor([0.3, 1.6], dtype=torch.float64).requires_grad_()
    y = function(x)
    (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    assert torch.equal(first, 3 * y**2)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, 6 * y.detach())
    g = torch.ones(2, dtype=torch.float64).requires_grad_()
    (linear,) = torch.autograd.grad(function(x), x, g, create_graph=True)
    (of_g,) = torch.autograd.grad(linear.sum(), g)
    assert torch.equal(of_g, torch.ones(2, dtype=torch.float64))


@rounding
def test_the_input_is_left_alone(function):
    x = torch.rand(3, 4, generator=seeded()).T
    before = x.clone()
    assert function(x).shape == (4, 3)
    assert torch.equal(x, before)
    assert function(torch.zeros(0, 2)).shape == (0, 2)
    with pytest.raises(TypeError, match=r"x must be a tensor in floating point, got a tensor of torch\.int64"):
        function(torch.tensor([1]))


# ----------------------------------------------------------------------------- vectors


def quantizer(codebook, **options) -> si.VectorQuantizer:
    made = si.VectorQuantizer(*codebook.shape, **options).to(codebook.dtype)
    made.codebook.data[:] = codebook
    return made


def test_nearest_codes_and_losses_by_hand():
    codes = torch.randn(7, 3, generator=seeded(), dtype=torch.float64)
    x = torch.randn(2, 5, 3, generator=seeded(1), dtype=torch.float64)
    found = quantizer(codes, beta=0.4)(x)
    distances = ((x[:, :, None] - codes) ** 2).sum(-1)
    assert torch.equal(found.indices, distances.argmin(-1))
    assert torch.equal(found.quantized, codes[found.indices])
    torch.testing.assert_close(found.codebook_loss, distances.amin(-1).mean())
    torch.testing.assert_close(found.commitment_loss, 0.4 * distances.amin(-1).mean())


def test_gradients_by_hand():
    codes = torch.randn(4, 3, generator=seeded(), dtype=torch.float64)
    x = torch.randn(10, 3, generator=seeded(1), dtype=torch.float64).requires_grad_()
    made = quantizer(codes, beta=0.4)
    found = made(x)
    g = torch.randn(10, 3, generator=seeded(2), dtype=torch.float64)
    chosen = codes[found.indices]
    gradients = lambda y, cotangent=None: torch.autograd.grad(  # noqa: E731
        y, (x, made.codebook), cotangent, retain_graph=True, materialize_grads=True
    )
    for_x, for_codes = gradients(found.quantized, g)
    assert torch.equal(for_x, g)
    assert not for_codes.any()
    for_x, for_codes = gradients(found.commitment_loss)
    torch.testing.assert_close(for_x, 0.4 * 2 * (x.detach() - chosen) / 10)
    assert not for_codes.any()
    for_x, for_codes = gradients(found.codebook_loss)
    assert not for_x.any()
    pulled = torch.zeros_like(codes)
    for row, k in enumerate(found.indices.tolist()):
        pulled[k] += 2 * (codes[k] - x.detach()[row]) / 10
    torch.testing.assert_close(for_codes, pulled)


def test_of_equally_near_codes_the_first():
    made = quantizer(torch.tensor([[2.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]))
    x = torch.tensor([[0.0, 0.3], [1.0, 0.0], [1.5, 0.0]])
    for rows in (x, x.repeat(100, 1)):
        assert made(rows).indices[:3].tolist() == [1, 1, 0]


def test_nearest_far_from_the_origin():
    codes = torch.tensor([[1e4, 0.0], [1e4 + 0.01, 0.0], [1e4 + 0.02, 0.0]])
    assert quantizer(codes)(codes).indices.tolist() == [0, 1, 2]


def test_blocks_of_rows(monkeypatch):
    codes, x = torch.randn(5, 3, generator=seeded()), torch.randn(100, 3, generator=seeded(1))
    whole = quantizer(codes)(x).indices
    monkeypatch.setattr(quantization, "_BLOCK", 35)
    assert torch.equal(quantizer(codes)(x).indices, whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_goes_through_float32(dtype):
    codes = torch.randn(5, 3, generator=seeded())
    x = (300 * torch.randn(20, 3, generator=seeded(1))).to(dtype).requires_grad_()  # whose squares overflow
    found = quantizer(codes)(x)
    assert found.quantized.dtype == dtype
    assert found.codebook_loss.dtype == torch.float32
    assert found.codebook_loss.isfinite()
    assert torch.equal(found.indices, quantizer(codes)(x.float()).indices)
    (found.quantized.sum() + found.commitment_loss).backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    half = quantizer(codes.to(dtype))(x)
    assert half.quantized.dtype == dtype


def test_training_moves_codes_to_clusters():
    centres = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 4.0]])
    x = centres.repeat(50, 1) + 0.1 * torch.randn(150, 2, generator=seeded())
    made = quantizer(centres / 4)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        made(x).codebook_loss.backward()
        optimizer.step()
    torch.testing.assert_close(made.codebook.detach(), x.view(50, 3, 2).mean(0), atol=0.02, rtol=0)


def test_shapes_and_refusals():
    made = si.VectorQuantizer(4, 3)
    found = made(torch.zeros(0, 2, 3))
    assert (found.quantized.shape, found.indices.shape) == ((0, 2, 3), (0, 2))
    assert found.codebook_loss == 0
    assert made(torch.zeros(3)).indices.shape == ()
    assert made(torch.randn(3, 5).T).quantized.shape == (5, 3)
    assert repr(made) == "VectorQuantizer(4, 3, beta=0.25)"
    assert made.codebook.abs().max() <= 0.25
    with pytest.raises(si.InvalidInputError, match=r"x must hold vectors of shape \(\.\.\., 3\), got shape \(2, 4\)"):
        made(torch.zeros(2, 4))
    with pytest.raises(si.InvalidInputError, match="x must be finite"):
        made(torch.tensor([0.0, math.nan, 1.0]))
    for arguments, options in (((0, 3), {}), ((4, 0), {}), ((4, 3), {"beta": 0.0})):
        with pytest.raises(si.InvalidInputError, match="must be"):
            si.VectorQuantizer(*arguments, **options)
