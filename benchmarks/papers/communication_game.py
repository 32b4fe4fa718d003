"""Two players and one symbol: exact, sparse and sampled expectations over the symbol.

After Correia, Niculae, Aziz & Martins 2020, Efficient Marginalization of Discrete and Structured Latent Variables via
Sparsity, §5.2, on drawn objects. The sender sees one object and sends one of K symbols. The receiver gets the symbol,
sees the object among others, and chooses an object. Both learn from E log p(right object | symbol) over the sender's
symbols.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import structinf as si

from .command import Report, run
from .training import Fit, fit, relax

__all__ = ["main"]

ATTRIBUTES, VALUES = 4, 4
OBJECTS = VALUES**ATTRIBUTES


@dataclass(frozen=True)
class Sizes:
    """Sizes of the data and of the training."""

    symbols: int = 64
    candidates: int = 16
    epochs: int = 20
    steps: int = 100  # in an epoch
    batch: int = 64
    hidden: int = 64
    rate: float = 3e-3
    test: int = 5000


def sizes(quick: bool) -> Sizes:
    return Sizes(symbols=16, candidates=4, epochs=6, steps=50, hidden=32, rate=1e-2, test=500) if quick else Sizes()


# ----------------------------------------------------------------------------- data


class Rounds(NamedTuple):
    """Numbers of the candidate objects (N, candidates), all different, and the position of the right object (N,)."""

    candidates: Tensor
    right: Tensor

    def split(self, size: int) -> list[Rounds]:
        return [Rounds(*parts) for parts in zip(*(part.split(size) for part in self), strict=True)]


def draw(count: int, candidates: int, generator: torch.Generator) -> Rounds:
    """Return rounds of objects drawn without replacement."""
    objects = torch.rand(count, OBJECTS, generator=generator).topk(candidates, 1).indices
    return Rounds(objects, torch.randint(candidates, (count,), generator=generator))


def features() -> Tensor:
    """Return the features (OBJECTS, ATTRIBUTES · VALUES) of objects: a 1 for the value of each attribute."""
    values = torch.cartesian_prod(*[torch.arange(VALUES)] * ATTRIBUTES)
    return nn.functional.one_hot(values, VALUES).flatten(1).float()


def max_success_rate(size: Sizes) -> float:
    """Return the largest possible share of won rounds, in per cent.

    A symbol stands for m objects. If c other objects of the symbol are candidates, the receiver guesses 1 of 1 + c.
    The mean over the hypergeometric c is (1 − C(OBJECTS − m, n) / C(OBJECTS, n)) · OBJECTS / (m n) for n candidates.
    Classes of equal size are optimal.
    """
    m, n = OBJECTS // size.symbols, size.candidates
    return 100 * (1 - math.comb(OBJECTS - m, n) / math.comb(OBJECTS, n)) * OBJECTS / (m * n)


# ----------------------------------------------------------------------------- model


class Players(nn.Module):
    """A sender with scores (B, K) of symbols, and a receiver with log-probabilities of the right candidate (N,)."""

    objects: Tensor

    def __init__(self, symbols: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("objects", features())
        self.say = nn.Sequential(nn.Linear(ATTRIBUTES * VALUES, hidden), nn.ReLU(), nn.Linear(hidden, symbols))
        self.see = nn.Sequential(nn.Linear(ATTRIBUTES * VALUES, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.hear = nn.Linear(symbols, hidden, bias=False)
        self.calls = 0  # symbols evaluated so far

    def scores(self, rounds: Rounds) -> Tensor:
        target = rounds.candidates.gather(1, rounds.right[:, None]).squeeze(1)
        return self.say(self.objects[target])

    def receive(self, symbols: Tensor, seen: Tensor) -> Tensor:
        """Return log-probabilities (N, candidates) of symbols (N, K) and of states of candidates (N, candidates, h)."""
        self.calls += len(symbols)
        return torch.einsum("nh,nch->nc", self.hear(symbols), seen).log_softmax(1)

    def reward(self, symbols: Tensor, seen: Tensor, right: Tensor) -> Tensor:
        return self.receive(symbols, seen).gather(1, right[:, None]).squeeze(1)


ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "all symbols": ("exact", {}),
    "sparsemax": ("sparsemax", {}),
    "top-k sparsemax, k = 4": ("topk_sparsemax", {"k": 4}),
    "sum and sample, k = 4": ("sum_and_sample", {"k": 4}),
    "score function": ("score_function", {"samples": 1, "baseline": "none"}),
    "score function, moving average": ("score_function", {"samples": 1, "baseline": "moving_average"}),
    "score function, self-critic": ("score_function", {"samples": 1, "baseline": "self_critic"}),
    "score function, leave one out": ("score_function", {"samples": 4, "baseline": "leave_one_out"}),
}


@torch.no_grad()
def success(model: Players, rounds: Rounds) -> float:
    """Return the share of won rounds, in per cent, with the argmax of both players."""
    calls, won = model.calls, 0
    for some in rounds.split(500):
        symbols = relax(model.scores(some), "categorical")
        found = model.receive(symbols, model.see(model.objects[some.candidates])).argmax(1)
        won += int((found == some.right).sum())
    model.calls = calls
    return 100 * won / len(rounds.right)


@torch.no_grad()
def num_symbols_used(model: Players) -> int:
    """Return the number of symbols sent for at least one object."""
    return len(model.say(model.objects).argmax(1).unique())


class Result(NamedTuple):
    """The fit, and the number of symbols evaluated by the receiver for a round in a step, in the first and in the
    last epoch.
    """

    fit: Fit
    first: float
    last: float


def train(name: str, size: Sizes, seed: int) -> tuple[Players, Result]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Players(size.symbols, size.hidden)
    estimator = si.get_estimator(ESTIMATORS[name][0], **ESTIMATORS[name][1])
    calls: list[int] = []

    def loss(rounds: Rounds) -> Tensor:
        inputs = (model.see(model.objects[rounds.candidates]), rounds.right)
        theta = model.scores(rounds)
        return -si.expect(model.reward, theta, "categorical", estimator, inputs=inputs, generator=generator).mean()

    def batches() -> list[Rounds]:
        calls.append(model.calls)
        return draw(size.steps * size.batch, size.candidates, generator).split(size.batch)

    result = fit(model, [loss] * size.epochs, batches, rate=size.rate, description=f"{name}, seed {seed}")
    calls.append(model.calls)
    played = size.steps * size.batch
    return model.eval(), Result(result, *((calls[i + 1] - calls[i]) / played for i in (0, -2)))


# ----------------------------------------------------------------------------- experiment


def experiment(size: Sizes, seeds: Sequence[int], report: Report) -> None:
    """Train with each estimator, and print the share of won rounds."""
    report.line(
        f"{OBJECTS} objects, {size.candidates} of them candidates, {size.symbols} symbols; {size.epochs * size.steps} "
        f"steps of {size.batch} rounds, {size.test} test rounds\n"
    )
    counts = {"calls, first epoch": 0, "last": 13, "seconds": 0}
    report.columns({"estimator": 30, "success, %": 13, "symbols used": 13, **counts})
    report.row("guessing", 100 / size.candidates, "", "", "", "")
    for name in ESTIMATORS:
        won, said, results = [], [], []
        for seed in seeds:
            test = draw(size.test, size.candidates, torch.Generator().manual_seed(len(seeds)))
            model, result = train(name, size, seed)
            won.append(success(model, test))
            said.append(float(num_symbols_used(model)))
            results.append(result)
        calls = [[getattr(r, when) for r in results] for when in ("first", "last")]
        report.row(name, won, said, *calls, f"{sum(r.fit.seconds for r in results):.0f}")
    report.row("a perfect code", max_success_rate(size), float(size.symbols), "", "", "")


def main(arguments: Sequence[str] | None = None) -> int:
    return run(experiment, sizes, __doc__, arguments, seeds=3, reads=False)


if __name__ == "__main__":
    sys.exit(main())
