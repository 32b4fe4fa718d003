"""SPO+: a convex upper bound of the regret of decisions by predicted scores, and the regret itself."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from ..calls.problem import OnInfeasible, Problem, check_on_infeasible
from ..calls.resolution import get_oracle, prepare_oracle
from ..compile.public_call import public_call
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..shapes import Float
from ..solvers.argmax import best_structure
from .reduction import Reduction, check_reduction, describe_rules, reduce_losses, without_negative_rounding

__all__ = ["SPOPlusLoss", "regret"]


class SPOPlusLoss(nn.Module):
    """L(θ, t) = max ⟨2θ − t, y⟩ − ⟨2θ − t, y*(t)⟩, where y*(t) = argmax ⟨t, y⟩ is best for the true scores t.

    The loss is convex in θ and at least the regret ⟨t, y*(t)⟩ − ⟨t, y*(θ)⟩ ≥ 0 of a decision by θ. Its gradient is
    2 (argmax ⟨2θ − t, y⟩ − y*(t)).

    Oracles that take only scores of at most 0, such as ``path``, cannot maximize 2θ − t, which may be positive. For
    these oracles, the maximum also runs over structures with any additional parts. Scores of at most 0 give them no
    better structure, so that the regret is the same, and the loss is still a convex upper bound of it. The maximum then
    takes every part of positive score, and the best structure for the scores cut off at 0.

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0. A mean over the batch counts the instance.
    **options
        Options of an oracle given by name. An object already has its options.

    Raises
    ------
    UnsupportedError
        If the oracle takes only scores of at most 0 and a part may have a value other than 0 and 1.

    References
    ----------
    Elmachtoub & Grigas 2022, Smart "Predict, then Optimize", Definition 3 and Proposition 3, where costs are c = −t.

    Examples
    --------
    >>> loss = SPOPlusLoss("categorical")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[3.0, 1.0, 0.0]]))
    tensor(4.)

    Shortest paths, with predicted and true costs:

    >>> loss = SPOPlusLoss(
    ...     "path", graph=[(0, 1), (1, 2), (0, 2)], source=0, target=2
    ... )
    >>> loss(-torch.tensor([1.0, 1.0, 3.0]), -torch.tensor([2.0, 2.0, 1.0]))
    tensor(5.)
    """

    def __init__(
        self,
        oracle: str | Oracle,
        *,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        self.on_infeasible: OnInfeasible = on_infeasible
        self.oracle = get_oracle(oracle, **options)
        self.reduction: Reduction = check_reduction(reduction)

    @public_call(functorch=True)
    def forward(self, theta: Parts, true_theta: Parts, **instance_data: Any) -> Float[Tensor, "*batch"]:
        """Return the loss of predicted scores ``theta`` (..., *event), given the true scores.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            The predicted scores. A part of score −inf is forbidden in both arguments.
        true_theta : (..., *event) Tensor, or tuple of Tensors
            The true scores, of the shapes of ``theta``. They must be finite at the parts allowed by ``theta``.
        **instance_data
            Instance data of the oracle, for example ``lengths``.

        Returns
        -------
        Tensor
            A scalar, or (...) with ``reduction="none"``.

        Raises
        ------
        InfeasibleError
            If an instance has no structure of finite score, with ``on_infeasible="raise"``.
        InvalidInputError
            If the shapes differ, or ``true_theta`` is −inf at a part allowed by ``theta``. Also for the invalid
            inputs of :func:`structinf.relax`.
        """
        problem = Problem.build(theta, self.oracle, instance_data, self.on_infeasible)
        return problem.solve_feasible(functools.partial(self._reduced, theta, true_theta))

    def _reduced(self, theta: Parts, true_theta: Parts, problem: Problem) -> Tensor:
        predicted, true, found = problem.theta, problem.scores_like(theta, true_theta, "true_theta"), problem.oracle
        for t, p in zip(as_tuple(true), as_tuple(predicted), strict=True):
            if bool((t.isneginf() & ~p.isneginf()).any()):
                raise InvalidInputError("true_theta is −inf at a part that theta allows; set the part to −inf in both")
        predicted, true = (map_parts(Tensor.double, parts) for parts in (predicted, true))
        costs_only = found.requires_nonpositive_theta
        if costs_only and not found.has_binary_parts(predicted):
            raise UnsupportedError(
                f"{found!r} takes scores of at most 0, but SPO+ needs the best structure for 2θ − t, which can be "
                "positive; train with FenchelYoungLoss or through a Layer of blackbox"
            )
        with problem.plain_modes():
            true = map_parts(lambda t, p: torch.where(p.isneginf(), -torch.inf, t), true, predicted)
            tilted = map_parts(lambda t, p: torch.where(p.isneginf(), -torch.inf, 2 * p - t), true, predicted)
            best = best_structure(found, true)
            y = _best_with_additional_parts(found, tilted) if costs_only else best_structure(found, tilted)
            losses = without_negative_rounding(found.score(tilted, map_parts(torch.sub, y, best)))
        if self.reduction == "none":
            return problem.restore(losses)
        return reduce_losses(problem.scatter(losses), self.reduction).to(problem.dtype)

    def extra_repr(self) -> str:
        return f"oracle={self.oracle!r}, {describe_rules(self)}"


def _best_with_additional_parts(oracle: Oracle, theta: Parts) -> Parts:
    """Return the best structure with additional parts for scores of any sign, (B, *event)."""
    best = best_structure(oracle, map_parts(lambda t: t.clamp(max=0), theta))
    return map_parts(lambda y, t: torch.where(t > 0, 1.0, y), best, theta)


@public_call
@torch.no_grad()
def regret(
    theta: Parts,
    true_theta: Parts,
    oracle: str | Oracle,
    *,
    on_infeasible: OnInfeasible = "raise",
    **options: Any,
) -> Float[Tensor, "*batch"]:
    """Return ⟨t, y*(t)⟩ − ⟨t, y*(θ)⟩, the loss in score of the best structures for θ when the true scores are t.

    Parameters
    ----------
    theta : (..., *event) Tensor, or tuple of Tensors
        The predicted scores θ.
    true_theta : (..., *event) Tensor, or tuple of Tensors
        The true scores t, of the shapes of ``theta``.
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or return 0 for it.
    **options
        Instance data of the oracle (for example ``lengths``), and options of an oracle given by name.

    Returns
    -------
    (...) Tensor
        The regret, at least 0, without a gradient. It is infinite if y*(θ) uses a part of true score −inf.

    Examples
    --------
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]])
    >>> true_theta = torch.tensor([[3.0, 1.0, 0.0]])
    >>> regret(theta, true_theta, "categorical")
    tensor([2.])
    """
    problem = prepare_oracle(theta, oracle, options, on_infeasible)
    return problem.solve_feasible(functools.partial(_regret, theta, true_theta))


def _regret(theta: Parts, true_theta: Parts, problem: Problem) -> Tensor:
    true = map_parts(Tensor.double, problem.scores_like(theta, true_theta, "true_theta"))
    predicted = map_parts(Tensor.double, problem.theta)
    with problem.plain_modes():
        chosen = best_structure(problem.oracle, predicted)
        best = best_structure(problem.oracle, true)
        return problem.restore(
            without_negative_rounding(problem.oracle.score(true, map_parts(torch.sub, best, chosen)))
        )
