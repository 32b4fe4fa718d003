"""The best structure of several factors that share variables, by a mixed-integer linear program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError, UnsupportedError
from ..linear_constraints import LinearConstraints, LinearlyConstrained
from ..oracle import Enumerable, Oracle
from ..parts import as_tuple
from ..registry import ORACLES
from ..solvers.graph_factors import Factor, check_values

__all__ = ["IntegerProgram"]

_MOST_LISTED = 1000
"""The largest number of structures of a factor whose constraints are a list of its structures."""


class IntegerProgram(NamedTuple):
    """The program of a component: max ⟨θ, x⟩ + Σ_f ⟨θ_f, w_f⟩ with the linear constraints of each factor f.

    The columns are the variables x, and for each factor the additional parts w_f and further variables z_f.

    Attributes
    ----------
    oracle : Oracle
        The program, a ``milp``.
    variables : (V,) int64 Tensor
        The flat indices of x.
    additional : list of (int, int)
        The number of each factor, and the first column of its additional parts.
    columns : int
        The number of columns.
    """

    oracle: Oracle
    variables: Tensor
    additional: list[tuple[int, int]]
    columns: int

    @classmethod
    def of(
        cls,
        factors: Sequence[Factor],
        numbers: Sequence[int],
        data: Mapping[str, Tensor],
        options: Mapping[str, object],
    ) -> IntegerProgram:
        """Return the program of the factors with these ``numbers``.

        Parameters
        ----------
        factors : sequence of Factor
            All factors of the graph.
        numbers : sequence of int
            The positions of the component's factors.
        data : mapping of str to (1, ...) Tensor
            The instance data of the graph by keyword, for one instance.
        options : mapping
            Options of the oracle ``milp``.
        """
        from scipy.sparse import block_diag, coo_array, hstack, vstack

        chosen = [factors[k] for k in numbers]
        variables = torch.cat([f.variables.flatten() for f in chosen]).unique()
        place, width = {int(v): i for i, v in enumerate(variables)}, len(variables)
        rows, lower, upper, additional, own = [], [], [], [], []
        low, high, integral = [np.zeros(width)], [np.ones(width)], [np.ones(width, bool)]
        for k, factor in zip(numbers, chosen, strict=True):
            constraints, is_list = _constraints(factor, data)
            index = np.array([place[int(v)] for v in factor.variables.flatten()])
            negated = factor.negated.flatten().numpy()
            parts = len(index)
            # A part is x or 1 − x.
            matrix = constraints.matrix.tocsc()
            shift = np.asarray(matrix[:, np.flatnonzero(negated)].sum(1)).reshape(-1)
            choose = coo_array((np.where(negated, -1.0, 1.0), (np.arange(parts), index)), shape=(parts, width))
            rows.append(matrix[:, :parts] @ choose.tocsc())
            own.append(matrix[:, parts:])
            lower.append(constraints.lower - shift)
            upper.append(constraints.upper - shift)
            count = sum(shape.numel() for shape in factor.additional)
            more = own[-1].shape[1]
            additional.append((k, sum(map(len, high))))
            high.append(np.full(more, np.inf))
            # The weights of listed structures determine the additional parts, which may be any numbers.
            low.append(np.where(is_list & (np.arange(more) < count), -np.inf, 0.0))
            is_part = np.arange(more) < count
            integral.append(~is_part if is_list else is_part | constraints.has_integers)
        matrix = hstack([vstack(rows), block_diag(own)], format="csc")
        oracle = ORACLES.get(
            "milp",
            A=matrix,
            lower=np.concatenate(lower),
            upper=np.concatenate(upper),
            bounds=(np.concatenate(low), np.concatenate(high)),
            integrality=np.concatenate(integral),
            **options,
        )
        return cls(oracle, variables, additional, sum(map(len, high)))


def _constraints(factor: Factor, data: Mapping[str, Tensor]) -> tuple[LinearConstraints, bool]:
    """Return the constraints of a factor, and whether they are weights of a list of its structures."""
    oracle, shapes = factor.bind(data), (factor.variables.shape, *factor.additional)
    event = shapes if factor.additional else shapes[0]
    reason = "its oracle states no linear constraints"
    if isinstance(oracle, LinearlyConstrained):
        try:
            return oracle.linear_constraints(event), False
        except UnsupportedError as error:
            reason = str(error)
    if isinstance(oracle, Enumerable):
        try:
            listed = as_tuple(oracle.enumerate(event))
        except (InvalidInputError, UnsupportedError):  # too many
            listed = ()
        if listed and len(listed[0]) <= _MOST_LISTED:
            check_values(listed[0], factor.name)
            return _list_constraints(torch.cat([t.flatten(1) for t in listed], 1).numpy()), True
        reason += f", and it has more than {_MOST_LISTED} structures"
    raise UnsupportedError(
        f'factor_graph: solver="milp" cannot use {factor.name} because {reason}; build the graph with '
        'solver="branch_and_bound"'
    )


def _list_constraints(listed: np.ndarray) -> LinearConstraints:
    """Return the constraints of weights that choose one of the structures (N, P)."""
    count, parts = listed.shape
    which, part = listed.nonzero()
    row = np.concatenate([np.arange(parts), part, np.full(count, parts)])
    column = np.concatenate([np.arange(parts), parts + which, parts + np.arange(count)])
    value = np.concatenate([np.ones(parts), -listed[which, part], np.ones(count)])
    total = [0] * parts + [1]
    return LinearConstraints.of((row, column, value), parts + count, total, total)
