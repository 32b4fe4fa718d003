"""Alignment kernels against the compiled CPU loops, and through the public calls."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import structinf as si
from launch_counter import LaunchCounter, on_device
from structinf.regularizers import get_regularizer
from structinf_oracles.kernels.alignment import dispatch, triton_paths, triton_smoothed_passes

INF = math.inf
TOLERANCE = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: {"rtol": 2e-6, "atol": 2e-6}}


def instances(case: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor | None, object, int]:
    """Return θ, lengths, bands and the size of tiles."""
    generator = torch.Generator().manual_seed(len(case))

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    if case == "tiles":  # anti-diagonals of up to 5 cells, in tiles of 2
        return randn(1, 5, 5), None, 3, 4
    if case == "lengths":
        return randn(2, 3, 4), torch.tensor([[3, 4], [2, 3]]), torch.tensor([99, 1]), 1024
    if case == "forbidden":
        theta = randn(2, 3, 3)
        theta[0, 1, :2] = -INF
        theta[1, 0, 1] = theta[1, 1, 1] = theta[1, 2, 0] = -INF  # no path
        return theta, None, 9, 1024
    if case == "band":
        return (1000 * randn(1, 4, 3)).mT, None, 1, 2
    rows, columns = {"row": (1, 3), "column": (3, 1), "cell": (1, 1)}[case]
    return randn(1, rows, columns), None, 5, 1024


def on_cpu(theta: torch.Tensor, lengths: torch.Tensor | None, band: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same lengths and bands for the CPU loops."""
    sizes = torch.tensor([theta.shape[1:]] * len(theta)) if lengths is None else lengths
    return sizes, band if isinstance(band, torch.Tensor) else torch.full((len(theta),), band)


@pytest.mark.parametrize(
    ("alpha", "case", "dtype"),
    [(1.0, case, torch.float64) for case in ("lengths", "row", "column", "cell")]
    + [(1.5, "forbidden", torch.float64), (2.0, "band", torch.float64)]
    + [
        pytest.param(*case, marks=pytest.mark.full)
        for case in [
            (1.0, "tiles", torch.float64),
            (1.0, "forbidden", torch.float64),
            (1.5, "band", torch.float64),
            (1.0, "band", torch.float32),
            (1.5, "band", torch.float32),
        ]
    ],
)
def test_smoothed_passes(alpha: float, case: str, dtype: torch.dtype) -> None:
    theta, *extent, tile = instances(case, dtype)
    sizes, kernels, close = on_cpu(theta, *extent), triton_smoothed_passes, TOLERANCE[dtype]
    v, weight = torch.randn_like(theta), torch.randn(len(theta), dtype=dtype)
    if case != "tiles":
        assert_close(kernels.value(theta, *extent, alpha, tile=tile), dispatch.value(theta, *sizes, alpha), **close)
    found = kernels.value_and_mean(theta, *extent, alpha, weight, tile=tile)
    assert_close(found, dispatch.value_and_mean(theta, *sizes, alpha, weight), **close)
    found = kernels.hessian_product(theta, v, *extent, alpha, tile=tile)
    assert_close(found, dispatch.hessian_product(theta, v, *sizes, alpha), **close)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [("tiles", torch.float32), ("lengths", torch.float64)]
    + [(case, torch.float64) for case in ("forbidden", "row", "column", "cell")],
)
def test_paths(case: str, dtype: torch.dtype) -> None:
    theta, *extent, tile = instances(case, dtype)
    theta = theta.round()  # ties
    sizes = on_cpu(theta, *extent)
    found = triton_paths.argmax(theta, *extent, tile=tile)
    assert_close(found, dispatch.argmax(theta, *sizes), rtol=0, atol=0)
    found = triton_paths.topk(theta, *extent, 4, tile=tile)
    assert_close(found, dispatch.topk(theta, *sizes, 4), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("alpha", "case"), [(1.0, "lengths"), pytest.param(1.5, "forbidden", marks=pytest.mark.full), (INF, "forbidden")]
)
def test_samples_with_the_same_uniforms(alpha: float, case: str) -> None:
    theta, *extent, tile = instances(case)
    uniforms = torch.rand(3, len(theta), sum(theta.shape[1:]) - 1, dtype=torch.float64)
    uniforms[0], uniforms[1] = 0, 1 - 2.0**-53
    value, y = triton_paths.sample(theta, *extent, alpha, uniforms, tile=tile)
    expected_value, expected = dispatch.sample(theta, *on_cpu(theta, *extent), alpha, uniforms)
    assert_close(value, expected_value, **TOLERANCE[torch.float64])
    assert torch.equal(y, expected)


def test_an_empty_batch() -> None:
    theta = torch.zeros(0, 2, 3)
    assert [t.shape for t in triton_smoothed_passes.value_and_mean(theta, None, 9, 1.0, None)] == [(0,), (0, 2, 3)]
    assert triton_paths.argmax(theta, None, 9)[1].shape == (0, 2, 3)


# ----------------------------------------------------------------------------- public calls

THETA = torch.tensor([[[0.3, 1.0, -0.5], [0.2, 0.9, 0.4]], [[-1.0, 0.5, 2.0], [0.1, 0.0, 0.7]]], dtype=torch.float64)
LENGTHS = torch.tensor([[2, 3], [2, 2]])


def cpu_mean(alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    return dispatch.value_and_mean(THETA, LENGTHS, torch.tensor([9, 9]), alpha, None)


@pytest.mark.parametrize(
    ("relaxation", "options", "alpha"),
    [
        ("marginals", {}, 1.0),
        ("smoothed", {"regularizer": "squared_l2"}, 2.0),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (("smoothed", {"regularizer": "none"}, INF), ("map", {}, INF))
        ),
    ],
)
def test_relaxations(relaxation: str, options: dict[str, str], alpha: float) -> None:
    y = si.relax(THETA, "dtw", relaxation, lengths=LENGTHS, **options)
    assert_close(y, cpu_mean(alpha)[1], **TOLERANCE[torch.float64])


@pytest.mark.full
@pytest.mark.parametrize("regularizer", ["negentropy", "none"])
def test_derivatives_of_soft_dtw(regularizer: str) -> None:
    alpha = float(get_regularizer(regularizer).alpha)
    cost, weight = (-THETA).requires_grad_(), torch.tensor([1.0, -2.0], dtype=torch.float64)
    value = si.soft_dtw(cost, regularizer=regularizer, lengths=LENGTHS)
    expected_value, expected = cpu_mean(alpha)
    assert_close(value, -expected_value)
    (mean,) = torch.autograd.grad(value @ weight, cost, create_graph=True)
    assert_close(mean, weight.view(-1, 1, 1) * expected)
    v = torch.linspace(-1, 1, 12, dtype=torch.float64).view_as(THETA)
    (product,) = torch.autograd.grad(mean.flatten() @ v.flatten(), cost)
    hessian = dispatch.hessian_product(THETA, v, LENGTHS, torch.tensor([9, 9]), alpha)[1]
    assert_close(product, -weight.view(-1, 1, 1) * hessian, rtol=1e-10, atol=1e-12)


@pytest.mark.full
def test_queries() -> None:
    path = si.alignment_path(-THETA, lengths=LENGTHS, band=torch.tensor([1, 2]))
    assert path[1].tolist() == [[0, 0], [0, 1], [1, 1], [-1, -1]]
    generator = torch.Generator().manual_seed(1)
    y = si.sample(THETA, "dtw", 3, lengths=LENGTHS, generator=generator)
    uniforms = torch.rand(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(y, dispatch.sample(THETA, LENGTHS, torch.tensor([9, 9]), 1.0, uniforms)[1])
    best = si.topk(THETA, "dtw", 2, lengths=LENGTHS)
    assert_close(best.scores.mT, dispatch.topk(THETA, LENGTHS, torch.tensor([9, 9]), 2)[0].mT, rtol=0, atol=0)


@pytest.mark.parametrize("band", [0, torch.tensor([1, 0])])
def test_a_band_without_a_path(band: object) -> None:
    with pytest.raises(si.InvalidInputError, match=r"no path through 2 rows and 3 columns .* at batch index"):
        si.soft_dtw(-THETA, band=band)  # type: ignore[arg-type]


def test_an_instance_without_a_path() -> None:
    theta = THETA.clone()
    theta[1, :, 1] = -INF
    with pytest.raises(si.InfeasibleError, match="batch index 1"):
        si.relax(theta, "dtw", "marginals")


@pytest.mark.full
def test_launches_of_a_loss() -> None:
    """Six launches forward and six backward are torch's: signs, temperature, checks, dtypes and the sum."""
    cost = on_device(-THETA.float(), requires_grad=True)
    with LaunchCounter() as count:
        si.soft_dtw(cost, band=3).sum().backward()
    assert count.triton_launches == 2, count.report()
    assert count.launches <= 14, count.report()
    assert (count.synchronisations, count.copies) == (1, 0), count.report()


@pytest.mark.full
def test_launches_of_paths() -> None:
    theta = on_device(THETA)
    for call, launches in ((lambda: si.relax(theta, "dtw", "map"), 2), (lambda: si.sample(theta, "dtw", 2), 3)):
        with LaunchCounter() as count:
            call()
        assert (count.triton_launches, count.copies) == (launches, 0), count.report()


def test_walks_end_in_spite_of_nan() -> None:
    """Checks of scores wait for the end of a call, so that kernels may meet NaN."""
    theta = torch.full((1, 3, 3), math.nan)
    theta[0, 2, 2] = 1
    for alpha in (2.0, INF):
        triton_paths.sample(theta, None, 9, alpha, torch.rand(2, 1, 5, dtype=torch.float64))
    triton_paths.topk(theta, None, 9, 2)
