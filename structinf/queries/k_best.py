"""The k best structures."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import autograd
from ..calls.arguments import OnInfeasible
from ..calls.problem import Problem
from ..calls.resolution import prepare_oracle
from ..compile.public_call import public_call
from ..errors import InvalidInputError
from ..oracle import KBest, Oracle
from ..parts import Parts, as_tuple, divide_by_temperature, inner_product, map_parts
from ..registry import ORACLES
from ..regularizers import SquaredL2
from ..solution import RANKED_STRUCTURES, RANKED_VALUES, WEIGHTS
from ..solvers.perturbation import merge_samples, repeat_instances
from .abilities import require_ability

__all__ = ["TopK", "sparsemax_over_topk", "topk"]


class TopK(NamedTuple):
    """The k best structures, best first.

    Attributes
    ----------
    structures : (k, ..., *event) Tensor, or tuple of them
        The structures; 0 for ranks that are not valid.
    scores : (k, ...) Tensor
        The scores ⟨θ, y⟩; −inf for ranks that are not valid.
    valid : (k, ...) bool Tensor
        False for ranks beyond the instance's number of structures of finite score.
    """

    structures: Parts
    scores: Tensor
    valid: Tensor


@public_call
@torch.no_grad()
def topk(theta: Parts, oracle: str | Oracle, k: int, *, on_infeasible: OnInfeasible = "raise", **options: Any) -> TopK:
    """Return the k structures of highest score of each instance, best first.

    Structures of equal score have a fixed order, which is the same in every call and in every batch.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of them
        Scores of the parts, as for :func:`structinf.relax`; −inf forbids a part.
    oracle : str or Oracle
        The set of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    k : int
        The number of structures, at least 1.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or mark all ranks of the
        instance as not valid.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name. Only an object
        can have an option or instance data of the name ``k``: ``get_oracle("subset", k=2)``.

    Returns
    -------
    TopK
        The named tuple (structures, scores, valid).

    Raises
    ------
    UnsupportedError
        If the oracle has no k-best algorithm (:class:`structinf.KBest`), and its argmax cannot be restricted
        (:class:`structinf.Restrictable`).

    Examples
    --------
    >>> best = topk(torch.tensor([[1.0, 0.1], [0.1, 0.5]]), "assignment", 3)
    >>> best.scores, best.valid
    (tensor([1.5000, 0.2000,   -inf]), tensor([ True,  True, False]))
    """

    def compute(problem: Problem) -> TopK:
        with problem.plain_modes(defers_checks=True):
            structures, scores, valid = require_ability(problem.oracle, KBest).topk(problem.theta, k)
        return TopK(
            problem.restore_parts(structures, 1, RANKED_STRUCTURES),
            problem.restore(scores, 1, RANKED_VALUES),
            problem.restore(valid, 1, WEIGHTS),
        )

    if isinstance(oracle, str) and "k" in ORACLES.options(oracle):
        default = inspect.signature(ORACLES.factory(oracle)).parameters["k"].default
        if default in (None, inspect.Parameter.empty):
            raise InvalidInputError(
                f"{oracle} needs its own k, but the k of topk is the number of structures; pass an object: "
                f"topk(theta, get_oracle({oracle!r}, k=...), k)"
            )
    return prepare_oracle(theta, oracle, options, on_infeasible).solve_feasible(compute)


def sparsemax_over_topk(oracle: Oracle, theta: Parts, k: int, temperature: float = 1.0) -> tuple[Parts, Tensor]:
    """Return the k best structures, (k, B, *event), and the sparsemax of their scores / temperature, (k, B).

    The sparsemax weights are differentiable in θ. If one of the k structures has weight 0, the weights equal the
    sparsemax over all structures.
    """
    with torch.no_grad():
        structures, _, valid = require_ability(oracle, KBest).topk(map_parts(Tensor.detach, theta), k)
    theta64 = divide_by_temperature(map_parts(Tensor.double, theta), temperature)
    scores = inner_product(
        repeat_instances(theta64, len(valid)), merge_samples(map_parts(Tensor.double, structures))
    ).view(valid.shape)
    weights = autograd.smooth_argmax(SquaredL2(), torch.where(valid, scores, -torch.inf), 0)
    return structures, weights.to(as_tuple(theta)[0].dtype)
