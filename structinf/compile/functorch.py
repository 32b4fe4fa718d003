"""Public calls inside the transforms of torch.func: solved on plain tensors and differentiated by autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import Function

from ..errors import UnsupportedError
from .torch_private import functorch_is_active, is_functorch_wrapped_tensor, pytree, requires_grad_in_transform

__all__ = ["NO_FORWARD_MODE", "check_not_captured", "functorch_compatible", "refuse_function"]

NO_FORWARD_MODE = (
    "structured calls have no forward-mode derivatives (torch.func.jvp, jacfwd, torch.autograd.forward_ad); use "
    "reverse mode: torch.func.grad, vjp or jacrev"
)

P = ParamSpec("P")
T = TypeVar("T")


def functorch_compatible(function: Callable[P, T], check: Callable[..., None] | None = None) -> Callable[P, T]:
    """Make ``function`` differentiable by torch.func.

    A transform hides the values of tensors from solvers. Inside a transform the call therefore becomes one autograd
    Function. The forward pass runs ``function`` on plain tensors and records the operations with autograd. The backward
    pass differentiates the record, to every order supported by ``function``. Under vmap, the slices run one after the
    other. Forward mode (jvp) raises UnsupportedError. Outside of transforms, the overhead is the check of one flag.

    Parameters
    ----------
    function : callable
        A function of tensors and other objects, also nested in tuples, lists and dicts. The result has the same form.
    check : callable, optional
        A function of the same arguments. Raises if the result depends on tensors outside of the arguments.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not functorch_is_active():
            return function(*args, **kwargs)
        if check is not None:
            check(*args, **kwargs)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        # Options that refuse a gradient take tensors without one.
        constant = [not requires_grad_in_transform(leaves[i]) for i in places]

        def of_tensors(*tensors: Tensor) -> tuple[list[Tensor], Any]:
            filled = dict(enumerate(leaves)) | dict(zip(places, tensors, strict=True))
            plain_args, plain_kwargs = pytree.tree_unflatten(filled.values(), structure)
            result = cast(Callable[..., T], function)(*plain_args, **plain_kwargs)
            result_leaves, result_structure = pytree.tree_flatten(result)
            return [t for t in result_leaves if isinstance(t, Tensor)], (result_leaves, result_structure)

        generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
        record = _Record(of_tensors, constant=constant, generators=generators)
        outputs = iter(_RecordedCall.apply(record, *(leaves[i] for i in places)))
        result_leaves, result_structure = record.result
        with_outputs = [next(outputs) if isinstance(t, Tensor) else t for t in result_leaves]
        return pytree.tree_unflatten(with_outputs, result_structure)

    return call


def refuse_function(name: str, option: Any) -> None:
    """Raise UnsupportedError if ``option`` is a function, because tensors read by the function would be constants."""
    if callable(option):
        raise UnsupportedError(
            f"{name}: torch.func cannot differentiate through an option that is a function; call structinf.relax in "
            "the transform and apply the function to its result"
        )


def check_not_captured(name: str, t: Tensor) -> None:
    """Raise UnsupportedError if a transform differentiates with respect to ``t``, and ``t`` is not an argument."""
    if not functorch_is_active() and is_functorch_wrapped_tensor(t):
        raise UnsupportedError(
            f"{name}: torch.func differentiates with respect to a tensor that an object holds; pass the tensor as an "
            "argument of the call inside the transform"
        )


@dataclass
class _Record:
    """A call on plain tensors, with the autograd graph from ``leaves`` to ``outputs``, and the whole ``result``.

    Under vmap, ``slices`` holds one record for each slice instead. ``source`` is the differentiated record, if the
    record is a backward pass. The first ``source_inputs`` tensors are then the inputs of the source. ``constant`` says
    which leaves get no gradient; later leaves get one.
    """

    function: Callable[..., tuple[list[Tensor], Any]]
    leaves: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    result: Any = None
    slices: list[_Record] = field(default_factory=list)
    source: _Record | None = None
    source_inputs: int = 0
    constant: Sequence[bool] = ()
    generators: list[torch.Generator] = field(default_factory=list)

    def run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs of the function. The first ``tensors`` of a backward pass are existing leaves."""
        with torch.enable_grad():
            old = len(self.leaves)
            new = [t.detach().requires_grad_(self.differentiates(i, t)) for i, t in enumerate(tensors[old:], old)]
            self.leaves = [*self.leaves, *new]
            self.outputs, self.result = self.function(*self.leaves)
        return tuple(t.detach() for t in self.outputs)

    def differentiates(self, index: int, t: Tensor) -> bool:
        """Return whether the tensor ``t`` with this ``index`` gets a gradient."""
        return t.is_floating_point() and not (index < len(self.constant) and self.constant[index])

    @property
    def differentiable(self) -> list[int]:
        """The indices of the outputs with a gradient."""
        if self.slices:
            return self.slices[0].differentiable
        return [i for i, t in enumerate(self.outputs) if t.requires_grad]

    def for_slice(self, k: int, dims: Sequence[int | None]) -> _Record:
        """Return a new record of the same call for slice k of tensors with the vmap dimensions ``dims``."""
        if self.source is None:
            return _Record(self.function, constant=self.constant, generators=self.generators)
        # Either the source has slices, or only the cotangents of one call have slices.
        is_split = any(dim is not None for dim in dims[: self.source_inputs])
        return _backward_record(self.source.slices[k] if is_split else self.source, self.source_inputs)


def _backward_record(record: _Record, inputs: int) -> _Record:
    """Return the backward pass of ``record``: from ``inputs`` tensors and cotangents of outputs to gradients."""
    differentiable, leaves = record.differentiable, record.leaves

    # The cotangents are inputs too. The gradients can therefore be differentiated in cotangents and leaves.
    def vjp(*tensors: Tensor) -> tuple[list[Tensor], Any]:
        cotangents = [tensors[inputs + i] for i in differentiable]
        outputs, sources = [record.outputs[i] for i in differentiable], [t for t in leaves if t.requires_grad]
        gradients = torch.autograd.grad(outputs, sources, cotangents, create_graph=True, materialize_grads=True)
        return list(gradients), None

    return _Record(vjp, leaves, source=record, source_inputs=inputs, constant=record.constant)


class _RecordedCall(Function):
    @staticmethod
    def forward(record: _Record, *tensors: Tensor) -> tuple[Tensor, ...]:
        return record.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.record, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        tensors = ctx.saved_tensors
        if not ctx.record.differentiable:
            return None, *[None] * len(tensors)
        backward = _backward_record(ctx.record, len(tensors))
        gradients = iter(_RecordedCall.apply(backward, *tensors, *cotangents))
        return None, *(next(gradients) if ctx.record.differentiates(i, t) else None for i, t in enumerate(tensors))

    @staticmethod
    def vmap(info: Any, dims: Any, record: _Record, *tensors: Tensor) -> Any:
        """Run the slices one after the other, because solvers read values, and tensors differ in batch dimensions."""
        if not info.batch_size:
            raise UnsupportedError("torch.func.vmap over a dimension of size 0 does not work for structured calls")
        dims, results = dims[1:], []
        generators = [*record.generators, *_default_generators(tensors)]
        states = [generator.get_state() for generator in generators]
        for k in range(info.batch_size):
            if info.randomness == "same":
                for generator, state in zip(generators, states, strict=True):
                    generator.set_state(state)
            record.slices.append(record.for_slice(k, dims))
            parts = [t if dim is None else t.select(dim, k) for t, dim in zip(tensors, dims, strict=True)]
            results.append(_RecordedCall.apply(record.slices[k], *parts))
        after = [generator.get_state() for generator in generators]
        if info.randomness == "error" and not all(map(torch.equal, states, after)):
            raise UnsupportedError(
                "a call that draws noise needs torch.func.vmap(..., randomness='different') or randomness='same'"
            )
        record.result = record.slices[-1].result
        _check_same_for_all_slices(record.result)
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise UnsupportedError(NO_FORWARD_MODE)


def _default_generators(tensors: Sequence[Tensor]) -> list[torch.Generator]:
    """Return the default generators of torch, for the CPU and for the devices of the tensors."""
    devices = {t.device.index for t in tensors if t.is_cuda}
    return [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]


def _check_same_for_all_slices(result: Any) -> None:
    """Raise UnsupportedError if a call returned objects other than tensors, numbers and strings."""
    leaves = [] if result is None else result[0]
    if not all(leaf is None or isinstance(leaf, Tensor | int | float | str) for leaf in leaves):
        raise UnsupportedError(
            "torch.func.vmap cannot stack results that hold other objects than tensors, such as the result of "
            "structinf.infer; use structinf.relax, or give the tensors leading batch dimensions, accepted by every call"
        )
