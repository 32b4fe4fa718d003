"""Oracles defined by a recursion in torch."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..errors import PluginError
from ..oracle import KBest, Samplable
from ..parts import Parts, as_tuple, batch_size, divide_by_temperature, gradient_by_autograd, map_parts
from ..regularizers import NEGENTROPY, UNREGULARIZED, Regularizer, smooth_max_gradient
from ..shapes import Float
from ..smoothing import SmoothableGibbs, smooth_max, smooth_max_with_backward
from ..validation import check_count, check_feasible

__all__ = ["DynamicProgram", "SmoothMax"]


_UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "KBest": (
            "a recursion in torch keeps one best derivation, and scores of −inf forbid parts but force none; write the "
            "recursion as a HypergraphProgram, or inherit from structinf.Restrictable and implement restricted_argmax, "
            "which forces a part by forbidding all parts that exclude it"
        )
    }
)


class SmoothMax(Protocol):
    """The type of the maximum passed to :meth:`DynamicProgram.value`."""

    def __call__(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return a maximum of ``x`` along ``dim``, and remove ``dim``; −inf for no entries or only −inf entries."""
        ...


class DynamicProgram(SmoothableGibbs, Samplable):
    """An oracle whose best score is a recursion in torch; subclasses implement :meth:`value`.

    The recursion adds scores of parts and takes maxima. A derivation makes one choice at each maximum reached from the
    result, and each derivation describes one structure. The oracle calls :meth:`value` with three kinds of maximum:

    - The smoothed maximum max_Ω gives DP_Ω(θ), differentiable to any order. Its special case log-sum-exp gives log Z.
    - The hard maximum sends its whole gradient to the first best entry. The gradient in θ is then a best structure.
    - max_Ω with a random backward pass gives a sample. Each maximum receives as gradient the number of times that the
      derivation reaches the maximum, and draws this number of entries from q = ∇max_Ω. With log-sum-exp, the gradient
      in θ is an exact sample of the Gibbs distribution.

    Law: distinct derivations have distinct parts, so that a sum over derivations equals a sum over structures. Adding
    a node with several derivations to itself breaks the law: swapping its two derivations changes no part.

    :class:`HypergraphProgram` is faster and also lists the k best or all structures, but needs the recursion as a
    hypergraph. For the k best structures, a subclass can also inherit from :class:`structinf.Restrictable`.

    References
    ----------
    A. Mensch & M. Blondel, Differentiable dynamic programming for structured prediction and attention, ICML 2018, §3.
    J. Eisner, Inside-outside and forward-backward algorithms are just backprop, Structured Prediction for NLP 2016.

    Examples
    --------
    Binary strings without two ones in a row:

    >>> class NoTwoOnes(DynamicProgram):
    ...     event_ndim = 1
    ...
    ...     def value(self, theta, smax):
    ...         # Best scores of prefixes that end in 0 and in 1.
    ...         zero = theta.new_zeros(len(theta))
    ...         one = torch.full_like(zero, -torch.inf)
    ...         for score in theta.unbind(1):
    ...             zero, one = smax(torch.stack([zero, one]), 0), zero + score
    ...         return smax(torch.stack([zero, one]), 0)
    >>> strings, theta = NoTwoOnes(), torch.tensor([[1.0, 1.5, 1.0]])
    >>> strings.argmax(theta)
    tensor([[1., 0., 1.]])
    >>> strings.log_partition(torch.zeros(1, 3)).exp()
    tensor([5.])
    >>> from structinf.regularizers import SquaredL2
    >>> strings.smoothed_mean(theta, SquaredL2())
    tensor([[0.7891, 0.2109, 0.7188]])
    >>> drawn = strings.sample(theta, 10_000, torch.Generator().manual_seed(0))
    >>> torch.allclose(drawn.mean(0), strings.marginals(theta), atol=0.02)
    True
    """

    unsupported: ClassVar[Mapping[str, str]] = _UNSUPPORTED

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, KBest) and cls.unsupported is _UNSUPPORTED:
            cls.unsupported = MappingProxyType({})

    @abc.abstractmethod
    def value(self, theta: Parts, smax: SmoothMax) -> Tensor:
        """Return the best score, (B,), with every maximum written as ``smax(x, dim)``.

        Laws:

        - Apart from ``smax``, the result is linear in θ and in results of ``smax``, with plain torch operations.
        - The coefficients of results of ``smax`` are whole numbers of at least 0.
        - Impossible choices have the score −inf.
        - The result does not depend on padding.

        Parameters
        ----------
        theta : (B, *event) tensor, or tuple of tensors
            Scores with the full batch dimension. :attr:`bound` holds instance data with the same batch dimension.
        smax : SmoothMax
            The maximum to use.
        """

    def valid_parts(self, theta: Parts) -> Parts | None:
        """Return a mask of the parts used by derivations, or None without instance data.

        The default takes one forward and one backward pass through the recursion. A subclass that knows the mask can
        override the method to save both passes.
        """
        if not self.bound:
            return None
        zeros = map_parts(torch.zeros_like, theta)
        generator = torch.Generator(as_tuple(theta)[0].device).manual_seed(0)
        route = functools.partial(_random_on_reachable, generator=generator)
        reach = gradient_by_autograd(lambda t: self._value(t, _routed(UNREGULARIZED, route)), zeros)
        return map_parts(lambda r, t: (r != 0).any(0, keepdim=True) if len(t) == 1 else r != 0, reach, theta)

    # -- smoothed recursion ------------------------------------------------------------------

    def smoothed_value(self, theta: Parts, regularizer: Regularizer) -> Float[Tensor, " batch"]:
        return self._finite_value(theta, functools.partial(smooth_max, regularizer))

    def smoothed_sample(
        self, theta: Parts, n: int, regularizer: Regularizer, generator: torch.Generator | None = None
    ) -> Parts:
        """Draw ``n`` independent structures per instance, (n, B, *event), with expectation ∇DP_Ω(θ).

        Each structure comes from a random walk through the recursion, with the probabilities q = ∇max_Ω.
        """
        check_count(n)
        theta = divide_by_temperature(theta, regularizer.temperature)
        size, many = batch_size(theta), self.repeat(n)
        smax = _routed(regularizer, functools.partial(_draw_counts, regularizer=regularizer, generator=generator))
        tiled = map_parts(lambda t: t.expand(size, *t.shape[1:]).repeat(n, *[1] * (t.ndim - 1)), theta)
        walks = gradient_by_autograd(lambda t: many._finite_value(t, smax), tiled)
        return map_parts(lambda w: w.reshape(n, size, *w.shape[1:]), walks)

    # -- oracle methods ----------------------------------------------------------------------

    def argmax(self, theta: Parts) -> Parts:
        """Return a best structure; ties go to the first entry of each maximum."""
        return self.smoothed_mean(theta, UNREGULARIZED)

    def sample(self, theta: Parts, n: int, generator: torch.Generator | None = None) -> Parts:
        return self.smoothed_sample(theta, n, NEGENTROPY, generator)

    # -- evaluation --------------------------------------------------------------------------

    def _value(self, theta: Parts, smax: SmoothMax) -> Float[Tensor, " batch"]:
        """Return :meth:`value` of θ expanded to the full batch, checked, as a copy that shares no memory with θ."""
        size = batch_size(theta)
        value = self.value(map_parts(lambda t: t.expand(size, *t.shape[1:]), theta), smax)
        if not isinstance(value, Tensor) or value.shape != (size,):
            returned = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise PluginError(
                f"value of {self.label()} must return a score for each of the {size} instances, "
                f"a tensor of shape ({size},); got {returned}"
            )
        return value.to(as_tuple(theta)[0].dtype, copy=True)

    def _finite_value(self, theta: Parts, smax: SmoothMax) -> Float[Tensor, " batch"]:
        value = self._value(theta, smax)
        check_feasible(value.detach(), f"structure of {self.label()}")
        return value


# ----------------------------------------------------------------------------- walks


def _routed(regularizer: Regularizer, backward_rule: Callable[[Tensor, Tensor], Tensor]) -> SmoothMax:
    return lambda x, dim=-1: smooth_max_with_backward(regularizer, x, dim, backward_rule)


def _draw_counts(
    x: Tensor, times: Tensor, regularizer: Regularizer, generator: torch.Generator | None
) -> Float[Tensor, "*nodes n"]:
    """Draw ``times`` (...) entries of x (..., n) from q = ∇max_Ω(x), and return the count of each entry."""
    drawn = torch.zeros_like(x, memory_format=torch.contiguous_format)
    counts = drawn.unsqueeze(0).flatten(0, -2)
    rows = times.flatten().nonzero().squeeze(1)
    left = times.flatten()[rows]
    wrong = left[(left < 0) | (left != left.round())]
    if len(wrong):
        raise PluginError(
            f"value must add up whole multiples of results of smax, so that structures can be drawn; "
            f"got the factor {wrong[0]:g}"
        )
    cumulative = smooth_max_gradient(regularizer, x.unsqueeze(0).flatten(0, -2)[rows]).double().cumsum(-1)
    device = "cpu" if generator is None else generator.device
    while len(rows):
        uniform = torch.rand(len(rows), 1, dtype=torch.float64, generator=generator, device=device).to(x.device)
        total = cumulative[:, -1:]
        # The product may round up to the total, which would select a last entry of probability 0.
        point = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
        counts[rows, torch.searchsorted(cumulative, point, right=True).squeeze(1)] += 1
        again = left > 1
        rows, cumulative, left = rows[again], cumulative[again], left[again] - 1
    return drawn


def _random_on_reachable(x: Tensor, reached: Tensor, generator: torch.Generator) -> Float[Tensor, "*nodes n"]:
    """Return random positive weights at all reachable entries, so that terms of opposite sign do not cancel."""
    weight = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) + 0.5
    return weight * (~x.isneginf() & (reached != 0).unsqueeze(-1))
