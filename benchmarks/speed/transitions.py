"""Beams of sequences compared with the time of the model alone, and stochastic beams compared with beams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

import structinf as si
from benchmarks.timing import alternate

from .case import Limit

__all__ = ["LIMITS"]

BUDGET = 40.0  # seconds of all samples of a contender


@dataclass(frozen=True)
class Size:
    """Sizes of the decoder and of the search."""

    batch: int = 64
    k: int = 16
    steps: int = 50
    units: int = 512
    vocabulary: int = 4000


QUICK = Size(batch=2, k=2, steps=3, units=4, vocabulary=200)


@dataclass(frozen=True)
class Prefix:
    """The hidden units (N, H), the tokens (N, T) and their number (N,)."""

    hidden: Tensor
    tokens: Tensor
    count: Tensor


class Decoder(si.TransitionSystem, nn.Module):
    """A recurrent network (GRU) that scores the next token. All sequences have the same number of tokens."""

    def __init__(self, size: Size) -> None:
        nn.Module.__init__(self)
        torch.manual_seed(0)
        self.steps = size.steps
        self.embed = nn.Embedding(size.vocabulary, size.units)
        self.cell = nn.GRUCell(size.units, size.units)
        self.out = nn.Linear(size.units, size.vocabulary)
        nn.init.normal_(self.out.weight, std=0.2)
        self.requires_grad_(False)

    def start(self, inputs: Tensor) -> Prefix:
        zero = torch.zeros(len(inputs), dtype=torch.int64)
        return Prefix(inputs, zero[:, None].repeat(1, self.steps), zero)

    def actions(self, state: Prefix) -> Tensor:
        return self.out(state.hidden)

    def step(self, state: Prefix, action: Tensor) -> Prefix:
        hidden = self.cell(self.embed(action), state.hidden)
        tokens = state.tokens.scatter(1, state.count[:, None], action[:, None])
        return replace(state, hidden=hidden, tokens=tokens, count=state.count + 1)

    def done(self, state: Prefix) -> Tensor:
        return state.count == self.steps

    def structure(self, state: Prefix) -> Tensor:
        return state.tokens


def _contenders(size: Size) -> dict[str, Callable[[], object]]:
    model = Decoder(size)
    inputs = torch.randn(size.batch, size.units, generator=torch.Generator().manual_seed(0))

    def alone() -> None:
        """Call the model on as many states as the beam has, for all steps."""
        state, token = model.start(inputs.repeat_interleave(size.k, 0)), torch.zeros(size.batch * size.k).long()
        while not bool(model.done(state).all()):
            model.actions(state)
            state = model.step(state, token)

    return {
        "model": alone,
        "beam": lambda: si.decode_beam(model, inputs, size.k),
        "stochastic beam": lambda: si.stochastic_beam(model, inputs, size.k),
    }


def _ratios(size: Size, one: str, other: str, repeats: int, quick: bool) -> list[float]:
    """Return the time of one contender divided by the time of the other, for each round."""
    contenders = _contenders(QUICK if quick else size)
    pair = {name: contenders[name] for name in (one, other)}
    for run in pair.values():
        run()
    samples = alternate(pair, repeats, BUDGET)
    return [a / b for a, b in zip(samples[one], samples[other], strict=False)]


LIMITS = tuple(
    Limit(
        f"{name}-{units}",
        f"{one}, k=16, 64 sequences of 50 steps, a GRU of {units} units, 4,000 tokens, compared with {other}",
        partial(_ratios, Size(units=units), one, key),
        f"times {other}",
        most,
    )
    for name, one, key, other, most in (
        ("beam", "beam", "model", "the model alone", 1.3),
        ("beam-stochastic", "stochastic beam", "beam", "the beam", 1.2),
    )
    for units in (512, 256)
)
