"""latent and elbo: every method by name, and lower bounds against sums over all structures."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.lower_bound import divergences

SUBSET = si.get_oracle("subset", k=2)
COST = torch.tensor([0.4, -1.0, 0.3, 0.8], dtype=torch.float64)
Y = SUBSET.enumerate((4,))  # type: ignore[attr-defined]
PRIOR = torch.tensor([0.1, 0.5, -0.2, 0.0], dtype=torch.float64)


def scores(requires_grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_(requires_grad)


def g(z: Tensor) -> Tensor:
    return (z @ COST.to(z)).sin()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


# ----------------------------------------------------------------------------- latent


def test_names():
    methods = si.list_methods()
    assert {*si.list_relaxations(), *si.list_estimators()} == {name.rpartition(":")[2] for name in methods}
    assert {name for name in methods if ":" in name} == {
        f"{prefix}:{name}" for prefix in ("relax", "expect") for name in ("perturbed", "sparsemap")
    }


@pytest.mark.parametrize("method", si.list_methods())
def test_every_method_by_name(method):
    """A method gives its own value, or says why it does not support the oracle."""
    name = method.rpartition(":")[2]
    theta = scores()
    is_relaxation = method.startswith("relax:") or (":" not in method and name in si.list_relaxations())
    if is_relaxation:
        try:
            relaxation = si.get_relaxation(name)
            if (reason := relaxation.unsupported_reason(SUBSET)) is not None:
                with pytest.raises(si.UnsupportedError, match=name):
                    si.latent(g, theta, SUBSET, method)
                assert reason
                return
        except TypeError:
            return
        expected = g(si.relax(theta, SUBSET, name, generator=seeded()))
    else:
        estimator = si.get_estimator(name)
        if estimator.unsupported_reason(SUBSET) is not None:
            with pytest.raises(si.UnsupportedError, match=name):
                si.latent(g, theta, SUBSET, method)
            return
        expected = si.expect(g, theta, SUBSET, name, generator=seeded())
    single = is_relaxation and getattr(si.get_relaxation(name), "samples", 1) == 1
    found = si.latent(g, theta, SUBSET, method, generator=seeded())
    assert found.shape == (3,)
    assert found.dtype == torch.float64
    if single or not is_relaxation or getattr(si.get_relaxation(name), "reduction", None) is None:
        torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()


def test_mean_over_samples_of_g():
    theta = scores(False).expand(2, 3, 4)
    options: dict[str, Any] = {"base_relaxation": "marginals", "samples": 5}
    z = si.relax(theta, SUBSET, "stochastic", reduction="none", generator=seeded(), **options)
    found = si.latent(g, theta, SUBSET, "stochastic", generator=seeded(), **options)
    torch.testing.assert_close(found, g(z).mean(0))


def test_inputs_tuples_and_lengths():
    theta = (torch.randn(2, 3, 4, dtype=torch.float64, generator=seeded()), torch.zeros(4, 4, dtype=torch.float64))
    target = torch.arange(8.0, dtype=torch.float64).view(2, 4)

    def loss(z, rows):
        return (z[0].sum(1) * rows).sum(1)

    options: dict[str, Any] = {"inputs": target, "lengths": [3, 1]}
    expected = si.latent(loss, theta, "chain", "exact", **options)
    # The function is linear, so that the expectation is its value at the mean.
    torch.testing.assert_close(si.latent(loss, theta, "chain", "marginals", **options), expected)
    half = tuple(t.half() for t in theta)
    assert si.latent(loss, half, "chain", "marginals", inputs=target.half()).dtype == torch.float16
    assert si.latent(g, scores()[:0], SUBSET, "marginals").shape == (0,)
    assert si.latent(g, scores()[0], SUBSET, "marginals").shape == ()
    strided = scores().repeat_interleave(2, 0)[::2]
    torch.testing.assert_close(
        si.latent(g, strided, SUBSET, "relax:sparsemap"), si.latent(g, scores(), SUBSET, "relax:sparsemap")
    )


def test_second_derivatives():
    assert torch.autograd.gradgradcheck(lambda t: si.latent(g, t, SUBSET, "marginals"), scores()[:1])
    assert torch.autograd.gradgradcheck(lambda t: si.elbo(g, t, SUBSET, "exact", prior=PRIOR), scores()[:1])


@pytest.mark.parametrize(
    ("method", "error", "words"),
    [
        ("sparsemap", si.InvalidInputError, "'relax:sparsemap'.*'expect:sparsemap'"),
        ("marginal", si.UnknownNameError, "did you mean 'marginals'"),
        ("relax:score_function", si.UnknownNameError, "no relaxation"),
        (3, TypeError, "method must be"),
    ],
)
def test_wrong_methods(method, error, words):
    with pytest.raises(error, match=words):
        si.latent(g, scores(), SUBSET, method)
    with pytest.raises(error, match=words):
        si.Latent(SUBSET, method)


def test_wrong_functions_and_options():
    with pytest.raises(TypeError, match="g must be a function"):
        si.latent(scores(), g, SUBSET, "marginals")  # type: ignore[arg-type]
    with pytest.raises(si.InvalidInputError, match="shape"):
        si.latent(lambda z: z.sum(), scores(), SUBSET, "marginals")
    with pytest.raises(TypeError, match="no option 'temprature'"):
        si.latent(g, scores(), SUBSET, "marginals", temprature=2.0)
    with pytest.raises(si.InvalidInputError, match="batch shape"):
        si.latent(lambda z, x: x, scores(), SUBSET, "marginals", inputs=torch.zeros(2))
    with pytest.raises(TypeError, match="transition system"):
        si.latent(g, torch.zeros(1, 2), si.transitions.PlackettLuce(2), "marginals")


def test_module_with_a_temperature_that_changes():
    temperature = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64), requires_grad=False)
    layer = si.Latent("subset", "marginals", k=2, temperature=temperature)
    schedule = si.TemperatureSchedule(temperature, end=0.1, steps=2, shape="linear")
    theta = scores()
    for expected in (1.0, 0.55, 0.1):
        wanted = si.latent(g, theta, SUBSET, "marginals", temperature=expected)
        torch.testing.assert_close(layer(g, theta), wanted)
        schedule.step()
    assert dict(layer.named_parameters()) == {"temperature": temperature}
    copied = copy.deepcopy(layer).to(torch.float32)
    assert copied.method.temperature is copied.temperature
    other = si.Latent("subset", "marginals", k=2, temperature=torch.nn.Parameter(torch.tensor(1.0)))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(g, theta), layer(g, theta))


# ----------------------------------------------------------------------------- elbo


def exact_bound(q: Tensor, prior: Tensor) -> Tensor:
    """Return Σ q (g − log q + log p), (B,), for probabilities q (|Y|, B)."""
    log_p = (Y @ prior).log_softmax(0)
    return (q * g(Y)[:, None] + q * log_p[:, None] - torch.special.xlogy(q, q)).sum(0)


def check(found: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(found, expected)
    weights = torch.arange(1.0, 4.0, dtype=torch.float64)
    ours = torch.autograd.grad((found * weights).sum(), inputs, retain_graph=True)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs, retain_graph=True)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kl", ["auto", "exact", "sample"])
@pytest.mark.parametrize("method", ["exact", "sum_and_sample"])
def test_exact_bounds(method, kl):
    theta, prior = scores(), PRIOR.clone().requires_grad_()
    chosen = si.get_estimator(method, **({"k": 6} if method == "sum_and_sample" else {}))
    expected = exact_bound((Y @ theta.T).softmax(0), prior)
    check(si.elbo(g, theta, SUBSET, chosen, prior=prior, kl=kl), expected, theta, prior)


def test_bounds_of_gumbel_crf():
    """Exact samples of the distribution, and its divergence at the temperature."""
    theta = scores()
    method = si.get_relaxation("gumbel_crf", straight_through=True, samples=2000, temperature=2.0)
    found = si.elbo(g, theta, SUBSET, method, prior=PRIOR, generator=torch.Generator().manual_seed(0))
    expected = exact_bound((Y @ theta.T / 2).softmax(0), PRIOR)
    assert ((found - expected).abs() < 6 * g(Y).std() / 2000**0.5).all()
    found.sum().backward()
    assert theta.grad.isfinite().all()


def test_uniform_prior_and_log_likelihood():
    theta = scores()
    log_joint = theta.new_tensor([0.3, 1.0, -0.2, 0.5])
    # With q equal to the posterior, the bound is the evidence: log Σ p(y) exp g(y).
    bound = si.elbo(lambda z: z @ log_joint, log_joint.expand(3, 4), SUBSET, "exact")
    evidence = (Y @ log_joint).logsumexp(0) - math.log(6)
    torch.testing.assert_close(bound, evidence.expand(3))
    assert (si.elbo(lambda z: z @ log_joint, theta, SUBSET, "exact") < evidence).all()


@pytest.mark.parametrize("method", ["expect:sparsemap", "relax:sparsemap", "sparsemax", "topk_sparsemax"])
def test_bounds_of_sparse_weights(method):
    theta, prior = scores(), PRIOR.clone().requires_grad_()
    if method == "topk_sparsemax":
        chosen: Any = si.get_estimator(method, k=6)
    else:
        chosen = method
    if "sparsemap" in method:
        solution = si.infer(theta, SUBSET, "sparsemap")
        support, weights = solution.support, solution.weights
        assert isinstance(support, Tensor)
        assert weights is not None
        q = torch.stack([(weights * (support == y).all(2)).sum(0) for y in Y])
    else:
        q = si.simplex.sparsemax(Y @ theta.T, dim=0)
    expected = exact_bound(q, prior)
    if method == "relax:sparsemap":
        expected = expected - (q * g(Y)[:, None]).sum(0) + g(si.relax(theta, SUBSET, "sparsemap"))
    found = si.elbo(g, theta, SUBSET, chosen, prior=prior)
    torch.testing.assert_close(found, expected)
    # The log of the weights has the gradient Σ ∇w = 0, which autograd finds for weights above 0 only.
    ours = torch.autograd.grad(found.sum(), (theta, prior), retain_graph=True)
    active = torch.where(q > 0, q, 1.0)
    entropy = -(q * active.detach().log()).sum(0)
    log_p = (Y @ prior).log_softmax(0)
    others = (q * log_p[:, None]).sum(0) + entropy
    value = g(si.relax(theta, SUBSET, "sparsemap")) if method == "relax:sparsemap" else (q * g(Y)[:, None]).sum(0)
    theirs = torch.autograd.grad((value + others).sum(), (theta, prior))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kl", ["exact", "sample"])
def test_sampled_bounds_are_unbiased(kl):
    theta = scores(False)[:1].expand(4000, 4).clone().requires_grad_()
    expected = exact_bound((Y @ theta[:1].T).softmax(0), PRIOR)
    found = si.elbo(
        g, theta, SUBSET, si.get_estimator("score_function", samples=2), prior=PRIOR, kl=kl, generator=seeded()
    )
    error = found.std() / 4000**0.5
    assert abs(found.mean() - expected.sum()) < 6 * error + 1e-9
    (gradient,) = torch.autograd.grad(found.sum(), theta)
    leaf = scores(False)[:1].requires_grad_()
    (exact,) = torch.autograd.grad(exact_bound((Y @ leaf.T).softmax(0), PRIOR).sum(), leaf)
    assert ((gradient.mean(0) - exact[0]).abs() < 6 * gradient.std(0) / 4000**0.5).all()


@pytest.mark.parametrize("noise", ["gumbel", "normal", "logistic", "signed_exponential"])
def test_bounds_by_the_noise(noise):
    theta = scores()
    options: dict[str, Any] = {"noise": noise, "sigma": 0.7, "samples": 4}
    noise_object = si.noise.get_noise(noise)
    grid = torch.linspace(-60, 120, 400_001, dtype=torch.float64)
    d = (theta.detach()[0] - PRIOR) / 0.7
    log_p = noise_object.log_prob(grid)
    expected = torch.stack(
        [torch.trapezoid(log_p.exp() * (log_p - noise_object.log_prob(grid + shift)), grid) for shift in d]
    )
    zero = torch.zeros_like
    for method in ("relax:perturbed", "expect:perturbed"):
        found = si.elbo(lambda z: zero(z[:, 0]), theta, SUBSET, method, prior=PRIOR, generator=seeded(), **options)
        torch.testing.assert_close(-found[0].detach(), expected.sum(), atol=1e-6, rtol=1e-6)
    equal = si.elbo(lambda z: zero(z[:, 0]), theta, SUBSET, "relax:perturbed", prior=theta.detach(), **options)
    assert equal.abs().max() < 1e-12
    equal.sum().backward()
    assert theta.grad is not None
    assert theta.grad.abs().max() < 1e-12


def test_bound_is_at_least_the_divergence():
    """Gumbel noise gives one choice among n the Gibbs distribution, whose divergence is known."""
    theta = scores(False)
    zero = si.elbo(lambda z: z.new_zeros(len(z)), theta, "categorical", "exact", prior=PRIOR)
    bound = si.elbo(lambda z: z.new_zeros(len(z)), theta, "categorical", "relax:perturbed", prior=PRIOR, noise="gumbel")
    assert (bound <= zero).all()


def test_forbidden_parts_tuples_and_lengths():
    theta = scores(False)
    theta[:, 0] = -torch.inf
    theta.requires_grad_()
    expected = exact_bound((torch.where(Y[:, :1] > 0, -torch.inf, 0.0) + Y[:, 1:] @ theta[:, 1:].T).softmax(0), PRIOR)
    torch.testing.assert_close(si.elbo(g, theta, SUBSET, "exact", prior=PRIOR), expected)
    assert si.elbo(g, theta, SUBSET, "exact", prior=theta.detach()).isfinite().all()
    noisy = si.elbo(g, theta, SUBSET, "relax:perturbed", prior=theta.detach())
    noisy.sum().backward()
    assert noisy.isfinite().all()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    chain = (torch.randn(2, 3, 2, dtype=torch.float64, generator=seeded()), torch.randn(2, 2, dtype=torch.float64))
    options: dict[str, Any] = {"lengths": [3, 1]}
    found = si.elbo(lambda z: z[0][:, 0, 0], chain, "chain", "exact", **options)
    p = si.Gibbs(chain, "chain", **options)
    uniform = torch.tensor([math.log(8), math.log(2)], dtype=torch.float64)
    torch.testing.assert_close(found, p.mean[0][:, 0, 0] + p.entropy() - uniform)
    torch.testing.assert_close(si.elbo(lambda z: z[0][:, 0, 0], chain, "chain", "exact", kl="sample", **options), found)


@pytest.mark.parametrize(
    ("method", "kl"), [("exact", "exact"), ("score_function", "sample"), ("relax:perturbed", "bound")]
)
def test_prior_that_forbids_a_structure_of_the_distribution(method, kl):
    theta = torch.zeros(2, 4, requires_grad=True)
    prior = torch.tensor([[-torch.inf, 0.0, 0.0, 0.0], [0.0] * 4])
    value = si.elbo(lambda z: z.sum(1), theta, "subset", method, kl=kl, prior=prior, k=2)
    assert value[0] == -torch.inf
    value[1].backward()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()
    with pytest.raises(si.InvalidInputError, match="prior holds NaN at batch index 0"):
        si.elbo(g, torch.zeros(4), "subset", method, kl=kl, prior=torch.full((4,), torch.nan), k=2)


def test_gradient_in_the_temperature():
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    theta = scores()

    def bound(t):
        return si.elbo(g, theta, SUBSET, "marginals", temperature=t).sum()

    torch.testing.assert_close(bound(temperature), bound(0.7))
    (found,) = torch.autograd.grad(bound(temperature), temperature)
    expected = (bound(0.7 + 1e-6) - bound(0.7 - 1e-6)) / 2e-6
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_temperature_of_the_distribution():
    theta = scores()
    expected = exact_bound((Y @ theta.T / 0.5).softmax(0), PRIOR)
    q = (Y @ theta.T / 0.5).softmax(0)
    at_mean = expected - (q * g(Y)[:, None]).sum(0) + g(q.T @ Y)
    torch.testing.assert_close(si.elbo(g, theta, SUBSET, "marginals", prior=PRIOR, temperature=0.5), at_mean)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "map"}, si.UnsupportedError, "map defines no distribution"),
        ({"method": "score_function", "kl": "bound"}, si.UnsupportedError, "'exact' or 'sample'"),
        ({"method": "muprop", "kl": "sample"}, si.UnsupportedError, "muprop offers"),
        ({"method": "imle"}, si.UnsupportedError, "no closed form"),
        ({"kl": "exactly"}, si.InvalidInputError, "kl"),
        ({"prior": torch.zeros(5)}, si.InvalidInputError, "prior"),
        ({"prior": (torch.zeros(4),)}, si.InvalidInputError, "prior"),
        ({"prior": [[0.0]]}, TypeError, "prior"),
    ],
)
def test_wrong_bounds(options, error, words):
    with pytest.raises((error, TypeError, si.InvalidInputError), match=words):
        si.elbo(g, scores(), SUBSET, **options)


def test_divergences_of_unknown_oracles():
    with pytest.raises(si.UnsupportedError, match="log-partition"):
        si.elbo(lambda z: z[:, 0, 0], torch.zeros(2, 2), "assignment", "expect:sparsemap")
    assert divergences(si.get_relaxation("map")) == ()
