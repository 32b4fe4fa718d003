"""Small inputs whose right values are known, by enumeration or by counting, through the calls that users make."""

from __future__ import annotations

import math

import pytest
import torch

from structinf import FenchelYoungLoss, InfeasibleError, get_oracle, infer, relax

INF = torch.inf


def log_count(theta, oracle, **options) -> float:
    """log Z of potentials that are 0 where allowed: the logarithm of the number of structures."""
    return infer(theta, oracle, "marginals", **options).value.tolist()


# ----------------------------------------------------------------------------- chains


def test_counts_of_sequences_shorter_than_the_padding():
    edges = torch.zeros(2, 4, 2, 2)
    assert log_count(edges, "chain", lengths=[3, 2]) == pytest.approx([3 * math.log(2), 2 * math.log(2)])


@pytest.mark.parametrize("where", ["every step", "middle"])
def test_forbidden_transitions_leave_finite_derivatives(where):
    unary = torch.zeros(3, 3, requires_grad=True)
    transitions = torch.zeros(2, 3, 3)
    if where == "every step":
        transitions[:, 0, 1] = -INF  # 21 of 27 sequences are left
        count = 21
    else:
        transitions[0, :, 2] = -INF  # one state cannot be reached in the middle
        count = 18
    transitions.requires_grad_()
    solution = infer((unary, transitions), "chain", "marginals")
    assert solution.value.item() == pytest.approx(math.log(count))
    gradients = torch.autograd.grad(solution.mean[0].square().sum() + solution.value, (unary, transitions))
    assert all(g.isfinite().all() for g in gradients)
    assert not gradients[1][transitions.isneginf()].any()


def test_a_likelihood_and_the_best_path():
    unary = torch.tensor([[1, 0], [0, 2], [0.5, 0]], dtype=torch.float64)
    transition = torch.tensor([[0, 1], [-1, 0.5]], dtype=torch.float64)
    best = infer((unary, transition), "chain", "map")
    assert get_oracle("chain").decode(tuple(t[None] for t in best.mean)).tolist() == [[0, 1, 1]]
    assert best.value.item() == 4.5
    gibbs = infer((unary, transition), "chain", "marginals")
    assert gibbs.value.item() == pytest.approx(5.100381, abs=1e-6)
    expected = [[0.822767, 0.177233], [0.082136, 0.917864], [0.277861, 0.722139]]
    torch.testing.assert_close(gibbs.mean[0], torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    loss = FenchelYoungLoss("chain", "marginals")((unary, transition), torch.tensor([0, 1, 1]))
    assert math.exp(-loss) == pytest.approx(0.548603, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_full(dtype):
    value = infer((torch.zeros(64, 16, dtype=dtype), torch.zeros(16, 16, dtype=dtype)), "chain", "marginals").value
    assert value.dtype == dtype
    assert value.item() == pytest.approx(64 * math.log(16), abs=0.6 if dtype is torch.bfloat16 else 0.1)


# ----------------------------------------------------------------------------- trees


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("single_root", "counts"), [(False, [1, 3, 16, 125, 1296]), (True, [1, 2, 9, 64, 625])])
def test_counts_of_trees(single_root, counts, dtype):
    for words, count in enumerate(counts, 1):
        found = log_count(torch.zeros(words + 1, words + 1, dtype=dtype), "arborescence", single_root=single_root)
        assert found == pytest.approx(math.log(count), abs=2 * torch.finfo(dtype).eps * math.log(2000))


def test_both_root_settings_for_two_words():
    expected = {
        False: [[0, 2 / 3, 2 / 3], [0, 0, 1 / 3], [0, 1 / 3, 0]],
        True: [[0, 0.5, 0.5], [0, 0, 0.5], [0, 0.5, 0]],
    }
    for single_root, marginals in expected.items():
        mean = relax(torch.zeros(3, 3), "arborescence", "marginals", single_root=single_root)
        torch.testing.assert_close(mean, torch.tensor(marginals))


def test_heads_picked_one_by_one_would_be_a_cycle():
    theta = torch.tensor([[0, 1.0, 0], [0, 0, 10], [0, 10, 0]])
    solution = infer(theta, "arborescence", "map")
    assert get_oracle("arborescence").decode(solution.mean[None]).tolist() == [[0, 1]]
    assert solution.value.item() == 11


@pytest.mark.parametrize("scale", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("single_root", [False, True])
def test_float32_trees_agree_with_float64_at_large_scales(single_root, scale):
    theta = scale * torch.randn(8, 12, 12, generator=torch.Generator().manual_seed(0))
    single = infer(theta, "arborescence", "marginals", single_root=single_root)
    double = infer(theta.double(), "arborescence", "marginals", single_root=single_root)
    torch.testing.assert_close(single.value.double(), double.value, rtol=2e-7, atol=2e-6)
    assert ((single.mean.sum(1)[:, 1:] - 1).abs() < 1e-5).all()


# ----------------------------------------------------------------------------- assignments

SCORES = torch.tensor([[1, 0.5, 0], [0.2, 0, 0.4], [0, 0.1, 0.3]], dtype=torch.float64)


def test_an_assignment_and_its_three_best():
    assert infer(SCORES, "assignment", "map").value.item() == pytest.approx(1.5)
    oracle = get_oracle("assignment")
    structures, scores, valid = oracle.topk(SCORES[None], 7)
    assert oracle.decode(structures[0]).tolist() == [[0, 2, 1]]
    assert scores[:3, 0].tolist() == pytest.approx([1.5, 1.3, 1.0])
    assert valid[:, 0].tolist() == [True] * 6 + [False]


def test_sparse_assignments():
    expected = torch.tensor([[78, 42, 0], [29, 29, 62], [13, 49, 58]], dtype=torch.float64) / 120
    torch.testing.assert_close(relax(SCORES, "assignment", "sparsemap", tolerance=0), expected)
    solution = infer(torch.tensor([[1.0, 0], [0, 0.5]]), "assignment", "sparsemap", tolerance=0)
    torch.testing.assert_close(solution.mean, torch.tensor([[0.875, 0.125], [0.125, 0.875]]))


@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 2)])
def test_costs_are_minimised_by_their_negation(shape):
    cost = torch.rand(*shape, generator=torch.Generator().manual_seed(0))
    y = relax(-cost, "assignment", "map")
    assert y.sum() == min(shape)
    assert torch.equal(y, relax(100 - cost, "assignment", "map"))  # only differences count
    others = [relax(torch.randn(*shape), "assignment", "map") for _ in range(20)]
    assert all((cost * y).sum() <= (cost * other).sum() for other in others)


def test_forbidden_pairs_are_not_merely_costly():
    cost = torch.tensor([[1.0, INF], [2.0, INF]])
    with pytest.raises(InfeasibleError, match="batch index 0"):
        relax(-cost, "assignment", "map")
    assert relax(-cost, "assignment", "map", allow_unmatched=True).tolist() == [[1, 0], [0, 0]]


# ----------------------------------------------------------------------------- one of several


def test_ties_give_a_vertex():
    assert relax(torch.tensor([0.6, 0.6, 0.3]), "categorical", "map").tolist() == [1, 0, 0]
    for oracle, shape in (("categorical", (4,)), ("assignment", (3, 3)), ("arborescence", (4, 4))):
        y = relax(torch.zeros(2, *shape), oracle, "map")
        assert ((y == 0) | (y == 1)).all()


def test_forbidden_parts_are_as_if_they_were_not_there():
    theta = torch.tensor([1.0, 2.0, -INF, 0.0])
    for relaxation in ("map", "marginals", "sparsemap"):
        without = relax(theta[[0, 1, 3]], "categorical", relaxation)
        torch.testing.assert_close(relax(theta, "categorical", relaxation)[[0, 1, 3]], without)
        assert relax(theta, "categorical", relaxation)[2] == 0


def test_sparsemax_and_softmax():
    theta = torch.tensor([-2.0, 0.0, 0.5])
    torch.testing.assert_close(relax(theta, "categorical", "sparsemap"), torch.tensor([0, 0.25, 0.75]))
    torch.testing.assert_close(relax(theta, "categorical", "marginals"), theta.softmax(0))
