"""Public calls within torch.func's transforms: solved on plain tensors, with autograd's own record for the gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import Function
from torch.utils import _pytree as pytree

from ..errors import UnsupportedError

__all__ = ["check_not_hidden", "recorded", "refuse_function"]

P = ParamSpec("P")
T = TypeVar("T")


def recorded(function: Callable[P, T], check: Callable[..., None] | None = None) -> Callable[P, T]:
    """``function`` of tensors and other things, also in tuples, to such, that torch.func can differentiate too.

    A transform hides values from solvers. Within one, the call is a Function whose forward sees them: it records there
    what autograd would outside, and goes back along that, to any order that is offered. Elsewhere it costs one flag.
    UnsupportedError for vmap and jvp. Derivatives are those in the tensors that it is given; ``check``, of
    the same arguments, raises where others matter.
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

        record = _Record(of_tensors)
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
    """A call on plain tensors, and autograd's record of it from ``leaves`` to ``outputs``; the ``rest`` it returned."""

    function: Callable[..., tuple[list[Tensor], Any]]
    leaves: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    rest: Any = None

    def run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The function's outputs; the first ``tensors`` are leaves already if an earlier record goes on from them."""
        with torch.enable_grad():
            own = tensors[len(self.leaves) :]
            self.leaves = [*self.leaves, *(t.detach().requires_grad_(t.is_floating_point()) for t in own)]
            self.outputs, self.rest = self.function(*self.leaves)
        return tuple(t.detach() for t in self.outputs)


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
        leaves, outputs = ctx.record.leaves, ctx.record.outputs
        wanted = [i for i, t in enumerate(leaves) if t.requires_grad]
        moving = [i for i, t in enumerate(outputs) if t.requires_grad]
        gradients: dict[int, Tensor] = {}
        if moving:
            # In the cotangents too, so that what was found has derivatives in them and in the leaves.
            def pull_back(*inputs: Tensor) -> tuple[list[Tensor], Any]:
                along = [inputs[len(leaves) + i] for i in moving]
                ends, starts = [outputs[i] for i in moving], [leaves[i] for i in wanted]
                found = torch.autograd.grad(ends, starts, along, create_graph=True, materialize_grads=True)
                return list(found), None

            found = _Recorded.apply(_Record(pull_back, leaves), *ctx.saved_tensors, *cotangents)
            gradients = dict(zip(wanted, found, strict=True))
        return None, *(gradients.get(i) for i in range(len(leaves)))

    @staticmethod
    def vmap(info: Any, dims: Any, *_: Any) -> NoReturn:
        raise UnsupportedError(
            "torch.func.vmap over a structured call is not offered, as solvers look at values; give the tensors their "
            "batch dimensions, which every call takes in front; for Jacobians, torch.func.jacrev(..., chunk_size=1) or "
            "torch.autograd.functional.jacobian"
        )

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise UnsupportedError(
            "forward-mode derivatives (torch.func.jvp, jacfwd) of a structured call are not offered; take reverse "
            "mode: torch.func.grad, vjp or jacrev(..., chunk_size=1)"
        )
