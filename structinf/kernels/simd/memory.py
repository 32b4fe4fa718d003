"""Rows of LANES numbers in memory, read and written as vectors (:mod:`.vector`). Importing this module imports numba.

Inner functions of kernels take the address of an array instead of the array: numba counts references to an array at
each call, and the counting would take longer than the arithmetic of such a function. An address does not keep its array
alive, so the caller of the function must hold a reference to the array.

With the environment variable NUMBA_BOUNDSCHECK=1, an address also holds the size of its array, and each access is
checked.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _intrinsic
from numba.extending import lower_builtin, models, register_model

from ..fast_builtins import allocate
from ..jit import jit
from .vector import LANES, Lanes, largest, maximum

__all__ = ["address", "cast", "is_zero", "row", "rows", "store_row", "zero"]

_IS_CHECKED = bool(getattr(config, "BOUNDSCHECK", 0))
intrinsic: Any = _intrinsic  # the decorator removes the first parameter, and type checkers do not know it


class Address(types.Type):
    """The numba type of the address of an array of ``dtype``. Indexing reads and writes without bounds checks, unless
    NUMBA_BOUNDSCHECK=1 is set.
    """

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"Address({dtype})")


class _Pointer(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Address) -> None:
        super().__init__(dmm, fe_type, dmm[fe_type.dtype].get_data_type().as_pointer())


class _PointerAndSize(models.StructModel):
    def __init__(self, dmm: Any, fe_type: Address) -> None:
        super().__init__(dmm, fe_type, [("data", types.CPointer(fe_type.dtype)), ("size", types.intp)])


register_model(Address)(_PointerAndSize if _IS_CHECKED else _Pointer)


def _pointer(context: Any, builder: Any, sig: Any, args: Any, count: int = 1) -> Any:
    """Return the pointer of the address ``args[0]``, after a check of group ``args[1]`` of ``count`` numbers."""
    if not _IS_CHECKED:
        return args[0]
    held = cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0])
    groups = builder.sdiv(held.size, held.size.type(count))
    cgutils.do_boundscheck(context, builder, args[1], groups)
    return held.data


@intrinsic
def rows(typingctx, count, dtype):
    """Return an uninitialised array (count, LANES), aligned so that its rows do not straddle cache lines."""
    kind = types.Array(dtype.dtype, 2, "C")

    def codegen(context, builder, sig, args):
        lengths = [args[0], ir.Constant(args[0].type, LANES)]
        return allocate(context, builder, kind, lengths, alignment=LANES * kind.dtype.bitwidth // 8)

    return kind(types.intp, dtype), codegen


@intrinsic
def address(typingctx, array):
    """Return the address of a contiguous array of any dimension."""

    def codegen(context, builder, sig, args):
        whole = context.make_array(array)(context, builder, args[0])
        if not _IS_CHECKED:
            return whole.data
        held = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        held.data, held.size = whole.data, whole.nitems
        return held._getvalue()

    return Address(array.dtype)(array), codegen


# ----------------------------------------------------------------------------- numbers


# Indexing is typed and lowered directly: a function behind each access would be called, and then inlined by LLVM.


@infer_global(operator.getitem)  # pyright: ignore[reportOptionalCall]
class _Get(AbstractTemplate):
    def generic(self, args, kws):
        numbers, index = args
        is_number = isinstance(numbers, Address) and isinstance(index, types.Integer)
        return signature(numbers.dtype, numbers, types.intp) if is_number else None


@infer_global(operator.setitem)  # pyright: ignore[reportOptionalCall]
class _Set(AbstractTemplate):
    def generic(self, args, kws):
        numbers, index, _ = args
        is_number = isinstance(numbers, Address) and isinstance(index, types.Integer)
        return signature(types.none, numbers, types.intp, numbers.dtype) if is_number else None


@lower_builtin(operator.getitem, Address, types.Integer)
def _lower_get(context, builder, sig, args):
    return builder.load(builder.gep(_pointer(context, builder, sig, args), [args[1]]))


@lower_builtin(operator.setitem, Address, types.Integer, types.Any)
def _lower_set(context, builder, sig, args):
    builder.store(args[2], builder.gep(_pointer(context, builder, sig, args), [args[1]]))
    return context.get_dummy_value()


# ----------------------------------------------------------------------------- vectors


def _place(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Any, int]:
    """Return a pointer to row ``args[1]``, and its guaranteed alignment in bytes."""
    start = _pointer(context, builder, sig, args, LANES)
    number = start.type.pointee
    data = builder.gep(start, [builder.mul(args[1], args[1].type(LANES))])
    return builder.bitcast(data, ir.VectorType(number, LANES).as_pointer()), sig.args[0].dtype.bitwidth // 8


@intrinsic
def row(typingctx, numbers, i):
    """Return row i."""

    def codegen(context, builder, sig, args):
        place, alignment = _place(context, builder, sig, args)
        return builder.load(place, align=alignment)

    return Lanes(numbers.dtype)(numbers, types.intp), codegen


@intrinsic
def store_row(typingctx, numbers, i, lanes):
    """Write ``lanes`` to row i."""

    def codegen(context, builder, sig, args):
        place, alignment = _place(context, builder, sig, args)
        builder.store(args[2], place, align=alignment)
        return context.get_dummy_value()

    return types.void(numbers, types.intp, Lanes(numbers.dtype)), codegen


@intrinsic
def zero(typingctx, like):
    """Return a vector of zeros with the dtype of an address."""

    def codegen(context, builder, sig, args):
        return ir.Constant(context.get_value_type(sig.return_type), None)

    return Lanes(like.dtype)(like), codegen


@intrinsic
def cast(typingctx, lanes, like):
    """Return ``lanes`` converted to the dtype of an address, float32 or float64."""
    result = Lanes(like.dtype)

    def codegen(context, builder, sig, args):
        if lanes == result:
            return args[0]
        convert = builder.fptrunc if lanes.dtype.bitwidth > result.dtype.bitwidth else builder.fpext
        return convert(args[0], context.get_value_type(result))

    return result(lanes, like), codegen


@jit
def is_zero(lanes):
    """Return whether all lanes are 0."""
    return largest(maximum(lanes, 0.0 - lanes)) == 0
