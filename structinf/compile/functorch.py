"""Public calls within torch.func's transforms: solved on plain tensors, with autograd's own record for the gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import Function
from torch.utils import _pytree as pytree

from ..errors import UnsupportedError

__all__ = ["check_not_hidden", "functorch_compatible", "refuse_function"]

P = ParamSpec("P")
T = TypeVar("T")


def functorch_compatible(function: Callable[P, T], check: Callable[..., None] | None = None) -> Callable[P, T]:
    """``function`` of tensors and other things, also in tuples, to such, that torch.func can differentiate too.

    A transform hides values from solvers. Within one, the call is a Function whose forward sees them: it records there
    what autograd would outside, and goes back along that, to any order that is offered. Elsewhere it costs one flag.
    Under vmap it is called for one slice after the other, and jvp is an UnsupportedError. Derivatives are those in the
    tensors that it is given; ``check``, of the same arguments, raises where others matter.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _transforms():
            return function(*args, **kwargs)
        if check is not None:
            check(*args, **kwargs)
        given, form = pytree.tree_flatten((args, kwargs))
        places = [i for i, each in enumerate(given) if isinstance(each, Tensor)]

        def of_tensors(*tensors: Tensor) -> tuple[list[Tensor], Any]:
            filled = dict(enumerate(given)) | dict(zip(places, tensors, strict=True))
            plain, named = pytree.tree_unflatten(filled.values(), form)
            found, own_form = pytree.tree_flatten(cast(Callable[..., T], function)(*plain, **named))
            return [t for t in found if isinstance(t, Tensor)], (found, own_form)

        record = _Record(of_tensors, generators=[each for each in given if isinstance(each, torch.Generator)])
        outputs = iter(_Recorded.apply(record, *(given[i] for i in places)))
        found, own_form = record.rest
        return pytree.tree_unflatten([next(outputs) if isinstance(t, Tensor) else t for t in found], own_form)

    return call


def refuse_function(name: str, option: Any) -> None:
    """UnsupportedError if the ``option`` is a function: what it reads would count as constant in a recorded call."""
    if callable(option):
        raise UnsupportedError(
            f"{name}: a function is not followed within the transforms of torch.func; take structinf.relax, which is, "
            "and the function of what it returns"
        )


def check_not_hidden(name: str, t: Tensor) -> None:
    """UnsupportedError if a transform is to follow ``t``, which a recorded call was not given as an argument."""
    if not _transforms() and is_functorch_wrapped_tensor(t):
        raise UnsupportedError(
            f"{name}: torch.func is to differentiate in this tensor, which an object holds; within its transforms "
            "tensors must be arguments of the call itself"
        )


def _transforms() -> bool:
    return torch._C._are_functorch_transforms_active()


@dataclass
class _Record:
    """A call on plain tensors, and autograd's record of it from ``leaves`` to ``outputs``; the ``rest`` it returned.

    Under vmap there are ``slices`` instead, each a call of its own. A call that goes back along another record, the
    ``source``, has that one's ``known`` inputs in front of its own.
    """

    function: Callable[..., tuple[list[Tensor], Any]]
    leaves: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    rest: Any = None
    slices: list[_Record] = field(default_factory=list)
    source: _Record | None = None
    known: int = 0
    generators: list[torch.Generator] = field(default_factory=list)

    def run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The function's outputs; the first ``tensors`` are leaves already if an earlier record goes on from them."""
        with torch.enable_grad():
            own = tensors[len(self.leaves) :]
            self.leaves = [*self.leaves, *(t.detach().requires_grad_(t.is_floating_point()) for t in own)]
            self.outputs, self.rest = self.function(*self.leaves)
        return tuple(t.detach() for t in self.outputs)

    @property
    def moving(self) -> list[int]:
        """Which outputs have a gradient."""
        if self.slices:
            return self.slices[0].moving
        return [i for i, t in enumerate(self.outputs) if t.requires_grad]

    def again(self, k: int, dims: Sequence[int | None]) -> _Record:
        """The same call for slice k of tensors in ``dims``, not run."""
        if self.source is None:
            return _Record(self.function, generators=self.generators)
        # Either the call was sliced already, or only the cotangents of one call are.
        is_split = any(dim is not None for dim in dims[: self.known])
        return _back_along(self.source.slices[k] if is_split else self.source, self.known)


def _back_along(record: _Record, known: int) -> _Record:
    """From the ``known`` tensors that ``record`` is a call of and its outputs' cotangents, the gradients in floats."""
    moving, leaves = record.moving, record.leaves

    # In the cotangents too, so that what was found has derivatives in them and in the leaves.
    def pull_back(*inputs: Tensor) -> tuple[list[Tensor], Any]:
        along = [inputs[known + i] for i in moving]
        ends, starts = [record.outputs[i] for i in moving], [t for t in leaves if t.requires_grad]
        found = torch.autograd.grad(ends, starts, along, create_graph=True, materialize_grads=True)
        return list(found), None

    return _Record(pull_back, leaves, source=record, known=known)


class _Recorded(Function):
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
        if not ctx.record.moving:
            return None, *[None] * len(tensors)
        found = iter(_Recorded.apply(_back_along(ctx.record, len(tensors)), *tensors, *cotangents))
        return None, *(next(found) if t.is_floating_point() else None for t in tensors)

    @staticmethod
    def vmap(info: Any, dims: Any, record: _Record, *tensors: Tensor) -> Any:
        """One call after the other: solvers look at values, and tensors may differ in their batch dimensions."""
        if not info.batch_size:
            raise UnsupportedError("torch.func.vmap over no slices of a structured call is not offered")
        dims, results = dims[1:], []
        sources = [*record.generators, *_default_generators(tensors)]
        states = [source.get_state() for source in sources]
        for k in range(info.batch_size):
            if info.randomness == "same":
                for source, state in zip(sources, states, strict=True):
                    source.set_state(state)
            record.slices.append(record.again(k, dims))
            parts = [t if dim is None else t.select(dim, k) for t, dim in zip(tensors, dims, strict=True)]
            results.append(_Recorded.apply(record.slices[k], *parts))
        after = [source.get_state() for source in sources]
        if info.randomness == "error" and not all(map(torch.equal, states, after)):
            raise UnsupportedError("a call that draws noise, within vmap, needs randomness='different', or 'same'")
        record.rest = record.slices[-1].rest
        _check_plain(record.rest)
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise UnsupportedError(
            "forward-mode derivatives (torch.func.jvp, jacfwd) of a structured call are not offered; take reverse "
            "mode: torch.func.grad, vjp or jacrev"
        )


def _default_generators(tensors: Sequence[Tensor]) -> list[torch.Generator]:
    """torch's own, of the CPU and of the devices that the tensors are on."""
    devices = {t.device.index for t in tensors if t.is_cuda}
    return [torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)]


def _check_plain(rest: Any) -> None:
    """UnsupportedError unless what a call returned beside tensors may be the same for all slices."""
    found = [] if rest is None else rest[0]
    if not all(each is None or isinstance(each, Tensor | int | float | str) for each in found):
        raise UnsupportedError(
            "torch.func.vmap over a call that returns more than tensors, as structinf.infer does, is not offered; take "
            "structinf.relax, or give the tensors their batch dimensions, which every call takes in front"
        )
