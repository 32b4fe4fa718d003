"""The quadratically regularized mean of a dynamic program, by an interior-point method over the flows of its graph.

The convex hull of the derivations of a hypergraph is the image of the flows f ≥ 0 that enter the goal once and leave
every other node as often as they enter it (R. Martin, R. Rardin & B. Campbell, Polyhedral characterization of discrete
dynamic programming, Operations Research 38, 1990). The number of iterations hardly depends on the scale of the scores,
whereas the active-set method takes hundreds of rounds at small scores, where the mean has a large support.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..kernels import zeros
from ..oracle import Oracle
from ..parts import Parts
from ..validation import check_feasible
from .argmax import checked_argmax
from .direct_mean import DirectMean
from .flow_plan import (
    MAX_ENTRIES,
    aligned,
    below_goal,
    count_multiplications,
    flow_graph,
    largest_count,
    make_system,
    multiply_by_jacobian,
    run_kernel,
)
from .mean_problem import MeanProblem

if TYPE_CHECKING:
    from ..dp import Hypergraph, HypergraphProgram
    from ..kernels.flow_projection.system import FlowSystem

__all__ = ["project_flow"]

# Largest numbers of multiplications of a factorisation: in all; in all and for each penalised part of graphs of middle
# size; for each penalised part; and regardless of the number of parts. Measured on chains, grids, alignments, trees,
# knapsacks and segmentations with scores of scale 0.03 to 3: above these numbers, the active-set method is faster on
# average.
_MAX_MULTIPLICATIONS = 1_600_000
_MIDDLE, _MAX_MULTIPLICATIONS_PER_PART_OF_MIDDLE = 310_000, 3_200
_MAX_MULTIPLICATIONS_PER_PART = 500
_SMALL = 75_000

# The same for each penalised part, if the mean must be exact: the active-set method then needs more rounds.
_MAX_MULTIPLICATIONS_PER_PART_OF_EXACT_MEAN = 5_000

# Scores below this number may be masks.
_LARGE_NEGATIVE = -1e4


def project_flow(
    oracle: Oracle,
    theta: Parts,
    *,
    readout: bool,
    tolerance: float,
    max_iter: int,
    accepted: float = 0.0,
    exact: bool = False,
) -> DirectMean | None:
    """Solve max ⟨θ, μ⟩ − ½ ‖R μ‖² over the means μ of the derivations, where R is the identity or the readout.

    Parameters
    ----------
    oracle : Oracle
        The set of structures.
    theta : (B | 1, *event) tensor, or a tuple of them
        The scores, finite or −inf.
    readout : bool
        Penalise the readout instead of all parts.
    tolerance : float
        Bound of ‖R (μ − μ*)‖, relative to √n, where n is the largest number of penalised hyperedges of a derivation.
        With 0, the gap is down to rounding.
    max_iter : int
        Largest number of Newton steps.
    accepted : float
        Bound as ``tolerance`` at which an instance has converged, if larger. Newton steps stop early if scores without
        a penalty are nearly tied, such as transitions after the first step of Adam from zeros.
    exact : bool
        Whether an instance has converged only if μ is the mean of a face of the flows that is optimal up to rounding.
        With ties, the error of an interior point is the square root of its gap.

    Returns
    -------
    DirectMean or None
        None if :func:`.flow_plan.flow_graph` returns None, if the readout does not consist of tensors of the structure,
        or if the graph is too large. ``vjp`` multiplies by the generalised Jacobian on the face of the hyperedges with
        positive flow, and is exact up to about 1e-9 if the face is optimal. Where parts without a penalty can change
        without a change of R μ and of the score, the Jacobian does not change them.

    Raises
    ------
    InfeasibleError
        If an instance has no structure of finite score.
    """
    with torch.no_grad():
        graph = flow_graph(oracle, theta)
        if graph is None:
            return None
        program, problem = cast("HypergraphProgram", oracle), MeanProblem(oracle, theta, readout)
        flattening, size = problem.flattening, problem.batch
        if not size:
            empty = torch.zeros(0, dtype=flattening.dtype, device="cpu")
            mean = flattening.unflatten(torch.zeros(0, len(flattening), dtype=torch.float64, device="cpu"))
            return DirectMean(mean, empty, empty, empty > 0, lambda cotangent: cotangent)
        if not _selects_tensors(problem):
            return None
        # The same solver for all goals, so that an instance has the same result alone and in every batch.
        whole = _plan(graph, _penalised_ranges(problem), None)
        if whole.system.entries > MAX_ENTRIES or whole.multiplications > _limit(int(problem.penalised.sum()), exact):
            return None
        plan = _plan_of(program, graph, problem)
        graph, flat, goal = program._graph_parts_goals(flattening.as_parts(problem.theta))
        flat = _without_useless_parts(oracle, problem, flat, graph.size_of(goal))
        nodes = plan.node_of[goal.numpy()]
        solution = _solve(plan, flat, nodes, 0.5 * tolerance**2, max_iter)
        check_feasible(solution.value, f"structure of {oracle.label()}")
        largest = torch.from_numpy(plan.squares[nodes])
        limit = torch.maximum(solution.target, (0.5 * accepted**2) * largest)

    def vjp(cotangent: Parts) -> Parts:
        with torch.no_grad():
            return flattening.unflatten(multiply_by_jacobian(plan, solution.weights, flattening.flatten(cotangent)))

    return DirectMean(
        mean=flattening.unflatten(solution.mean),
        value=solution.value.to(flattening.dtype),
        gap=solution.gap.to(flattening.dtype),
        converged=solution.exact if exact else solution.gap <= limit,
        vjp=vjp,
    )


def _limit(parts: int, exact: bool) -> int:
    """Return the largest number of multiplications of a factorisation for a graph with ``parts`` penalised parts."""
    per_part = _MAX_MULTIPLICATIONS_PER_PART_OF_EXACT_MEAN if exact else _MAX_MULTIPLICATIONS_PER_PART
    of_middle_size = min(_MIDDLE, _MAX_MULTIPLICATIONS_PER_PART_OF_MIDDLE * parts)
    return min(_MAX_MULTIPLICATIONS, max(_SMALL, of_middle_size, per_part * parts))


def _without_useless_parts(oracle: Oracle, problem: MeanProblem, flat: Tensor, size: int) -> Tensor:
    """Return the scores with −inf in place of large negative scores of parts that no structure of the mean uses.

    Let a structure have at most ``size`` = L parts, so ‖R y‖² ≤ L². Optimality of μ implies ⟨θ, y* − y⟩ ≤ ⟨R μ, R (y* −
    y)⟩ ≤ L² for all y of positive weight. A mask such as the smallest float is a score of this kind. Its size would
    otherwise decide what counts as a rounding error.
    """
    finite = flat.masked_fill(flat.isneginf(), 0.0)
    if finite.numel() == 0 or float(finite.min()) > _LARGE_NEGATIVE:
        return flat
    theta = problem.flattening.as_parts(problem.theta)
    least = oracle.score(theta, checked_argmax(oracle, theta)) - size**2 - size * finite.amax(1).clamp(min=0)
    return flat.masked_fill(flat < least[:, None], -torch.inf)


# ----------------------------------------------------------------------------- kernels


class _Solution(NamedTuple):
    """The arrays written by :func:`structinf.kernels.flow_projection.interior_point.project`."""

    mean: Tensor
    value: Tensor
    gap: Tensor
    target: Tensor
    exact: Tensor
    weights: np.ndarray


def _solve(plan: _Plan, theta: Tensor, goal: np.ndarray, tolerance: float, max_iter: int) -> _Solution:
    from ..kernels.flow_projection import interior_point as kernels
    from ..kernels.simd.vector import LANES

    size, groups = len(theta), -(-len(theta) // LANES)
    mean = zeros(*theta.shape, dtype=torch.float64)
    value, gap, target = torch.empty(3, size, dtype=torch.float64, device="cpu")
    exact = torch.empty(size, dtype=torch.bool, device="cpu")
    weights = aligned(groups, len(plan.system.part), LANES)
    outputs = mean.numpy(), value.numpy(), gap.numpy(), target.numpy(), exact.numpy(), weights
    squares = plan.squares[goal]
    run_kernel(
        plan, kernels.project, kernels.EDGE_TABLES, kernels.NODE_TABLES, groups,
        theta.contiguous().numpy(), goal[None], plan.system, tolerance, squares, max_iter, *outputs,
    )  # fmt: skip
    return _Solution(mean, value, gap, target, exact, weights)


# ----------------------------------------------------------------------------- graphs


class _Plan(NamedTuple):
    """What depends only on the hypergraph, the penalty and the goal.

    Attributes
    ----------
    system : FlowSystem
        The part of the hypergraph below the goal.
    node_of : (N,) int64
        The number in ``system`` of each node of the hypergraph; −1 for others.
    squares : (nodes,) float64
        The largest number of penalised hyperedges in a derivation of each node of ``system``.
    multiplications : int
        The multiplications of a factorisation.
    """

    system: FlowSystem
    node_of: np.ndarray
    squares: np.ndarray
    multiplications: int


def _selects_tensors(problem: MeanProblem) -> bool:
    """Return whether the penalised coordinates are whole tensors of θ."""
    flattening = problem.flattening
    if flattening.extra or len(problem.penalised) != 1:
        return False
    pieces = flattening.split(problem.penalised)
    return all(
        bool((piece == penalised).all()) for piece, penalised in zip(pieces, problem.tensor_is_penalised, strict=True)
    )


def _plan_of(oracle: HypergraphProgram, graph: Hypergraph, problem: MeanProblem) -> _Plan:
    goals = np.unique(oracle._goals(graph, problem.batch))
    return _plan(graph, _penalised_ranges(problem), int(goals[0]) if len(goals) == 1 else None)


def _penalised_ranges(problem: MeanProblem) -> tuple[tuple[int, int], ...]:
    """Return the first and the last coordinate + 1 of each penalised tensor."""
    offset = problem.flattening.offset
    ranges = zip(offset, offset[1:], problem.tensor_is_penalised, strict=False)
    return tuple((start, stop) for start, stop, is_penalised in ranges if is_penalised)


@functools.lru_cache(maxsize=256)
def _plan(graph: Hypergraph, penalised: tuple[tuple[int, int], ...], goal: int | None) -> _Plan:
    """Return the plan for one ``goal``, or for any goal of the graph."""
    recursion, node_of = below_goal(graph, goal)
    is_penalised = np.zeros(graph.parts + 1, np.bool_)
    for start, stop in penalised:
        is_penalised[start:stop] = True
    uses = np.bincount(graph.part, minlength=graph.parts + 1)  # of all goals, as for a batch with several
    system = make_system([recursion], is_penalised, uses, np.zeros_like(is_penalised))
    squares = largest_count(graph, is_penalised[graph.part])[:-1][node_of >= 0]
    return _Plan(system, node_of, squares, count_multiplications(system.start))
