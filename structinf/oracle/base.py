"""The base class of oracles.

All methods receive tensors with exactly one flat batch dimension of size B. A tensor shared by the batch, for example
a transition matrix, has a batch dimension of size 1. Results always have the full batch dimension.
"""

from __future__ import annotations

import abc
import copy
import numbers
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from ..deferred_checks import copies_of_data
from ..errors import InvalidInputError, PluginError, UnsupportedError
from ..kernels.arrays import as_tensor, copy_together
from ..parts import (
    AnyParts,
    Parts,
    as_tuple,
    batch_size,
    differentiate,
    enable_autograd,
    inner_product,
    map_parts,
    pack_like,
    total_inner_product,
)
from ..shapes import Float
from ..validation.method_calls import AcceptedForm, check_method, wrap_methods
from ..validation.options import check_natural, check_not_too_large_integer
from ..validation.scores import check_broadcast_forms
from ..validation.tensors import check_real

__all__ = ["Oracle"]


def _as_instance_tensor(name: str, value: Any) -> Tensor:
    """Return ``value`` as a tensor with memory of its own, since compiled loops trust validated data."""
    try:
        t = as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} must be a tensor or a list of numbers, got {value!r}") from error
    if not (t.is_floating_point() or t.is_complex() or t.dtype is torch.bool):
        t = t.to(torch.int64)
    return t.clone() if t.is_cpu and isinstance(value, Tensor | np.ndarray) else t


class _InstanceData(dict[str, Any]):
    """A dict of instance data by name, whose missing keys raise an error for the user.

    ``accepted`` is the form of the scores accepted by :meth:`Oracle.validate`; methods check this form no further.
    ``on_cpu`` has copies of the data on the CPU, if they are known without a copy from a device.
    """

    accepted: AcceptedForm | None = None
    on_cpu: Mapping[str, Any] | None = None

    def __missing__(self, key: str) -> Any:
        raise InvalidInputError(f"{key}: the oracle needs this instance data; pass {key}=... along with theta")


class Oracle(abc.ABC):
    """A set Y of structures with an algorithm that maximises a linear score ⟨θ, y⟩ over y ∈ Y.

    Subclasses are frozen dataclasses whose fields are options. :meth:`bind` attaches instance data (lengths, masks,
    capacities), and methods read instance data from ``bound``.

    Attributes
    ----------
    event_ndim : int or tuple of int
        The number of trailing dimensions of θ that form one structure, for each tensor if θ is a tuple.
    instance_ndim : mapping of str to int
        The names of the instance data accepted by :meth:`bind`, with the number of dimensions of one instance's value.
        Empty by default.
    has_empty_structure : bool
        Whether an instance of length 0 has exactly one structure, the structure without parts. Public calls then
        answer such instances without the oracle, and :meth:`validate` refuses a length of 0. False by default: the
        oracle decides which lengths it takes.
    label_ndim : int
        The number of trailing dimensions of labels in :meth:`encode`, 1 by default (the tags of a chain).
    has_labels_on_cpu : bool
        Whether :meth:`encode` and :meth:`decode` work on the CPU. Losses then check copies of gold structures there.
    label_form : str
        What the labels of an instance are, for messages about labels of another shape. Empty by default.
    padding_stays_in_place : bool
        Whether an option describes each part (an item's weight, an edge's endpoints). Padded parts are then masked in
        place instead of being moved to the end.
    reads_data : bool
        Whether :meth:`validate` reads instance data, which mask no parts. On a GPU, one copy then reads the data and
        the checks of the scores.
    name : str
        The registered name, used in messages.
    search_terms : tuple of str
        Other names of the structure or of its algorithm in the field, such as "hungarian" for ``assignment``. The error
        about an unknown name suggests the oracle for them.
    unsupported : mapping of str to str
        The reason why an ability cannot be offered, by the name of the ability's class. Messages quote the reason. An
        oracle with options that exclude an ability of its class sets the attribute of the instance.
    """

    event_ndim: ClassVar[int | tuple[int, ...]]
    instance_ndim: ClassVar[Mapping[str, int]] = MappingProxyType({})
    has_empty_structure: ClassVar[bool] = False
    label_ndim: ClassVar[int] = 1
    has_labels_on_cpu: ClassVar[bool] = False
    label_form: ClassVar[str] = ""
    padding_stays_in_place: ClassVar[bool] = False
    reads_data: ClassVar[bool] = False
    name: ClassVar[str] = ""
    search_terms: ClassVar[tuple[str, ...]] = ()
    unsupported: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Set by bind(). Not a dataclass field, so that equality, hash and repr depend on the options only.
    bound: ClassVar[Mapping[str, Any]] = _InstanceData()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        wrap_methods(cls, Oracle)

    @abc.abstractmethod
    def argmax(self, theta: AnyParts) -> Parts:
        """Return a structure of highest score, argmax ⟨θ, y⟩ over y ∈ Y, for each instance.

        Laws:

        - The result is a vertex of conv(Y), even on ties.
        - The result has the form, dtype and device of θ, with the full batch. Parts in the padding are 0.
        - The result of an instance depends only on the instance, and is the same in every call.
        - θ is not modified.
        - InfeasibleError is raised if no structure of an instance has a finite score.
        """

    # -- methods with defaults -------------------------------------------------------------

    def argmax_indices(self, theta: AnyParts) -> Tensor | None:
        """Return the structures of :meth:`argmax` as lists of their parts, (B, m) int32; None by default.

        Relaxations of many samples read a list in less time than a structure with all its zeros. They call the method
        of the library's own oracles only, and other oracles need no lists. The result may be None for a device, a form
        of θ or an option.

        Laws:

        - The structure is the sum of the indicators of its parts. A part may occur several times.
        - The index of a part is its place in the parts of all tensors of θ, flattened and concatenated. Entries of −1
          are no parts.
        - The method raises the errors of ``argmax``.
        """
        return None

    @property
    def requires_nonpositive_theta(self) -> bool:
        """Whether scores must be at most 0, as the negative costs of a shortest-path algorithm must be.

        If True, ``argmax`` raises InvalidInputError for positive scores.
        """
        return False

    @property
    def known_set(self) -> Literal["one_of_n", "all_bits", "k_of_n"] | None:
        """Which set with closed forms Y is, for methods that are defined for such a set; None by default.

        - "one_of_n": exactly one of the n parts is 1.
        - "all_bits": each of the n parts is 0 or 1.
        - "k_of_n": exactly ``k`` of the n parts are 1. The oracle has the attribute ``k``.

        Law: θ is one tensor (B | 1, n), and Y is this set over the parts that :meth:`valid_parts` returns.
        """
        return None

    @property
    def is_exact(self) -> bool:
        """Whether ``argmax`` returns a structure of highest score, as its law says; True by default.

        False for oracles that answer from a pool of structures. A loss then treats a gold structure that scores higher
        than the answer as the best structure.
        """
        return True

    @property
    def always_feasible(self) -> bool:
        """Whether every pattern of −inf parts leaves a structure of finite score, so no instance is infeasible."""
        return False

    def has_binary_parts(self, theta: AnyParts) -> bool:
        """Return whether all parts of all structures are 0 or 1, so that a part of mean μ has variance μ (1 − μ).

        Law: True only if no structure has another value. False is always allowed; the default penalty of SparseMAP then
        counts only the parts of an oracle's :meth:`readout`.
        """
        return False

    def resolve_event_ndim(self, theta: AnyParts) -> tuple[int, ...]:
        """Return the number of trailing event dimensions of each tensor of ``theta``, in the user's shapes.

        The default returns ``event_ndim``. Oracles with several forms of θ override this method and decide by the
        shapes.
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
        """Raise InvalidInputError if the event shapes of θ or the bound instance data are invalid.

        Public functions call this method once, after they flatten the batch. They check the values of θ themselves. For
        scores on a GPU, θ may be zeros on the CPU of the same shapes and dtypes.
        """

    def valid_parts(self, theta: AnyParts) -> Parts | None:
        """Return boolean masks (B | 1, *event), True for the parts inside each instance's length; None without padding.

        For a tensor shared by the batch, one row is enough: True for parts inside the length of any instance.

        The public functions set all other parts of θ to 0 before the oracle sees θ. Values in the padding, even NaN,
        therefore have no effect.
        """
        return None

    def perturbed_parts(self, theta: AnyParts) -> Parts | None:
        """Return boolean masks (1, *event), True for the parts that noise of relaxations may change; None for all.

        An oracle overrides this method if a part is no score: the weight of a constant term of the objective.
        """
        return None

    @property
    def has_readout(self) -> bool:
        """Whether :meth:`readout` may differ from the identity: by default, whether a class defines the method."""
        return type(self).readout is not Oracle.readout

    def readout(self, y: AnyParts) -> Parts:
        """Map ``y`` linearly to the parts penalised by SparseMAP's ``penalty="readout"``, all parts by default.

        The default penalty of SparseMAP counts these parts alone if an oracle with a readout may use a part several
        times, that is, if :meth:`has_binary_parts` returns False.
        """
        return y

    @check_method
    def readout_transpose(self, r: AnyParts, theta: AnyParts) -> Parts:
        """Apply the transpose of :meth:`readout` to ``r``. The result has the form of ``theta`` and the full batch.

        The default differentiates the linear map :meth:`readout`.
        """
        size = batch_size(theta)
        with enable_autograd():
            origin = map_parts(lambda t: torch.zeros_like(t.expand(size, *t.shape[1:])).requires_grad_(), theta)
            image = as_tuple(self.readout(origin))
            along = total_inner_product(image, as_tuple(r))
            return pack_like(differentiate(along, as_tuple(origin)), theta)

    @check_method
    def hamming_cost(self, y: AnyParts) -> Parts:
        """Return costs c of the parts such that ⟨c, y'⟩ − ⟨c, y⟩ is the Hamming distance from ``y`` to y'.

        The default distance is half the number of readout parts in which y and y' differ. If each token has one
        active part, the distance is the number of wrong tokens. An oracle whose parts may have any values raises
        UnsupportedError.
        """
        return self.readout_transpose(map_parts(lambda r: 0.5 - r, self.readout(y)), y)

    def encode(self, labels: Tensor, like: AnyParts) -> Parts:
        """Return the structure described by integer ``labels`` (B, ...), in the form of the scores ``like``."""
        raise UnsupportedError(
            f"{self.label()} has no integer labels; pass a structure of the shape and dtype of theta: y.to(theta.dtype)"
        )

    def decode(self, y: AnyParts) -> Tensor:
        """Return the integer labels (B, ...) of a structure, the inverse of :meth:`encode`."""
        raise UnsupportedError(f"{self.label()} has no integer labels; use the structure itself")

    def contains(self, y: AnyParts) -> Tensor | None:
        """Return which of ``y`` (B, *event) are structures, (B,) bool; None if only encoding and decoding tell.

        None by default. Losses check gold structures in each call. Oracles override this method if they have no labels,
        or if a test takes less time than the labels of a structure.

        Parameters
        ----------
        y : (B, *event) Tensor, or tuple of them
            Finite numbers in the form of θ.
        """
        return None

    def allowed_parts(self, labels: Tensor, like: AnyParts) -> Parts:
        """Return masks (B | 1, *event) of the parts that agree with ``labels`` (B, ...), where −1 is an unknown label.

        Laws:

        - The structures that use only these parts are the structures whose labels equal all known labels.
        - Labels in the padding have no effect. InvalidInputError is raised for other invalid labels.

        Oracles override this method if a label is the choice of one part, such as the tag of a token. Scores of −inf
        cannot require a part that a structure may leave out, such as an element of a subset.
        """
        raise UnsupportedError(
            f"{self.label()} has no unknown labels: scores of −inf forbid parts, and cannot require a part"
        )

    def describe_part(self, y: AnyParts, tensor: int, index: tuple[int, ...]) -> str:
        """Return the words of messages for a part, by default "part (1, 2)". An override can call it "arc 1 -> 2".

        Parameters
        ----------
        y : (1, *event) Tensor, or tuple of them
            A structure with the part.
        tensor : int
            The index of the tensor with the part, if θ is a tuple; else 0.
        index : tuple of int
            The index of the part, without the batch dimension.
        """
        place = index[0] if len(index) == 1 else index
        return f"part {place} of theta[{tensor}]" if isinstance(y, tuple) else f"part {place}"

    # -- methods that subclasses do not override -------------------------------------------

    def __repr__(self) -> str:
        """Return the class name and options in the format of dataclasses, for oracles that are not dataclasses."""
        options = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if key != "bound")
        return f"{type(self).__name__}({options})"

    def label(self) -> str:
        """Return the name of this oracle in messages."""
        return self.name or type(self).__name__

    def score(self, theta: Parts, y: Parts) -> Float[Tensor, " batch"]:
        """Return the score ⟨θ, y⟩ of each instance, (B,), with −inf · 0 = 0.

        The batch dimension of θ or of ``y`` may be 1.
        """
        check_broadcast_forms(theta, y)
        return inner_product(theta, y)

    @classmethod
    def reads_as_option(cls, name: str, value: Any) -> bool:
        """Return whether ``value``, given by a name that is an option and instance data, is the option.

        By default numbers are the option, and tensors and lists are instance data.

        Parameters
        ----------
        name : str
            A name of an option and of :attr:`instance_ndim`.
        value : object
            The value of a call's keyword.
        """
        return isinstance(value, numbers.Number | str)

    def resolve_instance_ndim(self, name: str, ndim: int, batch_ndim: int) -> int:
        """Return the number of dimensions of one instance's value of instance data.

        The default returns ``instance_ndim[name]``. Oracles that take data in several forms override this method.

        Parameters
        ----------
        name : str
            A name of :attr:`instance_ndim`.
        ndim : int
            The number of dimensions of the data of all instances.
        batch_ndim : int
            The number of batch dimensions of the scores.
        """
        return self.instance_ndim[name]

    def bind(self, **instance_data: Any) -> Self:
        """Return a copy of this oracle with instance data attached.

        Parameters
        ----------
        **instance_data
            Tensors or lists of numbers by name. A value has shape (B, ...) with ``instance_ndim[name]`` dimensions
            after B. Integers become int64. None values are ignored.

        Returns
        -------
        Oracle
            The copy, with the data in ``bound``.

        Raises
        ------
        TypeError
            If ``instance_ndim`` does not contain a name.
        """
        unknown = [key for key in instance_data if key not in self.instance_ndim]
        if unknown:
            known = ", ".join(self.instance_ndim) or "none"
            raise TypeError(f"{self.label()} takes no instance data {unknown[0]!r} (it takes: {known})")
        new = {key: _as_instance_tensor(key, value) for key, value in instance_data.items() if value is not None}
        for key, value in new.items():
            check_real(key, value)
        if not all(t.is_cpu for t in new.values()):
            # The order does not depend on the order of the arguments.
            names = [name for name in self.instance_ndim if name in new and not new[name].is_cpu]
            new |= dict(zip(names, copy_together([new[name] for name in names]), strict=True))
        return self._with_instance_data({**self.bound, **new})

    def __getitem__(self, rows: Any) -> Self:
        """Return this oracle for the instances ``rows``: a slice, a boolean mask or indices of the flat batch."""
        if not self.bound:
            return self
        try:
            selected = {key: value[rows] for key, value in self.bound.items()}
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            received = f"a tensor of {rows.dtype}" if isinstance(rows, Tensor) else repr(rows)
            raise InvalidInputError(
                f"rows of {self.label()} must be a slice, a boolean mask or indices of the batch of "
                f"{len(next(iter(self.bound.values())))}, got {received} ({error})"
            ) from None
        return self._with_instance_data(selected, self._accepted)

    def repeat(self, n: int) -> Self:
        """Return this oracle for the batch tiled ``n`` times: instance b moves to the rows b, B + b, 2B + b, ..."""
        if not self.bound:
            return self
        check_natural("n, the number of copies,", n, 0)
        check_not_too_large_integer("n, the number of copies,", n)
        copies = {key: v.repeat(n, *[1] * (v.ndim - 1)) for key, v in self.bound.items()}
        return self._with_instance_data(copies, self._accepted)

    def with_cloned_data(self) -> Self:
        """Return this oracle with copies of the bound tensors."""
        if not self.bound:
            return self
        return self._with_instance_data({key: v.clone() for key, v in self.bound.items()}, self._accepted)

    def on_cpu(self) -> Self:
        """Return this oracle with its data on the CPU."""
        return self._with_instance_data(self.data_on_cpu()) if self.bound else self

    @property
    def knows_data_on_cpu(self) -> bool:
        """Whether :meth:`data_on_cpu` needs no copy from a device."""
        return getattr(self.bound, "on_cpu", None) is not None or all(t.is_cpu for t in self.bound.values())

    def data_on_cpu(self) -> Mapping[str, Any]:
        """Return the bound tensors on the CPU.

        Data of a device are copied once, together, and not at all if the user has passed them on the CPU.
        """
        found = getattr(self.bound, "on_cpu", None)
        if found is None:
            if all(t.is_cpu for t in self.bound.values()):
                return self.bound
            found = dict(zip(self.bound, copies_of_data(*self.bound.values()), strict=True))
            self.store_data_on_cpu(found)
        return found

    def store_data_on_cpu(self, data: Mapping[str, Any]) -> None:
        """Store the bound tensors as they are on the CPU, for :meth:`data_on_cpu`.

        Parameters
        ----------
        data : mapping of str to Tensor
            The tensors by name, whose memory nobody else changes.
        """
        if isinstance(self.bound, _InstanceData):
            self.bound.on_cpu = data

    def store_accepted_form(self, form: AcceptedForm) -> None:
        """Store the form of scores for which :meth:`validate` has accepted the scores and the bound data.

        Methods check scores of this form no further.

        Parameters
        ----------
        form : AcceptedForm
            The shapes, dtypes and devices of the scores.
        """
        data = self.bound
        if data is Oracle.bound or not isinstance(data, _InstanceData):
            data = _InstanceData(data)
            try:
                object.__setattr__(self, "bound", data)
            except AttributeError:  # a class with slots; each direct call is then validated
                return
        data.accepted = form

    @property
    def _accepted(self) -> AcceptedForm | None:
        return getattr(self.bound, "accepted", None)

    def _with_instance_data(self, bound: Mapping[str, Any], accepted: AcceptedForm | None = None) -> Self:
        new, data = copy.copy(self), _InstanceData(bound)
        if (
            accepted is not None
            and accepted.owner == id(self)
            and all(t.ndim and t.shape[1:] == self.bound[name].shape[1:] for name, t in bound.items())
        ):
            data.accepted = accepted._replace(
                exact=None, data=None, batch=len(next(iter(bound.values()))), owner=id(new)
            )
        object.__setattr__(new, "bound", data)
        return new
