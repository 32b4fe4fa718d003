"""Base class of oracles that compute the argmax of another oracle in another way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from ..errors import InvalidInputError
from ..oracle import Oracle
from ..parts import AnyParts, Parts
from ..registry import ORACLES

__all__ = ["Wrapper"]


class Wrapper(Oracle):
    """The structures of ``oracle`` with another argmax. All other answers are those of ``oracle``.

    Parameters
    ----------
    oracle : str or Oracle
        The inner oracle, without bound instance data.
    options : mapping
        Options of an oracle given by name.
    own : mapping
        Options of the wrapper itself that differ from their defaults. An oracle given by name must not have an option
        of the same name, since a user could mean either.
    """

    def __init__(self, oracle: str | Oracle, options: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        if isinstance(oracle, str) and (shared := sorted({*own} & {*ORACLES.options(oracle)})):
            name, wrapper = shared[0], type(self).__name__.lower()
            raise TypeError(
                f"{name}={own[name]!r} may belong to {wrapper} or to {oracle}; pass an object with its options: "
                f"structinf.get_oracle({oracle!r}, ...)"
            )
        self.oracle = ORACLES.get(oracle, **options)
        if self.oracle.bound:
            raise InvalidInputError(
                f"oracle: {self.oracle.label()} has the instance data {', '.join(self.oracle.bound)}; pass instance "
                "data in the call instead"
            )

    @property
    def inner(self) -> Oracle:
        """The inner oracle with its instance data."""
        if not self.bound:
            return self.oracle
        own = {name: t for name, t in self.bound.items() if name in self.oracle.instance_ndim}
        return self.oracle.bind(**own) if own else self.oracle

    # -- answers of the inner oracle ------------------------------------------------------------

    @property
    def event_ndim(self) -> int | tuple[int, ...]:  # type: ignore[override]
        return self.oracle.event_ndim

    @property
    def instance_ndim(self) -> Mapping[str, int]:  # type: ignore[override]
        return self.oracle.instance_ndim

    @property
    def has_empty_structure(self) -> bool:  # type: ignore[override]
        return self.oracle.has_empty_structure

    @property
    def label_ndim(self) -> int:  # type: ignore[override]
        return self.oracle.label_ndim

    @property
    def padding_stays_in_place(self) -> bool:  # type: ignore[override]
        return self.oracle.padding_stays_in_place

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.oracle.label()

    @property
    def unsupported(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.oracle.unsupported

    @property
    def requires_nonpositive_theta(self) -> bool:
        return self.oracle.requires_nonpositive_theta

    @property
    def known_set(self) -> Literal["one_of_n", "all_bits", "k_of_n"] | None:
        return self.oracle.known_set

    @property
    def is_exact(self) -> bool:
        return self.oracle.is_exact

    @property
    def always_feasible(self) -> bool:
        return self.oracle.always_feasible

    def has_binary_parts(self, theta: AnyParts) -> bool:
        return self.inner.has_binary_parts(theta)

    def resolve_event_ndim(self, theta: AnyParts) -> tuple[int, ...]:
        return self.oracle.resolve_event_ndim(theta)

    def resolve_instance_ndim(self, name: str, ndim: int, batch_ndim: int) -> int:
        return (self.oracle if name in self.oracle.instance_ndim else super()).resolve_instance_ndim(
            name, ndim, batch_ndim
        )

    def validate(self, theta: AnyParts) -> None:
        self.inner.validate(theta)

    def valid_parts(self, theta: AnyParts) -> Parts | None:
        return self.inner.valid_parts(theta)

    def perturbed_parts(self, theta: AnyParts) -> Parts | None:
        return self.inner.perturbed_parts(theta)

    @property
    def has_readout(self) -> bool:
        return self.inner.has_readout

    def readout(self, y: AnyParts) -> Parts:
        return self.inner.readout(y)

    def readout_transpose(self, r: AnyParts, theta: AnyParts) -> Parts:
        return self.inner.readout_transpose(r, theta)

    def hamming_cost(self, y: AnyParts) -> Parts:
        return self.inner.hamming_cost(y)

    def encode(self, labels: Tensor, like: AnyParts) -> Parts:
        return self.inner.encode(labels, like)

    def decode(self, y: AnyParts) -> Tensor:
        return self.inner.decode(y)

    def contains(self, y: AnyParts) -> Tensor | None:
        return self.inner.contains(y)

    def allowed_parts(self, labels: Tensor, like: AnyParts) -> Parts:
        return self.inner.allowed_parts(labels, like)

    def describe_part(self, y: AnyParts, tensor: int, index: tuple[int, ...]) -> str:
        return self.inner.describe_part(y, tensor, index)
