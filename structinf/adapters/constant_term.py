"""Oracles of objectives with a constant term h(y), whose weight is a part of the scores."""

from __future__ import annotations

import torch

from ..errors import InvalidInputError, UnsupportedError
from ..oracle import Oracle
from ..parts import AnyParts, Parts, as_tuple, list_to_tuple

__all__ = ["WithConstantTerm", "as_ndims"]


class WithConstantTerm(Oracle):
    """An oracle whose last tensor of scores is the weight w of a constant term, if ``has_term``.

    A structure is (g(y), h(y)), so that ⟨(θ, w), (g(y), h(y))⟩ = ⟨θ, g(y)⟩ + w h(y).
    """

    has_term: bool
    _ndims: int | tuple[int, ...]

    def resolve_event_ndim(self, theta: AnyParts) -> tuple[int, ...]:
        if self.has_term and len(as_tuple(theta)) == len(as_ndims(self._ndims)) - 1:
            raise InvalidInputError(
                f"theta: {self.label()} with h needs the weight of h besides the scores; pass oracle.scores(theta)"
            )
        return super().resolve_event_ndim(theta)

    @property
    def event_ndim(self) -> int | tuple[int, ...]:  # type: ignore[override]
        return self._ndims

    def scores(self, theta: Parts) -> Parts:
        """Return the scores ``theta`` (..., *event) together with the weight 1 of h, if the oracle has h.

        Parameters
        ----------
        theta : (..., *event) Tensor, or tuple of Tensors
            The scores of g(y).

        Returns
        -------
        (..., *event) Tensor, or tuple of Tensors
            ``theta`` itself without h, else a tuple with a weight (1,) for the whole batch.
        """
        theta = list_to_tuple(theta)
        return (*as_tuple(theta), as_tuple(theta)[0].new_ones(1)) if self.has_term else theta

    def perturbed_parts(self, theta: AnyParts) -> Parts | None:
        if not self.has_term:
            return None
        masks = [torch.ones_like(t[:1], dtype=torch.bool) for t in theta]
        return (*masks[:-1], torch.zeros_like(masks[-1]))

    def hamming_cost(self, y: AnyParts) -> Parts:
        raise UnsupportedError(
            f"{self.label()} has no Hamming cost, since g(y) may hold any numbers; pass a tensor with the cost of each "
            "part"
        )

    @property
    def has_readout(self) -> bool:
        return self.has_term

    def readout(self, y: AnyParts) -> Parts:
        return y if not self.has_term else y[0] if len(y) == 2 else y[:-1]


def as_ndims(form: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return ``event_ndim`` of an oracle as a tuple."""
    return form if isinstance(form, tuple) else (form,)
