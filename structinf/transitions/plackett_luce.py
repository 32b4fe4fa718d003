"""The Plackett-Luce distribution over rankings, and over the first k places of rankings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels.logsumexp import logaddexp, logsumexp
from ..noise import Gumbel
from ..shapes import Float
from ..validation import check_count, check_feasible, check_generator, check_k
from .inputs import split_lengths
from .search import best_columns
from .states import Shared
from .system import TransitionSystem

__all__ = ["PlackettLuce", "RankingState"]


@dataclass(frozen=True)
class RankingState:
    """The places filled so far.

    Attributes
    ----------
    theta : Shared
        The scores of the instances, (I, n).
    lengths : (N,) int64 Tensor
        The number of elements of the instance.
    order : (N, k) int64 Tensor
        The element at each place; −1 for places not filled yet.
    taken : (N, n) bool Tensor
        Whether an element has a place.
    count : (N,) int64 Tensor
        The number of places filled.
    """

    theta: Shared
    lengths: Tensor
    order: Tensor
    taken: Tensor
    count: Tensor


@dataclass(frozen=True)
class PlackettLuce(TransitionSystem):
    """Rankings drawn from the first place to the last, each place by a softmax over the elements that remain.

    p(order) = Π_i exp θ[order_i] / Σ_{j not before place i} exp θ[j].

    Actions: the element of the next place, in [0, n). Inputs: the scores θ (B, n), or a tuple of them and lengths (B,);
    −inf for an element without a place. Structures: (B, n), the ranks of the oracle ``ranking``: the element of the
    first place has the rank n (its instance's length), the next n − 1, and elements without a place 0.

    The methods ``log_prob`` and ``sample`` use closed forms, without a loop over the places.

    Parameters
    ----------
    k : int, optional
        The number of places. By default n, the whole ranking.

    References
    ----------
    Plackett 1975, The Analysis of Permutations. Luce 1959, Individual Choice Behavior.
    Grover, Wang, Zweig & Ermon 2019, Stochastic Optimization of Sorting Networks via Continuous Relaxations (samples
    by sorting perturbed scores).

    Examples
    --------
    The probability that two draws without replacement from p = (.5, .3, .15, .05) are the first two elements:

    >>> theta = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    >>> orders = torch.tensor([[0, 1], [1, 0]])
    >>> PlackettLuce(k=2).log_prob(theta, orders).exp().sum()
    tensor(0.5143)

    A loss of rankings, ListMLE, is the negative log-probability of the gold order:

    >>> -PlackettLuce().log_prob(theta, torch.tensor([0, 1, 2, 3]))
    tensor(1.4917)
    """

    k: int | None = None

    def __post_init__(self) -> None:
        if self.k is not None:
            check_k(self.k)

    def start(self, inputs: Any) -> RankingState:
        theta, lengths = split_lengths(inputs, 0)
        if theta.ndim != 2:
            raise InvalidInputError(f"theta must have shape (B, n), got {tuple(theta.shape)}")
        beyond = torch.arange(theta.shape[1], device=theta.device) >= lengths[:, None]
        order = lengths.new_full((len(theta), self._places(theta.shape[1])), -1)
        return RankingState(Shared.of(theta), lengths, order, beyond, torch.zeros_like(lengths))

    def actions(self, state: RankingState) -> Tensor:
        return state.theta.at().masked_fill(state.taken, -torch.inf)

    def step(self, state: RankingState, action: Tensor) -> RankingState:
        order = state.order.scatter(1, state.count[:, None], action[:, None])
        taken = state.taken.scatter(1, action[:, None], True)
        return replace(state, order=order, taken=taken, count=state.count + 1)

    def done(self, state: RankingState) -> Tensor:
        return (state.count >= state.order.shape[1]) | (state.count >= state.lengths)

    def structure(self, state: RankingState) -> Tensor:
        n = state.theta.values.shape[1]
        rank = state.lengths[:, None] - torch.arange(state.order.shape[1], device=state.order.device)
        # Column n takes the places that are not filled.
        ranks = state.theta.values.new_zeros(len(state.order), n + 1, requires_grad=False)
        index = torch.where(state.order >= 0, state.order, n)
        return ranks.scatter(1, index, rank.to(ranks.dtype))[:, :n]

    def log_prob(self, theta: Float[Tensor, "*#batch n"], order: Tensor) -> Float[Tensor, "*batch"]:
        """Return the log-probability of rankings, or of the first places of rankings; differentiable in θ.

        Parameters
        ----------
        theta : (..., n) Tensor
            The scores.
        order : (..., k) int64 Tensor
            The element at each place, without repetition. k is at most the number of places.
        """
        _check_scores(theta)
        n = theta.shape[-1]
        if not isinstance(order, Tensor) or not order.ndim:
            received = "a number" if isinstance(order, Tensor) else type(order).__name__
            raise InvalidInputError(f"order must be an int64 tensor (..., k), got {received}")
        if order.dtype != torch.int64 or not 1 <= order.shape[-1] <= self._places(n):
            raise InvalidInputError(
                f"order must be an int64 tensor (..., k) with k from 1 to {self._places(n)}, got "
                f"{tuple(order.shape)} in {order.dtype}"
            )
        if order.numel() and (int(order.min()) < 0 or int(order.max()) >= n):
            raise InvalidInputError(f"order must hold elements from 0 to {n - 1}, got {order.flatten()[:10].tolist()}")
        batch = torch.broadcast_shapes(theta.shape[:-1], order.shape[:-1])
        dtype, theta = theta.dtype, theta.double().expand(*batch, n)
        order = order.expand(*batch, order.shape[-1])
        uses = torch.zeros(*batch, n, dtype=torch.int64, device=order.device)
        uses = uses.scatter_add(-1, order, torch.ones_like(order))
        if bool((uses > 1).any()):
            raise InvalidInputError("order must name each element at most once")
        is_forbidden = theta.detach() == -torch.inf
        impossible = is_forbidden.gather(-1, order)
        chosen = theta.gather(-1, order).masked_fill(impossible, 0.0)
        is_rest = (uses == 0) & ~is_forbidden
        # torch.logsumexp and torch.logaddexp have a wrong second derivative at −inf.
        rest = logsumexp(theta.masked_fill(~is_rest, -torch.inf), -1, keepdim=True)
        remaining = chosen.flip(-1).logcumsumexp(-1).flip(-1)
        log_p = (chosen - logaddexp(remaining, rest)).sum(-1)
        return log_p.masked_fill(impossible.any(-1), -torch.inf).to(dtype)

    def sample(
        self, theta: Float[Tensor, "*batch n"], n: int = 1, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return independent samples of the order of elements, (n, ..., k) int64, by a sort of perturbed scores.

        Parameters
        ----------
        theta : (..., elements) Tensor
            The scores; at most elements − k of them −inf.
        n : int
            The number of samples.
        generator : torch.Generator, optional
            The only source of randomness. If None, samples come from torch's default generator.
        """
        check_count(n)
        check_generator(generator)
        _check_scores(theta)
        fixed = theta.detach() if theta.dtype == torch.float64 else theta.detach().float()
        places = self._places(theta.shape[-1])
        enough = (fixed > -torch.inf).sum(-1) >= places
        check_feasible(enough.flatten(), f"order of {places} elements")
        noise = Gumbel().sample((n, *fixed.shape), dtype=fixed.dtype, device=fixed.device, generator=generator)
        flat = (fixed + noise).reshape(-1, fixed.shape[-1])
        return best_columns(flat, places).view(n, *fixed.shape[:-1], places)

    def _places(self, n: int) -> int:
        return n if self.k is None else min(self.k, n)


def _check_scores(theta: Tensor) -> None:
    if not isinstance(theta, Tensor) or not theta.is_floating_point():
        shown = theta.dtype if isinstance(theta, Tensor) else type(theta).__name__
        raise TypeError(f"theta must be a floating-point tensor (..., n), got {shown}")
    if not theta.ndim or not theta.shape[-1]:
        raise InvalidInputError(f"theta must have shape (..., n), n at least 1, got {tuple(theta.shape)}")
    if not bool((theta.detach() < torch.inf).all()):
        raise InvalidInputError("theta holds NaN or +inf; scores must be finite or −inf")
