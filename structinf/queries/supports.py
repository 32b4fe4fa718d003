"""The structures of positive probability."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..calls.arguments import OnInfeasible
from ..calls.problem import Problem
from ..calls.resolution import prepare_oracle
from ..compile.public_call import public_call
from ..oracle import Oracle
from ..parts import Parts
from ..regularizers import Regularizer, get_regularizer
from ..solution import RANKED_STRUCTURES, WEIGHTS
from ..validation import check_natural
from .abilities import require_hypergraph

__all__ = ["Support", "enumerate_support"]


class Support(NamedTuple):
    """Structures with their probabilities, the most probable first.

    K is the largest number of structures of an instance. Instances with fewer structures are padded.

    Attributes
    ----------
    structures : (K, ..., *event) Tensor, or tuple of them
        The structures; 0 in the padding.
    probabilities : (K, ...) Tensor
        The probabilities; 0 in the padding.
    """

    structures: Parts
    probabilities: Tensor


@public_call
@torch.no_grad()
def enumerate_support(
    theta: Parts,
    oracle: str | Oracle,
    *,
    regularizer: str | Regularizer = "squared_l2",
    temperature: float | None = None,
    max_structures: int = 10_000,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Support:
    """Return all structures of nonzero probability under the random walk of a regularizer.

    A sparse regularizer, such as the default, gives most structures the probability 0.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`structinf.relax`; −inf forbids a part.
    oracle : str or Oracle
        A dynamic program (:class:`structinf.dp.HypergraphProgram`): an object, or a name of
        :func:`structinf.list_oracles`, with its options.
    regularizer : str or Regularizer
        The distribution, as in :func:`sample`. For ``"negentropy"``, all structures of finite score have a nonzero
        probability.
    temperature : float, optional
        The factor of Ω, above 0. If None, the temperature of the regularizer object, or 1 for a name.
    max_structures : int
        The largest allowed number of structures of an instance.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return probabilities of
        0 for the instance.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    Support
        The named tuple (structures, probabilities), the most probable structure first.

    Raises
    ------
    InvalidInputError
        If an instance has more than ``max_structures`` structures.
    UnsupportedError
        If the oracle is not a HypergraphProgram.

    References
    ----------
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018,
    Figure 6.

    Examples
    --------
    >>> structures, probabilities = enumerate_support(
    ...     torch.tensor([1.0, 0.8, 0.0, -3.0]), "subset", k=2
    ... )
    >>> structures, probabilities
    (tensor([[1., 1., 0., 0.],
            [1., 0., 1., 0.],
            [0., 1., 1., 0.]]), tensor([0.8200, 0.1080, 0.0720]))
    """
    check_natural("max_structures", max_structures)
    omega = get_regularizer(regularizer, temperature)

    def compute(problem: Problem) -> Support:
        with problem.plain_modes():
            structures, probabilities = require_hypergraph(problem.oracle).enumerate_support(
                problem.theta, omega, max_structures
            )
        return Support(
            problem.restore_parts(structures, 1, RANKED_STRUCTURES), problem.restore(probabilities, 1, WEIGHTS)
        )

    return prepare_oracle(theta, oracle, options, on_infeasible).solve_feasible(compute)
