"""Steps: functions of tensors as the operator ``structinf::step``, so that torch.compile's graphs are whole.

The operator takes tensors and the key of a step, which runs as it is. The pull-back of a step is a step too: it runs
that one once more and differentiates it, so that derivatives are had in all orders that it has. A number comes with
its gradient instead, which is had for little more while it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .saved_tensors import bypass_saved_tensor_hooks

__all__ = ["Step", "key_of", "number_step", "step"]


class Step(Protocol):
    """A function of tensors whose results are of known shapes, and the same each time."""

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, which autograd follows to the tensors."""
        ...

    def like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Tensors of the results' shapes and dtypes."""
        ...


@dataclass(frozen=True)
class _PullBack:
    """From tensors and the cotangents of ``step``'s results, the products with the Jacobian in the ``wanted`` ones."""

    step: Step
    count: int
    wanted: tuple[int, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return _differentiated(self.step, tensors[: self.count], self.wanted, tensors[self.count :])[1]

    def like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors[i] for i in self.wanted)


@dataclass(frozen=True)
class _WithGradient:
    """From tensors, the number that ``step`` makes of them, and its gradients in the ``wanted`` ones."""

    step: Step
    wanted: tuple[int, ...]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (number,), gradients = _differentiated(self.step, tensors, self.wanted)
        return number, *gradients

    def like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return *self.step.like(tensors), *(tensors[i] for i in self.wanted)


def _differentiated(
    step: Step, tensors: Sequence[Tensor], wanted: Sequence[int], cotangents: Sequence[Tensor] | None = None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Results of ``step``, and their cotangents (ones, if not given) times the Jacobian in the ``wanted`` tensors."""
    create_graph = torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *(cotangents or ())))
    with torch.enable_grad():
        # Aliases, so that gradients stop here unless a graph of higher order is being built.
        inputs = [t.view_as(t) if create_graph else t.detach() for t in tensors]
        sources = [inputs[i].requires_grad_() for i in wanted]
        results = step.run(inputs)
        pairs = zip(results, map(torch.ones_like, results) if cotangents is None else cotangents, strict=True)
        moving = [pair for pair in pairs if pair[0].requires_grad]
        if not moving:
            return results, tuple(torch.zeros_like(t) for t in sources)
        ends, given = zip(*moving, strict=True)
        return results, torch.autograd.grad(ends, sources, given, create_graph=create_graph, materialize_grads=True)


# ----------------------------------------------------------------------------- keys


# Kept for good, as compiled programs are, and with them the objects whose identity these depend on.
_STEPS: dict[str, Step] = {}


def key_of(label: str, made: Step, is_same: Callable[[Any], bool]) -> str:
    """The key of a step as ``made``, whose text is the same in each process that makes the same steps."""
    key, n = label, 1
    while key in _STEPS and not is_same(_STEPS[key]):
        key, n = f"{label}#{n}", n + 1
    _STEPS.setdefault(key, made)
    return key


def _step_of(key: str) -> Step:
    """What ``key`` stands for.

    Those that differentiate say themselves what they are, "d[inputs]/their number key" and "v[inputs] key": a compiled
    backward pass may come from a cache of another process, and is then never traced in this one.
    """
    head, _, inner = key.partition(" ")
    if head.startswith("v["):
        return _WithGradient(_step_of(inner), _wanted(key))
    if head.startswith("d["):
        return _PullBack(_step_of(inner), int(head.partition("/")[2]), _wanted(key))
    return _STEPS[key]


def _wanted(key: str) -> tuple[int, ...]:
    return tuple(map(int, key[2 : key.index("]")].split(",")))


# ----------------------------------------------------------------------------- the operator


def number_step(key: str, tensors: Sequence[Tensor]) -> Tensor:
    """The number that the step of ``key`` makes, with its gradient where that may be wanted."""
    wanted = [i for i, t in enumerate(tensors) if t.requires_grad] if torch.is_grad_enabled() else []
    # Where the number may be scaled lest gradients vanish, they are rounded after that.
    if not wanted or any(tensors[i].dtype == torch.float16 for i in wanted):
        return step(key, tensors)[0]
    return step(f"v[{','.join(map(str, wanted))}] {key}", tensors)[0]


@torch.library.custom_op("structinf::step", mutates_args=(), schema="(str key, Tensor[] tensors) -> Tensor[]")
def step(key: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results of the step that ``key`` stands for."""
    # The dispatcher has turned autograd off below this; without inference mode, it is there for whom it is enabled.
    with torch.inference_mode(False), torch.no_grad(), bypass_saved_tensor_hooks():
        found = _step_of(key).run([t.clone() if t.is_inference() else t for t in tensors])
    taken = {t.untyped_storage().data_ptr() for t in tensors}
    results = []
    for t in found:
        t = t.detach().contiguous()
        # An operator's results share memory neither with its arguments nor with one another.
        results.append(t.clone() if t.untyped_storage().data_ptr() in taken else t)
        taken.add(results[-1].untyped_storage().data_ptr())
    return results


@step.register_fake
def _(key: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in _step_of(key).like(tensors)]


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.key, tensors = inputs
    ctx.set_materialize_grads(False)
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *(output[1:] if ctx.key.startswith("v[") else ()))
    ctx.results = [(t.shape, t.dtype, t.device) for t in output]


def _backward(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    saved = ctx.saved_tensors  # read once alone, or else checkpointing objects
    tensors, gradients = saved[: ctx.count], saved[ctx.count :]
    wanted = tuple(i for i, needs in enumerate(ctx.needs_input_grad[1]) if needs)
    cotangent, *others = cotangents
    if gradients and wanted == _wanted(ctx.key) and cotangent is not None and not any(c is not None for c in others):
        found = [cotangent * gradient for gradient in gradients]
    else:
        key = f"d[{','.join(map(str, wanted))}]/{len(tensors)} {ctx.key}"
        given = [
            torch.zeros(shape, dtype=dtype, device=device) if c is None else c
            for c, (shape, dtype, device) in zip(cotangents, ctx.results, strict=True)
        ]
        found = step(key, [*tensors, *given])
    of_wanted = dict(zip(wanted, found, strict=True))
    return None, [of_wanted.get(i) for i in range(len(tensors))]


step.register_autograd(_backward, setup_context=_setup_context)
