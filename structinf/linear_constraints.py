"""Oracles whose structures are the integer points of linear constraints, for integer programs over several oracles."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import numpy as np

from .oracle import Oracle

__all__ = ["LinearConstraints", "LinearlyConstrained"]


class LinearConstraints(NamedTuple):
    """The rows lower ≤ A (y, z) ≤ upper, for the P parts y of a structure and Z further variables z.

    Attributes
    ----------
    matrix : (m, P + Z) scipy sparse array
        A.
    lower, upper : (m,) float64 array
        The bounds of the rows.
    has_integers : bool
        Whether z must be integers.

    Examples
    --------
    At most one of three parts:

    >>> import structinf as si
    >>> entries = [0, 0, 0], [0, 1, 2], [1, 1, 1]
    >>> rows = si.LinearConstraints.of(entries, 3, [0], [1])
    >>> rows.matrix.toarray(), rows.upper
    (array([[1., 1., 1.]]), array([1.]))
    """

    matrix: Any
    lower: np.ndarray
    upper: np.ndarray
    has_integers: bool = True

    @classmethod
    def of(
        cls, entries: tuple[Any, Any, Any], columns: int, lower: Any, upper: Any, *, has_integers: bool = True
    ) -> LinearConstraints:
        """Return the rows with these entries.

        Parameters
        ----------
        entries : three sequences of numbers
            The row, the column and the value of each entry. Entries of the same place are added.
        columns : int
            P + Z.
        lower, upper : (m,) sequence of float
            The bounds of the rows.
        has_integers : bool
            Whether z must be integers.
        """
        from scipy.sparse import csc_array

        row, column, value = entries
        low, high = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
        places = np.asarray(row, np.int64), np.asarray(column, np.int64)
        return cls(
            csc_array((np.asarray(value, np.float64), places), shape=(len(low), columns)), low, high, has_integers
        )


class LinearlyConstrained(Oracle):
    """An oracle whose structures are the integer points of linear constraints.

    An integer program can then combine the structures with other constraints, as a factor graph does.
    """

    @abc.abstractmethod
    def linear_constraints(self, event_shape: Any) -> LinearConstraints:
        """Return the constraints for scores of ``event_shape``, or of a tuple of shapes if θ is a tuple.

        Bound data must be the data of one instance.

        Laws:

        - The parts y are the parts of all tensors of θ in order, flattened.
        - A vector y of integers of at least 0 is a structure if and only if some vector z of numbers of at least 0,
          of integers with ``has_integers``, satisfies the rows.
        """
