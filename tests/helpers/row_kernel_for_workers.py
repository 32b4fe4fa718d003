"""A compiled kernel and tasks over it, for worker processes of every kind to import."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset

from structinf.kernels import parallel_rows
from structinf.kernels.jit import jit


@jit
def square_rows(start, stop, x, out):
    for row in range(start, stop):
        for column in range(x.shape[1]):
            out[row, column] = x[row, column] * x[row, column]


def is_right(rows: int = 37) -> bool:
    """Whether the kernel, run over the pool, squares every row."""
    x = np.arange(rows * 5, dtype=np.float64).reshape(rows, 5)
    out = np.zeros_like(x)
    parallel_rows(square_rows, rows, x, out)
    return bool((out == x * x).all())


class Squares(Dataset):
    """Items that are computed by the kernel, in whatever process loads them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        # DataLoader sets one thread a worker; here the pool itself is to be tried.
        torch.set_num_threads(2)
        return torch.tensor([is_right(index + 2)])
