"""Device functions of smoothed maxima, and launches."""

from __future__ import annotations

import math

import pytest
import torch
from triton_smooth_max_kernel import evaluate

from structinf.kernels.gpu import interprets_kernels, launch, uses_triton


def test_interpreter_takes_cpu_tensors() -> None:
    assert interprets_kernels()
    assert uses_triton(torch.zeros(1))
    assert not uses_triton(torch.zeros(1, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1, 1.5, 2])
def test_functions_of_a_score(alpha: float, dtype: torch.dtype) -> None:
    d = torch.tensor([-2.5, -1.0, 0.0, 0.25, 1.0], dtype=dtype)
    out = d.new_empty(5, 5)
    launch(evaluate, (1,), d, out, 5, warps=1, SIZE=8, ALPHA=alpha)
    r = ((alpha - 1) * d).clamp(min=0)
    q = d.exp() if alpha == 1 else r ** (1 / (alpha - 1))
    s = d.exp() if alpha == 1 else torch.where(r > 0, q ** (2 - alpha), 0)
    torch.testing.assert_close(out[0], q)
    torch.testing.assert_close(out[1], s)
    torch.testing.assert_close(out[2], d)
    torch.testing.assert_close(out[3], torch.where(d > 0, d, 0).log())
    assert (out[4] == (0 if alpha == 1 else -1 / (alpha - 1))).all()


def test_no_score_is_finite() -> None:
    out = torch.empty(5, 1)
    launch(evaluate, (1,), torch.full((1,), -math.inf), out, 1, warps=1, SIZE=1, ALPHA=1)
    assert out[:4, 0].tolist() == [0, 0, 0, -math.inf]


def test_an_empty_grid_launches_nothing() -> None:
    launch(evaluate, (0,), torch.zeros(0), torch.zeros(5, 0), 0, SIZE=1, ALPHA=1)


def test_floats_are_refused() -> None:
    with pytest.raises(TypeError, match="float32"):
        launch(evaluate, (1,), torch.zeros(1), torch.zeros(5, 1), 1.0, SIZE=1, ALPHA=1)
