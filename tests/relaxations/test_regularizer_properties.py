"""What holds for every regularizer of the simplex."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from regularizer_reference import INF, double, every_dtype, every_regularizer, omega
from structinf.autograd import smooth_argmax, smooth_max
from structinf.regularizers import Negentropy, SquaredL2, Tsallis, Unregularized


@every_regularizer
def test_bounds(regularizer):
    """max ≤ max_Ω ≤ max − min Ω; both are attained, by one entry and by a tie."""
    n, slack = 6, 1e-14
    widest = -float(omega(np.full(n, 1 / n), regularizer.alpha))
    for scale in (1e-3, 1.0, 1e3):
        x = scale * torch.randn(50, n, dtype=torch.float64)
        excess = regularizer.value(x) - x.amax(-1)
        assert (excess >= -slack * scale).all()
        assert (excess <= widest + slack * max(scale, 1)).all()
    assert float(regularizer.value(double(*[3] * n))) == pytest.approx(3 + widest)
    assert float(regularizer.value(double(3.7))) == 3.7


@every_regularizer
def test_small_temperatures_come_to_the_maximum(regularizer):
    x = torch.randn(20, 5, dtype=torch.float64)
    for temperature in (1e-1, 1e-3, 1e-6):
        value = temperature * regularizer.value(x / temperature)
        torch.testing.assert_close(value, x.amax(-1), rtol=0, atol=temperature * math.log(5))
    torch.testing.assert_close(regularizer.gradient(x / 1e-6), Unregularized().gradient(x))


def test_alpha_to_1_is_negentropy():
    x = torch.randn(20, 30, dtype=torch.float64)
    distances = []
    for distance in (1e-2, 1e-5, 1e-8, 2.0**-52):
        near = Tsallis(alpha=1 + distance)
        torch.testing.assert_close(near.value(x), Negentropy().value(x), rtol=0, atol=20 * distance + 1e-14)
        torch.testing.assert_close(near.gradient(x), Negentropy().gradient(x), rtol=0, atol=20 * distance + 1e-14)
        q, z = near.gradient(x), torch.randn_like(x)
        distances.append(near.hessian_product(q, z) - Negentropy().hessian_product(q, z))
    assert distances[-1].abs().max() < 1e-14


@pytest.mark.parametrize("n", [4, 16, 17, 60])
def test_alpha_to_2_is_squared_l2(n):
    x = torch.randn(20, n, dtype=torch.float64)
    torch.testing.assert_close(Tsallis(alpha=2).gradient(x), SquaredL2().gradient(x), rtol=0, atol=0)
    torch.testing.assert_close(Tsallis(alpha=2 - 1e-9).gradient(x), SquaredL2().gradient(x), rtol=0, atol=1e-7)


@pytest.mark.parametrize("alpha", [1.5, 2])
def test_the_closed_forms_agree_with_newton_alone(alpha):
    """−inf entries change no probability, but make rows too long for sorting."""
    x = torch.randn(50, 9, dtype=torch.float64)
    padded = torch.nn.functional.pad(x, (0, 20), value=-INF)
    regularizer = Tsallis(alpha=alpha)
    torch.testing.assert_close(regularizer.gradient(padded)[:, :9], regularizer.gradient(x), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(regularizer.value(padded), regularizer.value(x), rtol=1e-14, atol=1e-14)


@every_regularizer
@pytest.mark.parametrize("shift", [-1e3, 1.0, 1e6])
def test_a_shift_moves_the_value_alone(regularizer, shift):
    x = torch.randint(-8, 8, (20, 6), dtype=torch.float64) / 4
    assert torch.equal(regularizer.gradient(x + shift), regularizer.gradient(x))
    torch.testing.assert_close(regularizer.value(x + shift), regularizer.value(x) + shift)


@every_regularizer
def test_ties_and_permutations(regularizer):
    x = double(0.5, -1, 0.5, 0.5, 0)
    q = regularizer.gradient(x)
    if regularizer.alpha == INF:
        assert q.tolist() == [1, 0, 0, 0, 0]
        return
    assert q[0] == q[2] == q[3]
    assert q[0] > q[4] >= q[1] >= 0
    order = torch.tensor([4, 3, 0, 1, 2])
    torch.testing.assert_close(regularizer.gradient(x[order]), q[order])


@every_regularizer
def test_no_row_depends_on_its_neighbours(regularizer):
    x = torch.randn(30, 7) * torch.logspace(-3, 3, 30)[:, None]
    q, value = regularizer.gradient(x), regularizer.value(x)
    for i in (0, 11, 29):
        torch.testing.assert_close(regularizer.gradient(x[i]), q[i], rtol=1e-6, atol=0)
        torch.testing.assert_close(regularizer.value(x[i]), value[i], rtol=1e-6, atol=0)


@every_regularizer
def test_layouts_and_untouched_input(regularizer):
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    copy = x.clone()
    for dim in (0, 1, 2, -1, -2, -3):
        last = x.movedim(dim, -1).contiguous()
        assert torch.equal(smooth_max(regularizer, x, dim), regularizer.value(last))
        assert torch.equal(smooth_argmax(regularizer, x, dim).movedim(dim, -1), regularizer.gradient(last))
    assert torch.equal(x, copy)


# ----------------------------------------------------------------------------- −inf and empty dimensions


@every_regularizer
@every_dtype
def test_minus_infinity_is_as_if_the_entry_were_not_there(regularizer, dtype):
    x = torch.randn(10, 6, dtype=dtype)
    gaps = torch.full((10, 9), -INF, dtype=dtype)
    kept = [0, 2, 3, 5, 7, 8]
    gaps[:, kept] = x
    q = regularizer.gradient(gaps)
    assert (q[:, [1, 4, 6]] == 0).all()
    torch.testing.assert_close(q[:, kept], regularizer.gradient(x))
    torch.testing.assert_close(regularizer.value(gaps), regularizer.value(x))


@every_regularizer
@pytest.mark.parametrize("n", [1, 3, 40])
def test_rows_of_minus_infinity(regularizer, n):
    """−inf, with every derivative 0, and the row beside them unharmed."""
    x = torch.full((3, n), -INF, dtype=torch.float64)
    x[1] = torch.linspace(-1, 1, n)
    x.requires_grad_()
    dead = [0, 2]
    value = smooth_max(regularizer, x)
    assert value[dead].tolist() == [-INF, -INF]
    assert value[1].isfinite()
    derivative = value.sum()
    for _ in range(4):
        (derivative,) = torch.autograd.grad(derivative, x, create_graph=True)
        assert derivative.isfinite().all()
        assert (derivative[dead] == 0).all()
        derivative = (derivative * torch.randn_like(x)).sum()


@every_regularizer
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 0, 4)], ids=str)
def test_empty_dimensions(regularizer, shape):
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    value = smooth_max(regularizer, x)
    assert value.shape == shape[:-1]
    assert (value == -INF).all()
    q = smooth_argmax(regularizer, x)
    assert q.shape == shape
    (gradient,) = torch.autograd.grad(value.sum() + q.sum(), x)
    assert gradient.shape == shape
