"""Maps to the simplex by Triton kernels, against torch operations in float64 and the compiled loops of the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf import regularizers
from structinf.attention import SimplexWeights
from structinf.kernels.simplex import (
    dispatch,
    triton_capped_simplex,
    triton_conjugate,
    triton_maps,
    triton_rows,
    triton_vjp,
)
from structinf.kernels.simplex import torch_backend as reference
from structinf.regularizers import Negentropy, Regularizer, SquaredL2, Tsallis
from structinf.simplex import entmax_family
from structinf.simplex.entropies import TsallisEntropy
from structinf.smoothing import smooth_argmax, smooth_max

INF = math.inf
ALPHAS = [1.0, 1.0001, 1.3, 1.5, 2.0, 3.0]


def tolerances(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 3e-7}


def scores(n: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Seven rows: two of usual scores, one of −inf, of scores up to ±1000, of one finite score, of NaN, and of ties."""
    x = torch.randn(7, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    x[0] *= 3
    x[2] = -INF
    x[3] = (x[3] * 500).clamp(-1000, 1000)
    x[4, 1:] = -INF
    x[5, 0] = math.nan
    x[6] = x[6].round()
    x[6, n // 2 :] = 1
    x[6, -1] = -INF
    return x


def per_row_alpha(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([[1.0], [1.5], [1.2], [1.0], [2.0], [1.3], [3.0]], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [*ALPHAS, None])
def test_entmax_and_its_product(alpha: float | None, dtype: torch.dtype) -> None:
    x = scores(37, dtype)
    number = per_row_alpha(dtype) if alpha is None else alpha
    exact = reference.entmax(x.double(), number)
    q = triton_maps.entmax(x, number)
    assert q.dtype == dtype
    torch.testing.assert_close(q.double(), exact, equal_nan=True, **tolerances(dtype))
    assert q[2].eq(0).all()
    assert q[5].isnan().all()

    g = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    product, in_alpha = triton_vjp.entmax_vjp(q, g, number, alpha is None)
    rows = torch.tensor([0, 1, 2, 3, 4, 6])
    wanted = number[rows].double() if isinstance(number, Tensor) else number
    p, v = q[rows].double(), g[rows].double()
    atol = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(product[rows].double(), reference.entmax_vjp(p, v, wanted), rtol=1e-6, atol=atol)
    assert product[5].isnan().all()
    if alpha is not None:
        assert in_alpha is None
    else:
        expected = reference.entmax_alpha_vjp(p, v, wanted)
        torch.testing.assert_close(in_alpha[rows].double(), expected, rtol=atol, atol=atol)
        assert in_alpha[5].isnan()


@pytest.mark.parametrize("n", [1, 2, 9, 64])
def test_row_lengths(n: int) -> None:
    x = scores(n)
    for alpha in (1.5, 1.3, per_row_alpha()):
        expected = reference.entmax(x, alpha)
        torch.testing.assert_close(triton_maps.entmax(x, alpha), expected, equal_nan=True, **tolerances(x.dtype))


def test_empty_tensors() -> None:
    for shape in [(0, 5), (3, 0), (0,)]:
        x = torch.zeros(shape, dtype=torch.float64)
        assert triton_maps.entmax(x, 1.5).shape == shape
        assert triton_vjp.entmax_vjp(x, x, 1.5, False)[0].shape == shape
        assert triton_capped_simplex.capped_simplex(x, 0.0).shape == shape
    no_scores = torch.zeros(3, 0, dtype=torch.float64)
    assert triton_maps.smooth_max(no_scores, 1.5).tolist() == [-INF] * 3
    assert triton_conjugate.tsallis_conjugate(no_scores, no_scores, torch.zeros(3), 1.5).tolist() == [0] * 3


def test_long_rows_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several tiles, with −inf, NaN and the highest score in the last one."""
    monkeypatch.setattr(triton_rows, "_MOST_NUMBERS", 32)
    x = scores(31, seed=2)
    x[0, 30] = 9
    x[5, 0], x[5, 30] = 0, INF
    g = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    rows = torch.tensor([0, 1, 2, 3, 4, 6])
    origin = torch.arange(7, dtype=x.dtype)
    for alpha in (1.0, 1.3, 1.5, 2.0):
        q = reference.entmax(x, alpha)
        torch.testing.assert_close(triton_maps.entmax(x, alpha), q, equal_nan=True, **tolerances(x.dtype))
        product = triton_vjp.entmax_vjp(q, g, alpha, False)[0]
        torch.testing.assert_close(product[rows], reference.entmax_vjp(q, g, alpha)[rows], **tolerances(x.dtype))
        assert product[5].isnan().all()
        conjugate = triton_conjugate.tsallis_conjugate(x, q, origin, alpha)
        expected = origin.new_tensor([conjugate_by_definition(*row, alpha) for row in zip(x, q, origin, strict=True)])
        torch.testing.assert_close(conjugate[rows], expected[rows], rtol=1e-12, atol=1e-12)
    q = reference.capped_simplex(x, 3.5)
    product, in_sum = triton_vjp.capped_simplex_vjp(q, g, True)
    for found, expected in zip((product, in_sum), reference.capped_simplex_vjp(q, g), strict=True):
        torch.testing.assert_close(found[rows], expected[rows], **tolerances(x.dtype))


def conjugate_by_definition(x: Tensor, p: Tensor, origin: Tensor, alpha: float) -> float:
    if not p.any():
        return 0.0
    gain = torch.where(p > 0, p * (torch.where(p > 0, x, origin) - origin), 0.0).sum()
    return float(gain + TsallisEntropy(alpha)(p))


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_conjugate(alpha: float, dtype: torch.dtype) -> None:
    x = scores(9, dtype)[[0, 1, 2, 4, 6]]
    p = reference.entmax(x.double(), alpha)
    origin = torch.tensor([3.0, -2.0, 0.5, 1.0, 1.0], dtype=dtype)
    expected = [conjugate_by_definition(*row, alpha) for row in zip(x.double(), p, origin.double(), strict=True)]
    found = triton_conjugate.tsallis_conjugate(x, p.to(dtype), origin, alpha)
    assert found.dtype == torch.float64
    # The value is stationary in p, so the error is not that of p in float32.
    atol = 1e-12 if dtype == torch.float64 or alpha in (1.5, 2) else 1e-6
    torch.testing.assert_close(found, found.new_tensor(expected), rtol=1e-12, atol=atol)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_smooth_max(alpha: float) -> None:
    x = scores(9)[[0, 1, 2, 3, 4, 6]]
    p = reference.entmax(x, alpha)
    expected = [conjugate_by_definition(*row, torch.zeros(()).double(), alpha) for row in zip(x, p, strict=True)]
    expected[2] = -INF
    torch.testing.assert_close(triton_maps.smooth_max(x, alpha), x.new_tensor(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.float64])
def test_capped_simplex(dtype: torch.dtype) -> None:
    x = scores(12, dtype)
    sums = torch.tensor([[0.3], [2.5], [1.0], [4.0], [2.0], [1.0], [3.0]], dtype=dtype)
    for scale, k in [(1.0, 0.0), (1.0, 12.0), (1.0, sums), (1e3, 2.75), (1e9, sums)]:
        expected = reference.capped_simplex(scale * x, k).double()
        found = triton_capped_simplex.capped_simplex(scale * x, k).double()
        torch.testing.assert_close(found, expected, equal_nan=True, **tolerances(dtype))


def test_rows_of_any_dimension_need_no_copy() -> None:
    whole = torch.randn(2, 5, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for dim in range(4):
        x = whole.movedim(dim, -1)
        rows = triton_rows.rows_of(x)
        assert rows.tensor is x
        q = triton_maps.entmax(x, 1.5)
        assert q.stride() == x.stride()
        torch.testing.assert_close(q, reference.entmax(x, 1.5), **tolerances(x.dtype))
        g = whole.flip(0).movedim(dim, -1).contiguous()
        product = triton_vjp.entmax_vjp(q, g, 1.5, False)[0]
        torch.testing.assert_close(product, reference.entmax_vjp(q, g, 1.5), **tolerances(x.dtype))


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(24.0).view(2, 12)[:, ::2],
        torch.arange(24.0).view(2, 12)[:, 3:],
        torch.arange(6.0).expand(3, 6),
        torch.arange(3.0).unsqueeze(1).expand(3, 6),
        torch.arange(24.0).view(2, 3, 1, 4).permute(2, 1, 3, 0),
        torch.arange(5000.0).view(2500, 2).T,
    ],
    ids=["step", "slice", "shared rows", "shared numbers", "permuted", "long columns"],
)
def test_tensors_with_gaps(x: Tensor) -> None:
    x = x.double().sin().as_strided(x.shape, x.stride()) if x.is_contiguous() else x.double() / x.numel()
    torch.testing.assert_close(triton_maps.entmax(x, 1.5), reference.entmax(x, 1.5), **tolerances(x.dtype))


def test_rows_do_not_depend_on_the_batch() -> None:
    x = scores(9, torch.float32).repeat(20, 1)
    for alpha in (1.3, 1.5):
        q = triton_maps.entmax(x, alpha)
        assert torch.equal(q[:7].nan_to_num(), triton_maps.entmax(x[:7], alpha).nan_to_num())
        assert torch.equal(q[77:78], triton_maps.entmax(x[77:78], alpha))


def random(*shape: int, seed: int = 6) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def derivatives(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result, its first derivatives without and with a graph, and second derivatives."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    result = function(*leaves)
    weights = random(*result.shape)
    first = torch.autograd.grad((result * weights).sum(), leaves, retain_graph=True)
    again = torch.autograd.grad((result * weights).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum((t * t).sum() for t in again), leaves, allow_unused=True)
    return [result.detach(), *first, *again, *(torch.zeros(()) if t is None else t for t in second)]


def check_with_loops(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Check :func:`derivatives` by Triton kernels against the compiled loops of the CPU."""
    found = derivatives(function, *inputs)
    with monkeypatch.context() as patch:
        for module in (dispatch, entmax_family):
            patch.setattr(module, "uses_triton", lambda t: False)
        expected = derivatives(function, *inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "name",
    [
        *("sparsemax", "entmax", "budget"),
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("softmax", "entmax15", "topk_sparsemax", "normmax", "fusedmax")
        ),
    ],
)
def test_public_maps_along_both_dimensions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"entmax": {"alpha": 1.25}, "topk_sparsemax": {"k": 3}, "budget": {"k": 2}}.get(name, {})
    function = getattr(si.simplex, name)
    for dim in (0, 1):
        check_with_loops(monkeypatch, lambda t, dim=dim: function(t, **options, dim=dim), random(3, 4))


@pytest.mark.full
def test_a_learned_alpha_and_a_learned_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(2, 2, 3)
    for shape in [(), (2, 1, 1), (2, 2, 1)]:
        check_with_loops(monkeypatch, si.simplex.entmax, x, torch.full(shape, 1.4, dtype=torch.float64))
    check_with_loops(monkeypatch, si.simplex.budget, x, torch.full((2, 1, 1), 1.4, dtype=torch.float64))


@pytest.mark.parametrize("name", ["softmax", pytest.param("sparsemax", marks=pytest.mark.full), "entmax15"])
def test_losses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = torch.tensor([0, 4, -100, 2])
    check_with_loops(monkeypatch, lambda t: si.simplex.simplex_loss(t, target, name), random(4, 5))
    target = si.simplex.softmax(random(2, 5, seed=7))
    check_with_loops(monkeypatch, lambda t: si.simplex.simplex_loss(t, target, name), random(2, 5))


def test_small_losses_keep_their_digits_in_float32() -> None:
    x = torch.tensor([[9.0, 0.0, -1.0]])
    loss = si.simplex.simplex_loss(x, torch.tensor([0]), "softmax")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), x.double().logsumexp(1)[0] - 9, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attention(dtype: torch.dtype) -> None:
    weights = SimplexWeights("entmax15")
    x = random(2, 3, 4).to(dtype)
    padding = torch.tensor([[False, False, False, True], [False, False, True, True]])
    expected = reference.entmax(x.double().masked_fill(padding[:, None], -INF), 1.5)
    atol = 1e-3 if dtype == torch.float16 else 3e-7
    torch.testing.assert_close(weights(x, padding), expected.to(dtype), rtol=0, atol=atol)


@pytest.mark.parametrize(
    "regularizer", [Negentropy(), Tsallis(), Tsallis(alpha=1.25), SquaredL2()], ids=lambda r: f"{r.alpha:g}"
)
def test_smoothed_maxima_of_recursions(regularizer: Regularizer, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(3, 4)
    x[0] = -INF
    x[1, 2] = -INF
    for function in (smooth_max, smooth_argmax):
        found = derivatives(lambda t, f=function: f(regularizer, t, 1), x)
        with monkeypatch.context() as patch:
            patch.setattr(regularizers, "uses_triton", lambda t: False)
            patch.setattr(dispatch, "uses_triton", lambda t: False)
            expected = derivatives(lambda t, f=function: f(regularizer, t, 1), x)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
