"""All structures of a factor graph: the joint structures of factors that agree on their shared variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InfeasibleError, InvalidInputError, UnsupportedError
from ..oracle import Enumerable
from ..parts import as_tuple
from ..solvers.graph_factors import Factor, check_values

__all__ = ["MOST_STRUCTURES", "JointStructures", "components", "join"]

MOST_STRUCTURES = 100_000
"""The largest number of joint structures listed by :func:`join`."""


class JointStructures(NamedTuple):
    """Structures of several factors that agree on their shared variables.

    Attributes
    ----------
    variables : (V,) int64 array
        The flat indices of the variables.
    values : (N, V) float64 array
        The variables' values in each structure.
    rows : dict of (N,) int64 arrays
        The row of each factor's structure in its list, by the position of the factor.
    """

    variables: np.ndarray
    values: np.ndarray
    rows: dict[int, np.ndarray]


def components(factors: Sequence[Factor], variables: int) -> list[list[int]]:
    """Return the connected components of the ``factors``, which are connected if they share a variable."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not factors:
        return []
    rows = np.concatenate([np.full(f.variables.numel(), k) for k, f in enumerate(factors)])
    columns = np.concatenate([f.variables.flatten().numpy() for f in factors]) + len(factors)
    size = len(factors) + variables
    _, label = connected_components(
        coo_array((np.ones(len(rows)), (rows, columns)), shape=(size, size)), directed=False
    )
    found: dict[int, list[int]] = {}
    for k in range(len(factors)):
        found.setdefault(int(label[k]), []).append(k)
    return list(found.values())


def list_structures(factor: Factor, data: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return all structures of the ``factor``, as ``enumerate`` of its oracle lists them.

    Parameters
    ----------
    factor : Factor
        The factor.
    data : mapping of str to (1, ...) Tensor
        The instance data of the graph by keyword, for one instance.

    Raises
    ------
    UnsupportedError
        If the oracle lists no structures, or has too many.
    """
    oracle = factor.bind(data)
    if not isinstance(oracle, Enumerable):
        raise UnsupportedError(f"{factor.name} lists no structures")
    shapes = (factor.variables.shape, *factor.additional)
    try:
        listed = as_tuple(oracle.enumerate(shapes if factor.additional else shapes[0]))
    except (InvalidInputError, UnsupportedError) as error:
        raise UnsupportedError(f"{factor.name} has too many structures: {error}") from None
    check_values(listed[0], factor.name)
    return listed


def join(factors: Sequence[Factor], numbers: Sequence[int], data: Mapping[str, Tensor]) -> JointStructures:
    """Return the joint structures of the factors with these ``numbers``, one component of the graph.

    Parameters
    ----------
    factors : sequence of Factor
        All factors of the graph.
    numbers : sequence of int
        The positions of the component's factors.
    data : mapping of str to (1, ...) Tensor
        The instance data of the graph by keyword, for one instance.

    Raises
    ------
    UnsupportedError
        If a factor lists no structures, or more than :data:`MOST_STRUCTURES` joint structures exist.
    InfeasibleError
        If no joint structure exists.
    """
    left = list(numbers)
    joint = JointStructures(np.empty(0, np.int64), np.ones((1, 0)), {})
    while left:
        # A factor with known variables multiplies the structures least.
        seen = [int(np.isin(factors[k].variables.flatten().numpy(), joint.variables).sum()) for k in left]
        k = left.pop(int(np.argmax(seen)))
        joint = _join_one(joint, factors[k], k, data)
    return joint


def _join_one(joint: JointStructures, factor: Factor, k: int, data: Mapping[str, Tensor]) -> JointStructures:
    listed = list_structures(factor, data)[0].flatten(1)
    values = torch.where(factor.negated.flatten(), 1 - listed, listed).cpu().numpy()
    variables, first, place = np.unique(factor.variables.flatten().numpy(), return_index=True, return_inverse=True)
    rows = np.flatnonzero((values == values[:, first][:, place]).all(1))  # copies of a variable agree
    values = values[rows][:, first]
    shared, left, right = np.intersect1d(joint.variables, variables, return_indices=True)
    old_keys, new_keys = _keys(joint.values[:, left], values[:, right])
    order = np.argsort(new_keys, kind="stable")
    low = np.searchsorted(new_keys[order], old_keys, "left")
    count = np.searchsorted(new_keys[order], old_keys, "right") - low
    total = int(count.sum())
    if total > MOST_STRUCTURES:
        raise UnsupportedError(f"more than {MOST_STRUCTURES} joint structures exist")
    if total == 0:
        known = " and ".join(f"factor {j}" for j in sorted(joint.rows))
        reason = f"agrees with {known} on the shared variables" if known else "gives a repeated variable one value"
        raise InfeasibleError(f"no structure of {factor.name} {reason}", 0)
    old = np.repeat(np.arange(len(joint.values)), count)
    new = order[np.arange(total) + np.repeat(low - (np.cumsum(count) - count), count)]
    added = ~np.isin(variables, shared)
    return JointStructures(
        np.concatenate([joint.variables, variables[added]]),
        np.concatenate([joint.values[old], values[new][:, added]], 1),
        {**{j: r[old] for j, r in joint.rows.items()}, k: rows[new]},
    )


def _keys(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each row of both arrays, the same number for equal rows."""
    both = np.concatenate([one, other])
    if both.shape[1] == 0:
        return np.zeros(len(one), np.int64), np.zeros(len(other), np.int64)
    keys = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    return keys[: len(one)], keys[len(one) :]
