"""Losses of potentials, given the right structures."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .autograd import recorded, refuse_function
from .checks import check_choice
from .compiling import one_step
from .errors import InvalidInputError, UnsupportedError
from .oracle import Oracle
from .parts import Potentials, as_tuple, map_parts, tupled
from .problem import Problem, shapes
from .relaxation import RegularizedRelaxation, Relaxation, held_modules
from .resolution import bind_problem, resolve, works_with

if TYPE_CHECKING:
    import jaxtyping

__all__ = ["Cost", "Distance", "FenchelYoungLoss", "Reduction", "RelaxedLoss", "check_reduction", "reduced"]

Cost = Literal["hamming"] | Tensor | tuple[Tensor, ...] | Callable[[Potentials], Potentials]

Distance = Literal["squared_l2", "kl", "area"] | Callable[[Potentials, Potentials], Tensor]

Reduction = Literal["mean", "sum", "none"]


def check_reduction(reduction: Reduction) -> Reduction:
    """``reduction``; InvalidInputError if there is none of that name."""
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    return reduction


def reduced(losses: Tensor, reduction: Reduction) -> Tensor:
    """``losses`` of all instances, their sum, or their mean, which is 0 for none."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / max(losses.numel(), 1)


class _StructuredLoss(nn.Module, abc.ABC):
    """A loss of each instance, reduced over the batch; subclasses give `_losses`."""

    settable: ClassVar[tuple[str, ...]] = ("oracle", "relaxation", "reduction")
    oracle: Oracle
    relaxation: Relaxation
    reduction: Reduction

    @one_step(
        lambda self, theta, y, **_: self._like_losses(theta),
        lambda self, theta, y, generator=None, **_: (
            generator is None and not self.relaxation.draws and not self._calls_functions()
        ),
        lambda self, *_, **__: self.reduction != "none",
    )
    @functools.partial(recorded, check=lambda self, *_, **__: self._check_followed())
    def forward(
        self, theta: Potentials, y: Potentials, *, generator: torch.Generator | None = None, **structure: Any
    ) -> jaxtyping.Float[Tensor, "*batch"]:
        """The loss of potentials ``theta`` (..., *event) for gold ``y``.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of them
        y : the form of θ with the full batch, or an integer Tensor of labels
            A structure of Y.
        generator : torch.Generator, optional
            The only source of randomness, for relaxations that draw noise.
        **structure
            Instance data such as lengths.

        Returns
        -------
        Tensor
            A scalar, or (...) with ``reduction="none"``.

        Raises
        ------
        InfeasibleError
            If an instance has no structure of finite score.
        InvalidInputError
            If a gold structure is none of Y's (checked where the oracle has labels), or its loss is infinite because it
            uses a forbidden part; and as :func:`structinf.relax`.
        """
        problem = bind_problem(theta, self.oracle, structure)
        with problem.plain_modes():
            losses = self._losses(problem, problem.gold(y, "y"), self.relaxation.seeded(generator))
        total = reduced(losses, self.reduction)
        return problem.restore(losses) if self.reduction == "none" else total.to(problem.dtype)

    def _like_losses(self, theta: Potentials) -> Tensor:
        theta = tupled(theta)
        dtype = functools.reduce(torch.promote_types, [t.dtype for t in as_tuple(theta)])
        batch = shapes(theta, self.oracle)[0] if self.reduction == "none" else []
        return as_tuple(theta)[0].new_empty(batch, dtype=dtype)

    def _check_followed(self) -> None:
        """UnsupportedError if a transform of torch.func could not follow the loss."""

    def _calls_functions(self) -> bool:
        """Whether the loss depends on functions of the user's, which may read anything."""
        return False

    @abc.abstractmethod
    def _losses(self, problem: Problem, gold: Potentials, relaxation: Any) -> Tensor:
        """The loss of each instance, (B,), by the loss's own relaxation, ready to draw."""


class FenchelYoungLoss(_StructuredLoss):
    """L(θ, y) = Ω*(θ) + Ω(y) − ⟨θ, y⟩ ≥ 0, with gradient μ(θ) − y.

    ============  ==============  ==========================================
    relaxation    without cost    with cost
    ============  ==============  ==========================================
    map           perceptron      structured SVM (margin rescaling)
    marginals     CRF             softmax-margin
    sparsemap     SparseMAP       margin-SparseMAP
    smoothed      smoothed DP     cost-augmented smoothed DP
    sinkhorn      Sinkhorn        cost-augmented Sinkhorn
    regularized   by its Ω        cost-augmented, by its Ω
    perturbed     perturbed       cost-augmented perturbed
    ============  ==============  ==========================================

    With a cost ⟨c, y'⟩ − ⟨c, y⟩ of predicting y' for y, the loss is L(θ + c, y).

    Parameters
    ----------
    oracle : str or Oracle
    relaxation : str or Relaxation
        One that comes from a regularizer Ω; surrogate gradients generate no loss.
    cost : None, "hamming", Tensor (or tuple), or callable
        ``"hamming"`` counts wrong tokens (``oracle.hamming_cost``). A tensor c of θ's shape is a cost for each
        part. A callable gets the gold structures in θ's form and returns such a c.
    reduction : "mean", "sum" or "none"
        Over the batch, as in torch.nn; the mean of an empty batch is 0.
    **options
        Options of whatever was given by name.

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

    settable = (*_StructuredLoss.settable, "cost")

    def __init__(
        self,
        oracle: str | Oracle,
        relaxation: str | Relaxation = "sparsemap",
        *,
        cost: Cost | None = None,
        reduction: Reduction = "mean",
        **options: Any,
    ) -> None:
        super().__init__()
        self.oracle, found = resolve(oracle, relaxation, options, RegularizedRelaxation)
        if not isinstance(found, RegularizedRelaxation):
            others = ", ".join(works_with(self.oracle, kind=RegularizedRelaxation))
            raise UnsupportedError(
                f"{found.label()} is no argmax of ⟨θ, μ⟩ − Ω(μ) and generates no Fenchel-Young loss; "
                f"train through its Layer with a loss of your own, or take {others}"
            )
        if not (cost is None or isinstance(cost, Tensor | tuple | list) or callable(cost)):
            check_choice(
                "cost", cost, ("hamming",), "None, a tensor of theta's shape (or a tuple of them), or a callable"
            )
        self.relaxation = found
        self.reduction = check_reduction(reduction)
        self.cost = cost

    def _losses(self, problem: Problem, gold: Potentials, relaxation: RegularizedRelaxation) -> Tensor:
        oracle, theta = problem.oracle, problem.theta
        if self.cost is not None:
            theta = map_parts(lambda t, c: t + c, theta, self._cost(problem, gold))
        gold_score = oracle.score(theta, gold)
        if bool(gold_score.isneginf().any()):
            index = int(gold_score.isneginf().nonzero()[0, 0])
            raise InvalidInputError(
                f"y: the gold structure at batch index {index} uses a part whose potential is −inf; "
                "its loss is infinite"
            )
        conjugate, omega = relaxation.conjugate_and_omega(oracle, theta, gold)
        losses = conjugate + omega - gold_score
        # Rounding aside, only a point outside conv(Y) can do better than the best.
        size = 1 + conjugate.detach().abs() + omega.detach().abs() + gold_score.detach().abs()
        below = losses.detach() < -(torch.finfo(losses.dtype).eps ** 0.5) * size
        if bool(below.any()):
            index = int(below.nonzero()[0, 0])
            raise InvalidInputError(
                f"y is no structure of {oracle.label()} at batch index {index}: it scores more than the best one"
            )
        return losses

    def _check_followed(self) -> None:
        refuse_function("cost", self.cost)

    def _calls_functions(self) -> bool:
        return callable(self.cost)

    def _cost(self, problem: Problem, gold: Potentials) -> Potentials:
        if self.cost == "hamming":
            return problem.without_padding(problem.oracle.hamming_cost(gold))
        if callable(self.cost):
            return problem.flatten_parts(self.cost(problem.restore_parts(gold)), "cost(y)")
        return problem.flatten_parts(self.cost, "cost")

    def extra_repr(self) -> str:
        cost = "" if self.cost is None else f", cost={self.cost if isinstance(self.cost, str) else '...'}"
        return f"oracle={self.oracle!r}, relaxation={self.relaxation!r}{cost}, reduction={self.reduction!r}"


class RelaxedLoss(_StructuredLoss):
    """A distance Δ(y, μ(θ)) from the right structure to the relaxed one; not convex in θ.

    ==============  =============================================================================
    distance        Δ(y, μ), over the parts that ``oracle.readout`` shows
    ==============  =============================================================================
    "squared_l2"    ½ ‖y − μ‖²
    "kl"            Σ y log(y / μ), infinite where μ excludes a part of y: for dense relaxations
    "area"          ‖L (y − μ)ᵀ‖² with L the lower triangular matrix of ones, for matrices: between
                    two alignments that have a column in each row, the area between their paths
    ==============  =============================================================================

    Parameters
    ----------
    oracle : str or Oracle
    relaxation : str or Relaxation
        Any whose mean has a gradient of use: neither ``map`` nor ``smoothed`` without a regularizer.
    distance : str or callable
        A name above, or a function of y and μ, in θ's form with one batch dimension, that returns (B,).
    reduction : "mean", "sum" or "none"
        Over the batch, as in torch.nn; the mean of an empty batch is 0.
    **options
        Options of whatever was given by name.

    References
    ----------
    Mensch & Blondel 2018, Differentiable Dynamic Programming, §4.1-4.3.
    Garreau, Lajugie, Arlot & Bach 2014, Metric learning for temporal sequence alignment (the area loss).

    Examples
    --------
    >>> import torch
    >>> loss = RelaxedLoss("categorical", "marginals", distance="kl")
    >>> loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))
    tensor(1.4076)
    """

    settable = (*_StructuredLoss.settable, "distance")

    def __init__(
        self,
        oracle: str | Oracle,
        relaxation: str | Relaxation = "smoothed",
        *,
        distance: Distance = "squared_l2",
        reduction: Reduction = "mean",
        **options: Any,
    ) -> None:
        super().__init__()
        self.oracle, self.relaxation = resolve(oracle, relaxation, options)
        if held := held_modules(self.relaxation):
            self.held = nn.ModuleList(held)
        if self.relaxation.piecewise_constant:
            raise UnsupportedError(
                f"the gradient of {self.relaxation!r} is 0, and so is that of any distance from it; take marginals, "
                "sparsemap or smoothed, or train with FenchelYoungLoss, whose gradient is not that of the mean"
            )
        if self.relaxation.sample_ndim:
            raise UnsupportedError(
                f"{self.relaxation!r} keeps its samples apart, and this is a distance from one mean; "
                'take reduction="mean" there'
            )
        if not callable(distance):
            check_choice("distance", distance, ("squared_l2", "kl", "area"), "a callable")
        self.distance = distance
        self.reduction = check_reduction(reduction)

    def _losses(self, problem: Problem, gold: Potentials, relaxation: Relaxation) -> Tensor:
        mean = relaxation.mean(problem.oracle, problem.theta)
        if callable(self.distance):
            losses, size = self.distance(gold, mean), len(as_tuple(mean)[0])
            if not isinstance(losses, Tensor) or losses.shape != (size,):
                came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise InvalidInputError(f"distance(y, mean) must return a tensor of shape ({size},), got {came}")
            return losses
        y, read = (as_tuple(problem.oracle.readout(p)) for p in (gold, mean))
        if self.distance == "area":
            each = [_area(*of_part) for of_part in zip(y, read, self._shown(problem), strict=True)]
        else:
            each = [_DISTANCES[self.distance](a, b) for a, b in zip(y, read, strict=True)]
        return torch.stack(each).sum(0)

    def _check_followed(self) -> None:
        refuse_function("distance", self.distance)

    def _calls_functions(self) -> bool:
        return callable(self.distance)

    @staticmethod
    def _shown(problem: Problem) -> tuple[Tensor, ...]:
        """Which of the parts that the readout shows are not padding, (B | 1, *event) bool each."""
        masks = problem.oracle.valid_parts(problem.theta)
        inside = map_parts(torch.ones_like, problem.theta)
        if masks is not None:
            inside = map_parts(lambda m, t: m.to(t).expand(-1, *t.shape[1:]), masks, problem.theta)
        return tuple(r != 0 for r in as_tuple(problem.oracle.readout(inside)))

    def extra_repr(self) -> str:
        distance = self.distance if isinstance(self.distance, str) else "..."
        return (
            f"oracle={self.oracle!r}, relaxation={self.relaxation!r}, distance={distance}, reduction={self.reduction!r}"
        )


def _squared_l2(y: Tensor, mean: Tensor) -> jaxtyping.Float[Tensor, " batch"]:
    return 0.5 * (y - mean).square().flatten(1).sum(1)


def _kl(y: Tensor, mean: Tensor) -> jaxtyping.Float[Tensor, " batch"]:
    # Parts that y lacks add nothing; their probability must not reach the logarithm, whose slope is infinite at 0.
    used = y > 0
    return (torch.xlogy(y, y) - y * torch.where(used, mean, 1.0).log()).flatten(1).sum(1)


def _area(y: Tensor, mean: Tensor, shown: Tensor) -> jaxtyping.Float[Tensor, " batch"]:
    if y.ndim != 3:
        raise InvalidInputError(
            f'distance="area" compares alignment matrices, got structures of shape {tuple(y.shape[1:])}'
        )
    # Rows may differ in length, and what is left at their ends would go on into the padding.
    return torch.where(shown, (mean - y).cumsum(2), 0.0).square().flatten(1).sum(1)


_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"squared_l2": _squared_l2, "kl": _kl}
