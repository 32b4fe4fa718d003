"""spigot: a surrogate gradient from a projected step against the gradient of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from ..oracle import GibbsOracle, Oracle, Projectable
from ..parts import Parts, map_parts
from ..relaxation import missing_ability_reason
from ..validation import check_choice, check_step
from .sparsemap import SparseMAP
from .surrogate import ArgmaxResult, Surrogate, take_step

__all__ = ["SPIGOT"]

_PROJECTION = SparseMAP(penalty="all", tolerance=0)


@dataclass(frozen=True, kw_only=True)
class SPIGOT(Surrogate):
    """argmax ⟨θ, y⟩ in the forward pass, and the gradient of a structured loss in the backward pass.

    The gold structure of this loss is replaced by a label: the result of a step against v = dL/dy. Let proj be the
    Euclidean projection onto conv(Y), exact by the active-set method or in closed form. Let m(θ) = E[Y] under p(y)
    ∝ exp⟨θ, y⟩.

    ========================  ===========  ===========================  ==========================
    variant                   loss         step towards the label       gradient
    ========================  ===========  ===========================  ==========================
    "projection"              perceptron   projected, from y            y − proj(y − ηv)
    "cross_entropy"           CRF          projected, from m(θ)         m(θ) − proj(m(θ) − ηv)
    "exponentiated_gradient"  CRF          mirror descent, from m(θ)    m(θ) − m(θ − ηv)
    ========================  ===========  ===========================  ==========================

    All variants take v at the structure y of the forward pass.

    Parameters
    ----------
    step_size : float or Tensor
        The step size η, above 0. A tensor with one number receives no gradient.
    variant : "projection", "cross_entropy" or "exponentiated_gradient"
        The rule, as in the table. "cross_entropy" and "exponentiated_gradient" need an oracle with marginals (a
        GibbsOracle).

    References
    ----------
    Peng, Thomson & Smith 2018, Backpropagating through Structured Argmax using a SPIGOT, §3.
    Mihaylova, Niculae & Martins 2020, Understanding the Mechanics of SPIGOT: Surrogate Gradients for Latent Structure
    Learning (SPIGOT-CE and SPIGOT-EG, with the argmax forward).

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    >>> y = si.relax(theta, "categorical", "spigot", step_size=0.5)
    >>> y.backward(torch.tensor([[0.0, 1.0, -1.0]]))
    >>> theta.grad
    tensor([[ 0.0000,  0.5000, -0.5000]])
    """

    step_size: float | Tensor = 1.0
    variant: Literal["projection", "cross_entropy", "exponentiated_gradient"] = "projection"

    name = "spigot"
    step_option = "step_size"

    def __post_init__(self) -> None:
        check_step("step_size", self.step_size, "spigot")
        check_choice("variant", self.variant, ("projection", "cross_entropy", "exponentiated_gradient"))

    def unsupported_reason(self, oracle: Oracle) -> str | None:
        projects = self.variant != "exponentiated_gradient"
        if oracle.requires_nonpositive_theta and not (projects and isinstance(oracle, Projectable)):
            return f"{oracle.label()} takes scores of at most 0, and a step against the gradient can make them positive"
        if self.variant == "projection":
            return super().unsupported_reason(oracle)
        why = missing_ability_reason(oracle, GibbsOracle)
        return why and f'variant="{self.variant}" needs marginals, and {why}'

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        start = result.y if self.variant == "projection" else self._marginals(result.oracle, result.theta)
        if self.variant == "exponentiated_gradient":
            label = result.solve_where_finite(
                lambda t: self._marginals(result.oracle, t), take_step(result.theta, v, -self.step)
            )
        else:
            stepped = take_step(start, v, -self.step)
            # Keep parts of score −inf forbidden in the projection.
            stepped = map_parts(lambda s, t: torch.where(t.isneginf(), -torch.inf, s), stepped, result.theta)
            label = result.solve_where_finite(lambda t: _PROJECTION.mean(result.oracle, t), stepped)
        return map_parts(torch.sub, start, label)

    @staticmethod
    def _marginals(oracle: Oracle, theta: Parts) -> Parts:
        return cast(GibbsOracle, oracle).marginals(theta)
