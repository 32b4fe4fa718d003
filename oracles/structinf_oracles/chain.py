"""Linear chains: sequences of tags, scored by the tags and by the transitions between neighbours."""

from __future__ import annotations

import functools
import itertools
import operator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from structinf.dp import Hypergraph, HypergraphBuilder
from structinf.errors import InvalidInputError
from structinf.kernels.arrays import all_parts
from structinf.kernels.gpu import uses_triton
from structinf.parts import (
    Parts,
    as_tuple,
    map_parts,
)
from structinf.validation import (
    check_enumerable,
    check_lengths,
    check_number,
    skips_checks,
)

from .common.chain_loops import ChainLoops
from .common.chain_potentials import size_of, tag_indicators
from .common.labels import agreeing_choices

__all__ = ["Chain"]

_STEPS_SHARED_BY_ALL = "per-step transitions shared by the batch have shape (1, T - 1, S, S)"


@dataclass(frozen=True)
class Chain(ChainLoops):
    """Sequences of T tags, each one of S states.

    ⟨θ, y⟩ = Σ_t unary[t, s_t] + Σ_t transition[s_t, s_{t+1}] for tags s_1 ... s_T. The score of a transition is
    ``transition[from, to]``. To score the first or the last tag apart, add the scores to ``unary`` at the first step,
    or at the last step of each instance. A score of −inf forbids a tag or a transition.

    Scores θ and structures y have one of three forms, with any batch dimensions ``...``:

    ================================================  ============================================================
    θ                                                 y
    ================================================  ============================================================
    unary (..., T, S), transition (..., S, S)         indicators of the tags, and counts of the transitions
    unary (..., T, S), transition (..., T − 1, S, S)  indicators of the tags, and of the transition at each step
    edges (..., T − 1, S, S), a single tensor         indicators of the transitions; tags have no scores
    ================================================  ============================================================

    The batch dimensions of ``transition`` may be 1, for a transition shared by the batch. A transition shared by all
    steps may also have the shape (S, S).

    - Labels, shape (..., T): the tags, integers in [0, S). Decoded labels are −1 beyond the length.
    - Instance data ``lengths``, shape (...): the number of tokens of each instance, an integer in [0, T]. Default: T.
      In y all parts beyond the length are 0.

    With the third form, a sequence of length 1 has a single structure, without parts: log Z = 0, and its label is 0.

    Notes
    -----
    The running time is O(B T S²). Beside inputs and results, tables of size (B, T, S) are in memory. If all steps
    share the transition, sums over structures are scaled matrix products. Instances whose scores have too large a
    range for exact products run in the log domain. With S = 2, as in segmentation attention, each vector instruction
    handles 16 instances. Smoothed recursions store two numbers for each token and tag, and recompute probabilities in
    the backward pass.

    On a GPU with triton, chains of at most 1,024 states take one or two launches for a value, a gradient, a Hessian
    product, or best, k best or sampled tags. The α of Ω is then 1, 1.5, 2 or infinity; other Ω take torch operations.

    References
    ----------
    L. R. Rabiner, A tutorial on hidden Markov models, Proceedings of the IEEE 77 (1989), §III.
    J. Lafferty, A. McCallum & F. Pereira, Conditional random fields, ICML 2001, §3.

    Examples
    --------
    >>> unary = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.5, 0.0]]])
    >>> transition = torch.tensor([[[0.0, 1.0], [-1.0, 0.5]]])
    >>> chain = Chain()
    >>> chain.decode(chain.argmax((unary, transition)))
    tensor([[0, 1, 1]])
    >>> chain.log_partition((unary, transition))
    tensor([5.1004])
    """

    name: ClassVar[str] = "chain"
    search_terms: ClassVar[tuple[str, ...]] = (
        "viterbi",
        "forward_backward",
        "crf",
        "linear_chain_crf",
        "hmm",
        "hidden_markov_model",
        "tagger",
        "sequence",
    )
    event_ndim: ClassVar[int | tuple[int, ...]] = (2, 2)
    instance_ndim = MappingProxyType({"lengths": 0})
    has_empty_structure = True
    label_ndim: ClassVar[int] = 1

    # -- forms -----------------------------------------------------------------------------

    def resolve_event_ndim(self, theta: Parts) -> tuple[int, ...]:
        if not isinstance(theta, tuple):
            return (3,)
        if len(theta) != 2:
            raise InvalidInputError(f"theta: chain takes edge scores or (unary, transition), got {len(theta)} tensors")
        unary, transition = theta
        batch = unary.ndim - 2
        event = {2: 2, batch + 3: 3, batch + 2: 2}.get(transition.ndim)
        if batch < 0 or event is None:
            raise InvalidInputError(
                "theta: chain takes unary (..., T, S) with transition (S, S), (..., S, S) or (..., T - 1, S, S), got "
                f"unary {tuple(unary.shape)} and transition {tuple(transition.shape)}; give both tensors the same "
                f"number of batch dimensions, of size 1 where the batch shares them ({_STEPS_SHARED_BY_ALL})"
            )
        batch_shape = transition.shape[: transition.ndim - event]
        if batch_shape and not all(a == b or 1 in (a, b) for a, b in zip(unary.shape, batch_shape, strict=False)):
            raise InvalidInputError(
                f"theta: the batch dimensions of unary {tuple(unary.shape)} and transition "
                f"{tuple(transition.shape)} must broadcast; {_STEPS_SHARED_BY_ALL}"
            )
        return 2, event

    def has_binary_parts(self, theta: Parts) -> bool:
        return not _shares_transition(theta)  # y counts the uses of a transition shared by all steps

    def validate(self, theta: Parts) -> None:
        (steps, states), transition = size_of(theta), as_tuple(theta)[-1]
        expected_shape = (states, states) if _shares_transition(theta) else (steps - 1, states, states)
        if steps < 1 or states < 1 or tuple(transition.shape[1:]) != expected_shape:
            shapes = " and ".join(str(tuple(t.shape[1:])) for t in as_tuple(theta))
            if not isinstance(theta, tuple):
                more = "unary scores need a tuple (unary, transition)"
            elif transition.shape[-1] != states:
                tags = " x ".join(map(str, transition.shape[-2:]))
                more = f"unary has S = {states} tags in the last dimension, and transition has {tags}"
            else:
                more = _STEPS_SHARED_BY_ALL if _shares_transition(theta) else ""
            raise InvalidInputError(
                "theta: chain takes unary (T, S) with transition (S, S) or (T - 1, S, S), or edges (T - 1, S, S), "
                f"with T and S at least 1, got {shapes} after the batch dimension" + (f"; {more}" if more else "")
            )
        if "lengths" in self.bound:
            check_lengths(self.bound["lengths"], 1, steps, f"T = {steps} tokens", has_empty=True)

    def valid_parts(self, theta: Parts) -> Parts | None:
        steps, _ = size_of(theta)
        lengths = self.bound.get("lengths")
        # On a GPU, a mask costs less than to wait for the answer.
        if lengths is None or (lengths.is_cpu and bool((lengths == steps).all())):
            return None
        if uses_triton(lengths):
            from structinf.kernels.padding import triton_masks

            inside = triton_masks.mask((steps, 1), lengths.device, lengths, 0)[..., 0]
        else:
            inside = torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)

        def mask(t: Tensor) -> Tensor:
            if _shares_transition(theta) and t is as_tuple(theta)[-1]:
                return all_parts(t).expand(t.shape)
            rows = inside if len(t) == len(inside) else inside.any(0, keepdim=True)
            return rows[:, steps - t.shape[1] :].view(len(t), -1, *[1] * (t.ndim - 2)).expand(t.shape)

        return map_parts(mask, theta)

    def readout(self, y: Parts) -> Parts:
        """Return the indicators of the tags, or of the edges if θ has edge scores alone."""
        return y[0] if isinstance(y, tuple) else y

    def hamming_cost(self, y: Parts) -> Parts:
        """Return costs that count wrong tags.

        The cost of a transition shared by all steps has a batch dimension of 1.
        """
        # The cost of a tag is 1/2 − y[t, tag]. Half the sum of the token's tags serves as 1/2, and is 0 in the padding.
        if isinstance(y, tuple):
            unary, transition = y
            return 0.5 * unary.sum(2, keepdim=True) - unary, torch.zeros_like(transition[:1])
        if y.shape[1] == 0:
            return torch.zeros_like(y)
        total = 0.5 * y.sum((2, 3), keepdim=True)
        cost = (total - y.sum(2, keepdim=True)).expand(y.shape).clone()
        cost[:, 0] += total[:, 0] - y[:, 0].sum(2, keepdim=True)
        return cost

    def allowed_parts(self, labels: Tensor, like: Parts) -> Parts:
        steps, states = size_of(like)
        _check_shape_of_tags(labels, like)
        used = torch.arange(steps, device=labels.device) < self._lengths(like, len(labels)).unsqueeze(1)
        tags = agreeing_choices(labels, used, states, states)
        if isinstance(like, tuple):
            return tags, torch.ones_like(like[1][:1], dtype=torch.bool)
        return tags[:, :-1].unsqueeze(3) & tags[:, 1:].unsqueeze(2)

    def encode(self, labels: Tensor, like: Parts) -> Parts:
        steps, states = size_of(like)
        _check_shape_of_tags(labels, like)
        lengths = self._lengths(like, len(labels)) if "lengths" in self.bound else None
        if not skips_checks(labels):
            wrong = (labels < 0) | (labels >= states)
            if lengths is not None:
                wrong &= torch.arange(steps, device=labels.device) < lengths.unsqueeze(1)
            check_number(wrong.any(), operator.not_, functools.partial(_reject_tag, labels, wrong, states))
        tags = labels.long()
        # On a GPU, the check may come later than the use of the tags as indices.
        return tag_indicators(tags if tags.is_cpu else tags.clamp(0, states - 1), lengths, like)

    def decode(self, y: Parts) -> Tensor:
        if isinstance(y, tuple):
            tokens = y[0]
        else:
            first = y.new_zeros(len(y), 1, y.shape[-1])
            # No edge shows the tag of a single token; by convention the tag is 0.
            first[..., 0] = 1
            if y.shape[1]:
                start = y[:, :1].sum(3)
                first = torch.where(start.sum(2, keepdim=True) == 0, first, start)
            tokens = torch.cat([first, y.sum(2)], 1)
        return torch.where((tokens == 0).all(2), -1, tokens.argmax(2))

    def describe_part(self, y: Parts, tensor: int, index: tuple[int, ...]) -> str:
        if isinstance(y, tuple) and tensor == 0:
            return f"tag {index[1]} at position {index[0]}"
        *step, before, after = index
        if step:
            position = step[0] + 1
        else:  # the transition is shared by all steps
            tags = self.decode(y)[0].tolist()
            position = next(t for t in range(1, len(tags)) if tags[t - 1 : t + 1] == [before, after])
        return f"transition {before} -> {after} at position {position}"

    # -- the recursion as a graph -------------------------------------------------------------

    def build(self, event_shape: Any) -> Hypergraph:
        """Build the recursion: a node for each token and tag, and if tags have scores, a node before adding them."""
        graph = HypergraphBuilder(event_shape)
        if not isinstance(graph.parts, tuple):
            transition = graph.parts
            steps, states = len(transition) + 1, transition.shape[-1]
            tag = graph.nodes(steps, states)
            graph.add(tag[0])
            graph.add(tag[1:, None, :], tag[:-1, :, None], part=transition)
        else:
            unary, transition = graph.parts
            steps, states = unary.shape
            tag, reached = graph.nodes(2, steps, states)
            graph.add(tag[0], part=unary[0])
            graph.add(reached[1:, None, :], tag[:-1, :, None], part=transition)
            graph.add(tag[1:], reached[1:], part=unary[1:])
        goals = graph.nodes(steps + 1)
        graph.add(goals[1:, None], tag)
        goals[0] = -1
        if not isinstance(graph.parts, tuple):
            goals[1] = tag[0, 0]  # a single token has no edges, and so one structure, with tag 0
        return graph.build(goals, prune=True)

    def enumerate(self, event_shape: Any) -> Parts:
        """Return all tag sequences in lexicographic order, at most a million."""
        is_tuple = not isinstance(event_shape[0], int)
        zeros = [
            torch.zeros(1, *shape, dtype=torch.float64, device="cpu")
            for shape in (event_shape if is_tuple else [event_shape])
        ]
        theta = tuple(zeros) if is_tuple else zeros[0]
        lengths = self._lengths(theta).cpu()
        steps, states = size_of(theta)
        free = 0 if not is_tuple and int(lengths) == 1 else int(lengths)  # a token without edges has one tag, 0
        check_enumerable(states**free, f"tag sequences of {free} tokens and {states} states")
        tags = torch.zeros(states**free, steps, dtype=torch.int64, device="cpu")
        tags[:, :free] = torch.tensor(list(itertools.product(range(states), repeat=free)), device="cpu")
        return tag_indicators(tags, lengths, theta)


def _check_shape_of_tags(labels: Tensor, like: Parts) -> None:
    """Raise InvalidInputError unless ``labels`` (B, T) have a tag for each token of the scores ``like``."""
    steps, _ = size_of(like)
    if labels.ndim == 2 and labels.shape[1] == steps:
        return
    form = "; edge scores (T - 1, S, S) score T tokens, and unary scores need a tuple (unary, transition)"
    raise InvalidInputError(
        f"labels must be tags of shape (B, {steps}), got shape {tuple(labels.shape)}"
        + ("" if isinstance(like, tuple) else form)
    )


def _reject_tag(labels: Tensor, wrong: Tensor, states: int) -> NoReturn:
    b, t = wrong.nonzero()[0].tolist()
    raise InvalidInputError(
        f"labels must lie between 0 and {states - 1}, got {int(labels[b, t])} at batch index {b}, "
        f"position {t}; pass lengths=... to ignore the padding, and −1 for an unknown tag in a loss"
    )


def _shares_transition(theta: Parts) -> bool:
    """Return whether all steps share one transition; ``theta`` has one batch dimension."""
    return isinstance(theta, tuple) and theta[1].ndim == 3
