"""map: the structure of highest score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracle import Oracle
from ..parts import Parts, as_tuple, map_parts
from ..relaxation import RegularizedRelaxation, zero_omega
from ..shapes import Float
from ..solution import Solution
from ..solvers.argmax import best_score, best_structure

__all__ = ["MAP", "with_zero_gradient"]


@dataclass(frozen=True, kw_only=True)
class MAP(RegularizedRelaxation):
    """argmax ⟨θ, y⟩ over y ∈ Y, a structure.

    The result is piecewise constant: its gradient is 0, so no training through it is possible. As a loss (Ω = 0) it
    is the structured perceptron, and with a cost the structured SVM.

    References
    ----------
    M. Collins, Discriminative training methods for hidden Markov models: theory and experiments with perceptron
    algorithms, EMNLP 2002.
    I. Tsochantaridis, T. Joachims, T. Hofmann & Y. Altun, Large margin methods for structured and interdependent output
    variables, JMLR 6, 2005.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[0.9, 1.0], [0.2, 0.5]])
    >>> si.relax(theta, "assignment", MAP())
    tensor([[1., 0.],
            [0., 1.]])
    """

    name = "map"
    search_terms = ("argmax", "viterbi", "perceptron", "structured_svm", "hard")

    @property
    def piecewise_constant(self) -> bool:
        return True

    def defers_checks(self, oracle: Oracle) -> bool:
        return True

    def solve_defers_checks(self, oracle: Oracle) -> bool:
        return True

    def solve(self, oracle: Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        self.refuse_warm_start(warm_start)
        y = best_structure(oracle, theta)
        value = best_score(oracle, theta, y)
        return Solution(
            mean=with_zero_gradient(y, theta),
            value=value,
            weights=torch.ones_like(value)[None],
            make_support=lambda: map_parts(lambda z: z[None], y),
            gap=torch.zeros_like(value),
            converged=torch.ones_like(value, dtype=torch.bool),
            oracle_calls=1,
        )

    def mean(self, oracle: Oracle, theta: Parts) -> Parts:
        return with_zero_gradient(best_structure(oracle, theta), theta)

    def conjugate(self, oracle: Oracle, theta: Parts) -> Float[Tensor, " batch"]:
        """Return max ⟨θ, y⟩, (B,); its gradient is the best structure."""
        return best_score(oracle, theta, best_structure(oracle, theta))

    def omega(self, oracle: Oracle, y: Parts) -> Float[Tensor, " batch"]:
        """Return 0, (B,)."""
        return zero_omega(y)


def with_zero_gradient(y: Parts, theta: Parts) -> Parts:
    """Return ``y`` as a function of θ with gradient 0, so that a loss of ``y`` can be differentiated.

    Sums over no elements add edges to the graph without arithmetic (0 · −inf would be NaN). The summands are
    squares, so that the gradient again has a gradient of 0.
    """
    sources = [t for t in as_tuple(theta) if t.requires_grad]
    if not sources or not torch.is_grad_enabled():
        return y
    nothing = torch.stack([t[:0].square().sum() for t in sources]).sum()
    return map_parts(lambda z: z + nothing, y)
