"""Noise: the distributions that are drawn, their densities and scores, and where the randomness comes from."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from structinf.errors import InvalidInputError, UnsupportedError
from structinf.kernels.jit import jit
from structinf.kernels.noise import counter_rng as kernels
from structinf.kernels.noise.gamma import negative_binomial_mixture
from structinf.noise import (
    Exponential,
    Gumbel,
    Logistic,
    Noise,
    NoNoise,
    Normal,
    SignedExponential,
    SumOfGamma,
    get_noise,
)
from structinf.solvers.perturbation import weighted_sum_of_samples
from structinf.solvers.sampled_structures import DenseStructures

pytestmark = pytest.mark.slow

DENSE = {
    Gumbel(): stats.gumbel_r,
    Normal(): stats.norm,
    Logistic(): stats.logistic,
    SignedExponential(): stats.laplace,
    Exponential(): stats.expon,
}
SMOOTH = (Gumbel(), Normal(), Logistic())
GAMMAS = (SumOfGamma(), SumOfGamma(k=10), SumOfGamma(k=3, iterations=1), SumOfGamma(k=40, iterations=25))
ALL = (*DENSE, *GAMMAS, NoNoise())
DTYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")
DRAWS = 100_000

each_noise = pytest.mark.parametrize("noise", ALL, ids=repr)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def draw(noise: Noise, *shape: int, seed: int | None = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return noise.sample(shape, dtype=dtype, device=CPU, generator=generator)


# ----------------------------------------------------------------------------- distributions


def agreement(u: Tensor, v: Tensor) -> float:
    """The p-value of Kolmogorov and Smirnov's test that the two have one distribution."""
    return stats.ks_2samp(u.numpy(), v.numpy()).pvalue  # pyright: ignore[reportAttributeAccessIssue]


@each_dtype
@pytest.mark.parametrize("noise", DENSE, ids=repr)
def test_draws_have_the_distribution(noise: Noise, dtype: torch.dtype) -> None:
    u = draw(noise, DRAWS, dtype=dtype).double().numpy()
    assert stats.kstest(u, DENSE[noise].cdf).pvalue > 1e-3


@each_dtype
@pytest.mark.parametrize("noise", GAMMAS, ids=repr)
def test_sums_of_gamma_have_the_distribution(noise: SumOfGamma, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    terms = [rng.gamma(1 / noise.k, noise.k / i, DRAWS) for i in range(1, noise.iterations + 1)]
    u = draw(noise, DRAWS, dtype=dtype)
    # In the draws' own precision, as many sums of few or small terms are next to nothing.
    other = torch.from_numpy((sum(terms) - math.log(noise.iterations)) / noise.k).to(dtype)
    assert agreement(u, other) > 1e-3


@pytest.mark.parametrize("k", [1, 5, 20])
def test_k_sums_of_gamma_are_close_to_a_gumbel(k: int) -> None:
    total = draw(SumOfGamma(k=k, iterations=500), 20_000, k).sum(1).numpy()
    assert stats.kstest(total, stats.gumbel_r.cdf).pvalue > 1e-3


@each_dtype
@each_noise
def test_draws_have_the_moments(noise: Noise, dtype: torch.dtype) -> None:
    u = draw(noise, DRAWS, dtype=dtype).double()
    if isinstance(noise, SumOfGamma):
        variance = sum(noise.k / i**2 for i in range(1, noise.iterations + 1)) / noise.k**2
    else:
        variance = DENSE[noise].var() if noise in DENSE else 0.0
    fourth = (u - noise.mean).pow(4).mean().item()
    assert abs(u.mean().item() - noise.mean) <= 5 * math.sqrt(variance / DRAWS)
    assert abs((u - noise.mean).square().mean().item() - variance) <= 5 * math.sqrt(fourth / DRAWS)


@pytest.mark.parametrize("noise", [noise for noise in ALL if noise.symmetric], ids=repr)
def test_symmetric_noise_is_symmetric(noise: Noise) -> None:
    u = draw(noise, DRAWS)
    assert agreement(u, -u) > 1e-3


@pytest.mark.parametrize("noise", [*DENSE, SumOfGamma(k=10)], ids=repr)
def test_neighbours_are_independent(noise: Noise) -> None:
    u = draw(noise, 1 << 17, dtype=torch.float32)
    # 64 counters make two or four numbers each, which stand so far from each other.
    for apart in (1, 2, 64, 128, 192, 256):
        ranks = torch.stack([u[:-apart], u[apart:]]).argsort(1).argsort(1).double()
        assert abs(torch.corrcoef(ranks)[0, 1]) < 5 / math.sqrt(len(u))


# ----------------------------------------------------------------------------- distributions at their ends


EXTREMES = np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1, 2**64 - 2**32, 2**64 - 2, 2**64 - 1], np.uint64)


@jit(called_from_python=True)
def _uniform64(word):
    return kernels.uniform64(word)


@pytest.mark.parametrize("word", EXTREMES, ids=hex)
def test_no_word_makes_an_infinite_number(word: np.uint64) -> None:
    v = _uniform64(word)
    assert 0 < v < 1
    assert 0 < kernels.exponential64(word) < math.inf
    assert np.isfinite(kernels.normal_pair64(word, word)).all()


def test_words_are_philox() -> None:
    # The known answers that come with the reference implementation: counter and key of zeros.
    out = np.empty(kernels.CHUNK, np.uint64)
    kernels.words(np.uint64(0), 0, 0, out)
    assert [hex(out[0]), hex(out[kernels.CHUNK // 2])] == ["0x6627e8d5e169c58d", "0xbc57ac4c9b00dbd8"]


def test_right_tails_of_gumbel_reach_beyond_24_bits() -> None:
    tails = [draw(Gumbel(), 1 << 22, seed=seed, dtype=torch.float32).max().item() for seed in range(16)]
    assert max(tails) > -math.log(-math.log1p(-(2.0**-24)))


@pytest.mark.parametrize(("k", "terms"), [(1, 10), (10, 10), (2, 1), (7, 40)])
def test_mixtures_have_the_mean_of_the_negative_binomials(k: int, terms: int) -> None:
    none, below, _ = negative_binomial_mixture(1 / k, terms)
    probability = np.diff(np.minimum(below, 1), prepend=0)
    assert probability[0] == pytest.approx(none)
    expected = sum((terms - i) / i for i in range(1, terms + 1)) / k
    assert probability @ np.arange(len(below)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


# ----------------------------------------------------------------------------- densities and scores


@pytest.mark.parametrize("noise", DENSE, ids=repr)
def test_densities_are_those_of_scipy_and_integrate_to_1(noise: Noise) -> None:
    u = torch.linspace(-3, 6, 31, dtype=torch.float64)
    assert noise.log_prob(u).numpy() == pytest.approx(DENSE[noise].logpdf(u.numpy()), abs=1e-12)
    low = 0.0 if isinstance(noise, Exponential) else -50.0
    total = integrate.quad(lambda x: noise.log_prob(torch.tensor(x, dtype=torch.float64)).exp().item(), low, 50.0)[0]
    assert total == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("noise", SMOOTH, ids=repr)
def test_scores_are_slopes_of_minus_log_densities_and_have_mean_0(noise: Noise) -> None:
    u = torch.linspace(-4, 9, 53, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(noise.log_prob(u).sum(), u)[0]
    torch.testing.assert_close(noise.score(u.detach()), -slope)
    score = noise.score(draw(noise, DRAWS))
    assert abs(score.mean()) < 5 * score.std() / math.sqrt(DRAWS)


@pytest.mark.parametrize("noise", [Exponential(), SumOfGamma(), NoNoise()], ids=repr)
def test_noise_without_a_smooth_density_has_no_score(noise: Noise) -> None:
    with pytest.raises(UnsupportedError, match="has no score"):
        noise.score(torch.zeros(3))


# ----------------------------------------------------------------------------- where randomness comes from


@each_dtype
@each_noise
def test_generators_alone_decide(noise: Noise, dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(3)
    first, second = (noise.sample((50, 7), dtype=dtype, device=CPU, generator=generator) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first.dtype is dtype
    assert torch.equal(first, draw(noise, 50, 7, seed=3, dtype=dtype))
    if not isinstance(noise, NoNoise):
        assert not torch.equal(first, second)


@each_noise
def test_the_default_generator_is_torchs(noise: Noise) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        first, second = draw(noise, 40, seed=None), draw(noise, 40, seed=None)
        torch.manual_seed(5)
        assert torch.equal(first, draw(noise, 40, seed=None))
        assert torch.equal(second, draw(noise, 40, seed=None))


@each_dtype
@each_noise
def test_the_number_of_threads_changes_nothing(
    noise: Noise, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    drawn = []
    for count in (1, 2, 3):
        threads(count)
        drawn.append(draw(noise, 150_001, dtype=dtype))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@each_noise
def test_threads_of_the_caller_do_not_disturb_each_other(noise: Noise) -> None:
    expected = [draw(noise, 70_000, seed=seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for u, v in zip(expected, pool.map(lambda seed: draw(noise, 70_000, seed=seed), range(4)), strict=True):
            assert torch.equal(u, v)


@each_dtype
@each_noise
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4), (129,)], ids=str)
def test_any_shape(noise: Noise, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    u = draw(noise, *shape, dtype=dtype)
    assert u.shape == shape
    assert u.dtype is dtype
    assert u.is_contiguous()
    assert bool(u.isfinite().all())


@each_noise
def test_other_devices_draw_by_torch(noise: Noise) -> None:
    u = noise.sample((4, 5), dtype=torch.float32, device=torch.device("meta"))
    assert u.shape == (4, 5)
    assert u.dtype is torch.float32
    assert u.device.type == "meta"


@each_noise
def test_the_default_device_does_not_matter(noise: Noise) -> None:
    expected = draw(noise, 3, 4)
    with torch.device("meta"):
        assert torch.equal(draw(noise, 3, 4), expected)


# ----------------------------------------------------------------------------- many samples


@each_dtype
def test_products_of_samples_are_sums_over_them(dtype: torch.dtype) -> None:
    samples, v, weights = (draw(Normal(), *shape, dtype=dtype) for shape in ((5, 3, 2, 70), (3, 2, 70), (5, 3)))
    for y in (samples, samples.transpose(2, 3).contiguous().transpose(2, 3), samples[:, :, :, :0]):
        z = v[..., : y.shape[3]]
        torch.testing.assert_close(DenseStructures(y, y[0]).inner_products(z), torch.einsum("sbij,bij->sb", y, z))
        theta = torch.zeros_like(z)
        theta[0].view(-1)[:1] = -torch.inf
        total = torch.einsum("sbij,sb->bij", y, weights).masked_fill(theta.isinf(), 0)
        torch.testing.assert_close(weighted_sum_of_samples(y, weights, theta), total)


# ----------------------------------------------------------------------------- by name


def test_names_stand_for_default_options() -> None:
    names = {noise.name for noise in ALL}
    assert names == {"gumbel", "normal", "logistic", "signed_exponential", "sum_of_gamma", "exponential", "none"}
    assert all(type(get_noise(noise.name)) is type(noise) for noise in ALL)
    assert get_noise(GAMMAS[1]) is GAMMAS[1]


@pytest.mark.parametrize("noise", ["gauss", 3, None])
def test_other_names_are_refused(noise: object) -> None:
    with pytest.raises(InvalidInputError, match=r'noise must be "gumbel", .* or a Noise, got'):
        get_noise(noise)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 2.5}, {"k": True}, {"iterations": 0}, {"iterations": "10"}])
def test_numbers_of_terms_are_positive_integers(options: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="must be an integer of at least 1"):
        SumOfGamma(**options)


def test_integers_of_numpy_are_integers():
    assert SumOfGamma(np.int64(2), np.int32(5)) == SumOfGamma(2, 5)
    with pytest.raises(InvalidInputError, match="k must be an integer of at least 1"):
        SumOfGamma(np.bool_(True))
