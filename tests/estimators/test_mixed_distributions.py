"""Mixed random variables against numerical integration, and how their draws fall."""

from __future__ import annotations

import itertools
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch

import structinf as si

pytestmark = pytest.mark.slow

SPARSE = [si.GumbelSparsemax, si.GaussianSparsemax]
NOISES = {si.GumbelSparsemax: scipy.stats.gumbel_r, si.GaussianSparsemax: scipy.stats.norm}
sparse = pytest.mark.parametrize("kind", SPARSE)
KINDS = [*SPARSE, si.HardConcrete]
each = pytest.mark.parametrize("kind", KINDS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(kind, shape=(3,), dtype=torch.float64):
    return kind(torch.randn(shape, generator=seeded(7), dtype=dtype))


# ----------------------------------------------------------------------------- sparsemax of noise


def density(noise, z, loc, scale) -> float:
    """By the integral over the threshold τ."""
    inside, outside = z > 0, z == 0

    def integrand(tau):
        chosen = noise.pdf((z[inside] + tau - loc[inside]) / scale) / scale
        return chosen.prod() * noise.cdf((tau - loc[outside]) / scale).prod()

    centre = (loc - z).max()
    limits = centre - 12 * scale - 3, centre + 30 * scale + 3
    return inside.sum() * scipy.integrate.quad(integrand, *limits, points=[centre], epsabs=1e-13, limit=500)[0]


@sparse
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_density_is_the_integral_over_the_threshold(kind, scale):
    loc = torch.tensor([0.4, -0.3, 0.9, 0.1], dtype=torch.float64)
    for z in ([1, 0, 0, 0], [0, 0.25, 0, 0.75], [0.2, 0, 0.3, 0.5], [0.1, 0.2, 0.3, 0.4], [0, 1e-9, 1 - 1e-9, 0]):
        expected = density(NOISES[kind], np.array(z, dtype=float), loc.numpy(), scale)
        found = kind(loc, scale).log_prob(torch.tensor(z, dtype=torch.float64))
        assert found.exp().item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("factors", [[1.0, 1, 1, 1], [0.3, 2.0, 0.05, 1.0], [30.0, 0.01, 1.0, 5.0], [2e-3, 1, 1, 2e-3]])
def test_density_with_a_scale_of_each_coordinate(factors):
    loc, s = torch.tensor([0.4, -0.3, 0.9, 0.1], dtype=torch.float64), np.array(factors)
    law = si.GaussianSparsemax(loc, 0.7, coordinate_scale=torch.tensor(factors, dtype=torch.float64))

    def log_density(z):
        """By the trapezoidal rule, on the interval where the integrand is above e⁻⁶⁰ of its maximum."""
        inside = z > 0

        def logarithm(tau):
            chosen = scipy.stats.norm.logpdf(tau[:, None], (loc.numpy() - z)[inside], 0.7 * s[inside])
            return chosen.sum(1) + scipy.stats.norm.logcdf(tau[:, None], loc.numpy()[~inside], 0.7 * s[~inside]).sum(1)

        low, high, shrinks = -4000.0, 4000.0, True
        while shrinks:
            tau = np.linspace(low, high, 501)
            kept = tau[logarithm(tau) > logarithm(tau).max() - 60]
            step = (high - low) / 500
            shrinks = kept.max() - kept.min() < 0.9 * (high - low)
            low, high = kept.min() - step, kept.max() + step
        tau = np.linspace(low, high, 20_001)
        values = logarithm(tau)
        total = scipy.integrate.trapezoid(np.exp(values - values.max()), tau)
        return math.log(inside.sum()) + values.max() + math.log(total)

    for z in ([1, 0, 0, 0], [0, 1, 0, 0], [0, 0.25, 0, 0.75], [0.2, 0, 0.3, 0.5], [0.1, 0.2, 0.3, 0.4]):
        found = law.log_prob(torch.tensor(z, dtype=torch.float64)).item()
        assert found == pytest.approx(log_density(np.array(z, dtype=float)), rel=1e-9, abs=1e-7)


def test_scales_of_coordinates_as_draws_gradients_and_batches():
    loc = torch.randn(2, 4, generator=seeded(1), dtype=torch.float64).requires_grad_()
    factors = torch.tensor([0.5, 1.5, 0.2, 1.0], dtype=torch.float64).requires_grad_()
    scale = torch.tensor([0.5, 1.5], dtype=torch.float64).requires_grad_()

    def law(loc, scale, factors):
        return si.GaussianSparsemax(loc, scale, coordinate_scale=factors)

    z = law(loc, scale, factors).sample(generator=seeded(3))
    arguments = loc, scale, factors
    assert torch.autograd.gradcheck(lambda *a: law(*a).rsample((3,), generator=seeded(2)), arguments)
    assert torch.autograd.gradcheck(lambda *a: law(*a).log_prob(z), arguments)
    assert torch.autograd.gradgradcheck(lambda *a: law(*a).log_prob(z), arguments)
    assert not (z[:, 3] - si.GaussianSparsemax(loc, scale).sample(generator=seeded(3))[:, 3]).equal(torch.zeros(2))
    # The same factor for all coordinates is a scale.
    same = law(loc, scale, torch.full((4,), 3.0, dtype=torch.float64)).log_prob(z)
    torch.testing.assert_close(same, si.GaussianSparsemax(loc, 3 * scale).log_prob(z))
    wide = si.GaussianSparsemax(loc[0], coordinate_scale=torch.ones(5, 4, dtype=torch.float64) / 2)
    assert wide.batch_shape == (5,)
    assert wide.expand((3, 5)).coordinate_scale.shape == (3, 5, 4)
    assert pickle.loads(pickle.dumps(wide)).rsample().shape == (5, 4)
    torch.testing.assert_close(wide.log_prob(z[0])[2], si.GaussianSparsemax(loc[0], 0.5).log_prob(z[0]))


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (torch.tensor(1.0), r"shape \(\.\.\., K\)"),
        (torch.ones(2), r"shape \(\.\.\., K\) with the K of loc, got shape \(2,\)"),
        (torch.ones(3, 3), "does not broadcast"),
        (torch.tensor([1.0, 0.0, 1.0]), "coordinate_scale"),
        (torch.tensor([1.0, math.nan, 1.0]), "coordinate_scale"),
        (torch.tensor([1.0, math.inf, 1.0]), "coordinate_scale"),
    ],
)
def test_wrong_scales_of_coordinates(factors, message):
    with pytest.raises(ValueError, match=message):
        si.GaussianSparsemax(torch.zeros(2, 3), coordinate_scale=factors)
    with pytest.raises(TypeError, match="coordinate_scale"):
        si.GaussianSparsemax(torch.zeros(2, 3), coordinate_scale=torch.ones(3).long())


@sparse
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_faces_have_probability_1_together(kind, scale):
    law = kind(torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64), scale)

    def p(*z: float) -> float:
        return law.log_prob(torch.tensor(z, dtype=torch.float64)).exp().item()

    total = sum(p(*row) for row in np.eye(3))
    for i, j in itertools.combinations(range(3), 2):
        total += scipy.integrate.quad(lambda x, i=i, j=j: p(*(x * np.eye(3)[i] + (1 - x) * np.eye(3)[j])), 0, 1)[0]
    # The triangle as the image of a square.
    x, weights = np.polynomial.legendre.leggauss(30)
    x, weights = (x + 1) / 2, weights / 2
    a, b = x[:, None] * np.ones(30), (1 - x[:, None]) * x
    z = torch.tensor(np.stack([a, b, 1 - a - b], -1))
    inner = law.log_prob(z).exp().numpy() * weights[:, None] * weights * (1 - x[:, None])
    assert total + inner.sum() == pytest.approx(1, abs=1e-6)


@sparse
def test_vertices_and_edges_are_drawn_as_often_as_they_should(kind):
    loc = torch.tensor([0.3, -0.2, 0.5, -torch.inf], dtype=torch.float64)
    law = kind(loc, 0.4)
    n = 40_000
    z = law.sample((n,), generator=seeded())
    assert not z[:, 3].any()
    for i in range(3):
        expected = law.log_prob(torch.eye(4, dtype=torch.float64)[i]).exp().item()
        share = (z[:, i] == 1).double().mean().item()
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / n)
    on_edge = (z[:, 0] > 0) & (z[:, 2] > 0) & (z[:, 1] == 0)
    x = (torch.arange(100, dtype=torch.float64) + 0.5) / 100
    edge = torch.stack([x, 0 * x, 1 - x, 0 * x], 1)
    expected = law.log_prob(edge).exp().mean().item()
    assert abs(on_edge.double().mean().item() - expected) < 4 * math.sqrt(expected / n)


@sparse
def test_draws_are_differentiable(kind):
    loc = torch.randn(2, 4, generator=seeded(1), dtype=torch.float64).requires_grad_()
    scale = torch.tensor([0.5, 1.5], dtype=torch.float64).requires_grad_()
    draw = lambda loc, scale: kind(loc, scale).rsample((3,), generator=seeded(2))  # noqa: E731
    assert torch.autograd.gradcheck(draw, (loc, scale))
    assert not kind(loc, scale).sample().requires_grad


@sparse
def test_log_probabilities_are_differentiable(kind):
    loc = torch.randn(5, 4, generator=seeded(1), dtype=torch.float64).requires_grad_()
    scale = torch.tensor(0.7, dtype=torch.float64).requires_grad_()
    z = kind(loc, scale).sample(generator=seeded(3))
    assert (z > 0).sum(1).unique().numel() > 1
    function = lambda loc, scale: kind(loc, scale).log_prob(z)  # noqa: E731
    assert torch.autograd.gradcheck(function, (loc, scale))
    assert torch.autograd.gradgradcheck(function, (loc, scale))


@sparse
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_forbidden_items_and_large_scores(kind, scale):
    for dtype in (torch.float32, torch.float64):
        loc = torch.tensor([[1e3, -1e3, -torch.inf], [0.1, 0.2, -torch.inf]], dtype=dtype).requires_grad_()
        law = kind(loc, scale)
        z = law.rsample(generator=seeded())
        assert torch.equal(z[:, 2], torch.zeros(2, dtype=dtype))
        total = law.log_prob(z.detach()).sum() + (z * torch.arange(3)).sum()
        (gradient,) = torch.autograd.grad(total, loc)
        assert gradient.isfinite().all()
        assert not gradient[:, 2].any()
    never = law.log_prob(torch.tensor([0.0, 0.5, 0.5], dtype=dtype))
    assert never.tolist() == [-math.inf, -math.inf]


@sparse
def test_forbidden_items_do_not_count(kind):
    loc = torch.tensor([0.2, -torch.inf, -0.5], dtype=torch.float64)
    for z in ([1.0, 0.0, 0.0], [0.3, 0.0, 0.7]):
        z = torch.tensor(z, dtype=torch.float64)
        torch.testing.assert_close(kind(loc).log_prob(z), kind(loc[[0, 2]]).log_prob(z[[0, 2]]))


@sparse
def test_draws_of_many_items_are_in_the_support(kind):
    for dtype in (torch.float32, torch.float64):
        law = kind(torch.randn(4, 3000, dtype=dtype, generator=seeded()), 0.01, validate_args=True)
        assert law.log_prob(law.sample((2,), generator=seeded())).isfinite().all()


def test_a_vertex_of_many_equal_items():
    n, scale = 2000, 0.5
    z = torch.zeros(n, dtype=torch.float64)
    z[0] = 1
    found = si.GaussianSparsemax(torch.zeros(n, dtype=torch.float64), scale).log_prob(z).exp().item()
    norm = scipy.stats.norm
    expected = scipy.integrate.quad(lambda u: norm.pdf(u) * norm.cdf(u - 1 / scale) ** (n - 1), 2, 12, epsabs=1e-15)[0]
    assert found == pytest.approx(expected, rel=1e-9)


def test_two_items_are_a_rectified_gaussian():
    """z_1 is (1 + θ_1 − θ_2 + σ √2 U) / 2, clipped."""
    loc, scale = torch.tensor([0.2, -0.4], dtype=torch.float64), 0.6
    law: Any = scipy.stats.norm((1 + 0.6) / 2, scale / math.sqrt(2))
    x = torch.tensor([0, 0.3, 1], dtype=torch.float64)
    found = si.GaussianSparsemax(loc, scale).log_prob(torch.stack([x, 1 - x], 1)).exp().tolist()
    assert found == pytest.approx([law.cdf(0), law.pdf(0.3), law.sf(1)], rel=1e-9)


@sparse
def test_shapes_of_scores_and_scales(kind):
    law = kind(torch.zeros(3, 1, 5), torch.tensor([1.0, 2.0]))
    assert (law.batch_shape, law.event_shape) == ((3, 2), (5,))
    assert law.sample((7,)).shape == (7, 3, 2, 5)
    assert law.log_prob(torch.eye(5)[0]).shape == (3, 2)
    with pytest.raises(si.InvalidInputError, match=r"scale must be one number, or one number for each row"):
        kind(torch.zeros(3, 5), torch.ones(5))
    with pytest.raises(si.InvalidInputError, match=r"loc must have shape"):
        kind(torch.zeros(3, 0))
    for loc in (torch.tensor([math.nan, 0]), torch.tensor([math.inf, 0]), torch.full((2,), -math.inf)):
        with pytest.raises(ValueError, match="loc"):
            kind(loc)
    with pytest.raises(ValueError, match="scale"):
        kind(torch.zeros(2), 0.0)
    with pytest.raises(ValueError, match="within the support"):
        kind(torch.zeros(2)).log_prob(torch.tensor([0.6, 0.6]))
    with pytest.raises(si.UnsupportedError, match=r"mean of -log_prob"):
        kind(torch.zeros(2)).entropy()


# ----------------------------------------------------------------------------- hard concrete


OPTIONS = [(2 / 3, (-0.1, 1.1)), (0.1, (-0.5, 1.01)), (3.0, (-0.01, 2.0))]
LOG_ALPHA = torch.tensor([-3.0, -0.2, 0.0, 1.5], dtype=torch.float64)


@pytest.mark.parametrize(("temperature", "stretch"), OPTIONS)
def test_hard_concrete_against_integrals(temperature, stretch):
    (low, high), ends = stretch, torch.tensor([0.0, 1.0], dtype=torch.float64)
    for log_alpha in LOG_ALPHA:
        law = si.HardConcrete(log_alpha, temperature, stretch)

        def below(x: float, a: float = log_alpha.item()) -> float:
            return scipy.special.expit(temperature * math.log((x - low) / (high - x)) - a)

        def integral(function, top=1.0, law=law):
            p = lambda x: law.log_prob(torch.tensor(x, dtype=torch.float64)).item()  # noqa: E731
            return scipy.integrate.quad(lambda x: math.exp(p(x)) * function(x, p(x)), 0, top, epsabs=1e-12)[0]

        shut, open_ = below(0), 1 - below(1)
        assert law.log_prob(ends).exp().tolist() == pytest.approx([shut, open_], rel=1e-12)
        assert shut + open_ + integral(lambda x, _: 1) == pytest.approx(1, abs=1e-10)
        assert law.cdf(ends - 1e-3).tolist()[0] == 0
        assert law.cdf(torch.tensor([0.0, 0.4, 1.0]).double()).tolist() == pytest.approx([shut, below(0.4), 1])
        assert shut + integral(lambda x, _: 1, 0.4) == pytest.approx(below(0.4), abs=1e-10)
        assert law.probability_nonzero.item() == pytest.approx(1 - shut, abs=1e-12)
        mean = open_ + integral(lambda x, _: x)
        second = open_ * (1 - mean) ** 2 + shut * mean**2
        spread = integral(lambda x, _, mean=mean: (x - mean) ** 2)
        assert law.mean.item() == pytest.approx(mean, abs=1e-10)
        assert law.variance.item() == pytest.approx(second + spread, abs=1e-10)
        points = sum(p * math.log(p) for p in (shut, open_))
        assert law.entropy().item() == pytest.approx(-points - integral(lambda x, p: p), abs=1e-9)


def test_hard_concrete_draws_have_its_distribution():
    law = si.HardConcrete(LOG_ALPHA)
    z = law.sample((50_000,), generator=seeded())
    for x in (0.0, 0.2, 0.5, 0.9, 0.999):
        expected = law.cdf(torch.tensor(x, dtype=torch.float64))
        error = ((z <= x).double().mean(0) - expected).abs()
        assert (error < 4 * (expected * (1 - expected) / len(z)).sqrt()).all()
    assert ((z.mean(0) - law.mean).abs() < 4 * (law.variance / len(z)).sqrt()).all()
    levels = torch.tensor([0.5, 0.7, 0.9, 0.95], dtype=torch.float64)
    inner = law.icdf(levels)
    edges_between = (inner > 0) & (inner < 1)
    assert edges_between.any()
    torch.testing.assert_close(law.cdf(inner)[edges_between], levels[edges_between])


def test_gates():
    law = si.HardConcrete(LOG_ALPHA, 0.5, (-0.2, 1.3))
    expected = [min(1, max(0, -0.2 + 1.5 / (1 + math.exp(-a)))) for a in LOG_ALPHA.tolist()]
    assert law.gate.tolist() == pytest.approx(expected)


def test_hard_concrete_is_differentiable():
    log_alpha = LOG_ALPHA.clone().requires_grad_()
    z = torch.tensor([0.0, 0.3, 1.0, 0.8], dtype=torch.float64)
    for function in (
        lambda a: si.HardConcrete(a).log_prob(z),
        lambda a: si.HardConcrete(a).mean,
        lambda a: si.HardConcrete(a).entropy(),
        lambda a: si.HardConcrete(a).probability_nonzero,
        lambda a: si.HardConcrete(a).rsample((5,), generator=seeded(1)),
    ):
        assert torch.autograd.gradcheck(function, log_alpha)
    drawn = si.HardConcrete(log_alpha).rsample((100,), generator=seeded(1))
    (gradient,) = torch.autograd.grad(drawn[(drawn == 0) | (drawn == 1)].sum(), log_alpha)
    assert not gradient.any()


def test_hard_concrete_at_the_ends():
    for dtype in (torch.float32, torch.float64):
        law = si.HardConcrete(torch.tensor([-1e3, -60.0, 60.0, 1e3], dtype=dtype), validate_args=False)
        assert law.sample().tolist() == [0, 0, 1, 1]
        for found in (law.mean, law.probability_nonzero, law.cdf(torch.tensor(0.5, dtype=dtype))):
            assert found.isfinite().all()
        torch.testing.assert_close(law.mean, torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=dtype), atol=1e-6, rtol=0)
        assert law.log_prob(torch.tensor(-0.05, dtype=dtype)).tolist() == [-math.inf] * 4
        assert law.log_prob(torch.tensor(math.nan, dtype=dtype)).isnan().all()
    with pytest.raises(ValueError, match="within the support"):
        si.HardConcrete(LOG_ALPHA, validate_args=True).log_prob(torch.tensor(1.05))


def test_options_of_hard_concrete():
    with pytest.raises(si.InvalidInputError, match="temperature must be a finite number above 0, got 0"):
        si.HardConcrete(LOG_ALPHA, 0)
    for stretch in ((0.0, 1.1), (-0.1, 1.0), (-math.inf, 2.0), 0.1, (-0.1, 1.1, 2.0), ("a", 2.0)):
        with pytest.raises(si.InvalidInputError, match="stretch must be two finite numbers, below 0 and above 1"):
            si.HardConcrete(LOG_ALPHA, stretch=stretch)


# ----------------------------------------------------------------------------- all


@each
def test_half_precision_is_lifted(kind):
    for dtype in (torch.float16, torch.bfloat16):
        law = make(kind, dtype=dtype)
        z = law.rsample((2,))
        assert z.dtype == law.log_prob(z).dtype == torch.float32
    with pytest.raises(TypeError, match=r"in floating point, got a tensor of torch\.int64"):
        kind(torch.tensor([1, 2]))


@each
def test_seeds_and_the_global_state(kind):
    law = make(kind, (50, 3))
    state = torch.get_rng_state()
    assert torch.equal(law.sample(generator=seeded(1)), law.sample(generator=seeded(1)))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(law.sample(), law.sample())


@each
def test_batches(kind):
    law = make(kind, (4, 3))
    wide = law.expand((5, 4, *law.batch_shape[1:]))
    assert wide.batch_shape == (5, *law.batch_shape)
    assert type(wide) is kind
    z = wide.sample(generator=seeded())
    torch.testing.assert_close(wide.log_prob(z)[2], law.log_prob(z[2]))
    turned = torch.randn(3, 4, generator=seeded()).double().T  # not contiguous
    torch.testing.assert_close(kind(turned).log_prob(z[0])[1:2], kind(turned[1:2]).log_prob(z[0, 1:2]))
    empty = make(kind, (0, 3))
    assert empty.log_prob(empty.sample((2,))).shape == (2, *empty.batch_shape)


@each
def test_copies_and_names(kind):
    law = make(kind)
    again = pickle.loads(pickle.dumps(law))
    z = law.sample(generator=seeded())
    assert torch.equal(again.log_prob(z), law.log_prob(z))
    assert repr(law).startswith(kind.__name__)


def test_hard_concrete_in_a_compiled_program():
    compiled = torch.compile(lambda a: si.HardConcrete(a, 0.5).mean, backend="eager")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        mean = compiled(LOG_ALPHA)
    assert not said
    torch.testing.assert_close(mean, si.HardConcrete(LOG_ALPHA, 0.5).mean)
