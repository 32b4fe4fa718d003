"""Vectors of 16 numbers for kernels that keep running sums in registers. Importing this module imports numba.

LLVM's own vectoriser keeps running sums in memory, and checks all pairs of arrays for overlap before each inner loop.
On tables of 16 × 16 to 50 × 50 numbers, code with these vectors is two to four times as fast. :func:`load` reads, and
:func:`store` writes, 16 numbers of an array at a time:

    total = 0.0
    for i in range(rows):
        total += load(table, i * width + at) * weight[i]
    store(sums, at, total)

A number is converted to a vector where an operation needs a vector. Vectors support ``+``, ``-``, ``*``, ``/``, the
functions below, and, after an import of :mod:`.exp_log`, exp and log of :mod:`structinf.kernels.scalar.exp_log`.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typeconv import Conversion  # pyright: ignore[reportPrivateImportUsage]
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _intrinsic
from numba.extending import lower_builtin, lower_cast, models, register_model

__all__ = ["LANES", "Lanes", "largest", "load", "maximum", "minimum", "reduce_sum", "spread", "store", "where_less"]

intrinsic: Any = _intrinsic  # the decorator removes the first parameter, and type checkers do not know it

LANES = 16
"""Numbers in a vector, on every machine: LLVM splits a vector over as many registers as necessary."""

# Without reassociation, so that sums keep the order of the kernel's code.
_FLAGS = ("contract",)


class Lanes(types.Type):
    """The numba type of vectors of ``dtype``, float32 or float64."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        return Conversion.safe if isinstance(other, types.Integer | types.Float) else None


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        super().__init__(dmm, fe_type, ir.VectorType(dmm[fe_type.dtype].get_value_type(), LANES))


@lower_cast(types.Integer, Lanes)
@lower_cast(types.Float, Lanes)
def _convert(context, builder, fromty, toty, value):
    return _splat(builder, context.cast(builder, value, fromty, toty.dtype))


def _splat(builder, number):
    """Return a vector with a number in all lanes."""
    vector = ir.VectorType(number.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


# ----------------------------------------------------------------------------- memory


def _number(context, builder, array_type, array, index):
    """Return a pointer to the number at ``index``. Negative indices do not count from the end."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _place(context, builder, array_type, array, index):
    """Return a pointer to the vector at ``index``, and its guaranteed alignment in bytes."""
    data = _number(context, builder, array_type, array, index)
    number = context.get_value_type(array_type.dtype)
    return builder.bitcast(data, ir.VectorType(number, LANES).as_pointer()), array_type.dtype.bitwidth // 8


@intrinsic
def load(typingctx, array, index):
    """Return the 16 numbers from ``index`` on, of a contiguous one-dimensional array."""

    def codegen(context, builder, sig, args):
        place, alignment = _place(context, builder, sig.args[0], *args)
        return builder.load(place, align=alignment)

    return Lanes(array.dtype)(array, types.intp), codegen


@intrinsic
def spread(typingctx, array, index):
    """Return a vector with the number at ``index`` in all lanes."""

    def codegen(context, builder, sig, args):
        return _splat(builder, builder.load(_number(context, builder, sig.args[0], *args)))

    return Lanes(array.dtype)(array, types.intp), codegen


@intrinsic
def store(typingctx, array, index, lanes):
    """Write the 16 numbers of ``lanes`` to the array from ``index`` on."""

    def codegen(context, builder, sig, args):
        place, alignment = _place(context, builder, sig.args[0], *args[:2])
        builder.store(args[2], place, align=alignment)
        return context.get_dummy_value()

    return types.void(array, types.intp, Lanes(array.dtype)), codegen


# ----------------------------------------------------------------------------- arithmetic


def _wider(*arguments: Any) -> Lanes | None:
    """Return the first vector type among the types of the arguments; None if no argument is a vector."""
    return next((a for a in arguments if isinstance(a, Lanes)), None)


def _operator(function: Any, instruction: str) -> None:
    @infer_global(function)  # pyright: ignore[reportOptionalCall]
    class _Template(AbstractTemplate):
        def generic(self, args, kws):
            lanes = _wider(*args)
            return None if lanes is None else signature(lanes, lanes, lanes)

    @lower_builtin(function, Lanes, Lanes)
    def _lower(context, builder, sig, args):
        return getattr(builder, instruction)(*args, flags=_FLAGS)


for _name, _instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
    _operator(getattr(operator, _name), _instruction)
    _operator(getattr(operator, f"i{_name}"), _instruction)


def call(builder: ir.IRBuilder, name: str, returned: ir.Type, args: Any, flags: tuple[str, ...] = ()) -> Any:
    """Call the LLVM intrinsic ``name`` for the type of the last argument, a vector."""
    vector = args[-1].type
    full = f"llvm.{name}.v{LANES}{'f32' if vector.element == ir.FloatType() else 'f64'}"
    known = builder.module.globals.get(full)
    function = known or ir.Function(builder.module, ir.FunctionType(returned, [a.type for a in args]), full)
    return builder.call(function, args, fastmath=flags)


def _extremum(name: str) -> Any:
    @intrinsic
    def function(typingctx, a, b):
        def codegen(context, builder, sig, args):
            return call(builder, name, args[0].type, args, ("nnan", "nsz"))

        lanes = _wider(a, b)
        return lanes and (lanes(lanes, lanes), codegen)

    return function


maximum = _extremum("maxnum")
"""max(a, b) of each lane; undefined where an argument is NaN."""

minimum = _extremum("minnum")
"""min(a, b) of each lane; undefined where an argument is NaN."""


@intrinsic
def where_less(typingctx, a, b, x, y):
    """Return ``x`` where a < b, and ``y`` elsewhere."""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    lanes = _wider(a, b, x, y)
    return lanes and (lanes(lanes, lanes, lanes, lanes), codegen)


@intrinsic
def reduce_sum(typingctx, lanes):
    """Return the sum of all lanes, added in pairs."""

    def codegen(context, builder, sig, args):
        start = args[0].type.element(0.0)
        return call(builder, "vector.reduce.fadd", start.type, [start, *args], ("reassoc", "nsz"))

    return _wider(lanes) and (lanes.dtype(lanes), codegen)


@intrinsic
def largest(typingctx, lanes):
    """Return the largest number of all lanes."""

    def codegen(context, builder, sig, args):
        return call(builder, "vector.reduce.fmax", args[0].type.element, args, ("nnan", "nsz"))

    return _wider(lanes) and (lanes.dtype(lanes), codegen)
