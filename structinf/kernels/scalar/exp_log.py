"""exp and log that LLVM vectorises, for use inside kernels. Importing this module imports numba.

numba calls exp and log of the C library once per element. The functions of this module are range-reduced polynomials
without branches or calls. Loops over these functions become vector code, at least 15 times faster. Arguments and
results are float32 or float64.

========  ==============  ===================================================================
function  relative error  special values
========  ==============  ===================================================================
exp       below one       exp(−inf) = 0 and exp(0) = 1 exactly; inf on overflow; 0 where the
          epsilon         value is below twice the smallest normal number
log       below one       log(0) = −inf, log(1) = 0 and log(inf) = inf exactly; subnormal
          epsilon         numbers count as 0
========  ==============  ===================================================================

The coefficients interpolate (eʳ − 1)/r and (log m − 2s)/s³ at Chebyshev nodes. The range reductions follow W. J. Cody
and W. Waite, Software Manual for the Elementary Functions (1980), chapters 5 and 6.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable

from ..compile_pipeline import HelperCompiler
from ..fast_builtins import reinterpret

__all__ = ["exp", "log", "log1p"]

# Only "contract": reassociation would undo the reductions by a two-part log 2 below.
_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
    "forceinline": True,
    "pipeline_class": HelperCompiler,
}
_polynomial: Any = register_jitable(**_OPTIONS)


def exp(x: float) -> float:
    """Return eˣ; 0 at −inf. Outside kernels, this is :func:`math.exp`."""
    return math.exp(x)


def log(x: float) -> float:
    """Return the natural logarithm of x ≥ 0; −inf at 0. Outside kernels, this is :func:`math.log`."""
    return math.log(x) if x > 0 else -math.inf


# ----------------------------------------------------------------------------- float32

_f32 = np.float32
_LOG2E_32 = _f32(1.4426950408889634)
_LN2_HIGH_32 = _f32(0.693359375)  # 9 bits, so that the product with n is exact
_LN2_LOW_32 = _f32(-2.12194440054690583e-4)
_EXP_LOW_32 = _f32(-86.643394)  # 2^-125
_EXP_HIGH_32 = _f32(88.72283)
_INF_32 = _f32(np.inf)
_ZERO_32, _ONE_32, _TWO_32 = _f32(0), _f32(1), _f32(2)
_TINY_32 = _f32(1.1754944e-38)

_E1_32, _E2_32, _E3_32, _E4_32, _E5_32 = map(
    _f32, (1.0000000027077460, 0.33333009226065221, 0.083332928394811385, 0.016738440583607215, 0.0027867461431584165)
)
_L0_32, _L1_32, _L2_32 = map(_f32, (0.66666685057225067, 0.39988773343312461, 0.29580277153805540))


@_polynomial
def twice_exp32(r):
    """Return 2eʳ for |r| ≤ ½ log 2, for a number or a vector of numbers."""
    q = r * _E5_32 + _E4_32
    q = q * r + _E3_32
    q = q * r + _E2_32
    q = q * r + _E1_32
    q = q * r + _TWO_32
    return q * r + _TWO_32


@_polynomial
def log_series32(z):
    """Return (log m − 2s) / s³ as a function of z = s²."""
    return (z * _L2_32 + _L1_32) * z + _L0_32


def _exp32(x):
    n = np.rint(min(max(x, _EXP_LOW_32), _EXP_HIGH_32) * _LOG2E_32)
    r = (x - n * _LN2_HIGH_32) - n * _LN2_LOW_32
    # The result is 2eʳ · 2ⁿ⁻¹, since n may be 128, and 2¹²⁸ overflows float32.
    scale = reinterpret(np.int32((np.int32(n) + np.int32(126)) << np.int32(23)), np.float32)
    y = twice_exp32(r) * scale
    y = _ZERO_32 if x < _EXP_LOW_32 else y
    return _INF_32 if x > _EXP_HIGH_32 else y


def _log32(x):
    bits = reinterpret(np.float32(x), np.int32)
    # The exponent of x / √½, so that the mantissa m lies in [√½, √2).
    e = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    m = reinterpret(np.int32(bits - np.int32(e << np.int32(23))), np.float32)
    f = m - _ONE_32
    s = f / (_TWO_32 + f)
    z = s * s
    p = log_series32(z)
    n = np.float32(e)
    # log m = 2s + s³p = f − s(f − s²p), whose largest term is exact.
    y = n * _LN2_HIGH_32 + (f - (s * (f - z * p) - n * _LN2_LOW_32))
    y = -_INF_32 if x < _TINY_32 else y
    return _INF_32 if x == _INF_32 else y


# ----------------------------------------------------------------------------- float64

_LOG2E_64 = 1.4426950408889634
_LN2_HIGH_64 = 6.93147180369123816490e-01  # 33 bits
_LN2_LOW_64 = 1.90821492927058770002e-10
_EXP_LOW_64 = -707.7032713652975  # 2^-1021
_EXP_HIGH_64 = 709.782712893384


@_polynomial
def twice_exp64(r):
    """Return 2eʳ for |r| ≤ ½ log 2, for a number or a vector of numbers."""
    q = r * 5.0210625459244204e-8 + 5.5252991092864393e-7
    q = q * r + 5.5114510340001775e-6
    q = q * r + 0.000049603008028853810
    q = q * r + 0.00039682539750004558
    q = q * r + 0.0027777777865502000
    q = q * r + 0.016666666666652166
    q = q * r + 0.083333333333144783
    q = q * r + 0.33333333333333342
    q = q * r + 1.0000000000000011
    q = q * r + 2.0
    return q * r + 2.0


@_polynomial
def log_series64(z):
    """Return (log m − 2s) / s³ as a function of z = s²."""
    p = z * 0.14616878919029820 + 0.15331686868638428
    p = p * z + 0.18182890170313970
    p = p * z + 0.22222211120449298
    p = p * z + 0.28571428626063381
    p = p * z + 0.39999999999899311
    return p * z + 0.66666666666666697


def _exp64(x):
    n = np.rint(min(max(x, _EXP_LOW_64), _EXP_HIGH_64) * _LOG2E_64)
    r = (x - n * _LN2_HIGH_64) - n * _LN2_LOW_64
    scale = reinterpret(np.int64((np.int64(n) + np.int64(1022)) << np.int64(52)), np.float64)
    y = twice_exp64(r) * scale
    y = 0.0 if x < _EXP_LOW_64 else y
    return math.inf if x > _EXP_HIGH_64 else y


def _log64(x):
    bits = reinterpret(np.float64(x), np.int64)
    e = (bits - np.int64(0x3FE6A09E667F3BCD)) >> np.int64(52)
    m = reinterpret(np.int64(bits - (e << np.int64(52))), np.float64)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = log_series64(z)
    n = np.float64(e)
    y = n * _LN2_HIGH_64 + (f - (s * (f - z * p) - n * _LN2_LOW_64))
    y = -math.inf if x < 2.2250738585072014e-308 else y
    return math.inf if x == math.inf else y


@overload(exp, jit_options=_OPTIONS)
def _overload_exp(x):
    return {types.float32: _exp32, types.float64: _exp64}.get(x)


@overload(log, jit_options=_OPTIONS)
def _overload_log(x):
    return {types.float32: _log32, types.float64: _log64}.get(x)


@_polynomial
def log1p(x):
    """Return log(1 + x) of a float64 x > −1, with a relative error below two epsilons."""
    y = 1.0 + x
    return log(y) + (x - (y - 1.0)) / y  # the second term corrects the rounding of y
