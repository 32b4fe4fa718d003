"""What the tests of torch.compile share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

__all__ = ["assert_equal", "every_backend", "marks", "scores", "whole"]

marks = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # dynamo looks at it
]
every_backend = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


def whole(function: Callable[..., Any], backend: str = "eager", **options: Any) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def assert_equal(compiled: Callable[..., Tensor], function: Callable[..., Tensor], *arguments: Any) -> None:
    """Of both, values and gradients at ``arguments``."""
    leaves = [t for t in arguments if isinstance(t, Tensor) and t.requires_grad]
    values = compiled(*arguments), function(*arguments)
    torch.testing.assert_close(*((value, torch.autograd.grad(value.sum(), leaves)) for value in values))


def scores(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
