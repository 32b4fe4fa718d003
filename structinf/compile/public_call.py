"""The decorator of public calls: what each does inside torch.compile and torch.func.

Tracing would go through solvers down to numba's source. A call that returns only tensors becomes one custom operator
(:mod:`.custom_op`) instead, so that the graph has no break, and values and gradients are the same as without
torch.compile. The operator takes tensors; a key stands for all other arguments (names, options, oracles).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch import Tensor

from ..errors import StructinfError, UnsupportedError
from .call_arguments import flatten, has_no_parameters, identity, is_same_constant, rebuild
from .custom_op import call_operator, call_scalar_operator, register_function
from .functorch import functorch_compatible
from .torch_private import (
    disable_dynamo,
    functorch_is_active,
    is_dynamo_imported,
    is_jit_tracing,
    mark_constant,
)

__all__ = ["UNKNOWN_TENSOR", "OperatorSpec", "public_call"]

P = ParamSpec("P")
T = TypeVar("T")


class _UnknownTensor:
    """Stands for a tensor while a call is examined before it runs."""

    def __repr__(self) -> str:
        return "a tensor"


UNKNOWN_TENSOR = _UnknownTensor()


@dataclass(frozen=True)
class OperatorSpec:
    """What torch.compile asks about a call before the call runs. Each function takes the arguments of the call.

    Attributes
    ----------
    output_like : callable, optional
        Returns tensors of the shapes and dtypes of the result. By default, the first argument.
    is_deterministic : callable
        Whether the result depends on the arguments alone, so that the backward pass may compute it again. It gets
        ``UNKNOWN_TENSOR`` in the place of tensors, and raises the errors of invalid arguments.
    is_scalar : callable
        Whether the result is one number, whose gradient the forward pass then computes too.
    """

    output_like: Callable[..., Any] | None = None
    is_deterministic: Callable[..., bool] = lambda *_, **__: True
    is_scalar: Callable[..., bool] = lambda *_, **__: False


@overload
def public_call(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def public_call(
    *,
    operator: OperatorSpec | None = None,
    functorch: bool = False,
    check_captured: Callable[..., None] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def public_call(
    function: Callable[..., Any] | None = None,
    *,
    operator: OperatorSpec | None = None,
    functorch: bool = False,
    check_captured: Callable[..., None] | None = None,
) -> Any:
    """Decorate a public call.

    1. In eager mode the function runs unchanged; the decorator costs two flags.
    2. Inside torch.compile the call breaks the graph, unless ``operator`` is given.
    3. With ``operator``, the call is one node of the graph. The function then returns a tensor, or a tuple of tensors
       if its first argument is one. Its arguments are tensors, lists, tuples and dicts of them, and objects that
       do not change except in the attributes that their class names as ``settable``; gradients flow to the tensors
       and to these attributes. The graph breaks if the call is not deterministic or its objects may hold parameters.
    4. Inside torch.func, with ``functorch``, the function sees plain tensors (:func:`.functorch.functorch_compatible`),
       and ``check_captured`` refuses calls that read other tensors. Without it the function is traced by torch.func.
    """
    if function is None:
        return functools.partial(_decorate, operator=operator, functorch=functorch, check_captured=check_captured)
    return _decorate(function, operator=None, functorch=False, check_captured=None)


def _decorate(
    function: Callable[..., Any],
    *,
    operator: OperatorSpec | None,
    functorch: bool,
    check_captured: Callable[..., None] | None,
) -> Callable[..., Any]:
    transformed = functorch_compatible(function, check_captured) if functorch else function
    graph_break = disable_dynamo(transformed)

    def call_in_transform(*args: Any, **kwargs: Any) -> Any:
        # Inside torch.func the compiler leaves a function whose graph breaks, and traces the functions that it calls.
        return (graph_break if is_dynamo_imported() else transformed)(*args, **kwargs)

    no_export = _no_export(function)

    def break_graph(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_exporting():
            return graph_break(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            raise UnsupportedError(no_export)
        try:
            return graph_break(*args, **kwargs)  # a call that only consists of torch operators, such as pairwise_cost
        except StructinfError:
            raise
        except RuntimeError as error:
            raise UnsupportedError(no_export) from error

    if operator is None:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return break_graph(*args, **kwargs)
            _refuse_jit_trace(function)
            if not functorch_is_active():
                return function(*args, **kwargs)
            return call_in_transform(*args, **kwargs)

        return call

    name = f"{function.__module__}.{function.__qualname__}"
    _OPERATORS[name] = _Operator(transformed, operator, operator.output_like or _first_argument_of(function))

    @functools.wraps(function)
    def call_in_graph(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _refuse_jit_trace(function)
            if not functorch_is_active():
                return function(*args, **kwargs)
            return call_in_transform(*args, **kwargs)
        tensors, constants = [], []
        form = flatten((args, kwargs), tensors, constants)
        key, kind, error = _register_call(name, form, tuple([identity(each) for each in constants]), *constants)
        if error:
            raise RuntimeError(error)
        if key is None:
            return break_graph(*args, **kwargs)
        if kind == "scalar":
            return call_scalar_operator(key, tensors)
        outputs = call_operator(key, tensors)
        return tuple(outputs) if kind == "tuple" else outputs[0]

    return call_in_graph


def _refuse_jit_trace(function: Callable[..., Any]) -> None:
    """Raise UnsupportedError inside torch.jit.trace, which would record the result of the call as a constant."""
    if is_jit_tracing():
        raise UnsupportedError(
            f"torch.jit.trace cannot record structinf.{_public_name(function)}: the traced module would return the "
            "result of the traced input for every other input; use torch.export.export or torch.compile instead"
        )


def _no_export(function: Callable[..., Any]) -> str:
    """Return the error message for a call of ``function`` that would break the graph of torch.export."""
    return (
        f"torch.export cannot record this call of structinf.{_public_name(function)}, which breaks the graph; export "
        "the part of the model whose structured calls are layers, losses or structinf.relax without noise, and make "
        "other structured calls in Python on its outputs"
    )


def _public_name(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _first_argument_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same arguments that returns the first."""
    name = next(iter(inspect.signature(function).parameters))
    return lambda *args, **kwargs: args[0] if args else kwargs[name]


# ----------------------------------------------------------------------------- calls


@dataclass(frozen=True)
class _Operator:
    function: Callable[..., Any]
    spec: OperatorSpec
    output_like: Callable[..., Any]


_OPERATORS: dict[str, _Operator] = {}


@dataclass(frozen=True)
class _Call:
    """A call of one of the operators, without its tensors."""

    operator: _Operator
    form: Any
    constants: tuple[Any, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return _as_tuple(self._apply(self.operator.function, tensors))

    def output_like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        try:
            return _as_tuple(self._apply(self.operator.output_like, tensors))
        except Exception as error:
            if type(error).__module__.startswith("torch"):
                raise  # from one part of the compiler to another
            # The call itself has the better message about wrong tensors, once it runs.
            return tuple(self._first_argument(tensors) if self.kind() == "tuple" else tensors[:1])

    def is_deterministic(self) -> bool:
        tensors = itertools.repeat(UNKNOWN_TENSOR)
        is_deterministic = self._apply(self.operator.spec.is_deterministic, tensors)
        return is_deterministic and has_no_parameters(self._arguments(tensors), set())

    def kind(self) -> str:
        """Of the result: "tuple" if the first argument is one, else "scalar" or "tensor"."""
        tensors = itertools.repeat(UNKNOWN_TENSOR)
        if isinstance(self._first_argument(tensors), tuple | list):
            return "tuple"
        return "scalar" if self._apply(self.operator.spec.is_scalar, tensors) else "tensor"

    def _first_argument(self, tensors: Iterable[Any]) -> Any:
        return self._apply(_first_argument_of(self.operator.function), tensors)

    def _apply(self, function: Callable[..., Any], tensors: Iterable[Any]) -> Any:
        args, kwargs = self._arguments(tensors)
        return function(*args, **kwargs)

    def _arguments(self, tensors: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return rebuild(self.form, iter(tensors), iter(self.constants))


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@mark_constant
def _register_call(name: str, form: Any, identities: tuple[int, ...], *constants: Any) -> tuple[str | None, str, str]:
    """The key of the call, or None if the graph must break; the kind of its result; an error message or "".

    The compiler keeps the result as a constant as long as the arguments are the same.
    """
    # For an object that the compiled program creates, the compiler has a placeholder of another identity.
    is_whole = identities == tuple(map(identity, constants))
    if not is_whole or functorch_is_active():
        return None, "", ""
    if _is_onnx_export():
        return (
            None,
            "",
            f"{name} has no ONNX operator, so that a model that calls it cannot be exported to ONNX; export the layers "
            "before the call to ONNX and make the call in Python, or use torch.export.export for the whole model",
        )
    call = _Call(_OPERATORS[name], form, constants)
    try:
        if not call.is_deterministic():
            return None, "", ""
    except Exception as error:
        return None, "", f"{type(error).__name__}: {error}"
    label = f"{name}{form}({', '.join(map(repr, constants))})"
    key = register_function(label, call, lambda other: all(map(is_same_constant, constants, other.constants)))
    return key, call.kind(), ""


def _is_onnx_export() -> bool:
    """Return whether torch.onnx.export is running; does not import torch.onnx, which takes longer than a call."""
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()
