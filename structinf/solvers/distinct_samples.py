"""Samples without replacement from p(y) ∝ exp⟨θ, y⟩.

Draws with replacement, without the repetitions, are draws without replacement. They suffice unless a few structures
hold most of the probability. The structures that are then missing come from a partition of all other structures, if
the oracle can restrict its structures. The set with the highest perturbed log-probability gives the next draw
(Maddison, Tarlow & Minka 2014, A* sampling).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..noise import Gumbel
from ..oracle import Oracle, Samplable
from ..parts import Parts, batch_size, inner_product, map_parts, parts_to_vectors, select_rows, vectors_to_parts
from ..restriction import Restrictable, Solved, ranked_search

__all__ = ["sample_without_replacement"]

_MOST_DRAWS = 2**14
"""The largest number of draws with replacement for an instance, if the oracle cannot restrict its structures."""

_DRAWS_AT_ONCE = 256
"""The number of draws that are compared at once with the structures drawn before."""

_KNOWN = 2.0**900
"""Scores of sets that contain a structure drawn before, far above all perturbed log-probabilities."""


def sample_without_replacement(
    oracle: Oracle, theta: Parts, n: int, generator: torch.Generator | None = None
) -> tuple[Parts, Tensor]:
    """Draw n different structures of each instance, each from p(y) without the structures drawn before.

    Parameters
    ----------
    oracle : Oracle
        An oracle with samples and a log-partition function, or with a method ``sample_without_replacement``.
    theta : (B | 1, *event) Tensor, or tuple of them
        Scores of the parts, divided by the temperature.
    n : int
        The number of draws.
    generator : torch.Generator, optional
        The source of randomness.

    Returns
    -------
    structures : (n, B, *event) Tensor, or tuple of them
        The structures in the order of the draws; 0 beyond the last structure.
    valid : (n, B) bool Tensor
        False beyond the number of structures of finite score.

    Raises
    ------
    UnsupportedError
        If the oracle cannot restrict its structures, and the structures that are missing have a probability below
        about 2^-14.
    """
    own = getattr(oracle, "sample_without_replacement", None)
    if own is not None and oracle.known_set == "one_of_n":
        return own(theta, n, generator)
    size = batch_size(theta)
    theta = map_parts(lambda t: t.detach().expand(size, *t.shape[1:]), theta)
    if own is not None:
        return _with_method_for_peaks(cast(Any, oracle), theta, n, generator)
    draws = _DistinctDraws(cast(Any, oracle), theta, n, generator)
    draws.draw_with_replacement(_most_draws(oracle, theta, n))
    rows = draws.unfinished()
    if len(rows):
        if not _can_restrict(oracle, theta):
            raise UnsupportedError(
                f"{oracle.label()} draws without replacement by draws with replacement, and {_MOST_DRAWS} draws have "
                f"given {int(draws.count[rows[0]])} of {n} different structures at batch index {int(rows[0])}; draw "
                "fewer structures or raise the temperature"
            )
        draws.finish(rows)
    return vectors_to_parts(draws.found, theta), draws.valid()


def _with_method_for_peaks(
    oracle: Any, theta: Parts, n: int, generator: torch.Generator | None
) -> tuple[Parts, Tensor]:
    """Use the oracle's method for instances whose n most probable structures may have more than half the probability.

    For other instances, at least every second draw with replacement is new, on average. The choice depends on the
    scores alone, so that the distribution does not depend on it.
    """
    theta64 = map_parts(Tensor.double, theta)
    best = inner_product(theta64, map_parts(Tensor.double, oracle.argmax(theta)))
    is_peaked = best - oracle.log_partition(theta64) > -math.log(2 * max(n, 1))
    rows = is_peaked.nonzero()[:, 0]
    if len(rows) == len(best):
        return oracle.sample_without_replacement(theta, n, generator)
    draws = _DistinctDraws(oracle, theta, n, generator)
    draws.total = torch.where(is_peaked, 0, draws.total)
    draws.draw_with_replacement(None)
    structures, valid = vectors_to_parts(draws.found, theta), draws.valid()
    if len(rows):
        own = map_parts(lambda t: t[rows], theta)
        others, valid[:, rows] = oracle[rows].sample_without_replacement(own, n, generator)
        structures = map_parts(lambda y, z: y.index_copy(1, rows, z), structures, others)
    return structures, valid


def _can_restrict(oracle: Oracle, theta: Parts) -> bool:
    return isinstance(oracle, Restrictable) and oracle.can_restrict_sums(theta)


def _most_draws(oracle: Oracle, theta: Parts, n: int) -> int:
    return 8 * n + 32 if _can_restrict(oracle, theta) else _MOST_DRAWS


class _DistinctDraws:
    """The different structures drawn so far: n places for each of B instances, filled in the order of the draws."""

    def __init__(self, oracle: Any, theta: Parts, n: int, generator: torch.Generator | None) -> None:
        self.oracle, self.theta, self.generator = oracle, theta, generator
        like = parts_to_vectors(theta)
        self.found = like.new_zeros(n, *like.shape)
        self.count = torch.zeros(len(like), dtype=torch.int64, device=like.device)
        # The number of structures of each instance, or n if there are more.
        self.total = torch.full_like(self.count, n)

    def unfinished(self) -> Tensor:
        return (self.count < self.total).nonzero()[:, 0]

    def valid(self) -> Tensor:
        return torch.arange(len(self.found), device=self.count.device)[:, None] < self.count

    def draw_with_replacement(self, most: int | None) -> None:
        """Fill places by at most ``most`` draws for each instance; without a limit if there are structures enough."""
        rows, batch, drawn = self.unfinished(), 2 * len(self.found), 0
        while len(rows) and (most is None or drawn < most):
            oracle: Samplable = self.oracle[rows]
            samples = oracle.sample(select_rows(self.theta, rows), batch, self.generator)
            draws = parts_to_vectors(map_parts(lambda t: t.flatten(0, 1), samples)).unflatten(0, (batch, len(rows)))
            for several in draws.split(_DRAWS_AT_ONCE):
                self._add(rows, several)
            if drawn == 0 and most is not None:
                self._count_structures(rows)
            drawn += batch
            rows, batch = self.unfinished(), batch if most is None else min(2 * batch, most)

    def _add(self, rows: Tensor, draws: Tensor) -> None:
        """Add those of the ``draws`` (m, R, D) of the instances ``rows`` that are new, in order."""
        # Most draws repeat structures that are known before, so that few draws are compared one by one.
        for i in self._is_new(rows, draws).any(1).nonzero()[:, 0].tolist():
            new = self._is_new(rows, draws[i : i + 1])[0]
            chosen = rows[new]
            self.found[self.count[chosen], chosen] = draws[i, new]
            self.count[chosen] += 1

    def _is_new(self, rows: Tensor, draws: Tensor) -> Tensor:
        """Return which of the ``draws`` (m, R, D) are new structures that an instance still needs, (m, R)."""
        is_new = (self.count[rows] < self.total[rows]).expand(draws.shape[:2])
        for place, found in enumerate(self.found):
            is_new = is_new & ((draws != found[rows]).any(2) | (place >= self.count[rows]))
        return is_new

    def _count_structures(self, rows: Tensor) -> None:
        """Find instances with fewer than n structures, by the log-partition function of scores 0."""
        rows = rows[self.count[rows] < len(self.found)]
        if len(rows) == 0:
            return
        allowed = map_parts(
            lambda t: torch.where(t.isneginf(), t, 0.0).double(), map_parts(lambda t: t[rows], self.theta)
        )
        number = self.oracle[rows].log_partition(allowed).exp().round().clamp(max=len(self.found))
        self.total[rows] = number.to(torch.int64)

    def finish(self, rows: Tensor) -> None:
        """Fill the other places of the instances ``rows`` from a partition of the structures that are left."""
        oracle: Any = self.oracle[rows]
        theta = map_parts(lambda t: t[rows].double(), self.theta)
        found, count = self.found[:, rows].double(), self.count[rows]
        n = len(found)
        places = torch.arange(n, device=count.device)

        def solve(of: Tensor, low: Tensor, high: Tensor, parent: Tensor | None) -> Solved:
            inside = (found[:, of] >= low).all(2) & (found[:, of] <= high).all(2) & (places[:, None] < count[of])
            first = torch.where(inside, places[:, None], n).amin(0)
            is_known = first < n
            values = found[first.clamp(max=n - 1), of]
            scores = torch.where(is_known, _KNOWN * (n - first).double(), -math.inf)
            left = (~is_known).nonzero()[:, 0]
            if len(left):
                values[left], scores[left] = draw(of[left], low[left], high[left], cast(Tensor, parent)[left])
            return Solved(values, scores)

        def draw(of: Tensor, low: Tensor, high: Tensor, parent: Tensor) -> tuple[Tensor, Tensor]:
            own, bounds = (
                map_parts(lambda t: t[of], theta),
                (vectors_to_parts(low, theta), vectors_to_parts(high, theta)),
            )
            drawn, log_z = oracle[of].sample_within(own, *bounds, self.generator)
            noise = Gumbel().sample(log_z.shape, dtype=log_z.dtype, device=log_z.device, generator=self.generator)
            # A Gumbel variable below the maximum of the larger set; a known structure puts no limit on it.
            limit = torch.where(parent >= _KNOWN, math.inf, parent)
            return parts_to_vectors(drawn), -torch.logaddexp(-limit, -(log_z + noise))

        bounds = oracle.part_bounds(theta)
        low, high = (parts_to_vectors(map_parts(lambda t: t.expand(len(rows), *t.shape[1:]), end)) for end in bounds)
        root = Solved(found[0], torch.full_like(found[0, :, 0], _KNOWN * n))
        nested = oracle.has_nested_structures
        ranked = ranked_search(solve, root, low, high, n, nested=nested)
        self.found[:, rows] = ranked.values.to(self.found.dtype)
        self.count[rows] = (~ranked.scores.isneginf()).sum(0)
        self.total[rows] = self.count[rows]
