"""Rows of LANES numbers in memory, read and written as vectors (:mod:`.vector`). Importing this module imports numba.

Inner functions of kernels take the address of an array instead of the array: numba counts references to an array at
each call, and the counting would take longer than the arithmetic of such a function. An address does not keep its array
alive, so the caller of the function must hold a reference to the array.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, overload, register_model

from ..jit import jit
from .vector import LANES, Lanes, largest, maximum

__all__ = ["address", "cast", "is_zero", "row", "rows", "store_row", "zero"]

intrinsic: Any = _intrinsic  # the decorator removes the first parameter, and type checkers do not know it


class Address(types.Type):
    """The numba type of the address of an array of ``dtype``. Indexing reads and writes without bounds checks."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"Address({dtype})")


@register_model(Address)
class _Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Address) -> None:
        super().__init__(dmm, fe_type, dmm[fe_type.dtype].get_data_type().as_pointer())


@jit
def rows(count, dtype):
    """Return an uninitialised array (count, LANES), aligned so that its rows do not straddle cache lines."""
    flat = np.empty((count + 1) * LANES, dtype)
    start = (-flat.ctypes.data % (LANES * flat.itemsize)) // flat.itemsize
    return flat[start : start + count * LANES].reshape(count, LANES)


@intrinsic
def address(typingctx, array):
    """Return the address of a contiguous array of any dimension."""

    def codegen(context, builder, sig, args):
        return context.make_array(array)(context, builder, args[0]).data

    return Address(array.dtype)(array), codegen


# ----------------------------------------------------------------------------- numbers


@intrinsic
def _get(typingctx, numbers, index):
    def codegen(context, builder, sig, args):
        return builder.load(builder.gep(args[0], [args[1]]))

    return numbers.dtype(numbers, types.intp), codegen


@intrinsic
def _set(typingctx, numbers, index, value):
    def codegen(context, builder, sig, args):
        builder.store(args[2], builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(numbers, types.intp, numbers.dtype), codegen


@overload(operator.getitem)
def _overload_getitem(numbers, index):
    return (lambda numbers, index: _get(numbers, index)) if isinstance(numbers, Address) else None


@overload(operator.setitem)
def _overload_setitem(numbers, index, value):
    return (lambda numbers, index, value: _set(numbers, index, value)) if isinstance(numbers, Address) else None


# ----------------------------------------------------------------------------- vectors


def _place(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Any, int]:
    """Return a pointer to row ``args[1]``, and its guaranteed alignment in bytes."""
    number = args[0].type.pointee
    data = builder.gep(args[0], [builder.mul(args[1], args[1].type(LANES))])
    return builder.bitcast(data, ir.VectorType(number, LANES).as_pointer()), context.get_abi_sizeof(number)


@intrinsic
def row(typingctx, numbers, i):
    """Return row i, without a bounds check."""

    def codegen(context, builder, sig, args):
        place, alignment = _place(context, builder, sig, args)
        return builder.load(place, align=alignment)

    return Lanes(numbers.dtype)(numbers, types.intp), codegen


@intrinsic
def store_row(typingctx, numbers, i, lanes):
    """Write ``lanes`` to row i, without a bounds check."""

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
