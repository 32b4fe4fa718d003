"""Regularizers of the simplex: values and gradients against bisection and optimisation; names and options."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from regularizer_reference import (
    INF,
    bisected,
    bisected_value,
    double,
    every_dtype,
    every_regularizer,
    every_smooth,
    omega,
)
from structinf.autograd import smooth_argmax, smooth_max
from structinf.errors import InvalidInputError, UnknownNameError
from structinf.kernels.simplex.torch_backend import entmax_dual
from structinf.regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized, get_regularizer

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------------------- values and gradients


@pytest.mark.parametrize(
    ("regularizer", "x", "q"),
    [
        (Tsallis(), [1, 2, -INF, 0], [0.169281, 0.830719, 0, 0]),
        (SquaredL2(), [-2, 0, 0.5], [0, 0.25, 0.75]),
        (Tsallis(), [-2, 0, 0.5], [0, 0.326007, 0.673993]),
        (Negentropy(), [1, 2], [0.268941, 0.731059]),
        (Tsallis(alpha=1.25), [1, 2, 0], [0.214850, 0.750700, 0.034450]),
        (Tsallis(), [1, 2, 0], [0.169281, 0.830719, 0]),
        (SquaredL2(), [1, 2, 0], [0, 1, 0]),
        (Tsallis(alpha=2), [1, 2, 0], [0, 1, 0]),
        (Unregularized(), [1, 2, 2], [0, 1, 0]),
    ],
)
@every_dtype
def test_golden_gradients(regularizer, x, q, dtype):
    answer = regularizer.gradient(torch.tensor(x, dtype=dtype))
    assert answer.dtype == dtype
    assert answer.tolist() == pytest.approx(q, abs=1e-6)
    assert (answer[torch.tensor(q) == 0] == 0).all()


@pytest.mark.parametrize(("alpha", "loss"), [(1, 1.407606), (1.5, 1.061656), (2, 1.0)])
def test_golden_fenchel_young_losses(alpha, loss):
    """max_Ω(θ) + Ω(y) − ⟨θ, y⟩ at a vertex y, where Ω is 0."""
    theta = double(1, 2, 0)
    regularizer = Negentropy() if alpha == 1 else Tsallis(alpha=alpha)
    assert float(regularizer.value(theta) - theta[0]) == pytest.approx(loss, abs=1e-6)


@every_smooth
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("n", [1, 2, 5, 40, 300])
def test_values_and_gradients_against_bisection(regularizer, scale, n):
    x = scale * torch.randn(20, n, dtype=torch.float64)
    q = regularizer.gradient(x)
    np.testing.assert_allclose(q, bisected(x, regularizer.alpha), rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(regularizer.value(x), bisected_value(x, regularizer.alpha), rtol=1e-13, atol=1e-14)


@every_smooth
def test_values_against_an_optimiser(regularizer):
    """SLSQP over the simplex, which knows nothing of thresholds."""
    for x in torch.randn(3, 4, dtype=torch.float64):
        scores = x.numpy()
        found = scipy.optimize.minimize(
            lambda q, scores=scores: omega(np.maximum(q, 0), regularizer.alpha) - scores @ q,
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-12},
        )
        assert float(regularizer.value(x)) == pytest.approx(-found.fun, abs=1e-7)
        np.testing.assert_allclose(regularizer.gradient(x), found.x, atol=1e-4)


@every_smooth
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("n", [7, 4096])
def test_float32_is_right_to_rounding(regularizer, scale, n):
    x = scale * torch.randn(10, n)
    q = regularizer.gradient(x)
    assert q.dtype == torch.float32
    expected, eps = bisected(x, regularizer.alpha), 2.0**-23
    assert (np.abs(q.numpy() - expected) <= 16 * eps * expected.max(-1, keepdims=True)).all()
    torch.testing.assert_close(q.sum(-1), torch.ones(10), rtol=0, atol=8 * eps)
    np.testing.assert_allclose(regularizer.value(x), bisected_value(x, regularizer.alpha), rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("alpha", [1.001, 1.05, 1.5, 1.9, 1.999, 2])
@every_dtype
def test_scores_that_are_hard_for_newton(alpha, dtype):
    """A leader with a crowd just below it; gaps that grow geometrically; near ties; all equal."""
    n = 5000
    rows = [
        torch.cat([torch.zeros(1), torch.full((n - 1,), -0.5) + 1e-3 * torch.rand(n - 1)]),
        torch.cat([-(2.0 ** torch.arange(-40, 10)), torch.full((n - 50,), -(2.0**10))]),
        1e-6 * torch.rand(n),
        torch.zeros(n),
        torch.linspace(-1, 0, n),
    ]
    x = torch.stack(rows).to(dtype)
    regularizer = Tsallis(alpha=alpha)
    eps = torch.finfo(dtype).eps
    for q in (regularizer.gradient(x), entmax_dual(x, regularizer.alpha - 1)[2]):  # by compiled loops, and in torch
        np.testing.assert_allclose(q, bisected(x, alpha), rtol=0, atol=16 * eps)
        np.testing.assert_allclose(q.sum(-1), 1, rtol=0, atol=16 * eps)
    np.testing.assert_allclose(regularizer.value(x), bisected_value(x, alpha), rtol=16 * eps, atol=0)


@every_regularizer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(regularizer, dtype):
    x = torch.randn(2, 4096).to(dtype)
    z = torch.randn(2, 4096).to(dtype)
    q = regularizer.gradient(x)
    assert q.dtype == regularizer.value(x).dtype == regularizer.hessian_product(q, z).dtype == dtype
    assert torch.equal(q, regularizer.gradient(x.float()).to(dtype))
    assert torch.equal(regularizer.value(x), regularizer.value(x.float()).to(dtype))
    torch.testing.assert_close(q.float().sum(-1), torch.ones(2), rtol=0, atol=1e-2)


# ----------------------------------------------------------------------------- one's own


@dataclass(frozen=True, kw_only=True)
class Log2Entropy(Regularizer):
    """The entropy in bits."""

    def value(self, x: Tensor) -> Tensor:
        return x.mul(math.log(2)).logsumexp(-1) / math.log(2)

    def gradient(self, x: Tensor) -> Tensor:
        return torch.softmax(x * math.log(2), -1)

    def hessian_product(self, q: Tensor, z: Tensor) -> Tensor:
        return math.log(2) * q * (z - (q * z).sum(-1, keepdim=True))


def test_a_regularizer_of_ones_own_is_three_methods():
    assert Log2Entropy().alpha is None
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(smooth_max(Log2Entropy(), x), x.exp2().sum(-1).log2())
    assert gradcheck(lambda x: smooth_max(Log2Entropy(), x, 0), (x,))
    assert gradgradcheck(lambda x: smooth_argmax(Log2Entropy(), x, 0), (x,))
    assert get_regularizer(Log2Entropy(), temperature=3) == Log2Entropy(temperature=3)


def test_a_regularizer_without_one_of_the_methods_is_refused():
    class Half(Regularizer):
        def value(self, x: Tensor) -> Tensor:
            return x.sum(-1)

    with pytest.raises(TypeError, match="gradient"):
        Half()


# ----------------------------------------------------------------------------- names, options, refusals


@pytest.mark.parametrize(
    ("name", "kind", "alpha"),
    [
        ("negentropy", Negentropy, 1),
        ("squared_l2", SquaredL2, 2),
        ("tsallis", Tsallis, 1.5),
        ("none", Unregularized, INF),
    ],
)
def test_names(name, kind, alpha):
    made = get_regularizer(name)
    assert type(made) is kind
    assert made.alpha == alpha
    assert made.temperature == 1
    assert get_regularizer(name, 0.5) == kind(temperature=0.5) == made.with_temperature(0.5)
    assert get_regularizer(made) is made
    assert get_regularizer(made, 0.5).temperature == 0.5
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(kind()) == hash(made)


def test_options():
    assert get_regularizer("tsallis", alpha=1.25) == Tsallis(alpha=1.25)
    assert Tsallis(alpha=1.25).with_temperature(2) == Tsallis(alpha=1.25, temperature=2)
    with pytest.raises(TypeError, match=r"'tsallis' has no option 'alhpa' \(it has: temperature, alpha\).*'alpha'"):
        get_regularizer("tsallis", alhpa=1.5)
    with pytest.raises(TypeError, match="'squared_l2' has no option 'alpha'"):
        get_regularizer("squared_l2", alpha=1.5)
    with pytest.raises(TypeError, match="accepted only with a name"):
        get_regularizer(Tsallis(), alpha=1.25)
    with pytest.raises(TypeError, match=r"call it first: Tsallis\(...\)"):
        get_regularizer(Tsallis)
    with pytest.raises(TypeError, match="regularizer must be a name or Regularizer object, got 3"):
        get_regularizer(3)
    with pytest.raises(FrozenInstanceError):
        Tsallis().alpha = 2.0


def test_an_unknown_name():
    with pytest.raises(UnknownNameError) as caught:
        get_regularizer("negentropie")
    message = str(caught.value)
    assert "did you mean 'negentropy'?" in message
    assert "Known: negentropy, none, squared_l2, tsallis" in message
    with pytest.raises(UnknownNameError, match=r"no regularizer is called 'xyz'\. Known"):
        get_regularizer("xyz")


@pytest.mark.parametrize("alpha", [1, 1.0, 0.5, -1.5, 2.001, INF, math.nan, True, "1.5", None])
def test_alpha_out_of_range(alpha):
    with pytest.raises(
        InvalidInputError, match=r"alpha must be a number above 1 and at most 2, got .*; 1 is Negentropy"
    ):
        Tsallis(alpha=alpha)


@pytest.mark.parametrize("temperature", [0, -1.0, INF, math.nan, "1"])
@every_regularizer
def test_temperature_out_of_range(regularizer, temperature):
    with pytest.raises(InvalidInputError, match="temperature must be a finite number above 0"):
        regularizer.with_temperature(temperature)
