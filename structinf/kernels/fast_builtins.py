"""np.empty, np.zeros, min and max of numbers in kernels. Importing this module imports numba.

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
from numba.extending import intrinsic  # noqa: E402
from numba.np.arrayobj import populate_array  # noqa: E402

__all__ = ["FUNCTIONS", "NUMPY_FUNCTIONS", "allocate"]


def _allocation(is_zero: bool) -> Any:
    def function(typingctx, shape, dtype=None):
        number = getattr(dtype, "dtype", types.float64)
        is_tuple = isinstance(shape, types.BaseTuple)

        def codegen(context, builder, signature, args):
            lengths = cgutils.unpack_tuple(builder, args[0]) if is_tuple else [args[0]]
            kinds = list(shape) if is_tuple else [shape]
            lengths = [context.cast(builder, n, kind, types.intp) for n, kind in zip(lengths, kinds, strict=True)]
            return allocate(context, builder, signature.return_type, lengths, is_zero=is_zero)

        array = types.Array(number, len(shape) if is_tuple else 1, "C")
        return array(shape, types.none if dtype is None else dtype), codegen

    return intrinsic(function)


NUMPY_FUNCTIONS = {"empty": _allocation(False), "zeros": _allocation(True)}
"""Replacements of functions of numpy for an integer or a tuple as shape, and an optional dtype."""


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
