"""Steps: functions of tensors as the operator ``structinf::step``, so that torch.compile's graphs are whole.

The operator takes tensors and the key of a step, which runs as it is. The pull-back of a step is a step too: it runs
that one once more and differentiates it, so that derivatives are had in all orders that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Step", "key_of", "step"]


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
        create_graph = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        with torch.enable_grad():
            # Aliases, so that gradients stop here unless a graph of higher order is being built.
            inputs = [t.view_as(t) if create_graph else t.detach() for t in tensors[: self.count]]
            sources = [inputs[i].requires_grad_() for i in self.wanted]
            pairs = zip(self.step.run(inputs), tensors[self.count :], strict=True)
            moving = [pair for pair in pairs if pair[0].requires_grad]
            if not moving:
                return tuple(torch.zeros_like(t) for t in sources)
            results, cotangents = zip(*moving, strict=True)
            return torch.autograd.grad(results, sources, cotangents, create_graph=create_graph, materialize_grads=True)

    def like(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors[i] for i in self.wanted)


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
    """What ``key`` stands for. That of a pull-back says itself what it is, "d[inputs]/their number key".

    A compiled backward pass may come from a cache of another process, and is then never traced in this one.
    """
    if not key.startswith("d["):
        return _STEPS[key]
    head, _, inner = key.partition(" ")
    wanted, _, count = head.removeprefix("d[").partition("]/")
    return _PullBack(_step_of(inner), int(count), tuple(map(int, wanted.split(","))))


# ----------------------------------------------------------------------------- the operator


@torch.library.custom_op("structinf::step", mutates_args=(), schema="(str key, Tensor[] tensors) -> Tensor[]")
def step(key: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results of the step that ``key`` stands for."""
    # The dispatcher has turned autograd off below this; without inference mode, it is there for whom it is enabled.
    with torch.inference_mode(False), torch.no_grad():
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
    ctx.save_for_backward(*tensors)
    ctx.results = [(t.shape, t.dtype, t.device) for t in output]


def _backward(ctx: Any, cotangents: Sequence[Tensor | None]) -> Any:
    tensors = ctx.saved_tensors
    wanted = tuple(i for i, needs in enumerate(ctx.needs_input_grad[1]) if needs)
    key = f"d[{','.join(map(str, wanted))}]/{len(tensors)} {ctx.key}"
    given = [
        torch.zeros(shape, dtype=dtype, device=device) if c is None else c
        for c, (shape, dtype, device) in zip(cotangents, ctx.results, strict=True)
    ]
    found = dict(zip(wanted, step(key, [*tensors, *given]), strict=True))
    return None, [found.get(i) for i in range(len(tensors))]


step.register_autograd(_backward, setup_context=_setup_context)
