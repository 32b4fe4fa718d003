"""Oracles whose argmax can be restricted, and the k best structures by a partition of the set of structures.

The search keeps a list of disjoint sets of structures, each given by bounds on the parts, with the best structure of
each set. The best of the list is the next structure of the result. Its set, without this structure, is split into sets
with tighter bounds (Murty 1968; Lawler 1972). Sets of all instances of a batch are solved in one call.

References
----------
K. G. Murty, An algorithm for ranking all the assignments in order of increasing cost (Operations Research 16, 1968).
E. L. Lawler, A procedure for computing the K best solutions to discrete optimization problems and its application to
the shortest path problem (Management Science 18, 1972).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import InfeasibleError
from .oracle import KBest, Oracle
from .parts import (
    AnyParts,
    Parts,
    as_tuple,
    batch_size,
    inner_product,
    map_parts,
    parts_to_vectors,
    vectors_to_parts,
)
from .validation.options import check_k

__all__ = [
    "Ranked",
    "Restrictable",
    "Solved",
    "argmax_of_feasible",
    "in_order",
    "ranked_search",
]

_MOST_ENTRIES = 2**24
"""The largest number of entries of the bounds of all sets that are solved in one call."""


class Restrictable(KBest):
    """An oracle whose argmax can be restricted to structures with given bounds on the parts.

    Its parts are integers. The k best structures then need no other algorithm: :meth:`topk` finds them by restricted
    calls of the argmax. For parts of 0 and 1, a lower bound of 1 forces a part, and an upper bound of 0 forbids a part.
    """

    @property
    def has_nested_structures(self) -> bool:
        """Whether a structure can be at least as large as another structure in every part, as subsets can.

        False, if it is true, saves calls: all matchings of all nodes have the same number of edges, so that none
        contains another. True is always allowed.
        """
        return True

    def part_bounds(self, theta: AnyParts) -> tuple[Parts, Parts]:
        """Return a lower and an upper bound of each part of all structures, in the form of θ (B | 1, *event).

        The default is 0 and 1, with 0 and 0 in the padding.
        """
        low = map_parts(torch.zeros_like, theta)
        high, valid = map_parts(torch.ones_like, theta), self.valid_parts(theta)
        return low, high if valid is None else map_parts(lambda t, mask: t * mask.to(t.dtype), high, valid)

    @abc.abstractmethod
    def restricted_argmax(self, theta: AnyParts, low: AnyParts, high: AnyParts) -> tuple[Parts, Tensor]:
        """Return a structure of highest score among the structures with low ≤ y ≤ high.

        Parameters
        ----------
        theta : (B | 1, *event) Tensor, or tuple of them
            Scores of the parts.
        low, high : (B, *event) Tensor, or tuple of them
            The bounds of the parts, in the form and the dtype of θ. Where they equal the bounds of
            :meth:`part_bounds`, all values are allowed.

        Returns
        -------
        structures : (B, *event) Tensor, or tuple of them
            The structures, under the laws of :meth:`Oracle.argmax`. Their values do not matter if none exists.
        found : (B,) bool Tensor
            Whether an instance has a structure of finite score within the bounds. There is no InfeasibleError.

        Notes
        -----
        Most oracles forbid parts by scores of −inf, and force a part by −inf for all parts that exclude it: another
        arc into the same word, another pair of the same row. Large bonuses are no restriction, since they round the
        other scores.
        """

    def restricted_scores(self, theta: AnyParts, low: AnyParts, high: AnyParts) -> tuple[Parts, Tensor] | None:
        """Return scores for sums over the structures with low ≤ y ≤ high, or None if sums cannot be restricted.

        Oracles with a log-partition function override this method. Draws without replacement are then exact for every
        distribution. The default returns None.

        Parameters
        ----------
        theta, low, high : (B, *event) Tensor, or tuple of them
            Scores and bounds, as for :meth:`restricted_argmax`, in float64.

        Returns
        -------
        scores : (B, *event) Tensor, or tuple of them
            Scores such that, up to rounding, the structures within the bounds have their former proportions
            exp⟨θ, y⟩, and other structures have no weight.
        offset : (B,) Tensor
            The number by which log Z of these scores is too low.
        """
        return None

    def can_restrict_sums(self, theta: AnyParts) -> bool:
        """Return whether :meth:`sample_within` works, by default with :meth:`restricted_scores` only."""
        zeros = map_parts(lambda t: torch.zeros_like(t[:0]), theta)
        return self[:0].restricted_scores(zeros, zeros, zeros) is not None

    def sample_within(
        self, theta: AnyParts, low: AnyParts, high: AnyParts, generator: torch.Generator | None = None
    ) -> tuple[Parts, Tensor]:
        """Return a sample of p(y) ∝ exp⟨θ, y⟩ with low ≤ y ≤ high for each instance, and the log of the sum of weights.

        Draws without replacement use it. The default samples for :meth:`restricted_scores`.

        Parameters
        ----------
        theta, low, high : (B, *event) Tensor, or tuple of them
            Scores and bounds, as for :meth:`restricted_argmax`, in float64.
        generator : torch.Generator, optional
            The source of randomness.

        Returns
        -------
        structures : (B, *event) Tensor, or tuple of them
            The samples. Their values do not matter if no structure exists.
        log_weights : (B,) Tensor
            log Σ exp⟨θ, y⟩ over the structures within the bounds; −inf if none exists.
        """
        vectors = parts_to_vectors(theta)
        values, weights = torch.zeros_like(vectors), vectors.new_full((len(vectors),), -math.inf)
        _, found = self.restricted_argmax(theta, low, high)
        rows = found.nonzero()[:, 0]
        if len(rows):
            solver: Any = self[rows]
            own = [map_parts(lambda t: t[rows], parts) for parts in (theta, low, high)]
            restricted, offset = solver.restricted_scores(*own)
            weights[rows] = solver.log_partition(restricted) + offset
            drawn = solver.sample(restricted, 1, generator)
            values[rows] = parts_to_vectors(map_parts(lambda t: t[0], drawn))
        return vectors_to_parts(values, theta), weights

    def topk(self, theta: AnyParts, k: int) -> tuple[Parts, Tensor, Tensor]:
        """Return the k best structures; of equal scores, the structure found first comes first, in every call alike."""
        check_k(k)
        size = batch_size(theta)
        theta = map_parts(lambda t: t.detach().expand(size, *t.shape[1:]), theta)
        theta64 = map_parts(Tensor.double, theta)

        def solve(rows: Tensor, low: Tensor, high: Tensor, _: Tensor | None) -> Solved:
            own = map_parts(lambda t: t[rows], theta)
            y, found = self[rows].restricted_argmax(own, vectors_to_parts(low, theta), vectors_to_parts(high, theta))
            scores = inner_product(map_parts(lambda t: t[rows], theta64), map_parts(Tensor.double, y))
            return Solved(parts_to_vectors(y), torch.where(found & ~scores.isnan(), scores, -math.inf))

        start = self.argmax(theta)
        root = Solved(parts_to_vectors(start), inner_product(theta64, map_parts(Tensor.double, start)))
        low, high = (
            parts_to_vectors(map_parts(lambda t: t.expand(size, *t.shape[1:]), end)) for end in self.part_bounds(theta)
        )
        found = ranked_search(solve, root, low, high, k, nested=self.has_nested_structures)
        structures = vectors_to_parts(found.values, theta)
        return structures, found.scores.to(as_tuple(theta)[0].dtype), ~found.scores.isneginf()


def argmax_of_feasible(oracle: Oracle, theta: Parts) -> tuple[Parts, Tensor]:
    """Return the argmax, (B, *event), and which instances have a structure, (B,) bool; zeros for other instances.

    Parameters
    ----------
    oracle : Oracle
        The oracle, whose ``argmax`` raises InfeasibleError with the indices of instances without a structure.
    theta : (B, *event) Tensor, or tuple of them
        Scores of the parts.
    """
    first = as_tuple(theta)[0]
    rows = torch.arange(len(first), device=first.device)
    while len(rows):
        everything = len(rows) == len(first)
        try:
            y = (oracle if everything else oracle[rows]).argmax(
                theta if everything else map_parts(lambda t, rows=rows: t[rows], theta)
            )
        except InfeasibleError as error:
            kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            kept[list(error.batch_indices)] = False
            rows = rows[kept]
            continue
        if everything:
            return y, torch.ones(len(first), dtype=torch.bool, device=first.device)
        found = torch.zeros(len(first), dtype=torch.bool, device=first.device)
        found[rows] = True
        return map_parts(lambda t, z, rows=rows: torch.zeros_like(t).index_copy_(0, rows, z), theta, y), found
    return map_parts(torch.zeros_like, theta), torch.zeros(len(first), dtype=torch.bool, device=first.device)


# ----------------------------------------------------------------------------- the search


class Solved(NamedTuple):
    """The best structure of each of M sets.

    Attributes
    ----------
    values : (M, D) Tensor
        The structures, with D parts.
    scores : (M,) float64 Tensor
        Their scores; −inf for an empty set.
    """

    values: Tensor
    scores: Tensor


class Ranked(NamedTuple):
    """The best structures of each instance, best first.

    Attributes
    ----------
    values : (k, B, D) Tensor
        The structures; 0 beyond the last structure.
    scores : (k, B) float64 Tensor
        The scores; −inf beyond the last structure.
    """

    values: Tensor
    scores: Tensor


Solve = Callable[[Tensor, Tensor, Tensor, Tensor | None], Solved]
"""Returns the best structures, given the instance (M,) of each set, the bounds low and high (M, D), and the score (M,)
of the best structure of the set from which each set was split."""


def ranked_search(
    solve: Solve,
    root: Solved,
    low: Tensor,
    high: Tensor,
    k: int,
    *,
    nested: bool,
    order: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Ranked:
    """Return the k best structures of each instance.

    Parameters
    ----------
    solve : callable
        Solves sets of structures given by bounds.
    root : Solved
        The best structure of each of B instances.
    low, high : (B, D) Tensor
        The bounds of the parts of all structures.
    k : int
        The number of structures.
    nested : bool
        Whether a structure may be at least as large as another in every part.
    order : callable, optional
        Maps instances (M,) and structures (M, D) to the places (M, D) of the parts in the order in which sets are
        split. By default, parts are in the order of their indices.
    """
    size, parts = root.values.shape
    device = root.values.device
    values, scores = root.values.new_zeros(k, size, parts), root.scores.new_full((k, size), -math.inf)
    # For each instance, k slots for sets that are not split yet. A free slot has the score −inf. The serial number of a
    # set is its age, which decides between equal scores.
    slots = _Slots(root, low, high, k)
    instances = torch.arange(size, device=device)
    serial = 1
    for rank in range(k):
        best = slots.best()
        score = slots.scores[instances, best]
        rows = (~score.isneginf()).nonzero()[:, 0]
        if len(rows) == 0:
            break
        chosen = best[rows]
        scores[rank] = score
        values[rank, rows] = slots.values[rows, chosen]
        if rank == k - 1:
            break
        popped = (slots.values[rows, chosen], slots.low[rows, chosen], slots.high[rows, chosen])
        slots.scores[rows, chosen] = -math.inf
        places = None if order is None else order(rows, popped[0])
        for own, lower, upper in _split(*popped, places, nested):
            solved = solve(rows[own], lower, upper, score[rows[own]])
            slots.keep_best(rows[own], solved, lower, upper, serial, k - 1 - rank)
            serial += len(own)
    return Ranked(*in_order(values, scores))


def in_order(structures: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return structures (k, B, ...) and scores (k, B) sorted by score, as rounding can exchange nearly equal scores."""
    if bool((scores[1:] <= scores[:-1]).all()):
        return structures, scores
    scores, place = scores.sort(dim=0, descending=True, stable=True)
    return structures.take_along_dim(place.view(*place.shape, *[1] * (structures.ndim - 2)), 0), scores


def _split(
    values: Tensor, low: Tensor, high: Tensor, places: Tensor | None, nested: bool
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield disjoint sets of all structures within the bounds except ``values``: their rows, and their bounds.

    In the order of the parts p, a set has y_p < values_p and y_q ≥ values_q for the parts q before p. If a structure
    may be at least as large in all parts, other sets have y ≥ values, y_p > values_p, and y_q = values_q for the parts
    q before p.
    """
    place = torch.arange(values.shape[1], device=values.device)
    families = [(values > low, False)] + ([(values < high, True)] if nested else [])
    for splits, larger in families:
        rows, parts = splits.nonzero().unbind(1)
        if places is not None:
            order = places[rows, parts].sort(stable=True).indices
            order = order[rows[order].sort(stable=True).indices]
            rows, parts = rows[order], parts[order]
        step = max(_MOST_ENTRIES // max(values.shape[1], 1), 1)
        for own, part in zip(rows.split(step), parts.split(step), strict=True):
            mine = values[own]
            of_parts = place.expand_as(mine) if places is None else places[own]
            index = part[:, None]
            before = of_parts < of_parts.gather(1, index)
            split = mine.gather(1, index)
            if larger:
                yield own, mine.scatter(1, index, split + 1), torch.where(before, mine, high[own])
            else:
                lower = torch.where(before, mine, low[own])
                yield own, lower, high[own].scatter(1, index, split - 1)


class _Slots:
    """At most k sets for each of B instances: their best structures, scores, bounds and serial numbers."""

    def __init__(self, root: Solved, low: Tensor, high: Tensor, k: int) -> None:
        size, parts = root.values.shape
        self.scores = root.scores.new_full((size, k), -math.inf)
        self.serial = torch.zeros(size, k, dtype=torch.int64, device=root.values.device)
        self.values, self.low, self.high = (root.values.new_zeros(size, k, parts) for _ in range(3))
        self.scores[:, 0], self.values[:, 0], self.low[:, 0], self.high[:, 0] = root.scores, root.values, low, high

    def best(self) -> Tensor:
        """Return the slot of the best set of each instance, the oldest of equals, (B,)."""
        is_best = self.scores == self.scores.amax(1, keepdim=True)
        return torch.where(is_best, self.serial, torch.iinfo(torch.int64).max).argmin(1)

    def keep_best(self, rows: Tensor, solved: Solved, low: Tensor, high: Tensor, serial: int, most: int) -> None:
        """Add sets of the instances ``rows`` (M,), in ascending order; keep the ``most`` best sets of each instance."""
        size, k = self.scores.shape
        device = rows.device
        counts = torch.bincount(rows, minlength=size)
        number = torch.arange(len(rows), device=device) - (counts.cumsum(0) - counts)[rows]
        width = k + (int(counts.max()) if len(rows) else 0)
        scores, age = self.scores.new_full((size, width), -math.inf), self.serial.new_zeros(size, width)
        scores[:, :k], age[:, :k] = self.scores, self.serial
        scores[rows, k + number] = solved.scores
        age[rows, k + number] = serial + torch.arange(len(rows), device=device)
        by_age = age.sort(dim=1, stable=True).indices
        order = by_age.gather(1, scores.gather(1, by_age).sort(dim=1, descending=True, stable=True).indices)
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order[:, :most], True) & ~scores.isneginf()
        self.scores = torch.where(kept[:, :k], self.scores, -math.inf)
        new = kept[rows, k + number].nonzero()[:, 0]
        if len(new) == 0:
            return
        free = kept[:, :k].to(torch.int8).sort(dim=1, stable=True).indices
        owners = rows[new]
        earlier = torch.bincount(owners, minlength=size)
        slot = free[owners, torch.arange(len(new), device=device) - (earlier.cumsum(0) - earlier)[owners]]
        self.scores[owners, slot] = solved.scores[new]
        self.serial[owners, slot] = serial + new
        for kind, source in ((self.values, solved.values), (self.low, low), (self.high, high)):
            kind[owners, slot] = source[new]


# ----------------------------------------------------------------------------- flat structures
