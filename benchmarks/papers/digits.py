"""Images of digits from scikit-learn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

__all__ = ["Digits", "read"]


class Digits(NamedTuple):
    """Images (N, 8, 8) between 0 and 1, and the digits (N,)."""

    images: Tensor
    digits: Tensor


def read() -> tuple[Digits, Digits]:
    """Return 1297 images for training and the last 500 for the test."""
    pixels, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = pixels.float().unflatten(1, (8, 8)) / 16
    return Digits(images[:-500], digits[:-500]), Digits(images[-500:], digits[-500:])
