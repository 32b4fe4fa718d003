"""The loops that find the highest numbers of rows, against sorting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from structinf_oracles.kernels.subset.top_k import highest

WIDTHS = {np.float32: np.int32, np.float64: np.int64}


def by_sorting(row: np.ndarray, k: int, floor: float) -> np.ndarray:
    order = [i for i in sorted(range(len(row)), key=lambda i: (-row[i], i)) if row[i] > floor]
    y = np.zeros_like(row)
    y[order[:k]] = 1
    return y


def rows(kind: str, dtype: type, rng: np.random.Generator) -> np.ndarray:
    x = rng.normal(size=(4, int(rng.integers(1, 40))))
    if kind == "scales":
        x *= 10.0 ** rng.integers(-45, 39, (4, 1))  # down to subnormal numbers, and up to the largest
    if kind == "spread":
        x = np.sign(x) * 10.0 ** rng.uniform(-44, 38, x.shape)
    if kind == "ties":
        x = np.round(x)
    if kind == "forbidden":
        x[rng.random(x.shape) < 0.4] = -np.inf
    if kind == "zeros":
        x[rng.random(x.shape) < 0.4] = -0.0
        x[rng.random(x.shape) < 0.4] = 0.0
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("kind", ["plain", "scales", "spread", "ties", "forbidden", "zeros"])
def test_the_highest_are_those_of_sorting(kind: str, dtype: type) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        x = rows(kind, dtype, rng)
        k = int(rng.integers(0, x.shape[1] + 3))
        for floor in (-math.inf, 0.0):
            y = np.full_like(x, 7)
            above = np.full(len(x), -1)
            highest(0, len(x), x, np.empty(0, WIDTHS[dtype]), np.array([k]), floor, y, above)
            np.testing.assert_array_equal(above, (x > floor).sum(1))
            assert (y == np.stack([by_sorting(row, k, floor) for row in x])).all()
