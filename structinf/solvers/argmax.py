"""The only calls of an oracle's argmax by relaxations and solvers, with checks that the oracle keeps its protocol.

Each call checks the form of the result, its memory and its values, and that θ is unchanged. The first call of each
class of oracles also compares θ with a copy, to find writes that torch does not record. Later calls of the library's
own classes, which the tests check, have no checks: these would take a third of the time of a small call.
:func:`structinf.testing.check_oracle` runs all further checks.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..compile.torch_private import set_grad_enabled
from ..deferred_checks import check_number, skips_checks
from ..errors import InfeasibleError, PluginError, renumber_instances
from ..oracle import Oracle
from ..parts import Parts, as_tuple, batch_size, map_parts
from ..shapes import Float
from ..validation import check_feasible
from ..validation.scores import have_one_form
from .sampled_structures import DenseStructures, ListedStructures, SampledStructures

__all__ = [
    "best_samples",
    "best_score",
    "best_structure",
    "best_structure_of_any_score",
    "best_structures",
    "check_finite_structures",
    "checked_argmax",
]

T = TypeVar("T")


def best_structure(oracle: Oracle, theta: Parts) -> Parts:
    """Return argmax ⟨θ, y⟩, (B, *event), without a gradient.

    Raises
    ------
    PluginError
        If the oracle violates the protocol of :meth:`Oracle.argmax`.
    InfeasibleError
        If a structure uses a part of score −inf.
    """
    y = _call(oracle, theta)
    if _is_own(oracle):  # it checks the scores of its structures
        return y
    if not as_tuple(y)[0].is_cpu:
        _check_on_device(oracle, theta, y)
        return y
    score = sum([_total_score(t, z) for t, z in zip(as_tuple(theta), as_tuple(y), strict=True)])
    if not math.isfinite(score):  # also if sums of large finite scores overflow
        _check_values(oracle, theta, y)
    return y


def checked_argmax(oracle: Oracle, theta: Parts) -> Parts:
    """Return :func:`best_structure` for solvers that check the scores of structures themselves."""
    y = _call(oracle, theta)
    if _is_own(oracle):
        return y
    for z in as_tuple(y):
        if not skips_checks(z):
            check_number(z.sum(), math.isfinite, functools.partial(check_finite_structures, oracle, y))
    return y


def best_structure_of_any_score(oracle: Oracle, theta: Parts) -> Parts:
    """Return :func:`best_structure` for solvers that find structures with NaN or infinity themselves."""
    return _call(oracle, theta)


def best_structures(oracle: Oracle, *scores: Parts) -> list[Parts]:
    """Return :func:`best_structure` for each of the ``scores``, (B, *event) of one form, found in one call.

    A call for small structures takes longer for its checks than for its algorithm, and solvers of single instances
    share their threads. An oracle that is not exact may remember its calls, so it gets a call for each of the scores.
    """
    size, n = batch_size(scores[0]), len(scores)
    is_shared = n > 1 and any(t.shape[0] != size for each in scores for t in as_tuple(each))
    if n == 1 or is_shared or not oracle.is_exact:
        return [best_structure(oracle, each) for each in scores]
    together = map_parts(lambda *each: torch.cat(each), *scores)
    try:
        with renumber_instances(_InstanceCopies(size, n)):
            y = best_structure(oracle.repeat(n), together)
    except InfeasibleError:
        for each in scores:  # names each instance of the batch once
            best_structure(oracle, each)
        raise
    return [map_parts(lambda t, i=i: t[i * size : (i + 1) * size], y) for i in range(n)]


def best_samples(oracle: Oracle, theta: Parts, noiseless_theta: Parts, samples: int) -> SampledStructures:
    """Return :func:`best_structure` for noisy copies of scores, (samples, B, *event), and their mean over the copies.

    Parameters
    ----------
    oracle : Oracle
        The oracle of all copies.
    theta : (samples B, *event) Parts
        The noisy scores. Noise changes no score of −inf.
    noiseless_theta : (B | 1, *event) Parts
        The scores without noise.
    samples : int
        The number of copies of each instance.
    """
    size = len(as_tuple(theta)[0]) // samples
    try:
        with renumber_instances(_InstanceCopies(size, samples)):
            lists = _without_grad(oracle.argmax_indices, theta) if _is_own(oracle) else None
            if lists is not None:
                return ListedStructures(lists.view(samples, size, lists.shape[1]), noiseless_theta)
            y = _call(oracle, theta)
    except InfeasibleError:
        # Without noise, the error names each instance of the batch once.
        _call(oracle[:size], noiseless_theta)
        raise
    structures = map_parts(lambda z: z.view(samples, len(z) // samples, *z.shape[1:]), y)
    means = map_parts(lambda z: z.mean(0), structures)
    # A mean is finite only if all structures are: one pass over memory serves both.
    if not all(math.isfinite(m.sum().item()) for m in as_tuple(means)):
        check_finite_structures(oracle, y)
    if any(t.numel() and t.detach().amin().item() == -math.inf for t in as_tuple(noiseless_theta)):
        _check_feasible(oracle, noiseless_theta, means)  # a mean is above 0 where some structure has the part
    return DenseStructures(structures, means)


def best_score(oracle: Oracle, theta: Parts, y: Parts) -> Float[Tensor, " batch"]:
    """Return ⟨θ, y⟩, (B,), for the structures ``y`` of :func:`best_structure`."""
    return oracle.score(theta, y)


class _InstanceCopies:
    """The batch index of each instance of a batch of ``size`` that is tiled ``n`` times.

    ``renumber_instances`` reads the indices only for a message, so that a call without one makes no list.
    """

    def __init__(self, size: int, n: int) -> None:
        self.size, self.n = size, n

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(itertools.repeat(range(self.size), self.n))


# ----------------------------------------------------------------------------- the call

_called: weakref.WeakSet[type] = weakref.WeakSet()


def _call(oracle: Oracle, theta: Parts) -> Parts:
    """Return the argmax after all checks that do not read the values of the result."""
    is_tuple, was_called = isinstance(theta, tuple), type(oracle) in _called
    if was_called and _is_own(oracle):
        return _without_grad(oracle.argmax, map_parts(Tensor.detach, theta))
    tensors = tuple([t.detach() for t in as_tuple(theta)])
    versions = [t._version for t in tensors]
    copies = None if was_called or not tensors[0].is_cpu else [t.clone() for t in tensors]
    y = _without_grad(oracle.argmax, tensors if is_tuple else tensors[0])
    structures = y if isinstance(y, tuple) else (y,)
    wrong = _wrong_form(y, theta, structures, tensors) or _wrong_memory(structures, tensors)
    if wrong is None and versions != [t._version for t in tensors]:
        wrong = _WRITES
    if copies is not None:
        if wrong is None and not all(torch.equal(*pair) for pair in zip(tensors, copies, strict=True)):
            wrong = _WRITES
        _called.add(type(oracle))
    if wrong is not None:
        raise _protocol_error(oracle, wrong)
    return y


def _without_grad(method: Callable[[Parts], T], theta: Parts) -> T:
    is_grad_enabled = torch.is_grad_enabled()
    set_grad_enabled(False)
    try:
        return method(theta)
    finally:
        set_grad_enabled(is_grad_enabled)


def _is_own(oracle: Oracle) -> bool:
    """Return whether the class of the oracle is one of the library's, so that the tests check its argmax."""
    return _is_own_class(type(oracle))


@functools.lru_cache(maxsize=256)
def _is_own_class(kind: type[Oracle]) -> bool:
    return kind.__module__.startswith("structinf_oracles.")


_WRITES = "it changed theta in place"


def _protocol_error(oracle: Oracle, wrong: str) -> PluginError:
    return PluginError(
        f"argmax of {oracle.label()} violates its protocol: {wrong}; run structinf.testing.check_oracle to test the "
        "oracle"
    )


def _describe(parts: Any) -> str:
    if isinstance(parts, tuple):
        return f"a tuple ({', '.join(type(each).__name__ for each in parts)})"
    return f"a {type(parts).__name__}"


def _wrong_form(y: Any, theta: Parts, structures: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> str | None:
    """Return how the form of ``y`` violates the protocol, as a clause, or None."""
    if isinstance(y, tuple) != isinstance(theta, tuple) or len(structures) != len(tensors):
        return f"it returned {_describe(y)}, but must return the form of theta, {_describe(theta)}"
    size = batch_size(tensors)
    if len(tensors) == 1 and have_one_form(structures[0], tensors[0]):
        return None
    for z, t in zip(structures, tensors, strict=True):
        if not isinstance(z, Tensor):
            return f"it returned {_describe(y)}, but must return the form of theta, {_describe(theta)}"
        shape = t.shape if t.shape[0] == size else torch.Size((size, *t.shape[1:]))
        if z.layout is not torch.strided:
            return f"the layout of its result is {z.layout}, but must be torch.strided; call .to_dense()"
        if z.shape != shape:
            return f"the shape of its result is {tuple(z.shape)}, but must be {tuple(shape)}, the shape of theta"
        if z.dtype is not t.dtype:
            return f"the dtype of its result is {z.dtype}, but must be {t.dtype}, the dtype of theta"
        if z.device != t.device:
            return f"the device of its result is {z.device}, but must be {t.device}, the device of theta"
    return None


# ----------------------------------------------------------------------------- the memory of results

_memory: dict[int, weakref.ref[Any]] = {}
"""The storages of earlier results, by their addresses. A storage ends when no tensor uses its memory."""

_most_results = 1024


def _wrong_memory(y: tuple[Tensor, ...], theta: tuple[Tensor, ...]) -> str | None:
    """Return a clause if memory of the result ``y`` is also memory of θ, or of an earlier result that still exists."""
    storages = {(storage := z.untyped_storage()).data_ptr(): storage for z in y}
    storages.pop(0, None)  # empty tensors
    for t in theta:
        if t.untyped_storage().data_ptr() in storages:
            return "it returned memory of theta, but its result must be new memory; return a copy"
    for address, storage in storages.items():
        earlier = _memory[address]() if address in _memory else None
        # A storage has moved if share_memory_() was called, as torch.multiprocessing does.
        if earlier is not None and earlier.data_ptr() == address:
            return "it wrote its result over an earlier result, but each result must be new memory; return a copy"
        _memory[address] = weakref.ref(storage)
    if len(_memory) > _most_results:
        _forget_ended_results()
    return None


def _forget_ended_results() -> None:
    """Remove the entries of storages that have ended; keep the time of each call constant on average."""
    global _most_results
    for address, storage in list(_memory.items()):
        if storage() is None:
            _memory.pop(address, None)
    _most_results = max(1024, 2 * len(_memory))


# ----------------------------------------------------------------------------- the values of results


def _total_score(t: Tensor, z: Tensor) -> float:
    """Return Σ ⟨θ, y⟩ over the batch for one tensor. It is finite only if y is finite and uses no part of score −inf.

    The reverse does not hold: −inf · 0 is NaN, and large scores overflow.
    """
    t = t.detach() if t.requires_grad else t
    if t.shape == z.shape:
        return float(np.vdot(t.numpy(), z.numpy()))  # takes half the time of torch for small tensors
    return (z.unsqueeze(-1).flatten(1) @ t.reshape(-1)).sum().item()  # θ is shared by the batch


def _check_on_device(oracle: Oracle, theta: Parts, y: Parts) -> None:
    """Check the structures ``y`` on a device without waiting for them in a public call."""
    for t, z in zip(as_tuple(theta), as_tuple(y), strict=True):
        if not skips_checks(z):
            # A sum is finite only if z is finite and uses no part of score −inf.
            score = (t.detach().masked_fill(z == 0, 0) * z).sum()
            check_number(score, math.isfinite, functools.partial(_check_values, oracle, theta, y))


def _check_values(oracle: Oracle, theta: Parts, y: Parts) -> None:
    check_finite_structures(oracle, y)
    _check_feasible(oracle, theta, y)


def check_finite_structures(oracle: Oracle, y: Parts) -> None:
    """Raise PluginError if a structure of ``y`` has NaN or infinity."""
    for z in as_tuple(y):
        wrong = ~z.isfinite().flatten(1).all(1) if z.ndim > 1 else ~z.isfinite()
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0, 0])
            raise _protocol_error(oracle, f"it returned NaN or infinity for batch index {index}")


def _check_feasible(oracle: Oracle, theta: Parts, y: Parts) -> None:
    """Raise InfeasibleError if a structure uses a part of score −inf."""
    pairs = zip(as_tuple(theta), as_tuple(y), strict=True)
    wrong = [((t.detach().isneginf() & (z != 0)).unsqueeze(-1).flatten(1)).any(1) for t, z in pairs]
    check_feasible(~torch.stack(wrong).any(0), f"structure of {oracle.label()}")
