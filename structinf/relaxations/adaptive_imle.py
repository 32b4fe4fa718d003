"""adaptive_imle: implicit maximum likelihood with an adaptive step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..errors import InvalidInputError
from ..noise import Noise, get_noise
from ..parts import Parts, as_tuple, map_parts
from ..validation import check_flag, check_fraction, check_in_range, check_positive
from .surrogate import ArgmaxResult, NoisySurrogate

__all__ = ["AdaptiveIMLE"]


class AdaptiveIMLE(NoisySurrogate, nn.Module):
    """:class:`IMLE <structinf.relaxations.imle.IMLE>` with an adaptive step λ = α ‖θ‖ / ‖v‖ for each batch.

    Each backward pass, also in eval mode, counts the non-zeros c of the gradient, per instance and sample. It then
    updates

        c̄ ← decay c̄ + (1 − decay) c
        α ← max(α + alpha_step, 0)  if c̄ < target_nonzeros
        α ← max(α − alpha_step, 0)  otherwise

    The step, and with it the bias of the gradient, is thus as small as ``target_nonzeros`` allows. α and c̄ are
    buffers, saved in a layer's ``state_dict``. Where λ is 0 the gradient is 0, so scores must not all start at 0.

    Parameters
    ----------
    noise : str or Noise
        The distribution of the noise U: a name or an object of :mod:`structinf.noise`.
    sigma : float or Tensor
        The scale σ of the noise, above 0, as for ``imle``.
    samples : int
        The number of samples, at least 1.
    reduction : "mean" or "none"
        Whether to average the samples or to return them in a leading dimension, as for ``imle``.
    symmetric : bool
        Whether to use the central difference, as for ``imle``.
    alpha : float
        The initial α, at least 0.
    target_nonzeros : float
        The wanted number of non-zeros, above 0.
    alpha_step : float
        The change of α in a backward pass, above 0.
    decay : float
        The decay of the running average c̄, at least 0 and below 1. The average starts at ``target_nonzeros``.

    References
    ----------
    Minervini, Franceschi & Niepert 2023, Adaptive Perturbation-Based Gradient Estimation for Discrete Latent Variable
    Models. The norms here are over the finite parts of the whole batch, and the norm of θ excludes the noise.

    Examples
    --------
    >>> import structinf as si
    >>> layer = si.Layer("subset", "adaptive_imle", k=2, samples=10)
    >>> layer(torch.randn(3, 5)).shape, list(layer.state_dict())
    (torch.Size([3, 5]), ['relaxation.alpha', 'relaxation.nonzeros'])
    """

    name = "adaptive_imle"
    search_terms = ("aimle",)

    alpha: Tensor
    nonzeros: Tensor

    def __init__(
        self,
        *,
        noise: str | Noise = "sum_of_gamma",
        sigma: float | Tensor = 1.0,
        samples: int = 1,
        reduction: Literal["mean", "none"] = "mean",
        symmetric: bool = False,
        alpha: float = 1.0,
        target_nonzeros: float = 1.0,
        alpha_step: float = 1e-3,
        decay: float = 0.9,
    ) -> None:
        super().__init__()
        self.noise, self.sigma, self.samples = get_noise(noise), sigma, samples
        self.reduction, self.symmetric = reduction, symmetric
        self._check_sampling()
        check_flag("symmetric", symmetric)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < float("inf"):
            raise InvalidInputError(f"alpha must be a finite number of at least 0, got {alpha!r}")
        check_positive("target_nonzeros", target_nonzeros)
        check_positive("alpha_step", alpha_step)
        check_fraction("decay", decay)
        for name, value in (("alpha", alpha or 1.0), ("alpha_step", alpha_step), ("target_nonzeros", target_nonzeros)):
            check_in_range(name, value, torch.float32, "")  # the dtype of the buffers
        self.target_nonzeros, self.alpha_step, self.decay = target_nonzeros, alpha_step, decay
        # Updates happen in place, so that copies with another random generator share the buffers.
        self.register_buffer("alpha", torch.tensor(float(alpha), device="cpu"))
        self.register_buffer("nonzeros", torch.tensor(float(target_nonzeros), device="cpu"))

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        size, slope = _norm(result.noiseless_theta), _norm(v)
        step = torch.where(slope == 0, 0.0, self.alpha.to(size) * (size / slope))
        step = torch.where(slope.isfinite(), step, torch.nan)
        difference = result.argmax_difference(v, step, symmetric=self.symmetric)
        rows = len(as_tuple(v)[0])
        if rows and bool(step.isfinite()):  # keep α if the batch is empty or the loss has no finite gradient
            count = torch.stack([d.count_nonzero() for d in as_tuple(difference)]).sum() / rows
            self._learn(count.to(self.nonzeros))
        return map_parts(lambda d: d / torch.where(step == 0, 1.0, step), difference)

    def _learn(self, count: Tensor) -> None:
        self.nonzeros.mul_(self.decay).add_((1 - self.decay) * count)
        self.alpha.add_(torch.where(self.nonzeros < self.target_nonzeros, self.alpha_step, -self.alpha_step)).clamp_(
            min=0
        )

    def extra_repr(self) -> str:
        options = ("noise", "sigma", "samples", "reduction", "symmetric", "target_nonzeros", "alpha_step", "decay")
        return ", ".join(f"{key}={getattr(self, key)!r}" for key in options)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Buffers keep their dtype when the module's dtype changes: in half precision, rounding would undo a step of α.
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for key, buffer in self.named_buffers():
            if buffer.dtype != before[key].dtype:
                self._buffers[key] = before[key].to(buffer.device)
        return self


def _norm(parts: Parts) -> Tensor:
    """Return the root of the batch mean of ‖·‖² over finite parts, in float64.

    Scores shared by the batch count for each instance.
    """
    squares = [torch.where(t.isneginf(), 0.0, t).double().square().flatten(1).sum(1).mean() for t in as_tuple(parts)]
    return torch.stack(squares).sum().sqrt()
