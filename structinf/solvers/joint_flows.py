"""The quadratic program over the local polytope of recursions that share variables, by an interior-point method.

The means of a recursion are the images of the flows of its hypergraph (`.flow_projection`). The local polytope of
several recursions over the same variables holds the flows that agree on the variables. A variable is then a single
flow through one hyperedge of each recursion, and the program is as large as all recursions together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..kernels import zeros
from ..parts import as_tuple
from .factor_projections import GroupScores
from .flow_plan import (
    MAX_ENTRIES,
    Recursion,
    aligned,
    below_goal,
    count_multiplications,
    flow_graph,
    largest_count,
    make_system,
    multiply_by_jacobian,
    run_kernel,
)
from .local_polytope_scores import LocalPolytope

if TYPE_CHECKING:
    from ..dp import Hypergraph, HypergraphProgram
    from ..kernels.flow_projection.system import FlowSystem

__all__ = ["JointFlowSolution", "solve_joint_flows"]

# Largest numbers of multiplications of a factorisation: in all, and for each part. Measured on pairs of chains of up to
# 60 states, of segmentations, of alignments and of trees: ADMM is faster for pairs of trees of 8 words and more.
_MAX_MULTIPLICATIONS = 25_000_000
_MAX_MULTIPLICATIONS_PER_PART = 10_000

# Scores below this multiple of the median score may be masks.
_LARGE_NEGATIVE = -1e4

# Largest number of Newton steps.
_MOST_STEPS = 60


@dataclass
class JointFlowSolution:
    """The solutions of a batch.

    Attributes
    ----------
    mean : (B, n) Tensor
        μ.
    additional : list of (B, F, a) Tensor
        The additional parts of each group.
    value, gap : (B,) Tensor
        The objective, and a bound of its distance to the maximum.
    residual : (B,) Tensor
        The largest violation of an equation of the flows.
    solved : (B,) bool Tensor
        Whether the solution is exact up to rounding.
    oracle_calls : int
        0.
    """

    mean: Tensor
    additional: list[Tensor]
    value: Tensor
    gap: Tensor
    residual: Tensor
    solved: Tensor
    oracle_calls: int
    _multiply: Callable[[Tensor], Tensor]

    def vjp(self, mean: Tensor, additional: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the products of cotangents, (B, n) and (B, F, a), with the Jacobian of the solution."""
        flat = torch.cat([mean, *(a.flatten(1) for a in additional)], 1)
        return _split(self._multiply(flat), mean.shape[1], additional)


def solve_joint_flows(problem: LocalPolytope) -> JointFlowSolution | None:
    """Maximise ⟨θ, μ⟩ − ½ ‖μ‖² plus the additional scores for all instances; None if the method does not apply.

    It applies on the CPU if all factors are recursions with a hypergraph, if no variable is negated, if each shared
    variable has one hyperedge in each of its factors, or several with the same head, and if the system is not large.

    Parameters
    ----------
    problem : LocalPolytope
        The graph with the scores.
    """
    from ..kernels.flow_projection import interior_point, joint_flows
    from ..kernels.simd.vector import LANES

    size, count = problem.theta.shape
    flat = torch.cat([problem.theta, *(g.additional.flatten(1) for g in problem.groups)], 1)
    factors = _factors(problem)
    plan = _plan(tuple(factor for factor, _ in factors), count, flat.shape[1]) if factors else None
    if plan is None:
        return None
    flat[:, :count].masked_fill_(problem.forbidden, -torch.inf)
    flat[:, plan.unused] = -torch.inf
    masked = _remove_masks(flat)
    goals = [nodes for _, nodes in factors]
    goal = np.stack([unknown[nodes] for unknown, nodes in zip(plan.unknown, goals, strict=True)])
    squares = np.stack([square[nodes] for square, nodes in zip(plan.squares, goals, strict=True)]).sum(0)
    mean = zeros(*flat.shape, dtype=torch.float64)
    gap, residual = torch.empty(2, size, dtype=torch.float64, device="cpu")
    exact = torch.empty(size, dtype=torch.bool, device="cpu")
    weights = aligned(-(-size // LANES), len(plan.system.part), LANES)
    tables = interior_point.EDGE_TABLES, interior_point.NODE_TABLES
    run_kernel(
        plan, joint_flows.project, *tables, len(weights), flat.numpy(), goal, plan.system, squares, _MOST_STEPS,
        masked.numpy(), mean.numpy(), gap.numpy(), residual.numpy(), exact.numpy(), weights,
    )  # fmt: skip
    # A variable of no factor has a solution of its own.
    mean[:, :count] = torch.where(problem.degree == 0, flat[:, :count].clamp(0, 1), mean[:, :count])
    linear = torch.where(mean != 0, flat * mean, 0.0).sum(1)
    own, additional = _split(mean, count, [g.additional for g in problem.groups])
    variables = as_tuple(problem.form)[0].shape[1:].numel()
    return JointFlowSolution(
        mean=own,
        additional=additional,
        value=linear - 0.5 * own.square().sum(1),
        gap=gap,
        residual=residual,
        # ADMM rejects factors whose structures use a variable twice.
        solved=exact & (own[:, :variables] <= 1 + 1e-9).all(1),
        oracle_calls=0,
        _multiply=functools.partial(multiply_by_jacobian, plan, weights),
    )


def _remove_masks(flat: Tensor) -> Tensor:
    """Replace masks such as −1e9 in scores (B, P) by −inf; return the scores of instances with masks, −inf for others.

    Their size would decide what counts as a rounding error. The bound of the maximum includes the masked parts, so that
    a part of the solution that counts as a mask by mistake does not pass. Without masks, the result is (0, 0).
    """
    finite = flat.masked_fill(flat.isneginf(), torch.nan)
    if not bool((finite < _LARGE_NEGATIVE).any()):
        return flat.new_zeros(0, 0)
    is_mask = flat < _LARGE_NEGATIVE * (1 + finite.abs().nanmedian(1, keepdim=True).values)
    masked = flat.masked_fill(~is_mask.any(1, keepdim=True), -torch.inf)
    flat.masked_fill_(is_mask, -torch.inf)
    return masked


def _factors(problem: LocalPolytope) -> list[tuple[_Factor, np.ndarray]]:
    """Return each factor with its goals (B,); an empty list if the method does not apply to a factor."""
    factors = []
    size, low = problem.theta.shape
    for group in problem.groups:
        graph = _hypergraph(group)
        if graph is None:
            return []
        with group.named(torch.arange(size, device="cpu")):
            goals = cast("HypergraphProgram", group.oracle)._goals(graph, size * len(group))
        only = None if group.oracle.bound else int(goals[0])
        width = group.additional.shape[2]
        for index, nodes in zip(group.index.numpy(), goals.reshape(size, len(group)).T, strict=True):
            parts = np.concatenate([index, np.arange(low, low + width)])
            factors.append((_Factor(graph, parts.tobytes(), only), nodes))
            low += width
    return factors


def _split(flat: Tensor, count: int, like: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return the coordinates and the additional parts of vectors (B, P)."""
    own, *rest = flat.split([count, *(t[0].numel() for t in like)], 1)
    return own, [t.reshape(a.shape) for t, a in zip(rest, like, strict=True)]


def _hypergraph(group: GroupScores) -> Hypergraph | None:
    """Return the hypergraph of the factors of a group; None if the method does not apply."""
    if bool(group.offset.any()):  # a variable is negated
        return None
    width = group.index.shape[1] + group.additional.shape[2]
    return flow_graph(group.oracle, group.group.as_parts(group.additional.new_zeros(1, width)))


# ----------------------------------------------------------------------------- the system


class _Factor(NamedTuple):
    """A factor: its hypergraph, the number of each part among all parts as int64 bytes, and the only goal, if any."""

    graph: Hypergraph
    parts: bytes
    goal: int | None


class _Plan(NamedTuple):
    """The system of several factors.

    Attributes
    ----------
    system : FlowSystem
        The system.
    multiplications : int
        The multiplications of a factorisation.
    unknown : list of (N,) int64
        The unknown of each node of a factor's hypergraph.
    squares : list of (N + 1,) float64
        The largest number of penalised hyperedges in a derivation of each node.
    unused : (U,) int64 Tensor
        The shared coordinates that one of their factors never uses, and that are therefore 0.
    """

    system: FlowSystem
    multiplications: int
    unknown: list[np.ndarray]
    squares: list[np.ndarray]
    unused: Tensor


@functools.lru_cache(maxsize=64)
def _plan(factors: tuple[_Factor, ...], count: int, total: int) -> _Plan | None:
    """Return the plan for ``count`` coordinates among ``total`` parts; None if the method does not apply."""
    numbers = [np.frombuffer(f.parts, np.int64) for f in factors]
    degree = np.bincount(np.concatenate(numbers), minlength=total + 1)
    is_penalised = np.arange(total + 1) < count
    shared = is_penalised & (degree > 1)
    all_uses = np.zeros_like(degree)
    recursions, nodes, squares, unused = [], [], [], []
    for factor, parts in zip(factors, numbers, strict=True):
        graph, number = factor.graph, np.append(parts, total)
        recursion, node_of = below_goal(graph, factor.goal)
        recursion, node_of = _join_equal_heads(recursion, node_of, number < count)
        uses = np.bincount(recursion.part, minlength=graph.parts + 1)[:-1]
        if (shared[parts] & (uses > 1)).any():
            return None
        all_uses[parts] = uses
        unused.append(parts[shared[parts] & (uses == 0)])
        recursions.append(recursion._replace(part=number[recursion.part]))
        nodes.append(node_of)
        squares.append(largest_count(graph, is_penalised[number[graph.part]]))
    system = make_system(recursions, is_penalised, all_uses, shared)
    if system.entries > MAX_ENTRIES:
        return None
    multiplications = count_multiplications(system.start)
    if multiplications > min(_MAX_MULTIPLICATIONS, _MAX_MULTIPLICATIONS_PER_PART * total):
        return None
    # Unknowns of nodes that no goal uses are −1, and nobody reads them.
    unknown = [np.where(of < 0, -1, system.unknown[low + of]) for of, low in zip(nodes, system.component, strict=False)]
    return _Plan(system, multiplications, unknown, squares, torch.from_numpy(np.concatenate(unused)))


def _join_equal_heads(recursion: Recursion, node_of: np.ndarray, penalised: np.ndarray) -> tuple[Recursion, np.ndarray]:
    """Give each penalised part of several hyperedges with the same head a node, and one hyperedge to this head.

    The new node is the head of the old hyperedges, which lose the part. Return also the new ``node_of``.
    """
    none = len(penalised) - 1
    head, tails, part = recursion.head, recursion.tails, recursion.part
    uses = np.bincount(part, minlength=none + 1)
    lowest, highest = np.full(none + 1, recursion.nodes), np.full(none + 1, -1)
    np.minimum.at(lowest, part, head)
    np.maximum.at(highest, part, head)
    parts = np.flatnonzero(penalised & (uses > 1) & (lowest == highest))
    if not len(parts):
        return recursion, node_of
    # A new node comes right before the head of its part.
    order = np.argsort(np.concatenate([2 * np.arange(recursion.nodes) + 1, 2 * lowest[parts]]), kind="stable")
    number = np.argsort(order, kind="stable")
    old, new = number[: recursion.nodes], number[recursion.nodes :]
    joined = np.full(none + 1, -1)
    joined[parts] = new
    moved = joined[part] >= 0
    head = np.concatenate([np.where(moved, joined[part], old[head]), old[lowest[parts]]])
    tails = np.concatenate([np.where(tails < 0, -1, old[tails]), np.column_stack([new, np.full_like(new, -1)])])
    part = np.concatenate([np.where(moved, none, part), parts])
    order = np.argsort(head, kind="stable")
    joint = Recursion(recursion.nodes + len(parts), head[order], tails[order], part[order])
    return joint, np.where(node_of < 0, -1, old[node_of])
