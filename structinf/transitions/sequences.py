"""Decoding and sampling of sequences of actions, and their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..noise import Gumbel
from ..parts import Parts, map_parts
from ..validation import (
    check_choice,
    check_count,
    check_flag,
    check_generator,
    check_k,
    check_natural,
    check_nonnegative,
    check_positive,
)
from .search import Beam, GumbelKeys, LengthPenalty, gather_structures, search
from .states import State, concatenate, select
from .system import CheckedSystem, TransitionSystem

__all__ = [
    "SequenceSample",
    "Sequences",
    "decode_beam",
    "decode_greedy",
    "enumerate_sequences",
    "roll_out",
    "sample_ancestral",
    "sequence_log_prob",
    "stochastic_beam",
]


class Sequences(NamedTuple):
    """Sequences of actions, and the structures that they build.

    A first dimension k or n is absent in the result of :func:`structinf.decode_greedy`.

    Attributes
    ----------
    structures : (k, B, *event) Tensor, or tuple of them
        The structures; 0 for sequences that are not valid.
    actions : (k, B, T) int64 Tensor
        The actions; −1 beyond the end of a sequence.
    scores : (k, B) float64 Tensor
        The log-probability of each sequence; −inf for sequences that are not valid.
    valid : (k, B) bool Tensor
        False for a dead end, and for ranks beyond the number of sequences of an instance.
    """

    structures: Parts
    actions: Tensor
    scores: Tensor
    valid: Tensor


class SequenceSample(NamedTuple):
    """Sequences drawn without replacement, the first draw first.

    Attributes
    ----------
    structures : (k, B, *event) Tensor, or tuple of them
        The structures; 0 for sequences that are not valid.
    actions : (k, B, T) int64 Tensor
        The actions; −1 beyond the end of a sequence.
    scores : (k, B) float64 Tensor
        The log-probability of each sequence; −inf for sequences that are not valid.
    valid : (k, B) bool Tensor
        False for ranks beyond the number of sequences of positive probability.
    keys : (k, B) float64 Tensor
        The perturbed log-probabilities, sorted.
    threshold : (B,) float64 Tensor
        The perturbed log-probability of rank k + 1. A sequence is in the sample if its own is above the threshold;
        −inf if the sample holds all sequences.
    """

    structures: Parts
    actions: Tensor
    scores: Tensor
    valid: Tensor
    keys: Tensor
    threshold: Tensor

    @property
    def inclusion(self) -> Tensor:
        """The probability that a sequence is in the sample given the threshold κ, 1 − exp(−exp(score − κ)), (k, B).

        Σ p / inclusion · f over the sample is an unbiased estimate of E[f] (Kool et al. 2019, §4.2).
        """
        return torch.where(self.valid, -torch.expm1(-(self.scores - self.threshold).exp()), 0.0)


@public_call
@torch.no_grad()
def decode_greedy(system: TransitionSystem, inputs: Any) -> Sequences:
    """Return the sequence of the best action in each step; of equal scores, the first action.

    Parameters
    ----------
    system : TransitionSystem
        The system.
    inputs : any
        The inputs of the system's ``start``.

    Returns
    -------
    Sequences
        One sequence for each instance: structures (B, *event), actions (B, T), scores (B,), valid (B,).

    Examples
    --------
    >>> from structinf.transitions import BitsInOrder
    >>> theta = torch.tensor([[0.5, -1.0, 2.0]])
    >>> found = decode_greedy(BitsInOrder(), theta)
    >>> found.structures, found.scores
    (tensor([[1., 0., 1.]]), tensor([-0.9143], dtype=torch.float64))
    """
    found = decode_beam(system, inputs, 1)
    return Sequences(map_parts(lambda t: t[0], found.structures), *(t[0] for t in found[1:]))


@public_call
@torch.no_grad()
def decode_beam(
    system: TransitionSystem, inputs: Any, k: int, *, length_penalty: float = 0.0, normalize: bool = True
) -> Sequences:
    """Return k sequences found by beam search, best first.

    In each step the search keeps the k best of all unfinished and finished sequences. Of equal scores, a sequence
    from a better parent is first, then a smaller action. A beam that is as wide as the number of partial sequences
    is exact.

    Parameters
    ----------
    system : TransitionSystem
        The system.
    inputs : any
        The inputs of the system's ``start``.
    k : int
        The width of the beam, at least 1.
    length_penalty : float
        Sequences of n actions are compared by score / ((5 + n) / 6)^length_penalty (Wu et al. 2016, Google's Neural
        Machine Translation System, Equation 14). At 0, by their scores.
    normalize : bool
        Whether the score of a sequence is its log-probability. If False, it is the sum of the scores of its actions,
        as for a globally normalized or a margin-based model.

    Returns
    -------
    Sequences
        The sequences, sorted. ``valid`` is False for ranks beyond the number of sequences found.

    Raises
    ------
    PluginError
        If a method of the system returns a wrong shape or NaN, or a sequence is longer than ``system.max_steps``.

    Examples
    --------
    >>> from structinf.transitions import BitsInOrder
    >>> found = decode_beam(BitsInOrder(), torch.tensor([[0.5, -1.0]]), 3)
    >>> found.structures[:, 0].tolist()
    [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    >>> found.scores[:, 0].exp()
    tensor([0.4551, 0.2760, 0.1674], dtype=torch.float64)
    """
    check_k(k)
    check_nonnegative("length_penalty", length_penalty)
    if length_penalty == math.inf:
        raise InvalidInputError("length_penalty must be finite, got inf")
    check_flag("normalize", normalize)
    return _sequences(search(CheckedSystem(system, normalize), inputs, k, LengthPenalty(length_penalty)), k)


@public_call
@torch.no_grad()
def enumerate_sequences(
    system: TransitionSystem, inputs: Any, *, most: int = 10_000, on_dead_end: str = "drop"
) -> Sequences:
    """Return all sequences of positive probability, the most probable first.

    Parameters
    ----------
    system : TransitionSystem
        The system.
    inputs : any
        The inputs of the system's ``start``.
    most : int
        The largest number of partial or complete sequences of an instance.
    on_dead_end : "drop" or "raise"
        What to do with a sequence that runs into a state without an allowed action: leave it out, so that the
        probabilities of the others have a sum below 1, or raise InfeasibleError.

    Returns
    -------
    Sequences
        The sequences. Instances with fewer sequences than others are padded, with ``valid`` False.

    Raises
    ------
    UnsupportedError
        If an instance has more than ``most`` sequences.
    InfeasibleError
        If a sequence runs into a dead end, with ``on_dead_end="raise"``.

    Examples
    --------
    >>> from structinf.transitions import PlackettLuce
    >>> theta = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> found = enumerate_sequences(PlackettLuce(), theta)
    >>> len(found.scores), round(found.scores.exp().sum().item(), 6)
    (6, 1.0)
    """
    check_natural("most", most)
    check_choice("on_dead_end", on_dead_end, ("drop", "raise"))
    beam = search(CheckedSystem(system), inputs, None, LengthPenalty(), most, on_dead_end=on_dead_end)
    return _sequences(beam, beam.slots.keys.shape[1])


@public_call
@torch.no_grad()
def stochastic_beam(
    system: TransitionSystem,
    inputs: Any,
    k: int,
    *,
    generator: torch.Generator | None = None,
    on_dead_end: str = "drop",
) -> SequenceSample:
    """Return k different sequences, a sample without replacement in the order of the draws.

    The order has the probability Π_i p(a_i) / (1 − Σ_j<i p(a_j)). The search adds Gumbel noise to the log-probabilities
    of all sequences, and returns the k largest sums, without a visit of the other sequences.

    Parameters
    ----------
    system : TransitionSystem
        The system.
    inputs : any
        The inputs of the system's ``start``.
    k : int
        The number of sequences, at least 1.
    generator : torch.Generator, optional
        The only source of randomness. If None, samples come from torch's default generator.
    on_dead_end : "drop" or "raise"
        What to do with a sequence that runs into a state without an allowed action. "drop" leaves it out: the result is
        then no exact sample, and may have fewer than k sequences. "raise" raises InfeasibleError.

    Returns
    -------
    SequenceSample
        The sequences, and the threshold of the inclusion probabilities. The search keeps k + 1 sequences.

    Raises
    ------
    InfeasibleError
        If a sequence runs into a dead end, with ``on_dead_end="raise"``.

    References
    ----------
    Kool, van Hoof & Welling 2019, Stochastic Beams and Where to Find Them: The Gumbel-Top-k Trick for Sampling
    Sequences Without Replacement.

    Examples
    --------
    >>> from structinf.transitions import BitsInOrder
    >>> rng = torch.Generator().manual_seed(0)
    >>> theta = torch.tensor([[0.5, -1.0]])
    >>> found = stochastic_beam(BitsInOrder(), theta, 4, generator=rng)
    >>> found.structures[:, 0].unique(dim=0).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    check_k(k)
    check_generator(generator)
    check_choice("on_dead_end", on_dead_end, ("drop", "raise"))
    found = search(CheckedSystem(system), inputs, k + 1, GumbelKeys(generator), on_dead_end=on_dead_end)
    keys = _padded(torch.where(found.slots.finished >= 0, found.slots.keys, -torch.inf), k + 1, -torch.inf).T
    return SequenceSample(*_sequences(found, k), keys[:k], keys[k])


def _sequences(beam: Beam, k: int) -> Sequences:
    """Return the first k slots of ``beam``, padded to k."""
    finished = _padded(beam.slots.finished, k, -1).T
    valid = finished >= 0
    actions = _padded(beam.actions, k, -1).transpose(0, 1).masked_fill(~valid[..., None], -1)
    scores = _padded(beam.slots.totals, k, -torch.inf).T.masked_fill(~valid, -torch.inf)
    return Sequences(gather_structures(beam.structures, finished), _trimmed(actions), scores, valid)


def _padded(slots: Tensor, k: int, filler: float) -> Tensor:
    """Return the first k columns of ``slots`` (B, K, ...), with columns of ``filler`` if there are fewer."""
    missing = max(k - slots.shape[1], 0)
    return torch.cat([slots[:, :k], slots.new_full((len(slots), missing, *slots.shape[2:]), filler)], 1)


def _trimmed(actions: Tensor) -> Tensor:
    """Return ``actions`` (..., T) without steps after the end of all sequences."""
    used = (actions >= 0).flatten(0, -2).any(0).nonzero()
    return actions[..., : int(used.max()) + 1 if len(used) else 0]


@public_call
@torch.no_grad()
def sample_ancestral(
    system: TransitionSystem,
    inputs: Any,
    n: int = 1,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Sequences:
    """Return n independent samples of sequences for each instance.

    Parameters
    ----------
    system : TransitionSystem
        The system.
    inputs : any
        The inputs of the system's ``start``.
    n : int
        The number of samples of each instance.
    temperature : float
        The divisor of the scores of the actions, above 0.
    generator : torch.Generator, optional
        The only source of randomness. If None, samples come from torch's default generator.

    Returns
    -------
    Sequences
        The samples, with k = n. ``scores`` are log-probabilities at this temperature. A sample that runs into a dead
        end is not valid.

    Examples
    --------
    >>> from structinf.transitions import BitsInOrder
    >>> rng = torch.Generator().manual_seed(0)
    >>> theta = torch.tensor([[5.0, -5.0]])
    >>> sample_ancestral(BitsInOrder(), theta, 2, generator=rng).structures
    tensor([[[1., 0.]],
    <BLANKLINE>
            [[1., 0.]]])
    """
    check_count(n)
    check_positive("temperature", temperature)
    check_generator(generator)

    def choose(state: Any, scores: Tensor) -> Tensor:
        noise = Gumbel().sample(scores.shape, dtype=scores.dtype, device=scores.device, generator=generator)
        return (scores + noise).argmax(1)

    return roll_out(CheckedSystem(system, temperature=temperature), inputs, n, choose)


@torch.no_grad()
def roll_out(system: CheckedSystem, inputs: Any, n: int, choose: Callable[[Any, Tensor], Tensor]) -> Sequences:
    """Return n sequences of each instance, of the actions that ``choose(state, scores)`` returns, (N,).

    ``choose`` gets the unfinished sequences, without dead ends.
    """
    state, batch = system.start(inputs)
    if n != 1:
        state = select(state, torch.arange(batch, device=system.done(state).device).repeat(n))
    done = system.done(state)
    total = torch.zeros(n * batch, dtype=torch.float64, device=done.device)
    finished_index = torch.full((n * batch,), -1, device=done.device)
    running, count = torch.arange(n * batch, device=done.device), 0
    finished: list[State] = []
    history: list[Tensor] = []
    while True:
        ended = done.nonzero()[:, 0]
        if len(ended) or not finished:
            finished.append(select(state, ended))
            finished_index[running[ended]] = torch.arange(count, count + len(ended), device=done.device)
            count += len(ended)
            state, running = select(state, (~done).nonzero()[:, 0]), running[~done]
        if not len(running):
            break
        system.check_number_of_steps(len(history) + 1)
        scores = system.action_scores(state)
        alive = scores.amax(1) > -torch.inf if scores.shape[1] else done.new_zeros(len(running))
        if not bool(alive.all()):
            state, running, scores = select(state, alive.nonzero()[:, 0]), running[alive], scores[alive]
        if not len(running):
            break
        action = choose(state, scores)
        total[running] += scores.gather(1, action[:, None])[:, 0]
        history.append(torch.full_like(finished_index, -1).index_copy(0, running, action))
        state = system.step(state, action)
        done = system.done(state)
    valid = finished_index >= 0
    actions = torch.stack(history, 1) if history else finished_index.new_zeros(n * batch, 0)
    actions = actions.masked_fill(~valid[:, None], -1).view(n, batch, len(history))
    structures = gather_structures(system.structure(concatenate(finished)), finished_index.view(n, batch))
    scores = total.masked_fill(~valid, -math.inf).view(n, batch)
    return Sequences(structures, _trimmed(actions), scores, valid.view(n, batch))


@public_call
def sequence_log_prob(
    system: TransitionSystem, inputs: Any, actions: Tensor, *, normalize: bool = True, temperature: float = 1.0
) -> Tensor:
    """Return the log-probability of sequences of actions, differentiably in all that the scores depend on.

    Parameters
    ----------
    system : TransitionSystem
        The system.
    inputs : any
        The inputs of the system's ``start``.
    actions : (..., B, T) int64 Tensor
        The actions, −1 beyond the end of a sequence. A sequence may be incomplete: then the result is the
        log-probability of the prefix.
    normalize : bool
        Whether to apply the log-softmax to the scores of each step. If False, the result is the sum of the scores.
    temperature : float
        The divisor of the scores, above 0.

    Returns
    -------
    (..., B) Tensor
        The log-probabilities, in the dtype of the system's scores; −inf for a sequence with an action that is not
        allowed.

    Examples
    --------
    >>> from structinf.transitions import BitsInOrder
    >>> logits = torch.tensor([[0.5, -1.0]], requires_grad=True)
    >>> actions = torch.tensor([[1, 0]])
    >>> log_p = sequence_log_prob(BitsInOrder(), logits, actions)
    >>> log_p.backward()
    >>> log_p.detach(), logits.grad
    (tensor([-0.7873]), tensor([[ 0.3775, -0.2689]]))
    """
    check_flag("normalize", normalize)
    check_positive("temperature", temperature)
    checked = CheckedSystem(system, normalize, temperature)
    state, batch = checked.start(inputs)
    if not isinstance(actions, Tensor) or actions.dtype != torch.int64:
        raise TypeError("actions must be an int64 tensor (..., B, T)")
    if actions.ndim < 2 or actions.shape[-2] != batch:
        raise InvalidInputError(f"actions must have shape (..., {batch}, T), got {tuple(actions.shape)}")
    flat = actions.reshape(math.prod(actions.shape[:-1]), actions.shape[-1])
    if bool(((flat[:, :-1] < 0) & (flat[:, 1:] >= 0)).any()):
        raise InvalidInputError("actions: a sequence has an action after −1; use −1 only after the last action")
    if len(flat) != batch:
        state = select(state, torch.arange(batch, device=flat.device).repeat(len(flat) // max(batch, 1)))
    total, dtype = torch.zeros(len(flat), dtype=torch.float64, device=flat.device), torch.get_default_dtype()
    running = torch.arange(len(flat), device=flat.device)
    for step, column in enumerate(flat.unbind(1)):
        action = column[running]
        if not bool((action >= 0).all()):
            going = (action >= 0).nonzero()[:, 0]
            state, running, action = select(state, going), running[going], action[going]
        if not len(running):
            break
        if bool(checked.done(state).any()):
            raise InvalidInputError(
                f"actions: a sequence has an action in step {step}, after its end; use −1 after the end"
            )
        scores = checked.action_scores(state)
        dtype = scores.dtype
        if bool((action >= scores.shape[1]).any()):
            raise InvalidInputError(
                f"actions must hold actions below A = {scores.shape[1]}, or −1 after the end, got {int(action.max())} "
                f"in step {step}"
            )
        chosen = scores.gather(1, action[:, None])[:, 0]
        total = total.index_add(0, running, chosen.double())
        allowed = (chosen.detach() > -torch.inf).nonzero()[:, 0]
        if len(allowed) < len(running):
            state, running, action = select(state, allowed), running[allowed], action[allowed]
        if step + 1 < flat.shape[1] and len(running):
            state = checked.step(state, action)
    return total.to(dtype).view(actions.shape[:-1])
