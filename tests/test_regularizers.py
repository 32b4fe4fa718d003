"""Regularizers of the simplex: values, gradients and derivatives against bisection and optimisation written here."""

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

from structinf.autograd import smooth_argmax, smooth_max
from structinf.errors import InvalidInputError, UnknownNameError
from structinf.regularizers import Negentropy, Regularizer, SquaredL2, Tsallis, Unregularized, get_regularizer

INF = math.inf
SMOOTH = [Negentropy(), Tsallis(alpha=1.1), Tsallis(alpha=1.25), Tsallis(), Tsallis(alpha=1.8), SquaredL2()]
every_smooth = pytest.mark.parametrize("regularizer", SMOOTH, ids=lambda r: f"{r.alpha}")
every_regularizer = pytest.mark.parametrize("regularizer", [*SMOOTH, Unregularized()], ids=lambda r: f"{r.alpha}")
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def double(*entries) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def omega(q: np.ndarray, alpha: float) -> np.ndarray:
    """Ω(q), as Σ q (q^(α − 1) − 1) / (α (α − 1)), which loses no digits when α is near 1."""
    log_q = np.log(np.where(q > 0, q, 1))
    if alpha == 1:
        return (q * log_q).sum(-1)
    if alpha == INF:
        return np.zeros(q.shape[:-1])
    return (q * np.expm1((alpha - 1) * log_q)).sum(-1) / (alpha * (alpha - 1))


def bisected(x: Tensor, alpha: float) -> np.ndarray:
    """q for finite scores: s = τ − max x + 1 / (α − 1) by bisection in float64."""
    d = x.double().numpy()
    d = d - d.max(-1, keepdims=True)
    if alpha == 1:
        return np.exp(d) / np.exp(d).sum(-1, keepdims=True)
    a, n = alpha - 1, d.shape[-1]

    def probabilities(s: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.exp(np.log1p(np.maximum(a * (d - s), -1)) / a)

    low, high = np.zeros_like(d[..., :1]), np.full_like(d[..., :1], (1 - n**-a) / a)
    for _ in range(100):
        middle = (low + high) / 2
        above = probabilities(middle).sum(-1, keepdims=True) > 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return probabilities(low)


def bisected_value(x: Tensor, alpha: float) -> np.ndarray:
    """The objective at that q, brought onto the simplex: there it is stationary."""
    q, d = bisected(x, alpha), x.double().numpy()
    q, top = q / q.sum(-1, keepdims=True), d.max(-1)
    return top + (q * (d - top[..., None])).sum(-1) - omega(q, alpha)


def distance_to_a_kink(x: Tensor, regularizer: Regularizer) -> float:
    """How far the scores have to move before an entry gains its first probability or loses its last."""
    if regularizer.alpha == 1:
        return INF
    if regularizer.alpha == INF:
        return -float(x.topk(2).values.diff())
    a = regularizer.alpha - 1
    threshold = x.max() - float(bisected(x, regularizer.alpha).max()) ** a / a
    return float((x - threshold).abs().min())


def off_the_kinks(n: int, regularizer: Regularizer) -> Tensor:
    """Scores around which every derivative is continuous, with zero probabilities among them where Ω allows it."""
    for _ in range(1000):
        x = torch.randn(n, dtype=torch.float64)
        if distance_to_a_kink(x, regularizer) > 0.1:
            return x
    raise AssertionError("no such scores found")


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
    q = regularizer.gradient(x)
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


# ----------------------------------------------------------------------------- laws


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


# ----------------------------------------------------------------------------- derivatives


@every_smooth
def test_the_hessian_product_is_the_derivative_of_the_gradient(regularizer):
    x, z, step = off_the_kinks(6, regularizer), torch.randn(6, dtype=torch.float64), 1e-6
    difference = (regularizer.gradient(x + step * z) - regularizer.gradient(x - step * z)) / (2 * step)
    product = regularizer.hessian_product(regularizer.gradient(x), z)
    torch.testing.assert_close(product, difference, rtol=1e-6, atol=1e-8)
    assert float(product.sum()) == pytest.approx(0, abs=1e-14)


@every_regularizer
@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_gradcheck_to_the_third_derivative(regularizer, n):
    x = torch.stack([off_the_kinks(n, regularizer) if n > 1 else torch.zeros(1, dtype=torch.float64) for _ in range(2)])
    if n == 5:
        x = torch.nn.functional.pad(x, (1, 1), value=-INF)
    x.requires_grad_()
    for function in (smooth_max, smooth_argmax):
        assert gradcheck(lambda x, function=function: function(regularizer, x), (x,))
        assert gradgradcheck(lambda x, function=function: function(regularizer, x), (x,), atol=1e-4)


@pytest.mark.parametrize("regularizer", [Negentropy(), Tsallis(alpha=1.25), Tsallis()], ids=lambda r: f"{r.alpha}")
def test_the_fourth_derivative(regularizer):
    x = torch.cat([off_the_kinks(4, regularizer), double(-INF)]).requires_grad_()
    weight = torch.randn(5, dtype=torch.float64)

    def vjp(x: Tensor) -> Tensor:
        return torch.autograd.grad(smooth_argmax(regularizer, x) @ weight, x, create_graph=True)[0]

    assert gradgradcheck(vjp, (x,), atol=1e-3)


@every_regularizer
def test_the_hessian_product_is_differentiable_in_both_arguments(regularizer):
    """Along the simplex's face of q; zeros of q stay where they are, without NaN."""
    q = double(0.5, 0, 0.3, 0.2, 0).requires_grad_()
    z = torch.randn(5, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(regularizer.hessian_product(q, z).square().sum(), (q, z), create_graph=True)
    assert all(g.isfinite().all() for g in first)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (q, z))
    assert all(g.isfinite().all() for g in second)
    assert (second[0][[1, 4]] == 0).all()


@every_regularizer
def test_float32_third_derivatives_stay_finite_with_zero_probabilities(regularizer):
    x = torch.cat([5 * torch.randn(200, 12), torch.full((200, 2), -INF)], 1).requires_grad_()
    derivative = smooth_max(regularizer, x).sum()
    for _ in range(3):
        (derivative,) = torch.autograd.grad(derivative, x, create_graph=True)
        assert derivative.isfinite().all()
        derivative = (derivative * torch.randn_like(x)).sum()


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
    with pytest.raises(TypeError, match="has its options already"):
        get_regularizer(Tsallis(), alpha=1.25)
    with pytest.raises(TypeError, match=r"call it first: Tsallis\(...\)"):
        get_regularizer(Tsallis)
    with pytest.raises(TypeError, match="a name or Regularizer object is needed, got 3"):
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
