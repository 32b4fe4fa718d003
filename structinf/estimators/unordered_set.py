"""unordered_set: samples without replacement, weighted as a set, whatever the order of the draws."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..noise import Gumbel
from ..oracle import Enumerable, GibbsOracle, Oracle, Samplable
from ..parts import Parts, as_tuple, batch_size, inner_product, map_parts
from ..smoothing import differentiable_log_partition
from ..solvers.distinct_samples import sample_without_replacement
from ..transitions import TransitionSystem, sequence_log_prob, stochastic_beam
from ..transitions.search import best_columns
from ..validation import check_choice, check_feasible, check_natural
from .base import Estimator
from .enumeration import empty_structures, enumerate_and_score, group_by_instance_data
from .weighted_structures import FunctionValues, WeightedStructures

__all__ = ["UnorderedSet", "first_draws_log_prob"]

_MOST = 12
"""The largest number of draws: the probability of a set sums over its subsets."""

_MOST_ENTRIES = 2**20
"""The largest number of entries of a table of subsets, 8 MB."""

_MOST_LISTED = 2**18
"""The largest number of listed structures, of all instances in sum, if the oracle can also draw structures."""


@dataclass(frozen=True)
class _UnorderedStructures(WeightedStructures):
    """Weighted structures of sets of k draws without replacement.

    Attributes
    ----------
    slots : (N,) int64 Tensor
        The place of each structure in its set.
    baselines : (B, k, k) Tensor
        Row i holds the weights of f at the structures of the set, whose sum is the baseline of structure i.
    """

    slots: Tensor
    baselines: Tensor

    @classmethod
    def joined(cls, several: Sequence[_UnorderedStructures]) -> _UnorderedStructures:
        """Join sets of different instances, sorted by instance."""
        every = WeightedStructures.concatenate(
            [WeightedStructures(t.structures, t.instance, t.weights, t.control, t.batch) for t in several]
        )
        order = every.instance.argsort(stable=True)
        return cls(
            map_parts(lambda t: t[order], every.structures),
            every.instance[order],
            every.weights[order],
            every.control[order],
            every.batch,
            torch.cat([t.slots for t in several])[order],
            torch.stack([t.baselines for t in several]).sum(0),
        )


class UnorderedSet(Estimator):
    """E[f(Y)] under p(y) ∝ exp⟨θ, y⟩, from k different structures S drawn without replacement.

    The value is Σ_{y ∈ S} p(y) R(S, y) f(y), where R(S, y) is the probability of S given that y is the first draw,
    divided by the probability of S in any order. The gradient is Σ R(S, y) ∇p(y) (f(y) − b(S, y)), with a baseline
    b(S, y) from the same set. Value and gradient are unbiased for every f. Without a baseline, their variance is at
    most the variance of the score function estimator with one sample. If at most k structures exist, both are exact.

    The oracle must list its structures (:class:`structinf.Enumerable`), or draw samples and have a log-partition
    function. If all instances have more than 262,144 structures in sum, structures come from :func:`structinf.sample`
    without replacement. An oracle without samples lists up to a million structures, which takes about 50 bytes for
    each structure of each instance. For a transition system, the sequences come from :func:`structinf.stochastic_beam`.

    Parameters
    ----------
    k : int
        The number of draws, from 1 to 12. The time is of order k² 2^k for each instance. Sets are weighed in
        portions of the batch, with at most 8 MB for each table of subsets.
    baseline : "set" or "none"
        "set" is the same estimator of E[f] without y, and needs k of at least 2. "none" is 0.

    References
    ----------
    Kool, van Hoof & Welling 2020, Estimating Gradients for Discrete Random Variables by Sampling without Replacement,
    Equations 9, 10 and 20.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    >>> cost = torch.tensor([1.0, 2.0, 0.0, 4.0])
    >>> si.expect(lambda y: y @ cost, theta, "categorical", UnorderedSet(k=4))
    tensor([1.3000])
    """

    requires = (Enumerable,)
    search_terms = ("sampling_without_replacement", "stochastic_beam_search")

    def __init__(self, *, k: int = 4, baseline: str = "set") -> None:
        super().__init__()
        check_natural("k", k)
        if k > _MOST:
            raise InvalidInputError(f"k must be at most {_MOST}, got {k}: the time grows with 2^k")
        check_choice("baseline", baseline, ("set", "none"))
        if baseline == "set" and k < 2:
            raise InvalidInputError('baseline="set" needs k of at least 2, got 1; use baseline="none"')
        self.k, self.baseline = k, baseline

    def weighted_structures(
        self, oracle: Oracle, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        size, first = batch_size(theta), as_tuple(theta)[0]
        can_draw = isinstance(oracle, GibbsOracle) and isinstance(oracle, Samplable)
        if can_draw and (
            not isinstance(oracle, Enumerable) or _number_of_structures(cast(Any, oracle), theta) > _MOST_LISTED
        ):
            return self._drawn_structures(oracle, theta, generator)
        groups = group_by_instance_data(oracle, size, first.device)
        try:
            listed = [(rows, *enumerate_and_score(oracle, theta, rows)) for rows in groups]
        except InvalidInputError:  # too many structures to list
            if not can_draw:
                raise
            return self._drawn_structures(oracle, theta, generator)
        feasible = torch.ones(size, dtype=torch.bool, device=first.device)
        for rows, _, scores in listed:
            feasible[rows] = (scores.detach() > -torch.inf).any(1)
        check_feasible(feasible, f"structure of {oracle.label()}")
        several = []
        for rows, every, scores in listed:
            log_p = scores.log_softmax(1)
            noise = Gumbel().sample(log_p.shape, dtype=log_p.dtype, device=log_p.device, generator=generator)
            chosen = best_columns(log_p.detach() + noise, self.k)
            structures = map_parts(lambda y, t, i=chosen: y.to(t.dtype)[i], every, theta)
            several.append(self._weighted(rows, structures, log_p.gather(1, chosen), size, first.dtype))
        if not several:
            return empty_structures(theta, size)
        return _UnorderedStructures.joined(several)

    def _drawn_structures(self, oracle: Oracle, theta: Parts, generator: torch.Generator | None) -> WeightedStructures:
        """Return structures drawn without replacement, instead of chosen from a list."""
        fixed = map_parts(Tensor.detach, theta)
        with torch.no_grad():
            structures, valid = sample_without_replacement(oracle, fixed, self.k, generator)
        theta64, size = map_parts(Tensor.double, theta), batch_size(theta)
        drawn = [inner_product(theta64, map_parts(lambda y, i=i: y[i].double(), structures)) for i in range(self.k)]
        log_p = torch.stack(drawn, 1) - differentiable_log_partition(cast(GibbsOracle, oracle), theta64)[:, None]
        log_p = torch.where(valid.T, log_p, -torch.inf)
        rows = torch.arange(size, device=log_p.device)
        of_instances = map_parts(lambda y: y.transpose(0, 1), structures)
        return self._weighted(rows, of_instances, log_p, size, as_tuple(theta)[0].dtype)

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        if isinstance(oracle, GibbsOracle) and isinstance(oracle, Samplable):
            return None
        return super().unsupported_reason(oracle)

    def weighted_sequences(
        self, system: TransitionSystem, inputs: Any, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        found = stochastic_beam(system, inputs, self.k, generator=generator, on_dead_end="raise")
        log_p = sequence_log_prob(system, inputs, found.actions).masked_fill(~found.valid, -torch.inf)
        structures = map_parts(lambda y: y.transpose(0, 1), found.structures)
        rows = torch.arange(log_p.shape[1], device=log_p.device)
        return self._weighted(rows, structures, log_p.T.double(), len(rows), log_p.dtype)

    def control_variate(self, found: FunctionValues) -> Tensor | None:
        terms = found.weighted_structures
        if self.baseline == "none" or not isinstance(terms, _UnorderedStructures):
            return None
        table = terms.baselines.new_zeros(terms.batch, self.k)
        table = table.index_put((terms.instance, terms.slots), found.values.to(table.dtype))
        return (terms.baselines @ table[..., None])[terms.instance, terms.slots, 0].to(found.values.dtype)

    def _weighted(
        self, rows: Tensor, structures: Parts, log_p: Tensor, size: int, dtype: torch.dtype
    ) -> _UnorderedStructures:
        """Weigh sets (R, k, *event) of structures with log-probabilities (R, k), of the instances ``rows`` (R,)."""
        ratios, baselines = _set_weights(log_p.detach())
        missing = self.k - log_p.shape[1]
        baselines = torch.nn.functional.pad(baselines, (0, missing, 0, missing))
        row, slot = (log_p.detach() > -torch.inf).nonzero(as_tuple=True)
        weights = (log_p.exp() * ratios)[row, slot].to(dtype)
        table = baselines.new_zeros(size, self.k, self.k).index_copy(0, rows, baselines)
        return _UnorderedStructures(
            map_parts(lambda y: y[row, slot], structures),
            rows[row],
            weights,
            torch.zeros_like(weights),
            size,
            slot,
            table,
        )

    def extra_repr(self) -> str:
        return f"k={self.k}, baseline={self.baseline!r}"


def _number_of_structures(oracle: GibbsOracle, theta: Parts) -> float:
    """Return the number of structures of all instances in sum, from scores of 0; the number of choices for one of n."""
    zeros = map_parts(lambda t: torch.zeros_like(t, dtype=torch.float64), theta)
    if oracle.known_set == "one_of_n" or not batch_size(theta):
        return 0.0
    return oracle.log_partition(zeros).exp().sum().item() * (batch_size(theta) / len(as_tuple(theta)[0]))


@torch.no_grad()
def _set_weights(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return R(S, y), (R, k), and the weights of f in the baselines, (R, k, k), for sets (R, k) of float64 log_p.

    A set with a structure of probability 0 holds all structures: its sums are exact.
    """
    k = log_p.shape[1]
    rows = max(_MOST_ENTRIES // (max(k * (k - 1), 1) * 2 ** max(k - 2, 0)), 1)
    found = [_weights_of_rows(part) for part in log_p.split(rows)]
    ratios, baselines = zip(*found, strict=True)
    return torch.cat(ratios), torch.cat(baselines)


def _weights_of_rows(log_p: Tensor) -> tuple[Tensor, Tensor]:
    k = log_p.shape[1]
    p = log_p.exp()
    others = torch.tensor([[j for j in range(k) if j != i] for i in range(k)], dtype=torch.int64, device=p.device)
    others = others.view(k, max(k - 1, 0))
    one = torch.ones_like(p)
    whole = first_draws_log_prob(log_p, one[:, 0])
    without = first_draws_log_prob(log_p[:, others], one - p)
    ratios = (without - whole[:, None]).exp()
    baselines = p[:, None].expand(-1, k, -1)
    if k > 1:
        # For y and another structure: the probability of the rest of the set among the structures except both.
        pairs = torch.tensor(
            [[[m for m in range(k) if m not in (i, j)] for j in range(k) if j != i] for i in range(k)],
            dtype=torch.int64,
            device=p.device,
        ).view(k, k - 1, max(k - 2, 0))
        without_both = first_draws_log_prob(log_p[:, pairs], 1 - p[:, :, None] - p[:, others])
        given = p[:, others] * (without_both - without[..., None]).exp()
        baselines = torch.diag_embed(p).scatter(2, others.expand(len(p), -1, -1), given)
    is_all = (p == 0).any(1)
    return torch.where(is_all[:, None], 1.0, ratios), torch.where(is_all[:, None, None], p[:, None], baselines)


def first_draws_log_prob(log_p: Tensor, mass: Tensor) -> Tensor:
    """Return the log-probability that the first m draws without replacement are these m elements, in any order, (...).

    Parameters
    ----------
    log_p : (..., m) float64 Tensor
        Logarithms of the weights of the elements.
    mass : (...) float64 Tensor
        The sum of the weights of all elements of the population.
    """
    m = log_p.shape[-1]
    layers, members = _subsets(m)
    p = log_p.exp()
    inside = members.to(p)
    # The weight that is left after the draws of a subset is at least the weight of the other elements of the set.
    left = torch.maximum(mass[..., None] - p @ inside, p @ (1 - inside)).log()
    found = torch.full_like(left, -torch.inf)
    found[..., 0] = 0
    for subsets, smaller, last in layers:
        steps = found[..., smaller.to(p.device)] + log_p[..., last.to(p.device)] - left[..., smaller.to(p.device)]
        found[..., subsets.to(p.device)] = steps.logsumexp(-1)
    return found[..., -1]


@functools.cache
def _subsets(m: int) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]:
    """Return the subsets of m elements by size, and which elements (m, 2^m) each subset has.

    For each size n from 1: the numbers of the subsets (S,), and for each of their elements the number of the subset
    without it, and the element, (S, n).
    """
    numbers = torch.arange(2**m, device="cpu")
    members = (numbers >> torch.arange(m, device="cpu")[:, None]) & 1
    sizes = members.sum(0)
    layers = []
    for n in range(1, m + 1):
        subsets = (sizes == n).nonzero()[:, 0]
        last = members[:, subsets].T.nonzero()[:, 1].view(-1, n)
        layers.append((subsets, subsets[:, None] - (1 << last), last))
    return layers, members
