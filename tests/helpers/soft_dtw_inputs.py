"""What the tests of soft-DTW share."""

from __future__ import annotations

import torch

DOUBLE = torch.float64
METRICS = ["squared_euclidean", "euclidean", "l1", "cosine"]
REGULARIZERS = ["negentropy", "squared_l2", "tsallis"]


def numbers(*values):
    return torch.tensor(values, dtype=DOUBLE)
