"""Check of linear constraints: the best integer point is a best structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import UnsupportedError
from ..linear_constraints import LinearlyConstrained
from ..parts import as_tuple, inner_product, map_parts
from .cases import Case
from .check import Check, add_check
from .comparisons import NotApplicable, expect
from .enumeration import to_float64_cpu
from .theta_families import instance

__all__ = ["ORACLE_CHECKS"]

ORACLE_CHECKS: list[Check] = []


@add_check(ORACLE_CHECKS, ability=LinearlyConstrained, families=("normal",), dtypes=(torch.float64,))
def linear_constraints(case: Case) -> None:
    """The best integer point of the linear constraints has the score of argmax."""
    from scipy.optimize import LinearConstraint, milp

    best = inner_product(to_float64_cpu(case.theta), to_float64_cpu(case.oracle.argmax(case.theta)))
    for b in range(case.size)[-1:]:
        oracle = case.rows([b]).oracle
        assert isinstance(oracle, LinearlyConstrained)
        try:
            matrix, lower, upper, has_integers = oracle.linear_constraints(case.target.event_shape)
        except UnsupportedError as error:
            raise NotApplicable(str(error)) from None
        scores = torch.cat([t.flatten() for t in as_tuple(map_parts(lambda t: t[0], instance(case.theta, b)))]).double()
        expect(
            matrix.shape[1] >= len(scores) and matrix.shape[0] == len(lower) == len(upper),
            f"the matrix of linear_constraints must have a column for each of {len(scores)} parts, and a row for each "
            f"bound, got shape {matrix.shape} with {len(lower)} lower and {len(upper)} upper bounds",
        )
        objective = np.zeros(matrix.shape[1])
        objective[: len(scores)] = -scores.cpu().numpy()
        integral = np.arange(len(objective)) < (len(objective) if has_integers else len(scores))
        bounds: Any = lower, upper
        found = milp(objective, integrality=integral, constraints=LinearConstraint(matrix, *bounds))
        where = f"at batch index {b}"
        expect(found.x is not None, f"linear_constraints has no best integer point {where}: {found.message}")
        error = abs(-found.fun - float(best[b]))
        expect(
            error <= 1e-6 * float(1 + case.scale),
            f"the best integer point of linear_constraints scores {-found.fun:.9g} {where}, and argmax {best[b]:.9g}",
        )
