"""The Euclidean projection onto the convex hull of arborescences: sparsemap without a support."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from structinf.kernels import parallel_rows, to_numpy
from structinf.parts import Parts, as_tuple
from structinf.solvers.direct_mean import DirectMean

__all__ = ["project_arborescence"]


def project_arborescence(theta: Tensor, lengths: Tensor, *, single_root: bool, max_iter: int) -> DirectMean:
    """Return argmax ⟨θ, μ⟩ − ½ ‖μ‖² over the convex hull of the trees, for each instance.

    Converged solutions are exact up to rounding. Other instances have a gap of +inf, and their μ may lie outside the
    convex hull. The computation runs on the CPU in float64.

    Parameters
    ----------
    theta : (B, n + 1, n + 1) Tensor
        Scores of the arcs.
    lengths : (B,) int64 Tensor
        Numbers of words.
    single_root : bool
        Whether exactly one word has the root as its head.
    max_iter : int
        Maximal number of rounds for each instance, and of Newton steps in each round.

    Returns
    -------
    DirectMean
        The value of an instance without a tree is −inf, and its mean is 0. If an arc, or a set that exactly one unit
        enters, is about to become inactive or active, ``vjp`` takes an element of the generalised Jacobian.
    """
    from ..kernels.arborescence.projection import project, vjp

    batch, width = theta.shape[:2]
    scores, counts = to_numpy(theta.detach().to("cpu", torch.float64), lengths)
    mean = np.zeros(scores.shape)
    active, actives = np.empty((batch, 3 * (width - 1), width), np.bool_), np.empty(batch, np.int64)
    value, gap, is_exact = np.empty(batch), np.empty(batch), np.empty(batch, np.bool_)
    results = (mean, active, actives)
    work = 40 * scores.size  # about 40 operations for each arc
    parallel_rows(project, batch, scores, counts, single_root, max_iter, *results, value, gap, is_exact, work=work)

    def product(cotangent: Parts) -> Tensor:
        (vector,) = to_numpy(as_tuple(cotangent)[0].detach().to("cpu", torch.float64))
        out = np.zeros(scores.shape)
        parallel_rows(vjp, batch, vector, counts, *results, out, work=10 * out.size)
        return torch.from_numpy(out).to(theta)

    return DirectMean(
        mean=torch.from_numpy(mean).to(theta),
        value=torch.from_numpy(value).to(theta),
        gap=torch.from_numpy(gap).to(theta),
        converged=torch.from_numpy(is_exact).to(theta.device),
        vjp=product,
    )
