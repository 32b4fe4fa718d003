"""Best paths, samples, sums and smoothed maxima of alignments, by loops over the cells of a grid."""

from __future__ import annotations

import abc
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from structinf.kernels.gpu import uses_triton
from structinf.parts import Parts, divide_by_temperature, hessian_product_by_autograd
from structinf.regularizers import Regularizer, smooth_max_gradient, smooth_max_value
from structinf.shapes import Float
from structinf.smoothing import kernel_alpha, smooth_max, triton_alpha
from structinf.validation import check_count, check_feasible, check_instances, check_k

from .alignment_windows import AlignmentWindows

__all__ = ["AlignmentLoops"]


class AlignmentLoops(AlignmentWindows):
    """A program over paths of single steps, or over other paths, which take the hypergraph."""

    @property
    @abc.abstractmethod
    def _has_compiled_loop(self) -> bool:
        """Whether the loops for grids enumerate these paths; the hypergraph does for all other options."""

    # -- single paths ----------------------------------------------------------------------

    def argmax(self, theta: Tensor) -> Float[Tensor, "batch n m"]:
        if not self._has_compiled_loop:
            return cast(Tensor, super().argmax(theta))
        theta = self._without_cells_outside_windows(theta)
        kernels, extent = self._kernels(theta, uses_triton(theta))
        return _check_and_move(kernels.argmax(theta, *extent), theta)

    def smoothed_sample(
        self, theta: Tensor, n: int, regularizer: Regularizer, generator: torch.Generator | None = None
    ) -> Tensor:
        check_count(n)
        if regularizer.alpha is None or not self._has_compiled_loop:
            return cast(Tensor, super().smoothed_sample(theta, n, regularizer, generator))
        theta = self._without_cells_outside_windows(theta)
        is_on_device = triton_alpha(theta, regularizer) is not None
        kernels, extent = self._kernels(theta, is_on_device)
        theta = cast(Tensor, divide_by_temperature(theta, regularizer.temperature))
        batch, rows, columns = theta.shape
        device = (theta.device if is_on_device else "cpu") if generator is None else generator.device
        shape = n, batch, rows + columns - 1
        uniforms = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
        if is_on_device:
            uniforms = uniforms.to(theta.device, non_blocking=True)
        return _check_and_move(kernels.sample(theta, *extent, float(regularizer.alpha), uniforms), theta)

    def topk(self, theta: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        check_k(k)
        if not self._has_compiled_loop:
            return cast(Any, super().topk(theta, k))
        theta = self._without_cells_outside_windows(theta)
        kernels, extent = self._kernels(theta, uses_triton(theta))
        scores, y = kernels.topk(theta, *extent, k)
        y = _check_and_move((scores[0], y), theta)
        scores = scores.to(theta.dtype).to(theta.device, non_blocking=True)
        return y, scores, ~torch.isneginf(scores)

    # -- sums over paths, and smoothed maxima --------------------------------------------------

    def smoothed_value(self, theta: Tensor, regularizer: Regularizer) -> Float[Tensor, " batch"]:
        if not self._has_compiled_loop:
            return super().smoothed_value(theta, regularizer)
        theta = self._without_cells_outside_windows(theta)
        found = self._smoothed_kernels(theta, regularizer)
        is_recorded = torch.is_grad_enabled() and theta.requires_grad
        if is_recorded or found is None:
            from ..kernels.alignment import torch_backend

            smax = partial(smooth_max if is_recorded else smooth_max_value, regularizer)
            value = torch_backend.value(theta, *self._sizes_and_bands(theta), smax)
        else:
            kernels, extent, alpha = found
            value = kernels.value(theta, *extent, alpha)
        return _check_and_move((value, value), theta).to(theta.dtype)

    def smoothed_vjp(self, theta: Tensor, weight: Tensor, regularizer: Regularizer) -> Tensor:
        if not self._has_compiled_loop:
            return cast(Tensor, super().smoothed_vjp(theta, weight, regularizer))
        return self._value_and_weighted_mean(theta, regularizer, weight)[1]

    def smoothed_value_and_mean(self, theta: Tensor, regularizer: Regularizer) -> tuple[Tensor, Tensor]:
        if not self._has_compiled_loop:
            return cast(Any, super().smoothed_value_and_mean(theta, regularizer))
        return self._value_and_weighted_mean(theta, regularizer, None)

    def _value_and_weighted_mean(
        self, theta: Tensor, regularizer: Regularizer, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return DP_Ω(θ), (B,), and ∇DP_Ω(θ), (B, n, m), times the ``weight`` (B,) of each instance, 1 by default."""
        theta = self._without_cells_outside_windows(theta)
        found = self._smoothed_kernels(theta, regularizer)
        if found is None:
            from ..kernels.alignment import torch_backend

            smax, choices = partial(smooth_max_value, regularizer), partial(smooth_max_gradient, regularizer)
            value, mean = torch_backend.value_and_mean(theta, *self._sizes_and_bands(theta), smax, choices)
            if weight is not None:
                mean *= weight.view(-1, 1, 1)
        else:
            kernels, extent, alpha = found
            value, mean = kernels.value_and_mean(theta, *extent, alpha, weight)
        return value.to(theta.dtype), _check_and_move((value, mean), theta)

    def smoothed_hessian_product(self, theta: Tensor, v: Tensor, regularizer: Regularizer) -> Parts:
        if not self._has_compiled_loop:
            return super().smoothed_hessian_product(theta, v, regularizer)
        theta = self._without_cells_outside_windows(theta)
        found = self._smoothed_kernels(theta, regularizer)
        if found is None:
            return hessian_product_by_autograd(lambda t: self.smoothed_value(cast(Tensor, t), regularizer), theta, v)
        kernels, extent, alpha = found
        return _check_and_move(kernels.hessian_product(theta, v.expand(theta.shape), *extent, alpha), theta)

    # -- kernels ---------------------------------------------------------------------------

    def _smoothed_kernels(self, theta: Tensor, regularizer: Regularizer) -> tuple[Any, tuple[Any, Any], float] | None:
        """Return the result of :meth:`_kernels`, and α; None if only torch computes this maximum on this device."""
        alpha = triton_alpha(theta, regularizer)
        if alpha is not None:
            return *self._kernels(theta, True), alpha
        alpha = kernel_alpha(theta, regularizer)
        return None if alpha is None else (*self._kernels(theta, False), alpha)

    def _kernels(self, theta: Tensor, is_on_device: bool) -> tuple[Any, tuple[Any, Any]]:
        """Return the kernels for the device of θ or for the CPU, with their arguments for lengths and bands."""
        if not is_on_device:
            from ..kernels.alignment import dispatch

            return dispatch, self._sizes_and_bands(theta)
        from ..kernels.alignment import triton_dispatch

        _, n, m = theta.shape
        for name, data in self.bound.items():
            check_instances(name, data, len(theta))
        return triton_dispatch, (
            self.bound.get("lengths"),
            self._option_band(n, m)
            if self.window == "slanted_band"
            else self.bound.get("band", self._option_band(n, m)),
        )


def _check_and_move(result: tuple[Tensor, Tensor], theta: Tensor) -> Tensor:
    """Return the parts of ``result`` on the device of θ; InfeasibleError if the value of an instance is −inf."""
    value, parts = result
    check_feasible(value, "alignment")
    return parts.to(theta.device, non_blocking=True)
