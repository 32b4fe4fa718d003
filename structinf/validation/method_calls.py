"""Checks of direct calls of an oracle's methods.

Compiled loops use shapes and instance data as bounds of arrays. Public functions such as :func:`structinf.relax`
validate both, but users may also call the methods of an oracle. Each class of oracles therefore wraps its methods: a
call validates its scores, unless the oracle has already accepted scores of the same form.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from ..errors import InvalidInputError
from .options import check_size
from .scores import check_bound_data, check_flat_scores, check_same_form, check_score_tensors
from .tensors import check_dense

__all__ = [
    "AcceptedForm",
    "accept_form",
    "accepts_data",
    "check_method",
    "is_accepted",
    "validate_form",
    "validate_scores",
    "wrap_methods",
]


class AcceptedForm(NamedTuple):
    """The form of the scores that an oracle has accepted with its instance data.

    Attributes
    ----------
    exact : tuple, or list of tuple
        The shape, dtype and other properties of the scores, for each tensor if θ is a tuple.
    event : tuple, or list of tuple
        The properties that other batches share.
    batch : int or None
        The number of instances of the bound data; None without bound data.
    owner : int
        The id of the oracle. A copy of the oracle may have other options.
    data : tuple or None
        The device of validated data, and the versions of the tensors, which each change in place increases; see
        :func:`accepts_data`.
    """

    exact: Any
    event: Any
    batch: int | None
    owner: int
    data: tuple[Any, ...] | None = None


# ----------------------------------------------------------------------------- the methods


_Method = TypeVar("_Method", bound=Callable[..., Any])

_Check = Callable[[Any, Any], None]
"""Raises an error for a wrong argument of an oracle's method, given θ and the argument."""


def wrap_methods(kind: type, base: type) -> None:
    """Wrap the methods of ``kind`` by :func:`check_method`, except abstract methods and methods of ``base``.

    A method of a parent class that is no oracle is wrapped too.
    """
    for name in _METHODS:
        method = getattr(kind, name, None)
        if method is vars(base).get(name) or not inspect.isfunction(method):
            continue
        if not getattr(method, "__isabstractmethod__", False) and getattr(method, "checked", None) is not method:
            setattr(kind, name, _checked(method, name))


def check_method(method: _Method) -> _Method:
    """Return ``method`` with a check of its scores and other tensors.

    The check of accepted scores takes about 1 µs. A call by a method of a subclass, through super(), is not checked,
    as the subclass may have changed the form of θ.
    """
    return _checked(method, method.__name__)


def _checked(method: _Method, name: str) -> _Method:
    place, other, shared = _METHODS[name]
    if place is None:
        return _check_enumerate(method)

    argument = _ARGUMENT_NAMES.get(name, "theta")
    # torch.compile traces methods of plugins, but not the checks. Compiled loops are in methods of the library.
    is_traceable = method.__module__.partition(".")[0] not in ("structinf", "structinf_oracles")

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(type(self), name) is checked and not (is_traceable and torch.compiler.is_compiling()):
            theta = args[place] if len(args) > place else _keyword(method, place, kwargs)
            if theta is not _MISSING and not is_accepted(self, theta):
                _accept(self, theta, shared=shared, argument=argument)
            if other is not None:
                i, check = other
                value = args[i] if len(args) > i else _keyword(method, i, kwargs)
                if theta is not _MISSING and value is not _MISSING:
                    check(theta, value)
        return method(self, *args, **kwargs)

    vars(checked)["checked"] = checked
    return cast(_Method, checked)


_MISSING = object()


def _keyword(method: Any, place: int, kwargs: dict[str, Any]) -> Any:
    """Return the argument number ``place`` from ``kwargs``. The method raises TypeError for a missing argument."""
    names = [*inspect.signature(method).parameters]
    return kwargs.get(names[place + 1], _MISSING) if len(names) > place + 1 else _MISSING


def _check_enumerate(method: Any) -> Any:
    """Return the method ``enumerate`` with a check of the event shape, and of the data bound for one instance."""

    @functools.wraps(method)
    def checked(self: Any, event_shape: Any) -> Any:
        if type(self).enumerate is checked:
            zeros = _zeros_of_shape(event_shape)
            event_shape = tuple(t.shape[1:] for t in zeros) if isinstance(zeros, tuple) else zeros.shape[1:]
            if not is_accepted(self, zeros):
                for name, value in self.bound.items():
                    if len(value) != 1:
                        raise InvalidInputError(
                            f"{name} is bound for a batch of {len(value)}, but the structures are those of one "
                            "instance; index the oracle, for example oracle[:1]"
                        )
                _accept(self, zeros, shared=False, argument="event_shape")
        return method(self, event_shape)

    vars(checked)["checked"] = checked
    return checked


def _zeros_of_shape(event_shape: Any) -> Any:
    """Return scores 0 of one instance, which take no memory, for a shape or a tuple of shapes."""
    if isinstance(event_shape, int):
        raise InvalidInputError(
            f"event_shape must be the shape of one structure, a tuple of integers, got {event_shape!r}; write "
            f"({event_shape},) for structures of one dimension"
        )
    is_tuple = isinstance(event_shape, tuple | list) and len(event_shape) > 0 and not isinstance(event_shape[0], int)
    try:
        shapes = [check_size("event_shape", s) for s in (event_shape if is_tuple else [event_shape])]
        zeros = [torch.zeros((), dtype=torch.float64, device="cpu").expand(1, *shape) for shape in shapes]
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInputError(
            f"event_shape must be the shape of one structure, or a tuple of shapes if theta is a tuple, got "
            f"{event_shape!r}"
        ) from None
    return tuple(zeros) if is_tuple else zeros[0]


# ----------------------------------------------------------------------------- scores


_form_of = operator.attrgetter("shape", "dtype", "__class__", "is_cpu", "layout")
"""Returns what methods check of a tensor in one call, since each attribute takes 0.1 µs."""

_DTYPES, _PLAIN_TENSORS = (torch.float32, torch.float64), (Tensor, Parameter)
_accepting: set[tuple[int, int]] = set()
"""The thread and the oracle of each call of :meth:`Oracle.validate`, which may call methods of the oracle."""


def is_accepted(oracle: Any, theta: Any) -> bool:
    """Return whether the oracle has accepted the form of θ. Without bound data, any batch size is accepted."""
    form = getattr(oracle.bound, "accepted", None)
    if form is None:
        return False
    exact, event, batch, owner, _ = form
    if owner != id(oracle):
        return False
    try:
        if type(theta) in _PLAIN_TENSORS and type(event) is tuple:  # the usual case, without lists
            shape, dtype, _, is_cpu, layout = _form_of(theta)
            if (shape[1:], is_cpu, layout) == event:
                return dtype in _DTYPES and (batch is None or shape[0] in (1, batch))
        forms = [_form_of(t) for t in theta] if type(theta) is tuple else _form_of(theta)
    except (AttributeError, RuntimeError):  # no tensor, or a nested tensor, which has no shape
        return False
    return forms == exact or _has_event_shapes(theta, forms, event, batch)


def _has_event_shapes(theta: Any, forms: Any, event: Any, batch: int | None) -> bool:
    """Return whether θ has the accepted ``event`` form, perhaps in another batch."""
    if type(theta) is not tuple:
        theta, forms, event = (theta,), [forms], [event]
    if len(theta) != len(event):
        return False
    sizes = set()
    for (shape, dtype, kind, is_cpu, layout), one in zip(forms, event, strict=True):
        if not shape or (shape[1:], is_cpu, layout) != one or kind not in _PLAIN_TENSORS or dtype is not forms[0][1]:
            return False
        sizes.add(shape[0])
    return forms[0][1] in _DTYPES and len(sizes - {1}) <= 1 and (batch is None or max(sizes - {1}, default=1) == batch)


_ARGUMENT_NAMES = {"decode": "y", "contains": "y", "encode": "like", "allowed_parts": "like"}
"""The names of arguments in the form of θ, if not ``theta``."""


def _accept(oracle: Any, theta: Any, *, shared: bool, argument: str) -> None:
    """Call :func:`_validate`; in its messages, name the argument that the user passed."""
    try:
        _validate(oracle, theta, shared=shared)
    except (InvalidInputError, TypeError) as error:
        if argument == "theta" or type(error) not in (InvalidInputError, TypeError):
            raise
        raise type(error)(re.sub(r"^theta\b", argument, str(error))) from None


def _validate(oracle: Any, theta: Any, *, shared: bool) -> None:
    """Raise the error of a public call if θ or the bound data are invalid; otherwise, store the form of θ.

    With ``shared``, a structure of one instance is accepted for several bound instances, and the reverse.
    """
    if (threading.get_ident(), id(oracle)) in _accepting:
        return
    check_score_tensors(theta)
    batch = check_flat_scores(oracle.label(), theta, oracle.resolve_event_ndim(theta))
    bound = max((len(value) for value in oracle.bound.values() if value.ndim), default=batch)
    if shared and 1 in (batch, bound):
        tensors = [t[:1].expand(bound, *t.shape[1:]) for t in (theta if isinstance(theta, tuple) else (theta,))]
        theta, batch = tuple(tensors) if isinstance(theta, tuple) else tensors[0], bound
    validate_scores(oracle, theta, batch)


def validate_scores(oracle: Any, theta: Any, batch: int) -> None:
    """Validate the event shapes of θ and the bound data, and store the form of θ with the bound data.

    Methods of the oracle, and of its copies for other rows of the batch, then check θ of this form no further.

    Parameters
    ----------
    oracle : Oracle
        The oracle, with its instance data.
    theta : (B | 1, *event) Tensor, or tuple of them
        Scores in the flat form, in float32 or float64.
    batch : int
        B.
    """
    validate_form(oracle, theta, batch)
    accept_form(oracle, theta, batch)


def validate_form(oracle: Any, theta: Any, batch: int) -> None:
    """Validate the event shapes of θ and the bound data; see :func:`validate_scores`."""
    check_bound_data(oracle, theta, batch)
    key = threading.get_ident(), id(oracle)
    _accepting.add(key)
    try:
        oracle.validate(theta)
    finally:
        _accepting.discard(key)


def accepts_data(oracle: Any, theta: Any, device: torch.device) -> bool:
    """Return whether the oracle has accepted the form of θ, with its data on ``device`` as they are now.

    Parameters
    ----------
    oracle : Oracle
        The oracle, whose data are on ``device``.
    theta : Tensor, or tuple of Tensor
        Scores in the flat form, (B | 1, *event).
    device : torch.device
        The device of scores and data.
    """
    form, data = getattr(oracle.bound, "accepted", None), _data_on(oracle, device)
    return form is not None and data is not None and form.data == data and is_accepted(oracle, theta)


def _data_on(oracle: Any, device: torch.device) -> tuple[Any, ...] | None:
    """Return the device and the versions of the bound tensors; None if tensors of the inference mode have none."""
    tensors = oracle.bound.values()
    return None if any(t.is_inference() for t in tensors) else (device, *(t._version for t in tensors))


def accept_form(oracle: Any, theta: Any, batch: int, device: torch.device | None = None) -> None:
    """Store the form of validated scores with the bound data; see :func:`validate_scores`.

    Parameters
    ----------
    oracle : Oracle
        The oracle, with its instance data.
    theta : (B | 1, *event) Tensor, or tuple of them
        Scores in the flat form.
    batch : int
        B.
    device : torch.device, optional
        The device of the data, if :func:`accepts_data` may accept them too.
    """
    if isinstance(theta, tuple):
        exact: Any = [_form_of(t) for t in theta]
        event: Any = [(shape[1:], is_cpu, layout) for shape, _, _, is_cpu, layout in exact]
    else:
        exact = _form_of(theta)
        event = exact[0][1:], theta.is_cpu, theta.layout
    data = None if device is None else _data_on(oracle, device)
    oracle.store_accepted_form(AcceptedForm(exact, event, batch if oracle.bound else None, id(oracle), data))


# ----------------------------------------------------------------------------- other arguments


def _batch_of(theta: Any) -> int:
    tensors = theta if isinstance(theta, tuple) else (theta,)
    return next((len(t) for t in tensors if len(t) != 1), 1)


def _check_vector(name: str) -> _Check:
    def check(theta: Any, value: Any) -> None:
        check_same_form(name, value, theta, _batch_of(theta))

    return check


def _check_weight(theta: Any, weight: Any) -> None:
    batch = _batch_of(theta)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        received = f"a tensor of {weight.dtype}" if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"weight must be a tensor in floating point, got {received}")
    if weight.shape != (batch,):
        raise InvalidInputError(
            f"weight must have shape ({batch},), a number for each instance of theta, got {tuple(weight.shape)}"
        )


_LABEL_DTYPES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})


def _check_labels(like: Any, labels: Any) -> None:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        received = f"a tensor of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a tensor of integers, got {received}")
    if labels.dtype not in _LABEL_DTYPES:  # torch compares no unsigned integers of 16 bits and more
        raise TypeError(f"labels must be a tensor of int64, got {labels.dtype}; convert them with .long()")
    check_dense("labels", labels)
    batch = _batch_of(like)
    if labels.ndim == 0 or (batch != 1 and len(labels) not in (1, batch)):
        raise InvalidInputError(
            f"labels must be labels for each of {batch} instances, shape ({batch}, ...), got {tuple(labels.shape)}"
        )


class _Arguments(NamedTuple):
    """The place of θ or y among the arguments, None for an event shape, and the place and check of another argument.

    With ``shared``, tensors of one instance go with data bound for several instances, and the reverse.
    """

    place: int | None = 0
    other: tuple[int, _Check] | None = None
    shared: bool = False


_THETA, _WEIGHT = _Arguments(), _Arguments(other=(1, _check_weight))
_STRUCTURE = _Arguments(shared=True)
_METHODS: dict[str, _Arguments] = {
    **dict.fromkeys(("readout", "hamming_cost", "decode", "contains"), _STRUCTURE),
    **dict.fromkeys(
        ("argmax", "valid_parts", "log_partition", "marginals", "log_partition_and_marginals", "sample", "topk"), _THETA
    ),
    **dict.fromkeys(("argmax_indices", "restricted_argmax", "sample_without_replacement"), _THETA),
    **dict.fromkeys(("project", "project_entropy", "margins", "solve_quadratic"), _THETA),
    **dict.fromkeys(("smoothed_value", "smoothed_mean", "smoothed_value_and_mean", "smoothed_sample"), _THETA),
    **dict.fromkeys(("entropy", "count", "enumerate_support"), _THETA),
    **dict.fromkeys(("log_partition_vjp", "smoothed_vjp"), _WEIGHT),
    **dict.fromkeys(("covariance_product", "smoothed_hessian_product"), _Arguments(other=(1, _check_vector("v")))),
    "log_prob": _Arguments(other=(1, _check_vector("y"))),
    "readout_transpose": _Arguments(1, shared=True),
    **dict.fromkeys(("encode", "allowed_parts"), _Arguments(1, (0, _check_labels), shared=True)),
    "enumerate": _Arguments(None),
}
"""The arguments of each method."""
