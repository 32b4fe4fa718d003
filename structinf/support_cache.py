"""A cache of supports by training example, from which iterative relaxations start in the next epoch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import InvalidInputError
from .option_key import OptionKey, option_key
from .oracle import Oracle
from .parts import Parts, as_tuple, pack
from .solution import Solution
from .validation import check_natural

__all__ = ["CachedSupports", "SupportCache"]

_LARGEST_BYTE = 255


class _Entry(NamedTuple):
    """The structures of an example: a tensor (K, *event) for each tensor of θ; and what determines them."""

    structures: tuple[Tensor, ...]
    oracle: OptionKey
    data: dict[str, bytes]


class SupportCache:
    """Keep the support of each training example, as starting structures for the next epoch.

    Pass ``cache.select(examples)`` as ``warm_start`` to :func:`structinf.infer`, and the result to :meth:`update`. The
    solver then starts from the structures of the last solution of the same example, and needs fewer oracle calls if the
    scores changed little. The mean is the same, within the tolerance. Without structures for an example, the solver
    starts as without a warm start.

    The cache stores structures of whole numbers from 0 to 255 in one byte for each part.

    Parameters
    ----------
    max_structures : int
        The number of structures to keep of each example: the structures of largest weight. At least 1.
    capacity : int
        The number of examples to keep: the examples used last. At least 1.

    Examples
    --------
    >>> import structinf as si
    >>> _ = torch.manual_seed(0)
    >>> theta = torch.randn(3, 8, 8)
    >>> examples = torch.tensor([17, 4, 23])
    >>> cache = si.SupportCache()
    >>> first = si.infer(
    ...     theta,
    ...     "assignment",
    ...     "sparsemap",
    ...     warm_start=cache.select(examples),
    ... )
    >>> cache.update(examples, first)
    >>> again = si.infer(
    ...     theta + 0.01,
    ...     "assignment",
    ...     "sparsemap",
    ...     warm_start=cache.select(examples),
    ... )
    >>> first.oracle_calls, again.oracle_calls
    (11, 1)
    """

    def __init__(self, *, max_structures: int = 64, capacity: int = 100_000) -> None:
        check_natural("max_structures", max_structures)
        check_natural("capacity", capacity)
        self.max_structures, self.capacity = max_structures, capacity
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of examples with structures."""
        return len(self._entries)

    def __repr__(self) -> str:
        return f"SupportCache(max_structures={self.max_structures}, capacity={self.capacity}, examples={len(self)})"

    def select(self, examples: Tensor | Sequence[int]) -> CachedSupports:
        """Return the supports of a batch, for the argument ``warm_start`` of :func:`structinf.infer`.

        Parameters
        ----------
        examples : (...) integer Tensor, or list of int
            The number of each example, in the batch shape of θ.
        """
        return CachedSupports(self, _example_numbers(examples))

    def update(self, examples: Tensor | Sequence[int], solution: Solution) -> None:
        """Keep the supports of a solution.

        Parameters
        ----------
        examples : (...) integer Tensor, or list of int
            The number of each example, in the batch shape of θ.
        solution : Solution
            A solution with a support, as :func:`structinf.infer` returns it for ``"sparsemap"`` or ``"frank_wolfe"``.

        Raises
        ------
        InvalidInputError
            If the solution has no support, or another batch shape.
        """
        numbers = _example_numbers(examples)
        if not isinstance(solution, Solution):
            raise TypeError(f"solution must be a Solution, as infer returns it, got {type(solution).__name__}")
        weights, oracle, support = solution.weights, solution.oracle, solution.support
        if weights is None or oracle is None or support is None:
            raise InvalidInputError(
                "solution: the solution has no support; pass the solution of an iterative relaxation, such as sparsemap"
            )
        if weights.shape[1:] != numbers.shape:
            raise InvalidInputError(
                f"examples must have the batch shape of the solution, {tuple(weights.shape[1:])}, "
                f"got shape {tuple(numbers.shape)}"
            )
        ranks = weights.detach().reshape(len(weights), numbers.numel()).T.cpu().sort(1, descending=True)
        batch = numbers.ndim
        supports = [t.detach().flatten(1, batch) if batch else t.detach()[:, None] for t in as_tuple(support)]
        supports = [_in_bytes(t.cpu()) for t in supports]
        key = option_key(oracle)
        for b, example in enumerate(numbers.flatten().tolist()):
            kept = ranks.indices[b, : self.max_structures][ranks.values[b, : self.max_structures] > 0]
            if len(kept):  # an infeasible instance has no structure
                structures = tuple(t[kept, b] for t in supports)
                self._entries[example] = _Entry(structures, key, _data_of(oracle, b))
                self._entries.move_to_end(example)
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the structures of all examples, for ``torch.save``.

        The state leaves out structures of oracles with options that another process cannot compare, such as closures
        and the models of solvers.
        """
        entries = self._lasting_entries().items()
        return {"entries": [(example, e.structures, e.oracle.digest, e.data) for example, e in entries]}

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: as for :meth:`state_dict`, other objects cannot be compared."""
        return {**vars(self), "_entries": self._lasting_entries()}

    def _lasting_entries(self) -> OrderedDict[int, _Entry]:
        """Return the entries whose keys are valid in all processes."""
        return OrderedDict((example, entry) for example, entry in self._entries.items() if not entry.oracle.objects)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the structures of all examples.

        Parameters
        ----------
        state : mapping
            The result of :meth:`state_dict`.
        """
        try:
            entries = OrderedDict(
                (int(example), _Entry(tuple(t.cpu() for t in structures), OptionKey(str(digest), ()), dict(data)))
                for example, structures, digest, data in state["entries"]
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InvalidInputError(f"state must be the result of state_dict, got {state!r:.80}") from error
        self._entries = entries
        while len(self._entries) > self.capacity:
            self._entries.popitem(last=False)


@dataclass(frozen=True)
class CachedSupports:
    """The supports of a batch of examples. :meth:`SupportCache.select` returns this object.

    Attributes
    ----------
    cache : SupportCache
        The supports.
    examples : (...) int64 Tensor
        The number of each example.
    """

    cache: SupportCache
    examples: Tensor

    def structures(self, oracle: Oracle, theta: Parts, event_shapes: Sequence[torch.Size]) -> Parts:
        """Return starting structures (K, B, *event), with zeros for missing structures. K is at least 1.

        Structures of an oracle with other options, or of other instance data, count as missing.

        Parameters
        ----------
        oracle : Oracle
            The oracle, with the instance data of the whole batch.
        theta : Tensor, or tuple of Tensors
            Parts with the dtypes and the device of the result.
        event_shapes : sequence of torch.Size
            The event shape of each tensor.
        """
        entries, key = self.cache._entries, option_key(oracle)
        found: dict[int, tuple[Tensor, ...]] = {}
        for b, example in enumerate(self.examples.flatten().tolist()):
            entry = entries.get(example)
            is_known = entry is not None and entry.oracle.digest == key.digest and entry.data == _data_of(oracle, b)
            if entry is None or not is_known or len(entry.structures) != len(event_shapes):
                continue
            entries.move_to_end(example)
            resized = [
                _resize(t, e, "lengths" in oracle.bound) for t, e in zip(entry.structures, event_shapes, strict=True)
            ]
            if all(t is not None for t in resized):
                found[b] = tuple(t for t in resized if t is not None)
        count = max((len(own[0]) for own in found.values()), default=1)
        out = [
            torch.zeros(count, self.examples.numel(), *event, dtype=t.dtype, device="cpu")
            for t, event in zip(as_tuple(theta), event_shapes, strict=True)
        ]
        for b, own in found.items():
            for whole, t in zip(out, own, strict=True):
                whole[: len(t), b] = t
        moved = tuple(t.to(like.device) for t, like in zip(out, as_tuple(theta), strict=True))
        return pack(moved, isinstance(theta, tuple))


def _example_numbers(examples: Any) -> Tensor:
    try:
        numbers = torch.as_tensor(examples, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"examples must be a tensor or a list of integers, got {examples!r:.80}") from error
    if numbers.dtype is torch.bool or numbers.is_floating_point() or numbers.is_complex():
        if numbers.numel():
            raise InvalidInputError(
                f"examples must be integers, got {numbers.dtype}; pass an integer for each instance"
            )
        numbers = numbers.long()
    return numbers.detach().long()


def _in_bytes(t: Tensor) -> Tensor:
    """Return ``t`` in uint8 if this changes no number."""
    if t.numel() and bool(((t < 0) | (t > _LARGEST_BYTE) | (t != t.round())).any()):
        return t
    return t.to(torch.uint8)


def _data_of(oracle: Oracle, b: int) -> dict[str, bytes]:
    """Return the instance data of instance ``b``."""
    return {
        name: t[b].detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()
        for name, t in oracle.bound.items()
    }


def _resize(t: Tensor, event: torch.Size, has_lengths: bool) -> Tensor | None:
    """Return structures (K, *event) cropped or padded to another size; None if another size has other structures.

    With lengths, the size is the size of the padding, which depends on the other examples of the batch.
    """
    if t.shape[1:] == event:
        return t
    if not has_lengths or len(event) != t.ndim - 1:
        return None
    shared = (slice(None), *(slice(min(old, new)) for old, new in zip(t.shape[1:], event, strict=True)))
    padded = t.new_zeros(t.shape[0], *event)
    padded[shared] = t[shared]
    return padded if int(padded.count_nonzero()) == int(t.count_nonzero()) else None
