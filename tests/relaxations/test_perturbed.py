"""The perturbed mean and its estimated derivatives, against quadrature."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor

import structinf as si
from structinf.noise import Noise, Normal

pytestmark = pytest.mark.slow

THETA = torch.tensor([0.5, -0.2, 0.9], dtype=torch.float64)
DISTRIBUTIONS = {
    "normal": scipy.stats.norm,
    "gumbel": scipy.stats.gumbel_r,
    "logistic": scipy.stats.logistic,
    "signed_exponential": scipy.stats.laplace,
}

# The numerical integrals of a density with a kink take seconds.
KINKED = pytest.param("signed_exponential", marks=pytest.mark.full)
noises = pytest.mark.parametrize("noise", [KINKED if name == KINKED.values[0] else name for name in DISTRIBUTIONS])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def integral(function: Callable[[float], float]) -> float:
    return scipy.integrate.quad(function, -30, 60, epsabs=1e-12, epsrel=1e-10, limit=500)[0]


def chosen(noise: str, theta: Tensor, sigma: float) -> Tensor:
    """P(argmax of θ + σU is i): ∫ p(u) Π F(u + (θᵢ − θⱼ) / σ) du over the j ≠ i."""
    law, t = DISTRIBUTIONS[noise], (theta / sigma).tolist()
    rows = []
    for i in range(len(t)):
        others = [t[i] - t[j] for j in range(len(t)) if j != i]
        rows.append(integral(lambda u, o=others: law.pdf(u) * law.cdf(u + o[0]) * law.cdf(u + o[1])))
    return torch.tensor(rows, dtype=torch.float64)


@functools.cache
def jacobian_transpose_product(noise: str, sigma: float, v: tuple[float, ...]) -> Tensor:
    """Jᵀv at :data:`THETA`."""
    return jacobian(noise, THETA, sigma).T @ torch.tensor(v, dtype=torch.float64)


def jacobian(noise: str, theta: Tensor, sigma: float, step: float = 1e-4) -> Tensor:
    """Central differences of :func:`chosen`, [i, j] = dPᵢ/dθⱼ."""
    columns = []
    for move in step * torch.eye(len(theta), dtype=torch.float64):
        columns.append((chosen(noise, theta + move, sigma) - chosen(noise, theta - move, sigma)) / (2 * step))
    return torch.stack(columns, 1)


def best(noise: str, theta: Tensor, sigma: float) -> float:
    """E[max θ + σU] = Σ ∫ (θᵢ + σu) p(u) Π F(...) du."""
    law, t = DISTRIBUTIONS[noise], (theta / sigma).tolist()
    total = 0.0
    for i in range(len(t)):
        o = [t[i] - t[j] for j in range(len(t)) if j != i]
        total += integral(lambda u, i=i, o=o: sigma * (t[i] + u) * law.pdf(u) * law.cdf(u + o[0]) * law.cdf(u + o[1]))
    return total


def repeated_products(repeats: int, v: Tensor, seed: int = 0, **options) -> Tensor:
    """Independent estimates of Jᵀv, (repeats, 3)."""
    theta = THETA.expand(repeats, 3).clone().requires_grad_()
    mean = si.relax(theta, "categorical", "perturbed", generator=generator(seed), **options)
    (mean @ v).sum().backward()
    assert theta.grad is not None
    return theta.grad


def standard_error(x: Tensor) -> Tensor:
    return x.std(0) / len(x) ** 0.5


# ----------------------------------------------------------------------------- the mean


@pytest.mark.parametrize("sigma", [0.3, 1.0])
@noises
def test_mean_is_that_of_quadrature(noise: str, sigma: float) -> None:
    n = 100_000
    mean = si.relax(THETA, "categorical", "perturbed", noise=noise, sigma=sigma, samples=n, generator=generator())
    expected = chosen(noise, THETA, sigma)
    assert ((mean - expected).abs() < 4 * (expected * (1 - expected) / n).sqrt()).all()


def test_gumbel_noise_gives_the_softmax() -> None:
    torch.testing.assert_close(chosen("gumbel", THETA, 0.7), (THETA / 0.7).softmax(0), atol=1e-9, rtol=0)


def test_error_falls_with_the_root_of_the_samples() -> None:
    def error(samples: int) -> float:
        theta = THETA.expand(200, 3)
        mean = si.relax(theta, "categorical", "perturbed", noise="gumbel", samples=samples, generator=generator())
        return (mean - THETA.softmax(0)).square().mean().sqrt().item()

    assert error(10) / error(1000) == pytest.approx(10, rel=0.15)


def test_support_is_the_sampled_structures() -> None:
    sol = si.infer(torch.zeros(2, 3, 3), "assignment", "perturbed", samples=7, generator=generator())
    assert sol.support.shape == (7, 2, 3, 3)
    assert torch.equal(sol.weights, torch.full((7, 2), 1 / 7))
    torch.testing.assert_close(sol.support.mean(0), sol.mean)
    assert ((sol.support == 0) | (sol.support == 1)).all()
    assert sol.oracle_calls == 1


def test_all_samples_are_one_call_of_the_oracle() -> None:
    calls = []

    @dataclass(frozen=True)
    class Counting(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            calls.append(theta.shape)
            return torch.nn.functional.one_hot(theta.argmax(1), theta.shape[1]).to(theta)

    theta = torch.randn(4, 5, requires_grad=True)
    si.relax(theta, Counting(), "perturbed", samples=6).sum().backward()
    assert calls == [(24, 5)]


# ----------------------------------------------------------------------------- the Jacobian


OPTIONS = {
    "default": {},
    "one sample": {"samples": 1},
    "argmax": {"control_variate": "argmax"},
    "none": {"control_variate": "none"},
    "antithetic": {"antithetic": True, "control_variate": "none"},
    "antithetic, leave one out": {"antithetic": True},
}


@pytest.mark.matrix
@pytest.mark.parametrize("options", list(OPTIONS.values()), ids=list(OPTIONS))
@noises
def test_jacobian_is_unbiased(noise: str, options: dict) -> None:
    if options.get("antithetic") and noise == "gumbel":
        with pytest.raises(si.InvalidInputError, match="symmetric"):
            si.get_relaxation("perturbed", noise=noise, **options)
        return
    v = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    found = repeated_products(20_000, v, noise=noise, sigma=0.8, **options)
    expected = jacobian_transpose_product(noise, 0.8, tuple(v.tolist()))
    assert ((found.mean(0) - expected).abs() < 4 * standard_error(found)).all()


def test_control_variates_make_the_variance_smaller() -> None:
    v = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)  # of a mean that is not 0, as losses have

    def variance(**options) -> float:
        return repeated_products(5_000, v, samples=10, **options).var(0).sum().item()

    plain = variance(control_variate="none")
    assert variance() < 0.3 * plain
    assert variance(control_variate="argmax") < 0.3 * plain
    assert variance(antithetic=True, control_variate="none") < 0.3 * plain


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_linear_maps_have_their_own_jacobian(sigma: float) -> None:
    @dataclass(frozen=True)
    class Identity(si.Oracle):
        event_ndim = 1

        def argmax(self, theta):
            return theta.clone()

    theta = torch.randn(2_000, 1, dtype=torch.float64, generator=generator()).requires_grad_()
    mean = si.relax(theta, Identity(), "perturbed", sigma=sigma, samples=10, antithetic=True, generator=generator())
    mean.sum().backward()
    assert abs(theta.grad.mean().item() - 1) < 4 * standard_error(theta.grad).item()


def test_shared_potentials_get_the_sum_of_the_instances() -> None:
    unary = torch.randn(3, 4, 2, generator=generator())
    transition = torch.randn(2, 2, generator=generator(1), requires_grad=True)
    weight = torch.randn(3, 2, 2, generator=generator(2))
    grads = []
    for given in (transition, transition.detach().expand(3, 2, 2).clone().requires_grad_()):
        _, counts = si.relax((unary, given), "chain", "perturbed", generator=generator(3))
        (counts * weight).sum().backward()
        grads.append(given.grad)
    torch.testing.assert_close(grads[0], grads[1].sum(0))


def test_what_is_an_instances_padding_adds_nothing_to_a_shared_tensor() -> None:
    unary, transition = torch.zeros(2, 5, 2), torch.zeros(1, 4, 2, 2, requires_grad=True)
    weight = torch.randn(4, 2, 2, generator=generator())
    _, steps = si.relax((unary, transition), "chain", "perturbed", lengths=[2, 5], generator=generator())
    (steps[0] * weight).sum().backward()  # of the first, which has one step
    assert transition.grad is not None
    assert (transition.grad[0, 0] != 0).all()
    assert (transition.grad[0, 1:] == 0).all()


def test_forbidden_parts_and_padding_have_gradient_zero() -> None:
    theta = torch.randn(2, 4, 4, generator=generator())
    theta[:, 1, 2] = -torch.inf
    theta[:, 3] = torch.nan  # in the padding
    theta.requires_grad_()
    mean = si.relax(theta, "assignment", "perturbed", lengths=[[3, 4], [3, 4]], generator=generator())
    (mean * torch.arange(4.0)).sum().backward()
    assert theta.grad.isfinite().all()
    assert (theta.grad[:, 1, 2] == 0).all()
    assert (theta.grad[:, 3] == 0).all()
    assert (mean[:, 1, 2] == 0).all()


def test_second_derivatives_are_refused() -> None:
    theta = THETA.clone().requires_grad_()
    mean = si.relax(theta, "categorical", "perturbed")
    (first,) = torch.autograd.grad(mean[0], theta, create_graph=True)
    with pytest.raises(si.UnsupportedError, match="first derivatives only"):
        first.sum().backward()


# ----------------------------------------------------------------------------- the loss


@noises
def test_loss_has_the_value_of_quadrature(noise: str) -> None:
    n, sigma = 200_000, 0.7
    loss = si.FenchelYoungLoss("categorical", "perturbed", noise=noise, sigma=sigma, samples=n)
    law = DISTRIBUTIONS[noise]
    for y in range(3):
        # Ω(y) is the supremum of ⟨θ, y⟩ − F(θ), which far along the ray of y is −σ E[U].
        expected = best(noise, THETA, sigma) - THETA[y].item() - sigma * law.mean()
        assert loss(THETA, torch.tensor(y), generator=generator(y)).item() == pytest.approx(expected, abs=0.01)


def test_loss_with_gumbel_noise_is_the_cross_entropy() -> None:
    theta = torch.randn(5, 4, dtype=torch.float64, generator=generator())
    y = torch.tensor([0, 1, 2, 3, 0])
    loss = si.FenchelYoungLoss("categorical", "perturbed", noise="gumbel", samples=100_000)
    found = loss(theta, y, generator=generator())
    assert found.item() == pytest.approx(torch.nn.functional.cross_entropy(theta, y).item(), abs=0.01)


@pytest.mark.parametrize("cost", [None, "hamming"])
def test_loss_is_at_least_0_whatever_the_draws(cost: str | None) -> None:
    theta = 5 * torch.randn(500, 3, 3, generator=generator())
    y = si.relax(theta, "assignment", "map")
    loss = si.FenchelYoungLoss("assignment", "perturbed", samples=1, cost=cost, noise="gumbel", reduction="none")
    losses = loss(theta, y, generator=generator())
    assert (losses >= -1e-5).all()
    assert (losses < 1e-5).sum() > (0 if cost else 100)


def test_loss_has_gradient_mean_minus_y_and_an_unbiased_hessian() -> None:
    repeats = 20_000
    theta = THETA.expand(repeats, 3).clone().requires_grad_()
    y = torch.ones(repeats, dtype=torch.int64)
    loss = si.FenchelYoungLoss("categorical", "perturbed", reduction="sum", sigma=0.8)
    (gradient,) = torch.autograd.grad(loss(theta, y, generator=generator()), theta, create_graph=True)
    mean = si.relax(theta, "categorical", "perturbed", sigma=0.8, generator=generator())
    torch.testing.assert_close(gradient, mean - torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    v = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    (product,) = torch.autograd.grad((gradient @ v).sum(), theta)
    assert ((product.mean(0) - jacobian("normal", THETA, 0.8) @ v).abs() < 4 * standard_error(product)).all()


# ----------------------------------------------------------------------------- draws


def test_draws_are_the_generators_or_torchs() -> None:
    theta, layer = torch.zeros(4, 5), si.Layer("categorical", "perturbed")
    state = torch.get_rng_state()
    assert torch.equal(layer(theta, generator=generator()), layer(theta, generator=generator()))
    one = generator()
    assert not torch.equal(layer(theta, generator=one), layer(theta, generator=one))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(layer(theta), layer(theta))
    assert torch.equal(layer.infer(theta, generator=generator()).mean, layer(theta, generator=generator()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = layer(theta)
        torch.manual_seed(0)
        assert torch.equal(layer(theta), first)
    with pytest.raises(TypeError, match=r"torch\.Generator"):
        layer(theta, generator=0)
    with pytest.raises(TypeError, match=r"torch\.Generator"):  # also where nothing is drawn
        si.relax(theta, "categorical", "map", generator=0)


def test_losses_draw_from_the_generator() -> None:
    theta, y = torch.randn(4, 5, generator=generator()), torch.arange(4)
    loss, state = si.FenchelYoungLoss("categorical", "perturbed"), torch.get_rng_state()
    assert torch.equal(loss(theta, y, generator=generator()), loss(theta, y, generator=generator()))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(loss(theta, y), loss(theta, y))


def test_layers_are_copied_and_pickled() -> None:
    layer, theta = si.Layer("assignment", "perturbed", samples=3), torch.zeros(3, 3)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(theta, generator=generator()), layer(theta, generator=generator()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_draws_in_float32(dtype: torch.dtype) -> None:
    theta = torch.randn(3, 4, generator=generator()).to(dtype).requires_grad_()
    mean = si.relax(theta, "subset", "perturbed", k=2, noise="gumbel", generator=generator())
    assert mean.dtype == dtype
    mean.square().sum().backward()
    assert theta.grad.isfinite().all()
    expected = si.relax(theta.float(), "subset", "perturbed", k=2, noise="gumbel", generator=generator())
    assert torch.equal(mean, expected.to(dtype))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0.0}, "sigma must be a finite number above 0, got 0.0"),
        ({"sigma": -1.0}, "sigma must be a finite number above 0"),
        ({"sigma": "1"}, "sigma must be a finite number above 0"),
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ({"samples": 2.5}, "samples must be an integer of at least 1"),
        ({"noise": "uniform"}, 'noise must be "gumbel", .* or a Noise'),
        ({"control_variate": "mean"}, "control_variate must be"),
        ({"perturbation": "other"}, "perturbation must be"),
        ({"antithetic": 1}, "antithetic must be True or False"),
        ({"antithetic": True, "samples": 3}, "samples must be even"),
        ({"perturbation": "multiplicative", "noise": "gumbel"}, 'needs noise="normal"'),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(si.InvalidInputError, match=message):
        si.Layer("categorical", "perturbed", **options)


@pytest.mark.parametrize("noise", ["exponential", "sum_of_gamma"])
def test_noise_without_a_score_is_refused(noise: str) -> None:
    with pytest.raises(si.UnsupportedError, match="has no score"):
        si.Layer("categorical", "perturbed", noise=noise)


def test_noise_of_ones_own_must_be_finite() -> None:
    class Broken(Noise):
        def sample(self, shape, *, dtype, device, generator=None):
            return torch.full(shape, torch.nan, dtype=dtype, device=device)

    with pytest.raises(si.InvalidInputError, match="returned NaN or infinity; draws must be finite"):
        si.relax(torch.zeros(3), "categorical", "imle", noise=Broken())


def test_a_class_in_place_of_a_noise_is_named() -> None:
    with pytest.raises(si.InvalidInputError, match=r"pass an object: Normal\(\)"):
        si.Layer("categorical", "perturbed", noise=Normal)


def test_noise_of_a_wrong_shape_is_named() -> None:
    class Short(Noise):
        def sample(self, shape, *, dtype, device, generator=None):
            return torch.zeros(3, dtype=dtype, device=device)

        def score(self, u):
            return u

    with pytest.raises(si.InvalidInputError, match=r"must return shape \(10, 1, 3\) and torch.float32, got"):
        si.relax(torch.zeros(3), "categorical", "perturbed", noise=Short())


@pytest.mark.parametrize("call", ["relax", "infer", "expect"])
def test_errors_name_instances_and_not_copies(call):
    theta = torch.zeros(2, 2, 4)
    theta[0, 1] = -torch.inf
    oracle = si.get_oracle("subset", k=2)
    function = (lambda y: y[:, 0],) if call == "expect" else ()
    message = (
        r"batch index 1: .*of shape \(2, 2\) its index is \(0, 1\); on_infeasible=.zero. leaves out such instances$"
    )
    with pytest.raises(si.InfeasibleError, match=message) as caught:
        getattr(si, call)(*function, theta, oracle, "perturbed", samples=5)
    assert caught.value.batch_indices == (1,)
