"""Rows of LANES numbers in memory, each a vector (:mod:`.vector`). Importing this module imports numba.

Small functions take the address of an array, not the array: numba counts references to an array at every call, which
takes longer than the few operations that such functions are made of. An address keeps nothing alive: take it in a
function whose caller holds the array.
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

intrinsic: Any = _intrinsic  # a decorator that takes the first argument away, which type checkers cannot know


class Address(types.Type):
    """numba's type of the address of numbers of ``dtype``, which are read and written by their index, unchecked."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"Address({dtype})")


@register_model(Address)
class _Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Address) -> None:
        super().__init__(dmm, fe_type, dmm[fe_type.dtype].get_data_type().as_pointer())


@jit
def rows(count, dtype):
    """An array (count, LANES) of anything, whose rows do not straddle cache lines."""
    flat = np.empty((count + 1) * LANES, dtype)
    start = (-flat.ctypes.data % (LANES * flat.itemsize)) // flat.itemsize
    return flat[start : start + count * LANES].reshape(count, LANES)


@intrinsic
def address(typingctx, array):
    """The address of a contiguous array of any dimension."""

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
    """Where row ``args[1]`` lies, and the alignment that is certain."""
    number = args[0].type.pointee
    data = builder.gep(args[0], [builder.mul(args[1], args[1].type(LANES))])
    return builder.bitcast(data, ir.VectorType(number, LANES).as_pointer()), context.get_abi_sizeof(number)


@intrinsic
def row(typingctx, numbers, i):
    """Row i, which is not checked."""

    def codegen(context, builder, sig, args):
        place, alignment = _place(context, builder, sig, args)
        return builder.load(place, align=alignment)

    return Lanes(numbers.dtype)(numbers, types.intp), codegen


@intrinsic
def store_row(typingctx, numbers, i, lanes):
    """Write row i, which is not checked."""

    def codegen(context, builder, sig, args):
        place, alignment = _place(context, builder, sig, args)
        builder.store(args[2], place, align=alignment)
        return context.get_dummy_value()

    return types.void(numbers, types.intp, Lanes(numbers.dtype)), codegen


@intrinsic
def zero(typingctx, like):
    """Zeros of the dtype of an address."""

    def codegen(context, builder, sig, args):
        return ir.Constant(context.get_value_type(sig.return_type), None)

    return Lanes(like.dtype)(like), codegen


@intrinsic
def cast(typingctx, lanes, like):
    """The same numbers, of the dtype of an address, float32 or float64."""
    result = Lanes(like.dtype)

    def codegen(context, builder, sig, args):
        if lanes == result:
            return args[0]
        convert = builder.fptrunc if lanes.dtype.bitwidth > result.dtype.bitwidth else builder.fpext
        return convert(args[0], context.get_value_type(result))

    return result(lanes, like), codegen


@jit
def is_zero(lanes):
    """Whether all lanes are 0."""
    return largest(maximum(lanes, 0.0 - lanes)) == 0
