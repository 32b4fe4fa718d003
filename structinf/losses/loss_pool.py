"""The pool of structures that a loss compares, which grows during training."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from ..adapters import StructurePool, is_due, row_keys
from ..errors import InvalidInputError, UnsupportedError, renumber_instances
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, list_to_tuple, map_parts, parts_to_vectors, select_rows
from ..solvers.argmax import best_structure, best_structures
from ..validation import check_ratio, check_real

__all__ = ["LossPool"]

_MOST_SOLVED = 100_000
"""The largest number of true scores whose best structure is remembered, at most 70 MB of memory."""


class LossPool(nn.Module):
    """A :class:`StructurePool` with a schedule of exact calls; ``state_dict`` contains its structures.

    Parameters
    ----------
    structures : (K, *event) Tensor, or tuple of Tensors, or None
        The first structures.
    capacity : int
        The largest number of structures.
    solve_ratio : float
        The share of training calls that add best structures.
    """

    def __init__(self, structures: Parts | None, capacity: int, solve_ratio: float) -> None:
        super().__init__()
        check_ratio("solve_ratio", solve_ratio)
        self.memory, self.solve_ratio, self.calls = StructurePool(capacity), solve_ratio, 0
        self._solved: tuple[Oracle | None, OrderedDict[bytes, bytes]] = None, OrderedDict()
        """An oracle, and the pool's key of its best structure by the key of true scores."""
        self._checked: tuple[Oracle | None, set[bytes]] = None, set()
        """An oracle, and the keys of its structures that callers of :meth:`grow` have checked."""
        if structures is not None:
            first: Parts = list_to_tuple(structures)
            for t in as_tuple(first):
                check_real("pool", t)
                if not (isinstance(t, Tensor) and t.is_floating_point() and t.ndim > 1 and bool(t.isfinite().all())):
                    raise InvalidInputError(
                        "pool must hold structures (K, *event), finite and in floating point, in the form of theta"
                    )
            self.memory.add(first)

    def __len__(self) -> int:
        return len(self.memory)

    def knows(self, oracle: Oracle, y: Tensor) -> bool:
        """Return whether :meth:`grow` has added all structures ``y`` (B, *event), a CPU tensor, for the same oracle."""
        keys = self._checked[1] if self._checked[0] is oracle else None
        return bool(keys) and self.memory.dtypes == (y.dtype,) and keys.issuperset(row_keys((y.detach().contiguous(),)))

    def grow(self, oracle: Oracle, structures: Parts | None, theta: Parts, true_theta: Parts | None = None) -> None:
        """Add ``structures`` and, if the call is due, the best structures for ``theta`` and for ``true_theta``.

        The caller has checked that ``structures`` belong to the oracle. A pool in evaluation mode stays as it is. True
        scores are the same in each epoch, so the pool remembers which of its structures is the best.

        Raises
        ------
        UnsupportedError
            If the oracle has instance data, since a structure of one instance may be none of another instance.
        """
        if oracle.bound:
            raise UnsupportedError(
                f"a pool of structures needs one set Y for all instances, but {oracle.label()} has the instance data "
                f"{', '.join(oracle.bound)}; forbid parts by scores of −inf instead, or use FenchelYoungLoss"
            )
        if not self.training or not batch_size(theta):
            return
        # An infeasible instance raises an error here, before the call counts. The loss then calls again without it.
        if not is_due(self.calls + 1, self.solve_ratio):
            new = []
        elif true_theta is None or not oracle.is_exact or self.memory.capacity < 2 * batch_size(theta):
            new = best_structures(oracle, theta, *([] if true_theta is None else [true_theta]))
        else:
            new = []
            self._add_best(oracle, theta, true_theta)
        vars(self)["calls"] += 1  # an assignment to an attribute of a module takes 3 µs
        new = new if structures is None else [map_parts(Tensor.detach, structures), *new]
        if new:
            keys = self.memory.add(new[0] if len(new) == 1 else map_parts(lambda *each: torch.cat(each), *new))
            if structures is not None:
                self._remember_checked(oracle, structures, keys[: batch_size(structures)])

    def _remember_checked(self, oracle: Oracle, structures: Parts, keys: list[bytes]) -> None:
        tensors = as_tuple(structures)
        # Checks of structures on a device wait for the end of the call. The memory may round other dtypes.
        if not tensors[0].is_cpu or tuple([t.dtype for t in tensors]) != self.memory.dtypes:
            return
        if self._checked[0] is not oracle or len(self._checked[1]) > 2 * self.memory.capacity:
            self._checked = oracle, set()
        self._checked[1].update(keys)

    def _add_best(self, oracle: Oracle, theta: Parts, true_theta: Parts) -> None:
        """Add the best structures for ``theta``, and for the ``true_theta`` whose best structure is not remembered.

        The pool has room for all of these, so that none of them replaces another one.
        """
        if self._solved[0] is not oracle:
            self._solved = oracle, OrderedDict()
        solved, memory, size = self._solved[1], self.memory, batch_size(true_theta)
        rows = parts_to_vectors(map_parts(lambda t: t.detach().expand(size, *t.shape[1:]), true_theta))
        keys = row_keys((rows.cpu(),))
        missing = memory.use(map(solved.get, keys))
        if len(missing) == size:
            best, *true_best = best_structures(oracle, theta, true_theta)
        else:
            best, true_best = best_structure(oracle, theta), []
            if missing:
                index = torch.tensor(missing, device=rows.device)
                with renumber_instances(missing):
                    true_best = [best_structure(oracle, select_rows(true_theta, index))]
        memory.add(best)
        for i, key in zip(missing, memory.add(true_best[0]) if missing else (), strict=True):
            solved[keys[i]] = key
        memory.use(map(solved.get, keys))  # these structures were used last
        while len(solved) > _MOST_SOLVED:
            solved.popitem(last=False)

    def vectors(self, theta: Parts) -> tuple[Tensor, ...]:
        """Return all structures as vectors, (K, D) for each tensor of ``theta``, in float64 and on its device.

        ``scores_of_vectors`` and ``mean_of_vectors`` of the adapters take the result, which later calls do not change.
        For an empty batch, the pool may be empty; then K is 1, for the structure 0.
        """
        if len(self):
            self.memory.check_form(theta)
            return self.memory.vectors(theta, torch.float64)
        if batch_size(theta):
            raise InvalidInputError(
                "the pool has no structures; pass pool=..., or call the loss in training mode with solve_ratio above 0"
            )
        return tuple([t.new_zeros(1, math.prod(t.shape[1:]), dtype=torch.float64) for t in as_tuple(theta)])

    # Buffers have one shape, and the number of structures grows.

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        state = self.memory.state() | {"calls": torch.tensor(self.calls, device="cpu")}
        destination.update({prefix + name: t for name, t in state.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {key.removeprefix(prefix): t for key, t in state_dict.items() if key.startswith(prefix)}
        if strict:
            unexpected_keys += [prefix + key for key in own if key.split(".")[0] not in ("calls", "structures")]
        if "calls" not in own:
            missing_keys.append(prefix + "calls")
            return
        self.calls = int(own["calls"])
        self.memory.load(own)

    def extra_repr(self) -> str:
        return f"{len(self)} of {self.memory.capacity} structures, solve_ratio={self.solve_ratio}"
