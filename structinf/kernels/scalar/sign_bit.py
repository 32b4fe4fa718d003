"""A Boolean stored in the sign bit of a nonnegative float, for use inside kernels. Importing this module imports numba.

The flag takes no extra memory. Zeros can carry it too, so these functions read and write the bit itself: a comparison
with 0 cannot tell −0 from 0, and fast math may drop the sign of a zero.
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
    """Return x ≥ 0 with its sign bit set to ``flag``."""

    def codegen(context, builder, signature, args):
        bits, size = _bits(builder, args[0])
        sign = builder.shl(builder.zext(args[1], bits.type), ir.Constant(bits.type, size - 1))
        return builder.bitcast(builder.or_(bits, sign), args[0].type)

    return x(x, types.boolean), codegen


@_intrinsic
def has_sign_bit(typingctx, x):
    """Return whether the sign bit of x is set."""

    def codegen(context, builder, signature, args):
        bits, _ = _bits(builder, args[0])
        return builder.icmp_signed("<", bits, ir.Constant(bits.type, 0))

    return types.boolean(x), codegen


@_intrinsic
def clear_sign_bit(typingctx, x):
    """Return x with its sign bit cleared."""

    def codegen(context, builder, signature, args):
        bits, size = _bits(builder, args[0])
        return builder.bitcast(builder.and_(bits, ir.Constant(bits.type, 2 ** (size - 1) - 1)), args[0].type)

    return x(x), codegen
