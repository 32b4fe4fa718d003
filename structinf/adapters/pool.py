"""A pool of structures: a bounded memory without repetitions, with the scores of all its structures."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..errors import InvalidInputError
from ..parts import Parts, as_tuple, list_to_tuple, pack
from ..shapes import Float
from ..validation import check_natural

__all__ = ["StructurePool", "is_due", "mean_of_vectors", "row_keys", "scores_of_vectors"]

_MOST_BYTES = 512
"""The largest row that is its own key. A digest of a small row takes several times longer than the row itself."""


class StructurePool:
    """At most ``capacity`` different structures. A new structure replaces the structure that was used the longest ago.

    The structures stay on the CPU, in the dtype of the first structure.

    Parameters
    ----------
    capacity : int
        The largest number of structures.
    """

    def __init__(self, capacity: int = 1000) -> None:
        check_natural("capacity", capacity)
        self.capacity = capacity
        self.is_tuple = False
        self._rows: OrderedDict[bytes, int] = OrderedDict()
        """The row of each structure by its key, from the oldest use to the latest."""
        self._keys: list[bytes] = []
        self._memory: tuple[Tensor, ...] = ()
        self._vectors: tuple[Any, tuple[Tensor, ...]] | None = None
        """The dtypes and devices, and the result, of the last :meth:`vectors`; None after a change."""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtype of each tensor of the structures; () before the first structure."""
        return tuple([t.dtype for t in self._memory])

    @property
    def structures(self) -> Parts | None:
        """The structures, (K, *event); None if the pool is empty."""
        if not self._keys:
            return None
        return pack(tuple(t[: len(self)] for t in self._memory), self.is_tuple)

    def add(self, structures: Parts) -> list[bytes]:
        """Add structures (K, *event), except the known ones, which count as used again; return the key of each."""
        tensors = tuple([t.detach().cpu().contiguous() for t in as_tuple(structures)])
        if not self._memory:
            self.is_tuple = isinstance(structures, tuple)
            self._memory = tuple(t.new_zeros(0, *t.shape[1:]) for t in tensors)
        self.check_form(structures)
        tensors = tuple([t.to(own) for t, own in zip(tensors, self._memory, strict=True)])
        rows, use, keys = self._rows, self._rows.move_to_end, row_keys(tensors)
        for row, key in enumerate(keys):
            if key in rows:
                use(key)
                continue
            if len(self) < self.capacity:
                index = len(self)
                self._keys.append(key)
                self._reserve(index + 1)
            else:
                index = self._rows.popitem(last=False)[1]
                self._keys[index] = key
            self._rows[key] = index
            self._vectors = None
            for own, t in zip(self._memory, tensors, strict=True):
                own[index] = t[row]
        return keys

    def use(self, keys: Iterable[bytes | None]) -> list[int]:
        """Count the structures of ``keys`` as used again; return the positions of the keys that the pool lacks."""
        rows, use, missing = self._rows, self._rows.move_to_end, []
        for i, key in enumerate(keys):
            if key in rows:
                use(key)
            else:
                missing.append(i)
        return missing

    def scores(self, theta: Parts) -> Float[Tensor, "batch structures"]:
        """Return the scores ⟨θ, y⟩ of all structures, (B, K), differentiable in θ; −inf if a part is forbidden.

        Parameters
        ----------
        theta : (B, *event) Parts
            The scores of the parts.
        """
        if not self._keys:
            raise InvalidInputError("the pool has no structures; add structures before their scores are needed")
        self.check_form(theta)
        return scores_of_vectors(theta, self.vectors(theta))

    def vectors(self, like: Parts, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
        """Return copies of the structures as vectors, (K, D) for each tensor of ``like``, in its dtype and device.

        The pool keeps the copies until it changes, and changes no copy. With ``dtype``, the copies have this dtype.
        """
        wanted = [(dtype or t.dtype, t.device) for t in as_tuple(like)]
        kept = self._vectors  # other threads may replace it
        if kept is None or kept[0] != wanted:
            pairs = zip(self._memory, wanted, strict=True)
            copies = [m[: len(self)].to(device, own, copy=True).unsqueeze(-1).flatten(1) for m, (own, device) in pairs]
            self._vectors = kept = wanted, tuple(copies)
        return kept[1]

    def take(self, rows: Tensor, like: Parts) -> Parts:
        """Return copies of the structures ``rows`` (B,), in the dtypes and on the device of ``like``; they are used."""
        for row in rows.tolist():
            self._rows.move_to_end(self._keys[row])
        index = rows.cpu()
        picked = [m[index].to(t) for m, t in zip(self._memory, as_tuple(like), strict=True)]
        return pack(tuple(picked), self.is_tuple)

    def drop_oldest(self) -> None:
        """Remove the structure that was used the longest ago."""
        index, last = self._rows.popitem(last=False)[1], self._keys.pop()
        self._vectors = None
        if index < len(self):
            self._keys[index], self._rows[last] = last, index
            for t in self._memory:
                t[index] = t[len(self)]

    def state(self) -> dict[str, Tensor]:
        """Return the structures as tensors by name, from the oldest use to the latest, for :meth:`load`.

        The name is "structures", or "structures.0", "structures.1", ... if a structure is a tuple.
        """
        order = torch.tensor(list(self._rows.values()), dtype=torch.int64, device="cpu")
        names = [f"structures.{i}" for i in range(len(self._memory))] if self.is_tuple else ["structures"]
        return {name: t[order] for name, t in zip(names, self._memory, strict=False)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Replace the structures by those of another pool's :meth:`state`; by the latest, if there are too many."""
        self._rows, self._keys, self._memory, self._vectors = OrderedDict(), [], (), None
        if "structures" in state:
            self.add(state["structures"][-self.capacity :])
        elif "structures.0" in state:
            count = sum(name.startswith("structures.") for name in state)
            self.add(tuple(state[f"structures.{i}"][-self.capacity :] for i in range(count)))

    # -- steps ----------------------------------------------------------------------------------

    def _reserve(self, size: int) -> None:
        held = len(self._memory[0])
        if size > held:
            rows = min(self.capacity, max(16, 2 * held))
            self._memory = tuple(torch.cat([t, t.new_zeros(rows - held, *t.shape[1:])]) for t in self._memory)

    def check_form(self, parts: Parts) -> None:
        """Raise InvalidInputError unless ``parts`` (B, *event) have the form of the structures."""
        if not self.is_tuple and isinstance(parts, Tensor) and parts.shape[1:] == self._memory[0].shape[1:]:
            return
        parts = list_to_tuple(parts)
        shapes, own = ([tuple(t.shape[1:]) for t in as_tuple(p)] for p in (parts, self._memory))
        if shapes != own or isinstance(parts, tuple) != self.is_tuple:
            raise InvalidInputError(
                f"the structures of a pool have one shape, here {own}, got {shapes}; use a pool for each shape"
            )


def scores_of_vectors(
    theta: Parts, vectors: tuple[Tensor, ...], is_finite: bool = False
) -> Float[Tensor, "batch structures"]:
    """Return the scores ⟨θ, y⟩, (B, K), of structures; see :meth:`StructurePool.scores`.

    Parameters
    ----------
    theta : (B, *event) Parts
        The scores of the parts.
    vectors : tuple of (K, D) Tensor
        The result of :meth:`StructurePool.vectors`.
    is_finite : bool
        Whether no part is known to be forbidden, so that the call need not search for such parts.
    """
    total: Tensor | None = None
    for t, y in zip(as_tuple(theta), vectors, strict=True):
        flat = t if t.ndim == 2 else t.unsqueeze(-1).flatten(1)
        if is_finite or not bool((forbidden := flat.isneginf()).any()):
            values = linear(flat, y)  # flat @ y.T, without the time for a view
        else:
            values = torch.where(forbidden, 0.0, flat) @ y.T
            values = torch.where((forbidden.to(t) @ (y != 0).to(t).T) > 0, -torch.inf, values)
        total = values if total is None else total + values
    assert total is not None
    return total


def mean_of_vectors(weights: Tensor, vectors: tuple[Tensor, ...], theta: Parts) -> Parts:
    """Return Σ_k w_k y_k, (B, *event), over the structures ``vectors`` of a pool.

    Parameters
    ----------
    weights : (B, K) Tensor
        The weights w.
    vectors : tuple of (K, D) Tensor
        The result of :meth:`StructurePool.vectors`.
    theta : (B | 1, *event) Parts
        Scores of the event shapes of the structures.
    """
    pairs = zip(vectors, as_tuple(theta), strict=True)
    means = [(weights.to(y.dtype) @ y).view(len(weights), *t.shape[1:]) for y, t in pairs]
    return pack(tuple(means), isinstance(theta, tuple))


def row_keys(tensors: tuple[Tensor, ...]) -> list[bytes]:
    """Return a key of each instance of CPU tensors (B, *event): its bytes, or a digest of many bytes."""
    columns = []
    for t in tensors:
        array = t.numpy() + 0  # −0 and 0 are the same part
        memory, size = array.tobytes(), len(array)
        width = len(memory) // max(size, 1)
        columns.append([memory[row * width : (row + 1) * width] for row in range(size)])
    rows = columns[0] if len(columns) == 1 else [b"".join(row) for row in zip(*columns, strict=True)]
    if rows and len(rows[0]) > _MOST_BYTES:
        return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
    return rows


def is_due(call: int, ratio: float) -> bool:
    """Return whether the call of number ``call``, from 1, is one of a share ``ratio`` of calls, spread evenly.

    The first call is due, except at ratio 0.
    """
    return math.ceil(call * ratio) > math.ceil((call - 1) * ratio)
