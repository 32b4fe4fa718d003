"""Variational autoencoders with codes of bits or subsets: sparse marginalization compared with sampling.

After Correia, Niculae, Aziz & Martins 2020, Efficient Marginalization of Discrete and Structured Latent Variables via
Sparsity, §5.3. Images are small and codes are short, so all likelihoods are sums over all codes. An encoder scores
the parts of a code y, the scores define a posterior q(y), and a decoder draws the image from y. Training maximizes E
log p(x | y) − KL(q ‖ p), with a uniform p(y) over all codes.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import structinf as si
from structinf.estimators import Estimator, Relax

from .command import Report, run
from .digits import read
from .training import Fit, fit, relax

__all__ = ["main"]


@dataclass(frozen=True)
class Code:
    """Codes y of ``size`` parts, the structures of ``oracle``, with noise whose best structures are nearly Gibbs."""

    size: int
    oracle: si.Oracle
    noise: str

    @cached_property
    def all(self) -> Tensor:
        """Return every code, (|Y|, size)."""
        return cast(Any, self.oracle).enumerate((self.size,)).float()


CODES = {
    "8 bits": Code(8, si.get_oracle("bits"), "logistic"),
    "4 of 10": Code(10, si.get_oracle("subset", k=4), "gumbel"),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    train: int | None = None  # None: all
    epochs: int = 40
    batch: int = 32
    hidden: int = 128
    rate: float = 2e-3


def sizes(quick: bool) -> Sizes:
    return Sizes(train=320, epochs=15, hidden=64, rate=5e-3) if quick else Sizes()


# ----------------------------------------------------------------------------- posteriors

TOP = 9  # codes for top-k sparsemax; SparseMAP needs at most 9 for 8 bits


class Posterior(NamedTuple):
    """Codes (K, B, size) and their probabilities (K, B), differentiable. All other codes have probability 0."""

    codes: Tensor
    probabilities: Tensor

    def negative_entropy(self) -> Tensor:
        """Return Σ q log q, (B,)."""
        q = self.probabilities
        return (q * torch.where(q > 0, q, 1.0).log()).sum(0)


def gibbs(theta: Tensor, code: Code) -> Posterior:
    """Return the posterior q(y) ∝ exp⟨θ, y⟩."""
    codes = code.all
    return Posterior(codes[:, None].expand(-1, len(theta), -1), (codes @ theta.T).softmax(0))


def sparsemap(theta: Tensor, code: Code) -> Posterior:
    """Return the posterior over the support of SparseMAP."""
    found = si.SparseDistribution.of(theta, code.oracle, "sparsemap", tolerance=0)
    return Posterior(cast(Tensor, found.structures), found.weights)


def topk_sparsemax(theta: Tensor, code: Code) -> Posterior:
    """Return the posterior by sparsemax over the scores of the best codes."""
    found = si.SparseDistribution.topk(theta, code.oracle, TOP)
    return Posterior(cast(Tensor, found.structures), found.weights)


def perturbed(theta: Tensor, code: Code) -> Posterior:
    """Return the distribution of argmax ⟨θ + U, y⟩, for logistic U on bits, or for Gumbel U on subsets of size k.

    Logistic noise sets each bit to 1 with the sigmoid of its score, as Gibbs does. The largest noisy scores are a
    sample without replacement: P(S) is the sum over the last element i ∈ S of P(S − i) times exp θ_i / Σ exp θ_j over
    all j not in S − i.
    """
    if code.noise == "logistic":
        return gibbs(theta, code)
    k, parts = cast(Any, code.oracle).k, range(code.size)
    sets: list[tuple[int, ...]] = [()]
    log_p = theta.new_zeros(len(theta), 1)
    for size in range(1, k + 1):
        outside = torch.tensor([[i not in s for i in parts] for s in sets])
        log_rest = torch.where(outside, theta[:, None], -math.inf).logsumexp(2)
        place = {s: i for i, s in enumerate(sets)}
        sets = list(itertools.combinations(parts, size))
        before = torch.tensor([[place[s[:i] + s[i + 1 :]] for i in range(size)] for s in sets])
        log_p = ((log_p - log_rest)[:, before] + theta[:, torch.tensor(sets)]).logsumexp(2)
    codes = torch.zeros(len(sets), code.size).scatter_(1, torch.tensor(sets), 1.0)
    return Posterior(codes[:, None].expand(-1, len(theta), -1), log_p.T.exp())


# ----------------------------------------------------------------------------- model


class Autoencoder(nn.Module):
    """A network for scores (B, size) of the parts of a code from images (B, 64) of zeros and ones, and for
    log-likelihoods of images.
    """

    def __init__(self, code: Code, hidden: int, pixels: int = 64) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, code.size))
        self.decode = nn.Sequential(nn.Linear(code.size, hidden), nn.ReLU(), nn.Linear(hidden, pixels))
        self.calls = 0  # codes decoded so far

    def log_likelihood(self, y: Tensor, images: Tensor) -> Tensor:
        """Return log p(x | y), (N,), of codes (N, size)."""
        self.calls += len(y)
        return -binary_cross_entropy_with_logits(self.decode(y), images, reduction="none").sum(1)


Distortion = Callable[[Autoencoder, Tensor, Tensor, Code, torch.Generator], Tensor]
"""−E log p(x | y), (B,), of a model, scores, images and codes, or an estimate with an estimate of its gradient."""


@dataclass(frozen=True)
class Method:
    """A way to train an ELBO.

    Parameters
    ----------
    posterior : callable
        Computes the posterior from scores and a code.
    distortion : callable
        Makes a distortion function, with its own state.
    middle : mapping
        The score of a bit with equal probabilities of 0 and 1, by code, if not 0.
    codes : tuple of str
        The codes for which the method is defined.
    """

    posterior: Callable[[Tensor, Code], Posterior]
    distortion: Callable[[], Distortion]
    middle: Mapping[str, float] = field(default_factory=dict)
    codes: tuple[str, ...] = tuple(CODES)


class Expected(nn.Module):
    """A distortion by an estimator, whose parameters are trained with the model."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(
        self, model: Autoencoder, theta: Tensor, images: Tensor, code: Code, generator: torch.Generator
    ) -> Tensor:
        estimator = self.estimator
        return -si.expect(model.log_likelihood, theta, code.oracle, estimator, inputs=(images,), generator=generator)


def expected(name: str, **options: Any) -> Callable[[], Distortion]:
    """Return a function that makes distortions by the estimator ``name``."""
    return lambda: Expected(si.get_estimator(name, **options))


class Control(nn.Module):
    """A trained control variate of RELAX: a function of a code and an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8 + 64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, y: Tensor, images: Tensor) -> Tensor:
        return self.layers(torch.cat([y, images], 1))[:, 0]


def trained_control() -> Distortion:
    return Expected(Relax(control=Control()))


def straight_through(backward: Any) -> Callable[[], Distortion]:
    """Return a function that makes distortions from one noisy code, with the gradient of a relaxation."""
    of = si.get_relaxation("straight_through", backward=backward)

    def distortion(model: Autoencoder, theta: Tensor, images: Tensor, code: Code, generator: torch.Generator) -> Tensor:
        y = relax(theta, code.oracle, "stochastic", base_relaxation=of, noise=code.noise, generator=generator)
        return -model.log_likelihood(y, images)

    return lambda: distortion


def sampled(name: str, **options: Any) -> Callable[[], Distortion]:
    """Return a function that makes distortions from one sample, with the gradient of the surrogate ``name``."""
    of = si.get_relaxation(name, **options)

    def distortion(model: Autoencoder, theta: Tensor, images: Tensor, code: Code, generator: torch.Generator) -> Tensor:
        return -model.log_likelihood(relax(theta, code.oracle, of, generator=generator), images)

    return lambda: distortion


def sampled_bits(name: str) -> Callable[[], Distortion]:
    """Return a function that makes distortions from one sample, each bit a choice between 0 and 1."""
    of = si.get_relaxation(name)

    def distortion(model: Autoencoder, theta: Tensor, images: Tensor, code: Code, generator: torch.Generator) -> Tensor:
        choices = torch.stack([torch.zeros_like(theta), theta], 2)
        y = relax(choices, "categorical", of, generator=generator)[..., 1]
        return -model.log_likelihood(y, images)

    return lambda: distortion


BITS, SUBSETS = ("8 bits",), ("4 of 10",)
METHODS = {
    "all codes": Method(gibbs, expected("exact")),
    "score function, moving average": Method(gibbs, expected("score_function", samples=1, baseline="moving_average")),
    "score function, leave one out": Method(gibbs, expected("score_function", samples=2, baseline="leave_one_out")),
    "unordered set": Method(gibbs, expected("unordered_set", k=2)),
    "MuProp": Method(gibbs, expected("muprop", samples=1)),
    "REBAR": Method(gibbs, expected("rebar"), codes=BITS),
    "RELAX": Method(gibbs, trained_control, codes=BITS),
    "straight-through Gumbel": Method(perturbed, straight_through("marginals")),
    "straight-through soft subset": Method(
        perturbed, straight_through(si.get_relaxation("soft_subset", temperature=0.5)), codes=SUBSETS
    ),
    "straight-through Gumbel-CRF": Method(gibbs, sampled("gumbel_crf", straight_through=True)),
    "ReinMax": Method(gibbs, sampled("reinmax")),
    "gapped straight-through": Method(gibbs, sampled_bits("gapped_straight_through"), codes=BITS),
    "Gumbel-Rao": Method(gibbs, sampled_bits("gumbel_rao"), codes=BITS),
    "top-k sparsemax": Method(topk_sparsemax, expected("topk_sparsemax", k=TOP)),
    # At scores of ½, the projection onto the cube is its center.
    "SparseMAP": Method(sparsemap, expected("sparsemap", tolerance=0), {"8 bits": 0.5}),
}


def rate(posterior: Posterior, code: Code) -> Tensor:
    """Return KL(q ‖ p) = Σ q log q + log |Y|, (B,)."""
    return posterior.negative_entropy() + math.log(len(code.all))


class EvidenceBound(NamedTuple):
    """Nats for each image: −log p(x), its bound −E log p(x | y) + KL(q ‖ p), and both terms of the bound."""

    surprise: float
    bound: float
    distortion: float
    rate: float


@torch.no_grad()
def score(model: Autoencoder, method: Method, middle: float, images: Tensor, code: Code) -> EvidenceBound:
    """Return the evidence bound by sums over all codes, without noise."""
    logits, calls = model.decode(code.all), model.calls
    likelihoods = images @ logits.T - nn.functional.softplus(logits).sum(1)
    surprise = math.log(len(logits)) - likelihoods.logsumexp(1)
    posterior = method.posterior(model.encode(images) + middle, code)
    found = [model.log_likelihood(y, images) for y in posterior.codes]
    model.calls = calls
    lost = -(torch.stack(found) * posterior.probabilities).sum(0)
    decoder_calls = rate(posterior, code)
    return EvidenceBound(*(t.mean().item() for t in (surprise, lost + decoder_calls, lost, decoder_calls)))


class Result(NamedTuple):
    """The fit, and the number of codes decoded for an image in a step, in the first and in the last epoch."""

    fit: Fit
    first: float
    last: float


def train(name: str, method: Method, images: Tensor, size: Sizes, seed: int) -> tuple[Autoencoder, Result]:
    code, middle = CODES[name], method.middle.get(name, 0.0)
    torch.manual_seed(seed)
    model, distortion = Autoencoder(code, size.hidden), method.distortion()
    generator = torch.Generator().manual_seed(seed)
    calls: list[int] = []

    def loss(batch: Tensor) -> Tensor:
        theta = model.encode(batch) + middle
        return (distortion(model, theta, batch, code, generator) + rate(method.posterior(theta, code), code)).mean()

    def batches() -> list[Tensor]:
        calls.append(model.calls)
        return [images[rows] for rows in torch.randperm(len(images), generator=generator).split(size.batch)]

    trained = nn.ModuleList([model, *([distortion] if isinstance(distortion, nn.Module) else [])])
    result = fit(trained, [loss] * size.epochs, batches, rate=size.rate, description=f"{name}, seed {seed}")
    calls.append(model.calls)
    return model.eval(), Result(result, *((calls[i + 1] - calls[i]) / len(images) for i in (0, -2)))


# ----------------------------------------------------------------------------- experiment


def experiment(size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train by each method, for each kind of code, and print the likelihoods of the test images."""
    images, tests = ((part.images.flatten(1) >= 0.5).float() for part in read())
    images = images[: size.train]
    shares = (images.sum(0) + 1) / (len(images) + 2)
    alone = -(tests @ shares.log() + (1 - tests) @ (1 - shares).log()).mean()
    report.line(
        f"{len(images)} images to train on and {len(tests)} to test on, of 64 pixels that are on or off, {size.epochs} "
        f"epochs; without a code, {alone.item():.2f} nats an image\n"
    )
    titles = {"−log p(x)": 12, "−ELBO": 12, "distortion": 12, "rate": 12}
    counts = {"calls, first epoch": 0, "last": 13, "seconds": 0}
    report.columns({"code": 7, "method": 30, **titles, **counts})
    for name, code in CODES.items():
        for title, method in METHODS.items():
            if name not in method.codes:
                continue
            bounds, results = [], []
            for seed in seeds:
                model, result = train(name, method, images, size, seed)
                bounds.append(score(model, method, method.middle.get(name, 0.0), tests, code))
                results.append(result)
            cells = [[getattr(b, of) for b in bounds] for of in EvidenceBound._fields]
            calls = [[getattr(r, when) for r in results] for when in ("first", "last")]
            report.row(name, title, *cells, *calls, f"{sum(r.fit.seconds for r in results):.0f}")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=3, reads=False)


if __name__ == "__main__":
    sys.exit(main())
