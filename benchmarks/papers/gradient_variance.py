"""The variance and the bias of gradient estimates of E[g(Y)], with equally many evaluations of g.

g is a random network of two layers, and the scores are random. The exact gradient comes from a sum over all structures.
Tucker et al. 2017, REBAR, and Liu et al. 2023, Bridging Discrete and Backpropagation, compare estimators in this way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

import structinf as si
from structinf.estimators import Relax

from .command import Report, run

__all__ = ["main"]

CALLS = 6

STRUCTURES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "8 choices": (si.get_oracle("categorical"), (8,)),
    "6 bits": (si.get_oracle("bits"), (6,)),
    "3 of 8": (si.get_oracle("subset", k=3), (8,)),
    "4 words": (si.get_oracle("projective_tree"), (5, 5)),
}

Function = Callable[[Tensor], Tensor]
Values = Callable[[Tensor, Any, Function, torch.Generator], Tensor]


def expected(name: str, **options: Any) -> Values:
    estimator = si.get_estimator(name, **options)
    return lambda theta, oracle, g, rng: si.expect(g, theta, oracle, estimator, generator=rng)


def surrogate(relaxation: si.Relaxation) -> Values:
    """Return g at each of CALLS samples, averaged."""

    def values(theta: Tensor, oracle: Any, g: Function, rng: torch.Generator) -> Tensor:
        y = cast(Tensor, si.relax(theta, oracle, relaxation, generator=rng))
        return g(y.flatten(0, 1)).view(y.shape[:2]).mean(0)

    return values


def trained_relax(theta: Tensor, oracle: Any, g: Function, rng: torch.Generator) -> Tensor:
    """Return the estimates of RELAX, whose control variate is first trained by at most 300 steps of 64 estimates."""
    torch.manual_seed(0)
    layers = nn.Linear(theta[0].numel(), 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0)
    control = nn.Sequential(nn.Flatten(), *layers).to(theta)
    estimator = Relax(control=control, samples=CALLS, eta=0.0)
    optimizer = torch.optim.Adam(control.parameters(), 1e-2)
    few = theta[:64].detach().requires_grad_()
    for _ in range(min(300, len(theta) // 40)):
        optimizer.zero_grad()
        si.expect(g, few, oracle, estimator, generator=rng).sum().backward()
        optimizer.step()
    return si.expect(g, theta, oracle, estimator, generator=rng)


relaxation = partial(si.get_relaxation, samples=CALLS, reduction="none")

METHODS: dict[str, Values] = {
    "score function": expected("score_function", samples=CALLS, baseline="none"),
    "score function, leave one out": expected("score_function", samples=CALLS),
    "sum and sample": expected("sum_and_sample", k=CALLS // 2, samples=CALLS // 2),
    "unordered set": expected("unordered_set", k=CALLS),
    "MuProp": expected("muprop", samples=CALLS - 1),
    "REBAR": expected("rebar", samples=CALLS // 3),
    "RELAX, trained": trained_relax,
    "straight-through": surrogate(relaxation("reinmax", order=1)),
    "ReinMax": surrogate(relaxation("reinmax")),
    "gapped straight-through": surrogate(relaxation("gapped_straight_through")),
    "Gumbel-Rao": surrogate(relaxation("gumbel_rao")),
    "straight-through Gumbel-CRF": surrogate(relaxation("gumbel_crf", straight_through=True)),
    "straight-through soft subset": surrogate(
        relaxation(
            "stochastic",
            base_relaxation=si.get_relaxation(
                "straight_through", backward=si.get_relaxation("soft_subset", temperature=0.5)
            ),
        )
    ),
}


@dataclass(frozen=True)
class Sizes:
    """Independent estimates for each problem."""

    draws: int = 20_000


def sizes(quick: bool) -> Sizes:
    return Sizes(2_000) if quick else Sizes()


def network(parts: int, generator: torch.Generator) -> Function:
    first = torch.randn(parts, 16, dtype=torch.float64, generator=generator)
    second = torch.randn(16, dtype=torch.float64, generator=generator) / 4
    return lambda y: (y.flatten(1) @ first).tanh() @ second


def experiment(_: None, size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Print the total variance of the gradient, and its squared bias, for each structure and method."""
    report.line(f"{CALLS} evaluations of g, {size.draws} estimates for each of {len(seeds)} problems\n")
    report.columns({"structure": 9, "estimator": 30, "variance": 12, "squared bias": 12})
    for structure, (oracle, event) in STRUCTURES.items():
        for method, values in METHODS.items():
            variances, biases = [], []
            for seed in seeds:
                generator = torch.Generator().manual_seed(seed)
                theta = torch.randn(event, dtype=torch.float64, generator=generator).requires_grad_()
                g = network(theta.numel(), generator)
                (exact,) = torch.autograd.grad(si.expect(g, theta[None], oracle).sum(), theta)
                copies = theta.detach().expand(size.draws, *event).clone().requires_grad_()
                try:
                    (found,) = torch.autograd.grad(values(copies, oracle, g, generator).sum(), copies)
                except si.UnsupportedError:
                    break
                variance = found.var(0).sum()
                variances.append(variance.item())
                # The mean of the estimates has a variance of its own.
                biases.append(((found.mean(0) - exact).square().sum() - variance / size.draws).item())
            else:
                report.row(structure, method, *(f"{sum(found) / len(found):.4f}" for found in (variances, biases)))


def main(arguments: Sequence[str] | None = None) -> int:
    return run(lambda *rest: experiment(None, *rest), sizes, __doc__, arguments, seeds=5, reads=False)


if __name__ == "__main__":
    sys.exit(main())
