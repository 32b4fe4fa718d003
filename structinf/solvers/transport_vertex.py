"""Transport plans without entropy: vertices of highest score, by linear programming."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..errors import SolverLimitError
from ..shapes import Float
from .sinkhorn import add_slack, equal_totals, forbid_unusable_cells

__all__ = ["best_transport_plan"]

# The smallest tolerances of the HiGHS solver. Scores are divided by their range first.
_OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def best_transport_plan(
    theta: Tensor, rows: Tensor, columns: Tensor, total: Tensor | None
) -> Float[Tensor, "batch rows columns"]:
    """Return argmax ⟨θ, P⟩ over plans P ≥ 0 with the given margins, up to 1e-10 times the range of the scores.

    The plans are vertices of the polytope. Instances are solved one after another: with 50 × 50 cells, an instance
    takes about 0.05 seconds.

    Parameters
    ----------
    theta : (B, n, m) Tensor
        The scores; −inf forbids a cell.
    rows : (B | 1, n) Tensor
        The sums of the rows, or upper bounds of the sums.
    columns : (B | 1, m) Tensor
        The sums of the columns, or upper bounds of the sums.
    total : (B,) Tensor, optional
        The total of the plan. By default the smaller total of the two margins.
    """
    scores, rows, columns = equal_totals(*add_slack(theta.detach().double(), rows, columns, total))
    scores = forbid_unusable_cells(scores, rows, columns)
    size, n, m = theta.shape
    plans = np.zeros(scores.shape)
    a, b = (np.broadcast_to(t.detach().cpu().numpy(), (size, t.shape[1])) for t in (rows, columns))
    for i, s in enumerate(scores.cpu().numpy()):
        plans[i] = _solve(s, a[i], b[i], i)
    return torch.from_numpy(plans[:, :n, :m]).to(theta)


def _solve(scores: np.ndarray, a: np.ndarray, b: np.ndarray, index: int) -> np.ndarray:
    from scipy.optimize import linprog  # imported here because the import is slow
    from scipy.sparse import coo_array

    plan, (i, j) = np.zeros(scores.shape), np.nonzero(np.isfinite(scores))
    if len(i) == 0:
        return plan
    costs = scores[i, j].max() - scores[i, j]
    cells = np.arange(len(i))
    constraints = coo_array(
        (np.ones(2 * len(i)), (np.concatenate([i, len(a) + j]), np.concatenate([cells, cells]))),
        shape=(len(a) + len(b), len(i)),
    ).tocsr()
    # The last constraint follows from the others, since both margins have the same total.
    found = linprog(
        costs / (costs.max() or 1.0),
        A_eq=constraints[:-1],
        b_eq=np.concatenate([a, b])[:-1],
        method="highs-ds",
        options=_OPTIONS,
    )
    if found.x is None:
        raise SolverLimitError(f"no optimal transport plan was found for batch index {index}: {found.message}", index)
    plan[i, j] = found.x.clip(min=0)
    return plan
