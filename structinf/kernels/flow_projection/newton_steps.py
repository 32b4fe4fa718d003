"""The steps of the interior-point method over flows, and its end on a face.

`structinf.kernels.flow_projection.interior_point` defines the symbols and gives the references.
"""

from __future__ import annotations

import numpy as np

from ..jit import jit
from ..simd.memory import row, store_row, zero
from ..simd.vector import largest, maximum, minimum, where_less
from .passes import set_at_goals
from .system import add_edge, add_to_ends, clear, factor, group_of, slope, solve

__all__ = ["FREE_CURVATURE", "ROUNDED_FLOW", "end_on_face", "iterate"]

FREE_CURVATURE = 1e-5
"""The curvature of hyperedges without a penalty in Jacobians, for a finite result where their flows are not unique."""

# Steps go on while they multiply Σ f z by less than this number.
_FALLING = 0.9999

# Below this multiple of the rounding error, steps must multiply Σ f z by less than the second number.
_NEAR_ROUNDING = 1e3
_FALLING_NEAR_ROUNDING = 0.97

# Steps of at least the second number go on while more than the first number is left of A f − b.
_FEASIBLE = 1e-6
_LEAST_STEP = 1e-2

# Newton steps on a face; the later steps remove the effect of the proximal term and rounding errors.
_FACE_STEPS = 3

# Largest number of faces of an instance.
_FACES = 12

ROUNDED_FLOW = 1e-13
"""A flow of this size may be rounding."""

# The slack of hyperedges that never enter the face.
_NEVER = 1e300

# A step ends before a flow or a slack is 0, at this multiple of the distance.
_INSIDE = 0.995


@jit
def _move_potentials(work, links, step):
    """Add ``step`` · x to the potentials, which only columns of several hyperedges need."""
    if links.hyperedges > links.columns:
        for i in range(links.nodes):
            change = where_less(0.0, step, step * row(work.x, i), 0.0)
            store_row(work.potentials, i, row(work.potentials, i) + change)


@jit
def _advance_and_assemble(edges, work, links, step, least_slack, goal, first):
    """Add ``step`` times the direction (tables b, a, and x) to f, z and the potentials, and set up the system.

    z stays above ``least_slack``, since rounding errors of z near 0 would block the next steps. Table a gets
    1 / (z + f h). Return the sum of the products f z.
    """
    curvature, matrix, right = links.curvature, work.matrix, work.right
    clear(right, links.rows + 1)
    clear(matrix, links.entries)
    for k in range(links.groups):
        store_row(matrix, links.place[links.nodes + k] + links.nodes + k, zero(matrix) + 1.0)
    set_at_goals(right, goal, first, -1.0)
    products = zero(right)
    _move_potentials(work, links, step)
    for e in range(links.columns):
        # A lane at its end may have an undefined direction.
        proximal = max(links.proximal - curvature[e], 0.0)
        change = where_less(0.0, step, step * row(edges.b, e), 0.0)
        flow = row(edges.flow, e) + change
        slack = row(edges.slack, e) + where_less(0.0, step, step * row(edges.a, e), 0.0)
        slack = maximum(slack, least_slack)
        residual = (1.0 - step) * row(edges.residual, e) - proximal * change
        store_row(edges.residual, e, residual)
        store_row(edges.flow, e, flow)
        store_row(edges.slack, e, slack)
        products += where_less(0.0, flow, flow * slack, 0.0)
        scale = 1.0 / (slack + flow * (curvature[e] + proximal))
        weight = flow * scale
        store_row(edges.a, e, scale)
        add_edge(matrix, links, e, weight)
        down = weight * (slack + residual)
        add_to_ends(right, links, e, flow - down, 0.0 - down)
    return products


@jit
def _predict(edges, links, x):
    """Write the products df dz of the step with targets 0 to table b. Return their sum, and 1 / the longest step."""
    curvature = links.curvature
    total = zero(x)
    limit = zero(x)
    for e in range(links.columns):
        flow = row(edges.flow, e)
        # −df / f; and −dz / z is 1 minus the same number, because f dz + z df = −f z.
        slope_of_edge = slope(x, links, e) + row(edges.residual, e)
        fall = row(edges.a, e) * (row(edges.slack, e) + slope_of_edge)
        change = 0.0 - flow * fall
        other = slope_of_edge + max(curvature[e], links.proximal) * change
        product = change * other
        store_row(edges.b, e, product)
        total += product
        limit = maximum(limit, where_less(0.0, flow, maximum(fall, 1.0 - fall), 0.0))
    return total, limit


@jit
def _correct(edges, links, target, right):
    """Add the targets and the products df dz to the right side; leave both, times table a, in table b."""
    for e in range(links.columns):
        flow = row(edges.flow, e)
        extra = where_less(0.0, flow, row(edges.a, e) * (target - row(edges.b, e)), 0.0)
        store_row(edges.b, e, extra)
        add_to_ends(right, links, e, extra, extra)


@jit
def _direction(edges, links, sums, least_slack, x):
    """Write df to table b and dz to table a. Return 1 / the longest step.

    The changes of the groups in ``x`` are replaced by the sums of df, so that z stays exact if the solution of the
    system is not.
    """
    curvature = links.curvature
    clear(sums, links.rows + 1)
    for e in range(links.columns):
        slope_of_edge = slope(x, links, e) + row(edges.residual, e)
        fall = row(edges.a, e) * (row(edges.slack, e) + slope_of_edge)
        change = row(edges.b, e) - row(edges.flow, e) * fall
        store_row(edges.b, e, change)
        if links.groups:
            group = group_of(links, e)
            store_row(sums, group, row(sums, group) + change)
    for k in range(links.nodes, links.rows):
        store_row(x, k, row(sums, k))
    limit = zero(x)
    for e in range(links.columns):
        flow, slack, change = row(edges.flow, e), row(edges.slack, e) + least_slack, row(edges.b, e)
        slope_of_edge = slope(x, links, e) + row(edges.residual, e)
        other = where_less(0.0, flow, slope_of_edge + max(curvature[e], links.proximal) * change, 0.0)
        store_row(edges.a, e, other)
        fall = maximum((0.0 - change) * slack, (0.0 - other) * flow) / (flow * slack)
        limit = maximum(limit, where_less(0.0, flow, fall, 0.0))
    return limit


@jit
def _copy(source, target, count):
    for i in range(count):
        store_row(target, i, row(source, i))


@jit
def iterate(edges, work, links, goal, first, count, stop, rounding, least_slack, max_iter):
    """Take steps until Σ f z is at most ``stop`` in all lanes, or no longer falls. Return the number of steps."""
    x, right, inverse_pivots, matrix = work.x, work.right, work.inverse_pivots, work.matrix
    one = zero(x) + 1.0
    step = zero(x)
    lowest = zero(x) + np.inf
    slow_below = _NEAR_ROUNDING * rounding
    # What is left of A f − b of the start, which is 0 with one hypergraph. Until it is small, Σ f z may rise.
    violation = one if links.hyperedges > links.columns else zero(x)
    for e in range(links.columns):
        store_row(edges.a, e, zero(x))
        store_row(edges.b, e, zero(x))
        store_row(edges.residual, e, zero(x))
    for iteration in range(max_iter + 1):
        products = _advance_and_assemble(edges, work, links, step, least_slack, goal, first)
        # Rounding limits lanes whose products no longer fall.
        limit = where_less(products, slow_below, _FALLING_NEAR_ROUNDING * lowest, _FALLING * lowest)
        is_open = where_less(stop, products, where_less(products, limit, one, 0.0), 0.0)
        if iteration:
            violation = (1.0 - step) * violation
            is_open = where_less(_FEASIBLE, violation, where_less(_LEAST_STEP, step, one, 0.0), is_open)
        lowest = minimum(lowest, products)
        if iteration == max_iter or largest(is_open) == 0:
            return iteration
        factor(matrix, links, inverse_pivots)
        _copy(right, x, links.rows + 1)
        store_row(x, links.rows, zero(x))
        solve(matrix, links, inverse_pivots, x)
        second, limit = _predict(edges, links, x)
        step = minimum(one, 1.0 / limit)
        left = (1.0 - step) + step * step * second / maximum(products, 1e-300)
        _correct(edges, links, left * left * left * products / count, right)
        _copy(right, x, links.rows + 1)
        store_row(x, links.rows, zero(x))
        solve(matrix, links, inverse_pivots, x)
        limit = _direction(edges, links, work.sums, least_slack, x)
        step = where_less(0.0, is_open, minimum(one, maximum(1.0 - left, _INSIDE) / limit), 0.0)
    return max_iter


@jit
def _assemble_face(edges, links, matrix):
    """Set up the system with the weights in table a, which are 0 outside the face."""
    clear(matrix, links.entries)
    for k in range(links.nodes, links.rows):
        store_row(matrix, links.place[k] + k, zero(matrix) + 1.0)
    for e in range(links.columns):
        add_edge(matrix, links, e, row(edges.a, e))


@jit
def _change_face(edges, links, rounding, is_open):
    """Change the face, given by table a, where it is not optimal, in the lanes with ``is_open`` = 1.

    Hyperedges with a negative flow leave the face, and those with z < 0 enter it. Return 1 in the lanes with a change.
    """
    curvature = links.curvature
    changed = zero(edges.a)
    for e in range(links.columns):
        old, entering = row(edges.a, e), 1.0 / max(curvature[e], links.proximal)
        inside = where_less(row(edges.b, e), -ROUNDED_FLOW, 0.0, old)
        outside = where_less(row(edges.slack, e), 0.0 - rounding, entering, zero(old))
        new = where_less(0.0, is_open, where_less(0.0, old, inside, outside), old)
        changed = maximum(changed, where_less(new, old, 1.0, where_less(old, new, 1.0, zero(old))))
        store_row(edges.a, e, new)
    return changed


@jit
def _clear_outside(edges, links, is_open, sums):
    """Set the flow outside the face to 0, and update z, in the lanes with ``is_open`` = 1."""
    curvature = links.curvature
    clear(sums, links.rows + 1)
    for e in range(links.columns):
        flow = row(edges.b, e)
        change = where_less(0.0, is_open, where_less(0.0, row(edges.a, e), 0.0, 0.0 - flow), 0.0)
        store_row(edges.b, e, flow + change)
        store_row(edges.slack, e, row(edges.slack, e) + curvature[e] * change)
        group = group_of(links, e)
        store_row(sums, group, row(sums, group) + change)
    store_row(sums, links.rows, zero(sums))
    for e in range(links.columns):
        store_row(edges.slack, e, row(edges.slack, e) + row(sums, group_of(links, e)))


@jit
def _step_on_face(edges, work, links, goal, first, is_open):
    """Take a Newton step for z = 0 on the face, in the lanes with ``is_open`` = 1."""
    curvature, x, right = links.curvature, work.x, work.right
    clear(right, links.rows + 1)
    set_at_goals(right, goal, first, -1.0)
    for e in range(links.columns):
        down = row(edges.a, e) * row(edges.slack, e)
        add_to_ends(right, links, e, row(edges.b, e) - down, 0.0 - down)
    _copy(right, x, links.rows + 1)
    store_row(x, links.rows, zero(x))
    solve(work.matrix, links, work.inverse_pivots, x)
    _move_potentials(work, links, is_open)
    clear(right, links.rows + 1)
    for e in range(links.columns):
        change = 0.0 - row(edges.a, e) * (row(edges.slack, e) + slope(x, links, e))
        change = where_less(0.0, is_open, change, 0.0)
        store_row(edges.b, e, row(edges.b, e) + change)
        group = group_of(links, e)
        store_row(right, group, row(right, group) + change)
        store_row(edges.slack, e, row(edges.slack, e) + curvature[e] * change)
    for k in range(links.nodes, links.rows):
        store_row(x, k, row(right, k))
    for e in range(links.columns):
        change = where_less(0.0, is_open, slope(x, links, e), 0.0)
        store_row(edges.slack, e, row(edges.slack, e) + change)


@jit
def end_on_face(edges, work, links, goal, first, rounding):
    """Write the optimal flow of a face to table b, from f and z: at first, the flow is 0 where f is below z.

    On the face, Newton steps solve z = 0 without bounds. Then hyperedges with a negative flow leave the face,
    and those with z < 0 enter it, until there are none (block pivoting: J. Júdice & F. Pires, A block principal
    pivoting algorithm for large-scale strictly monotone linear complementarity problems, Computers & Operations
    Research 21, 1994). Table a gets the weights of the Jacobian on the face.

    Return 1 in the lanes whose face is optimal up to ``rounding``, else 0.
    """
    curvature, x, right, matrix = links.curvature, work.x, work.right, work.matrix
    for e in range(links.columns):
        flow, slack = row(edges.flow, e), row(edges.slack, e)
        weight = zero(x) + 1.0 / max(curvature[e], links.proximal)
        store_row(edges.a, e, where_less(slack, flow, weight, 0.0))
        store_row(edges.b, e, flow)
        # Hyperedges outside all derivations of finite score have no flow, and never enter.
        store_row(edges.slack, e, where_less(0.0, flow, slack + row(edges.residual, e), _NEVER))
    one = zero(x) + 1.0
    is_open = one
    _clear_outside(edges, links, is_open, right)
    for _ in range(_FACES):
        _assemble_face(edges, links, matrix)
        factor(matrix, links, work.inverse_pivots)
        for _ in range(_FACE_STEPS):
            _step_on_face(edges, work, links, goal, first, is_open)
        is_open = _change_face(edges, links, rounding, is_open)
        if largest(is_open) == 0:
            break
        _clear_outside(edges, links, is_open, right)
    for e in range(links.columns):
        is_positive = row(edges.a, e)
        weight = zero(x) + 1.0 / max(curvature[e], FREE_CURVATURE)
        store_row(edges.a, e, where_less(0.0, is_positive, weight, 0.0))
    return one - is_open
