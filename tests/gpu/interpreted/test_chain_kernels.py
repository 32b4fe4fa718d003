"""Kernels of chains: sums, derivatives, best tags, k best tags and samples, compared with the CPU loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.kernels import parallel_rows, to_numpy, zeros
from structinf.parts import as_tuple
from structinf.regularizers import Tsallis
from structinf_oracles.common.chain_potentials import tag_indicators
from structinf_oracles.kernels.chain import dispatch, triton_dispatch
from structinf_oracles.kernels.chain.k_best import topk
from structinf_oracles.kernels.chain.viterbi import argmax

ALPHAS = [1.0, 1.5, 2.0]
DTYPES = [torch.float32, torch.float64]
TOLERANCE = {
    torch.float64: {"atol": 1e-12, "rtol": 1e-12},
    torch.float32: {"atol": 2e-5, "rtol": 2e-5},
}

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs(
    states: int = 3,
    matrices: int = 1,
    dtype: torch.dtype = torch.float64,
    lengths: Sequence[int] = (3, 2),
    *,
    steps: int = 3,
    forbids: bool = False,
    scale: float = 2,
    batches: tuple[int, int] | None = None,
) -> Inputs:
    """Return random unary scores, transitions and lengths; with ``forbids``, a fifth of the scores is −inf."""
    generator = torch.Generator().manual_seed(0)
    first, second = batches or (len(lengths), len(lengths))
    shapes = (first, steps, states), (second, matrices, states, states)
    unary, transition = (torch.randn(shape, generator=generator, dtype=dtype) * scale for shape in shapes)
    if forbids:
        for t in (unary, transition):
            t[torch.rand(t.shape, generator=generator) < 0.2] = -math.inf
    return unary, transition, torch.tensor(lengths, dtype=torch.int64)


def assert_same(got: Sequence[Tensor], expected: Sequence[Tensor], **tolerance: float) -> None:
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, **(tolerance or TOLERANCE[got[-1].dtype]))


def assert_same_derivatives(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Compare values and derivatives; derivatives of instances without a sequence are 0, and undefined on the CPU."""
    assert_same(got[:1], expected[:1], **TOLERANCE[got[1].dtype])
    feasible = expected[0] > -math.inf
    if not feasible.all():
        assert all((x[~feasible] == 0).all() for x in got[1:])
        got, expected = ([t[feasible] for t in results] for results in (got, expected))
    assert_same(got[1:], expected[1:])


def assert_same_gradients(alpha: float, arguments: Inputs) -> None:
    """Compare values, and gradients times weights, with the results of the CPU loops."""
    u, _, n = arguments
    weight = torch.randn(len(n), generator=torch.Generator().manual_seed(1), dtype=u.dtype)
    assert_same_derivatives(
        triton_dispatch.value_and_mean(*arguments, alpha, weight), dispatch.value_and_mean(*arguments, alpha, weight)
    )


def assert_same_products(alpha: float, arguments: Inputs) -> None:
    """Compare values and Hessian products with the results of the CPU loops."""
    generator = torch.Generator().manual_seed(1)
    v = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in arguments[:2]]
    assert_same_derivatives(
        triton_dispatch.hessian_product(*arguments, alpha, *v), dispatch.hessian_product(*arguments, alpha, *v)
    )


full = pytest.mark.full


def cases(*sample: tuple[float, torch.dtype, int]) -> Any:
    """Mark all combinations of α, dtype and P as ``full``, except the ``sample``."""
    every = [(alpha, dtype, matrices) for alpha in ALPHAS for dtype in DTYPES for matrices in (1, 2)]
    marked = [pytest.param(*case, marks=[] if case in sample else full) for case in every]
    return pytest.mark.parametrize(("alpha", "dtype", "matrices"), marked)


@cases((1.0, torch.float64, 1), (1.5, torch.float32, 2))
def test_sums(alpha: float, dtype: torch.dtype, matrices: int) -> None:
    arguments = inputs(matrices=matrices, dtype=dtype)
    torch.testing.assert_close(
        triton_dispatch.value(*arguments, alpha), dispatch.value(*arguments, alpha), **TOLERANCE[dtype]
    )
    assert_same_gradients(alpha, arguments)
    assert_same_products(alpha, arguments)


@cases((2.0, torch.float64, 1))
def test_forbidden_parts(alpha: float, dtype: torch.dtype, matrices: int) -> None:
    unary, transition, lengths = inputs(matrices=matrices, dtype=dtype, forbids=True)
    unary[1, 1] = -math.inf
    arguments = unary, transition, lengths
    values = dispatch.value(*arguments, alpha)
    assert torch.isfinite(values).tolist() == [True, False]
    assert_same_gradients(alpha, arguments)
    assert_same_products(alpha, arguments)


@cases((1.5, torch.float64, 2), (1.0, torch.float32, 1))
def test_sums_in_tiles(alpha: float, dtype: torch.dtype, matrices: int) -> None:
    arguments = inputs(70, matrices, dtype, [3], forbids=True)
    if dtype == torch.float32:
        assert_same_gradients(alpha, arguments)
    else:
        assert_same_products(alpha, arguments)


@pytest.mark.parametrize("states", [20, pytest.param(40, marks=full)])
def test_sizes_of_a_single_tile(states: int) -> None:
    arguments = inputs(states, dtype=torch.float32, lengths=[2], steps=2)
    assert_same_gradients(1.5, arguments)
    assert_same_products(1.5, arguments)


@pytest.mark.parametrize(("alpha", "matrices"), [(1.0, 0), (1.5, 1)])
def test_a_single_token(alpha: float, matrices: int) -> None:
    arguments = inputs(matrices=matrices, lengths=[1], steps=1)
    assert_same_gradients(alpha, arguments)
    assert_same_products(alpha, arguments)


def test_an_empty_batch() -> None:
    u, a, n = inputs(lengths=[])
    assert triton_dispatch.value(u, a, n, 1.0).shape == (0,)
    assert triton_dispatch.best_tags(u, a, n)[0].shape == (0, 3)
    assert [t.shape[0] for t in triton_dispatch.value_and_mean(u, a, n, 2.0)] == [0, 0, 0]


@pytest.mark.parametrize("batches", [(1, 2), (2, 1), (1, 1)])
def test_tensors_shared_by_the_batch(batches: tuple[int, int]) -> None:
    arguments = inputs(batches=batches)
    assert_same_gradients(1.0, arguments)
    expanded = [t.expand(2, *t.shape[1:]) for t in arguments[:2]]
    got = triton_dispatch.value_and_mean(*expanded, arguments[2], 1.0)
    assert_same(got, triton_dispatch.value_and_mean(*arguments, 1.0), atol=0, rtol=0)


def test_memory_that_is_not_contiguous() -> None:
    u, a, n = inputs(matrices=2)
    assert_same_gradients(1.0, (u.transpose(1, 2).contiguous().transpose(1, 2), a.transpose(2, 3), n))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1.0, pytest.param(1.5, marks=full), pytest.param(2.0, marks=full)])
def test_large_scores(alpha: float, dtype: torch.dtype) -> None:
    u, a, n = inputs(dtype=dtype, scale=1000)
    value, nodes, edges = triton_dispatch.value_and_mean(u, a, n, alpha)
    expected, *means = dispatch.value_and_mean(u.double(), a.double(), n, alpha)
    torch.testing.assert_close(value, expected, rtol=1e-6 if dtype == torch.float32 else 1e-13, atol=0)
    assert_same([nodes.double(), edges.double()], means, **TOLERANCE[dtype])


def test_value_without_regularizer() -> None:
    for states in (3, 70):
        arguments = inputs(states, forbids=True)
        assert torch.equal(triton_dispatch.value(*arguments, math.inf), dispatch.value(*arguments, math.inf))


def tied_inputs(states: int, matrices: int, dtype: torch.dtype, lengths: Sequence[int]) -> Inputs:
    """Return scores that are multiples of 0.1, of which many are equal, also up to rounding."""
    u, a, n = inputs(states, matrices, dtype, lengths, forbids=states == 3, scale=1.5)
    return u.round() / 10, a.round() / 10, n


def cpu_best_tags(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    batch, (steps, states) = len(lengths), unary.shape[1:]
    nodes = zeros(batch, steps, states, dtype=unary.dtype)
    edges = zeros(batch, transition.shape[1], states, states, dtype=unary.dtype)
    feasible = torch.empty(batch, dtype=torch.bool)
    parallel_rows(argmax, batch, *to_numpy(unary, transition, lengths, feasible, nodes, edges), work=1)
    return nodes.argmax(2), feasible


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("states", "matrices"), [(3, 1), (3, 2), (70, 1), (70, 2)])
def test_best_tags(dtype: torch.dtype, states: int, matrices: int) -> None:
    arguments = tied_inputs(states, matrices, dtype, [3, 3, 2] if states == 3 else [3])
    arguments[0][-1, 0] = -math.inf if states == 3 else 0
    tags, feasible = triton_dispatch.best_tags(*arguments)
    expected, expected_feasible = cpu_best_tags(*arguments)
    assert torch.equal(feasible, expected_feasible)
    assert torch.equal(tags[feasible], expected[feasible])


@pytest.mark.parametrize(("states", "matrices", "k"), [(3, 1, 1), (3, 2, 5), (2, 1, 12), (70, 1, 3)])
def test_k_best(states: int, matrices: int, k: int) -> None:
    arguments = tied_inputs(states, matrices, torch.float32, [3, 1] if states < 9 else [3])
    batch = len(arguments[2])
    tags, scores = torch.zeros(k, batch, 3, dtype=torch.int64), torch.empty(k, batch, dtype=torch.float64)
    parallel_rows(topk, batch, *to_numpy(*arguments, tags, scores), work=1)
    got_tags, got_scores = triton_dispatch.topk(*arguments, k)
    assert torch.equal(got_scores, scores)
    assert torch.equal(got_tags, tags)


@pytest.mark.parametrize(("alpha", "states", "matrices"), [(1.0, 3, 1), (1.5, 3, 2), (2.0, 70, 1)])
def test_same_uniforms_give_the_same_tags(alpha: float, states: int, matrices: int) -> None:
    arguments = inputs(states, matrices, forbids=True)
    uniforms = torch.rand(6, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    uniforms[0], uniforms[1] = 0, 1 - 2.0**-53
    value, tags = triton_dispatch.sample(*arguments, alpha, uniforms)
    expected, expected_tags = dispatch.sample(*arguments, alpha, uniforms)
    torch.testing.assert_close(value, expected)
    assert torch.equal(tags, expected_tags)


@pytest.mark.parametrize(("states", "most"), [(3, 1), (70, 2)])
def test_launches(states: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    u, a, n = inputs(states)
    launched: list[Any] = []
    monkeypatch.setattr(triton_dispatch, "launch", lambda kernel, *_, **__: launched.append(kernel))
    for name, more, count in [
        ("value", (1.0,), 1),
        ("value_and_mean", (1.0,), most),
        ("hessian_product", (1.0, u, a), most),
        ("best_tags", (), 1),
        ("topk", (2,), 1),
        ("sample", (1.0, u[None, :, :, 0]), 2),
    ]:
        launched.clear()
        getattr(triton_dispatch, name)(u, a, n, *more)
        assert len(launched) == count, name


# ----------------------------------------------------------------------------- public calls


def leaves(form: str) -> list[Tensor]:
    unary, transition, _ = inputs(matrices=2)
    theta = {"shared": [unary, transition[:1, 0]], "steps": [unary, transition], "edges": [transition]}[form]
    return [t.clone().requires_grad_() for t in theta]


def results_of(form: str) -> list[Tensor]:
    """Return results of public calls, their gradients, and gradients of gradients."""
    tensors = leaves(form)
    theta: Any = tuple(tensors) if len(tensors) > 1 else tensors[0]
    options: dict[str, Any] = {"lengths": [3, 1]}
    parts = [si.relax(theta, "chain", name, **options) for name in ("map", "sparsemap", "marginals")]
    parts.append(si.relax(theta, "chain", si.get_relaxation("smoothed", regularizer=Tsallis(alpha=1.5)), **options))
    y = si.encode(torch.tensor([[1, 2, 0], [0, -1, -1]]), theta, "chain", **options)
    loss = si.FenchelYoungLoss("chain", "marginals")(theta, y, **options).sum()
    first = torch.autograd.grad(loss, tensors, create_graph=True)
    second = torch.autograd.grad(sum((t**2).sum() for t in first), tensors)
    samples = si.sample(theta, "chain", 4, generator=torch.Generator().manual_seed(0), **options)
    best = si.topk(theta, "chain", 3, **options)
    flat = [t for y in [*parts, samples, best.structures] for t in (y if isinstance(y, tuple) else [y])]
    return [*flat, best.scores, loss, *first, *second]


@full
@pytest.mark.parametrize("form", ["edges", "steps", "shared"])
def test_public_calls(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = results_of(form)
    monkeypatch.setattr("structinf.smoothing.interprets_kernels", lambda: False)
    for module in ("chain", "common.chain_loops"):
        monkeypatch.setattr(f"structinf_oracles.{module}.uses_triton", lambda _: False)
    assert_same([t.detach() for t in results], [t.detach() for t in results_of(form)], atol=1e-11, rtol=1e-11)


def test_errors_of_infeasible_instances() -> None:
    unary, transition = torch.zeros(2, 3, 2), torch.zeros(2, 2)
    unary[1, 1] = -math.inf
    for name in ("map", "marginals"):
        with pytest.raises(si.InfeasibleError) as raised:
            si.relax((unary, transition), "chain", name)
        assert raised.value.batch_index == 1


@pytest.mark.full
def test_third_derivatives() -> None:
    """Autograd differentiates torch operations."""
    unary = inputs(lengths=[1], steps=2)[0].requires_grad_()
    transition = torch.zeros(1, 3, 3, dtype=torch.float64)

    def second(u: Tensor) -> Tensor:
        first = torch.autograd.grad(si.log_partition((u, transition), "chain").sum(), u, create_graph=True)[0]
        return torch.autograd.grad((first**2).sum(), u, create_graph=True)[0]

    assert torch.autograd.gradcheck(second, unary, fast_mode=True)


@pytest.mark.parametrize("form", ["shared", "steps", "edges"])
def test_tag_indicators(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    tags = torch.randint(3, (2, 3, 4), generator=generator)
    unary, edges = torch.empty(3, 4, 3), torch.empty(3, 3, 3, 3, dtype=torch.float64)
    theta = {"shared": (unary, torch.empty(1, 3, 3)), "steps": (unary.double(), edges), "edges": edges}[form]
    for lengths in (None, torch.tensor([4, 1, 2]), torch.tensor([[4, 0, 2], [3, 4, 1]])):
        got = as_tuple(tag_indicators(tags, lengths, theta))
        with monkeypatch.context() as patched:
            patched.setattr("structinf_oracles.common.chain_potentials.uses_triton", lambda _: False)
            expected = as_tuple(tag_indicators(tags, lengths, theta))
        assert all(map(torch.equal, got, expected))
        assert [t.dtype for t in got] == [t.dtype for t in expected]
    long, wide = torch.randint(40, (1, 50), generator=generator), (torch.empty(1, 50, 40), torch.empty(1, 40, 40))
    nodes, counts = tag_indicators(long, None, wide)
    assert torch.equal(nodes.argmax(2), long)
    assert counts.sum() == 49
    assert tag_indicators(tags[:, :0], None, theta if form == "edges" else wide) is not None
