"""imle: perturb-and-MAP, with the gradient of implicit maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..noise import Noise, get_noise
from ..parts import Parts, map_parts
from ..validation import check_flag, check_positive
from .surrogate import ArgmaxResult, NoisySurrogate

__all__ = ["IMLE"]


@dataclass(frozen=True, kw_only=True)
class IMLE(NoisySurrogate):
    """y = argmax ⟨θ + σU, y⟩, with the gradient (y − argmax ⟨θ + σU − λv, y⟩) / λ for v = dL/dy and the same noise U.

    It pulls θ from the distribution of y towards a target that the loss likes better. All samples go through one call
    of the oracle forward and one backward, two if ``symmetric``. Where the oracle takes costs alone, there must be no
    noise, and θ − λv is cut at 0.

    Parameters
    ----------
    lambda_ : float
        λ, above 0, on the scale of θ over that of v.
    noise : str or Noise
        U, for each part of each instance; ``SumOfGamma(k=...)`` knows how many parts a structure has.
    sigma : float
        σ, the noise's temperature, above 0.
    samples : int
        At least 1.
    reduction : "mean" or "none"
        The samples' mean, with the mean of their gradients; or each by itself, in front of the batch,
        (samples, ..., *event), with its own v, and the sum of their gradients.
    symmetric : bool
        The central difference (argmax ⟨θ + σU + λv, y⟩ − argmax ⟨θ + σU − λv, y⟩) / 2λ.

    References
    ----------
    Niepert, Minervini & Franceschi 2021, Implicit MLE: Backpropagating Through Discrete Exponential Family
    Distributions, Algorithm 1 and equation 9; there the division by λ is left to the step size.
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

    lambda_: float = 10.0
    noise: str | Noise = "sum_of_gamma"
    sigma: float = 1.0
    samples: int = 1
    reduction: Literal["mean", "none"] = "mean"
    symmetric: bool = False

    name = "imle"
    search_terms = ("implicit_mle",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", get_noise(self.noise))
        check_positive("lambda_", self.lambda_)
        self._check_sampling()
        check_flag("symmetric", self.symmetric)

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        return map_parts(
            lambda d: d / self.lambda_, result.argmax_difference(v, self.lambda_, symmetric=self.symmetric)
        )
