"""RelaxedLoss: distances between the right structure and the relaxed one."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from structinf import InvalidInputError, RelaxedLoss, SquaredL2, Tsallis


def unary_and_transition(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 4, 3, dtype=dtype), torch.randn(3, 3, dtype=dtype)


TAGS = torch.tensor([[0, 1, 2, 1], [2, 2, 0, 1]])


def test_squared_l2_is_half_the_squared_distance_of_the_tags():
    theta = unary_and_transition()
    loss = RelaxedLoss("chain", "marginals", reduction="none")(theta, TAGS)
    mean, gold = si.relax(theta, "chain", "marginals")[0], si.encode(TAGS, theta, "chain")[0]
    torch.testing.assert_close(loss, 0.5 * (mean - gold).square().sum((1, 2)))


def test_kl_is_minus_the_log_of_the_right_tags_marginals():
    theta = unary_and_transition()
    loss = RelaxedLoss("chain", "marginals", distance="kl", reduction="none")(theta, TAGS)
    mean = si.relax(theta, "chain", "marginals")[0]
    torch.testing.assert_close(loss, -mean.gather(2, TAGS.unsqueeze(2)).log().sum((1, 2)))


def test_kl_is_infinite_where_a_sparse_mean_excludes_the_right_part():
    theta = torch.tensor([[5.0, 0.0, 0.0]])
    loss = RelaxedLoss("categorical", "sparsemap", distance="kl")
    assert loss(theta, torch.tensor([1])).item() == math.inf
    assert loss(theta, torch.tensor([0])).item() == 0.0


def test_area_counts_the_cells_between_two_paths():
    # One column in each row: the area is the sum over rows of the distance of the columns.
    columns, others = torch.tensor([0, 0, 1, 3]), torch.tensor([0, 2, 3, 3])
    path = torch.nn.functional.one_hot(columns, 4).double()
    gold = torch.nn.functional.one_hot(others, 4).double()
    loss = RelaxedLoss(FixedMatrix(), "sparsemap", distance="area")
    assert loss(path[None], gold[None]).item() == (columns - others).abs().sum().item()


class FixedMatrix(si.Oracle):
    """θ is the only structure."""

    event_ndim = 2

    def argmax(self, theta: torch.Tensor) -> torch.Tensor:
        return theta.clone()


def test_area_of_padded_instances_is_that_of_each_alone():
    theta, gold = torch.randn(2, 4, 4, dtype=torch.float64), torch.tensor([[0, 1, 2, 3], [1, 0, -1, -1]])
    loss = RelaxedLoss("assignment", "sparsemap", distance="area", reduction="none")
    both = loss(theta, gold, lengths=[[4, 4], [2, 2]])
    alone = loss(theta[1:, :2, :2], gold[1:, :2])
    torch.testing.assert_close(both[1:], alone)


def running_area(y: torch.Tensor, mean: torch.Tensor) -> list[float]:
    return [
        sum(sum(row[: j + 1].tolist()) ** 2 for row in m - g for j in range(len(row)))
        for g, m in zip(y, mean, strict=True)
    ]


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("mode", ["global", "local"])
def test_area_of_alignments_is_that_of_their_matches(mode: str, affine: bool) -> None:
    gap = torch.randn(2, 2, 2, dtype=torch.float64)
    theta = torch.randn(2, 3, 4, dtype=torch.float64), gap if affine else gap[:, 0]
    labels, options = torch.tensor([[[0, 1], [2, 2], [-1, -1]]]).expand(2, 3, 2), {"mode": mode, "affine": affine}
    loss = RelaxedLoss("needleman_wunsch", "marginals", distance="area", reduction="none", **options)
    mean, gold = si.relax(theta, "needleman_wunsch", "marginals", **options), si.encode(labels, theta, loss.oracle)
    assert loss(theta, labels).tolist() == pytest.approx(running_area(gold[0], mean[0]))
    short = torch.tensor([[[0, 1], [2, 2], [-1, -1]], [[0, 1], [-1, -1], [-1, -1]]])
    both = loss(theta, short, lengths=[[3, 4], [2, 2]])
    alone = loss((theta[0][1:, :2, :2], theta[1][1:]), short[1:, :2])
    torch.testing.assert_close(both[1:], alone)


def test_area_of_tags_leaves_out_their_transitions():
    theta = unary_and_transition()
    mean, gold = si.relax(theta, "chain", "marginals")[0], si.encode(TAGS, theta, "chain")[0]
    loss = RelaxedLoss("chain", "marginals", distance="area", reduction="none")
    assert loss(theta, TAGS).tolist() == pytest.approx(running_area(gold, mean))
    short = loss(theta, TAGS, lengths=[4, 2])
    alone = loss((theta[0][1:, :2], theta[1]), TAGS[1:, :2])
    torch.testing.assert_close(short[1:], alone)


@pytest.mark.parametrize(
    ("relaxation", "options"), [("map", {}), ("smoothed", {"regularizer": "none"}), (si.get_relaxation("map"), {})]
)
def test_a_mean_without_a_gradient_is_refused(relaxation, options) -> None:
    with pytest.raises(si.UnsupportedError, match=r"^the gradient of .* is 0, .*FenchelYoungLoss"):
        RelaxedLoss("chain", relaxation, **options)


@pytest.mark.parametrize("distance", ["squared_l2", "kl"])
@pytest.mark.parametrize("relaxation", ["marginals", "smoothed"])
def test_derivatives(relaxation: str, distance: str) -> None:
    loss = RelaxedLoss("categorical", relaxation, distance=distance, reduction="none")
    theta = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: loss(t, torch.tensor([1, 3])), theta)
    assert gradgradcheck(lambda t: loss(t, torch.tensor([1, 3])), theta)


@pytest.mark.parametrize("regularizer", [SquaredL2(), Tsallis(alpha=1.5)])
def test_derivatives_under_sparse_regularizers(regularizer: si.Regularizer) -> None:
    loss = RelaxedLoss("categorical", "smoothed", regularizer=regularizer, reduction="none")
    theta = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: loss(t, torch.tensor([1, 3])), theta)


def test_a_distance_of_ones_own():
    def cubes(y: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return (y - mean).abs().pow(3).sum(1)

    loss = RelaxedLoss("categorical", "marginals", distance=cubes, reduction="sum")
    theta = torch.zeros(2, 2)
    assert loss(theta, torch.tensor([0, 1])).item() == pytest.approx(4 / 8)
    with pytest.raises(InvalidInputError, match=r"shape \(2,\), got \(\)"):
        RelaxedLoss("categorical", distance=lambda y, mean: mean.sum())(theta, torch.tensor([0, 1]))


def test_reductions_of_an_empty_batch():
    theta, labels = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    for distance in ("squared_l2", "kl"):
        assert RelaxedLoss("categorical", distance=distance)(theta, labels).item() == 0
        assert RelaxedLoss("categorical", distance=distance, reduction="none")(theta, labels).shape == (0,)


def test_what_is_refused():
    with pytest.raises(InvalidInputError, match='distance must be "squared_l2", "kl", "area" or a callable'):
        RelaxedLoss("categorical", distance="l1")
    with pytest.raises(InvalidInputError, match="reduction must be"):
        RelaxedLoss("categorical", reduction="max")
    with pytest.raises(InvalidInputError, match="compares alignment matrices"):
        RelaxedLoss("categorical", distance="area")(torch.zeros(2, 3), torch.tensor([0, 1]))


def test_state_of_inner_relaxations_is_in_the_loss() -> None:
    inner = si.get_relaxation("adaptive_imle")
    loss = si.RelaxedLoss("categorical", "stochastic", base_relaxation=inner)
    assert set(loss.state_dict()) == {"inner.0.alpha", "inner.0.nonzeros"}
    assert "inner" not in dict(si.RelaxedLoss("categorical", inner).named_children())
