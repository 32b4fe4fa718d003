"""The passes of a smoothed recursion over a hypergraph, in compiled loops. Importing this module imports numba.

With x_e the score of a hyperedge, that of its part plus the values of its tails, q and s as in
`structinf.kernels.smooth_max`, and dots for derivatives along a direction z of the scores (Mensch & Blondel 2018,
Algorithms 1 and 2):

    inside          v_i = max_Ω {x_e : e leads to i}
    outside         f_e = q_e w_i,  added to the expected number of its part and to the w of its tails; w_goal = 1
    tangent inside  v̇_i = Σ_e q_e ẋ_e,  m_i = Σ_e s_e ẋ_e / Σ_e s_e,  q̇_e = s_e (ẋ_e − m_i)
    tangent outside ḟ_e = q̇_e w_i + q_e ẇ_i

Instances go through together, LANES at a time: the innermost loops run over instances and become vector code,
whatever the graph looks like. Two numbers a node are kept, from which q is recomputed, so that
memory grows with nodes and not with hyperedges. Values are float64, so that float32 scores lose nothing over
long recursions.

Arguments of the kernels, for the instances ``start:stop``:

    theta   (B, P) float32 or float64, contiguous
    goal    (B,) int64
    offset, part, tails, degree    `structinf.dp.Hypergraph`'s arrays, and the largest number of a node's hyperedges
    alpha   float64
"""

from __future__ import annotations

import numpy as np

from .jit import jit
from .smooth_max import curvature, probabilities, smooth_max

__all__ = ["gradient", "hessian_product", "inside", "value"]

LANES = 16


# ----------------------------------------------------------------------------- passes over a few instances


@jit
def inside(theta, first, offset, part, tails, alpha, v, tau, x):
    """Values and thresholds, (N + 1, L) and (n, L), of the first n nodes, for L instances from ``first``."""
    nodes, lanes = tau.shape
    kind, total, slope = np.empty(lanes, theta.dtype), np.empty(lanes), np.empty(lanes)
    own = np.empty((len(x), lanes), theta.dtype)
    v[-1] = 0.0
    for i in range(nodes):
        edge, count = offset[i], offset[i + 1] - offset[i]
        _scores(theta, first, part, tails, edge, count, v, own, x)
        smooth_max(x, count, alpha, kind, v[i], tau[i], total, slope)


@jit
def _scores(theta, first, part, tails, edge, count, v, own, x):
    """Scores, (count, L), of a node's hyperedges; ``own``, (count, L), is scratch of θ's dtype."""
    _parts(theta, first, part, edge, count, own)
    lanes, none = v.shape[1], len(v) - 1
    for k in range(count):
        one, other = tails[edge + k, 0], tails[edge + k, 1]
        for c in range(lanes):
            x[k, c] = v[one, c] + own[k, c]
        if other < none:
            for c in range(lanes):
                x[k, c] += v[other, c]


@jit
def _parts(theta, first, part, edge, count, own):
    """Scores of the parts alone, instance by instance: a node's parts lie close together, instances far apart."""
    parts = theta.shape[1]
    scored = 0
    for k in range(count):
        scored += part[edge + k] < parts
    if scored == 0:
        own[:count] = 0
        return
    for c in range(own.shape[1]):
        row = theta[first + c]
        if scored == count:
            for k in range(count):
                own[k, c] = row[part[edge + k]]
        else:
            for k in range(count):
                own[k, c] = row[part[edge + k]] if part[edge + k] < parts else 0


@jit
def _deliver(flow, first, part, tails, edge, count, w, out):
    """Add the ``flow``, (count, L), of a node's hyperedges to their parts' and their tails'."""
    parts, lanes, none = out.shape[1], flow.shape[1], len(w) - 1
    scored = 0
    for k in range(count):
        one, other = tails[edge + k, 0], tails[edge + k, 1]
        scored += part[edge + k] < parts
        if one < none:
            for c in range(lanes):
                w[one, c] += flow[k, c]
        if other < none:
            for c in range(lanes):
                w[other, c] += flow[k, c]
    if scored:
        for c in range(lanes):
            row = out[first + c]
            for k in range(count):
                if part[edge + k] < parts:
                    row[part[edge + k]] += flow[k, c]


@jit
def _last(goal, start, stop):
    """The number of nodes up to the highest goal."""
    last = 0
    for b in range(start, stop):
        last = max(last, goal[b])
    return last + 1


@jit
def _is_zero(row):
    for c in range(len(row)):
        if row[c] != 0:
            return False
    return True


# ----------------------------------------------------------------------------- kernels


@jit
def value(start, stop, theta, goal, offset, part, tails, degree, alpha, out):
    """DP_Ω to ``out``, (B,) float64."""
    nodes = _last(goal, start, stop)
    for first in range(start, stop, LANES):
        lanes = min(LANES, stop - first)
        v, tau, x = np.empty((len(offset), lanes)), np.empty((nodes, lanes)), np.empty((degree, lanes))
        inside(theta, first, offset, part, tails, alpha, v, tau, x)
        for c in range(lanes):
            out[first + c] = v[goal[first + c], c]


@jit
def gradient(start, stop, theta, goal, offset, part, tails, degree, alpha, weight, out_value, out):
    """DP_Ω to ``out_value``, (B,) float64, and weight · ∇DP_Ω to ``out``, (B, P) zeros of θ's dtype."""
    nodes = _last(goal, start, stop)
    for first in range(start, stop, LANES):
        lanes = min(LANES, stop - first)
        v, tau, x = np.empty((len(offset), lanes)), np.empty((nodes, lanes)), np.empty((degree, lanes))
        w, q = np.zeros((len(offset), lanes)), np.empty((degree, lanes), theta.dtype)
        inside(theta, first, offset, part, tails, alpha, v, tau, x)
        for c in range(lanes):
            out_value[first + c] = v[goal[first + c], c]
            w[goal[first + c], c] = weight[first + c]
        for i in range(nodes - 1, -1, -1):
            if _is_zero(w[i]):
                continue
            edge, count = offset[i], offset[i + 1] - offset[i]
            _scores(theta, first, part, tails, edge, count, v, q, x)
            probabilities(x, count, tau[i], alpha, q)
            _flow(q, count, w, i, x)
            _deliver(x, first, part, tails, edge, count, w, out)


@jit
def _flow(q, count, w, i, flow):
    """``flow`` = q w_i, (count, L)."""
    for k in range(count):
        for c in range(w.shape[1]):
            flow[k, c] = q[k, c] * w[i, c]


@jit
def hessian_product(start, stop, theta, direction, goal, offset, part, tails, degree, alpha, out_value, out):
    """DP_Ω to ``out_value``, (B,) float64, and ∇²DP_Ω times ``direction``, (B, P), to ``out``, (B, P) zeros."""
    nodes, none = _last(goal, start, stop), out[:, :0]
    for first in range(start, stop, LANES):
        lanes = min(LANES, stop - first)
        v, tau, x = np.empty((len(offset), lanes)), np.empty((nodes, lanes)), np.empty((degree, lanes))
        v_dot, m, x_dot = np.zeros((len(offset), lanes)), np.empty((nodes, lanes)), np.empty((degree, lanes))
        w, w_dot = np.zeros((len(offset), lanes)), np.zeros((len(offset), lanes))
        q, s = np.empty((degree, lanes), theta.dtype), np.empty((degree, lanes), theta.dtype)
        total = np.empty(lanes)
        inside(theta, first, offset, part, tails, alpha, v, tau, x)
        for i in range(nodes):
            edge, count = offset[i], offset[i + 1] - offset[i]
            _scores(theta, first, part, tails, edge, count, v, q, x)
            _scores(direction, first, part, tails, edge, count, v_dot, q, x_dot)
            probabilities(x, count, tau[i], alpha, q)
            curvature(q, count, alpha, s)
            _means(q, s, x_dot, count, v_dot[i], m[i], total)
        for c in range(lanes):
            out_value[first + c] = v[goal[first + c], c]
            w[goal[first + c], c] = 1.0
        for i in range(nodes - 1, -1, -1):
            if _is_zero(w[i]) and _is_zero(w_dot[i]):
                continue
            edge, count = offset[i], offset[i + 1] - offset[i]
            _scores(theta, first, part, tails, edge, count, v, q, x)
            _scores(direction, first, part, tails, edge, count, v_dot, q, x_dot)
            probabilities(x, count, tau[i], alpha, q)
            curvature(q, count, alpha, s)
            for k in range(count):
                for c in range(lanes):
                    x_dot[k, c] = s[k, c] * (x_dot[k, c] - m[i, c]) * w[i, c] + q[k, c] * w_dot[i, c]
            _flow(q, count, w, i, x)
            _deliver(x, first, part, tails, edge, count, w, none)
            _deliver(x_dot, first, part, tails, edge, count, w_dot, out)


@jit
def _means(q, s, x_dot, count, mean, middle, total):
    """Σ q ẋ to ``mean``, and Σ s ẋ / Σ s, or 0, to ``middle``."""
    for c in range(len(mean)):
        mean[c] = 0.0
        middle[c] = 0.0
        total[c] = 0.0
    for k in range(count):
        for c in range(len(mean)):
            mean[c] += q[k, c] * x_dot[k, c]
            middle[c] += s[k, c] * x_dot[k, c]
            total[c] += s[k, c]
    for c in range(len(mean)):
        middle[c] = middle[c] / total[c] if total[c] > 0 else 0.0
