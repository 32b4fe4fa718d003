"""FenchelYoungLoss: values, gradients, costs, gold in every form, reductions, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structinf as si
from structinf import FenchelYoungLoss, InfeasibleError, InvalidInputError, Parts, UnsupportedError, relax
from structinf.parts import as_tuple, map_parts
from structinf.relaxation import Relaxation
from structinf.solution import Solution
from toy_oracles import Explicit, Knapsack, Walk

RELAXATIONS = ["map", "marginals", "sparsemap"]
every_relaxation = pytest.mark.parametrize("relaxation", RELAXATIONS)


def walk(*batch: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(*batch, 3, 2, dtype=dtype), torch.randn(2, 2, dtype=dtype)


# ----------------------------------------------------------------------------- values and gradients


@pytest.mark.parametrize(
    ("relaxation", "value", "gradient"),
    [
        ("map", 1.0, [-1.0, 1.0, 0.0]),
        ("marginals", 1.407606, [-0.755272, 0.665241, 0.090031]),
        ("sparsemap", 1.0, [-1.0, 1.0, 0.0]),
    ],
)
def test_golden_values(relaxation, value, gradient):
    theta = torch.tensor([1.0, 2.0, 0.0], requires_grad=True)
    loss = FenchelYoungLoss("categorical", relaxation)(theta, torch.tensor(0))
    loss.backward()
    assert loss.item() == pytest.approx(value, abs=1e-6)
    assert theta.grad.tolist() == pytest.approx(gradient, abs=1e-6)


def test_categorical_losses_are_cross_entropy_and_the_multiclass_hinge():
    theta, y = torch.randn(6, 5), torch.randint(5, (6,))
    functional = torch.nn.functional
    torch.testing.assert_close(
        FenchelYoungLoss("categorical", "marginals")(theta, y), functional.cross_entropy(theta, y)
    )
    margins = theta + 1 - functional.one_hot(y, 5) - theta.gather(1, y[:, None])
    hinge = FenchelYoungLoss("categorical", "map", cost="hamming", reduction="none")(theta, y)
    torch.testing.assert_close(hinge, margins.amax(1))


@pytest.mark.parametrize("cost", [None, "hamming"])
@every_relaxation
def test_the_gradient_is_the_mean_less_the_gold_structure(relaxation, cost):
    theta = tuple(t.requires_grad_() for t in walk(4))
    gold = relax(walk(4), Walk(), "map")
    FenchelYoungLoss(Walk(), relaxation, cost=cost, reduction="sum")(theta, gold).backward()
    costs = Walk().hamming_cost(gold) if cost else (0.0, 0.0)
    mean = relax(tuple(t.detach() + c for t, c in zip(theta, costs, strict=True)), Walk(), relaxation)
    torch.testing.assert_close(theta[0].grad, mean[0] - gold[0])
    torch.testing.assert_close(theta[1].grad, (mean[1] - gold[1]).sum(0))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("relaxation", ["marginals", "sparsemap"])
def test_derivatives_at_other_temperatures(relaxation, temperature):
    loss = FenchelYoungLoss(Explicit(), relaxation, temperature=temperature)
    gold = Explicit().enumerate((4,))[:3]
    theta = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: loss(t, gold), theta)
    assert gradgradcheck(lambda t: loss(t, gold), theta)
    assert loss(theta, gold) >= 0


@every_relaxation
def test_the_loss_vanishes_at_the_right_answer(relaxation):
    gold = relax(walk(5), Walk(), "map")
    strong = map_parts(lambda y: 200.0 * (2 * y - 1), (gold[0], torch.zeros(2, 2, dtype=torch.float64)))
    losses = FenchelYoungLoss(Walk(), relaxation, reduction="none")(strong, gold)
    assert losses.tolist() == pytest.approx([0] * 5, abs=1e-12)


def test_a_margin_is_asked_for_by_a_cost():
    gold = torch.tensor([[0.0, 1.0, 0.0]])
    for relaxation in ("map", "sparsemap"):
        loss = FenchelYoungLoss("categorical", relaxation, cost="hamming")
        assert loss(torch.tensor([[0.0, 0.5, 0.0]]), gold) > 0
        assert loss(torch.tensor([[0.0, 2.5, 0.0]]), gold) == 0
    theta = torch.randn(20, 3)
    y = torch.randint(3, (20,))
    hinge = FenchelYoungLoss("categorical", "map", cost="hamming", reduction="none")(theta, y)
    assert (hinge >= (theta.argmax(1) != y).float() - 1e-6).all()  # an upper bound on the errors


# ----------------------------------------------------------------------------- gold


def test_labels_and_structures_are_the_same_gold():
    tags = torch.tensor([[0, 1, 1], [1, 0, 0]])
    theta = walk(2)
    loss = FenchelYoungLoss(Walk(), "marginals", reduction="none")
    structure = si.encode(tags, theta, Walk())
    expected = loss(theta, tags)
    for gold in (
        structure,
        tags.to(torch.int32),
        map_parts(torch.Tensor.float, structure),
        map_parts(torch.Tensor.bool, structure),
        list(structure),
    ):
        torch.testing.assert_close(loss(theta, gold), expected)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_labels_follow_the_batch(batch):
    loss = FenchelYoungLoss("categorical", "sparsemap", reduction="none")
    assert loss(torch.randn(*batch, 4), torch.zeros(batch, dtype=torch.long)).shape == batch
    heads = torch.zeros(*batch, 3, dtype=torch.long)
    trees = FenchelYoungLoss(si.get_oracle("arborescence", single_root=False), "sparsemap", reduction="none")
    assert trees(torch.randn(*batch, 4, 4), heads).shape == batch


@every_relaxation
def test_lengths_and_padding(relaxation):
    theta, lengths = walk(3), torch.tensor([3, 1, 2])
    tags = torch.tensor([[0, 1, 1], [1, 0, 9], [0, 0, -100]])
    loss = FenchelYoungLoss(Walk(), relaxation, cost="hamming", reduction="none")
    found = loss(theta, tags.where(torch.arange(3) < lengths[:, None], -1), lengths=lengths)
    torch.testing.assert_close(loss(theta, tags, lengths=lengths), found)  # what lies in the padding is not read
    gold = si.encode(tags, theta, Walk(), lengths=lengths)
    gold[0][1, 1:], theta[0][2, 2] = torch.nan, torch.nan
    torch.testing.assert_close(loss(theta, gold, lengths=lengths), found)
    alone = [loss((theta[0][b, : lengths[b]], theta[1]), tags[b, : lengths[b]]) for b in range(3)]
    torch.testing.assert_close(torch.stack(alone), found)


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        (torch.zeros(2, 5), r"^y must have shape \(2, 4\) \(batch \(2,\), structure \(4,\)\), got \(2, 5\)"),
        (torch.zeros(3, 4), r"^y must have shape \(2, 4\) .*got \(3, 4\)"),
        ((torch.zeros(2, 4),) * 2, r"^y must have the form of theta, one tensor, got a tuple of 2"),
        (torch.full((2, 4), torch.nan), r"^y holds NaN or infinity at batch index 0"),
        (
            torch.zeros(3, dtype=torch.long),
            r"^y: integer labels of categorical must have the batch shape \(2,\) .*got shape \(3,\)",
        ),
        (torch.tensor([0, 4]), r"4"),
    ],
)
def test_gold_that_does_not_fit(gold, message):
    with pytest.raises(InvalidInputError, match=message):
        FenchelYoungLoss("categorical", "map")(torch.zeros(2, 4), gold)


def test_gold_that_is_no_tensor():
    with pytest.raises(TypeError, match=r"^y must be a tensor in the form of theta, got a list"):
        FenchelYoungLoss(Walk(), "map")(walk(2), ([[0, 1]], [[1]]))


@every_relaxation
def test_gold_that_is_forbidden(relaxation):
    theta = torch.zeros(2, 3)
    theta[1, 2] = -torch.inf
    with pytest.raises(InvalidInputError, match="gold structure at batch index 1 uses a part of score −inf"):
        FenchelYoungLoss("categorical", relaxation)(theta, torch.tensor([2, 2]))
    loss = FenchelYoungLoss("categorical", relaxation, cost="hamming")
    theta.requires_grad_()
    loss(theta, torch.tensor([2, 0])).backward()  # other parts may well be forbidden
    assert theta.grad.isfinite().all()
    assert theta.grad[1, 2] == 0


def zeros(*shape, forbid):
    """Zeros with −inf at the index ``forbid``."""
    theta = torch.zeros(shape)
    theta[forbid] = -torch.inf
    return theta


EDGES = [("a", "b"), ("b", "c"), ("a", "c")]


@pytest.mark.parametrize(
    ("oracle", "options", "theta", "gold", "part"),
    [
        ("categorical", {}, zeros(2, 3, forbid=(1, 2)), [0, 2], "part 2"),
        ("subset", {"k": 2}, zeros(2, 3, forbid=(1, 2)), [[1, 1, 0], [1, 0, 1]], "part 2"),
        ("chain", {}, (zeros(2, 4, 3, forbid=(1, 3, 0)), torch.zeros(3, 3)), [[0] * 4, [0] * 4], "tag 0 at position 3"),
        (
            "chain",
            {},
            (torch.zeros(2, 5, 3), zeros(3, 3, forbid=(1, 2))),
            [[0] * 5, [0, 1, 1, 2, 0]],
            "transition 1 -> 2 at position 3",
        ),
        (
            "chain",
            {},
            (torch.zeros(2, 5, 3), zeros(2, 4, 3, 3, forbid=(1, 2, 1, 2))),
            [[0] * 5, [0, 1, 1, 2, 0]],
            "transition 1 -> 2 at position 3",
        ),
        ("chain", {}, zeros(2, 2, 3, 3, forbid=(1, 1, 1, 2)), [[0] * 3, [0, 1, 2]], "transition 1 -> 2 at position 2"),
        (
            "semi_markov",
            {},
            zeros(2, 3, 2, 2, forbid=(1, 2, 1, 1)),
            [[[0, 2, 0], [2, 1, 0], [-1] * 3], [[0, 1, 0], [1, 2, 1], [-1] * 3]],
            "segment of the steps 1 to 2 with label 1",
        ),
        ("arborescence", {}, zeros(2, 3, 3, forbid=(1, 1, 2)), [[0, 0], [0, 1]], "arc 1 -> 2"),
        ("projective_tree", {}, zeros(2, 3, 3, forbid=(1, 1, 2)), [[0, 0], [0, 1]], "arc 1 -> 2"),
        ("assignment", {}, zeros(2, 2, 2, forbid=(1, 0, 1)), [[0, 1], [1, 0]], "row 0 with column 1"),
        (
            "binary_tree",
            {},
            zeros(2, 2, 2, forbid=(1, 0, 1)),
            [[[0, 1], [0, 0], [1, 1]]] * 2,
            "span of the words 0 to 1",
        ),
        ("dag_path", {"graph": EDGES}, zeros(2, 3, forbid=(1, 1)), [[2, -1], [0, 1]], "edge 1, 'b' -> 'c'"),
        (
            "flow",
            {"graph": EDGES, "supplies": {"a": 1, "c": -1}},
            zeros(2, 3, forbid=(1, 2)),
            [[0, 0, 1], [0, 0, 1]],
            "edge 2, 'a' -> 'c'",
        ),
        (
            "path",
            {"graph": EDGES, "source": "a", "target": "c"},
            zeros(2, 3, forbid=(1, 2)),
            [[0, 1], [2, -1]],
            "edge 2, 'a' -> 'c'",
        ),
        ("dtw", {}, zeros(2, 2, 2, forbid=(1, 1, 1)), [[[1, 0], [0, 1]]] * 2, r"part \(1, 1\)"),
    ],
)
def test_the_forbidden_part_of_gold_is_named(oracle, options, theta, gold, part):
    loss = FenchelYoungLoss(oracle, "map", reduction="none", **options)
    y = torch.tensor(gold, dtype=torch.get_default_dtype() if oracle == "dtw" else torch.int64)
    with pytest.raises(
        InvalidInputError, match=rf"at batch index 1 uses a part of score −inf, {part}, so its loss is inf"
    ):
        loss(theta, y)


@every_relaxation
def test_an_infeasible_instance(relaxation):
    theta = torch.zeros(2, 3)
    theta[1] = -torch.inf
    with pytest.raises((InfeasibleError, InvalidInputError), match="batch index 1"):
        FenchelYoungLoss("categorical", relaxation)(theta, torch.tensor([0, 0]))


# ----------------------------------------------------------------------------- costs


@every_relaxation
def test_costs_in_every_form(relaxation):
    theta = walk(3)
    gold = relax(walk(3), Walk(), "map")
    hamming = Walk().hamming_cost(gold)
    seen: list[Parts] = []

    def cost(y: Parts) -> Parts:
        seen.append(y)
        return Walk().hamming_cost(y)

    def loss(cost: object) -> Tensor:
        return FenchelYoungLoss(Walk(), relaxation, cost=cost, reduction="none")(theta, gold)

    expected = loss("hamming")
    torch.testing.assert_close(loss(cost), expected)
    torch.testing.assert_close(loss(hamming), expected)
    torch.testing.assert_close(seen[0], gold)
    assert (expected >= loss(None) - 1e-12).all()


def test_a_cost_sees_the_users_shapes():
    theta = torch.randn(2, 3, 4, dtype=torch.bfloat16)

    def cost(y: Tensor) -> Tensor:
        assert (y.shape, y.dtype) == ((2, 3, 4), torch.bfloat16)
        return 1 - y

    y = torch.zeros(2, 3, dtype=torch.long)
    found = FenchelYoungLoss("categorical", "map", cost=cost, reduction="none")(theta, y)
    assert (found.shape, found.dtype) == ((2, 3), torch.bfloat16)


def test_a_cost_for_every_instance_alike():
    theta, y = torch.randn(5, 3), torch.randint(3, (5,))
    prices = torch.tensor([0.0, 1.0, 5.0])
    found = FenchelYoungLoss("categorical", "map", cost=prices, reduction="none")(theta, y)
    ahead = (theta + prices) - (theta + prices).gather(1, y[:, None])
    torch.testing.assert_close(found, ahead.amax(1))


def test_hamming_counts_tokens():
    y = si.encode(torch.tensor([[0, 1, 1]]), walk(1), Walk())
    for tags, wrong in (([0, 1, 1], 0), ([0, 0, 1], 1), ([1, 0, 0], 3)):
        other = si.encode(torch.tensor([tags]), walk(1), Walk())
        cost = Walk().hamming_cost(y)
        assert (Walk().score(cost, other) - Walk().score(cost, y)).item() == wrong


def test_costs_that_do_not_fit():
    with pytest.raises(
        InvalidInputError, match=r"^cost must be \"hamming\" or None, a tensor .* or a callable, got 'edit'"
    ):
        FenchelYoungLoss("categorical", "map", cost="edit")
    for wrong in (1.0, 3, True, {"hamming": 1}):
        with pytest.raises(InvalidInputError, match=r"^cost must be .*, got "):
            FenchelYoungLoss("categorical", "map", cost=wrong)
    theta, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    with pytest.raises(InvalidInputError, match=r"^cost must have shape \(2, 3\) .*got \(2, 4\)"):
        FenchelYoungLoss("categorical", "map", cost=torch.zeros(2, 4))(theta, y)
    with pytest.raises(InvalidInputError, match=r"^cost\(y\) must have shape \(2, 3\) .*got \(2,\)"):
        FenchelYoungLoss("categorical", "map", cost=lambda y: y.sum(1))(theta, y)
    with pytest.raises(InvalidInputError, match=r"^cost holds NaN or infinity at batch index 0"):
        FenchelYoungLoss("categorical", "map", cost=torch.tensor([0.0, torch.nan, 0.0]))(theta, y)


# ----------------------------------------------------------------------------- reductions and dtypes


@every_relaxation
def test_reductions(relaxation):
    theta = torch.randn(2, 3, 4)
    y = torch.randint(4, (2, 3))
    none, total, mean = (
        FenchelYoungLoss("categorical", relaxation, reduction=r)(theta, y) for r in ("none", "sum", "mean")
    )
    assert none.shape == (2, 3)
    assert total.shape == mean.shape == ()
    torch.testing.assert_close(none.sum(), total)
    torch.testing.assert_close(none.mean(), mean)


def test_an_unknown_reduction():
    with pytest.raises(InvalidInputError, match=r"^reduction must be \"mean\", \"sum\" or \"none\", got 'batchmean'"):
        FenchelYoungLoss("categorical", reduction="batchmean")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@every_relaxation
def test_an_empty_batch(relaxation, reduction):
    theta = torch.zeros(0, 4, requires_grad=True)
    loss = FenchelYoungLoss("categorical", relaxation, cost="hamming", reduction=reduction)
    value = loss(theta, torch.zeros(0, dtype=torch.long))
    assert value.sum() == 0
    value.sum().backward()
    assert theta.grad.shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_relaxation
def test_half_precision_is_added_up_in_float32(relaxation, dtype):
    theta = torch.randn(3000, 4).to(dtype).requires_grad_()
    y = torch.randint(4, (3000,))
    value = FenchelYoungLoss("categorical", relaxation)(theta, y)
    exact = FenchelYoungLoss("categorical", relaxation)(theta.detach().double(), y)
    assert value.dtype == dtype
    assert value.item() == pytest.approx(exact.item(), rel=2 * torch.finfo(dtype).eps)
    value.backward()
    assert theta.grad.isfinite().all()


# ----------------------------------------------------------------------------- the module


@dataclass(frozen=True, kw_only=True)
class Surrogate(Relaxation):
    """argmax with a made-up gradient: no regularizer, no loss."""

    name = "surrogate"

    def solve(self, oracle: si.Oracle, theta: Parts, warm_start: Parts | None = None) -> Solution:
        y = oracle.argmax(theta)
        return Solution(mean=y, value=oracle.score(theta, y))


def test_a_surrogate_gradient_makes_no_loss():
    with pytest.raises(
        UnsupportedError, match=r"surrogate has no regularizer Ω, and therefore no Fenchel-Young loss; train a Layer"
    ):
        FenchelYoungLoss("categorical", Surrogate())


def test_sparsemap_is_the_default_and_options_go_through():
    loss = FenchelYoungLoss("arborescence", single_root=True, temperature=0.5, cost="hamming")
    assert repr(loss) == (
        "FenchelYoungLoss(oracle=Arborescence(single_root=True), relaxation=SparseMAP(penalty='auto', temperature=0.5, "
        "tolerance=0.05, max_iter=1000, on_failure='warn'), cost=hamming, reduction='mean')"
    )


@pytest.mark.parametrize("how", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
@every_relaxation
def test_copies_and_pickles(relaxation, how):
    loss = FenchelYoungLoss("categorical", relaxation, cost=torch.tensor([0.0, 1.0, 2.0]))
    theta, y = torch.randn(4, 3), torch.randint(3, (4,))
    assert torch.equal(how(loss)(theta, y), loss(theta, y))


@every_relaxation
def test_inputs_are_left_alone(relaxation):
    theta = tuple(t.requires_grad_() for t in walk(2))
    gold = relax(walk(2), Walk(), "map")
    before = [(t.detach().clone(), t._version) for t in (*theta, *gold)]
    FenchelYoungLoss(Walk(), relaxation, cost="hamming")(theta, gold).backward()
    for t, (values, version) in zip((*theta, *gold), before, strict=True):
        assert torch.equal(t, values)
        assert t._version == version
    assert all(t.requires_grad for t in theta)
    assert not any(t.requires_grad for t in gold)


@every_relaxation
def test_training_lowers_the_loss(relaxation):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 6, generator=generator)
    wanted = relax(features @ torch.randn(6, 4, generator=generator), Explicit(), "map")
    weight = torch.zeros(6, 4, requires_grad=True)
    loss = FenchelYoungLoss(Explicit(), relaxation)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        value = loss(features @ weight, wanted)
        value.backward()
        optimizer.step()
    assert (relax(features @ weight, Explicit(), "map") == wanted).all(1).float().mean() > 0.9


def test_an_argmax_only_oracle_has_losses():
    theta = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    gold = relax(torch.randn(3, 5, dtype=torch.float64), Knapsack(6), "map")
    for relaxation in ("map", "sparsemap"):
        loss = FenchelYoungLoss(Knapsack(6), relaxation, cost="hamming")
        assert gradcheck(lambda t, loss=loss: loss(t, gold), theta)
        assert gradgradcheck(lambda t, loss=loss: loss(t, gold), theta)


@pytest.mark.parametrize("cost", [None, "hamming"])
@every_relaxation
def test_shared_tensors_get_one_gradient(relaxation, cost):
    unary, transition = (t.requires_grad_() for t in walk(3))
    gold = relax(walk(3), Walk(), "map")
    FenchelYoungLoss(Walk(), relaxation, cost=cost)((unary, transition), gold).backward()
    own = tuple(t.detach().expand(3, *t.shape[-2:]).clone().requires_grad_() for t in (unary, transition))
    FenchelYoungLoss(Walk(), relaxation, cost=cost)(own, gold).backward()
    torch.testing.assert_close(transition.grad, own[1].grad.sum(0))
    torch.testing.assert_close(unary.grad, own[0].grad)
    assert len(as_tuple(gold)) == 2
