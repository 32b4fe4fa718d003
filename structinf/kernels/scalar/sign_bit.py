"""The sign bit of a float as one bit of one's own, for use inside kernels. Importing this module imports numba.

A number that is never negative carries it for nothing; zeros do too, so that comparisons with 0 and numba's fast math,
which may drop the sign of a zero, are no way to it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

__all__ = ["clear_sign_bit", "has_sign_bit", "mark"]

_intrinsic: Any = extending.intrinsic


def _bits(builder: Any, x: Any) -> tuple[Any, int]:
    size = 32 if isinstance(x.type, ir.FloatType) else 64
    return builder.bitcast(x, ir.IntType(size)), size


@_intrinsic
def mark(typingctx, x, flag):
    """x ≥ 0, with the sign bit set if ``flag`` is."""

    def codegen(context, builder, signature, args):
        bits, size = _bits(builder, args[0])
        sign = builder.shl(builder.zext(args[1], bits.type), ir.Constant(bits.type, size - 1))
        return builder.bitcast(builder.or_(bits, sign), args[0].type)

    return x(x, types.boolean), codegen


@_intrinsic
def has_sign_bit(typingctx, x):
    """Whether the sign bit is set."""

    def codegen(context, builder, signature, args):
        bits, _ = _bits(builder, args[0])
        return builder.icmp_signed("<", bits, ir.Constant(bits.type, 0))

    return types.boolean(x), codegen


@_intrinsic
def clear_sign_bit(typingctx, x):
    """x without its sign bit."""

    def codegen(context, builder, signature, args):
        bits, size = _bits(builder, args[0])
        return builder.bitcast(builder.and_(bits, ir.Constant(bits.type, 2 ** (size - 1) - 1)), args[0].type)

    return x(x), codegen
