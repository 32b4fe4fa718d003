"""A k of each instance for subset and correlated_subset: each instance has the answer that it gets alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import enumerators_subsets as subsets
import structinf as si
from structinf.errors import InfeasibleError, InvalidInputError
from structinf.parts import as_tuple
from structinf.testing import check_oracle

INF = torch.inf
SIZES = [0, 2, 5, 3]
LENGTHS = [3, 4, 5, 3]
RELAXATIONS: list[tuple[str, dict[str, Any]]] = [
    ("map", {}),
    ("marginals", {}),
    ("sparsemap", {}),
    ("smoothed", {"regularizer": "squared_l2"}),
    ("frank_wolfe", {"regularizer": "entropy"}),
]


def scores(oracle: str, batch: int = 4, size: int = 5) -> Any:
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, size, dtype=torch.float64, generator=generator)
    if oracle == "subset":
        return unary
    return unary, torch.randn(batch, size - 1, dtype=torch.float64, generator=generator)


def row(theta: Any, b: int, length: int | None = None) -> Any:
    """The instance b, without its padding."""
    if isinstance(theta, Tensor):
        return theta[b, :length]
    return theta[0][b, :length], theta[1][b, : None if length is None else length - 1]


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("oracle", ["subset", "subset, at most", "correlated_subset"])
def test_each_instance_has_the_answer_that_it_gets_alone(oracle: str, lengths: list[int] | None) -> None:
    name, options = oracle.split(",")[0], {"at_most": True} if "most" in oracle else {}
    theta, k = scores(name), torch.tensor(SIZES)
    for relaxation, own in RELAXATIONS:
        if name != "subset" and relaxation == "frank_wolfe":
            continue
        mean = si.relax(theta, name, relaxation, k=k, lengths=lengths, **options, **own)
        for b, size in enumerate(SIZES):
            length = None if lengths is None else lengths[b]
            alone = si.relax(row(theta, b, length), name, relaxation, k=size, **options, **own)
            for t, a in zip(as_tuple(mean), as_tuple(alone), strict=True):
                part = t[b, : a.shape[0]]
                # Interior points of correlated subsets depend on the graph that all instances share.
                is_exact = relaxation != "sparsemap" or name == "subset"
                torch.testing.assert_close(part, a, rtol=0 if is_exact else 1e-4, atol=0 if is_exact else 1e-4)
                assert not t[b, a.shape[0] :].any()
    counts = si.count(theta, name, k=k, lengths=lengths, **options)
    for b, size in enumerate(SIZES):
        alone = row(theta, b, None if lengths is None else lengths[b])
        assert [counts[b]] == si.count(alone, name, k=size, **options)


def test_against_enumeration() -> None:
    theta = scores("subset")
    z = si.log_partition(theta, "subset", k=torch.tensor(SIZES))
    for b, k in enumerate(SIZES):
        every = torch.stack([torch.as_tensor(y[0]) for y in subsets.subset(5, k)]).double()
        torch.testing.assert_close(z[b], (every @ theta[b]).logsumexp(0))


@pytest.mark.parametrize("relaxation", ["marginals", "sparsemap", "soft_subset", "frank_wolfe"])
def test_gradients(relaxation: str) -> None:
    theta = scores("subset").requires_grad_()
    options = {"regularizer": "binary_entropy"} if relaxation == "frank_wolfe" else {}
    assert gradcheck(lambda t: si.relax(t, "subset", relaxation, k=torch.tensor(SIZES), **options), theta)


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"at_most": True}])
def test_laws(options: dict[str, Any], conformance_dtypes: Any) -> None:
    data = {"lengths": [3, 4, 4, 2], "k": [0, 2, 4, 1]}
    check_oracle(si.get_oracle("subset", k=2, **options), (4,), instance_data=data, dtypes=conformance_dtypes)
    if not options:
        check_oracle(
            si.get_oracle("correlated_subset", k=2), ((4,), (3,)), instance_data=data, dtypes=conformance_dtypes
        )


def test_numbers_tensors_and_lists() -> None:
    theta = scores("subset")
    both = si.relax(theta, "subset", "map", k=2)
    for k in (torch.tensor(2), torch.tensor([2, 2, 2, 2]), [2, 2, 2, 2], torch.tensor([2], dtype=torch.int32)):
        assert torch.equal(si.relax(theta, "subset", "map", k=k), both)
    layer, with_option = si.Layer("subset", "map"), si.Layer("subset", "map", k=1)
    assert torch.equal(layer(theta, k=2), both)
    assert with_option(theta).sum() == 4
    assert torch.equal(with_option(theta, k=torch.tensor(2)), both)
    grid = si.relax(theta.view(2, 2, 5), "subset", "map", k=torch.tensor([[1], [3]]))
    assert grid.sum(-1).tolist() == [[1, 1], [3, 3]]
    empty = si.relax(torch.zeros(0, 5), "subset", "marginals", k=torch.zeros(0, dtype=torch.long))
    assert empty.shape == (0, 5)
    labels = si.encode(torch.tensor([[1, 1, 0], [0, 0, 0]]), torch.zeros(2, 3), "subset", k=[2, 0])
    assert labels.sum(1).tolist() == [2, 0]
    gold = si.relax(theta, "subset", "map", k=torch.tensor(SIZES))
    loss = si.FenchelYoungLoss("subset", "marginals", reduction="none")(theta, gold, k=torch.tensor(SIZES))
    alone = [si.FenchelYoungLoss("subset", "marginals", k=k)(theta[b], gold[b]) for b, k in enumerate(SIZES)]
    assert torch.equal(loss, torch.stack(alone))


def test_estimators_keep_their_own_k() -> None:
    theta = scores("subset")
    size = si.expect(lambda y: y.sum(1), theta, si.get_oracle("subset", k=2), "topk_sparsemax", k=3)
    torch.testing.assert_close(size, torch.full((4,), 2.0, dtype=torch.float64))


def test_infeasible_sizes_are_named() -> None:
    theta = torch.tensor([[0.0, 1.0, 2.0], [0.0, -INF, -INF]])
    for relaxation in ("map", "marginals", "sparsemap"):
        with pytest.raises(InfeasibleError) as error:
            si.relax(theta, "subset", relaxation, k=[2, 2])
        assert error.value.batch_index == 1
        zero = si.relax(theta, "subset", relaxation, k=[2, 2], on_infeasible="zero")
        assert zero.sum(1).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"k": [1, 2, 3, 6]}, r"k must lie between 0 and the 5 elements in use, got 6 at batch index 3"),
        ({"k": [1, 2, 3, -1]}, "got -1 at batch index 3"),
        ({"k": [1, 2, 2, 1], "lengths": [1, 1, 5, 5]}, "the 1 elements in use, got 2 at batch index 1"),
        ({"k": torch.tensor([1.0, 2, 3, 4])}, "k must hold integers"),
        ({"k": [1, 2]}, "k must have the batch shape"),
        ({}, "needs k, as an option or with the scores"),
    ],
)
@pytest.mark.parametrize("oracle", ["subset", "correlated_subset"])
def test_wrong_sizes(oracle: str, data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        si.relax(scores(oracle), oracle, "map", **data)


def test_tensors_as_options_point_to_instance_data() -> None:
    with pytest.raises(InvalidInputError, match=r"pass the k of each instance with the scores: layer\(theta, k=...\)"):
        si.Layer("subset", k=torch.tensor([1, 2]))
