"""muprop: samples, with the Taylor polynomial of f at the marginals as control variate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import autograd
from ..calls.problem import Problem
from ..oracle import GibbsOracle, Samplable
from ..parts import Parts, as_tuple, pack_like
from ..shapes import Float
from ..smoothing import log_partition_function
from ..validation import check_natural
from .base import Estimator, evaluate, flat_rows, point_gradients
from .score_function import ScoreFunction
from .weighted_structures import WeightedStructures, needs_gradient

__all__ = ["MuProp"]


class MuProp(Estimator):
    """E[f(Y)] under p(y) ∝ exp⟨θ, y⟩, as the mean of f over samples, with a linear approximation of f summed exactly.

    With the marginals μ and g = ∇f(μ), the gradient is (f(y) − f(μ) − ⟨g, y − μ⟩) ∇log p(y) + Cov[Y] g + ∇f(y), where
    ∇f(y) is the gradient in the parameters of f. Value and gradient are unbiased for every f that is differentiable at
    μ. The closer f is to a linear function on conv(Y), the lower the variance; a linear f has no variance.

    f is evaluated once more for each instance, at μ: f must take any point of conv(Y), and compute its derivative.

    Parameters
    ----------
    samples : int
        The number of samples of each instance, at least 1.

    References
    ----------
    Gu, Levine, Sutskever & Mnih 2016, MuProp: Unbiased Backpropagation for Stochastic Neural Networks, Equation 6.

    Examples
    --------
    >>> import structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    >>> cost = torch.tensor([3.0, 1.0, 2.0])
    >>> value = si.expect(lambda y: y @ cost, theta, "subset", MuProp(), k=2)
    >>> exact = si.expect(lambda y: y @ cost, theta, "subset", k=2)
    >>> gradient, = torch.autograd.grad(value.sum(), theta)
    >>> torch.allclose(gradient, torch.autograd.grad(exact.sum(), theta)[0])
    True
    """

    requires = (GibbsOracle, Samplable)

    def __init__(self, *, samples: int = 10) -> None:
        super().__init__()
        check_natural("samples", samples)
        self.samples = samples

    def weighted_structures(
        self, oracle: Any, theta: Parts, generator: torch.Generator | None = None
    ) -> WeightedStructures:
        return ScoreFunction(samples=self.samples, baseline="none").weighted_structures(oracle, theta, generator)

    def forward(
        self,
        f: Callable[..., Tensor],
        problem: Problem,
        inputs: Sequence[Tensor] = (),
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, " batch"]:
        if not needs_gradient(problem.theta):
            return super().forward(f, problem, inputs, generator)
        oracle: Any = problem.oracle
        rows = [flat_rows(x, f"inputs[{i}]", problem.batch_shape) for i, x in enumerate(inputs)]
        with problem.plain_modes():
            terms = self.weighted_structures(oracle, problem.theta, generator)
            mean = autograd.gradient(log_partition_function(oracle), problem.theta)
        leaves = [t.detach().to(d).requires_grad_() for t, d in zip(as_tuple(mean), problem.dtypes, strict=True)]
        drawn = [t.to(d) for t, d in zip(as_tuple(terms.structures), problem.dtypes, strict=True)]
        count, zeros = len(terms.instance), terms.weights.new_zeros(terms.batch).detach()
        instance = torch.cat([terms.instance, torch.arange(terms.batch, device=zeros.device)])
        # f gets its arguments sorted by instance: the samples, and then the marginals.
        order = instance.argsort(stable=True)
        pairs = zip(drawn, leaves, strict=True)
        points = pack_like([torch.cat(pair)[order] for pair in pairs], problem.theta)
        every = WeightedStructures(
            points, instance[order], torch.cat([terms.weights, zeros])[order], zeros, terms.batch
        )
        values = evaluate(f, every, points, rows)[order.argsort()]
        at_samples, at_mean = values[:count], values[count:]
        slopes = point_gradients(at_mean.sum(), leaves)
        control = at_mean.detach()[terms.instance]
        for y, m, g in zip(drawn, leaves, slopes, strict=True):
            away = (y - m.detach()[terms.instance]) * g[terms.instance]
            control = control + away.flatten(1).sum(1)
        w = terms.weights
        summed = terms.sum(w * at_samples - (w - w.detach()) * control)
        # 0, with the gradient Cov[Y] g.
        for m, g in zip(as_tuple(mean), slopes, strict=True):
            summed = summed + ((m - m.detach()) * g.to(m.dtype)).flatten(1).sum(1)
        return summed

    def extra_repr(self) -> str:
        return f"samples={self.samples}"
