"""Best structures, samples, sums and smoothed maxima of chains, by loops over the tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from structinf.dp import HypergraphProgram
from structinf.kernels import parallel_rows, to_numpy, zeros
from structinf.kernels.gpu import uses_triton
from structinf.parts import (
    Parts,
    as_tuple,
    batch_size,
    divide_by_temperature,
    hessian_product_by_autograd,
    map_parts,
    scale_per_instance,
    sum_to_batch_of,
)
from structinf.regularizers import Regularizer, smooth_max_gradient, smooth_max_value
from structinf.shapes import Float, Int
from structinf.smoothing import kernel_alpha, smooth_max, triton_alpha
from structinf.validation import (
    bound_lengths,
    check_count,
    check_feasible,
    check_k,
)

from .chain_potentials import common_form, original_form, size_of, tag_indicators

__all__ = ["ChainLoops"]

# With more states, a tile of a Triton kernel would have fewer than 2 columns.
_MOST_STATES_IN_TRITON = 1024


class ChainLoops(HypergraphProgram):
    """A program over the sequences of tags of a chain, in the forms of :mod:`.chain_potentials`."""

    # -- the best structures ------------------------------------------------------------------

    def argmax(self, theta: Parts) -> Parts:
        """Run Viterbi's algorithm. Ties go to the lowest tag, decided from the last token backwards."""
        unary, transition, lengths = self._inputs(theta)
        if unary.device.type != "cpu" or _fits_triton(unary):
            if _fits_triton(unary):
                from ..kernels.chain.triton_dispatch import best_tags
            else:
                from ..kernels.chain.torch_backend import best_tags

            tags, feasible = best_tags(unary, transition, lengths)
            self._check_feasible(feasible)
            return tag_indicators(tags, lengths if "lengths" in self.bound else None, theta)
        from ..kernels.chain.viterbi import argmax

        batch, (steps, states) = len(lengths), unary.shape[1:]
        nodes = zeros(batch, steps, states, dtype=unary.dtype)
        edges = zeros(batch, transition.shape[1], states, states, dtype=unary.dtype)
        feasible = torch.empty(batch, dtype=torch.bool, device="cpu")
        arrays = to_numpy(unary, transition, lengths, feasible, nodes, edges)
        parallel_rows(argmax, batch, *arrays, work=batch * steps * states**2)
        self._check_feasible(feasible)
        return original_form(nodes, edges, theta)

    def argmax_indices(self, theta: Parts) -> Int[Tensor, "batch parts"] | None:
        unary, transition, lengths = self._inputs(theta)
        if unary.device.type != "cpu" or _fits_triton(unary):
            return None
        from ..kernels.chain.viterbi import argmax_indices

        batch, (steps, states) = len(lengths), unary.shape[1:]
        feasible = torch.empty(batch, dtype=torch.bool, device="cpu")
        parts = torch.empty(batch, steps * isinstance(theta, tuple) + steps - 1, dtype=torch.int32, device="cpu")
        arrays = to_numpy(unary, transition, lengths, feasible, parts)
        parallel_rows(argmax_indices, batch, *arrays, work=batch * steps * states**2)
        self._check_feasible(feasible)
        return parts

    def topk(self, theta: Parts, k: int) -> tuple[Parts, Tensor, Tensor]:
        check_k(k)
        unary, transition, lengths = self._inputs(theta)
        if _fits_triton(unary):
            from ..kernels.chain import triton_dispatch

            tags, scores = triton_dispatch.topk(unary, transition, lengths, k)
        else:
            from ..kernels.chain.k_best import topk

            batch, (steps, states) = len(lengths), unary.shape[1:]
            tags = torch.zeros(k, batch, steps, dtype=torch.int64, device="cpu")
            scores = torch.empty(k, batch, dtype=torch.float64, device="cpu")
            arrays = to_numpy(unary, transition, lengths, tags, scores)
            parallel_rows(topk, batch, *arrays, work=4 * batch * steps * states**2 * k)
        self._check_feasible(scores[0])
        tags, scores = (t.to(unary.device, non_blocking=True) for t in (tags, scores.to(unary.dtype)))
        valid = ~torch.isneginf(scores)
        # If fewer than r sequences exist, the r-th structure is all padding.
        return tag_indicators(tags, torch.where(valid, lengths, 0), theta), scores, valid

    # -- smoothed recursion; with the negative entropy, sums over all structures ---------------

    def smoothed_value(self, theta: Parts, regularizer: Regularizer) -> Float[Tensor, " batch"]:
        unary, transition, lengths = self._inputs(theta)
        is_recorded = torch.is_grad_enabled() and (unary.requires_grad or transition.requires_grad)
        kernels, alpha = _kernels(unary, regularizer)
        if is_recorded or kernels is None:
            from ..kernels.chain import torch_backend

            smax = {} if regularizer.alpha == 1 else {"smax": lambda x, dim: smooth_max(regularizer, x, dim)}
            value = torch_backend.value(unary, transition, lengths, **smax)
            if unary.shape[1] == 1:  # no transition is used; an empty sum keeps the tensor in the autograd graph
                value = value + transition[:, :0].sum()
        else:
            value = kernels.value(unary, transition, lengths, alpha)
        self._check_feasible(value.detach())
        return value.to(unary.dtype)

    def smoothed_value_and_mean(self, theta: Parts, regularizer: Regularizer) -> tuple[Tensor, Parts]:
        if regularizer.alpha == math.inf:
            y = self.argmax(theta)
            return self.score(theta, y), y
        unary, transition, lengths = self._inputs(theta)
        kernels, alpha = _kernels(unary, regularizer)
        if kernels is None:
            from ..kernels.chain import torch_backend

            value, nodes, edges = torch_backend.value_and_mean(
                unary, transition, lengths, **_torch_maximum(regularizer)
            )
        else:
            value, nodes, edges = kernels.value_and_mean(unary, transition, lengths, alpha)
        self._check_feasible(value)
        return value.to(unary.dtype), original_form(nodes, edges, theta)

    def smoothed_vjp(self, theta: Parts, weight: Tensor, regularizer: Regularizer) -> Parts:
        unary, transition, lengths = self._inputs(theta)
        kernels, alpha = _kernels(unary, regularizer)
        if kernels is None or alpha == math.inf:
            return sum_to_batch_of(scale_per_instance(self.smoothed_mean(theta, regularizer), weight), theta)
        value, nodes, edges = kernels.value_and_mean(unary, transition, lengths, alpha, weight)
        self._check_feasible(value)
        return original_form(nodes, edges, theta)

    def smoothed_hessian_product(self, theta: Parts, v: Parts, regularizer: Regularizer) -> Parts:
        if regularizer.alpha == math.inf:
            return map_parts(torch.zeros_like, self.argmax(theta))
        unary, transition, lengths = self._inputs(theta)
        kernels, alpha = _kernels(unary, regularizer)
        if kernels is None:
            return hessian_product_by_autograd(lambda t: self.smoothed_value(t, regularizer), theta, v)
        value, nodes, edges = kernels.hessian_product(unary, transition, lengths, alpha, *common_form(v))
        self._check_feasible(value)
        return original_form(nodes, edges, theta)

    def smoothed_sample(
        self, theta: Parts, n: int, regularizer: Regularizer, generator: torch.Generator | None = None
    ) -> Parts:
        check_count(n)
        if regularizer.alpha is None:
            return super().smoothed_sample(theta, n, regularizer, generator)
        if regularizer.alpha == math.inf:
            return map_parts(lambda y: y.expand(n, *y.shape).clone(), self.argmax(theta))
        unary, transition, lengths = self._inputs(divide_by_temperature(theta, regularizer.temperature))
        device = "cpu" if generator is None else generator.device
        shape = n, len(lengths), unary.shape[1]
        uniforms = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
        kernels, alpha = _kernels(unary, regularizer)
        if kernels is None:
            from ..kernels.chain import dispatch

            value, tags = dispatch.sample(unary, transition, lengths, regularizer.alpha, uniforms)
        else:
            value, tags = kernels.sample(
                unary, transition, lengths, alpha, uniforms.to(unary.device, non_blocking=True)
            )
        self._check_feasible(value)
        return tag_indicators(tags.to(unary.device, non_blocking=True), lengths, theta)

    def _check_feasible(self, value: Tensor) -> None:
        check_feasible(value, "tag sequence")

    def _inputs(self, theta: Parts) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``theta`` in the common form, and the lengths (B,).

        With edge scores alone, a single token has one structure, without parts. Its tags other than 0 are therefore
        forbidden here.
        """
        unary, transition = common_form(theta)
        lengths = self._lengths(theta)
        if not isinstance(theta, tuple) and (unary.shape[1] == 1 or "lengths" in self.bound):
            # Steps beyond the length are ignored, so that the first step needs no separate treatment.
            other_tags = torch.arange(unary.shape[2], device=unary.device) > 0
            unary = torch.where((lengths == 1).view(-1, 1, 1) & other_tags, float("-inf"), unary)
        return unary, transition, lengths

    def _lengths(self, theta: Parts, batch: int | None = None) -> Tensor:
        """Return the bound lengths (B,), or T for each instance."""
        batch = batch_size(theta) if batch is None else batch
        return bound_lengths(self, batch, size_of(theta)[0], as_tuple(theta)[0].device)


def _kernels(unary: Tensor, regularizer: Regularizer) -> tuple[Any, Any]:
    """Return the module with the kernels for ``unary`` (B, T, S), and their α; None where torch operations serve."""
    alpha = kernel_alpha(unary, regularizer)
    if alpha is not None:
        from ..kernels.chain import dispatch

        return dispatch, alpha
    alpha = triton_alpha(unary, regularizer)
    if alpha is not None and _fits_triton(unary):
        from ..kernels.chain import triton_dispatch

        return triton_dispatch, alpha
    return None, None


def _fits_triton(unary: Tensor) -> bool:
    """Return whether Triton kernels process ``unary`` (B, T, S)."""
    return uses_triton(unary) and unary.shape[2] <= _MOST_STATES_IN_TRITON


def _torch_maximum(regularizer: Regularizer) -> dict[str, Any]:
    """Return ``smax`` and ``choices`` for the torch operations of chains; empty for α = 1, the default there."""
    if regularizer.alpha == 1:
        return {}

    def smax(x: Tensor, dim: int) -> Tensor:
        return smooth_max_value(regularizer, x.movedim(dim, -1))

    def choices(x: Tensor, _: Tensor) -> Tensor:
        return smooth_max_gradient(regularizer, x.movedim(1, -1)).movedim(-1, 1)

    return {"smax": smax, "choices": choices}
