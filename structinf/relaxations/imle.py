"""imle: perturb-and-MAP, with the gradient of implicit maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..noise import Noise, get_noise
from ..parts import Parts, map_parts
from ..validation import check_flag, check_step
from .surrogate import ArgmaxResult, NoisySurrogate, SampledArgmax

__all__ = ["IMLE"]


@dataclass(frozen=True, kw_only=True)
class IMLE(NoisySurrogate):
    """y = argmax ⟨θ + σU, y⟩, with the gradient (y − argmax ⟨θ + σU − λv, y⟩) / λ for v = dL/dy and the same noise U.

    The gradient moves the distribution of y towards a target distribution with a lower loss. The forward pass and
    the backward pass take one oracle call each for all samples; with ``symmetric``, the backward pass takes two.
    For oracles that accept only scores of at most 0, use ``noise="none"``; θ − λv is then clamped at 0.

    Parameters
    ----------
    lambda_ : float or Tensor
        The step λ, above 0, in units of θ over units of v. A tensor with one number receives no gradient.
    noise : str or Noise
        The distribution of the noise U, drawn for each part of each instance: a name or an object of
        :mod:`structinf.noise`. ``SumOfGamma(k=...)`` takes the number of parts of a structure.
    sigma : float or Tensor
        The scale σ (temperature) of the noise, above 0. The gradient with respect to a tensor with one number is ⟨g, U⟩
        for the gradient g of the noisy scores θ + σU.
    samples : int
        The number of samples, at least 1.
    reduction : "mean" or "none"
        "mean" returns the mean of the samples, with the mean of their gradients. "none" returns all samples in a
        leading dimension, (samples, ..., *event). Each sample then has its own v, and the gradients are summed.
    symmetric : bool
        Whether to use the central difference (argmax ⟨θ + σU + λv, y⟩ − argmax ⟨θ + σU − λv, y⟩) / 2λ.

    References
    ----------
    Niepert, Minervini & Franceschi 2021, Implicit MLE: Backpropagating Through Discrete Exponential Family
    Distributions, Algorithm 1 and equation 9. The paper leaves the division by λ to the step size.
    Minervini, Franceschi & Niepert 2023, Adaptive Perturbation-Based Gradient Estimation for Discrete Latent Variable
    Models (the division by λ, and the central difference).

    Examples
    --------
    >>> import torch, structinf as si
    >>> theta = torch.tensor([[1.0, 2.0, 0.0]], requires_grad=True)
    >>> y = si.relax(theta, "categorical", "imle", lambda_=3.0, noise="none")
    >>> y.backward(torch.tensor([[0.0, 1.0, -1.0]]))
    >>> theta.grad
    tensor([[ 0.0000,  0.3333, -0.3333]])
    """

    lambda_: float | Tensor = 10.0
    noise: str | Noise = "sum_of_gamma"
    sigma: float | Tensor = 1.0
    samples: int = 1
    reduction: Literal["mean", "none"] = "mean"
    symmetric: bool = False

    name = "imle"
    step_option = "lambda_"
    search_terms = ("implicit_mle",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", get_noise(self.noise))
        check_step("lambda_", self.lambda_, "imle")
        self._check_sampling()
        check_flag("symmetric", self.symmetric)

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        step = self.step
        return map_parts(lambda d: d / step, result.argmax_difference(v, step, symmetric=self.symmetric))

    def mean_gradient(self, drawn: SampledArgmax, v: Parts) -> Parts:
        step = self.step
        high = drawn.mean_argmax_at_step(v, step) if self.symmetric else drawn.sample_mean
        low, width = drawn.mean_argmax_at_step(v, -step), step * (2 if self.symmetric else 1)
        return map_parts(lambda a, b: (a - b) / width, high, low)
