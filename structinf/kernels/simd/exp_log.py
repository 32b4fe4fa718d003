"""exp and log for the vectors of :mod:`.vector`, with the polynomials of :mod:`structinf.kernels.scalar.exp_log`.

Importing this module extends :func:`structinf.kernels.scalar.exp_log.exp` and
:func:`structinf.kernels.scalar.exp_log.log` to vectors. It imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from ..compile_pipeline import HelperCompiler
from ..scalar import exp_log as e
from ..scalar.exp_log import exp, log
from .vector import LANES, Lanes, call, intrinsic, maximum, minimum, where_less

__all__ = ["exp", "log"]

_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "forceinline": True, "pipeline_class": HelperCompiler}


# ----------------------------------------------------------------------------- the bits of a number


def _bits(vector: ir.VectorType) -> tuple[ir.VectorType, int, int, int]:
    """Return the integer vector type of equal width, the mantissa's size, the exponent bias, and the bits of √½."""
    single = vector.element == ir.FloatType()
    width, mantissa, bias, root = (32, 23, 127, 0x3F3504F3) if single else (64, 52, 1023, 0x3FE6A09E667F3BCD)
    return ir.VectorType(ir.IntType(width), LANES), mantissa, bias, root


def _every(integers: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(integers, [value] * LANES)


@intrinsic
def _round(typingctx, lanes):
    def codegen(context, builder, sig, args):
        return call(builder, "rint", args[0].type, args)

    return lanes(lanes), codegen


@intrinsic
def _half_power(typingctx, lanes):
    """Return 2ⁿ⁻¹ for integers n, stored as floats."""

    def codegen(context, builder, sig, args):
        integers, mantissa, bias, _ = _bits(args[0].type)
        exponent = builder.add(builder.fptosi(args[0], integers), _every(integers, bias - 1))
        return builder.bitcast(builder.shl(exponent, _every(integers, mantissa)), args[0].type)

    return lanes(lanes), codegen


@intrinsic
def _split(typingctx, lanes):
    """Return n and m in [√½, √2) with x = m 2ⁿ, for positive normal numbers x."""

    def codegen(context, builder, sig, args):
        integers, mantissa, _, root = _bits(args[0].type)
        bits, shift = builder.bitcast(args[0], integers), _every(integers, mantissa)
        exponent = builder.ashr(builder.sub(bits, _every(integers, root)), shift)
        rest = builder.bitcast(builder.sub(bits, builder.shl(exponent, shift)), args[0].type)
        return context.make_tuple(builder, sig.return_type, [builder.sitofp(exponent, args[0].type), rest])

    return types.UniTuple(lanes, 2)(lanes), codegen


# ----------------------------------------------------------------------------- exp and log


def _exp32(x):
    n = _round(minimum(maximum(x, e._EXP_LOW_32), e._EXP_HIGH_32) * e._LOG2E_32)
    r = (x - n * e._LN2_HIGH_32) - n * e._LN2_LOW_32
    y = where_less(x, e._EXP_LOW_32, 0, e.twice_exp32(r) * _half_power(n))
    return where_less(e._EXP_HIGH_32, x, np.inf, y)


def _log32(x):
    n, m = _split(x)
    f = m - 1
    s = f / (f + 2)
    z = s * s
    p = e.log_series32(z)
    y = n * e._LN2_HIGH_32 + (f - (s * (f - z * p) - n * e._LN2_LOW_32))
    y = where_less(x, e._TINY_32, -np.inf, y)
    return where_less(x, np.inf, y, np.inf)


def _exp64(x):
    n = _round(minimum(maximum(x, e._EXP_LOW_64), e._EXP_HIGH_64) * e._LOG2E_64)
    r = (x - n * e._LN2_HIGH_64) - n * e._LN2_LOW_64
    y = where_less(x, e._EXP_LOW_64, 0, e.twice_exp64(r) * _half_power(n))
    return where_less(e._EXP_HIGH_64, x, np.inf, y)


def _log64(x):
    n, m = _split(x)
    f = m - 1
    s = f / (f + 2)
    z = s * s
    p = e.log_series64(z)
    y = n * e._LN2_HIGH_64 + (f - (s * (f - z * p) - n * e._LN2_LOW_64))
    y = where_less(x, 2.2250738585072014e-308, -np.inf, y)
    return where_less(x, np.inf, y, np.inf)


@overload(exp, jit_options=_OPTIONS)
def _overload_exp(x):
    return {Lanes(types.float32): _exp32, Lanes(types.float64): _exp64}.get(x)


@overload(log, jit_options=_OPTIONS)
def _overload_log(x):
    return {Lanes(types.float32): _log32, Lanes(types.float64): _log64}.get(x)
