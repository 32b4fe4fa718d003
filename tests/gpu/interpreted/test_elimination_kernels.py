"""Sums over trees by the Triton kernels of the elimination, against the compiled loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf_oracles.kernels.arborescence import marginals, torch_backend, triton_elimination
from structinf_oracles.kernels.arborescence.dispatch import _arrays, _run


def compiled(theta: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """Return log Z and marginals by the loops of the CPU, whatever the mode of the process."""
    size, n, scores, counts, status = _arrays(theta, lengths)
    value = torch.empty(size, dtype=torch.float64)
    means = torch.zeros(size, n + 1, n + 1, dtype=torch.float64)
    kernel = marginals.value_and_mean
    _run(kernel, status, n**3, scores, None, counts, single_root, ..., value.numpy(), means.numpy(), None, status)
    return value, means


def compiled_product(theta: Tensor, v: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Return the Hessian product by the loops of the CPU, whatever the mode of the process."""
    size, n, scores, counts, status = _arrays(theta, lengths)
    value, product = torch.empty(size, dtype=torch.float64), torch.zeros(size, n + 1, n + 1, dtype=torch.float64)
    arguments = scores, v.expand_as(theta).contiguous().numpy(), counts, single_root, ..., value.numpy()
    _run(marginals.value_and_mean, status, n**3, *arguments, None, product.numpy(), status)
    return product


def draw(batch: int, words: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(words)
    return (scale * torch.randn(batch, words + 1, words + 1, dtype=torch.float64, generator=generator)).to(dtype)


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize(
    ("words", "scale"),
    [
        (1, 1.0),
        (2, 1000.0),
        *(pytest.param(*case, marks=pytest.mark.full) for case in ((4, 1000.0), (5, 1.0), (5, 1000.0), (9, 0.03))),
    ],
)
def test_agrees_with_the_compiled_loops(words: int, scale: float, single_root: bool) -> None:
    theta, lengths = draw(3, words, scale), torch.tensor([words, max(1, words - 1), 1])
    value, means = triton_elimination.log_partition_and_marginals(theta, lengths, single_root)
    expected_value, expected_means = compiled(theta, lengths, single_root)
    torch.testing.assert_close(value, expected_value, rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(means, expected_means, rtol=0, atol=1e-12)
    assert torch.equal(triton_elimination.log_partition(theta, lengths, single_root), value)
    v = draw(1, words).flip(1)
    value_again, product = triton_elimination.covariance_product(theta, v, lengths, single_root)
    assert torch.equal(value_again, value)
    torch.testing.assert_close(product, compiled_product(theta, v, lengths, single_root), rtol=0, atol=1e-12)


@pytest.mark.parametrize("single_root", [False, True])
def test_forbidden_arcs(single_root: bool) -> None:
    theta = draw(4, 4)
    theta[0, 0, 1:] = -math.inf  # no root
    theta[1, 0, 2:] = -math.inf  # a single arc of the root
    theta[2, :, 3] = -math.inf
    theta[2, 1, 3] = 0.5  # a certain arc
    theta[3, 1:, 2] = -math.inf  # two words that need the root
    theta[3, 1:, 3] = -math.inf
    lengths = torch.full((4,), 4)
    value, means = triton_elimination.log_partition_and_marginals(theta, lengths, single_root)
    expected_value, expected_means = compiled(theta, lengths, single_root)
    torch.testing.assert_close(value, expected_value, rtol=1e-13, atol=1e-12)
    feasible = value > -math.inf
    assert feasible.tolist() == [False, True, True, not single_root]
    torch.testing.assert_close(means[feasible], expected_means[feasible], rtol=0, atol=1e-12)
    v = draw(4, 4).flip(0)
    product = triton_elimination.covariance_product(theta, v, lengths, single_root)[1]
    expected = compiled_product(theta, v, lengths, single_root)
    torch.testing.assert_close(product[feasible], expected[feasible], rtol=0, atol=1e-12)


@pytest.mark.full
def test_float32_scores_and_blocks_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = triton_elimination._blocks
    monkeypatch.setattr(triton_elimination, "_blocks", lambda *args: {**blocks(*args), "ROWS": 2})
    theta, lengths = draw(2, 4, dtype=torch.float32), torch.tensor([4, 3])
    value, means = triton_elimination.log_partition_and_marginals(theta, lengths, False)
    expected_value, expected_means = compiled(theta, lengths, False)
    torch.testing.assert_close(value, expected_value, rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(means.double(), expected_means, rtol=0, atol=1e-7)
    assert means.dtype == torch.float32
    v = draw(2, 4).flip(0)
    product = triton_elimination.covariance_product(theta, v.float(), lengths, False)[1]
    torch.testing.assert_close(product.double(), compiled_product(theta, v, lengths, False), rtol=0, atol=1e-6)


def test_an_empty_batch() -> None:
    value, means = triton_elimination.log_partition_and_marginals(torch.zeros(0, 4, 4), torch.zeros(0).long(), False)
    assert value.shape == (0,)
    assert means.shape == (0, 4, 4)
    empty = torch.zeros(0, 4, 4)
    assert triton_elimination.covariance_product(empty, empty, torch.zeros(0).long(), True)[1].shape == (0, 4, 4)


def test_instances_do_not_depend_on_the_batch() -> None:
    theta, lengths = draw(3, 5), torch.tensor([5, 4, 3])
    value, means = triton_elimination.log_partition_and_marginals(theta, lengths, True)
    alone = triton_elimination.log_partition_and_marginals(theta[1:2], lengths[1:2], True)
    assert torch.equal(alone[0], value[1:2])
    assert torch.equal(alone[1], means[1:2])


def test_public_calls_and_their_gradients() -> None:
    theta = draw(2, 3).transpose(1, 2).requires_grad_()  # not contiguous
    mean = si.relax(theta, "arborescence", "marginals", single_root=True)
    lengths = torch.tensor([3, 3])
    torch.testing.assert_close(mean.detach(), compiled(theta.detach(), lengths, True)[1], rtol=0, atol=1e-12)
    weight = draw(2, 3).flip(0)
    (gradient,) = torch.autograd.grad((mean * weight).sum(), theta)
    with torch.enable_grad():
        z = torch_backend.log_partition(theta, None, True).sum()
        (slope,) = torch.autograd.grad(z, theta, create_graph=True)
        (expected,) = torch.autograd.grad((slope * weight).sum(), theta)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    y = si.relax(theta.detach(), "arborescence", "map")
    loss = si.FenchelYoungLoss("arborescence", "marginals")(theta, y)
    (gradient,) = torch.autograd.grad(loss, theta)
    torch.testing.assert_close(gradient * 2, compiled(theta.detach(), lengths, False)[1] - y, rtol=0, atol=1e-12)


def test_spanning_trees() -> None:
    scores = torch.tensor([[0.3, -0.2, 1.0, 0.1, 0.0]], dtype=torch.float64)
    edges = ((0, 1), (1, 2), (2, 0), (2, 3), (0, 1))
    value = si.log_partition(scores, "spanning_tree", edges=edges)
    mean = si.relax(scores, "spanning_tree", "marginals", edges=edges)
    trees = si.get_oracle("spanning_tree", edges=edges).enumerate((5,)).double()
    totals = trees @ scores[0]
    torch.testing.assert_close(value[0], totals.logsumexp(0))
    torch.testing.assert_close(mean[0], totals.softmax(0) @ trees)
    v = torch.arange(5, dtype=torch.float64)
    product = si.get_oracle("spanning_tree", edges=edges).covariance_product(scores, v[None])
    moments = trees * totals.softmax(0)[:, None]
    torch.testing.assert_close(product[0], moments.T @ (trees @ v) - mean[0] * (mean[0] @ v))


def test_spanning_trees_of_a_matrix() -> None:
    theta, oracle = draw(3, 3), si.get_oracle("spanning_tree")
    theta[0, 0, 2] = -math.inf
    lengths = torch.tensor([4, 3, 1])
    value = si.log_partition(theta, oracle, lengths=lengths)
    leaf = theta.clone().requires_grad_()
    mean = si.relax(leaf, oracle, "marginals", lengths=lengths)
    weight = draw(1, 3)[0]
    (gradient,) = torch.autograd.grad((mean * weight).sum(), leaf)
    for b, length in enumerate(lengths.tolist()):
        trees = oracle.bind(lengths=lengths[b : b + 1]).enumerate((4, 4)) if length > 1 else torch.zeros(1, 4, 4)
        trees = trees.double().flatten(1)
        totals = torch.where(trees > 0, theta[b].flatten(), 0.0).sum(1)
        torch.testing.assert_close(value[b], totals.logsumexp(0))
        expected, v = totals.softmax(0) @ trees, weight.flatten()
        torch.testing.assert_close(mean[b].detach().flatten(), expected)
        product = (trees * totals.softmax(0)[:, None]).T @ (trees @ v) - expected * (expected @ v)
        torch.testing.assert_close(gradient[b].flatten(), product)
