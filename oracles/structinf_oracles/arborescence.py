"""Arborescences: non-projective dependency trees, scored by their arcs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from structinf.errors import InvalidInputError
from structinf.kernels import parallel_rows, to_numpy
from structinf.kernels.gpu import uses_triton
from structinf.linear_constraints import LinearConstraints, LinearlyConstrained
from structinf.oracle import Enumerable, GibbsOracle, Samplable, computed_on_cpu
from structinf.parts import Parts
from structinf.restriction import Restrictable, argmax_of_feasible, in_order
from structinf.shapes import Float, Int
from structinf.validation import (
    check_count,
    check_enumerable,
    check_feasible,
    check_flag,
    check_k,
    check_number,
    skips_checks,
)

from .common.arborescence_projection import project_arborescence
from .common.connecting_constraints import connecting_constraints
from .common.dependency_arcs import arcs_in_use, arcs_that_agree, check_arcs, describe_arc, lengths_in_use
from .kernels.arborescence import dispatch

if TYPE_CHECKING:
    from structinf.solvers.direct_mean import DirectMean

__all__ = ["Arborescence"]

# The largest number of words whose best tree a GPU finds. One program of the GPU handles an instance, and takes about
# 2 µs for each row of scores, by the latency of its reductions. With more words, a core of the CPU reads rows faster.
# The limit follows from this estimate; no GPU was at hand to measure it.
MOST_ON_GPU = 127


@dataclass(frozen=True)
class Arborescence(GibbsOracle, Samplable, Restrictable, Enumerable, LinearlyConstrained):
    """Non-projective dependency trees: each of n words has one head, another word or the root.

    ⟨θ, y⟩ = Σ_m θ[head(m), m]. Words are numbered from 1 to n, and node 0 is the root.

    - Scores θ, shape (..., n + 1, n + 1): θ[h, m] is the score of the arc from head h to word m. Column 0 and the
      diagonal are never read. −inf forbids an arc.
    - Structure y, shape (..., n + 1, n + 1): 1 for each arc of the tree. Column 0, the diagonal and the padding are
      0.
    - Labels, shape (..., n): the head of each word, an integer in [0, n]. Decoded labels are −1 beyond the length.
    - Instance data ``lengths``, shape (...): the number of words without the root, an integer in [0, n]. Default: n.

    Parameters
    ----------
    single_root : bool, default False
        Whether exactly one word has the root as its head. If False, any number of words may.

    Notes
    -----
    ``argmax`` is the algorithm of Chu-Liu and Edmonds, in O(n²). Of arcs with equal scores into a node, the arc from
    the lowest head is taken. A single root takes one search, instead of a search for each of n roots. A GPU finds the
    best trees of at most 127 words; with more, CUDA tensors are copied to the CPU and back.

    Sums over trees follow the matrix-tree theorem (T. Koo, A. Globerson, X. Carreras & M. Collins, Structured
    prediction models via the matrix-tree theorem, EMNLP-CoNLL 2007), in O(n³). Determinants lose digits by
    cancellation where words prefer each other to the root. The oracle therefore eliminates words without
    subtractions. log Z and every marginal are accurate for any range of scores. Samples use the same elimination,
    with about n² operations each.

    References
    ----------
    Y. J. Chu & T. H. Liu, On the shortest arborescence of a directed graph (Scientia Sinica 14, 1965). J. Edmonds,
    Optimum branchings (Journal of Research of the National Bureau of Standards 71B, 1967).

    Examples
    --------
    >>> theta = torch.tensor(
    ...     [[[0.0, 1.0, 0.0], [0.0, 0.0, 10.0], [0.0, 10.0, 0.0]]]
    ... )
    >>> oracle = Arborescence()
    >>> oracle.decode(oracle.argmax(theta))
    tensor([[0, 1]])
    >>> oracle.log_partition(torch.zeros(1, 3, 3)).exp()
    tensor([3.])
    """

    single_root: bool = False

    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "Smoothable": "Edmonds' algorithm is not a dynamic program (a recursion of maxima); use projective_tree",
        }
    )
    name: ClassVar[str] = "arborescence"
    search_terms: ClassVar[tuple[str, ...]] = (
        "edmonds",
        "chu_liu_edmonds",
        "matrix_tree",
        "kirchhoff",
        "dependency_tree",
        "non_projective",
        "branching",
    )
    event_ndim: ClassVar[int | tuple[int, ...]] = 2
    instance_ndim = MappingProxyType({"lengths": 0})
    has_empty_structure = True
    label_ndim: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_flag("single_root", self.single_root)

    def has_binary_parts(self, theta: Parts) -> bool:
        return True

    def validate(self, theta: Tensor) -> None:
        check_arcs(self, theta)

    def valid_parts(self, theta: Tensor) -> Tensor:
        return arcs_in_use(self, theta)

    def allowed_parts(self, labels: Tensor, like: Tensor) -> Tensor:
        return arcs_that_agree(self, labels, like)

    def encode(self, labels: Tensor, like: Tensor) -> Tensor:
        n = like.shape[1] - 1
        if labels.ndim != 2 or labels.shape[1] != n:
            raise InvalidInputError(
                f"labels must be heads of shape (B, {n}), got shape {tuple(labels.shape)}; theta of shape "
                f"(B, {n + 1}, {n + 1}) scores {n} words and the root"
            )
        lengths = lengths_in_use(self, like).expand(len(labels))[:, None]
        inside = torch.arange(n, device=labels.device) < lengths
        heads = torch.where(inside, labels, 0).long().clamp(0, n)  # on a GPU, the checks may come later
        if not skips_checks(heads):
            is_wrong = (inside & ((labels < 0) | (labels > lengths))).any(1) | ~_are_trees(heads)
            if self.single_root:
                is_wrong |= (inside & (heads == 0)).sum(1) != 1
            check = partial(self._reject_heads, labels, heads, inside, lengths)
            check_number(is_wrong.any(), operator.not_, check)
        return _indicators(heads, inside, like)

    def _reject_heads(self, labels: Tensor, heads: Tensor, inside: Tensor, lengths: Tensor) -> None:
        """Raise InvalidInputError for the first instance of ``labels`` (B, n) that is no tree."""
        wrong = inside & ((labels < 0) | (labels > lengths))
        if bool(wrong.any()):
            b, m = wrong.nonzero()[0].tolist()
            raise InvalidInputError(
                f"labels must be heads between 0 (the root) and the number of words, {int(lengths[b])}; got "
                f"{int(labels[b, m])} for word {m + 1} at batch index {b}"
            )
        wrong = ~_are_trees(heads)
        if bool(wrong.any()):
            b = int(wrong.nonzero()[0])
            raise InvalidInputError(
                f"labels at batch index {b} are not a tree, as a cycle of heads never reaches the root; got heads "
                f"{heads[b, : int(lengths[b])].tolist()}"
            )
        roots = (inside & (heads == 0)).sum(1)
        b = int((roots != 1).nonzero()[0])
        raise InvalidInputError(
            f"labels at batch index {b} have {int(roots[b])} words whose head is the root, but single_root=True "
            f"requires exactly one; got heads {heads[b, : int(lengths[b])].tolist()}"
        )

    def decode(self, y: Tensor) -> Tensor:
        words = y[:, :, 1:]
        return torch.where((words == 0).all(1), -1, words.argmax(1))

    def describe_part(self, y: Tensor, tensor: int, index: tuple[int, ...]) -> str:
        return describe_arc(index)

    # -- the best tree ---------------------------------------------------------------------

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch nodes nodes"]:
        if theta.shape[1] <= MOST_ON_GPU + 1 and uses_triton(theta):
            from .kernels.arborescence import triton_argmax

            trees, feasible = triton_argmax.argmax(theta, lengths_in_use(self, theta), self.single_root)
            self._check_feasible(feasible)
            return trees
        from .kernels.arborescence.argmax import argmax

        trees = torch.zeros(theta.shape, dtype=theta.dtype, device="cpu")
        value = torch.empty(len(theta), dtype=torch.float64, device="cpu")
        scores, lengths, *results = to_numpy(theta, lengths_in_use(self, theta), trees, value)
        parallel_rows(argmax, len(theta), scores, lengths, self.single_root, *results, work=12 * theta.numel())
        self._check_feasible(value)
        return trees.to(theta.device, non_blocking=True)

    def argmax_indices(self, theta: Tensor) -> Int[Tensor, "batch words"] | None:
        if not theta.is_cpu or uses_triton(theta):
            return None
        from .kernels.arborescence.argmax import argmax_indices

        parts = torch.empty(len(theta), theta.shape[1] - 1, dtype=torch.int32, device="cpu")
        value = torch.empty(len(theta), dtype=torch.float64, device="cpu")
        scores, lengths, *results = to_numpy(theta, lengths_in_use(self, theta), value, parts)
        parallel_rows(argmax_indices, len(theta), scores, lengths, self.single_root, *results, work=12 * theta.numel())
        self._check_feasible(value)
        return parts

    @computed_on_cpu
    def topk(self, theta: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        from .kernels.arborescence.k_best import topk

        check_k(k)
        trees = torch.zeros((k, *theta.shape), dtype=theta.dtype, device="cpu")
        value = torch.full((k, len(theta)), -torch.inf, dtype=torch.float64, device="cpu")
        scores, lengths, *results = to_numpy(theta, lengths_in_use(self, theta), trees, value)
        parallel_rows(topk, len(theta), scores, lengths, self.single_root, *results, work=24 * trees.numel())
        self._check_feasible(value[0])
        trees, value = in_order(trees, value)
        return trees, value.to(theta), ~value.isneginf()

    @property
    def has_nested_structures(self) -> bool:
        return False

    def restricted_argmax(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Parts, Tensor]:
        return argmax_of_feasible(self, self.restricted_scores(theta, low, high)[0])

    def restricted_scores(self, theta: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        # A forced arc excludes the other arcs into the same word.
        excluded = (high < 1) | (low.amax(1, keepdim=True) > low)
        return theta.masked_fill(excluded, -torch.inf), theta.new_zeros(len(theta))

    # -- the Euclidean projection ----------------------------------------------------------

    def solve_quadratic(self, theta: Tensor, tolerance: float, max_iter: int) -> DirectMean:
        """Return argmax ⟨θ, μ⟩ − ½ ‖μ‖² over conv(Y), (B, n + 1, n + 1), with the Jacobian.

        Parameters
        ----------
        theta : (B, n + 1, n + 1) Tensor
            The scores, divided by the temperature.
        tolerance : float
            Without effect: converged solutions are exact up to rounding. For n = 16 and normal scores of any scale,
            they take one to four times as long as ``log_partition_and_marginals``.
        max_iter : int
            Maximal number of rounds for each instance, and of Newton steps in each round.
        """
        result = project_arborescence(
            theta, lengths_in_use(self, theta), single_root=self.single_root, max_iter=max_iter
        )
        self._check_feasible(result.value)
        return result

    # -- sums over trees -------------------------------------------------------------------

    def log_partition(self, theta: Tensor) -> Float[Tensor, " batch"]:
        value = dispatch.log_partition(theta, lengths_in_use(self, theta), single_root=self.single_root)
        self._check_feasible(value)
        return value.to(theta.dtype)

    def log_partition_and_marginals(self, theta: Tensor) -> tuple[Tensor, Parts]:
        if theta.device.type != "cpu" and not uses_triton(theta):
            return super().log_partition_and_marginals(theta)
        value, means = dispatch.log_partition_and_marginals(
            theta, lengths_in_use(self, theta), single_root=self.single_root
        )
        self._check_feasible(value)
        return value.to(theta.dtype), means

    def covariance_product(self, theta: Tensor, v: Tensor) -> Parts:
        if theta.device.type != "cpu" and not uses_triton(theta):
            return super().covariance_product(theta, v)
        lengths = lengths_in_use(self, theta)
        value, product = dispatch.covariance_product(theta, v, lengths, single_root=self.single_root)
        self._check_feasible(value)
        return product

    def sample(self, theta: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        check_count(n)
        flat = self._sample_heads(theta, n, generator).flatten(0, 1)
        return _indicators(flat.clamp(min=0), flat >= 0, theta).unflatten(0, (n, len(theta)))

    @computed_on_cpu
    def _sample_heads(self, theta: Tensor, n: int, generator: torch.Generator | None) -> Int[Tensor, "n batch words"]:
        """Return the head of each word, 0 for the root, in ``n`` samples; −1 in the padding."""
        feasible, heads = dispatch.sample_heads(
            theta, n, lengths_in_use(self, theta), single_root=self.single_root, generator=generator
        )
        self._check_feasible(feasible)
        return heads

    def linear_constraints(self, event_shape: tuple[int, int]) -> LinearConstraints:
        size = event_shape[0]
        mask: np.ndarray = arcs_in_use(self, torch.zeros(1, size, size, device="cpu"))[0].numpy()
        part = np.flatnonzero(mask)
        head, word, words = part // size, part % size, int(np.any(mask, 0).sum())
        # Each word has one head. With single_root, the root has one dependent.
        root = part[head == 0] if self.single_root else part[:0]
        rows = np.concatenate([word - 1, np.full(len(root), words)]), np.concatenate([part, root])
        total = np.ones(words + (len(root) > 0))
        return connecting_constraints((head, word, part), words + 1, size * size, rows, (total, total))

    def enumerate(self, event_shape: Any) -> Tensor:
        """Return all trees, (|Y|, n + 1, n + 1), at most a million.

        Their number is (n + 1)^(n − 1), or n^(n − 1) with a single root.
        """
        n = event_shape[0] - 1
        length = int(self.bound["lengths"]) if "lengths" in self.bound else n
        count = (length if self.single_root else length + 1) ** (length - 1)
        check_enumerable(count, f"arborescences of {length} words")
        nodes = torch.arange(length + 1, device="cpu")
        choices = torch.meshgrid(*(nodes[nodes != m] for m in nodes[1:]), indexing="ij")
        heads = torch.stack(choices, -1).reshape(-1, length)
        heads = heads[_are_trees(heads)]
        if self.single_root:
            heads = heads[(heads == 0).sum(1) == 1]
        padded = torch.nn.functional.pad(heads, (0, n - length))
        inside = (torch.arange(n, device="cpu") < length).expand_as(padded)
        return _indicators(padded, inside, torch.empty(1, n + 1, n + 1, dtype=torch.float64, device="cpu"))

    def _check_feasible(self, value: Tensor) -> None:
        check_feasible(value, "arborescence with a single root" if self.single_root else "arborescence")


def _are_trees(heads: Tensor) -> Tensor:
    """Return whether every word leads to the root, (B,), for heads (B, n) in 0, ..., n."""
    ancestors = torch.nn.functional.pad(heads, (1, 0))
    for _ in range(heads.shape[1].bit_length()):
        ancestors = ancestors.gather(1, ancestors)  # double the distance to each ancestor
    return (ancestors == 0).all(1)


def _indicators(heads: Tensor, inside: Tensor, like: Tensor) -> Tensor:
    """Return y (B, n + 1, n + 1), like ``like``, with the arcs of ``heads`` (B, n) to the words ``inside``."""
    y = like.new_zeros(len(heads), *like.shape[1:])
    y[:, :, 1:].scatter_(1, heads[:, None].to(like.device), inside[:, None].to(y))
    return y
