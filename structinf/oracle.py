"""What an oracle is: a set of structures, seen through what can be computed over it.

Every method here sees tensors with exactly one, flat, batch dimension. A tensor that all
instances share (a transition matrix, say) comes with a batch dimension of size 1 and stays
in that form; results always have the full batch dimension.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from .errors import InvalidInputError, PluginError, UnsupportedError
from .parts import (
    AnyParts,
    Parts,
    as_tuple,
    batch_size,
    differentiate,
    enable_autograd,
    hessian_product_by_autograd,
    inner_product,
    map_parts,
    pack_like,
    scale_per_instance,
    sum_to_batch_of,
    total_inner_product,
    value_and_gradient_by_autograd,
)
from .shapes import Float

__all__ = [
    "EntropyProjectable",
    "Enumerable",
    "GibbsOracle",
    "KBest",
    "Oracle",
    "Projectable",
    "Samplable",
    "TransportPolytope",
]

# ----------------------------------------------------------------------------- the oracle


def _as_instance_tensor(value: Any) -> Tensor:
    t = torch.as_tensor(value)
    return t if t.is_floating_point() or t.dtype is torch.bool else t.to(torch.int64)


class _InstanceData(dict[str, Any]):
    """Instance data by name; what is missing is the user's to give.

    ``is_validated`` says that :meth:`Oracle.validate` has accepted the data, so that methods need not check it again.
    """

    is_validated = False

    def __missing__(self, key: str) -> Any:
        raise InvalidInputError(f"{key}: this instance data is needed; pass {key}=... along with theta")


class Oracle(abc.ABC):
    """A set Y of structures over which a linear score can be maximised.

    Subclasses are frozen dataclasses whose fields are options. Data that belongs to the
    instances (lengths, masks, capacities) is attached by :meth:`bind` and read from
    :attr:`bound`.

    Attributes
    ----------
    event_ndim : int or tuple of int
        Trailing dimensions of each tensor of θ that form one structure.
    instance_ndim : mapping of str to int
        Names that :meth:`bind` accepts, with the number of trailing dimensions of each instance's value.
    label_ndim : int
        Trailing dimensions of the labels that :meth:`encode` takes (tags of a chain: 1).
    padding_stays_in_place : bool
        Whether options say what the part at each place is (an item's weight, an edge of a graph), so that parts that
        are not there must be forbidden in their place, rather than moved to the end.
    name : str
        The name under which the oracle was registered, for messages.
    unsupported : mapping of str to str
        Why an ability (its class name) is out of reach, quoted in messages.
    """

    event_ndim: ClassVar[int | tuple[int, ...]]
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({})
    label_ndim: ClassVar[int] = 1
    padding_stays_in_place: ClassVar[bool] = False
    name: ClassVar[str] = ""
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Set on the instance by bind(); not a dataclass field, so that equality, hash and repr are the options' alone.
    bound: ClassVar[Mapping[str, Any]] = _InstanceData()

    @abc.abstractmethod
    def argmax(self, theta: AnyParts) -> Parts:
        """A structure of highest score, max ⟨θ, y⟩ over y ∈ Y, for each instance.

        Laws: the result is a vertex even on ties, has θ's form, dtype and device with the full
        batch, does not depend on the other instances, and is the same every time; parts in the
        padding are 0; θ is not written to; InfeasibleError if no structure has a finite score.
        """

    # -- hooks with defaults ---------------------------------------------------------------

    @property
    def requires_nonpositive_theta(self) -> bool:
        """Whether potentials must be 0 or less, minus the costs of an algorithm that knows no gains.

        Of a positive one, ``argmax`` makes an InvalidInputError.
        """
        return False

    @property
    def always_feasible(self) -> bool:
        """Whether smaller structures stand in where parts of −inf leave none, so that nothing is infeasible."""
        return False

    def has_binary_parts(self, theta: AnyParts) -> bool:
        """Whether all parts of all structures are 0 or 1, so that a part's variance is that of a coin.

        Law: False unless that is certain.
        """
        return False

    def resolve_event_ndim(self, theta: AnyParts) -> tuple[int, ...]:
        """Trailing event dimensions of each tensor of ``theta`` as the user passed it.

        The default is :attr:`event_ndim`; oracles that accept several forms look at the shapes.
        """
        if not hasattr(self, "event_ndim"):
            raise PluginError(f"{self.label()} must define event_ndim, the number of a structure's trailing dimensions")
        wanted = self.event_ndim if isinstance(self.event_ndim, tuple) else (self.event_ndim,)
        if len(as_tuple(theta)) != len(wanted) or isinstance(theta, tuple) != isinstance(self.event_ndim, tuple):
            form = "one tensor" if not isinstance(self.event_ndim, tuple) else f"a tuple of {len(wanted)} tensors"
            received = f"a tuple of {len(theta)} tensors" if isinstance(theta, tuple) else "one tensor"
            raise InvalidInputError(f"theta: {self.label()} takes {form}, got {received}")
        return wanted

    def validate(self, theta: AnyParts) -> None:
        """Raise InvalidInputError if the event shapes or the bound data are not acceptable.

        Called once by the public functions, with θ already flat; the values of θ are checked elsewhere.
        """

    def valid_parts(self, theta: AnyParts) -> Parts | None:
        """Boolean masks, (B | 1, *event), of the parts that lie inside each instance's length; None if all do.

        A tensor that all instances share needs one row, of the parts inside any instance's length.

        The public functions put 0 into every other part before the oracle sees θ, so that
        whatever lies in the padding, NaN included, is never read.
        """
        return None

    def readout(self, y: AnyParts) -> Parts:
        """Linear map to the coordinates that a quadratic penalty sees (SparseMAP's ``penalty="readout"``)."""
        return y

    def readout_transpose(self, r: AnyParts, theta: AnyParts) -> Parts:
        """Transpose of :meth:`readout`, mapping ``r`` back to the form of a structure for ``theta``.

        The default differentiates :meth:`readout`, which is linear.
        """
        size = batch_size(theta)
        with enable_autograd():
            origin = map_parts(lambda t: torch.zeros_like(t.expand(size, *t.shape[1:])).requires_grad_(), theta)
            image = as_tuple(self.readout(origin))
            along = total_inner_product(image, as_tuple(r))
            return pack_like(differentiate(along, as_tuple(origin)), theta)

    def hamming_cost(self, y: AnyParts) -> Parts:
        """Parts' costs c such that ⟨c, y'⟩ − ⟨c, y⟩ is the Hamming distance from ``y`` to y'.

        The default counts half the readout parts in which the two differ: with one part a token,
        the number of wrong tokens.
        """
        return self.readout_transpose(map_parts(lambda r: 0.5 - r, self.readout(y)), y)

    def encode(self, labels: Tensor, like: AnyParts) -> Parts:
        """The structure, of the form of θ = ``like``, that integer ``labels`` (B, ...) describe."""
        raise UnsupportedError(
            f"{self.label()} has no integer labels; pass a structure of the shape and dtype of theta: y.to(theta.dtype)"
        )

    def decode(self, y: AnyParts) -> Tensor:
        """Integer labels (B, ...) of a structure; the inverse of :meth:`encode`."""
        raise UnsupportedError(f"{self.label()} has no integer labels; use the structure itself")

    # -- written once ----------------------------------------------------------------------

    def __repr__(self) -> str:
        """As a dataclass has it, for oracles that are none."""
        options = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if key != "bound")
        return f"{type(self).__name__}({options})"

    def label(self) -> str:
        """How messages call this oracle."""
        return self.name or type(self).__name__

    def score(self, theta: Parts, y: Parts) -> Float[Tensor, " batch"]:
        """⟨θ, y⟩ for each instance, (B,), with −inf · 0 = 0."""
        return inner_product(theta, y)

    def bind(self, **instance_data: Any) -> Self:
        """A copy of this oracle with instance data attached, each (B, *its event dims): a tensor, or a list of numbers.

        Integers become int64. Values of None are dropped. Unknown names are a TypeError.
        """
        unknown = [key for key in instance_data if key not in self.instance_ndim]
        if unknown:
            known = ", ".join(self.instance_ndim) or "none"
            raise TypeError(f"{self.label()} takes no instance data {unknown[0]!r} (it takes: {known})")
        new = {key: _as_instance_tensor(value) for key, value in instance_data.items() if value is not None}
        return self._with_instance_data({**self.bound, **new})

    def __getitem__(self, rows: Any) -> Self:
        """This oracle for the instances ``rows`` (a slice, a boolean mask or indices of the flat batch)."""
        if not self.bound:
            return self
        return self._with_instance_data({key: value[rows] for key, value in self.bound.items()}, self._is_validated)

    def repeat(self, n: int) -> Self:
        """This oracle for the batch tiled ``n`` times: instance b stands at b, B + b, 2B + b, ..."""
        if not self.bound:
            return self
        copies = {key: v.repeat(n, *[1] * (v.ndim - 1)) for key, v in self.bound.items()}
        return self._with_instance_data(copies, self._is_validated)

    def must_check_lengths(self) -> bool:
        """Whether bound lengths must be checked by methods: on the CPU, where compiled loops index by them, unless
        :class:`structinf.calls.problem.Problem` has validated them.
        """
        return not self._is_validated and bool(self.bound["lengths"].is_cpu)

    def with_validated_data(self) -> Self:
        """A copy whose methods take the bound data for validated."""
        return self._with_instance_data(self.bound, is_validated=True) if self.bound else self

    @property
    def _is_validated(self) -> bool:
        return getattr(self.bound, "is_validated", False)

    def _with_instance_data(self, bound: Mapping[str, Any], is_validated: bool = False) -> Self:
        new, data = copy.copy(self), _InstanceData(bound)
        data.is_validated = is_validated
        object.__setattr__(new, "bound", data)
        return new


# ----------------------------------------------------------------------------- abilities


class GibbsOracle(Oracle):
    """An oracle that can sum: log Z(θ) = log Σ_y exp⟨θ, y⟩.

    One method is enough. Oracles with kernels override the others too.
    """

    @abc.abstractmethod
    def log_partition(self, theta: AnyParts) -> Tensor:
        """log Σ_y exp⟨θ, y⟩, (B,).

        Laws: differentiable by autograd, to any order, whenever an entry of θ requires grad (a
        kernel may serve otherwise); −inf parts have gradient 0; InfeasibleError if the sum is empty.
        """

    def marginals(self, theta: AnyParts) -> Parts:
        """E[Y] under p(y) ∝ exp⟨θ, y⟩, the gradient of log Z; (B, *event)."""
        return self.log_partition_and_marginals(theta)[1]

    def log_partition_and_marginals(self, theta: AnyParts) -> tuple[Tensor, Parts]:
        """Both, (B,) and (B, *event); override it if one pass of an algorithm computes both.

        The default differentiates :meth:`log_partition`, or calls :meth:`marginals` if that is overridden.
        """
        if type(self).marginals is GibbsOracle.marginals:
            return value_and_gradient_by_autograd(self.log_partition, theta)
        return self.log_partition(theta), self.marginals(theta)

    def log_partition_vjp(self, theta: AnyParts, weight: Tensor) -> Parts:
        """Σ_b weight_b ∇ log Z_b in θ's own form: the sum runs over the instances that share a tensor.

        Parameters
        ----------
        weight : (B,) Tensor
        """
        return sum_to_batch_of(scale_per_instance(self.marginals(theta), weight), theta)

    def covariance_product(self, theta: AnyParts, v: AnyParts) -> Parts:
        """Cov[Y] v, the product of the Hessian of log Z with ``v``; (B, *event).

        Parameters
        ----------
        v : (B | 1, *event) tensor, or a tuple of them, of the form of θ
        """
        return hessian_product_by_autograd(self.log_partition, theta, v)


class Samplable(Oracle):
    """An oracle that draws exact samples of p(y) ∝ exp⟨θ, y⟩."""

    @abc.abstractmethod
    def sample(self, theta: AnyParts, n: int, generator: torch.Generator | None = None) -> Parts:
        """``n`` independent exact samples for each instance, (n, B, *event)."""


class KBest(Oracle):
    """An oracle that lists the best structures."""

    @abc.abstractmethod
    def topk(self, theta: AnyParts, k: int) -> tuple[Parts, Tensor, Tensor]:
        """The ``k`` highest-scoring structures, best first.

        Returns
        -------
        structures : (k, B, *event)
        scores : (k, B) Tensor
        valid : (k, B) bool Tensor
            False where fewer than k structures of finite score exist; there the structure is 0 and the score −inf.
        """


class Projectable(Oracle):
    """An oracle with a closed form for the projection onto conv(Y)."""

    @abc.abstractmethod
    def project(self, theta: AnyParts) -> Parts:
        """argmin ‖θ − μ‖² over μ ∈ conv(Y), (B, *event); differentiable by autograd."""


class EntropyProjectable(Oracle):
    """An oracle with a closed form for the mean of most entropy over conv(Y)."""

    @abc.abstractmethod
    def project_entropy(self, theta: AnyParts, *, binary: bool) -> Parts:
        """argmax ⟨θ, μ⟩ − Σ μ log μ over μ ∈ conv(Y), (B, *event); differentiable by autograd.

        Parameters
        ----------
        binary : bool
            Also subtract Σ (1 − μ) log (1 − μ).
        """


class TransportPolytope(Oracle):
    """An oracle whose conv(Y) is a transport polytope: plans μ ≥ 0 of given sums of rows and of columns.

    The larger side's sums are bounds, of which what is too much is left: with rows r and columns c,

        μ 1 = r,  μᵀ 1 = c  if Σ r = Σ c;      μ 1 = r,  μᵀ 1 ≤ c  if Σ r < Σ c;      μ 1 ≤ r,  μᵀ 1 = c  if Σ r > Σ c.
    """

    @abc.abstractmethod
    def margins(self, theta: AnyParts) -> tuple[Tensor, Tensor, Tensor | None]:
        """The sums r (B | 1, n) and c (B | 1, m), at least 0, for θ (B, n, m), and the total Σ μ.

        Returns
        -------
        rows, columns : Tensor
            In θ's dtype, or in float64 where that has more of their digits.
        total : (B,) Tensor or None
            None for min(Σ r, Σ c). With less, both sides' sums are bounds.
        """


class Enumerable(Oracle):
    """An oracle that can list all its structures, on small sizes."""

    @abc.abstractmethod
    def enumerate(self, event_shape: Any) -> Parts:
        """All structures of potentials of ``event_shape`` (a shape, or a tuple of shapes), (|Y|, *event) in float64.

        Bound lengths must be those of one instance, (1,): the structures are of that length, padded with 0.
        """
