"""adaptive_imle: implicit maximum likelihood that finds its own step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..errors import InvalidInputError
from ..noise import Noise, get_noise
from ..parts import Parts, as_tuple, map_parts
from ..validation import check_flag, check_fraction, check_positive
from .surrogate import ArgmaxResult, NoisySurrogate

__all__ = ["AdaptiveIMLE"]


class AdaptiveIMLE(NoisySurrogate, nn.Module):
    """:class:`IMLE <structinf.relaxations.imle.IMLE>` with the step λ = α ‖θ‖ / ‖v‖ of each batch, and α learned.

    Each backward pass, in eval mode too, counts the non-zeros c of the gradient, per instance and sample, in a running
    average

        c̄ ← decay c̄ + (1 − decay) c,     α ← max(α + alpha_step, 0) if c̄ < target_nonzeros else max(α − alpha_step, 0),

    so that the step is as small, and the gradient as little biased, as it can be with so many of them. α and c̄ are
    buffers: a layer's ``state_dict`` holds them. Where λ is 0 the gradient is 0: potentials must not
    start at 0.

    Parameters
    ----------
    noise, sigma, samples, reduction, symmetric
        As for ``imle``.
    alpha : float
        α at first, at least 0.
    target_nonzeros : float
        The number of non-zeros wanted, above 0.
    alpha_step : float
        By how much a backward pass changes α, above 0.
    decay : float
        Of the average, at least 0 and below 1; it starts from ``target_nonzeros``.

    References
    ----------
    Minervini, Franceschi & Niepert 2023, Adaptive Perturbation-Based Gradient Estimation for Discrete Latent Variable
    Models. The norms are those of the whole batch, of θ without its noise and of its finite parts.

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
        sigma: float = 1.0,
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
        self.target_nonzeros, self.alpha_step, self.decay = target_nonzeros, alpha_step, decay
        # Written to in place alone: copies that draw from another generator share them.
        self.register_buffer("alpha", torch.tensor(float(alpha)))
        self.register_buffer("nonzeros", torch.tensor(float(target_nonzeros)))

    def surrogate_gradient(self, result: ArgmaxResult, v: Parts) -> Parts:
        size, slope = _norm(result.noiseless_theta), _norm(v)
        step = torch.where(slope == 0, 0.0, self.alpha.to(size) * (size / slope))
        step = torch.where(slope.isfinite(), step, torch.nan)
        difference = result.argmax_difference(v, step, symmetric=self.symmetric)
        rows = len(as_tuple(v)[0])
        if rows and bool(step.isfinite()):  # from a loss that is not there is nothing to learn
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
        # In half precision α would be too coarse to take a step: a module's change of dtype passes it by.
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for key, buffer in self.named_buffers():
            if buffer.dtype != before[key].dtype:
                self._buffers[key] = before[key].to(buffer.device)
        return self


def _norm(parts: Parts) -> Tensor:
    """The root of an instance's mean ‖·‖² over its finite parts, in float64; potentials that are shared are each's."""
    squares = [torch.where(t.isneginf(), 0.0, t).double().square().flatten(1).sum(1).mean() for t in as_tuple(parts)]
    return torch.stack(squares).sum().sqrt()
