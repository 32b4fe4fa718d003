"""np.empty, np.zeros, np.full, min and max of numbers in kernels, and views. Importing this module imports numba.

numba compiles up to six functions of its own for each of them, which takes a tenth of the time of a first call. The
functions of this module have the same results and are generated as LLVM code directly. :mod:`.compile_pipeline`
puts them in place of numba's.
"""

from __future__ import annotations

import operator
from typing import Any

from .interrupts import import_whole

import_whole("numba.np.arrayobj")  # with modules of numba that register types, and cannot be imported a second time

from llvmlite import ir  # noqa: E402
from numba import types  # noqa: E402
from numba.core import cgutils  # noqa: E402
from numba.core.imputils import impl_ret_borrowed  # noqa: E402
from numba.extending import intrinsic as _intrinsic  # noqa: E402
from numba.np.arrayobj import populate_array  # noqa: E402

intrinsic: Any = _intrinsic  # the decorator removes the first parameter, and type checkers do not know it

__all__ = ["FUNCTIONS", "NUMPY_FUNCTIONS", "allocate", "reinterpret"]


def _lengths(context: Any, builder: Any, shape: Any, value: Any) -> list[Any]:
    """Return the lengths of a new array, whose shape is an integer or a tuple, as 64-bit integers."""
    is_tuple = isinstance(shape, types.BaseTuple)
    lengths = cgutils.unpack_tuple(builder, value) if is_tuple else [value]
    kinds: Any = shape if is_tuple else [shape]
    return [context.cast(builder, n, kind, types.intp) for n, kind in zip(lengths, kinds, strict=True)]


def _array_of(number: types.Type, shape: Any) -> types.Array:
    return types.Array(number, len(shape) if isinstance(shape, types.BaseTuple) else 1, "C")


def _allocation(is_zero: bool) -> Any:
    def function(typingctx, shape, dtype=None):
        array = _array_of(getattr(dtype, "dtype", types.float64), shape)

        def codegen(context, builder, signature, args):
            return allocate(context, builder, array, _lengths(context, builder, shape, args[0]), is_zero=is_zero)

        return array(shape, types.none if dtype is None else dtype), codegen

    return intrinsic(function)


@intrinsic
def _full(typingctx, shape, fill_value, dtype=None):
    number = types.unliteral(fill_value if dtype is None else dtype.dtype)
    array = _array_of(number, shape)

    def codegen(context, builder, signature, args):
        result = allocate(context, builder, array, _lengths(context, builder, shape, args[0]))
        whole = context.make_array(array)(context, builder, result)
        value = context.cast(builder, args[1], fill_value, number)
        with cgutils.for_range(builder, whole.nitems) as loop:
            context.pack_value(builder, number, value, builder.gep(whole.data, [loop.index]))
        return result

    return array(shape, fill_value, types.none if dtype is None else dtype), codegen


NUMPY_FUNCTIONS = {"empty": _allocation(False), "full": _full, "zeros": _allocation(True)}
"""Replacements of functions of numpy for an integer or a tuple as shape, and an optional dtype."""


@intrinsic
def reinterpret(typingctx, x, dtype):
    """Return ``x.view(dtype)`` for a number, or for a contiguous vector and a dtype that is not wider than its own."""
    number = dtype.dtype
    if not isinstance(x, types.Array):
        if x.bitwidth != number.bitwidth:
            return None
        return number(x, dtype), lambda context, builder, signature, args: builder.bitcast(
            args[0], context.get_value_type(number)
        )

    def codegen(context, builder, signature, args):
        old = context.make_array(x)(context, builder, args[0])
        new = context.make_array(signature.return_type)(context, builder)
        ratio, size = x.dtype.bitwidth // number.bitwidth, number.bitwidth // 8
        length = builder.mul(old.nitems, old.nitems.type(ratio))
        data = builder.bitcast(old.data, context.get_data_type(number).as_pointer())
        populate_array(
            new, data=data, shape=[length], strides=[length.type(size)], itemsize=size, meminfo=old.meminfo,
            parent=old.parent,
        )  # fmt: skip
        return impl_ret_borrowed(context, builder, signature.return_type, new._getvalue())

    fits = x.ndim == 1 and x.layout == "C" and x.dtype.bitwidth % number.bitwidth == 0
    return (x.copy(dtype=number)(x, dtype), codegen) if fits else None


def allocate(
    context: Any,
    builder: Any,
    kind: types.Array,
    lengths: list[Any],
    alignment: int | None = None,
    is_zero: bool = False,
) -> Any:
    """Return a new C-contiguous array of type ``kind`` and the given lengths."""
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    strides = [ir.Constant(lengths[0].type, size)]
    for length in reversed(lengths[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    total = builder.mul(strides[0], lengths[0])
    owner = context.nrt.meminfo_alloc_aligned(
        builder, total, alignment or context.get_preferred_array_alignment(kind.dtype)
    )
    data = context.nrt.meminfo_data(builder, owner)
    if is_zero:
        cgutils.memset(builder, data, total, 0)
    array = context.make_array(kind)(context, builder)
    data = builder.bitcast(data, context.get_data_type(kind.dtype).as_pointer())
    populate_array(array, data=data, shape=lengths, strides=strides, itemsize=size, meminfo=owner)
    return array._getvalue()


def _extremum(compare: Any) -> Any:
    def function(typingctx, a, b, c=None):
        kinds = [a, b] if c is None else [a, b, c]
        result = typingctx.unify_types(*map(types.unliteral, kinds))

        def codegen(context, builder, signature, args):
            values = [context.cast(builder, v, kind, result) for v, kind in zip(args, kinds, strict=False)]
            is_better = context.get_function(compare, types.boolean(result, result))
            best = values[0]
            for value in values[1:]:  # in Python's order, which decides the result for NaN and signed zeros
                best = builder.select(is_better(builder, (value, best)), value, best)
            return best

        return result(a, b, types.none if c is None else c), codegen

    return intrinsic(function)


FUNCTIONS = {min: _extremum(operator.lt), max: _extremum(operator.gt)}
"""Replacements of Python's functions of two or three numbers."""
