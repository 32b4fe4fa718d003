"""The compilers of kernels: functions of Python and numpy inside kernels, and helpers compiled once."""

from __future__ import annotations

import math
import operator
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba import extending, types
from numba.core.caching import NullCache
from numba.core.errors import TypingError
from numba.core.runtime import _nrt_python  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.runtime.nrt import rtsys
from numba.core.typing import templates

from structinf import simplex
from structinf.kernels.fast_builtins import reinterpret
from structinf.kernels.jit import jit


@jit
def _power(x, exponent):
    return x**exponent


@jit(inline=True)
def _square(x):
    return x * x


@jit
def _quadratic(x):
    return _power(x, 2) + _power(x, 1)


@jit(called_from_python=True)
def _sum_of_powers(x):
    return _power(x, 0) + _power(x, 1) + _power(x, int(x)) + _square(x)


@jit(called_from_python=True)
def _extrema(a, b, c):
    return min(a, b), max(a, b), min(a, b, c), max(a, b, c)


@jit(called_from_python=True)
def _arrays(rows, columns, like):
    vector, table, typed, flags = (
        np.zeros(rows),
        np.zeros((rows, columns)),
        np.zeros(rows, like.dtype),
        np.empty(2, np.bool_),
    )
    flags[:] = True
    table[0, columns - 1] = 1.0
    return vector, table, typed, np.zeros((columns, 2, rows), np.int32), flags


@jit
def _tail(x):
    return x[1:]


@jit
def _first_after_swaps(x, y, count):
    for _ in range(count):
        x, y = y, x
    pair = x, y
    return pair[0][0]


@jit
def _copy_reversed(x, y):
    x[:] = y[::-1]


@jit
def _copy_chosen(x, y, index):
    x[:] = y[index]


@jit
def _read_from_new_containers(x, y, index):
    chosen, numbers, arrays = x[index], {1: 2.0}, [x, y]
    return chosen[0] + numbers[1] + arrays[1][0]


@jit(called_from_python=True)
def _copy_arrays(x, y, index):
    _copy_reversed(x, y)
    _copy_chosen(y, x, index)
    return _read_from_new_containers(x, y, index)


@jit(called_from_python=True)
def _read_views(count):
    x = np.zeros(count)
    for i in range(count):
        x[i] = i
    y = _tail(_tail(x))
    return _first_after_swaps(x, y, 3) + _first_after_swaps(_tail(y), np.zeros(1), 2)


def test_constant_arguments_share_one_compiled_helper(monkeypatch):
    monkeypatch.setattr(_sum_of_powers, "_cache", NullCache())  # a kernel from the cache compiles no helper
    assert _sum_of_powers(3.0) == 1 + 3 + 27 + 9
    assert len(_power.overloads) == 1


def test_helpers_without_new_arrays_count_no_references(monkeypatch):
    monkeypatch.setattr(_read_views, "_cache", NullCache())  # a kernel from the cache compiles no helper
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        assert [_read_views(5) for _ in range(10)] == [2 + 3] * 10
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    assert after.alloc - before.alloc == after.free - before.free >= 20
    for helper, counts in ((_first_after_swaps, False), (_tail, True)):
        (compiled,) = helper.overloads.values()
        assert ("NRT_incref" in str(compiled.library._final_module)) == counts


def test_helpers_can_copy_arrays():
    x, y = np.zeros(3), np.array([1.0, 2.0, 3.0])
    assert _copy_arrays(x, y, np.array([2, 0, 1])) == 1 + 2 + 1
    assert x.tolist() == [3, 2, 1]
    assert y.tolist() == [1, 3, 2]


def test_functions_of_numba_can_call_helpers():
    @numba.njit
    def add_powers(x):
        return _quadratic(x) + _square(x)

    assert add_powers(3.0) == 9 + 3 + 9


def test_python_cannot_call_helpers():
    for helper in (_power, _square):
        with pytest.raises(TypeError, match="has no Python wrapper"):
            helper(1.0)


@pytest.mark.parametrize(
    "numbers", [(1, 2, 3), (3, 2.5, 1), (0.0, -0.0, 0.0), (-0.0, 0.0, -1.0), (1.5, math.inf, -math.inf)]
)
def test_extrema_equal_those_of_python(numbers):
    a, b, c = numbers
    expected = min(a, b), max(a, b), min(a, b, c), max(a, b, c)
    result = _extrema(a, b, c)
    assert result == expected
    assert [math.copysign(1, x) for x in result[:2]] == [math.copysign(1, x) for x in expected[:2]]


def test_extrema_keep_the_first_number_beside_nan_as_python_does():
    assert math.isnan(_extrema(math.nan, 1.0, 2.0)[0])
    assert _extrema(1.0, math.nan, 2.0) == (1.0, 1.0, 1.0, 2.0)


def test_new_arrays_equal_those_of_numpy():
    table = np.zeros((3, 4))
    table[0, 3] = 1.0
    expected = [np.zeros(3), table, np.zeros(3, np.float32), np.zeros((4, 2, 3), np.int32), np.ones(2, np.bool_)]
    for result, wanted in zip(_arrays(3, 4, np.empty(0, np.float32)), expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.flags.c_contiguous
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("alphas", [(1.2, 1.7), (1.5, 1.5), (2.0, 2.0), (2.5, 4.0), (1.5, 1.7), (1.0, 3.0)])
def test_entmax_with_several_alphas_equals_entmax_of_each_row(alphas):
    x = torch.tensor([[0.3, -1.0, 0.9, 0.2], [0.1, 0.2, -0.4, 1.1]], dtype=torch.float64)
    together = simplex.entmax(x, torch.tensor(alphas, dtype=torch.float64)[:, None])
    for i, alpha in enumerate(alphas):
        torch.testing.assert_close(together[i], simplex.entmax(x[i], alpha), rtol=1e-14, atol=1e-15)


@jit(called_from_python=True)
def _attribute_of(x):
    return x.missing


@jit(called_from_python=True)
def _sum_of_values_and_text(x, is_text):
    y = x
    if is_text:
        y = "text"
    return y


def test_errors_of_types_name_the_attribute_and_the_types():
    with pytest.raises(TypingError, match="Unknown attribute 'missing' of type float64"):
        _attribute_of(1.0)
    with pytest.raises(TypingError, match="Cannot unify float64 and"):
        _sum_of_values_and_text(1.0, True)


intrinsic: Any = extending.intrinsic  # the decorator removes the first parameter


class _Thing(types.Type):
    def __init__(self):
        super().__init__(name="_Thing")


extending.register_model(_Thing)(extending.models.OpaqueModel)


@intrinsic
def _thing(typingctx):
    return _Thing()(), lambda context, builder, signature, args: context.get_dummy_value()


@jit(called_from_python=True)
def _negative(x):
    return -x


@jit(called_from_python=True)
def _negative_thing():
    return -_thing()


def test_kernels_see_operators_that_were_defined_after_the_first_compilation():
    assert _negative(2.0) == -2.0

    @templates.infer_global(operator.neg)  # pyright: ignore[reportOptionalCall]
    class _Template(templates.AbstractTemplate):
        def generic(self, args, kws):
            return templates.signature(types.int64, *args) if isinstance(args[0], _Thing) else None

    @extending.lower_builtin(operator.neg, _Thing)
    def _lower(context, builder, signature, args):
        return context.get_constant(types.int64, 7)

    assert _negative_thing() == 7


@jit(called_from_python=True)
def _filled(rows, like):
    return np.full((rows, 2), -np.inf, like.dtype), np.full(rows, 7), np.full(rows, True)


def test_full_has_the_values_and_dtypes_of_numpy():
    for dtype in (np.float32, np.float64):
        results = _filled(3, np.empty(0, dtype))
        expected = np.full((3, 2), -np.inf, dtype), np.full(3, 7), np.full(3, True)
        for result, own in zip(results, expected, strict=True):
            assert result.dtype == own.dtype
            assert np.array_equal(result, own)


@jit(called_from_python=True)
def _views(x, word):
    new = np.full(2, 0x3FF0000000000000)
    return reinterpret(np.float32(x), np.int32), reinterpret(word, np.uint32), reinterpret(new, np.float64)


def test_views_share_the_bits_and_the_memory():
    word = np.arange(3, dtype=np.uint64)
    bits, halves, ones = _views(1.5, word)
    assert bits == np.float32(1.5).view(np.int32)
    assert np.array_equal(halves, word.view(np.uint32))
    assert np.shares_memory(halves, word)
    assert ones.tolist() == [1.0, 1.0]


@jit(called_from_python=True)
def _wider_view(word):
    return reinterpret(word, np.uint64)


def test_views_as_a_wider_dtype_are_refused():
    for word in (np.zeros(4, np.uint32), np.float32(1)):
        with pytest.raises(TypingError):
            _wider_view(word)
