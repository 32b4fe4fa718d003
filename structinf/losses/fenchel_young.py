"""Fenchel-Young losses of regularized relaxations: CRF, perceptron, structured SVM, SparseMAP and others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..calls.allowed_parts import allowed_masks, has_unknown_labels
from ..calls.arguments import OnInfeasible, check_on_infeasible
from ..calls.gold import flatten_parts, gold_structures
from ..calls.problem import Problem
from ..calls.resolution import resolve, works_with
from ..compile.public_call import public_call
from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import RegularizedRelaxation, Relaxation, register_parameters
from ..shapes import Float
from ..validation import check_choice
from .gold_scores import check_least, gold_scores
from .reduction import Reduction, check_reduction, describe_rules, without_negative_rounding
from .structured_loss import LOSS_CALL, StructuredLoss
from .targets import divergences, partial_losses

__all__ = ["Cost", "FenchelYoungLoss"]

Cost = Literal["hamming"] | Tensor | tuple[Tensor, ...] | Callable[[Parts], Parts]


class FenchelYoungLoss(StructuredLoss):
    """L(θ, y) = Ω*(θ) + Ω(y) − ⟨θ, y⟩ ≥ 0, with gradient μ(θ) − y.

    ============  ==============  ==========================================
    relaxation    without cost    with cost
    ============  ==============  ==========================================
    map           perceptron      structured SVM (margin rescaling)
    marginals     CRF             softmax-margin
    sparsemap     SparseMAP       margin-SparseMAP
    smoothed      smoothed DP     cost-augmented smoothed DP
    sinkhorn      Sinkhorn        cost-augmented Sinkhorn
    frank_wolfe   loss of its Ω   cost-augmented loss of its Ω
    perturbed     perturbed       cost-augmented perturbed
    ============  ==============  ==========================================

    With a cost ⟨c, y'⟩ − ⟨c, y⟩ of predicting y' instead of y, the loss is L(θ + c, y).

    The call takes three kinds of targets besides gold structures:

    - Partial labels: labels with −1 for unknown labels, or the parts ``allowed``. The loss is Ω*(θ) − Ω*(θ'), where θ'
      is θ with −inf for all other parts. Its gradient is μ(θ) − μ(θ'). For ``marginals`` it is −log of the
      probability of the allowed structures.
    - A mean y ∈ conv(Y), such as the average of several annotations. The gradient is μ(θ) − y. The value is exact for
      ``map``, ``sparsemap``, ``sinkhorn`` and ``frank_wolfe``. For ``marginals``, ``smoothed`` and ``perturbed``, Ω(y)
      is unknown, and the value lacks this constant, so that it may be above 0 at the minimum.
    - ``target_potentials`` η, the scores of a teacher. The target is the mean μ(η), and the value is
      Ω*(θ) − Ω*(η) − ⟨θ − η, μ(η)⟩ ≥ 0. For ``marginals`` it is the temperature times the Kullback-Leibler
      divergence KL(p(η) ‖ p(θ)).

    Parameters
    ----------
    oracle : str or Oracle
        The set Y of structures: an object, or a name of :func:`structinf.list_oracles`, with its options.
    relaxation : str or Relaxation
        The relaxation with its regularizer Ω: an object, or a name of :func:`structinf.list_relaxations`. Surrogate
        gradients have no Fenchel-Young loss.
    cost : None, "hamming", Tensor (or tuple), or callable
        ``"hamming"`` counts wrong tokens (``oracle.hamming_cost``). A tensor of θ's shape is the cost c of each
        part. A callable maps the gold structures, in θ's form, to such a tensor.
    reduction : "mean", "sum" or "none"
        The reduction over the batch, as in torch.nn; the mean of an empty batch is 0.
    on_infeasible : "raise" or "zero"
        What to do if an instance has no structure of finite score: raise InfeasibleError, or give the instance the
        loss 0 with gradient 0, whatever its gold structure is. A mean over the batch counts the instance.
    **options
        Options of an oracle or a relaxation given by name. An object already has its options.

    References
    ----------
    Blondel, Martins & Niculae 2020, Learning with Fenchel-Young Losses, Definition 2 and §3.4.
    Mensch & Blondel 2018, Differentiable Dynamic Programming, §4.1 (smoothed).

    Examples
    --------
    >>> import torch
    >>> loss = FenchelYoungLoss("categorical", "marginals")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.4076)
    """

    settable = (*StructuredLoss.settable, "cost")

    def __init__(
        self,
        oracle: str | Oracle,
        relaxation: str | Relaxation = "sparsemap",
        *,
        cost: Cost | None = None,
        reduction: Reduction = "mean",
        on_infeasible: OnInfeasible = "raise",
        **options: Any,
    ) -> None:
        super().__init__()
        check_on_infeasible(on_infeasible)
        self.on_infeasible = on_infeasible
        self.oracle, found = resolve(oracle, relaxation, options, RegularizedRelaxation)
        if not isinstance(found, RegularizedRelaxation):
            others = ", ".join(works_with(self.oracle, kind=RegularizedRelaxation))
            raise UnsupportedError(
                f"{found.label()} has no regularizer Ω, and therefore no Fenchel-Young loss; "
                f"train a Layer with this relaxation and another loss, or use one of these relaxations: {others}"
            )
        if not (cost is None or isinstance(cost, Tensor | tuple | list) or callable(cost)):
            check_choice(
                "cost", cost, ("hamming",), "None, a tensor of theta's shape (or a tuple of them), or a callable"
            )
        self.relaxation = found
        register_parameters(self, found)
        self.reduction = check_reduction(reduction)
        self.cost = cost

    @public_call(**LOSS_CALL)
    def forward(
        self,
        theta: Parts,
        y: Any = None,
        *,
        generator: torch.Generator | None = None,
        allowed: Any = None,
        target_potentials: Parts | None = None,
        **instance_data: Any,
    ) -> Float[Tensor, "*batch"]:
        """Return the loss of scores ``theta`` (..., *event) for one of three targets.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            The scores.
        y : the form of θ with the full batch shape, or an integer Tensor of labels, optional
            Gold structures, or means in conv(Y); or labels, in which −1 stands for an unknown label.
        generator : torch.Generator, optional
            The only random generator of relaxations that draw noise.
        allowed : bool Tensor, tuple of bool Tensors or None, or integer Tensor, optional
            The allowed parts, as for :func:`structinf.restrict`.
        target_potentials : (..., *event) Tensor, or tuple of Tensors, optional
            The scores of a teacher, of the shapes of θ. They get no gradient.
        **instance_data
            Instance data of the oracle, for example ``lengths``.

        Returns
        -------
        Tensor
            A scalar, or (...) with ``reduction="none"``.

        Raises
        ------
        InfeasibleError
            If an instance has no structure of finite score, or no allowed structure, with ``on_infeasible="raise"``.
        InvalidInputError
            If a gold structure is not in Y, as far as the oracle can tell, or uses a part of score −inf, so that its
            loss is infinite. If a mean is outside conv(Y), as far as checked: parts lie within their bounds, the rows
            and columns of a transport plan have the right sums, and no loss is negative. Also for the invalid inputs of
            :func:`structinf.relax`.
        """
        given = [
            name
            for name, value in (("y", y), ("allowed", allowed), ("target_potentials", target_potentials))
            if value is not None
        ]
        if len(given) != 1:
            raise TypeError(
                f"a loss needs one target: y, allowed or target_potentials, got {' and '.join(given) or 'none'}"
            )
        if given != ["y"] and self.cost is not None:
            raise UnsupportedError(
                f"a loss with a cost needs gold structures, got {given[0]}; set cost=None, or pass structures as y"
            )

        def of_gold(problem: Problem, relaxation: RegularizedRelaxation) -> Tensor:
            allows_means = self.cost is None or not isinstance(self.cost, str)
            return self._losses(problem, gold_structures(problem, y, "y", allows_means=allows_means), relaxation)

        def of_allowed(problem: Problem, relaxation: RegularizedRelaxation) -> Tensor:
            return partial_losses(problem, relaxation, allowed_masks(problem, allowed))

        def of_teacher(problem: Problem, relaxation: RegularizedRelaxation) -> Tensor:
            teacher, _ = problem.scores_like(theta, target_potentials, "target_potentials")
            return divergences(problem, relaxation, teacher)

        def of_unknown_labels(
            problem: Problem, relaxation: RegularizedRelaxation, error: InvalidInputError
        ) -> Tensor | None:
            if given != ["y"] or not has_unknown_labels(problem, y, error):
                return None
            if self.cost is not None:
                raise UnsupportedError("y: a loss with a cost needs all labels, got labels of −1; set cost=None")
            with problem.plain_modes():
                return partial_losses(problem, relaxation, allowed_masks(problem, y, "y"))

        kinds = {"y": of_gold, "allowed": of_allowed, "target_potentials": of_teacher}
        return self._reduced(kinds[given[0]], theta, instance_data, generator, of_unknown_labels)

    def _losses(self, problem: Problem, gold: Parts, relaxation: RegularizedRelaxation) -> Tensor:
        oracle, theta, dtype = problem.oracle, problem.theta, as_tuple(problem.theta)[0].dtype
        # The loss is the small difference of large numbers, so both are computed in float64.
        theta64, gold64 = (map_parts(Tensor.double, parts) for parts in (theta, gold))
        if self.cost is not None:
            theta = theta64 = map_parts(torch.add, theta64, self._cost(problem, gold))
        gold_score = gold_scores(oracle, theta64, gold64)
        relaxation.check_scale(dtype)
        conjugate, omega = relaxation.float64_conjugate_and_omega(oracle, theta, gold, dtype)
        losses = conjugate + omega - gold_score
        if relaxation.value_may_miss_maximum:
            return losses
        if not oracle.is_exact:
            return losses.clamp(min=0)
        if gold_score.is_cpu and not bool((losses.detach() < 0).any()):
            return losses
        check = functools.partial(_check_losses, oracle, losses, (conjugate, omega, gold_score), dtype)
        check_least(losses, _is_nonnegative, check)
        return without_negative_rounding(losses)

    def _callable_option(self) -> tuple[str, Any]:
        return "cost", self.cost

    def _cost(self, problem: Problem, gold: Parts) -> Parts:
        if self.cost == "hamming":
            return problem.without_padding(problem.oracle.hamming_cost(gold))
        if callable(self.cost):
            return flatten_parts(problem, self.cost(problem.restore_parts(gold)), "cost(y)")
        return flatten_parts(problem, self.cost, "cost")

    def extra_repr(self) -> str:
        cost = "" if self.cost is None else f", cost={self.cost if isinstance(self.cost, str) else '...'}"
        return f"oracle={self.oracle!r}, relaxation={self.relaxation!r}{cost}, {describe_rules(self)}"


def _is_nonnegative(number: float) -> bool:
    return number >= 0


def _check_losses(oracle: Oracle, losses: Tensor, terms: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """Raise InvalidInputError if a loss is negative. Rounding aside, only a point outside conv(Y) can have such one."""
    size = 1 + torch.stack([t.detach().abs() for t in terms]).sum(0)
    below = losses.detach() < -(torch.finfo(dtype).eps ** 0.5) * size
    if bool(below.any()):
        index = int(below.nonzero()[0, 0])
        raise InvalidInputError(
            f"y is not a structure of {oracle.label()} at batch index {index}, nor a mean of structures: its score is "
            "above the best score"
        )
