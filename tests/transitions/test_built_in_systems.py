"""Built-in transition systems against their oracles and definitions, and their gold spans."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import structinf as si
from structinf.transitions import BitsInOrder, PlackettLuce, ShiftReduce, enumerate_sequences
from transition_tables import within


def test_shift_reduce_builds_gold_trees():
    generator = torch.Generator().manual_seed(0)
    for labels, shape in ((None, (5, 5)), (3, (5, 5, 3))):
        theta = torch.randn(6, *shape, generator=generator)
        lengths = torch.tensor([5, 5, 4, 3, 2, 1])
        oracle = si.get_oracle("binary_tree", labelled=labels is not None)
        tree = si.topk(theta, oracle, 1, lengths=lengths)
        spans = si.decode(tree.structures[0], oracle, lengths=lengths)
        system = ShiftReduce(labels=labels)
        mixed = spans[:, torch.randperm(9, generator=generator)]
        actions = system.gold_actions(mixed)
        score = si.sequence_log_prob(system, (theta, lengths), actions, normalize=False)
        torch.testing.assert_close(score, tree.scores[0])
        beam = si.decode_beam(system, (theta, lengths), 100, normalize=False)
        torch.testing.assert_close(beam.structures[0], tree.structures[0])
        with pytest.raises(si.InvalidInputError, match=r"spans must have shape \(B, 2n − 1, "):
            ShiftReduce(labels=None if labels else 3).gold_actions(spans)
    with pytest.raises(TypeError, match="spans must be an int64 tensor"):
        ShiftReduce().gold_actions(torch.zeros(1, 3, 2))


def test_bits_are_those_of_the_oracle():
    theta = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([4, 3, 1])
    found = enumerate_sequences(BitsInOrder(), (theta, lengths))
    assert found.valid.sum(0).tolist() == [16, 8, 2]
    expected = si.log_prob(theta, found.structures, "bits", lengths=lengths)
    torch.testing.assert_close(found.scores[found.valid], expected[found.valid])


def test_plackett_luce_against_its_steps():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    for k in (None, 1, 3):
        system = PlackettLuce(k)
        found = enumerate_sequences(system, theta)
        closed = system.log_prob(theta, found.actions)
        torch.testing.assert_close(closed, found.scores)
        steps = si.sequence_log_prob(system, theta, found.actions)
        weight = torch.randn(len(closed), 1, dtype=torch.float64, generator=generator)
        gradients = [torch.autograd.grad((log_p * weight).sum(), theta)[0] for log_p in (closed, steps)]
        torch.testing.assert_close(*gradients)
        draws = 10_000
        orders = system.sample(theta, draws, generator=generator)
        assert orders.shape == (draws, 3, k or 5)
        index = (orders[:, :, None] == found.actions.transpose(0, 1)).all(-1)
        assert (index.sum(-1) == 1).all()
        assert within(index.sum(0), found.scores.T.exp(), draws)


def test_rankings_are_those_of_the_oracle():
    theta = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([5, 5, 3, 1])
    found = si.decode_greedy(PlackettLuce(), (theta, lengths))
    torch.testing.assert_close(found.structures, best(theta, lengths))
    top = si.decode_greedy(PlackettLuce(2), theta)
    assert (top.structures == torch.where(best(theta, None) >= 4, best(theta, None), 0)).all()


def best(theta: Tensor, lengths: Tensor | None) -> Tensor:
    found = si.relax(theta, "ranking", "map", lengths=lengths)
    assert isinstance(found, Tensor)
    return found


def test_plackett_luce_of_extreme_scores():
    theta = torch.tensor([[0.5, -torch.inf, 1000, -1000.0]], requires_grad=True)
    log_p = PlackettLuce(k=2).log_prob(theta, torch.tensor([[0, 2]]))
    log_p.sum().backward()
    assert log_p.item() == pytest.approx(-999.5)
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad, torch.tensor([[1.0, 0, -1, 0]]))
    with pytest.raises(si.InvalidInputError, match="at most once"):
        PlackettLuce().log_prob(theta, torch.tensor([[0, 0]]))
    with pytest.raises(si.InvalidInputError, match="elements from 0 to 3"):
        PlackettLuce().log_prob(theta, torch.tensor([[0, 4]]))
    assert PlackettLuce().log_prob(theta, torch.tensor([[0, 2, 3, 1]])).item() == -torch.inf
    (gradient,) = torch.autograd.grad(PlackettLuce().log_prob(theta, torch.tensor([[0, 2, 3]])).sum(), theta)
    assert gradient.isfinite().all()
    assert gradient[0, 1] == 0
    with pytest.raises(si.InfeasibleError, match="order of 4 elements"):
        PlackettLuce().sample(theta)
    for wrong, error in ((torch.full((1, 4), torch.nan), "NaN"), (torch.zeros(2, 0), "n at least 1")):
        with pytest.raises(si.InvalidInputError, match=error):
            PlackettLuce().sample(wrong)
    order = torch.tensor([[3, 1, 0, 2], [0, 1, 2, 3]])
    finite = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: PlackettLuce().log_prob(t, order), finite)
    with pytest.raises(TypeError, match="theta"):
        PlackettLuce().log_prob(torch.tensor([1, 2]), torch.tensor([0]))


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2)],  # crossing
        [(0, 0), (1, 1), (2, 2), (0, 2), (0, 2)],
        [(0, 0), (0, 0), (2, 2), (0, 1), (0, 2)],
        [(0, 0), (1, 1), (2, 2), (0, 1), (-1, -1)],  # no span of all words
        [(0, 0), (2, 2), (3, 3), (2, 3), (0, 3)],  # a word is missing
        [(1, 1), (2, 2), (3, 3), (1, 2), (1, 3)],
        [(-1, -1)] * 5,
    ],
)
def test_gold_spans_must_form_a_tree(spans):
    good = [(0, 0), (1, 1), (2, 2), (1, 2), (0, 2)]
    with pytest.raises(si.InvalidInputError, match=r"spans must form a binary tree.* at batch index 1"):
        ShiftReduce().gold_actions(torch.tensor([good, spans, good]))


def test_gold_spans_in_any_order_and_with_padding():
    spans = torch.tensor(
        [
            [(0, 2), (1, 1), (0, 0), (1, 2), (2, 2)],
            [(-1, -1), (0, 1), (-1, -1), (1, 1), (0, 0)],
            [(0, 0)] + [(-1, -1)] * 4,
        ]
    )
    expected = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, -1, -1], [0, -1, -1, -1, -1]])
    torch.testing.assert_close(ShiftReduce().gold_actions(spans), expected)
    assert ShiftReduce().gold_actions(spans[:0]).shape == (0, 5)
    labelled = torch.cat([spans, torch.where(spans[..., :1] < 0, -1, 2)], 2)
    with pytest.raises(si.InvalidInputError, match="labels between 0 and 1, got 2 at batch index 0"):
        ShiftReduce(labels=2).gold_actions(labelled)


def test_scores_that_are_no_tensors():
    for system, inputs in (
        (ShiftReduce(lambda state: None), torch.zeros(1, 3, 3)),
        (BitsInOrder(lambda state: None), torch.zeros(1, 3)),
    ):
        with pytest.raises(TypeError, match=r"score must return a tensor \(1, 2\), got NoneType"):
            si.decode_greedy(system, inputs)
