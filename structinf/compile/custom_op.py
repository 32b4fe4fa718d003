"""The operator ``structinf::call``: a function of tensors as one node of torch.compile's graphs.

The operator takes tensors and the key of a registered function. The backward pass is the same operator with the key of
the vector-Jacobian product of the function, which runs the function again and differentiates the result. The operator
therefore supports every order of derivative of the function. For a scalar result, the forward pass also computes the
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import UnsupportedError
from .saved_tensors import bypass_saved_tensor_hooks

__all__ = ["TensorFunction", "call_operator", "call_scalar_operator", "register_function"]


class TensorFunction(Protocol):
    """A deterministic function of tensors whose outputs have known shapes."""

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs, differentiable by autograd."""
        ...

    def output_like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return tensors with the shapes and dtypes of the outputs."""
        ...


@dataclass(frozen=True)
class _Vjp:
    """The function from ``inputs`` tensors and cotangents of outputs to gradients for the tensors ``indices``."""

    function: TensorFunction
    inputs: int
    indices: tuple[int, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return _outputs_and_vjp(self.function, tensors[: self.inputs], self.indices, tensors[self.inputs :])[1]

    def output_like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors[i] for i in self.indices)


@dataclass(frozen=True)
class _ScalarAndGradient:
    """The function from tensors to the scalar result of ``function`` and the gradients for the tensors ``indices``."""

    function: TensorFunction
    indices: tuple[int, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (scalar,), gradients = _outputs_and_vjp(self.function, tensors, self.indices)
        return scalar, *gradients

    def output_like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return *self.function.output_like(tensors), *(tensors[i] for i in self.indices)


def _outputs_and_vjp(
    function: TensorFunction,
    tensors: Sequence[Tensor],
    indices: Sequence[int],
    cotangents: Sequence[Tensor] | None = None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return outputs of ``function``, and cotangents (by default 1) times the Jacobian for the tensors ``indices``."""
    create_graph = torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *(cotangents or ())))
    with torch.enable_grad():
        # Aliases stop gradients here, except in a graph of higher order.
        inputs = [t.view_as(t) if create_graph else t.detach() for t in tensors]
        sources = [inputs[i].requires_grad_() for i in indices]
        outputs = function.run(inputs)
        pairs = zip(outputs, map(torch.ones_like, outputs) if cotangents is None else cotangents, strict=True)
        differentiable = [pair for pair in pairs if pair[0].requires_grad]
        if not differentiable:
            return outputs, tuple(torch.zeros_like(t) for t in sources)
        ends, weights = zip(*differentiable, strict=True)
        return outputs, torch.autograd.grad(ends, sources, weights, create_graph=create_graph, materialize_grads=True)


# ----------------------------------------------------------------------------- keys


# Compiled programs are kept until the process ends. Functions, and objects compared by identity, are therefore kept
# too.
_FUNCTIONS: dict[str, TensorFunction] = {}


def register_function(label: str, function: TensorFunction, is_same: Callable[[Any], bool]) -> str:
    """Return the key of ``function``: ``label``, with a number if another function has the same label.

    The key is the same text in every process that registers the same functions in the same order.
    """
    key, n = label, 1
    while key in _FUNCTIONS and not is_same(_FUNCTIONS[key]):
        key, n = f"{label}#{n}", n + 1
    _FUNCTIONS.setdefault(key, function)
    return key


def _function_of(key: str) -> TensorFunction:
    """Return the function of a ``key``.

    The keys of derivatives describe them: "vjp[indices]/inputs key" and "grad[indices] key". A compiled backward pass
    may come from the cache of another process, and then the current process never traces the backward pass.
    """
    head, _, inner = key.partition(" ")
    if head.startswith("grad["):
        return _ScalarAndGradient(_function_of(inner), _indices(key))
    if head.startswith("vjp["):
        return _Vjp(_function_of(inner), int(head.partition("/")[2]), _indices(key))
    if key not in _FUNCTIONS:
        raise UnsupportedError(
            f"this process does not know the call {key!r} of an exported program; export a model with the same "
            "structured layers in this process first, or save the state_dict and construct the model in Python instead"
        )
    return _FUNCTIONS[key]


def _indices(key: str) -> tuple[int, ...]:
    return tuple(map(int, key[key.index("[") + 1 : key.index("]")].split(",")))


# ----------------------------------------------------------------------------- the operator


def call_scalar_operator(key: str, tensors: Sequence[Tensor]) -> Tensor:
    """Return the scalar result of the function of ``key``, computed with the gradient if autograd records."""
    indices = [i for i, t in enumerate(tensors) if t.requires_grad] if torch.is_grad_enabled() else []
    # A float16 gradient may need a scaled loss. It is therefore not rounded before the scale is known.
    if not indices or any(tensors[i].dtype == torch.float16 for i in indices):
        return call_operator(key, tensors)[0]
    return call_operator(f"grad[{','.join(map(str, indices))}] {key}", tensors)[0]


@torch.library.custom_op("structinf::call", mutates_args=(), schema="(str key, Tensor[] tensors) -> Tensor[]")
def call_operator(key: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of the function of ``key``."""
    # The dispatcher turned autograd off. Outside of inference mode, functions can turn autograd on again.
    with torch.inference_mode(False), torch.no_grad(), bypass_saved_tensor_hooks():
        outputs = _function_of(key).run([t.clone() if t.is_inference() else t for t in tensors])
    storages = {t.untyped_storage().data_ptr() for t in tensors}
    results = []
    for t in outputs:
        t = t.detach().contiguous()
        # The results of an operator share memory neither with its arguments nor with one another.
        results.append(t.clone() if t.untyped_storage().data_ptr() in storages else t)
        storages.add(results[-1].untyped_storage().data_ptr())
    return results


@call_operator.register_fake
def _(key: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in _function_of(key).output_like(tensors)]


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.key, tensors = inputs
    ctx.set_materialize_grads(False)
    ctx.inputs = len(tensors)
    ctx.save_for_backward(*tensors, *(output[1:] if ctx.key.startswith("grad[") else ()))
    ctx.outputs = [(t.shape, t.dtype, t.device) for t in output]


def _backward(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    saved = ctx.saved_tensors  # read once, since checkpointing refuses a second read
    tensors, gradients = saved[: ctx.inputs], saved[ctx.inputs :]
    indices = tuple(i for i, needed in enumerate(ctx.needs_input_grad[1]) if needed)
    cotangent, *others = cotangents
    if gradients and indices == _indices(ctx.key) and cotangent is not None and not any(c is not None for c in others):
        products = [cotangent * gradient for gradient in gradients]
    else:
        key = f"vjp[{','.join(map(str, indices))}]/{len(tensors)} {ctx.key}"
        dense = [
            torch.zeros(shape, dtype=dtype, device=device) if c is None else c
            for c, (shape, dtype, device) in zip(cotangents, ctx.outputs, strict=True)
        ]
        products = call_operator(key, [*tensors, *dense])
    by_index = dict(zip(indices, products, strict=True))
    return None, [by_index.get(i) for i in range(len(tensors))]


call_operator.register_autograd(_backward, setup_context=_setup_context)
