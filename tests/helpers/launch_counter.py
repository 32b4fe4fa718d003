"""Counts of the work that a call gives to a GPU, on a machine without a GPU.

Inside :class:`LaunchCounter`, the tensors of :func:`on_device` report the device ``cuda:0``, and so do all tensors
computed from them. Their memory is memory of the CPU, so that every operation of torch runs. Each operation counts as
the kernels that torch launches on a GPU for it. In a process with ``TRITON_INTERPRET=1`` and ``STRUCTINF_GPU=triton``,
Triton kernels run too, in the interpreter of triton.

The counts are estimates: a few operations of torch launch other numbers of kernels for other sizes.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from structinf.kernels.gpu import backend, interprets_kernels

__all__ = ["LaunchCounter", "on_device"]


class _Device(str):
    """The reported device. As an argument of torch it is ``cpu:0``, which torch distinguishes from ``cpu``."""

    __slots__ = ()
    type, index = "cuda", 0

    def __repr__(self) -> str:
        return "device(type='cuda', index=0)"


_DEVICE = _Device("cpu:0")


def on_device(t: Any, *, requires_grad: bool = False) -> Any:
    """Return a copy of a tensor, or of a tuple of tensors, that reports a CUDA device inside a :class:`LaunchCounter`.

    Parameters
    ----------
    t : Tensor, or tuple of Tensor
        Tensors on the CPU.
    requires_grad : bool
        Whether the copies are leaves that require a gradient.
    """
    if isinstance(t, tuple):
        return tuple(on_device(each, requires_grad=requires_grad) for each in t)
    copy = t.detach().clone()
    _mark(copy)
    return copy.requires_grad_(requires_grad)


def _mark(t: Tensor) -> None:
    # All tensors that share memory share the storage object, with its attributes.
    setattr(t.untyped_storage(), "is_on_device", True)  # noqa: B010


def _is_marked(t: Tensor) -> bool:
    return getattr(t.untyped_storage(), "is_on_device", False)


class LaunchCounter(TorchDispatchMode):
    """A context that counts launches, synchronisations and copies of tensors of :func:`on_device`.

    Attributes
    ----------
    launches : int
        The number of launched kernels, of torch and of Triton.
    triton_launches : int
        The number of launched Triton kernels.
    synchronisations : int
        How often the process waits for the device: values that it reads, results whose size depends on values, and
        copies that are not asynchronous.
    copies : int
        The number of copies between the CPU and the device, asynchronous copies included.
    places : Counter of str
        The numbers by kind and line of the library, for messages of failed tests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.triton_launches = self.synchronisations = self.copies = 0
        self.places: collections.Counter[str] = collections.Counter()
        self._is_paused = False
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> LaunchCounter:
        for owner, name, replacement in self._replacements():
            self._patches.enter_context(_replaced(owner, name, replacement))
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._patches.close()

    def report(self) -> str:
        """Return the counts, with the number of each kind at each line of the library."""
        lines = [
            f"{self.launches} launches ({self.triton_launches} of Triton kernels), {self.synchronisations} "
            f"synchronisations, {self.copies} copies"
        ]
        return "\n".join([*lines, *(f"{count:6} {place}" for place, count in self.places.most_common())])

    # -- operations of torch ---------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.removeprefix("aten::")
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        out = func(*args, **kwargs)
        device = kwargs.get("device")
        is_new = not tensors and device is not None and device.index == 0
        # torch.where makes a tensor of a number on the device of the other tensors, which the next operation shows.
        if name == "scalar_tensor" and not is_new:
            setattr(out.untyped_storage(), "is_number", True)  # noqa: B010
            return out
        # The backward pass makes zeros on the device of the other tensors.
        is_new = is_new or (not tensors and _is_called_by_autograd())
        if self._is_paused or not (is_new or any(map(_is_marked, tensors))):
            return out
        for t in tensors:
            if getattr(t.untyped_storage(), "is_number", False) and not _is_marked(t):
                _mark(t)
                self._launch(1, "scalar_tensor")
        results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        for t in results:
            _mark(t)
        if name in _SYNCHRONISING:
            self._synchronise(name)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            self._count_indices(args[1])
        if name not in _FREE and (name in _REDUCTIONS or any(t.numel() for t in (*tensors, *results))):
            # torch joins tensors of different dtypes by a copy of each.
            is_mixed = name in ("cat", "stack") and len({t.dtype for t in tensors}) > 1
            self._launch(len(tensors) if is_mixed else _LAUNCHES.get(name.rstrip("_"), 1), name)
        return out

    def _count_indices(self, indices: Any) -> None:
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                self._synchronise("boolean index")
                self._launch(_LAUNCHES["nonzero"], "nonzero")
            elif index is not None and index.ndim and not _is_marked(index):
                self._copy("index from the CPU", waits=True)

    # -- methods that move or read values ----------------------------------------------------------

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        base: Any = torch._C.TensorBase
        yield Tensor, "device", property(lambda t: _DEVICE if self._is_on_device(t) else base.device.__get__(t))
        yield Tensor, "is_cuda", property(lambda t: self._is_on_device(t) or base.is_cuda.__get__(t))
        yield Tensor, "is_cpu", property(lambda t: not self._is_on_device(t) and base.is_cpu.__get__(t))
        yield Tensor, "to", self._method("to", self._to)
        yield Tensor, "cpu", self._method("cpu", lambda t: self._to(t, torch.device("cpu")))
        yield Tensor, "numpy", self._method("numpy", self._numpy)
        yield Tensor, "tolist", self._method("tolist", self._tolist)
        yield Tensor, "pin_memory", self._method("pin_memory", lambda t: t)
        for name in ("tensor", "as_tensor"):
            yield torch, name, self._constructor(getattr(torch, name))
        yield Tensor, "new_tensor", self._method("new_tensor", self._new_tensor)
        yield backend, "_supports", lambda index: interprets_kernels()
        yield torch.cuda, "current_device", lambda: 0
        if interprets_kernels():
            from triton.runtime.interpreter import InterpretedFunction

            yield InterpretedFunction, "run", self._kernel(InterpretedFunction.run)

    def _is_on_device(self, t: Tensor) -> bool:
        return not self._is_paused and type(t) in (Tensor, torch.nn.Parameter) and _is_marked(t)

    def _method(self, name: str, replacement: Any) -> Any:
        """Return a method that calls ``replacement`` outside of Triton kernels."""
        own = getattr(torch._C.TensorBase, name)

        def method(t: Tensor, *args: Any, **kwargs: Any) -> Any:
            return own(t, *args, **kwargs) if self._is_paused else replacement(t, *args, **kwargs)

        return method

    def _to(self, t: Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Tensor:
        target = next((a for a in (*args, *kwargs.values()) if isinstance(a, str | torch.device | Tensor)), None)
        if isinstance(target, _Device) and _is_marked(t):
            # torch would copy from "cpu" to "cpu:0".
            args = tuple(a for a in args if a is not target)
            kwargs = {name: a for name, a in kwargs.items() if a is not target}
            return torch._C.TensorBase.to(t, *args, **kwargs) if args or kwargs else t
        moved: Any = torch._C.TensorBase.to(t, *args, **kwargs)
        if target is None:
            return moved
        to_device = _is_marked(target) if isinstance(target, Tensor) else isinstance(target, _Device)
        if to_device == _is_marked(t):
            return moved
        self._copy("to the device" if to_device else "to the CPU", waits=not (to_device and non_blocking))
        with self._paused():
            moved = moved.clone() if t.requires_grad else moved.detach().clone()
        if to_device:
            _mark(moved)
        elif _is_marked(moved):
            delattr(moved.untyped_storage(), "is_on_device")
        return moved

    @staticmethod
    def _numpy(t: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _is_marked(t):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
        return torch._C.TensorBase.numpy(t, *args, **kwargs)

    def _tolist(self, t: Tensor) -> Any:
        if _is_marked(t):
            self._synchronise("tolist")
        return torch._C.TensorBase.tolist(t)

    def _constructor(self, own: Any) -> Any:
        def construct(data: Any, *args: Any, **kwargs: Any) -> Tensor:
            t = own(data, *args, **kwargs)
            if isinstance(kwargs.get("device"), _Device) and not (isinstance(data, Tensor) and _is_marked(data)):
                self._copy("to the device", waits=True)
                _mark(t)
            return t

        return construct

    def _new_tensor(self, t: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        new = torch._C.TensorBase.new_tensor(t, *args, **kwargs)
        if _is_marked(t) and "device" not in kwargs:
            self._copy("to the device", waits=True)
            _mark(new)
        return new

    # -- Triton kernels ----------------------------------------------------------------------------

    def _kernel(self, own: Any) -> Any:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            self.triton_launches += 1
            self._launch(1, f"Triton kernel {kernel.__name__}")
            with self._paused():
                return own(kernel, *args, **kwargs)

        return run

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was_paused

    # -- counts --------------------------------------------------------------------------------------

    def _launch(self, count: int, what: str) -> None:
        self.launches += count
        self.places[f"{what} at {_place()}"] += count

    def _synchronise(self, what: str) -> None:
        self.synchronisations += 1
        self.places[f"synchronisation by {what} at {_place()}"] += 1

    def _copy(self, what: str, *, waits: bool) -> None:
        self.copies += 1
        self.places[f"copy {what} at {_place()}"] += 1
        if waits:
            self._synchronise("copy")


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replace an attribute of a module or of a class; for an inherited attribute, remove the replacement at the end."""
    if name in vars(owner):
        with patch.object(owner, name, replacement):
            yield
        return
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        delattr(owner, name)


def _is_called_by_autograd() -> bool:
    """Return whether the engine of autograd calls the running operation; torch may wrap the method of the mode."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_DYNAMO, torch._compile.__file__)):
        frame = frame.f_back
    return frame.f_code.co_filename == torch.autograd.graph.__file__


_DYNAMO = str(Path(torch.__file__).parent / "_dynamo")
_ROOT = Path(__file__).parents[2]


def _place() -> str:
    """Return the innermost line of the library that called an operation."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in ("structinf", "structinf_oracles"):
            path = Path(frame.f_code.co_filename)
            path = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path
            return f"{path}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return "the test"


_FREE = frozenset(
    {
        *("alias", "as_strided", "chunk", "detach", "detach_", "diagonal", "expand", "lift_fresh", "movedim", "narrow"),
        *("permute", "resize_", "select", "set_", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose"),
        *("unbind", "unfold", "unsqueeze", "view", "view_as_real", "_conj", "_reshape_alias", "_unsafe_view"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"),
        *("is_same_size", "sym_size", "equal", "_linalg_check_errors"),
    }
)
"""Operations that launch no kernel: views, allocations and reads."""

_SYNCHRONISING = frozenset(
    {
        *("_local_scalar_dense", "nonzero", "masked_select", "equal", "repeat_interleave", "_linalg_check_errors"),
        *("_unique2", "unique_dim", "unique_consecutive", "bincount"),
    }
)
"""Operations that wait for the device, since they read values."""

_REDUCTIONS = frozenset({"all", "any", "mean", "prod", "sum"})
"""Operations that launch a kernel for empty tensors too, to write their result."""

_LAUNCHES = {
    "_unique2": 8,
    "argsort": 6,
    "bincount": 4,
    "isinf": 2,
    "logsumexp": 4,
    "masked_select": 4,
    "nonzero": 4,
    "repeat_interleave": 4,
    "sort": 6,
    "topk": 3,
    "unique_consecutive": 6,
    "unique_dim": 8,
}
"""The numbers of kernels that torch launches for an operation, if it launches several; in-place forms count equally."""
