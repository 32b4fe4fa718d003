"""The decorator of public calls, for the behaviour inside torch.compile and torch.func.

Without the decorator, torch.compile would trace solvers down to the source of numba. The decorator makes each call that
returns only tensors one custom operator (:mod:`.custom_op`). The graph then has no break, and values and gradients are
the same as without torch.compile. The operator takes tensors, and a key for all other arguments (names, options,
oracles).
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

from ..deferred_checks import with_second_attempt
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

__all__ = ["UNKNOWN_TENSOR", "OperatorSpec", "public_call", "takes_one_theta"]

P = ParamSpec("P")
T = TypeVar("T")


class _UnknownTensor:
    """A placeholder for a tensor in the examination of a call before the run."""

    def __repr__(self) -> str:
        return "a tensor"


UNKNOWN_TENSOR = _UnknownTensor()


@dataclass(frozen=True)
class OperatorSpec:
    """Properties of a call that torch.compile needs before the run. Each function takes the arguments of the call.

    Attributes
    ----------
    output_like : callable, optional
        Returns tensors with the shapes and dtypes of the result. By default, the first argument.
    is_deterministic : callable
        Whether the result depends only on the arguments, so that the backward pass can compute the result again. The
        function gets ``UNKNOWN_TENSOR`` in place of tensors, and raises the errors of invalid arguments.
    is_scalar : callable
        Whether the result is a single number. The forward pass then also computes the gradient.
    returns_one_tensor : bool
        Whether the result is a tensor even if the first argument is a tuple.
    """

    output_like: Callable[..., Any] | None = None
    is_deterministic: Callable[..., bool] = lambda *_, **__: True
    is_scalar: Callable[..., bool] = lambda *_, **__: False
    returns_one_tensor: bool = False


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

    1. In eager mode the function runs unchanged; the decorator checks three flags. The function may run again
       (:func:`structinf.deferred_checks.with_second_attempt`).
    2. Inside torch.compile the call breaks the graph, unless ``operator`` is given.
    3. With ``operator``, the call is one node of the graph. The function then returns a tensor, or a tuple of tensors
       if the first argument is a tuple, except with ``OperatorSpec.returns_one_tensor``. The arguments are tensors,
       lists, tuples and dicts of tensors, and objects. Objects must not change, except for the attributes named in
       ``settable`` of the class. Gradients flow to the tensors and to the settable attributes. The graph breaks if the
       call is not deterministic, or if an object may hold parameters.
    4. Inside torch.func, with ``functorch``, the function gets plain tensors (:func:`.functorch.functorch_compatible`),
       and ``check_captured`` refuses calls that read other tensors. Without ``functorch``, torch.func traces the
       function.
    5. Inside torch.export, a call that would break the graph raises UnsupportedError.
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
        # Inside torch.func the compiler skips a function with a graph break, and traces the called functions.
        return (graph_break if is_dynamo_imported() else transformed)(*args, **kwargs)

    no_export = _no_export(function)

    def break_graph(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_exporting():
            return graph_break(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            raise UnsupportedError(no_export)
        try:
            return graph_break(*args, **kwargs)  # works for calls of torch operators only, such as pairwise_cost
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
                return _run(function, args, kwargs)
            return call_in_transform(*args, **kwargs)

        return call

    name = f"{function.__module__}.{function.__qualname__}"
    _OPERATORS[name] = _Operator(transformed, operator, operator.output_like or _first_argument_of(function))

    @functools.wraps(function)
    def call_in_graph(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _refuse_jit_trace(function)
            if not functorch_is_active():
                return _run(function, args, kwargs)
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


def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function; errors about the arguments of an inherited method name the class of the object."""
    try:
        return with_second_attempt(function, *args, **kwargs)
    except TypeError as error:
        inherited, message = f"{function.__qualname__}()", str(error)
        if message.startswith(inherited):
            message = message.removeprefix(inherited)
            if message.startswith((" takes ", " got multiple values ")) and _has_separate_tensors(function, args):
                message = _one_tuple(function)
            error.args = (_name_of_call(function, args) + message,)
        raise


def takes_one_theta(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method whose only positional argument is ``theta``: the error about more arguments shows the tuple."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) > 2:
            raise TypeError(_name_of_call(method, args) + _one_tuple(method))
        return method(*args, **kwargs)

    return call


def _name_of_call(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return "function()" or "Class.method()", with the class of the object."""
    if "." in function.__qualname__ and args:
        return f"{type(args[0]).__name__}.{function.__name__}()"
    return f"{function.__qualname__}()"


def _positional_names(function: Callable[..., Any]) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]


def _has_separate_tensors(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether the arguments have several tensors in place of ``theta`` or ``y``."""
    names = _positional_names(function)
    place = names.index("self") + 1 if "self" in names else 0
    begins = names[place : place + 1] in (["theta"], ["y"])
    return begins and len(args) > place + 1 and all(isinstance(t, Tensor) for t in args[place : place + 2])


def _one_tuple(function: Callable[..., Any]) -> str:
    """Return the end of the message for separate tensors, with the right call."""
    names, name = _positional_names(function), function.__name__
    if names[0] == "self":
        del names[0]
        kinds = {"forward": "loss" if len(names) > 1 else "layer", "infer": "layer.infer"}
        name = kinds.get(name, _public_name(function))
    call = f"{name}({', '.join(['(u, t)', *names[1:]])})"
    return (
        f" takes all tensors of {names[0]} as one argument; pass a tuple, {call}, and instance data by name, such as "
        "lengths=..."
    )


def _refuse_jit_trace(function: Callable[..., Any]) -> None:
    """Raise UnsupportedError inside torch.jit.trace, because the trace would hold the result as a constant."""
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
    """Return a function that returns the first argument of a call of ``function``."""
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
    """A call of an operator, without tensors."""

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
                raise  # an internal exception of the compiler
            # The message of the call itself about wrong tensors is better, and comes in the run.
            return tuple(self._first_argument(tensors) if self.kind() == "tuple" else tensors[:1])

    def is_deterministic(self) -> bool:
        tensors = itertools.repeat(UNKNOWN_TENSOR)
        is_deterministic = self._apply(self.operator.spec.is_deterministic, tensors)
        return is_deterministic and has_no_parameters(self._arguments(tensors), set())

    def kind(self) -> str:
        """Return the kind of the result: "scalar", "tensor", or "tuple" as the first argument."""
        tensors = itertools.repeat(UNKNOWN_TENSOR)
        if isinstance(self._first_argument(tensors), tuple | list) and not self.operator.spec.returns_one_tensor:
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
    """Return the key of the call, or None if the graph must break; the kind of the result; an error message or "".

    The compiler keeps the result as a constant for equal arguments.
    """
    # Objects created by the compiled program are placeholders with another identity.
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
    """Return whether torch.onnx.export is running, without the slow import of torch.onnx."""
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()
