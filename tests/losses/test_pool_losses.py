"""Losses over a pool of structures, ranking and contrastive, against their definitions, and the state of the pool."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import enumerators
import structinf as si
from decision_loss_examples import INF, SOME, THETA, TRUE, gradients
from oracle_example import Example
from structinf import InvalidInputError, UnsupportedError
from structinf.parts import map_parts
from surrogate_reference import draw, instance, listed
from toy_oracles import Walk

# ----------------------------------------------------------------------------- ranking


def test_ranking_by_hand():
    pool = torch.eye(3)
    expected = {
        "pointwise": ((1 + 1.5**2 + 1) / 3, [-2 / 3, 1.0, -2 / 3]),
        "pairwise": (0.5, [-0.5, 0.5, 0.0]),
    }
    shares, q = torch.softmax(THETA[0], 0), torch.softmax(TRUE[0], 0)
    expected["listwise"] = (-(q * shares.log()).sum().item(), (shares - q).tolist())
    for kind, (value, slope) in expected.items():
        loss, (gradient,) = gradients(si.RankingLoss("categorical", kind, pool=pool), THETA, TRUE)
        assert loss.item() == pytest.approx(value)
        assert gradient[0].tolist() == pytest.approx(slope)
    loss = si.RankingLoss("categorical", "pairwise", pool=pool, margin=2.0)
    assert loss(THETA, TRUE).item() == pytest.approx((3 + 1) / 2)


@pytest.mark.parametrize("kind", ["pointwise", "pairwise", "listwise"])
@pytest.mark.parametrize("example", SOME[:6], ids=str)
def test_ranking_is_its_definition(example: Example, kind: str):
    oracle, every = example.oracle(), listed(example)
    tensors = tuple(torch.as_tensor(np.stack(column)) for column in zip(*every.structures, strict=True))
    pool = tensors if example.is_tuple else tensors[0]
    theta, true = draw(example, 2, 1)[0], draw(example, 2, 2)[0]
    loss = si.RankingLoss(oracle, kind, pool=pool, margin=0.3, temperature=2.0, reduction="none").eval()
    losses = loss(theta, true)
    for b in range(2):
        p, q = (np.array([enumerators.score(instance(s, b), y) for y in every.structures]) for s in (theta, true))
        if kind == "pointwise":
            value = ((p - q) ** 2).mean()
        elif kind == "pairwise":
            best = q.argmax()
            value = np.maximum(0, 0.3 + p - p[best])[q < q[best]].mean() if (q < q[best]).any() else 0.0
        else:
            shares = np.exp(q / 2 - q.max() / 2)
            value = -(shares / shares.sum() * (p / 2 - np.logaddexp.reduce(p / 2))).sum()
        assert losses[b].item() == pytest.approx(value, abs=1e-8)


# ----------------------------------------------------------------------------- contrastive


def test_contrastive_by_hand():
    pool, gold = torch.eye(3)[1:], torch.tensor([0])
    loss, (gradient,) = gradients(si.ContrastiveLoss("categorical", "nce", pool=pool), THETA, gold)
    # the gold structure has joined the pool
    assert loss.item() == pytest.approx((0 + 1 - 1) / 3, abs=1e-7)
    assert gradient[0].tolist() == pytest.approx([1 / 3 - 1, 1 / 3, 1 / 3])
    loss, (gradient,) = gradients(si.ContrastiveLoss("categorical", "map", pool=pool), THETA, gold)
    assert loss.item() == 1
    assert gradient.tolist() == [[-1.0, 1.0, 0.0]]
    without_gold = si.ContrastiveLoss("categorical", "nce", pool=pool).eval()
    assert without_gold(THETA, gold).item() == 0.0


def test_contrastive_map_over_all_structures_is_the_perceptron():
    oracle = si.get_oracle("assignment")
    theta = torch.randn(4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gold = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]])
    pool = oracle.enumerate((3, 3))
    ours = gradients(si.ContrastiveLoss(oracle, "map", pool=pool), theta, gold)
    perceptron = gradients(si.FenchelYoungLoss(oracle, "map"), theta, gold)
    torch.testing.assert_close(ours, perceptron)


def test_pools_grow_by_schedule_and_keep_their_state():
    g = torch.Generator().manual_seed(0)
    gold = torch.tensor([0, 1])

    def scores():
        return torch.randn(2, 8, generator=g)

    loss = si.ContrastiveLoss("subset", k=2, solve_ratio=0.5, capacity=20)
    structures = si.relax(scores(), "subset", "map", k=2)
    sizes = []
    for _ in range(4):
        theta = torch.rand(2, 8, generator=g)
        loss(theta, structures)
        sizes.append(len(loss.pool))
    assert sizes[0] > 2  # 2 gold structures, and the best structures of the first call
    assert sizes[1] == sizes[0]
    assert sizes[2] > sizes[1]
    assert sizes[3] == sizes[2]
    other = si.ContrastiveLoss("subset", k=2, solve_ratio=0.5, capacity=20)
    other.load_state_dict(loss.state_dict())
    theta = scores()
    assert torch.equal(other.eval()(theta, structures), loss.eval()(theta, structures))
    assert len(loss.pool) == sizes[3]
    small = si.ContrastiveLoss("categorical", capacity=2, solve_ratio=0.0)
    small(torch.zeros(2, 4), gold)
    small(torch.zeros(2, 4), gold + 2)
    assert small.pool.memory.structures.tolist() == torch.eye(4)[2:].tolist()


@pytest.mark.parametrize(
    "loss",
    [
        si.ContrastiveLoss("chain", pool=None),
        si.RankingLoss("chain", "listwise"),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_pools_of_several_tensors_and_one_set_of_structures(loss):
    unary, transition = torch.randn(3, 4, 2), torch.randn(2, 2)
    target = torch.zeros(3, 4, dtype=torch.long) if isinstance(loss, si.ContrastiveLoss) else (-unary, -transition)
    leaf = transition.clone().requires_grad_()
    loss((unary, leaf), target).backward()
    assert leaf.grad.shape == (2, 2)
    with pytest.raises(UnsupportedError, match=r"a pool of structures needs one set Y .* instance data lengths"):
        loss((unary, transition), target, lengths=[4, 2, 3])


def test_pools_leave_out_forbidden_structures():
    theta = torch.tensor([[1.0, -INF, 0.0], [1.0, 3.0, 0.0]])
    true = torch.tensor([[2.0, 0.5, 1.0], [2.0, 0.5, 1.0]])
    for kind in ("pointwise", "pairwise", "listwise"):
        loss = si.RankingLoss("categorical", kind, pool=torch.eye(3), reduction="none")
        small = si.RankingLoss("categorical", kind, pool=torch.eye(2), reduction="none")
        losses, (gradient,) = gradients(loss, theta, true)
        assert losses[0].item() == pytest.approx(small(theta[:1, ::2], true[:1, ::2]).item())
        assert gradient[0, 1] == 0
        assert bool(gradient.isfinite().all())
        only = si.RankingLoss("categorical", kind, pool=torch.eye(3)[1:2]).eval()
        losses, (gradient,) = gradients(only, theta[:1], true[:1])
        assert losses.item() == 0
        assert not gradient.any()
    for kind in ("nce", "map"):
        losses, (gradient,) = gradients(
            si.ContrastiveLoss("categorical", kind, pool=torch.eye(3), reduction="none"), theta, torch.tensor([2, 2])
        )
        assert losses.tolist() == pytest.approx([0.5, 4 / 3] if kind == "nce" else [1.0, 3.0])
        assert bool(gradient.isfinite().all())
        with pytest.raises(
            InvalidInputError, match=r"y: the gold structure at batch index 0 uses a part of score −inf"
        ):
            si.ContrastiveLoss("categorical", kind)(theta, torch.tensor([1, 2]))


@pytest.mark.parametrize("name", ["ranking", "contrastive"])
def test_schedule_of_a_pool_counts_a_call_once_beside_infeasible_instances(name):
    loss = si.RankingLoss if name == "ranking" else si.ContrastiveLoss
    loss = loss("categorical", solve_ratio=0.5, reduction="none", on_infeasible="zero")
    theta = torch.tensor([[1.0, 2.0, 0.0], [-torch.inf] * 3])
    target = torch.tensor([[1.0, 0.0, 3.0], [-torch.inf] * 3]) if name == "ranking" else torch.tensor([2, 0])
    assert loss(theta, target)[1] == 0
    assert loss.pool.memory.structures.argmax(1).sort().values.tolist() == [1, 2]
    assert loss.pool.calls == 1


@pytest.mark.parametrize("name", ["ranking", "contrastive"])
def test_empty_batch_needs_no_pool_and_takes_no_turn_of_the_schedule(name):
    loss = si.RankingLoss("categorical") if name == "ranking" else si.ContrastiveLoss("categorical", "map")
    targets = [torch.zeros(n, 3) if name == "ranking" else torch.zeros(n, dtype=torch.int64) for n in (0, 1)]
    assert loss(torch.zeros(0, 3, requires_grad=True), targets[0]) == 0
    assert loss(torch.zeros(1, 3), targets[1]).isfinite()
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"pool.other\""):
        loss.load_state_dict(loss.state_dict() | {"pool.other": torch.zeros(1)})


def test_pool_remembers_the_best_structures_of_true_scores():
    class Counting(Walk):
        sizes: ClassVar[list[int]] = []

        def argmax(self, theta):
            self.sizes.append(len(theta[0]))
            return super().argmax(theta)

    g = torch.Generator().manual_seed(0)
    theta, true = ((torch.randn(3, 3, 2, generator=g), torch.randn(3, 2, 2, generator=g)) for _ in range(2))
    oracle = Counting()
    loss = si.RankingLoss(oracle, solve_ratio=1.0)
    values = [loss(theta, true).item() for _ in range(2)]
    assert values[0] == values[1]
    assert oracle.sizes == [6, 3]
    other = map_parts(lambda t: torch.cat([t[:1], -t[1:]]), true)
    loss(theta, other)
    assert oracle.sizes[2:] == [3, 2]
    loss.oracle = Counting()
    loss(theta, true)
    assert oracle.sizes[4:] == [6]
    # A structure that the pool has replaced is found again.
    oracle, loss = Counting(), si.RankingLoss(Counting(), solve_ratio=1.0, capacity=2)
    loss.oracle = oracle
    one = map_parts(lambda t: t[:1], theta), map_parts(lambda t: t[:1], true)
    loss(*one)
    for other in (map_parts(lambda t: -t[:1], true), one[0]):
        loss.pool.memory.add(Walk().argmax(other))
    loss(*one)
    assert oracle.sizes[5:] == [2, 2]


@pytest.mark.parametrize("capacity", [1, 3, 4])
def test_small_pools_keep_the_best_structures_of_true_scores(capacity):
    size = min(capacity, 2)
    loss = si.RankingLoss("subset", k=2, capacity=capacity, solve_ratio=1.0)
    true = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))
    best = si.relax(true, "subset", "map", k=2)
    for seed in range(4):
        loss(torch.randn(size, 6, generator=torch.Generator().manual_seed(seed)), true)
        assert (best[:, None] == loss.pool.memory.structures).all(2).any(1).all()


def test_memory_of_remembered_true_scores_does_not_grow_with_their_structures():
    loss = si.RankingLoss("bits", capacity=16, solve_ratio=1.0)
    for seed in range(20):
        scores = torch.randn(2, 8, 4000, generator=torch.Generator().manual_seed(seed))
        loss(*scores)
    keys = [key for pair in loss.pool._solved[1].items() for key in pair]
    assert len(keys) == 320
    assert sum(map(len, keys)) <= 16 * 320


def test_second_derivatives_are_those_of_the_pool_of_the_forward_pass():
    theta = THETA.double().requires_grad_()
    loss = si.RankingLoss("categorical", "pointwise", pool=torch.eye(3)[:2], capacity=2, solve_ratio=1.0)
    (gradient,) = torch.autograd.grad(loss.eval()(theta, TRUE.double()), theta, create_graph=True)
    loss.train()(torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[0.0, 0.0, 9.0]]))
    assert loss.pool.memory.structures[:, 2].any()  # the pool has replaced a structure
    # The mean of (p - q)² over two structures of one part has the Hessian 1 at both parts.
    (product,) = torch.autograd.grad(gradient, theta, torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64))
    assert product.tolist() == [[2.0, 3.0, 0.0]]


@pytest.mark.parametrize("kind", ["pointwise", "pairwise", "listwise"])
def test_ranking_has_gradients_for_the_true_scores(kind):
    loss = si.RankingLoss("subset", kind, k=2, pool=torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]))
    theta, true = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    loss.eval()
    assert gradcheck(loss, (theta.requires_grad_(), true.requires_grad_()))
    with torch.no_grad():
        alone = loss(theta, true)
    torch.testing.assert_close(loss(theta, true), alone, rtol=1e-14, atol=0)


@pytest.mark.parametrize("kind", ["map", "pointwise", "pairwise", "listwise"])
def test_large_batches_have_the_losses_of_small_ones(kind):
    # numpy compares the structures of small batches, and torch those of large ones
    g = torch.Generator().manual_seed(5)
    theta, true = (torch.randn(600, 8, generator=g).round(decimals=1) for _ in range(2))
    pool = si.relax(torch.randn(20, 8, generator=g), "subset", "map", k=3)
    options = {"k": 3, "pool": pool, "reduction": "none"}
    loss = si.ContrastiveLoss("subset", kind, **options) if kind == "map" else si.RankingLoss("subset", kind, **options)
    loss.eval()
    given = si.relax(true, "subset", "map", k=3) if kind == "map" else true
    large, small = theta.clone().requires_grad_(), theta.clone().requires_grad_()
    values = loss(large, given)
    pieces = torch.cat([loss(t, y) for t, y in zip(small.split(50), given.split(50), strict=True)])
    torch.testing.assert_close(values, pieces)
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), t)[0] for v, t in ((values, large), (pieces, small))))


def test_gold_structures_that_a_pool_has_checked_are_not_checked_again():
    class Recorded(si.Oracle):
        event_ndim = 1
        checked = 0

        def argmax(self, theta):
            return torch.nn.functional.one_hot(theta.argmax(1), 3).to(theta)

        def contains(self, y):
            self.checked += 1
            return (y.sum(1) == 1) & ((y == 0) | (y == 1)).all(1)

    first, theta, eye, pair = Recorded(), torch.randn(3, 3), torch.eye(3), torch.tensor([[1.0, 1.0, 0.0]])
    loss = si.ContrastiveLoss(first, "map", pool=torch.cat([eye, pair]))
    for _ in range(3):
        loss(theta, eye)
    assert first.checked == 1
    for wrong in (torch.cat([eye[:2], pair]), torch.cat([eye[:2], 0.3 * eye[2:]])):
        with pytest.raises(InvalidInputError, match=r"not a structure of .* index 2"):
            loss(theta, wrong)
    with pytest.raises(InvalidInputError, match=r"not a structure of .* index 0"):
        loss(theta.double(), eye.double() * (1 + 1e-12))  # the pool rounds to float32
    loss.oracle = second = Recorded()
    loss(theta, eye)
    assert second.checked == 1
