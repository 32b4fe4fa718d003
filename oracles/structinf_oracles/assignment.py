"""Assignments: one-to-one matchings of rows and columns."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError, UnsupportedError
from structinf.kernels import parallel_rows, to_numpy
from structinf.kernels.gpu import uses_triton
from structinf.linear_constraints import LinearConstraints, LinearlyConstrained
from structinf.oracle import Enumerable, KBest, TransportPolytope, computed_on_cpu
from structinf.shapes import Float, Int
from structinf.validation import (
    check_choice,
    check_enumerable,
    check_feasible,
    check_instances,
    check_k,
    check_lengths,
    check_lengths_later,
    check_number,
    skips_checks,
)

from .common.grids import cells_in_use
from .common.labels import agreeing_choices

__all__ = ["Assignment"]

# Estimated elementary operations per part: about two scans of all costs.
OPERATIONS = 8

# The largest number of rows and of columns whose argmax a GPU computes. One program of the GPU handles an instance, and
# takes about 2 µs for each scan of a row, by the latency of its reductions. With more columns, a core of the CPU scans
# faster. The limit follows from this estimate; no GPU was at hand to measure it.
MOST_ON_GPU = 128


@dataclass(frozen=True)
class Assignment(KBest, TransportPolytope, Enumerable, LinearlyConstrained):
    """Matchings of n rows and m columns in which every row or column of the smaller side has a partner.

    A matching has min(n, m) pairs; the other rows or columns of the larger side stay unmatched. With n = m, y is a
    permutation matrix. A constant added to θ does not change the best matching.

    - Scores θ, shape (..., n, m), any sign: the score of each pair. −inf forbids a pair.
    - Structure y, shape (..., n, m): 1 for each matched pair, at most a single 1 in each row and each column.
    - Labels, shape (..., n): the column matched with each row, −1 for an unmatched row.
    - Instance data ``lengths``, shape (..., 2): the numbers of rows and of columns in use, integers in [0, n] and [0,
      m]. Default: n and m. The sizes in use determine the smaller side. In y all parts outside are 0.

    Parameters
    ----------
    allow_unmatched : bool or "by_score", default False
        Which rows and columns of the smaller side may stay unmatched. False: none. An instance whose −inf parts exclude
        every full matching raises an InfeasibleError.

        True: as few as possible. y has as many pairs as the parts above −inf permit, and the highest score among the
        matchings of this size. Scores never decide the number of pairs: a pair of negative score is still made. No
        instance is infeasible; if all parts are −inf, y = 0. Instances with a full matching are unaffected.

        "by_score": all. y is any matching, also the empty one, and the best matching has the highest score (the
        heaviest matching). Pairs of negative score are left out. To make a pair only above a score of t, subtract t
        from θ. The sums of rows and columns then have no fixed total, so that ``sinkhorn`` is not available.

    Notes
    -----
    ``argmax`` is the shortest augmenting path algorithm of Jonker & Volgenant, O(n² m) in the worst case for n ≤ m.
    The algorithm runs in float64, on CPU threads, or on a GPU for at most 128 rows and columns. With more, and with
    ``allow_unmatched=True``, CUDA tensors are copied once per batch. The k best come from Murty's method, with at most
    one augmentation for each candidate. Ties are broken deterministically, without preference for a column.

    There is no log-partition function: the sum over assignments is the permanent of exp θ, and its computation is
    #P-complete.

    References
    ----------
    R. Jonker & A. Volgenant, A shortest augmenting path algorithm for dense and sparse linear assignment problems
    (Computing 38, 1987). K. G. Murty, An algorithm for ranking all the assignments in order of increasing cost
    (Operations Research 16, 1968). M. L. Miller, H. S. Stone & I. J. Cox, Optimizing Murty's ranked assignment method
    (IEEE Transactions on Aerospace and Electronic Systems 33, 1997). L. G. Valiant, The complexity of computing the
    permanent (Theoretical Computer Science 8, 1979).

    Examples
    --------
    >>> theta = torch.tensor(
    ...     [[[1.0, 0.5, 0.0], [0.2, 0.0, 0.4], [0.0, 0.1, 0.3]]]
    ... )
    >>> oracle = Assignment()
    >>> oracle.decode(oracle.argmax(theta))
    tensor([[0, 2, 1]])
    >>> structures, scores, valid = oracle.topk(theta, 3)
    >>> scores
    tensor([[1.5000], [1.3000], [1.0000]])
    """

    name: ClassVar[str] = "assignment"
    search_terms: ClassVar[tuple[str, ...]] = (
        "hungarian",
        "kuhn_munkres",
        "jonker_volgenant",
        "lapjv",
        "linear_sum_assignment",
        "bipartite_matching",
        "permutation",
        "birkhoff",
    )
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({"lengths": 1})
    label_ndim: ClassVar[int] = 1
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "GibbsOracle": "exact marginals of assignments are #P-complete (Valiant 1979)",
            "Samplable": "exact samples are as hard as exact marginals (Jerrum, Valiant & Vazirani 1986)",
            "Smoothable": "the algorithm for a best matching is not a dynamic program (a recursion of maxima)",
        }
    )

    allow_unmatched: bool | Literal["by_score"] = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.allow_unmatched, bool):
            check_choice("allow_unmatched", self.allow_unmatched, ("by_score",), "True or False")
            reason = 'with allow_unmatched="by_score", plans have no fixed total; set allow_unmatched to True or False'
            object.__setattr__(self, "unsupported", {**self.unsupported, "TransportPolytope": reason})

    @property
    def always_feasible(self) -> bool:
        return bool(self.allow_unmatched)

    @property
    def _by_score(self) -> bool:
        return self.allow_unmatched == "by_score"

    # -- shapes and labels -----------------------------------------------------------------

    def has_binary_parts(self, theta: Tensor) -> bool:
        return True

    def validate(self, theta: Tensor) -> None:
        lengths = self.bound.get("lengths")
        if lengths is not None:
            if lengths.shape[1:] != (2,):
                raise InvalidInputError(
                    "lengths of assignments must have shape (..., 2), the numbers of rows and of columns in use, "
                    f"got {tuple(lengths.shape)} for a batch of {len(theta)}"
                )
            check_instances("lengths", lengths, len(theta))
            if not check_lengths_later(lengths, 0, *theta.shape[1:]):
                check_lengths(lengths[:, 0], 0, theta.shape[1], f"n = {theta.shape[1]} rows")
                check_lengths(lengths[:, 1], 0, theta.shape[2], f"m = {theta.shape[2]} columns")

    def valid_parts(self, theta: Tensor) -> Tensor | None:
        lengths = self.bound.get("lengths")
        # On a GPU, a mask costs less than to wait for the answer.
        if lengths is None or (lengths.is_cpu and bool((lengths == lengths.new_tensor(theta.shape[1:])).all())):
            return None
        return cells_in_use(lengths, theta.shape[1:])

    def allowed_parts(self, labels: Tensor, like: Tensor) -> Tensor:
        if self.allow_unmatched:
            raise UnsupportedError(
                f"assignment with {self._option()} has no unknown labels, since the label −1 is an unmatched row; "
                "pass boolean masks of the allowed parts"
            )
        n, m = like.shape[1:]
        if labels.shape[1:] != (n,):
            raise InvalidInputError(f"labels must be the column of each row, (B, {n}), got {tuple(labels.shape)}")
        sizes = self.bound.get("lengths", labels.new_tensor([[n, m]])).expand(len(labels), 2)
        used = torch.arange(n, device=labels.device) < sizes[:, :1]
        of_rows = agreeing_choices(labels, used, sizes[:, 1:], m)
        # A known pair also forbids the other rows of its column, which match the row if there are more rows.
        is_known = (used & (labels >= 0)).unsqueeze(2)
        taken = (of_rows & is_known).any(1, keepdim=True)
        return of_rows & ~(taken & ~is_known)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n, m = like.shape[1:]
        if labels.shape[1:] != (n,):
            raise InvalidInputError(
                f"labels of assignments must hold a column, or −1, for each of {n} rows, shape (..., {n}); "
                f"got {tuple(labels.shape)} with the batch dimensions flattened"
            )
        whole = torch.tensor([[n, m]], device="cpu").to(labels.device, non_blocking=True)
        sizes = self.bound.get("lengths", whole).expand(len(labels), 2)
        labels = labels.long().where(torch.arange(n, device=labels.device) < sizes[:, :1], -1)
        wrong = (labels < -1) | (labels >= sizes[:, 1:])
        _check_no(wrong, partial(_reject_column, labels, sizes, wrong))
        y = like.new_zeros(len(labels), n, m + 1)
        # On a GPU, the check may come later.
        column = labels.where(labels >= 0, m).clamp(max=m)
        y = y.scatter_(2, column.unsqueeze(2), 1.0)[:, :, :m].contiguous()
        taken = y.sum(1)
        _check_no(taken > 1, partial(_reject_rows, y, taken))
        if not self.allow_unmatched:
            pairs, smaller = taken.sum(1), sizes.amin(1)
            _check_no(pairs < smaller, partial(_reject_pairs, pairs, smaller))
        return y

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        return f"row {index[0]} with column {index[1]}"

    def decode(self, y: Tensor) -> Tensor:
        if y.shape[2] == 0:
            return torch.full(y.shape[:2], -1, device=y.device)
        value, column = y.max(2)
        return column.where(value > 0, -1)

    # -- optimisation ----------------------------------------------------------------------

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch n m"]:
        if self.allow_unmatched is not True and max(theta.shape[1:]) <= MOST_ON_GPU and uses_triton(theta):
            return self._argmax_on_gpu(theta)
        return self._argmax_on_cpu(theta)

    @computed_on_cpu
    def _argmax_on_cpu(self, theta: Tensor) -> Tensor:
        from .kernels.assignment import rectangular

        m, theta = theta.shape[2], self._with_free_columns(theta)
        y = torch.empty(theta.shape, dtype=theta.dtype, device="cpu")
        feasible = np.empty(len(theta), np.bool_)
        layout = self._layout(theta)
        parallel_rows(rectangular.argmax, len(theta), *layout, y.numpy(), feasible, work=OPERATIONS * theta.numel())
        check_feasible(torch.from_numpy(feasible), "assignment")
        return y[:, :, :m].contiguous()

    def argmax_indices(self, theta: Tensor) -> Int[Tensor, "batch pairs"] | None:
        if not theta.is_cpu or uses_triton(theta):
            return None
        from .kernels.assignment import rectangular

        m, theta = theta.shape[2], self._with_free_columns(theta)
        parts = torch.empty(len(theta), min(theta.shape[1:]), dtype=torch.int32, device="cpu")
        feasible = torch.empty(len(theta), dtype=torch.bool, device="cpu")
        arrays = *self._layout(theta), m, feasible.numpy(), parts.numpy()
        parallel_rows(rectangular.argmax_indices, len(theta), *arrays, work=OPERATIONS * theta.numel())
        check_feasible(feasible, "assignment")
        return parts

    def _argmax_on_gpu(self, theta: Tensor) -> Tensor:
        from .kernels.assignment import triton_shortest_augmenting_paths

        sizes = self.bound.get("lengths")
        if sizes is not None:
            check_instances("lengths", sizes, len(theta))
        free = theta.shape[1] if self._by_score else 0
        y, feasible = triton_shortest_augmenting_paths.argmax(self._with_free_columns(theta), sizes, free)
        check_feasible(feasible, "assignment")
        return y

    @computed_on_cpu
    def topk(self, theta: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        from .kernels.assignment import k_best

        check_k(k)
        m, theta = theta.shape[2], self._with_free_columns(theta)
        y = torch.empty((k, *theta.shape), dtype=theta.dtype, device="cpu")
        scores = torch.empty(k, len(theta), dtype=torch.float64, device="cpu")
        layout = self._layout(theta)
        parallel_rows(k_best.topk, len(theta), *layout, y.numpy(), scores.numpy(), work=OPERATIONS * y.numel())
        check_feasible(scores[0], "assignment")
        y, scores = y[..., :m].contiguous(), scores.to(theta)
        return y, scores, ~torch.isneginf(scores)

    def margins(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return 1 for the rows and columns in use and 0 for the others: (B | 1, n) and (B | 1, m).

        The third result is the number of pairs (B,) if ``allow_unmatched`` is set and a part is −inf, else None.
        """
        if self._by_score:
            raise UnsupportedError(f"assignment has no margins: {self.unsupported['TransportPolytope']}")
        lengths = self.bound.get("lengths")
        rows, columns = (
            theta.new_ones(1, size)
            if lengths is None
            else (torch.arange(size, device=theta.device) < lengths[:, side, None].to(theta.device)).to(theta.dtype)
            for side, size in enumerate(theta.shape[1:])
        )
        if self.allow_unmatched and bool(theta.isneginf().any()):
            return rows, columns, self.argmax(theta).sum((1, 2))
        return rows, columns, None

    def linear_constraints(self, event_shape: tuple[int, int]) -> LinearConstraints:
        if self.allow_unmatched is True:
            raise UnsupportedError(
                "assignment with allow_unmatched=True has no linear constraints, since the number of pairs depends on "
                'the scores; set allow_unmatched to False or "by_score"'
            )
        n, m = event_shape
        used = self.bound["lengths"][0].tolist() if "lengths" in self.bound else event_shape
        cell = np.arange(n * m)
        places = np.concatenate([cell // m, n + cell % m]), np.concatenate([cell, cell]), np.ones(2 * n * m)
        side = [(np.arange(size) < own).astype(np.float64) for size, own in zip((n, m), used, strict=True)]
        full = [not self._by_score and own == min(used) for own in used]
        lower = np.concatenate([each * is_full for each, is_full in zip(side, full, strict=True)])
        return LinearConstraints.of(places, n * m, lower, np.concatenate(side))

    def _with_free_columns(self, theta: Tensor) -> Tensor:
        """Return θ; with ``allow_unmatched="by_score"``, with a column of score 0 for each row, which leaves it free.

        Each matching is then one matching of all rows, since no other row can take the column.
        """
        if not self._by_score:
            return theta
        n = theta.shape[1]
        diagonal = torch.eye(n, dtype=torch.bool, device=theta.device)
        free = theta.new_zeros(n, n).masked_fill(~diagonal, -torch.inf)
        return torch.cat([theta.detach(), free.expand(len(theta), n, n)], 2)

    def _layout(self, theta: Tensor) -> tuple[Any, ...]:
        """Return the leading kernel arguments: scores, row and column groups, and the most columns of a block."""
        from .kernels.assignment.rectangular import OTHER, SURPLUS, UNUSED, mark_surplus

        (scores,) = to_numpy(theta)
        batch, n, m = scores.shape
        lengths = self.bound.get("lengths")
        if self._by_score:  # all rows are matched, with columns that leave them free if nothing else
            used = [np.ones((1, n), bool), np.ones((1, m - n), bool)]
            if lengths is not None:
                (sizes,) = to_numpy(lengths)
                used = [np.arange(size) < sizes[:, side, None] for side, size in enumerate((n, m - n))]
            used[1] = np.concatenate([used[1], used[0]], 1)
            return scores, *(np.where(u, OTHER, UNUSED).astype(np.int8) for u in used), m
        if lengths is None:
            groups = [np.full((1, size), SURPLUS if n > m else OTHER, np.int8) for size in (n, m)]
        else:
            self.validate(theta)
            (sizes,) = to_numpy(lengths)
            smaller = np.where(sizes[:, :1] > sizes[:, 1:], SURPLUS, OTHER)
            used = [np.arange(size) < sizes[:, side, None] for side, size in enumerate((n, m))]
            groups = [np.where(u, smaller, UNUSED).astype(np.int8) for u in used]
        if not self.allow_unmatched or not np.isneginf(scores.min(initial=0.0)):
            return scores, *groups, max(n, m)
        used = [np.broadcast_to(g != UNUSED, (batch, g.shape[1])) for g in groups]
        groups = [np.where(u, OTHER, UNUSED).astype(np.int8) for u in used]
        parallel_rows(mark_surplus, batch, scores, *groups, work=OPERATIONS * scores.size)
        return scores, *groups, n + m

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all matchings, (|Y|, n, m) in float64, ordered by the number of pairs, rows and columns.

        With ``allow_unmatched=True``, the matchings of the whole smaller side, since scores without −inf admit no
        others. At most a million.
        """
        n, m = event_shape
        lengths = self.bound.get("lengths")
        rows, columns = (n, m) if lengths is None else lengths[0].tolist()
        small, large = min(rows, columns), max(rows, columns)
        sizes = range(small + 1) if self._by_score else [small]
        count = sum(math.comb(small, pairs) * math.perm(large, pairs) for pairs in sizes)
        check_enumerable(count, f"assignments of {rows} rows and {columns} columns")
        used = torch.zeros(count, small, large, dtype=torch.float64, device="cpu")
        every = (
            (matched, partners)
            for pairs in sizes
            for matched in itertools.combinations(range(small), pairs)
            for partners in itertools.permutations(range(large), pairs)
        )
        for structure, (matched, partners) in zip(used.numpy(), every, strict=True):
            structure[list(matched), list(partners)] = 1.0
        y = torch.zeros(count, n, m, dtype=torch.float64, device="cpu")
        y[:, :rows, :columns] = used if rows <= columns else used.mT
        return y

    def _option(self) -> str:
        return f"allow_unmatched={self.allow_unmatched!r}"


def _check_no(wrong: Tensor, reject: Callable[[], None]) -> None:
    """Call ``reject`` if an entry of ``wrong`` is True: on a device, at the end of the call."""
    if not skips_checks(wrong):
        check_number(wrong.any(), operator.not_, reject)


def _reject_column(labels: Tensor, sizes: Tensor, wrong: Tensor) -> None:
    index, row = wrong.nonzero()[0].tolist()
    raise InvalidInputError(
        f"labels must be columns between 0 and {int(sizes[index, 1]) - 1}, or −1 for an unmatched row, "
        f"got {int(labels[index, row])} for row {row} at batch index {index}"
    )


def _reject_rows(y: Tensor, taken: Tensor) -> None:
    index, column = (taken > 1).nonzero()[0].tolist()
    rows = y[index, :, column].nonzero().flatten().tolist()
    raise InvalidInputError(
        f"labels: rows {rows} have the same column, {column}, at batch index {index}; give each row a column of its own"
    )


def _reject_pairs(pairs: Tensor, smaller: Tensor) -> None:
    index = int((pairs < smaller).nonzero()[0, 0])
    raise InvalidInputError(
        f"labels must match the whole smaller side, in {int(smaller[index])} pairs, got {int(pairs[index])} "
        f'pairs at batch index {index}; pass allow_unmatched=True or "by_score" to allow fewer'
    )
