"""Sums over segmentations scored by steps, boundaries and durations, in memory that grows with T S."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from structinf.dp import HypergraphProgram
from structinf.errors import InvalidInputError
from structinf.kernels.gpu import uses_triton
from structinf.parts import (
    Parts,
    as_tuple,
    batch_size,
    divide_by_temperature,
    inner_product,
    map_parts,
    scale_per_instance,
    sum_to_batch_of,
)
from structinf.regularizers import NEGENTROPY, Regularizer
from structinf.shapes import Float, Int
from structinf.validation import bound_lengths, check_count

from .segment_boundaries import graph_size, has_boundaries, is_structure, structures, without_masks

__all__ = ["SegmentationSums"]


_LARGE_GRAPH = 20_000
"""From this number of nodes on, the active-set method projects in less time than the graph takes to build."""


class SegmentationSums(HypergraphProgram):
    """A program that sums over the forms of :mod:`.segment_boundaries` without a graph, for the negative entropy.

    The same loops find the best structure. Other regularizers, and derivatives of third order, take the graph.
    """

    def has_faster_argmax(self, theta: Parts) -> bool:
        return has_boundaries(theta) and graph_size([t.shape[1:] for t in as_tuple(theta)]) > _LARGE_GRAPH

    def smoothed_value(self, theta: Parts, regularizer: Regularizer) -> Float[Tensor, " batch"]:
        is_recorded = torch.is_grad_enabled() and any(t.requires_grad for t in as_tuple(theta))
        if is_recorded or not _has_kernels(theta, regularizer):
            return super().smoothed_value(theta, regularizer)
        (kernels, scores), lengths = _kernels(theta), self._lengths(theta)
        is_hard = regularizer.alpha == math.inf
        value = _walk(theta, lengths)[0] if is_hard else kernels.value(scores, lengths)
        self._check_feasible(value)
        return value.to(as_tuple(theta)[0].dtype)

    def smoothed_value_and_mean(self, theta: Parts, regularizer: Regularizer) -> tuple[Tensor, Parts]:
        if not _has_kernels(theta, regularizer):
            return super().smoothed_value_and_mean(theta, regularizer)
        lengths = self._lengths(theta)
        if regularizer.alpha == math.inf:
            value, best = _walk(theta, lengths)
            y = map_parts(lambda t: t[0], best)
        else:
            kernels, scores = _kernels(theta)
            value, y = kernels.value_and_mean(scores, lengths)
        self._check_feasible(value)
        return value.to(as_tuple(theta)[0].dtype), y

    def smoothed_vjp(self, theta: Parts, weight: Tensor, regularizer: Regularizer) -> Parts:
        if not _has_kernels(theta, regularizer):
            return super().smoothed_vjp(theta, weight, regularizer)
        return sum_to_batch_of(scale_per_instance(self.smoothed_mean(theta, regularizer), weight), theta)

    def smoothed_hessian_product(self, theta: Parts, v: Parts, regularizer: Regularizer) -> Parts:
        if not _has_kernels(theta, regularizer):
            return super().smoothed_hessian_product(theta, v, regularizer)
        if regularizer.alpha == math.inf:
            return map_parts(torch.zeros_like, self.argmax(theta))
        kernels, scores = _kernels(theta)
        value, y = kernels.hessian_product(scores, self._lengths(theta), v)
        self._check_feasible(value)
        return y

    def smoothed_sample(
        self, theta: Parts, n: int, regularizer: Regularizer, generator: torch.Generator | None = None
    ) -> Parts:
        if not _has_kernels(theta, regularizer):
            return super().smoothed_sample(theta, n, regularizer, generator)
        check_count(n)
        if regularizer.alpha == math.inf:
            return map_parts(lambda y: y.expand(n, *y.shape).clone(), self.argmax(theta))
        theta = divide_by_temperature(theta, regularizer.temperature)
        lengths = self._lengths(theta)
        shape = n, len(lengths), 2 * as_tuple(theta)[0].shape[1]
        device = "cpu" if generator is None else generator.device
        uniforms = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
        value, y = _walk(theta, lengths, uniforms.to(lengths.device, non_blocking=True))
        self._check_feasible(value)
        return y

    def entropy(self, theta: Parts, regularizer: Regularizer = NEGENTROPY) -> Float[Tensor, " batch"]:
        if not _has_kernels(theta, regularizer) or regularizer.alpha == math.inf:
            return super().entropy(theta, regularizer)
        exact = divide_by_temperature(map_parts(Tensor.double, theta), regularizer.temperature)
        value, mean = self.smoothed_value_and_mean(exact, regularizer)
        return (value - inner_product(exact, mean)).clamp(min=0).to(as_tuple(theta)[0].dtype)

    def log_prob(self, theta: Parts, y: Parts, regularizer: Regularizer = NEGENTROPY) -> Float[Tensor, " batch"]:
        if not _has_kernels(theta, regularizer) or regularizer.alpha == math.inf:
            return super().log_prob(theta, y, regularizer)
        exact = divide_by_temperature(map_parts(Tensor.double, theta), regularizer.temperature)
        value = self.smoothed_value(map_parts(Tensor.detach, exact), regularizer)
        wrong = ~is_structure(y, self._lengths(theta).expand(len(value)))
        if bool(wrong.any()):
            raise InvalidInputError(
                f"y is not a structure of {self.label()} at batch index {int(wrong.nonzero()[0, 0])}"
            )
        score = inner_product(exact, map_parts(Tensor.double, y))
        return (score - value).clamp(max=0).to(as_tuple(theta)[0].dtype)

    def _lengths(self, theta: Parts) -> Int[Tensor, " batch"]:
        steps = as_tuple(theta)[0]
        return bound_lengths(self, batch_size(theta), steps.shape[1], steps.device)


def _has_kernels(theta: Parts, regularizer: Regularizer) -> bool:
    """Return whether loops in linear memory process θ: for boundaries, and the negative entropy or no regularizer."""
    alpha = regularizer.alpha
    return has_boundaries(theta) and alpha is not None and (alpha <= 1 + 1e-8 or alpha == math.inf)


def _walk(theta: Any, lengths: Tensor, uniforms: Tensor | None = None) -> tuple[Tensor, Parts]:
    """Return values, (B,), and the best structure, or samples, (n, B, *event) with ``uniforms`` (n, B, 2 T)."""
    kernels, scores = _kernels(theta)
    if kernels.__name__.endswith("triton_dispatch"):
        return kernels.walk(scores, lengths, uniforms)
    value, tags, starts = kernels.walk(scores, lengths, uniforms)
    return value, structures(tags, starts, theta)


def _kernels(theta: Parts) -> tuple[Any, Parts]:
    """Return the module with the kernels for θ, and the scores for its functions.

    These are Triton kernels, which leave out masks themselves, or for other devices and more labels the CPU loops.
    """
    if uses_triton(as_tuple(theta)[0]):
        from ..kernels.semi_markov import triton_dispatch

        if as_tuple(theta)[0].shape[2] <= triton_dispatch.MOST_LABELS:
            return triton_dispatch, theta
    from ..kernels.semi_markov import dispatch

    return dispatch, without_masks(theta)
